"""Very many clients are scored on a sample of the validation rows, and users are told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from builders import run_and_list
from fairfate import run
from fairfate.data import synthetic
from fairfate.engine.server import Server
from fairfate.engine.simulation import Simulation
from fairfate.federation import validation_source
from fairfate.federation.partition import parse_partition
from fairfate.federation.seeds import Streams
from fairfate.federation.split import Federation, build
from fairfate.federation.validation_source import sample_size, scoring_rows
from fairfate.models.mlp import Mlp
from fairfate.models.training import Training
from fairfate.report.data import ReportData
from fairfate.report.tables import remarks
from fairfate.strategies import Setup, parse_spec

STREAMS, TRAINING = Streams(3), Training(rounds=2, per_round=4, epochs=1)


@pytest.fixture
def federation() -> Federation:
    return build(synthetic(rows=2000), parse_partition("random"), 6, STREAMS)  # 400 validation rows


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 100 rows for four clients."""
    monkeypatch.setattr(validation_source, "MAX_SCORES", 400)
    monkeypatch.setattr(validation_source, "MIN_SAMPLE", 10)


def test_few_clients_or_rows_are_scored_on_all() -> None:
    assert sample_size(5_000, 10**9) is None
    assert sample_size(200_000, 75) is None
    assert sample_size(200_000, 76) == 197_368
    assert sample_size(200_000, 3_000) == sample_size(200_000, 30_000) == 5_000


def test_a_sample_has_its_share_of_every_group_and_label(federation: Federation, few: None) -> None:
    whole, sample = federation.validation, scoring_rows(federation.validation, 4, STREAMS)
    assert sample.sizes.tolist() == np.ceil(whole.sizes * 100 / 400).astype(int).tolist()
    inputs = federation.inputs
    kept = {row.tobytes() for row in whole.plain(inputs)}
    drawn = [row.tobytes() for row in sample.plain(inputs)]
    assert set(drawn) <= kept
    assert len(set(drawn)) == len(drawn)  # without replacement
    again = scoring_rows(federation.validation, 4, STREAMS)
    other = scoring_rows(federation.validation, 4, Streams(4))
    assert np.array_equal(sample.blocks, again.blocks)
    assert not np.array_equal(sample.blocks, other.blocks)


def test_an_empty_group_stays_empty() -> None:
    assert STREAMS.sample(np.array([0, 10, 1, 0]), 4).tolist()[-1] == 10  # the only row of the third class


def test_server_and_clients_are_compared_on_the_same_rows_and_users_read_of_all(
    federation: Federation, few: None
) -> None:
    model, specs = Mlp(federation.inputs), [parse_spec(text, "eqo") for text in ("fair_fate", "fedavg")]
    clients = Simulation(federation, model, TRAINING, STREAMS)
    servers = [Server.start(spec.build(Setup(2)), clients.initial()) for spec in specs]
    before = servers[0].params.copy()
    first = run_and_list(clients, servers, 1)[0]
    scored, plain = first.replies
    sample = scoring_rows(federation.validation, 4, STREAMS)
    assert scored.client_counts.sum(axis=(1, 2, 3)).tolist() == [len(sample)] * 4
    assert scored.server_counts is not None
    np.testing.assert_array_equal(scored.server_counts, model.count(before[None], sample)[0])
    assert plain.server_counts is None  # fedavg judges nobody
    assert servers[0].counts.sum() == len(federation.validation) == 400


def test_clipped_updates_are_scored_on_the_sample_too(federation: Federation, few: None) -> None:
    clients = Simulation(federation, Mlp(federation.inputs), TRAINING, STREAMS)
    spec = parse_spec("fair_fate+clip:norm=0.01", "eqo")
    server = Server.start(spec.build(Setup(2)), clients.initial())
    (scored,) = run_and_list(clients, [server], 1)[0].replies
    assert set(scored.client_counts.sum(axis=(1, 2, 3)).tolist()) == {
        len(scoring_rows(federation.validation, 4, STREAMS))
    }


def test_a_run_its_config_and_its_report_say_so(tmp_path: Path, few: None) -> None:
    settings = {"data": "synthetic:rows=2000", "rounds": 1, "seeds": (1,), "clients": 6, "per_round": 4}
    done = run(**settings, out=tmp_path / "run", jobs=1)
    said = "models of the 4 clients of a round are scored on a sample of about 100 of the 400 validation rows"
    assert any(said in line for line in remarks(ReportData.from_runs([done])))
    assert said in (tmp_path / "run" / "config.toml").read_text()
    (read,) = ReportData.read([tmp_path / "run"])
    assert any(said in line for line in remarks(read))
    assert said in done.report().read_text()
    alone = run(**settings, strategies=("fedavg",), jobs=1)
    assert not any("sample" in line for line in remarks(ReportData.from_runs([alone])))


def test_a_flower_federation_takes_the_same_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr")
    from ready_app import ReadyApp, assert_same_as_fairfate_run

    monkeypatch.setattr(validation_source, "MAX_SCORES", 0)
    monkeypatch.setattr(
        validation_source, "MIN_SAMPLE", 20
    )  # so few that fairness on them is not that on all rows
    app = ReadyApp(tmp_path / "three-wards")
    config = app.config(strategy="fair_fate:metric=sp", rounds=10)
    app.serve(app.grid(config), config)
    assert_same_as_fairfate_run(app.result(), tmp_path)
    assert "are scored on a sample of about" in (app.result() / "config.toml").read_text()

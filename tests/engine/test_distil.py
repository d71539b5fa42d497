"""One plain network in the place of a tilted score: labels that clients make, one threshold, what is said."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

import fairfate
from fairfate.engine.rules import Labelling, label_by_rule, train_average
from fairfate.engine.simulate import simulate
from fairfate.engine.simulation import Simulation
from fairfate.experiments.config import Config
from fairfate.experiments.prepare import prepare
from fairfate.fairness.tilt import Guard, Tilt, choose_tilt
from fairfate.federation.seeds import Streams
from fairfate.federation.split import build
from fairfate.models.fair_model import FairModel
from fairfate.models.mlp import Mlp, margins_of
from fairfate.report.data import ReportData
from fairfate.report.page import report
from fairfate.report.rule import DISTILLED, NOT_DISTILLED, describe_rule, proxy_sentence
from fairfate.strategies import parse_spec

RULE = "fedavg+average+tilt:metric=sp,margin=0,tolerance=0.1"
NETWORK = f"{RULE},distil=true"
WIDE = "fedavg+average+tilt:metric=sp,margin=0,tolerance=0.4,keep=0,distil=true"
"""Which few rounds are enough for."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fairfate.Run:
    return fairfate.run(
        data="synthetic:rows=3000",
        strategies=("fedavg+average", NETWORK),
        rounds=15,
        seeds=(1,),
        jobs=1,
        out=tmp_path_factory.mktemp("distil") / "run",
    )


@pytest.fixture(scope="module")
def clients() -> Simulation:
    config = Config(data="synthetic:rows=3000", partition="random", rounds=15, clients=4, strategies=(RULE,))
    plan, table = prepare(config)
    streams = Streams(1)
    federation = build(table, plan.partition, plan.clients, streams)
    return Simulation(federation, Mlp(federation.inputs, (10,)), plan.training, streams)


def test_clients_label_their_rows_by_the_table(clients: Simulation) -> None:
    """Against the network and the table in plain NumPy, row by row in the order of training."""
    model, federation = clients.model, clients.federation
    assert isinstance(model, Mlp)
    rng = np.random.default_rng(1)
    params, guess = rng.normal(0, 1, (2, model.num_parameters)).astype(np.float32)
    rule = Tilt(rng.random((8, 8)) < 0.5)
    labelled = label_by_rule(federation, model, Labelling(params, guess, rule))
    x = federation.rows.x.reshape(len(federation.rows), -1)
    scores = [1 / (1 + np.exp(-margins_of(model.arrays(one), x))) for one in (params, guess)]
    label, group = (np.minimum((8 * score).astype(int), 7) for score in scores)
    far = np.all([np.abs(8 * score - np.rint(8 * score)) > 1e-4 for score in scores], axis=0)
    assert far.mean() > 0.99
    assert (labelled.rows.y[far] == rule.table[label, group][far]).all()
    assert (labelled.rows.cell >> 1 == federation.rows.cell >> 1).all()
    assert 0.1 < (labelled.rows.y != federation.rows.y).mean() < 0.9
    counts = [np.bincount(labelled.rows.cell[s:e], minlength=4) for s, e in _spans(labelled.rows.offsets)]
    assert labelled.client_cells.reshape(-1, 4).tolist() == np.array(counts).tolist()


def _spans(offsets: np.ndarray) -> list[tuple[int, int]]:
    return list(itertools.pairwise(offsets.tolist()))


def test_released_network_is_trained_on_the_decisions_of_the_rule(clients: Simulation) -> None:
    """Rebuilt from its parts: rule, labels, the plain strategy on them, and the fairest threshold."""
    plan, table = prepare(
        Config(data="synthetic:rows=3000", partition="random", rounds=15, clients=4, strategies=(RULE,))
    )
    setup = plan.setup(table)
    specs = [parse_spec(text, "eqo") for text in ("fedavg+average", RULE, WIDE)]
    plain, tilted, network = simulate(
        clients.federation, specs, clients.model, clients.training, setup, clients.streams
    )
    assert tilted.rule.tilt is not None
    guess = clients.guess_groups(0.5)
    joint = clients.joint_histograms(plain.params, guess, 32)
    rule = choose_tilt(joint, setup.fairness("sp"), "sp", Guard(0.8 * 0.4, 0.0, 0.0))
    labelled = label_by_rule(clients.federation, clients.model, Labelling(plain.params, guess, rule))
    again = Simulation(labelled, clients.model, clients.training, clients.streams)
    student = train_average(again, again.initial(), clients.training.rounds, 0.5)
    assert network.rule.about["distilled"]
    assert network.params.tobytes() == student.tobytes()
    assert network.params.tobytes() != plain.params.tobytes()
    assert network.thresholds is not None
    (cut,) = set(network.thresholds.tolist())
    margins = clients.model.margins(student, clients.federation.test)
    assert network.test[-1].reshape(4, 2)[:, 1].tolist() == [int((own > cut).sum()) for own in margins]


def test_network_is_fairer_than_the_plain_model_and_nearly_as_accurate(run: fairfate.Run) -> None:
    rows = run.rounds[(run.rounds["split"] == "test") & (run.rounds["round"] == 15)].set_index("strategy")
    plain, network = rows.loc["fedavg+average"], rows.loc["fedavg+average+tilt"]
    assert network["sp"] > plain["sp"] + 0.2
    assert network["accuracy"] > plain["accuracy"] - 0.15


def test_file_of_a_network_has_one_threshold_and_no_second_model(run: fairfate.Run, tmp_path: Path) -> None:
    model = run.model("fedavg+average+tilt")
    assert model.tilt is None
    assert not model.needs_groups
    again = FairModel.load(model.save(tmp_path / "model.safetensors"))
    assert again.common_threshold == model.common_threshold
    assert again.common_threshold is not None
    assert math.isfinite(again.common_threshold)
    assert not any(name.startswith("tilt") for name in again.arrays)
    assert again.about["rule"]["distilled"]


def test_report_says_that_the_network_is_distilled(run: fairfate.Run) -> None:
    data = ReportData.from_runs([run])
    about = data.rules["fedavg+average+tilt", 1]
    assert np.array(about["changes"]).sum() == 1800
    number = list(data.names).index("fedavg+average+tilt")
    assert "distilled" in proxy_sentence(data, number, 1)
    if data.shown[0] == number:
        described = describe_rule(data)
        assert described is not None
        assert DISTILLED in described["says"]
    assert run.out is not None
    assert "learned from one" in report([run.out], force=True).read_text("utf-8")


def test_nothing_is_distilled_where_the_plain_rule_stays() -> None:
    """No accuracy may be given up: the plain model is released, and no third one trained."""
    again = fairfate.run(
        data="synthetic:rows=600",
        strategies=("fedavg+average", "fedavg+average+tilt:metric=sp,tolerance=0,margin=10,distil=true"),
        rounds=3,
        seeds=(1,),
        jobs=1,
    )
    plain, network = again.model("fedavg+average"), again.model("fedavg+average+tilt")
    assert network.about["rule"]["distilled"] is False
    assert network.common_threshold == 0
    assert all((network.arrays[name] == plain.arrays[name]).all() for name in plain.arrays)
    data = ReportData.from_runs([again])
    number = list(data.names).index("fedavg+average+tilt")
    assert proxy_sentence(data, number, 1) == ""
    if data.shown[0] == number:
        described = describe_rule(data)
        assert described is not None
        assert NOT_DISTILLED in described["says"]


def test_bound_is_tested_on_the_network_that_is_released() -> None:
    for strategy in (f"{NETWORK},bound=0.6", f"{NETWORK},bound=0.1,measure=difference"):
        again = fairfate.run(
            data="synthetic:rows=3000", strategies=(strategy,), rounds=10, seeds=(1,), jobs=1
        )
        about = again.model("fedavg+average+tilt").about["rule"]
        assert {"bound", "reached", "limit"} <= set(about)


@pytest.mark.parametrize("text", ["0", "ff", "zz", "00" * 9])
def test_text_of_no_table_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"decisions|hexadecimal"):
        Tilt.from_text(text)
    rule = Tilt(np.random.default_rng(0).random((16, 16)) < 0.5)
    assert (Tilt.from_text(rule.text).table == rule.table).all()

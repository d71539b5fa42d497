"""Differential privacy on Flower: the simulator's bits with its streams, and a ledger at each site."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("flwr")
pytest.importorskip("dp_accounting")

import dp_accounting as dp
import dp_accounting.rdp
from flwr.app import Message

from fairfate import InputError
from fairfate.cli import main as cli
from fairfate.engine.private import seeded
from fairfate.flower.app import private_site
from fairfate.flower.app.gate import state_folder
from fairfate.flower.app.private_site import AtSite
from fairfate.flower.sealed_grid import SealedGrid
from fairfate.flower.sealing import Envelope, PrivateKey, from_records, pack
from fairfate.flower.study import Study
from fairfate.models.private import steps_of
from fairfate.models.training import Training
from fairfate.privacy.accounting import epsilon_of
from fairfate.privacy.budget import Budget
from fairfate.privacy.ledger import Entry, read_ledger, spent
from fairfate.privacy.releases import Releases
from fairfate.results.tables import read_clients
from ready_app import ReadyApp, StudyApp, assert_same_as_fairfate_run

PRIVATE = {"privacy": "epsilon=8", "rounds": 3, "epochs": 1, "per-round": 0}
STRATEGIES = [
    "fedavg",
    "fair_fate",
    "fairgrad",
    "fedavg_lr+average",
    "fedavg+average+thresholds:from=clients",
    "fedavg_gr+average+common_threshold",
]


def ledger(app: StudyApp, name: str) -> list[dict[str, Any]]:
    file = Path(app.node_config(name)["data"])
    return list(json.loads(file.with_name(f"{file.name}.ledger").read_text())["releases"])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_simulation_gives_the_bits_of_fairfate_run(tmp_path: Path, strategy: str) -> None:
    app = ReadyApp(tmp_path / "clinics")
    config = app.config(**PRIVATE, strategy=strategy)
    app.serve(app.grid(config), config)
    assert_same_as_fairfate_run(app.result(), tmp_path)


@pytest.mark.parametrize("strategy", ["fair_fate", STRATEGIES[-1]])
def test_sites_give_the_bits_of_the_simulator_with_its_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    app = StudyApp(tmp_path / "clinics", {**PRIVATE, "strategy": strategy})
    numbers = {name: number for number, name in enumerate(sorted(app.NODES))}

    def streams(place: AtSite, server: str) -> Any:
        name = place.account.file.stem.split(".")[0]
        return lambda kind, t: seeded(1, server, kind, numbers[name], t)

    monkeypatch.setattr(private_site.AtSite, "randomness", streams)
    config = app.config()
    app.serve(app.grid(config), config)
    assert_same_as_fairfate_run(app.result(), tmp_path)


def study_app(folder: Path, strategy: str = "fedavg_gr", **changes: Any) -> StudyApp:
    return StudyApp(folder / "clinics", {**PRIVATE, "strategy": strategy, **changes})


def run(app: StudyApp, number: int = 1, **changes: Any) -> None:
    config = app.config(**changes)
    app.serve(app.grid(config), config, number)


def reasons(app: StudyApp, name: str) -> set[str]:
    return {str(entry.get("reason", "")) for entry in app.log(name)}


def test_a_site_writes_down_what_it_releases_and_stops_within_its_budget(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = study_app(tmp_path)
    run(app)
    lines = ledger(app, "north")
    assert {line["release"]: line["times"] for line in lines} == {
        "counts": 1,
        "update": 3 * steps(app, "north"),
    }
    entries = [Entry(**{name: line[name] for name in Entry._fields}) for line in lines]
    assert 7 < spent(entries, 1e-5) <= 8 * (1 + 1e-6)
    assert read_ledger(app.result() / "ledger.csv")["times"].sum() == sum(
        line["times"] for name in app.NODES for line in ledger(app, name)
    )
    node = app.folder / "node.toml"
    node.write_text(
        "".join(f"{key} = {json.dumps(value)}\n" for key, value in app.node_config("north").items())
    )
    monkeypatch.setattr("sys.argv", ["fairfate", "privacy", str(node)])
    assert cli.run_command() in (0, None)
    out = capsys.readouterr().out
    assert "1 counts" in out
    assert "of 8 at delta 1e-05" in out
    with pytest.raises(InputError, match="round 1 failed"):
        run(app, 2)
    assert any(
        "differential privacy does not allow the rest of this run" in reason
        for reason in reasons(app, "north")
    )
    assert ledger(app, "north") == lines


def steps(app: StudyApp, name: str) -> int:
    rows = len(pd.read_csv(app.node_config(name)["data"]))
    size = app.study.training.batch_size
    return steps_of(rows, app.study.training.epochs, size)


def test_a_site_with_a_larger_budget_of_its_own_takes_part_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = study_app(tmp_path)
    settings = app.node_config
    monkeypatch.setattr(app, "node_config", lambda name: {**settings(name), "epsilon": 16.0})
    run(app)
    run(app, 2)
    first, second = (read_clients(app.result(number)) for number in (1, 2))
    assert first["outcome"].tolist() == second["outcome"].tolist()
    assert {line["release"]: line["times"] for line in ledger(app, "north")}["update"] == 6 * steps(
        app, "north"
    )
    (one,), (two,) = ((app.result(number) / "models").iterdir() for number in (1, 2))
    assert one.read_bytes() != two.read_bytes()  # noise is secret, and no seed's


@pytest.mark.parametrize(
    ("strategy", "reason"), [("fedavg_gr", "the rest of this run"), ("fedavg", "round 1 failed")]
)
def test_site_without_enough_for_the_whole_run_spends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str, reason: str
) -> None:
    app = study_app(tmp_path, strategy)
    settings = app.node_config
    monkeypatch.setattr(app, "node_config", lambda name: {**settings(name), "epsilon": 7.0})
    with pytest.raises(InputError, match=reason):
        run(app)
    assert any("does not allow the rest of this run" in each for each in reasons(app, "north"))
    assert not list((app.folder / "data" / "sites").glob("*.ledger"))


def test_site_refuses_a_delta_by_which_rows_could_be_published(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="delta must be at most one in a site's number of rows"):
        run(study_app(tmp_path, **{"privacy": "epsilon=8,delta=0.009", "max-wait": 1.0}))


def test_an_earlier_round_of_a_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that asks for rounds 1, 2 and 1 again would get other noise, and the site would pay twice."""
    app = study_app(tmp_path, "fedavg")
    config = app.config()
    grid = app.grid(config)
    app.serve(grid, config)
    before = ledger(app, "north")
    server = PrivateKey.read(app.parties / "server-study.key")
    sealed = SealedGrid(grid, app.study, server, 1)
    sealed.sites = {node: name for name, node in app.NODES.items()}
    trained = [
        m
        for m in grid.sent
        if (m.metadata.message_type, m.metadata.dst_node_id) == ("train", app.NODES["north"])
    ]
    content = Envelope.read(from_records(trained[0].content, 1 << 28)).open("north", app.key("north"))
    assert content["config"]["server-round"] == 1
    list(sealed.push_messages([Message(content, app.NODES["north"], "train")]))
    assert (
        app.log("north")[-1]["reason"] == "an earlier round than the last one, which would have other noise"
    )
    assert ledger(app, "north") == before


@pytest.mark.parametrize("name", ["symbolic", "hard", "copy"])
def test_ledger_is_the_same_under_another_name_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    app = study_app(tmp_path, "fedavg")
    run(app)
    file = Path(app.node_config("north")["data"])
    other, settings = file.with_name("other.csv"), app.node_config
    {"symbolic": other.symlink_to, "hard": other.hardlink_to, "copy": lambda f: shutil.copy(f, other)}[name](
        file
    )
    config = {**settings("north"), "data": str(other)}
    if name == "symbolic":
        account = private_site.open_account(config, app.study.budget, tmp_path)
        assert account.file == file.with_name("north.csv.ledger")
        assert account.read().releases == 3 * steps(app, "north")
        return
    reason = "must name a ledger for a file that has several names" if name == "hard" else "must be the one"
    with pytest.raises(InputError, match=reason):
        private_site.open_account(config, app.study.budget, tmp_path).read()


def test_site_whose_ledger_is_gone_or_set_back_answers_nothing(tmp_path: Path) -> None:
    app = study_app(tmp_path, "fedavg", rounds=1)
    run(app)
    file = Path(app.node_config("north")["data"] + ".ledger")
    whole = file.read_text()
    for damage in (None, re.sub('"times": [0-9]+', '"times": 1', whole)):
        file.unlink()
        if damage is not None:
            file.write_text(damage)
        config = app.node_config("north")
        account = private_site.open_account(config, app.study.budget, state_folder(config))
        with pytest.raises(InputError, match="bring it back from a backup"):
            account.read()
        file.write_text(whole)
    assert account.read().releases == steps(app, "north")


def test_a_question_that_comes_again_gets_the_same_answer_and_costs_nothing(tmp_path: Path) -> None:
    """A server that asks twice could otherwise take the mean of two answers."""
    app = study_app(tmp_path, **{"min-replies": 3})
    config = app.config()
    grid, answers, lost = app.grid(config), [], []
    key = PrivateKey.read(app.parties / "server-study.key")

    def lose(question: Message, reply: Message) -> Message | None:
        if question.metadata.message_type != "train":
            return reply
        envelope = Envelope.read(from_records(reply.content, 1 << 28))
        answers.append(pack(envelope.open("server", key)))
        if len(answers) == 2 and not lost:
            lost.append(reply)
            return None
        return reply

    grid.tamper[app.NODES["north"]] = lose
    app.serve(grid, config)
    assert len(answers) == 4
    assert answers[1] == answers[2]
    assert len(set(answers)) == 3
    times = {line["release"]: line["times"] for line in ledger(app, "north")}
    assert times == {"counts": 1, "update": 3 * steps(app, "north")}


def test_ledgers_are_what_the_messages_hold(tmp_path: Path) -> None:
    """Rebuilt from what reaches the server, by the study and another accountant's sums."""
    app = study_app(tmp_path, "fairgrad+average+thresholds:from=clients", rounds=4)
    config, kinds, rows = app.config(), {name: Counter[str]() for name in app.NODES}, {}
    grid, key = app.grid(config), PrivateKey.read(app.parties / "server-study.key")
    for name, node in app.NODES.items():

        def keep(question: Message, reply: Message, name: str = name) -> Message:
            content = Envelope.read(from_records(reply.content, 1 << 28)).open("server", key)
            metrics = dict(content.metric_records.get("metrics") or {})
            counts = dict(content.metric_records.get("counts") or {})
            if metrics:
                rows[name] = int(metrics["num-examples"])
            told = ["update"] * ("arrays" in content) + ["sums"] * ("local-counts" in metrics)
            kinds[name].update([*told, *("histogram" for kind in counts if kind == "histogram")])
            return reply

        grid.tamper[node] = keep
    app.serve(grid, config)
    training, budget = app.study.training, app.study.budget
    assert budget is not None
    for name, times in kinds.items():
        assert times == {"update": 4, "sums": 4, "histogram": 1}
        size = min(training.batch_size, rows[name])
        steps = -(-rows[name] * training.epochs // size)
        noise = {line["release"]: line["noise"] for line in ledger(app, name)}
        accountant = dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_SPECIAL)
        update = dp.PoissonSampledDpEvent(size / rows[name], dp.GaussianDpEvent(noise["update"]))
        accountant.compose(update, times["update"] * steps)
        accountant.compose(dp.GaussianDpEvent(noise["sums"]), times["sums"])
        accountant.compose(dp.GaussianDpEvent(noise["histogram"]), times["histogram"])
        entries = [Entry(**{field: line[field] for field in Entry._fields}) for line in ledger(app, name)]
        assert spent(entries, budget.delta) == pytest.approx(accountant.get_epsilon(budget.delta), rel=0.02)
        assert spent(entries, budget.delta) <= budget.epsilon * (1 + 1e-6)


@pytest.mark.parametrize("damage", ["", "[]x", '[{"study": "a"}]', "7"])
def test_a_site_whose_ledger_is_damaged_answers_nothing(tmp_path: Path, damage: str) -> None:
    app = study_app(tmp_path)
    file = Path(app.node_config("north")["data"])
    file.with_name(f"{file.name}.ledger").write_text(damage)
    run(app)
    clients = read_clients(app.result())
    assert set(clients[clients["outcome"] == "used"]["name"]) == {"south", "west"}


def test_sites_that_are_too_small_for_the_budget_do_not_take_part(tmp_path: Path) -> None:
    app = study_app(tmp_path, **{"privacy": "epsilon=0.001", "max-wait": 1.0})
    with pytest.raises(InputError, match="too few rows for the budget of differential privacy"):
        run(app)
    assert not any(entry.get("kind") == "train" for name in app.NODES for entry in app.log(name))


@pytest.mark.parametrize(
    ("changes", "options", "reason"),
    [
        ({"privacy": "epsilon=0"}, {}, "privacy: epsilon must be"),
        ({"strategy": "ffalm"}, {}, "no noise is defined for"),
        ({"strategy": "fedavg+average+tilt"}, {}, "it trains a second model"),
        ({"secure-sums": True}, {}, "secure-sums must be left out with privacy"),
        ({"validation-from": "clients"}, {}, "validation-from must be server with privacy"),
        ({"min-cell": 10}, {}, "min-cell must be left out with privacy"),
        ({}, {"min_cell": 10}, "min-cell must be left out with privacy"),
        ({"schema": "sites"}, {}, "schema must be 'validation' or a file with privacy"),
        ({}, {"strategies": ["prejudice"]}, "no noise is defined for"),
    ],
)
def test_a_study_of_what_has_no_guarantee_is_not_made(
    tmp_path: Path, changes: dict[str, Any], options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        StudyApp(tmp_path / "clinics", {**PRIVATE, "strategy": "fedavg", **changes}, **options)


@pytest.mark.parametrize(
    ("limits", "training", "questions", "reason"),
    [
        ({"secure_sums": True}, {}, {"unmask": 9}, "secure-sums must be left out with privacy"),
        (
            {"secure_sums": True, "privacy": ""},
            {},
            {"unmask": 9, "rows": 1},
            "rows must be 0 with secure-sums",
        ),
        ({"secure_sums": True, "privacy": "", "min_sum": 2}, {}, {"unmask": 9}, "min-sum must be >= 3"),
        ({"secure_sums": True, "privacy": ""}, {}, {}, "unmask must be above 0 with secure-sums"),
        ({}, {}, {"unmask": 9}, "unmask must be above 0 with secure-sums, and 0 without"),
        ({"min_cell": 10}, {}, {}, "min-cell must be left out with privacy"),
        ({}, {"validation_from": "clients:mode=cross"}, {}, "validation-from must be server with privacy"),
        ({}, {"validation_from": "clients:mode=own"}, {}, "secure-sums must be true"),
        ({}, {}, {"scores": 5}, "scores must be 0 with privacy"),
        ({}, {"strategies": ("ffalm",)}, {}, "no noise is defined for"),
        ({"privacy": "epsilon=8,delta=0.9"}, {}, {}, "delta must be at most one in a site's number of rows"),
        ({"privacy": "epsilon=-8"}, {}, {}, "privacy: epsilon must be > 0"),
        ({"attempts": 0}, {}, {}, "attempts must be >= 1"),
        ({"public": "a" * 64}, {}, {}, "public must be given with mode=public only"),
    ],
)
def test_study_of_limits_that_cannot_be_kept_is_not_read(
    tmp_path: Path,
    limits: dict[str, Any],
    training: dict[str, Any],
    questions: dict[str, int],
    reason: str,
) -> None:
    """Somebody else may have written the file."""
    known = study_app(tmp_path, "fedavg").study
    other = replace(
        known,
        limits=replace(known.limits, **limits),
        training=replace(known.training, **training),
        questions={**known.questions, **questions},
    )
    with pytest.raises(InputError, match=reason):
        Study.parse(other.text().encode())


def test_noise_is_for_the_rows_that_are_trained_on() -> None:
    """Of fewer rows each joins more batches: rows that are held out must not count."""
    training = Training(rounds=30, per_round=1, epochs=1, batch_size=128, learning_rate=0.1)
    terms = private_site.Terms(Budget(8.0), training, "eqo", "paper")
    trained = np.arange(1000) % 5 > 0
    question: Any = SimpleNamespace(
        config={"spec": "fedavg"}, schema=SimpleNamespace(grouping=None), kind="train"
    )
    site: Any = SimpleNamespace(
        table=lambda schema: range(1000), parts=lambda *given: (trained, ~trained), check_rows=lambda n: None
    )
    privacy = private_site.SitePrivacy(terms, private_site.Simulated(1, 0))
    calibration = private_site.PrivateSite(question, site, privacy).client.calibration
    assert calibration.exposure.rows == 800
    assert epsilon_of(calibration.exposure.costs(30, calibration.update, Releases(), 0), 1e-5) <= 8


def test_a_site_answers_only_for_a_strategy_of_its_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fairfate.flower.clients import FlowerClients

    app = study_app(tmp_path, "fedavg", **{"min-replies": 2})
    for spec in ("fedavg_lr", None):
        about = {} if spec is None else {"spec": spec}
        monkeypatch.setattr(FlowerClients, "about_noise", property(lambda clients, about=about: about))
        with pytest.raises(InputError, match="round 1 failed"):
            run(app)
        assert "no strategy of the study, which noise is for" in reasons(app, "north")
    assert not (app.folder / "data" / "sites" / "north.csv.ledger").exists()

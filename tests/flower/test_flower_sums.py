"""Secure sums on Flower: the simulator's bits, drop-outs in every phase, a server that breaks the rules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from fairfate import InputError, read_model
from fairfate.cli import main as cli
from fairfate.flower.app.init import init
from fairfate.flower.app.settings import Settings
from fairfate.flower.messages import (
    ASK,
    ATTEMPT,
    COHORT,
    QUESTION,
    ROUND,
    SHARES,
    SUM_PART,
    SURVIVORS,
    UNMASK,
)
from fairfate.flower.sealed_grid import SealedGrid
from fairfate.flower.sealing import PrivateKey, from_records, to_records
from fairfate.flower.study import Study
from fairfate.results.tables import read_clients, read_rounds
from federation_in_process import LocalGrid
from ready_app import assert_same_as_fairfate_run
from summed_app import SummedApp

OWN, PUBLIC = "clients:mode=own", "clients:mode=public"
FAIR = "fair_fate:metric=accuracy,lam0=0.5,keep=0,min_mcc=0"
EQUAL = "fedval:min_mcc=0"
"""All sites are fair in the first rounds, so that the sum over fair sites is opened."""


def summed(folder: Path, strategy: str, source: str = OWN, **changes: Any) -> SummedApp:
    settings = {"rounds": 2, "epochs": 2, "strategy": strategy, "validation-from": source}
    return SummedApp(folder / "hospitals", {**settings, **changes})


def serve(app: SummedApp, tamper: Callable[[str, Message], bool] | None = None) -> LocalGrid:
    """Run it; an answer for which ``tamper`` is true is lost."""
    config = app.config()
    grid, opened = app.grid(config), {}
    if tamper is not None:
        for name, node in app.NODES.items():

            def lose(question: Message, reply: Message, name: str = name, node: int = node) -> Message | None:
                key = app.key(name)
                content = _open(question, name, key)
                opened.setdefault(name, []).append(content)
                return None if tamper(name, content) else reply

            grid.tamper[node] = lose
    app.serve(grid, config)
    return grid


def _open(message: Message, name: str, key: PrivateKey) -> RecordDict:
    """What a site was asked."""
    from fairfate.flower.sealing import Envelope

    return Envelope.read(from_records(message.content, 1 << 28)).open(name, key)


def phase(content: RecordDict) -> tuple[str, int, int]:
    """Which exchange of which round and attempt a question belongs to."""
    config = content["config"]
    if config.get(ASK) == UNMASK and config[QUESTION] == "train":
        return f"open {config[SUM_PART]}", config[ROUND], config[ATTEMPT]
    if ATTEMPT in config and ASK not in config:
        return "train", config[ROUND], config[ATTEMPT]
    return "other", 0, 0


def weights(app: SummedApp, number: int = 1) -> np.ndarray:
    (file,) = (app.result(number) / "models").iterdir()
    arrays, _ = read_model(file)
    return np.concatenate([arrays[name].ravel() for name in sorted(arrays)])


@pytest.mark.parametrize(
    ("strategy", "source", "exchanges"),
    [
        ("fedavg", OWN, 2),
        ("fedmom+average", "server", 2),
        ("fedavg+average+thresholds:from=clients", OWN, 2),
        (FAIR, OWN, 3),
        (FAIR, PUBLIC, 3),
        (EQUAL, OWN, 3),
        (EQUAL, PUBLIC, 3),
    ],
)
def test_a_federation_gives_the_bits_of_the_simulator(
    tmp_path: Path, strategy: str, source: str, exchanges: int
) -> None:
    app = summed(tmp_path, strategy, source)
    phases: list[tuple[str, int, int]] = []
    serve(app, lambda name, content: bool(phases.append(phase(content))))
    rounds = assert_same_as_fairfate_run(app.result(), tmp_path)
    assert set(read_clients(app.result())["name"]) == {"sum of 5 clients"}
    first = [each for each in phases if each[1] == 1]
    assert len(first) == 5 * exchanges
    if strategy == FAIR:
        assert rounds["fair_clients"].max() == 5
        assert not rounds["notes"].str.contains("withheld").all()


def test_a_site_that_drops_out_before_it_answers_is_not_in_the_sum(tmp_path: Path) -> None:
    lost = lambda name, content: name == "hills" and phase(content)[:2] == ("train", 2)  # noqa: E731
    app = summed(tmp_path, "fedavg")
    serve(app, lost)
    assert read_clients(app.result())["name"].tolist() == ["sum of 5 clients", "sum of 4 clients", "hills"]
    plain = summed(tmp_path / "plain", "fedavg", "clients", **{"secure-sums": False})

    def in_the_open(name: str, content: RecordDict) -> bool:
        config = content["config"]
        return name == "hills" and config.get(ROUND) == 2 and ASK not in config

    serve(plain, in_the_open)
    assert np.allclose(weights(app), weights(plain), atol=1e-5, rtol=0)
    assert not np.array_equal(weights(app), weights(plain))


@pytest.mark.parametrize(
    ("strategy", "when", "is_whole"),
    [("fedavg", "open rows", True), (FAIR, "open weights", True), (FAIR, "open rows", False)],
)
def test_a_site_that_drops_out_later_is_in_the_sum_all_the_same(
    tmp_path: Path, strategy: str, when: str, is_whole: bool
) -> None:
    app = summed(tmp_path, strategy, rounds=1)
    serve(app, lambda name, content: name == "hills" and phase(content)[:2] == (when, 1))
    assert read_clients(app.result())["name"].tolist() == ["sum of 5 clients"]
    whole = summed(tmp_path / "whole", strategy, rounds=1)
    serve(whole)
    assert np.array_equal(weights(app), weights(whole)) == is_whole
    withheld = read_rounds(app.result())["notes"].str.contains("withheld").all()
    assert withheld != is_whole  # who has a weight could not be counted: the update of the fair ones is 0


def test_an_attempt_whose_sum_cannot_be_opened_is_repeated_with_the_same_sites(tmp_path: Path) -> None:
    """One drops out before and another after its answer: the masks between them stay."""
    app = summed(tmp_path, "fedavg", rounds=1)
    serve(
        app,
        lambda name, content: (
            (name, *phase(content)) in [("hills", "train", 1, 1), ("coast", "open rows", 1, 1)]
        ),
    )
    assert read_clients(app.result())["name"].tolist() == ["sum of 4 clients"]


@pytest.mark.parametrize("has_rule", [True, False])
def test_a_server_that_calls_an_attempt_failed_learns_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_rule: bool
) -> None:
    """It opens a sum over five sites, and the same again without one: the difference is that one's update."""
    from fairfate.flower import secure_clients
    from fairfate.flower.app import masking, sum_state

    own: list[np.ndarray] = []
    totals: list[np.ndarray] = []
    contribute, opening = masking.contribute, secure_clients._Sum.open

    def contributed(*given: Any) -> Any:
        part = contribute(*given)
        own.append(part.parts["rows"].copy())
        return part

    def lie(self: Any, part: str, about: Any = None) -> Any:
        opened = opening(self, part, about)
        totals.append(opened[0])
        if len(totals) == 1:
            self.clients.opens_over = ()
            raise secure_clients.SumError("a lie")
        return opened

    monkeypatch.setattr(masking, "contribute", contributed)
    monkeypatch.setattr(secure_clients._Sum, "open", lie)
    if not has_rule:
        opened = sum_state.open_part
        monkeypatch.setattr(
            "fairfate.flower.app.gate.open_part", lambda sums, known, *given: opened(sums, {}, *given)
        )
    app = summed(tmp_path, "fedavg", rounds=1)

    def without_west(name: str, content: RecordDict) -> bool:
        return name == "west" and phase(content)[0] == "train" and phase(content)[2] > 1

    if has_rule:
        with pytest.raises(InputError, match="given up after 3 attempts"):
            serve(app, without_west)
        assert len(totals) == 1
        reasons = {entry.get("reason") for entry in app.log("north")}
        assert "a sum of the same model over other sites than before" in reasons
    else:
        serve(app, without_west)
        assert any(np.array_equal(totals[0] - totals[1], each) for each in own)


def test_too_few_sites_open_nothing(tmp_path: Path) -> None:
    app = summed(tmp_path, "fedavg", rounds=1)
    with pytest.raises(InputError, match="given up after 3 attempts: 3 sites have answered, 4 must"):
        serve(app, lambda name, content: name in ("hills", "west") and phase(content)[0] == "train")
    assert not any(ask["kind"] == UNMASK for name in app.NODES for ask in answers(app, name))


def answers(app: SummedApp, name: str) -> list[dict[str, Any]]:
    return [entry for entry in app.log(name) if entry["verdict"] == "answered"]


class Hostile:
    """A server with its key, which sends what it likes."""

    def __init__(self, app: SummedApp, grid: LocalGrid) -> None:
        self.app, self.grid = app, grid
        key = PrivateKey.read(app.parties / "server-study.key")
        self.sealed = SealedGrid(grid, app.study, key, 1)
        self.sealed.sites = {node: name for name, node in app.NODES.items()}

    def ask(self, name: str, config: dict[str, Any]) -> str:
        """Ask a site; why its log says that it has refused, if it has."""
        message = Message(
            RecordDict({"config": ConfigRecord(config)}), self.app.NODES[name], MessageType.QUERY
        )
        return self._send(name, lambda: list(self.sealed.push_messages([message])))

    def send_again(self, name: str, message: Message) -> str:
        """A message that the site has had, as it was."""
        content = to_records(from_records(message.content, 1 << 28))
        copy = Message(content, self.app.NODES[name], message.metadata.message_type)
        return self._send(name, lambda: list(self.grid.push_messages([copy])))

    def _send(self, name: str, send: Callable[[], Any]) -> str:
        before = len(self.app.log(name))
        send()
        (entry,) = self.app.log(name)[before:]
        return entry["reason"] if entry["verdict"] == "refused" else ""


def test_a_site_opens_each_sum_once_and_over_the_same_sites(tmp_path: Path) -> None:
    app = summed(tmp_path, "fedavg", rounds=1)
    questions: list[dict[str, Any]] = []
    grid = serve(
        app, lambda name, content: name == "north" and bool(questions.append(dict(content["config"])))
    )
    server, everybody = Hostile(app, grid), sorted(app.NODES)
    (asked,) = [each for each in questions if phase({"config": each})[0] == "open rows"]  # type: ignore[arg-type]
    assert asked[SURVIVORS] == everybody
    four, three = [[n for n in everybody if n not in gone] for gone in ({"west"}, {"west", "hills"})]
    for survivors, reason in (
        (everybody, "a part of a sum that was opened before"),
        (four, "a part of a sum that was opened before"),
        (three, "a sum over 3, fewer than 4 (min-sum)"),
        ([n for n in everybody if n != "north"], "a sum without this party, or over others than its cohort"),
    ):
        changed = {**asked, SURVIVORS: survivors, SHARES: asked[SHARES][: len(survivors)]}
        assert server.ask("north", changed) == reason
    assert server.ask("north", {**asked, ATTEMPT: 2}) == "a sum that this site has not masked for"
    assert server.ask("north", {**asked, SUM_PART: "weights"}) == "a part that the sum does not have"
    assert server.ask("north", {**asked, QUESTION: "fit"}) == "a sum of no question"


def test_a_site_masks_once_for_each_attempt_also_after_a_restart(tmp_path: Path) -> None:
    """What it has masked is in its folder: every message here is answered by a new gate."""
    app = summed(tmp_path, "fedavg", rounds=1)
    grid = serve(app)
    server = Hostile(app, grid)
    (trained,) = [
        m
        for m in grid.sent
        if m.metadata.message_type == "train" and m.metadata.dst_node_id == app.NODES["north"]
    ]
    assert server.send_again("north", trained) == "a message that is not newer than the last one"
    content = _open(trained, "north", app.key("north"))
    again = Message(content, app.NODES["north"], MessageType.TRAIN)
    reason = server._send("north", lambda: list(server.sealed.push_messages([again])))
    assert reason == "an attempt that this site has masked for before"
    config = dict(content["config"])
    for change, reason in (
        ({COHORT: ["coast", "hills", "north"], ATTEMPT: 2}, "a cohort of 3, fewer than 4 (min-sum)"),
        ({COHORT: ["coast", "hills", "west", "south"], ATTEMPT: 2}, "a cohort without this party"),
        ({COHORT: ["coast", "hills", "north", "mallory"], ATTEMPT: 2}, "somebody who is not in the study"),
        ({ATTEMPT: 4}, "'attempt' that is not 1 to 3"),
        ({"in-the-clear": True}, "unknown 'in-the-clear'"),
    ):
        records = {**content, "config": ConfigRecord({**config, **change})}
        message = Message(RecordDict(records), app.NODES["north"], MessageType.TRAIN)
        assert reason in server._send("north", lambda m=message: list(server.sealed.push_messages([m])))
    bare = {key: value for key, value in config.items() if key not in (COHORT, ATTEMPT)}
    message = Message(RecordDict({**content, "config": ConfigRecord(bare)}), app.NODES["north"], "train")
    reason = server._send("north", lambda: list(server.sealed.push_messages([message])))
    assert reason == "nothing of the sum that the answer is for"


def test_sites_that_get_different_models_open_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fairfate.flower.secure_clients import SecureClients

    asked = SecureClients.ask

    def ask(self: Any, t: int, arrays: Any) -> list[Message]:
        messages = asked(self, t, arrays)
        other = self.server.record_of(self.server.params * np.float32(0.5))
        messages[0].content[self.keys[0]] = other
        return messages

    monkeypatch.setattr(SecureClients, "ask", ask)
    with pytest.raises(InputError, match="round 1 was given up"):
        serve(summed(tmp_path, "fedavg", rounds=1))


def test_what_leaves_a_site_is_masked(tmp_path: Path) -> None:
    """Two runs of the same numbers send other numbers, and no message holds a site's rows or update."""
    sent = []
    for name in ("first", "second"):
        app = summed(tmp_path / name, "fedavg", rounds=1)
        grid = app.grid(app.config())
        kept: list[np.ndarray] = []
        key = PrivateKey.read(app.parties / "server-study.key")

        def keep(question: Message, reply: Message, key: Any = key, kept: Any = kept) -> Message:
            content = _open(reply, "server", key)
            if "masked" in content and question.metadata.message_type == "train":
                kept.append(content["masked"]["rows"].numpy().copy())
            return reply

        grid.tamper[app.NODES["north"]] = keep
        app.serve(grid, app.config())
        sent += kept
    first, second = sent
    assert (first != second).all()
    assert (np.abs(first.astype(float)) > 2**40).mean() > 0.99


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"strategy": "fedavg+clip"},
            "secure-sums must be left out for fedavg+clip, which measures each update",
        ),
        ({"strategy": "fedfb"}, "secure-sums must be left out for fedfb, whose clients report 8 sums"),
        ({"secure-sums": False}, "secure-sums must be true with this validation-from, got False"),
        ({"validation-from": PUBLIC, "test": ""}, "test must be given with mode=public"),
    ],
)
def test_a_study_of_what_sums_cannot_do_is_not_made(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    given = {"strategy": "fedavg", "validation-from": OWN, **changes}
    with pytest.raises(InputError) as error:
        SummedApp(tmp_path / "hospitals", given)
    assert reason in str(error.value)


def test_a_run_must_have_the_studys_rule(tmp_path: Path) -> None:
    app = summed(tmp_path, "fedavg")
    assert app.study.limits.secure_sums
    assert app.study.limits.min_sum == 4
    assert Study.parse(app.study.text().encode()) == app.study
    config = {**app.config(), "min-sum": 3}
    with pytest.raises(InputError, match="secure-sums and min-sum must be the study's"):
        app.serve(app.grid(config), config)
    with pytest.raises(InputError, match="secure-sums must be left out without a study"):
        app.serve(app.grid(config), {**config, "study": ""})


def test_a_site_without_the_public_rows_does_not_train(tmp_path: Path) -> None:
    app = summed(tmp_path, FAIR, PUBLIC, rounds=1)
    (app.folder / "data" / "validation.csv").write_text("another file")
    config = app.config()
    with pytest.raises(InputError):
        app.serve(app.grid(config), config)


def test_the_command_writes_an_app_with_secure_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["fairfate", "flower", "init", str(tmp_path / "wards"), "--secure-sums"])
    assert cli.run_command() in (0, None)
    text = (tmp_path / "wards" / "pyproject.toml").read_text()
    assert "secure-sums = true" in text
    assert len(list((tmp_path / "wards" / "sites").iterdir())) == 5
    settings = Settings.read(_config(text))
    assert settings.config.secure_sums
    assert settings.strategy.startswith("fair_fate:")
    assert "{{" not in text
    plain = (init(tmp_path / "plain") / "pyproject.toml").read_text()
    assert "secure-sums = false" in plain
    assert pd.notna(plain)


def _config(text: str) -> dict[str, Any]:
    import tomllib

    return tomllib.loads(text)["tool"]["flwr"]["app"]["config"]

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
    """One drops out before its answer, and in the next attempt another one after it."""
    app = summed(tmp_path, "fedavg", rounds=1)
    lost = [("hills", "train", 1, 1), ("coast", "open rows", 1, 2)]
    phases: list[tuple[str, int, int]] = []
    serve(app, lambda name, content: bool(phases.append(phase(content))) or (name, *phase(content)) in lost)
    assert read_clients(app.result())["name"].tolist() == ["sum of 4 clients", "hills"]
    assert phases.count(("open rows", 1, 1)) == 0  # a sum that somebody has left is not opened
    assert phases.count(("train", 1, 3)) == phases.count(("open rows", 1, 3)) == 4


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
            self.clients.over = ()
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
        assert "a sum of the same over other sites than before" in reasons
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
    assert len(asked[SHARES]) == len(everybody)
    assert server.ask("north", asked) == "a part of a sum that was opened before"
    assert server.ask("north", {**asked, "survivors": everybody[1:]}) == "unknown 'survivors'"
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
        ({COHORT: ["coast", "hills", "north"], ATTEMPT: 2}, "a cohort of 3, fewer than 4 (min-sum"),
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


TARGET, CORRUPT = "coast", ("south", "west")


def hostile_opening(
    app: SummedApp, monkeypatch: pytest.MonkeyPatch, attack: Callable[[Any], None]
) -> dict[str, np.ndarray]:
    """Run a round until all have sent masked numbers, and then an attack; what sites have masked, by name."""
    from fairfate.flower import secure_clients
    from fairfate.flower.app import masking

    own: dict[str, np.ndarray] = {}
    update = masking._update

    def keep(question: Any, site: Any, gate: Any, network: Any) -> Any:
        parts = update(question, site, gate, network)
        own[gate.name] = parts["rows"].copy()
        return parts

    class AttackedError(Exception):
        pass

    def opening(self: Any, part: str, about: Any = None) -> Any:
        attack(self)
        raise AttackedError

    monkeypatch.setattr(masking, "_update", keep)
    monkeypatch.setattr(secure_clients._Sum, "open", opening)
    with pytest.raises(AttackedError):
        serve(app)
    return own


def test_server_that_tells_sites_of_different_drop_outs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once sites were told who had dropped out, and revealed keys of masks with them.

    With these, any server that told sites of different drop-outs could take off all masks of one site.
    """
    app = summed(tmp_path, "fedavg", rounds=1)
    names, revealed = sorted(app.NODES), []

    def attack(sums: Any) -> None:
        told = {TARGET: [TARGET, "north", *CORRUPT], "north": [n for n in names if n != TARGET]}
        messages = []
        for name, survivors in {**told, "hills": names}.items():
            shares = [sums.answers[other].shares[name] for other in survivors]
            config = {ASK: UNMASK, **sums.question, SUM_PART: "rows", "survivors": survivors, SHARES: shares}
            content = RecordDict({"config": ConfigRecord(config)})
            messages.append(Message(content, app.NODES[name], MessageType.QUERY))
        replies = list(sums.clients.grid.send_and_receive(messages))
        revealed.extend(reply for reply in replies if not reply.has_error())

    hostile_opening(app, monkeypatch, attack)
    assert not revealed
    assert {app.log(name)[-1]["reason"] for name in (TARGET, "north", "hills")} == {"unknown 'survivors'"}


@pytest.mark.parametrize("first", ["000", "001", "011", "101", "111"])
def test_server_that_opens_two_attempts_by_halves_gets_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """It has masked numbers of five sites, and of four without the target, and the keys of two.

    Honest sites are asked to open the one or the other attempt first, and then both.
    """
    from fairfate.flower.app.gate import Gate
    from fairfate.flower.app.masking import Party
    from fairfate.flower.app.sum_state import transcript_of
    from fairfate.flower.messages import REVEALED
    from fairfate.privacy.fixed_point import add
    from fairfate.privacy.masked_sums import SumError, open_part

    app = summed(tmp_path, "fedavg", rounds=1)
    names, totals = sorted(app.NODES), {}

    def attack(sums: Any) -> None:
        clients, attempts = sums.clients, {1: sums}
        clients.over, clients._attempt = [name for name in names if name != TARGET], 2
        messages = clients.ask(1, clients.server.record)
        attempts[2] = type(sums)(clients, messages, {**sums.question, ATTEMPT: 2}, sums.sizes)
        attempts[2].collect(4)
        revealed: dict[int, dict[str, Any]] = {1: {}, 2: {}}
        for turn in (False, True):
            for name, choice in zip((TARGET, "hills", "north"), first, strict=True):
                attempt = 1 + ((choice == "1") != turn)
                if name in attempts[attempt].nodes:
                    answer = ask(attempts[attempt], name)
                    revealed[attempt] |= {} if answer is None else {name: answer}
        for attempt, each in attempts.items():
            for name in CORRUPT:
                gate = Gate(app.node_config(name))
                with gate.folder.state(app.study.checksum) as state:
                    ((key, entry),) = [i for i in state.sums.items() if i[0].endswith(f"/{attempt}")]
                transcript = transcript_of(entry, key, int(key.split("/")[0]), app.study)
                party = Party(name, lambda o, g=gate: g.key.agree(app.study.sites[o].key), transcript, 4)
                packets = {other: bytes.fromhex(each.answers[other].shares[name]) for other in each.nodes}
                revealed[attempt][name] = party.reveal("rows", ["rows"], packets)
            masked = {name: answer.parts["rows"] for name, answer in each.answers.items()}
            try:
                totals[attempt] = open_part("rows", masked, revealed[attempt], list(each.nodes), 4)
            except SumError:
                totals[attempt] = None

    def ask(each: Any, name: str) -> Any:
        shares = [each.answers[other].shares[name] for other in each.nodes]
        config = {ASK: UNMASK, **each.question, SUM_PART: "rows", SHARES: shares}
        message = Message(RecordDict({"config": ConfigRecord(config)}), each.nodes[name], MessageType.QUERY)
        (reply,) = each.clients.grid.send_and_receive([message])
        if reply.has_error():
            return None
        return {str(n): bytes.fromhex(str(text)) for n, text in dict(reply.content[REVEALED]).items()}

    own = hostile_opening(app, monkeypatch, attack)
    opened = {attempt for attempt, total in totals.items() if total is not None}
    if 1 in opened:
        assert np.array_equal(totals[1], add([own[name] for name in names]))
    if 2 in opened:
        assert np.array_equal(totals[2], add([own[name] for name in names if name != TARGET]))
    assert opened == {2 if first in ("011", "111") else 1}


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
        (
            {"per-round": 3},
            "per-round must be 0, or at least the 4 of 5 sites that a secure sum is over, got 3",
        ),
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

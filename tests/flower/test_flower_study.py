"""Sites answer what their study has, to its server, and nothing else: not what is forged, replayed, wider."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import shutil
import stat
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("flwr")

from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.superlink.grid.http_grid import HttpGrid

from fairfate.data import Schema
from fairfate.errors import InputError
from fairfate.fairness.thresholds import BINS
from fairfate.flower.app import site
from fairfate.flower.app.gate import Gate, state_folder
from fairfate.flower.app.join import pin, read_changes
from fairfate.flower.app.make_study import changes_from, list_parties, make_key, make_study, read_party
from fairfate.flower.app.node import read_node
from fairfate.flower.app.server import ServerData, seal_messages
from fairfate.flower.app.settings import Settings
from fairfate.flower.clients import limit_broadcast
from fairfate.flower.messages import HISTOGRAM, MismatchError
from fairfate.flower.replies import ReplyPolicy
from fairfate.flower.roster import read_counts
from fairfate.flower.sealed_grid import LARGEST, SealedGrid
from fairfate.flower.sealing import (
    Envelope,
    EnvelopeError,
    Head,
    PrivateKey,
    encrypt,
    from_records,
    seal,
    to_records,
)
from fairfate.flower.study import FIT, SERVER, NotInStudyError, Study
from federation_in_process import Killed, LocalGrid, flower_strategy
from ready_app import ReadyApp, StudyApp, assert_same_as_fairfate_run

RUN = 1


@pytest.fixture
def app(tmp_path: Path) -> StudyApp:
    return StudyApp(tmp_path / "wards", {"rounds": 2})


def question(app: StudyApp, kind: str, **changes: Any) -> RecordDict:
    """What the server would ask, with changes to its config."""
    data = ServerData.load(Settings.read(app.config()))
    config: dict[str, Any] = {"schema": data.schema.to_json()}
    arrays = {}
    if kind == "train":
        config |= {**data.train_config, "server-round": 1, "client": 0}
        arrays = {"arrays": data.initial}
    elif kind == "histogram":
        config |= {"ask": "histogram", "groups": 2}
        arrays = {"arrays": data.initial}
    elif kind == "scores":
        config |= {"ask": "scores", "groups": 2, "client": 0, "held-seed": 1, "held-share": 0.2}
        config |= {"server-round": 1}
        arrays = {"model-0": data.initial, "model-1": data.initial}
    config |= {key.replace("_", "-"): value for key, value in changes.items()}
    return RecordDict({"config": ConfigRecord({k: v for k, v in config.items() if v is not None}), **arrays})


class Sender:
    """Somebody who sends messages to the site north: the server, or whoever poses as it."""

    def __init__(self, app: StudyApp, key: PrivateKey | None = None) -> None:
        self.app, self.key = app, key or app.key("server")
        self.grid = app.grid(app.config())
        self.node, self.counter = app.NODES["north"], 0

    def send(self, content: RecordDict, kind: str = MessageType.QUERY, **head: Any) -> Message:
        """The site's answer, as it leaves the site."""
        self.counter += 1
        study = self.app.study
        about: dict[str, Any] = {
            "study": study.checksum,
            "sender": SERVER,
            "recipients": ("north",),
            "run": RUN,
            "node": self.node,
            "type": kind,
            "counter": self.counter,
            **head,
        }
        keys = {name: member.key for name, member in study.sites.items()}
        self.sealed = seal(Head(**about), content, self.key, keys)
        return self.deliver(to_records(self.sealed), kind)

    def deliver(self, content: RecordDict, kind: str = MessageType.QUERY) -> Message:
        message = Message(content, self.node, kind)
        (number,) = self.grid.push_messages([message])
        (reply,) = self.grid.pull_messages([number])
        return reply

    def opened(self, reply: Message) -> RecordDict:
        return Envelope.read(from_records(reply.content, LARGEST)).open(SERVER, self.app.key("server"))

    def assert_refused(self, reply: Message, reason: str) -> None:
        """Answered with nothing, and written down."""
        assert reply.has_error()
        assert not reply.has_content()
        assert reply.error.reason.endswith(":<'refused'>")
        line = self.app.log("north")[-1]
        assert line["verdict"] == "refused"
        assert reason in line["reason"], line


# -- what works ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "more"),
    [
        ("fair_fate:lam0=0.5+clip", {}),
        ("fedavg_gr", {}),
        ("fairfed+average+thresholds:from=clients", {}),
        ("fedavg_gr+average+common_threshold:margin=0", {}),
        ("fedavg_gr+average+tilt:margin=0,keep=0.5", {}),
        ("fedavg+tilt:margin=0", {"validation-from": "clients:mode=cross"}),
        ("fedavg+tilt:margin=0,tolerance=0.5,distil=true", {}),
        ("fedavg+tilt:margin=0,tolerance=0.5,distil=true", {"validation-from": "clients:mode=cross"}),
        ("fedavg+tilt:margin=0,tolerance=0.5,metric=eqo,bins=8", {"sensitive": "field"}),
        (
            "fedavg+tilt:margin=0,tolerance=0.5,metric=sp,bound=0.3",
            {"sensitive": "field", "validation-from": "clients:mode=cross"},
        ),
        ("fair_fate:keep=0", {"validation-from": "clients:mode=cross"}),
    ],
)
def test_sealed_messages_give_what_fairfate_run_gives(
    strategy: str, more: dict[str, Any], tmp_path: Path
) -> None:
    app = StudyApp(tmp_path / "wards", {"rounds": 2, "strategy": strategy, **more})
    config = app.config()
    app.serve(app.grid(config), config)
    assert_same_as_fairfate_run(app.result(), tmp_path)


def test_every_message_is_sealed_and_every_answer_is_logged(app: StudyApp) -> None:
    config = app.config()
    grid = app.grid(config)
    app.serve(grid, config)
    assert all(set(message.content) == {"sealed"} for message in grid.sent)
    lines = app.log("north")
    assert [line["kind"] for line in lines] == ["fit", "train", "train"]
    assert all(line["verdict"] == "answered" and line["signed"] for line in lines)
    assert lines[1]["sent"] == {"arrays": "131 numbers", "metrics": ["num-examples"]}
    assert lines[1]["server-round"] == 1


def test_published_files_name_no_node(app: StudyApp, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = {name: 8_031_547_600 + number for name, number in app.NODES.items()}  # no count is so large
    monkeypatch.setattr(app, "NODES", nodes, raising=False)
    config = app.config()
    app.serve(app.grid(config), config)
    for file in app.result().rglob("*"):
        if file.is_file():
            assert b"8031547" not in file.read_bytes(), file
    assert "node" not in pd.read_csv(app.result() / "clients.csv").columns


# -- who may ask -----------------------------------------------------------------------------------------


def test_another_site_cannot_pose_as_the_server(app: StudyApp) -> None:
    sender = Sender(app, app.key("south"))
    sender.assert_refused(sender.send(question(app, "fit")), "a signature that is not the sender's")
    sender.assert_refused(sender.send(question(app, "fit"), sender="south"), "a signature that is not")


def test_a_plain_message_is_refused(app: StudyApp) -> None:
    sender = Sender(app)
    for kind, name in ((MessageType.QUERY, "fit"), (MessageType.TRAIN, "train")):
        sender.assert_refused(sender.deliver(question(app, name), kind), "no sealed message")


def test_a_replayed_message_is_refused(app: StudyApp) -> None:
    sender = Sender(app)
    assert sender.send(question(app, "fit")).has_content()
    sender.assert_refused(sender.deliver(to_records(sender.sealed)), "not newer than the last one")


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        ({"run": 2}, "of another run or node"),
        ({"node": 12}, "of another run or node"),
        ({"study": "0" * 64}, "of another study"),
        ({"recipients": ("south",)}, "for another site"),
        ({"type": "train"}, "of another type"),
        ({"sender": "north"}, "not from the server"),
    ],
)
def test_a_message_for_something_else_is_refused(app: StudyApp, head: dict, reason: str) -> None:
    sender = Sender(app)
    sender.assert_refused(sender.send(question(app, "fit"), **head), reason)


def test_a_changed_message_is_refused(app: StudyApp) -> None:
    sender = Sender(app)
    sender.send(question(app, "fit"))
    for place in (20, len(sender.sealed) // 2, -1):
        changed = bytearray(sender.sealed)
        changed[place] ^= 1
        reply = sender.deliver(to_records(bytes(changed)))
        assert reply.has_error()
        assert app.log("north")[-1]["verdict"] == "refused"


def test_random_bytes_are_refused(app: StudyApp) -> None:
    sender = Sender(app)
    for nonsense in (b"", b"\xff" * 100, b"\0\0\0\2{}" * 3, b"\0\0\0\1x"):
        sender.assert_refused(sender.deliver(to_records(nonsense)), "no sealed message")


def test_neither_side_can_read_what_is_not_for_it(app: StudyApp) -> None:
    sender = Sender(app)
    reply = sender.send(question(app, "fit"))
    answer = Envelope.read(from_records(reply.content, LARGEST))
    for name in ("south", "north"):
        with pytest.raises(ValueError, match=r"unreadable content|sealed for another recipient"):
            answer.open(name, app.key(name))
    with pytest.raises(ValueError, match="sealed for another recipient"):
        answer.open(SERVER, app.key("south"))
    assert b"north.csv" not in from_records(reply.content, LARGEST)


# -- what may be asked -----------------------------------------------------------------------------------


def changed_schema(app: StudyApp, change: Callable[[dict[str, Any]], None]) -> str:
    content = json.loads(ServerData.load(Settings.read(app.config())).schema.to_json())
    change(content)
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def test_no_other_column_can_be_asked_for(app: StudyApp) -> None:
    sender = Sender(app)

    def as_label(content: dict[str, Any]) -> None:
        content["target"] = {"column": "field", "values": ["arts", "science"], "favourable": "arts"}

    def as_group(content: dict[str, Any]) -> None:
        content["sensitive"] = {"column": "field", "groups": ["arts", "business", "engineering", "science"]}
        content["inputs"]["sex"] = {"categories": ["female", "male"]}

    def one_person(content: dict[str, Any]) -> None:
        content["sensitive"]["groups"] = ["(others)", "male"]

    def unused(content: dict[str, Any]) -> None:
        content["sensitive"] = {
            "columns": ["sex"],
            "values": [["female", "guess", "male"]],
            "groups": [[0], [2]],
        }

    def more(content: dict[str, Any]) -> None:
        content["inputs"]["secret"] = {"mean": 0.0, "deviation": 1.0, "missing": False}

    def sharper(content: dict[str, Any]) -> None:
        content["inputs"]["experience"]["deviation"] = 1e-9

    def without_a_value(content: dict[str, Any]) -> None:
        content["missing"] = ["experience=3"]

    for change, reason in (
        (without_a_value, "other missing"),
        (as_label, "other label"),
        (as_group, "other sensitive"),
        (one_person, "other groups"),
        (unused, "other groups"),
        (more, "other columns"),
        (sharper, "column 'experience' with another role or range"),
    ):
        text = changed_schema(app, change)
        asked = question(app, "train", schema=text)
        sender.assert_refused(sender.send(asked, MessageType.TRAIN), "another schema than the study's")
        with pytest.raises(NotInStudyError, match=reason):
            check_other_schema(app, Schema.from_json(text).to_json())


def test_the_schema_of_the_first_question_is_kept_and_checked_again(app: StudyApp) -> None:
    sender = Sender(app)

    def train() -> Message:
        return sender.send(question(app, "train", schema=None), MessageType.TRAIN)

    sender.assert_refused(train(), "another schema than the study's")  # nobody has sent one
    assert sender.send(question(app, "fit")).has_content()
    assert train().has_content()
    (kept,) = state_folder(app.node_config("north")).glob("schema-*.json")
    kept.write_text(kept.read_text() + " ")
    sender.assert_refused(train(), "another schema than the study's")


def with_data(study: Study, **changes: Any) -> Study:
    """A study that lists something else of its schema."""
    return dataclasses.replace(study, data=dataclasses.replace(study.data, **changes))


def check_other_schema(app: StudyApp, text: str) -> None:
    """Check a schema against a study that lists one for people to read, and has the checksum of another."""
    with_data(app.study, schema=hashlib.sha256(text.encode()).hexdigest()).check_schema(text)


def test_a_sensitive_column_has_no_texts_or_dates_that_the_study_does_not_list(app: StudyApp) -> None:
    def texts(content: dict[str, Any]) -> None:
        content["inputs"]["sex"]["categories"] = ["female", "male"]

    def dates(content: dict[str, Any]) -> None:
        content["inputs"]["sex"]["date"] = "%Y"

    for change in (texts, dates):
        with pytest.raises(NotInStudyError, match="sensitive column 'sex' with texts or dates"):
            check_other_schema(app, changed_schema(app, change))


def test_schema_holds_only_what_is_read_and_its_encoding(app: StudyApp) -> None:
    text = ServerData.load(Settings.read(app.config())).schema.to_json()
    assert app.study.check_schema(text).to_json() == text
    assert app.study.columns["experience"]["missing"] is False
    with pytest.raises(NotInStudyError, match="says more than is read"):
        check_other_schema(app, changed_schema(app, lambda content: content["inputs"]["sex"].update(x=1)))
    with pytest.raises(NotInStudyError, match="other encode"):
        with_data(app.study, encode="ordinal").check_schema(text)


def test_a_study_has_a_fixed_schema(tmp_path: Path) -> None:
    app = StudyApp(tmp_path / "wards", {"rounds": 1, "strategy": "fedavg"})
    with pytest.raises(InputError, match="fairfate flower schema"):
        make_study(app.folder, [], changes={"schema": "sites"}, amends=app.study)
    config = app.config(schema="sites")
    grid = app.grid(config)
    with pytest.raises(InputError, match="schema must be fixed"):
        app.serve(grid, config)
    assert not grid.sent


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden": "10000"}, "hidden '10000'"),
        ({"learning_rate": 1e5}, "learning-rate 100000.0"),
        ({"l2": 0.5}, "l2 0.5"),
        ({"batch_size": 909}, "batch-size 909"),
        ({"epochs": 1}, "epochs 1"),
        ({"protocol": "published"}, "protocol 'published'"),
        ({"seed": 2}, "seed 2"),
        ({"server_round": 3}, "server-round 3"),
        ({"client": 200_000_000}, "client 200000000"),
        ({"client": True}, "client True"),
        ({"strategy": "fedavg_lr"}, "strategy fedavg_lr"),
        ({"broadcast": [1e9]}, "'broadcast' is not"),
        ({"broadcast": [1.0] * 1000}, "'broadcast' is not"),
        ({"held_seed": 1}, "held-seed 1"),
        ({"held_share": 0.5}, "held-share 0.5"),
        ({"ask": "rows"}, "unknown 'ask'"),
    ],
)
def test_no_other_training_can_be_asked_for(app: StudyApp, changes: dict, reason: str) -> None:
    sender = Sender(app)
    sender.assert_refused(sender.send(question(app, "train", **changes), MessageType.TRAIN), reason)


def test_shapes_types_and_sizes_of_weights_are_checked(app: StudyApp) -> None:
    sender = Sender(app)
    for change, reason in (
        (lambda a: a.update(w1=Array(np.zeros((9, 9), np.float32))), "array 'w1' of another shape"),
        (
            lambda a: a.update(w1=Array(a["w1"].numpy().astype(np.float64))),
            "array 'w1' of another shape or type",
        ),
        (lambda a: a.update(b2=Array(np.full(1, np.nan, np.float32))), "a weight beyond 10 "),
        (lambda a: a.update(b2=Array(np.full(1, 10.5, np.float32))), "a weight beyond 10 "),
        (lambda a: a.pop("b2"), "arrays of another model"),
        (lambda a: a.update(w9=a["b2"]), "arrays of another model"),
    ):
        asked = question(app, "train")
        change(asked["arrays"])
        sender.assert_refused(sender.send(asked, MessageType.TRAIN), reason)


def test_questions_that_the_study_does_not_have_are_refused(app: StudyApp) -> None:
    sender = Sender(app)
    for kind, words, reason in (
        ("histogram", {}, "more than 0 questions"),
        ("fit", {"ask": "describe"}, "a question for 'describe'"),
        ("fit", {"wants_rows": True}, "more than 0 questions"),
        ("scores", {}, "held-share"),
        ("fit", {"ask": "everything"}, "a question for 'everything'"),
        ("fit", {"groups": 2}, "unknown 'groups'"),
    ):
        sender.assert_refused(sender.send(question(app, kind, **words)), reason)


@pytest.mark.parametrize("kind", ["evaluate", "train.other", "query.other", "system"])
def test_a_message_of_any_other_type_is_refused_and_logged(app: StudyApp, kind: str) -> None:
    sender = Sender(app)
    sender.assert_refused(sender.send(question(app, FIT), kind), "a message of type")


def test_a_question_for_all_sites_may_ask_for_nothing_but_the_fit(app: StudyApp) -> None:
    sender, all_sites = Sender(app), tuple(app.NODES)
    assert sender.send(question(app, "fit"), recipients=all_sites).has_content()
    reply = sender.send(question(app, "train"), MessageType.TRAIN, recipients=all_sites)
    sender.assert_refused(reply, "sealed for several sites")


def test_a_site_trains_so_often_and_not_more(tmp_path: Path) -> None:
    app = StudyApp(tmp_path / "wards", {"rounds": 2}, runs=1)
    assert app.study.questions["train"] == 7
    sender = Sender(app)
    for _ in range(3):
        assert sender.send(question(app, "train"), MessageType.TRAIN).has_content()
    reply = sender.send(question(app, "train"), MessageType.TRAIN)
    sender.assert_refused(reply, "more than 3 attempts at one round")
    for _ in range(3):
        assert sender.send(question(app, "train", server_round=2), MessageType.TRAIN).has_content()


def models_in(asked: RecordDict, number: int) -> RecordDict:
    """The same question about so many models."""
    first = asked["model-0"]
    for name in [name for name in asked if name != "config"]:
        del asked[name]
    for position in range(number):
        asked[f"model-{position}"] = first
    return asked


@pytest.mark.parametrize(
    ("mode", "allowed", "refused"),
    [
        ("cross", (2, 4), (3 + 2, 8)),
        ("secure", (2,), (3, 8)),
    ],
)
def test_a_site_scores_as_many_models_as_a_round_has(
    tmp_path: Path, mode: str, allowed: tuple[int, ...], refused: tuple[int, ...]
) -> None:
    changes = {"rounds": 4, "strategy": "fair_fate:keep=0", "validation-from": f"clients:mode={mode}"}
    app = StudyApp(tmp_path / "wards", changes)
    sender = Sender(app)
    for number, models in enumerate(allowed):
        asked = models_in(question(app, "scores", server_round=number + 1), models)
        assert sender.send(asked).has_content()
    for models in (0, *refused):
        sender.assert_refused(sender.send(models_in(question(app, "scores"), models)), f"{models} models")
    after = models_in(question(app, "scores", server_round=5), 1)
    assert sender.send(after).has_content()
    sender.assert_refused(sender.send(models_in(question(app, "scores", server_round=5), 2)), "2 models")


def test_scores_are_bound_to_a_round_and_its_models(tmp_path: Path) -> None:
    changes = {"rounds": 2, "strategy": "fair_fate:keep=0", "validation-from": "clients:mode=cross"}
    app = StudyApp(tmp_path / "wards", changes, runs=1)
    assert app.study.questions["scores"] == 2 + 1 + 5
    sender = Sender(app)
    assert sender.send(question(app, "scores")).has_content()
    other = question(app, "scores")
    layers = dict(other["model-0"]) | {"b2": Array(np.full(1, 0.5, np.float32))}
    other["model-1"] = ArrayRecord(layers)
    sender.assert_refused(sender.send(other), "another model or setting")
    for _ in range(2):
        assert sender.send(question(app, "scores")).has_content()
    sender.assert_refused(sender.send(question(app, "scores")), "more than 3 attempts")
    for number in (None, 0, 4, "1"):
        reply = sender.send(question(app, "scores", server_round=number))
        sender.assert_refused(reply, "server-round")


def test_no_site_is_asked_about_models_of_a_round_that_is_repeated(tmp_path: Path) -> None:
    """The repeated round has other replies, and so other models, which sites would refuse."""
    changes = {"rounds": 1, "strategy": "fair_fate:keep=0", "validation-from": "clients:mode=cross"}
    app = StudyApp(tmp_path / "wards", changes)
    config = app.config(min_sites=3)
    grid, silent = app.grid(config), []

    def fail_once(asked: Message, reply: Message) -> Message | None:
        if asked.metadata.message_type == MessageType.TRAIN and not silent:
            silent.append(1)
            return None
        return reply

    grid.tamper[12] = fail_once
    app.serve(grid, config)
    assert [line["kind"] for line in app.log("north")] == ["fit", "train", "train", "scores", "scores"]
    assert all(line["verdict"] == "answered" for line in app.log("north"))


# -- what leaves -----------------------------------------------------------------------------------------


def test_small_strata_and_small_counts_do_not_leave(tmp_path: Path) -> None:
    changes = {"strategy": "fairfed+thresholds:from=clients", "rounds": 1}
    app = StudyApp(tmp_path / "wards", changes)
    file = app.folder / "data" / "sites" / "north.csv"
    frame = pd.read_csv(file)
    few = frame[(frame["sex"] == "female") & (frame["hired"] == "hired")]
    frame.drop(few.index[4:]).to_csv(file, index=False)
    sender = Sender(app)
    text = app.study.training.strategies[0].partition("+")[0]
    told = {"strategy": text, "num_rounds": 1, "broadcast": [0.5, 0.5]}
    trained = sender.opened(sender.send(question(app, "train", **told), MessageType.TRAIN))
    counts = np.array(trained["metrics"]["local-counts"]).reshape(2, 2, 2)
    assert ((counts == 0) | (counts >= 10)).all()
    assert counts[0, 1].sum() == 0
    assert trained["metrics"]["num-examples"] == len(frame) - len(few) == counts.sum()
    asked = sender.send(question(app, "histogram"))
    bins = np.array(sender.opened(asked)["counts"]["histogram"]).reshape(2, 2, 256)
    assert ((bins == 0) | (bins >= 10)).all()
    assert bins.sum() == counts.sum()


def test_site_with_few_rows_or_other_rows_than_stated_does_not_train(app: StudyApp) -> None:
    file = app.folder / "data" / "sites" / "north.csv"
    frame, sender = pd.read_csv(file), Sender(app)
    for rows, problem in (
        (frame.head(60), "fewer training rows than the minimum"),
        (pd.concat([frame] * 3), "more training rows than the study allows"),
    ):
        rows.to_csv(file, index=False)
        reply = sender.opened(sender.send(question(app, "fit"), run=RUN))
        assert problem in reply["client"]["problem"]
        Gate(app.node_config("north")).folder.path.joinpath(f"study-{app.study.checksum[:32]}.json").unlink()


def test_a_file_that_did_not_fit_may_be_corrected(app: StudyApp) -> None:
    file, sender = app.folder / "data" / "sites" / "north.csv", Sender(app)
    frame = pd.read_csv(file)
    frame.assign(hired=None).to_csv(file, index=False)
    assert "problem" in sender.opened(sender.send(question(app, "fit")))["client"]
    frame.to_csv(file, index=False)
    assert "problem" not in sender.opened(sender.send(question(app, "fit")))["client"]


@pytest.mark.parametrize("kind", ["scores", "histogram"])
def test_a_site_with_too_few_rows_counts_none_of_them(tmp_path: Path, kind: str) -> None:
    changes = {
        "rounds": 2,
        "strategy": "fair_fate:keep=0+thresholds",
        "validation-from": "clients:mode=cross",
    }
    app = StudyApp(tmp_path / "wards", changes)
    file, sender = app.folder / "data" / "sites" / "north.csv", Sender(app)
    pd.read_csv(file).head(60).to_csv(file, index=False)
    asked = question(app, kind, client=0, held_seed=1, held_share=0.2)
    assert "fewer training rows than the minimum" in sender.opened(sender.send(asked))["problem"]["reason"]


def test_seeds_of_a_run_do_not_change(tmp_path: Path) -> None:
    changes = {"rounds": 2, "strategy": "fair_fate:keep=0", "validation-from": "clients:mode=cross"}
    app = StudyApp(tmp_path / "wards", changes, seeds=[1, 2])
    sender = Sender(app)
    assert sender.send(question(app, "scores", held_seed=2)).has_content()
    other = question(app, "scores", held_seed=1, server_round=2)
    sender.assert_refused(sender.send(other), "another held-seed than earlier in the run")


def test_histograms_are_of_one_model(tmp_path: Path) -> None:
    app = StudyApp(tmp_path / "wards", {"rounds": 2, "strategy": "fedavg+thresholds:from=clients"})
    sender = Sender(app)
    assert sender.send(question(app, "histogram")).has_content()
    other = question(app, "histogram")
    other["arrays"]["b2"] = Array(np.full(1, 0.5, np.float32))
    sender.assert_refused(sender.send(other), "another model or setting")


def test_a_file_that_changes_in_mid_run_is_noticed(app: StudyApp) -> None:
    sender = Sender(app)
    assert sender.send(question(app, "train"), MessageType.TRAIN).has_content()
    file = app.folder / "data" / "sites" / "north.csv"
    frame = pd.read_csv(file)
    frame["hired"] = frame["hired"].map({"hired": "not hired", "not hired": "hired"})
    frame.to_csv(file, index=False)
    told = sender.opened(sender.send(question(app, "train"), MessageType.TRAIN))
    assert "has changed since the study began" in told["problem"]["reason"]


def test_two_questions_at_once_are_not_answered_by_two_files(app: StudyApp) -> None:
    gate = Gate(app.grid(app.config()).contexts[app.NODES["north"]].node_config)
    assert gate.check_file("first")
    assert gate.check_file("second")  # before either has been answered
    gate.keep_file("first")
    with pytest.raises(InputError, match="another file"):
        gate.keep_file("second")


def test_a_repeated_round_must_have_the_same_model(app: StudyApp) -> None:
    sender = Sender(app)
    assert sender.send(question(app, "train"), MessageType.TRAIN).has_content()
    other = question(app, "train")
    other["arrays"]["b2"] = Array(np.full(1, 0.5, np.float32))
    sender.assert_refused(sender.send(other, MessageType.TRAIN), "another model or setting")
    reply = sender.send(question(app, "train", server_round=2, client=1), MessageType.TRAIN)
    sender.assert_refused(reply, "another client than earlier in the run")


def test_settings_that_change_what_a_file_holds_are_noticed(app: StudyApp) -> None:
    file = app.folder / "data" / "sites" / "north.csv"
    frame = pd.read_csv(file).rename(columns={"test_score": "first"})
    frame.assign(second=frame["first"][::-1].to_numpy()).to_csv(file, index=False)
    sender = Sender(app)
    settings = sender.grid.contexts[sender.node].node_config
    settings["rename"] = "first=test_score"
    trained = sender.opened(sender.send(question(app, "train"), MessageType.TRAIN))
    assert "arrays" in trained
    settings["rename"] = "second=test_score"
    told = sender.opened(sender.send(question(app, "train"), MessageType.TRAIN))
    assert "has changed since the study began" in told["problem"]["reason"]


def test_problems_of_a_file_reveal_no_counts(app: StudyApp) -> None:
    file = app.folder / "data" / "sites" / "north.csv"
    frame = pd.read_csv(file)
    frame.loc[:2, "sex"] = None
    frame.to_csv(file, index=False)
    sender = Sender(app)
    told = sender.opened(sender.send(question(app, "fit")))["client"]["problem"]
    assert told == "column 'sex' must have a value in every row"


def test_the_public_file_does_not_say_how_many_rows_there_are(app: StudyApp) -> None:
    for member in app.study.sites.values():
        assert all(number % 50 == 0 for number in member.rows)


# -- sites that fail closed ------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["study", "study-sha256", "key"])
def test_a_site_without_study_or_key_answers_nothing(app: StudyApp, lost: str) -> None:
    sender = Sender(app)
    del sender.grid.contexts[sender.node].node_config[lost]
    for name, kind in (("fit", MessageType.QUERY), ("train", MessageType.TRAIN)):
        reply = sender.send(question(app, name), kind)
        assert reply.has_error()
        assert reply.error.reason.endswith(":<'refused'>")


def test_a_study_that_was_changed_after_it_was_pinned_is_not_used(app: StudyApp) -> None:
    sender = Sender(app)
    app.file.write_text(app.file.read_text().replace("min-cell = 10", "min-cell = 1"))
    sender.assert_refused(sender.send(question(app, "fit")), "must have the checksum that study-sha256")


def test_a_state_folder_that_others_can_use_is_not_used(app: StudyApp) -> None:
    folder = app.parties / "north-study-state"
    folder.mkdir(mode=0o700)
    folder.chmod(0o777)
    sender = Sender(app)
    assert sender.send(question(app, "fit")).has_error()
    assert not list(folder.iterdir())
    folder.chmod(0o700)
    assert sender.send(question(app, "fit")).has_content()


def test_a_state_is_safe_on_the_disk_before_an_answer_leaves(
    app: StudyApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, folders = os.fsync, []

    def record(handle: int) -> None:
        folders.append(stat.S_ISDIR(os.fstat(handle).st_mode))
        sync(handle)

    sender, asked = Sender(app), question(app, "fit")
    monkeypatch.setattr(os, "fsync", record)
    sender.send(asked)
    assert any(folders)


def test_names_in_a_message_do_not_fill_the_log(app: StudyApp) -> None:
    sender, asked = Sender(app), question(app, "fit")
    asked["config"]["x" * 1_000_000] = 1
    asked["y" * 1_000_000] = ConfigRecord({f"z{number}": 1 for number in range(1000)})
    sender.assert_refused(sender.send(asked), "unknown 'xxx")
    assert (app.parties / "north-study-state" / "answers.log").stat().st_size < 3000


def test_very_many_refused_messages_are_counted(app: StudyApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairfate.flower.app.site_state.MOST_REFUSED", 3)
    sender = Sender(app)
    for _ in range(5):
        sender.deliver(question(app, "fit"))
    lines = app.log("north")
    assert [line["verdict"] for line in lines] == ["refused"] * 3
    assert "only counted" in lines[-1]["note"]
    assert Gate(app.node_config("north")).folder.count_unlisted() == 2
    assert sender.send(question(app, "fit")).has_content()
    assert app.log("north")[-1]["verdict"] == "answered"


def test_a_key_that_others_can_read_is_not_used(app: StudyApp) -> None:
    key = app.parties / "north-study.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    key.chmod(0o644)
    with pytest.raises(InputError, match="readable to its owner only"):
        PrivateKey.read(key)
    assert Sender(app).send(question(app, "fit")).has_error()


def test_another_version_at_a_site_is_excluded(app: StudyApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairfate.flower.app.gate.__version__", "0.0.9")
    sender = Sender(app)
    sender.assert_refused(sender.send(question(app, "fit")), "versions must be those of the study")


# -- the server ------------------------------------------------------------------------------------------


def sealed_grid(app: StudyApp) -> SealedGrid:
    return SealedGrid(app.grid(app.config()), app.study, app.key("server"), RUN)


def ask(grid: SealedGrid, app: StudyApp, node: int, recipient: str = "") -> Message:
    if recipient:  # the server takes the node for another's, but seals for this one
        known, grid.sites = grid.sites, {node: recipient}
        push = grid.grid.push_messages

        def push_as_known(messages: list[Message]) -> Any:
            grid.sites, grid.grid.push_messages = known, push
            return push(messages)

        grid.grid.push_messages = push_as_known
    (reply,) = grid.send_and_receive([Message(question(app, "fit"), node, MessageType.QUERY)], timeout=1.0)
    return reply


def test_the_server_knows_a_site_by_its_key(app: StudyApp) -> None:
    grid = sealed_grid(app)
    assert ask(grid, app, 917).content["client"]["name"] == "north"
    assert grid.sites == {917: "north"}


def test_a_site_cannot_answer_for_another(app: StudyApp) -> None:
    grid = sealed_grid(app)
    ask(grid, app, 917)
    inner = grid.grid
    assert isinstance(inner, LocalGrid)
    inner.contexts[12].node_config |= app.node_config("north")  # south has north's key, say
    assert "which is another node" in ask(grid, app, 12).error.reason
    grid.sites = {917: "south"}
    assert "signed by north from the node of south" in ask(grid, app, 917, "north").error.reason


def test_node_of_a_site_that_left_cannot_be_taken_by_another(app: StudyApp) -> None:
    grid = sealed_grid(app)
    inner = grid.grid
    assert isinstance(inner, LocalGrid)

    def move(node: int, to: int) -> None:
        left = inner.contexts.pop(node)
        inner.contexts[to] = Context(1, to, left.node_config, RecordDict(), left.run_config)

    assert ask(grid, app, 12).content["client"]["name"] == "south"
    move(12, 99)  # south comes back as another node
    assert ask(grid, app, 99).content["client"]["name"] == "south"
    move(app.NODES["west"], 12)
    assert ask(grid, app, 12).has_error()


def test_an_answer_to_another_question_does_not_count(app: StudyApp) -> None:
    grid = sealed_grid(app)
    inner, kept = grid.grid, []
    assert isinstance(inner, LocalGrid)

    def replay(asked: Message, reply: Message) -> Message:
        kept.append(reply.content)
        return Message(kept[0], reply_to=asked)

    inner.tamper[917] = replay
    assert ask(grid, app, 917).has_content()
    assert "of another run, node or question" in ask(grid, app, 917).error.reason


def test_an_unsigned_or_unreadable_answer_costs_only_itself(app: StudyApp, lines: list[str]) -> None:
    config = app.config(min_replies=2)
    grid = app.grid(config)
    grid.tamper[12] = lambda asked, reply: Message(RecordDict({"x": ConfigRecord({"a": 1})}), reply_to=asked)
    app.serve(grid, config)
    clients = pd.read_csv(app.result() / "clients.csv")
    assert set(clients[clients["outcome"].isin(["fair", "used"])]["name"]) == {"north", "west"}


def test_a_run_that_the_study_does_not_have_ends_before_any_message(app: StudyApp) -> None:
    for changes in ({"strategy": "fedavg"}, {"seed": 2}, {"rounds": 3}, {"min-cell": 1}, {"epochs": 1}):
        config = {**app.config(), **changes}
        grid = app.grid(config)
        with pytest.raises(InputError, match="must be"):
            app.serve(grid, config)
        assert not grid.sent


def test_a_study_that_is_named_must_be_there(app: StudyApp) -> None:
    config = app.config()
    app.file.rename(app.file.with_name("study-1.toml"))
    grid = app.grid(config)
    with pytest.raises(InputError, match="study must be a file"):
        app.serve(grid, config)
    assert not grid.sent


def test_a_run_without_a_study_is_a_simulation(app: StudyApp, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = app.grid(app.config())
    monkeypatch.setenv("FAIRFATE_SERVER_KEY", str(app.parties / "server-study.key"))
    with pytest.raises(InputError, match="unless the run is a simulation"):
        seal_messages(grid, None, RUN)
    monkeypatch.delenv("FAIRFATE_SERVER_KEY")
    assert seal_messages(grid, None, RUN) is grid
    with pytest.raises(InputError, match="on other machines"):
        seal_messages(Mock(spec=HttpGrid), None, RUN)


def test_an_error_that_nobody_signed_says_so(app: StudyApp) -> None:
    config = app.config(min_replies=2)
    grid = app.grid(config)

    def forge(asked: Message, reply: Message) -> Message:
        is_training = asked.metadata.message_type == MessageType.TRAIN
        return Message(Error(1001, "we withdraw"), reply_to=asked) if is_training else reply

    grid.tamper[917] = forge
    app.serve(grid, config)
    clients = pd.read_csv(app.result() / "clients.csv").set_index("name")
    assert set(clients.loc["north", "reason"]) == {"error 1001: unsigned, from Flower: we withdraw"}


def test_the_server_needs_the_key_of_the_study(app: StudyApp, monkeypatch: pytest.MonkeyPatch) -> None:
    config = app.config()
    (app.parties / "server-study.key").unlink()
    PrivateKey.create().write(app.parties / "server-study.key")
    with pytest.raises(InputError, match="must name the key of the study's server"):
        app.serve(app.grid(config), config)


def test_a_round_with_too_few_replies_is_repeated_and_then_given_up(app: StudyApp, lines: list[str]) -> None:
    config = app.config(min_sites=3)
    grid = app.grid(config)
    silent: list[int] = []

    def fail_twice(asked: Message, reply: Message) -> Message | None:
        if asked.metadata.message_type == MessageType.TRAIN and len(silent) < 2:
            silent.append(1)
            return None
        return reply

    grid.tamper[12] = fail_twice
    app.serve(grid, config)
    assert len(silent) == 2
    clients = pd.read_csv(app.result() / "clients.csv")
    assert (clients.groupby("round").size() == 3).all()
    for state in app.parties.glob("*-state/study-*.json"):  # Flower gives each run another number
        state.unlink()
    grid = app.grid(config)
    grid.tamper[12] = lambda asked, reply: None if asked.metadata.message_type == MessageType.TRAIN else reply
    with pytest.raises(InputError, match="round 1 failed after 3 attempts: 2 usable replies, 3 are needed"):
        app.serve(grid, config)


def test_a_claim_of_other_rows_than_the_study_has_is_dropped(
    app: StudyApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = site._train

    def lie(asked: Any, where: site.Site, network: str | None) -> Any:
        layers, metrics = honest(asked, where, network)
        return layers, {
            **metrics,
            "num-examples": 2**52 if where.name == "south" else metrics["num-examples"],
        }

    monkeypatch.setattr(site, "_train", lie)
    config = app.config(min_replies=2)
    app.serve(app.grid(config), config)
    clients = pd.read_csv(app.result() / "clients.csv").set_index(["name", "round"])
    assert set(clients.loc["south", "outcome"]) == {"dropped"}
    low, high = app.study.sites["south"].rows
    assert clients.loc[("south", 1), "reason"] == f"4.5036e+15 examples, where it may have {low} to {high}"


ROWS_OF = {917: 110, 12: 100, 55: 90, 3: 120, 8: 80}


def five_sites(
    liar: Callable[[np.ndarray], tuple[np.ndarray, int]] | None, rows_of: Mapping[int, int] = ROWS_OF
) -> np.ndarray:
    """The model after a round of some sites, one of which may lie about its rows and its update."""
    client = ClientApp()

    @client.query()
    def query(message: Message, context: Context) -> Message:
        return Message(RecordDict({"client": ConfigRecord({"name": str(context.node_id)})}), reply_to=message)

    @client.train()
    def train(message: Message, context: Context) -> Message:
        update = np.array([0.3, 0.0, 0.0, 0.0, 0.0]) * (1 + context.node_id % 3 / 10)
        rows = ROWS_OF[context.node_id]
        if liar is not None and context.node_id == 917:
            update, rows = liar(update)
        arrays = ArrayRecord({"w": Array(message.content["arrays"]["w"].numpy() + update)})
        metrics = MetricRecord({"num-examples": rows})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    strategy = flower_strategy(
        "fedavg+clip",
        num_rounds=1,
        ask_clients=True,
        fraction_evaluate=0.0,
        row_ranges={str(node): (rows // 2, math.ceil(1.1 * rows)) for node, rows in rows_of.items()},
    )
    initial = ArrayRecord({"w": Array(np.zeros(5))})
    strategy.start(LocalGrid(client, {node: {} for node in rows_of}), initial)
    return strategy.released


def test_one_lying_site_of_five_moves_the_model_little() -> None:
    honest, nothing = five_sites(None), five_sites(lambda update: (0 * update, 110))
    largest = 0.36 * 120 / sum(ROWS_OF.values())  # the longest honest update, by the most rows
    np.testing.assert_allclose(honest[1:], 0)
    for lie in (
        lambda update: (-30 * update, 121),
        lambda update: (-1e9 * update, 121),
        lambda update: (np.full(5, 1e6), 121),
    ):
        moved = five_sites(lie) - nothing
        assert 0 < np.sqrt(np.square(moved).sum()) <= 2 * largest
    np.testing.assert_allclose(five_sites(lambda update: (-30 * update, 2**52)), nothing, atol=0.1)


def test_one_lying_site_of_two_moves_the_model_no_further() -> None:
    pair = {917: 110, 12: 100}
    nothing = five_sites(lambda update: (0 * update, pair[917]), pair)
    largest = 0.36 * max(pair.values()) / sum(pair.values())
    for times in (-10, -200):  # an update of norm 100 or more would be dropped
        moved = five_sites(lambda update, times=times: (times * update, pair[917]), pair) - nothing
        assert 0 < np.sqrt(np.square(moved).sum()) <= 2 * largest


def test_updates_that_a_tiny_one_shortens_are_logged(lines: list[str]) -> None:
    five_sites(lambda update: (0.01 * update, 110), {917: 110, 12: 100})
    assert any("updates were shortened" in line for line in lines)


def lying(monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[RecordDict], None]) -> None:
    """Have one site change its answers before they are sealed."""
    honest = site.answer

    def lie(asked: Any, where: site.Site, network: str | None = None) -> RecordDict:
        content = honest(asked, where, network)
        if where.name == name:
            change(content)
        return content

    monkeypatch.setattr(site, "answer", lie)


def test_a_site_cannot_choose_its_name_and_so_its_range(
    app: StudyApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    def claim(content: RecordDict) -> None:
        if "client" in content:
            content["client"]["name"] = "nobody"
        else:
            content["metrics"]["num-examples"] = 2**52

    lying(monkeypatch, "south", claim)
    config = app.config(min_replies=2)
    app.serve(app.grid(config), config)
    clients = pd.read_csv(app.result() / "clients.csv")
    assert set(clients["name"]) == {"north", "south", "west"}
    assert set(clients[clients["name"] == "south"]["outcome"]) == {"dropped"}


def test_a_site_that_leaves_its_name_out_has_that_of_its_key(
    app: StudyApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hide(content: RecordDict) -> None:
        if "client" in content:
            content["client"] = ArrayRecord({"a": Array(np.zeros(1))})

    lying(monkeypatch, "south", hide)
    config = app.config()
    app.serve(app.grid(config), config)
    clients = pd.read_csv(app.result() / "clients.csv")
    assert set(clients["name"]) == {"north", "south", "west"}
    assert not (clients["outcome"] == "dropped").any()


@pytest.mark.parametrize("loss", [0.0, 6.95, 999.0])
def test_a_loss_that_is_not_that_of_the_probabilities_is_dropped(
    tmp_path: Path, loss: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = StudyApp(tmp_path / "wards", {"rounds": 1, "strategy": "afl"})

    def exaggerate(content: RecordDict) -> None:
        if "metrics" in content:
            rows = np.array(content["metrics"]["local-counts"]).reshape(-1, 2).sum(axis=-1)
            content["metrics"]["local-loss"] = [float(loss * number) for number in rows]

    lying(monkeypatch, "west", exaggerate)
    config = app.config(min_replies=2)
    app.serve(app.grid(config), config)
    clients = pd.read_csv(app.result() / "clients.csv").set_index("name")
    assert "'local-loss' is not that of" in clients.loc["west", "reason"]
    assert set(clients.loc[["north", "south"], "outcome"]) == {"used"}


def test_a_model_with_a_weight_that_sites_would_refuse_is_dropped(
    app: StudyApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    def heavy(content: RecordDict) -> None:
        if "arrays" in content:
            content["arrays"]["b2"] = Array(np.full(1, 21, np.float32))

    lying(monkeypatch, "west", heavy)
    config = app.config(min_replies=2)
    app.serve(app.grid(config), config)
    clients = pd.read_csv(app.result() / "clients.csv").set_index("name")
    assert set(clients.loc["west", "reason"]) == {"a weight of 21, over twice the limit of 10 (max-weight)"}


def test_counts_whose_sum_wraps_around_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = StudyApp(tmp_path / "wards", {"rounds": 1, "strategy": "qffl"})

    def wrap(content: RecordDict) -> None:
        if "metrics" in content:
            metrics, many = content["metrics"], 2**62
            metrics["local-counts"] = [many, metrics["num-examples"], many, 0, many, 0, many, 0]
            metrics["local-probability"], metrics["local-loss"] = (
                [0.0] * 4,
                [0.0, 0.0, 6.9 * many, 6.9 * many],
            )

    lying(monkeypatch, "south", wrap)
    config = app.config(min_replies=2)
    app.serve(app.grid(config), config)
    clients = pd.read_csv(app.result() / "clients.csv").set_index("name")
    assert clients.loc["south", "outcome"] == "dropped"
    assert "'local-counts' are not its" in clients.loc["south", "reason"]


def test_histogram_whose_sum_wraps_around_is_not_used() -> None:
    def reply(numbers: list[int]) -> Message:
        message = Message(RecordDict({}), 1, MessageType.QUERY)
        return Message(RecordDict({"counts": MetricRecord({"histogram": numbers})}), reply_to=message)

    size = 3 * 2 * BINS
    shape = (3, 2, BINS)
    for numbers, min_cell in (
        ([2**53 - 1] * size, 0),
        ([0] * (size - 1) + [5001], 0),
        ([9] + [0] * (size - 2) + [100], 10),
    ):
        with pytest.raises(MismatchError):
            read_counts(reply(numbers), HISTOGRAM, shape, 5000, min_cell)
    assert read_counts(reply([0] * (size - 1) + [5000]), HISTOGRAM, shape, 5000, 10).sum() == 5000


def test_a_site_cannot_push_the_model_beyond_what_sites_accept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = StudyApp(tmp_path / "wards", {"rounds": 14, "strategy": "fedmom"})

    def heavy(content: RecordDict) -> None:
        if "arrays" in content:
            for name, array in content["arrays"].items():
                content["arrays"][name] = Array(np.full_like(array.numpy(), 9.99))

    lying(monkeypatch, "south", heavy)
    config = app.config(min_replies=2)
    app.serve(app.grid(config), config)
    rounds = pd.read_csv(app.result() / "clients.csv")["round"]
    assert rounds.max() == 14


def test_honest_sites_count_also_where_a_liar_has_led_the_model_to_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = StudyApp(tmp_path / "wards", {"rounds": 8, "strategy": "fedavg"})
    limit: dict[str, Array] = {}

    def lead(content: RecordDict) -> None:
        if "arrays" not in content:
            return
        for name, array in list(content["arrays"].items()):
            # the same corner each time, where training goes on outwards
            limit.setdefault(name, Array(np.where(array.numpy() > 0, 10, -10).astype(np.float32)))
            content["arrays"][name] = limit[name]

    lying(monkeypatch, "south", lead)
    config = app.config(min_replies=2)
    app.serve(app.grid(config), config)
    clients = pd.read_csv(app.result() / "clients.csv")
    assert clients["round"].max() == 8
    assert set(clients[clients["name"] != "south"]["outcome"]) == {"used"}


def test_large_reply_does_not_keep_others_from_validating(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    changes = {"rounds": 2, "strategy": "fair_fate:keep=0", "validation-from": "clients:mode=cross"}
    app = StudyApp(tmp_path / "wards", changes)

    def heavy(content: RecordDict) -> None:
        if "arrays" in content:
            content["arrays"]["b2"] = Array(np.full(1, 15, np.float32))

    lying(monkeypatch, "south", heavy)
    config = app.config()
    app.serve(app.grid(config), config)
    assert not any("ignored" in line for line in lines)
    assert "south" in set(pd.read_csv(app.result() / "clients.csv")["name"])


def test_honest_site_at_the_end_of_its_range_may_validate() -> None:
    policy = ReplyPolicy(row_ranges={"north": (400, 1200)})
    assert policy.most_held("north", 0.2, 4) >= 300  # of 1,500 rows, of which it trains on 1,200


def test_broadcast_numbers_are_cut_to_the_limit_of_sites() -> None:
    np.testing.assert_array_equal(limit_broadcast(np.array([1e9, -200.0, 3.0]), 100.0), [100, -100, 3])


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["counts"].update(rows=[2**50] * 4),
        lambda content: content["counts"].update(rows=[2**62] * 4),
        lambda content: content["counts"].update(rows=[-1, 1, 1, 1]),
        lambda content: content["counts"].update(rows=[200, 1, 100, 100]),
    ],
)
def test_site_that_reports_too_many_or_too_few_rows_is_excluded(
    tmp_path: Path, change: Callable[[RecordDict], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = StudyApp(tmp_path / "wards", {"rounds": 1, "strategy": "fedavg_gr"})
    lying(monkeypatch, "south", lambda content: change(content) if "counts" in content else None)
    config = app.config()
    app.serve(app.grid(config), config)
    clients = pd.read_csv(app.result() / "clients.csv").set_index("name")
    assert set(clients[clients["outcome"] == "used"].index) == {"north", "west"}
    assert clients.loc["south", "outcome"] == "refused"  # before it trains, so its rows weigh nobody's losses


@pytest.mark.parametrize(
    "about",
    [
        {"arrays": ["arrays", [["w1", "(1,f4", [1], 4]]]},
        {"arrays": ["arrays", [["w1", {"names": ["a"], "formats": ["f4"], "offsets": [10**18]}, [1], 4]]]},
        {"arrays": ["arrays", [[str(n), "<f4", [0], 0] for n in range(5000)]]},
        {"metrics": ["metrics", {"n": [10**400]}]},
        {"metrics": ["nonsense", {}]},
        [],
    ],
)
def test_contents_that_no_honest_site_seals_are_errors(about: object) -> None:
    text = json.dumps(about).encode()
    key, other = PrivateKey.create(), PrivateKey.create()
    head = Head("s", SERVER, ("north",), 1, 2, "train", 3)
    content_key, body = encrypt(len(text).to_bytes(4, "big") + text + b"1234")
    sealed = seal(head, RecordDict(), key, {"north": other.public})
    envelope = Envelope.read(sealed)
    info = hashlib.sha256(envelope._about).digest()
    wrapped = json.dumps({"north": other.public.wrap(content_key, info).hex()}).encode()
    forged = dataclasses.replace(envelope, _wrapped=wrapped, _body=body)
    with pytest.raises(EnvelopeError, match="unreadable content"):
        forged.open("north", other)


# -- the study file --------------------------------------------------------------------------------------


def test_a_study_survives_its_file_and_an_edited_one_is_refused(app: StudyApp) -> None:
    assert Study.read(app.file) == app.study
    text = app.file.read_text()
    for old, new in (("rounds = 2", "rounds = 2000"), ("# at most", "# at least"), ("min-cell", "min_cell")):
        with pytest.raises(InputError, match="study must be"):
            Study.parse(text.replace(old, new, 1).encode().replace(b"rounds = 2000", b"rounds = 2000 "))
    for nonsense in (b"", b"[study]", b"\xff", b"x = [", text.encode()[:-40]):
        with pytest.raises(InputError, match="study must be"):
            Study.parse(nonsense)


def test_an_amended_study_continues_from_the_last_and_says_what_changed(
    app: StudyApp, tmp_path: Path
) -> None:
    before = app.study
    after = make_study(app.folder, [], changes=app.changes, amends=before, without=["west"])
    assert (after.version, after.previous) == (2, before.checksum)
    assert set(after.sites) == {"north", "south"}
    lines = changes_from(before, after)
    assert any(line.startswith('- [sites."west"] rows') for line in lines)
    (tmp_path / "new").mkdir()
    _, public = make_key("south", tmp_path / "new", app.folder / "sites" / "south.toml")
    rotated = make_study(app.folder, [read_party(public)], changes=app.changes, amends=after)
    assert rotated.sites["south"].key != after.sites["south"].key
    assert rotated.sites["north"] == after.sites["north"]


def test_a_study_needs_a_server_two_sites_and_keys_of_their_own(app: StudyApp) -> None:
    parties = {file.stem: read_party(file) for file in app.parties.glob("*.pub")}
    server, north, south = (parties[f"{name}-study"] for name in ("server", "north", "south"))
    for given, reason in (
        ([north, south], "the server's public key"),
        ([server, north], "at least two sites"),
        ([server, north, south, type(north)("west", north.key, (1, 2))], "a key of its own"),
        ([server, north, south, type(north)("NORTH", server.key, (1, 2))], "a name of its own"),
    ):
        with pytest.raises(InputError, match=reason):
            make_study(app.folder, given)


def forged(app: StudyApp, **changes: str) -> Path:
    """The public file of south, with other lines."""
    lines = (app.parties / "south-study.pub").read_text().splitlines()
    for key, value in changes.items():
        lines = [f"{key} = {value}" if line.startswith(key) else line for line in lines]
    file = app.parties.parent / "forged.pub"
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"name": '"server"'}, "none of the server"),
        ({"name": '"no\\nrth\\u001b[31m"'}, "name must be up to 64 ASCII letters"),
        ({"name": '"s\u043euth"'}, "name must be up to 64 ASCII letters"),
        ({"seal": f'"{"00" * 32}"'}, "public key must be a file that fairfate flower key"),
        ({"rows": "[1, 1000000000000000]"}, "rows of 'south' must end at 204 at most"),
        ({"rows": "[-5, 100]"}, "rows of 'south' must"),
        ({"rows": "[200, 100]"}, "rows of 'south' must"),
        ({"rows": "[1e400, 2]"}, "public key must be a file that fairfate flower key"),
        ({"rows": '"12"'}, "public key must be a file that fairfate flower key"),
        ({"rows": "[" * 5000 + "]" * 5000}, "public key must be a file that fairfate flower key"),
    ],
)
def test_a_public_file_that_no_command_writes_is_refused(
    app: StudyApp, changes: dict[str, str], reason: str
) -> None:
    with pytest.raises(InputError, match=reason) as error:
        read_party(forged(app, **changes))
    assert str(error.value).isprintable()


def test_site_cannot_answer_as_another(app: StudyApp) -> None:
    parties = [read_party(file) for file in sorted(app.parties.glob("*.pub"))]
    twice = read_party(forged(app, name='"north"'))
    for amends in (None, app.study):
        with pytest.raises(InputError, match="party must name everybody once, got 'north' twice"):
            make_study(app.folder, [*parties, twice], changes=app.changes, amends=amends)


def test_parties_have_sealing_keys_of_their_own(app: StudyApp) -> None:
    files = sorted(app.parties.glob("*.pub"))
    parties = [read_party(file) for file in files if file.stem != "south-study"]
    taken = read_party(forged(app, seal=f'"{app.study.sites["north"].key.seal}"'))
    twin = bytearray.fromhex(app.study.sites["north"].key.seal)
    twin[-1] ^= 0x80  # which X25519 ignores
    for party in (taken, read_party(forged(app, seal=f'"{twin.hex()}"'))):
        with pytest.raises(InputError, match="every party must have a key of its own"):
            make_study(app.folder, [*parties, party], changes=app.changes)


@pytest.mark.parametrize("name", ["s\u043euth", "north\u202e", "NORTH", "Server"])
def test_a_study_that_somebody_wrote_by_hand_has_no_name_that_looks_like_another(
    app: StudyApp, name: str
) -> None:
    south = app.study.sites["south"]
    sites = {key: member for key, member in app.study.sites.items() if key != "south"} | {name: south}
    with pytest.raises(InputError, match="name"):
        Study.parse(dataclasses.replace(app.study, sites=dict(sorted(sites.items()))).text().encode())
    twice = {**app.study.sites, "west": app.study.sites["north"]}
    with pytest.raises(InputError, match="a key of its own"):
        Study.parse(dataclasses.replace(app.study, sites=twice).text().encode())


def test_text_of_a_study_shows_every_character(app: StudyApp) -> None:
    with pytest.raises(InputError, match="a name that cannot be printed"):
        Study.parse(dataclasses.replace(app.study, name="wards\n# min-cell = 50").text().encode())
    hidden = with_data(app.study, labels=("hired\u202e", "not\U000e0001"))
    text = hidden.text()
    assert all(sign.isprintable() for sign in text.replace("\n", ""))
    assert Study.parse(text.encode()).data.labels == hidden.data.labels


def test_a_study_says_whose_keys_it_has_and_which_were_replaced(app: StudyApp, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    _, public = make_key("south", tmp_path / "new", app.folder / "sites" / "south.toml")
    after = make_study(app.folder, [read_party(public)], amends=app.study)
    old, new = (study.sites["south"].key.fingerprint for study in (app.study, after))
    assert changes_from(app.study, after)[0] == f"south: key replaced: {old} -> {new}"
    low, high = after.sites["south"].rows
    assert f"south: key {new}, {low} to {high} rows" in list_parties(after)
    assert f"server: key {after.server.fingerprint}" in list_parties(after)


def test_an_amended_study_keeps_what_is_not_given_anew(app: StudyApp) -> None:
    limits = {"min_cell": 30, "min_rows": 200, "max_weight": 5.0}
    parties = [read_party(file) for file in sorted(app.parties.glob("*.pub"))]
    changes = {"rounds": 3, "epochs": 2, "strategy": "fedavg", "l2": 0.01}
    first = make_study(
        app.folder, parties, changes=changes, runs=1, seeds=[7], strategies=["fedavg_lr"], **limits
    )
    after = make_study(app.folder, [], amends=first, without=["west"])
    for part in ("limits", "training", "questions"):
        assert getattr(after, part) == getattr(first, part), part
    changed = make_study(
        app.folder,
        [],
        changes={"rounds": 2},
        amends=first,
        min_cell=40,
        runs=2,
        seeds=[8],
        strategies=["fedmom"],
    )
    assert changed.limits == dataclasses.replace(first.limits, min_cell=40)
    assert changed.training.rounds == 2
    assert set(changed.training.seeds) == {1, 7, 8}
    assert [text.partition(":")[0] for text in changed.training.strategies] == [
        "fedavg",
        "fedmom",
        "fedavg_lr",
    ]
    assert changed.questions["train"] == 2 * 2 + 5
    with pytest.raises(InputError, match="runs must be given: one run needs"):
        make_study(app.folder, [], changes={"rounds": 30}, amends=first)
    asked = make_study(app.folder, parties, changes={"strategy": "fedavg+thresholds:from=clients"})
    without = make_study(app.folder, [], changes={"strategy": "fedavg"}, amends=asked)
    assert asked.questions["histogram"] > 0
    assert without.questions["histogram"] == 0


def test_an_amendment_names_every_change_and_its_site(app: StudyApp) -> None:
    sites = dict(app.study.sites)
    north, south = sites["north"], sites["south"]

    def with_rows(first: tuple[int, int], second: tuple[int, int]) -> Study:
        ranges = {"north": dataclasses.replace(north, rows=first)}
        ranges["south"] = dataclasses.replace(south, rows=second)
        return dataclasses.replace(app.study, sites={**sites, **ranges})

    lines = changes_from(with_rows((200, 800), (100, 900)), with_rows((100, 900), (200, 800)))
    for site_of, old, new in (("north", "[200, 800]", "[100, 900]"), ("south", "[100, 900]", "[200, 800]")):
        assert any(line.startswith(f'- [sites."{site_of}"] rows = {old}') for line in lines)
        assert any(line.startswith(f'+ [sites."{site_of}"] rows = {new}') for line in lines)


def test_a_run_under_another_version_of_the_study_begins_anew(app: StudyApp) -> None:
    app.changes["rounds"] = 3
    app.sign_off()
    config = app.config()
    grid, trained = app.grid(config), list[bool]()

    def kill_in_the_third_round(message: Message, honest: Message) -> Message:
        trained.append(message.metadata.message_type == MessageType.TRAIN)
        if sum(trained) == 3:
            raise Killed
        return honest

    grid.tamper[app.NODES["north"]] = kill_in_the_third_round
    with pytest.raises(Killed):
        app.serve(grid, config)
    checkpoint = app.result() / "checkpoint.safetensors"
    assert checkpoint.exists()
    first = app.study
    app.study = make_study(app.folder, [], amends=first, without=["west"])
    app.file.write_text(app.study.text())
    config = app.config(min_sites=2)
    app.serve(app.grid(config), config)
    clients = pd.read_csv(app.result(2) / "clients.csv")
    assert "west" not in set(clients[clients["outcome"] != "dropped"]["name"])
    written = tomllib.loads((app.result(2) / "config.toml").read_text())["provenance"]
    assert written["study-sha256"] == app.study.checksum
    assert written["study-version"] == 2
    assert checkpoint.exists()  # of the first version's run, for which nobody has asked again
    config = app.config(min_sites=2, timeout=299.0)
    trained.clear()
    grid = app.grid(config)
    grid.tamper[app.NODES["north"]] = kill_in_the_third_round
    with pytest.raises(Killed):
        app.serve(grid, config)
    shutil.copy(checkpoint, app.result(3) / checkpoint.name)  # of the version in which west took part
    with pytest.raises(InputError, match="checkpoint"):
        app.serve(app.grid(config), config)
    with pytest.raises(InputError, match="min-sites must be at most the 2 sites of the study"):
        app.serve(app.grid(config), app.config(min_sites=3))


def test_a_report_that_fails_leaves_the_run_finished(
    app: StudyApp, monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    def fail(*args: object) -> None:
        raise ValueError("no paper")

    monkeypatch.setattr("fairfate.experiments.runs.Run.report", fail)
    config = app.config()
    app.serve(app.grid(config), config)
    assert (app.result() / "summary.csv").exists()
    assert (app.result() / "config.toml").exists()
    assert any("no paper" in line for line in lines)


def test_sites_that_were_not_heard_of_are_named(app: StudyApp) -> None:
    config = app.config(min_sites=3, max_wait=0.1)
    grid = app.grid(config)
    grid.offline.add(app.NODES["south"])
    with pytest.raises(InputError, match=r"only 2 of 3 clients came within .*; no contact yet: south"):
        app.serve(grid, config)


def test_pinning_a_study_writes_three_lines_and_shows_what_changed(app: StudyApp, tmp_path: Path) -> None:
    node = app.folder / "sites" / "north.toml"
    key = app.parties / "north-study.key"
    assert read_changes(node, app.study) is None
    assert pin(node, app.file, app.study, key, app.folder) == "north"
    config = read_node(node)
    assert (config["study-sha256"], config["key"]) == (app.study.checksum, str(key))
    assert Gate(config).name == "north"
    before, text = app.study, node.read_text()
    app.sign_off(amends=before, min_cell=20)
    assert any("min-cell = 20" in line for line in read_changes(node, app.study) or [])
    with pytest.raises(InputError, match="key must be that of a site of the study"):
        pin(node, app.file, app.study, app.parties / "server-study.key")
    other = ReadyApp(tmp_path / "other").folder
    with pytest.raises(InputError, match="app must be the study's"):
        pin(node, app.file, app.study, app=other)
    assert node.read_text() == text
    pin(node, app.file, app.study)
    assert len(node.read_text().splitlines()) == len(text.splitlines())
    assert any("does not follow version 2" in line for line in read_changes(node, before) or [])
    kept = next(app.parties.glob(f"north-study-state/study-{app.study.checksum[:32]}.toml"))
    kept.write_text(before.text())
    assert read_changes(node, before) is None  # then the whole study is shown


def test_pinning_changes_nothing_else_in_a_sites_settings(app: StudyApp, tmp_path: Path) -> None:
    key, odd = app.parties / "north-study.key", tmp_path / "odd.toml"
    for text in ('study = """\nrename = "a=b"\n"""\ndata = "a.csv"\n', '[more]\nstudy = "x"\n'):
        odd.write_text(text)
        with pytest.raises(InputError, match="lines of their own"):
            pin(odd, app.file, app.study, key)
        assert odd.read_text() == text
    plain, link = tmp_path / "plain.toml", tmp_path / "link.toml"
    plain.write_text(f'data = "{app.folder / "data" / "sites" / "north.csv"}"\n')
    plain.chmod(0o600)
    link.symlink_to(plain)
    pin(link, app.file, app.study, key)
    assert link.is_symlink()
    assert stat.S_IMODE(plain.stat().st_mode) == 0o600
    assert read_node(plain)["study-sha256"] == app.study.checksum


def test_a_new_key_goes_beside_the_old_one_and_keeps_the_log(app: StudyApp) -> None:
    node = app.folder / "sites" / "north.toml"
    with pytest.raises(InputError, match="--rotate"):
        make_key("north", app.parties, node)
    private, public = make_key("north", app.parties, node, rotate=True)
    assert (private.name, public.name) == ("north-study-2.key", "north-study-2.pub")
    assert (app.parties / "north-study.key").exists()
    public.unlink()
    assert make_key("north", app.parties, node, rotate=True)[0].name == "north-study-3.key"
    before = app.node_config("north")
    assert state_folder(before) == state_folder({**before, "key": str(private)})
    with pytest.raises(InputError, match="out must be a folder"):
        make_key("north", app.parties / "none", node)


def test_keys_are_never_overwritten(app: StudyApp) -> None:
    before = (app.parties / "server-study.key").read_text()
    with pytest.raises(InputError, match="must be a new file"):
        make_key("server", app.parties)
    (app.parties / "server-study.pub").unlink()
    with pytest.raises(InputError, match="must be a new file"):
        make_key("server", app.parties)
    assert (app.parties / "server-study.key").read_text() == before
    assert not (app.parties / "server-study.pub").exists()


def test_state_and_log_are_the_owners_alone(app: StudyApp) -> None:
    Sender(app).send(question(app, "fit"))
    folder = app.parties / "north-study-state"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "answers.log").stat().st_mode) == 0o600
    assert os.path.commonpath([folder, app.parties]) == str(app.parties)


def test_arrays_of_messages_are_what_was_sent() -> None:
    record = ArrayRecord({"w": Array(np.arange(6, dtype=np.float32).reshape(2, 3))})
    content = RecordDict({"arrays": record, "config": ConfigRecord({"a": 1, "b": 0.1, "c": ["x"]})})
    key, other = PrivateKey.create(), PrivateKey.create()
    head = Head("s", SERVER, ("north",), 1, 2, "train", 3)
    envelope = Envelope.read(seal(head, content, key, {"north": other.public}))
    envelope.verify(key.public)
    assert envelope.head == head
    opened = envelope.open("north", other)
    np.testing.assert_array_equal(opened["arrays"]["w"].numpy(), record["w"].numpy())
    assert dict(opened["config"]) == dict(content["config"])


# -- rules for everybody ---------------------------------------------------------------------------------

LEARNED = {"target": "decision", "table": "00" * 128}
"""Of 32 ranges of both scores, as the study's strategy has them."""


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"target": "decision"}, "a rule's table without its training, or that without a table"),
        ({"table": "00" * 128}, "a rule's table without its training, or that without a table"),
        ({"target": "group", "table": "00" * 128}, "a rule's table without its training"),
        ({**LEARNED, "table": "00" * 8}, "a table that no rule of the study has"),
        ({**LEARNED, "table": "no digits"}, "a table that no rule of the study has"),
        ({**LEARNED, "table": 7}, "a table that no rule of the study has"),
        ({**LEARNED, "strategy": "fedavg"}, "target 'decision'"),
        ({"target": "label"}, "target 'label'"),
        (LEARNED, "records that do not belong to this question"),
    ],
)
def test_only_a_rule_of_the_study_is_learned(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    app = StudyApp(tmp_path / "wards", {"strategy": "fedavg+tilt:distil=true"})
    sender = Sender(app)
    sender.assert_refused(sender.send(question(app, "train", **changes), "train"), reason)


@pytest.mark.parametrize("strategy", ["fedavg", "fedavg+tilt"])
def test_no_rule_is_learned_where_the_study_has_none_that_is_distilled(tmp_path: Path, strategy: str) -> None:
    app = StudyApp(tmp_path / "wards", {"strategy": strategy})
    sender = Sender(app)
    sender.assert_refused(sender.send(question(app, "train", **LEARNED), "train"), "target 'decision'")
    sender.assert_refused(sender.send(question(app, "histogram", split=True)), "split True")


def test_another_rule_is_not_learned_later_in_a_run(tmp_path: Path) -> None:
    app = StudyApp(tmp_path / "wards", {"strategy": "fedavg+tilt:distil=true"})
    sender = Sender(app)

    def learn(number: int, table: str) -> RecordDict:
        content = question(app, "train", **{**LEARNED, "table": table, "server-round": number})
        return RecordDict({**content, "model-0": content["arrays"], "model-1": content["arrays"]})

    assert sender.send(learn(1, "0f" * 128), "train").has_content()
    assert sender.send(learn(2, "0f" * 128), "train").has_content()
    sender.assert_refused(sender.send(learn(3, "f0" * 128), "train"), "another rule to learn than earlier")


def test_questions_of_a_study_suffice_for_three_models_and_their_histograms(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()
    plain, tilted, distilled = (
        StudyApp(tmp_path / name / "wards", {"strategy": strategy}).study.questions
        for name, strategy in (("a", "fedavg"), ("b", "fedavg+tilt"), ("c", "fedavg+tilt:distil=true"))
    )
    assert tilted["train"] - plain["train"] == distilled["train"] - tilted["train"] > 0
    assert (plain["histogram"], tilted["histogram"]) == (0, distilled["histogram"] // 2)


PRICED = {"ask": "histogram", "groups": 4, "server-round": 1, "prices": ["sp 32 0 -64 16 8 0 0 0"]}
"""A question of the search for the prices of four groups."""


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"prices": ["sp 16 0 -64 16 8 0 0 0"]}, "a rule that no search of the study asks for"),
        ({"prices": ["eo 32 0 -64 16 8 0 0 0"]}, "a rule that no search of the study asks for"),
        ({"prices": ["sp 32 0 -64 16 0 0"]}, "a rule that no search of the study asks for"),
        ({"prices": ["sp 32 0 -999 16 8 0 0 0"]}, "a rule that no search of the study asks for"),
        ({"prices": PRICED["prices"] * 13}, "prices that no search asks for"),
        ({"prices": []}, "prices that no search asks for"),
        ({"prices": "sp"}, "prices that no search asks for"),
        ({"server-round": 102}, "server-round 102 instead of 1 to 101"),
        ({"server-round": None}, "server-round None instead of 1 to 101"),
        ({"bins": 32}, "a histogram of both scores with more than two groups"),
    ],
)
def test_only_prices_that_the_study_may_search_are_counted(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    app = StudyApp(tmp_path / "wards", {"strategy": "fedavg+tilt:metric=sp", "sensitive": "field"})
    sender = Sender(app)

    def ask(**more: Any) -> Message:
        content = question(app, "histogram", **{**PRICED, **more})
        models = {f"model-{number}": content["arrays"] for number in range(4)}
        return sender.send(RecordDict({"config": content["config"], **models}))

    sender.assert_refused(ask(**changes), reason)
    assert ask().has_content()
    sender.assert_refused(ask(prices=["sp 32 0 -63 16 8 0 0 0"]), "another model or setting")


@pytest.mark.parametrize("guessed", [0, 4, "1", True, None])
def test_only_groups_of_the_study_are_guessed(tmp_path: Path, guessed: object) -> None:
    app = StudyApp(tmp_path / "wards", {"strategy": "fedavg+tilt:metric=sp", "sensitive": "field"})
    sender = Sender(app)
    refused = question(app, "train", target="group", guessed=guessed)
    sender.assert_refused(sender.send(refused, "train"), "instead of 1 to 3")
    assert sender.send(question(app, "train", target="group", guessed=3), "train").has_content()


def test_models_of_a_search_stay_the_same(tmp_path: Path) -> None:
    app = StudyApp(tmp_path / "wards", {"strategy": "fedavg+tilt:metric=sp", "sensitive": "field"})
    sender = Sender(app)
    first = question(app, "histogram", **PRICED)
    models = {f"model-{number}": first["arrays"] for number in range(4)}
    assert sender.send(RecordDict({"config": first["config"], **models})).has_content()
    second = question(app, "histogram", **{**PRICED, "server-round": 2})
    other = {name: array.numpy() + 1 for name, array in first["arrays"].items()}
    moved = ArrayRecord({name: Array(values) for name, values in other.items()})
    asked = RecordDict({"config": second["config"], **models, "model-3": moved})
    sender.assert_refused(sender.send(asked), "other models than earlier in the search")

"""Clients that judge, on Flower: the same bits as in the simulator, and what becomes of bad answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

from fairfate import InputError, read_model
from fairfate.engine.loop import Round, run_rounds
from fairfate.engine.server import Server
from fairfate.engine.simulation import Simulation
from fairfate.experiments.config import from_mapping, read_config
from fairfate.experiments.plan import resolve
from fairfate.experiments.prepare import load_table
from fairfate.federation.seeds import Streams
from fairfate.federation.split import build
from fairfate.flower import FlowerStrategy, Validation
from fairfate.models.mlp import Mlp
from federation_in_process import Killed, LocalGrid, flower_strategy
from ready_app import ReadyApp, assert_same_as_fairfate_run

NODES = (917, 12, 55, 4, 830, 31)


@pytest.fixture
def ready(tmp_path: Path) -> ReadyApp:
    """The ready app with six sites: two of each that it comes with."""
    app = ReadyApp(tmp_path / "six-wards")
    for file in sorted(Path(app.config()["sites"]).glob("*.csv")):
        frame = pd.read_csv(file, dtype=str, keep_default_na=False)
        for number in range(2):
            frame[number::2].to_csv(file.with_name(f"{file.stem}-{number}.csv"), index=False)
        file.unlink()
    return app


def flat(arrays: ArrayRecord) -> np.ndarray:
    layers = {name: array.numpy() for name, array in arrays.items()}
    return Mlp.from_arrays(layers).flat(layers)


def served(
    ready: ReadyApp, strategy: str, who: str, tamper: dict[int, Any] | None = None, **changes: Any
) -> LocalGrid:
    options = {
        "rounds": 4,
        "per_round": 4 if "all" in who else 5,
        "seed": 3,
        "validation_from": who,
        **changes,
    }
    config = ready.config(strategy=strategy, **options)
    grid = ready.grid(config, NODES)
    grid.tamper |= tamper or {}
    ready.serve(grid, config)
    return grid


STRATEGIES = ["fair_fate", "fair_fate:metric=sp", "fedval", "fair_best", "fedavg", "fedavg_gr", "fairfed"]


WHO = [
    "clients",
    "clients:mode=secure",
    "clients:mode=secure,bucket=3,share=0.3",
    "clients:mode=secure,validators=all",
]


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_model_is_the_simulators_to_the_bit_after_every_round(
    ready: ReadyApp, strategy: str, who: str
) -> None:
    assert_same_after_every_round(ready, served(ready, strategy, who))


def assert_same_after_every_round(ready: ReadyApp, grid: LocalGrid) -> list[Any]:
    """What was sent out in four rounds is what the simulator has; returns its notes."""
    sent = {
        message.content["config"]["server-round"]: flat(message.content["arrays"])
        for message in grid.sent
        if message.metadata.message_type == "train"
    }
    run_config = from_mapping(read_config(ready.result() / "config.toml"))
    table = load_table(run_config)
    plan = resolve(run_config, table)
    streams = Streams(3)
    federation = build(table, plan.partition, plan.clients, streams, plan.validation_source)
    clients = Simulation(federation, plan.model(federation.inputs), plan.training, streams)
    server = Server.start(plan.specs[0].build(plan.setup(table)), clients.initial())
    seen, noted = [server.params.astype(np.float32)], []

    def note(done: Round) -> None:
        seen.append(server.params.astype(np.float32))
        noted.append(done.outcomes[0].notes)

    run_rounds(clients, [server], 4, [note])
    for t, model in enumerate(seen[:4], start=1):
        assert np.array_equal(sent[t], model), t
    return noted


@pytest.mark.parametrize(
    ("strategy", "who"),
    [
        ("fair_fate", "clients"),
        ("fair_fate", "clients:mode=secure"),
        ("fair_fate+average+thresholds", "clients"),
        ("fedavg+thresholds:from=clients,metric=sp", "clients:mode=secure"),
        ("fair_fate", "server:rows=60"),
        ("fair_fate:metric=sp+average+thresholds", "clients:validators=all"),
        ("fedavg+average+common_threshold:margin=0", "clients"),
        ("fedavg+average+tilt:margin=0,metric=sp", "clients:mode=secure"),
    ],
)
def test_a_run_leaves_what_fairfate_run_leaves(
    ready: ReadyApp, strategy: str, who: str, tmp_path: Path
) -> None:
    served(ready, strategy, who)
    rounds = assert_same_as_fairfate_run(ready.result(), tmp_path)
    validation = rounds[rounds["split"] == "validation"]
    if who.startswith("clients"):
        assert validation["round"].tolist() == [4]
    if strategy == "fair_fate":
        assert rounds["fair_clients"].sum() > 0
    assert (ready.result() / "report.html").exists()


def test_only_what_is_asked_for_travels(ready: ReadyApp) -> None:
    grid = served(ready, "fair_fate", "clients")
    asked = [m.content for m in grid.sent if m.content["config"].get("ask") == "scores"]
    assert len(asked) == 4 * 5 + 6  # the clients of each round, and all at the end
    assert [len(content.array_records) for content in asked] == [6] * 20 + [1] * 6


def honest(reply: Message) -> list[int]:
    return list(reply.content["counts"]["scores"])


def answered(question: Message, scores: Any) -> Message:
    content = RecordDict({"counts": MetricRecord({"scores": scores})})
    return Message(content, reply_to=question)


def nonsense(change: Callable[[list[int]], Any]) -> Callable[[Message, Message], Message | None]:
    """Changes what a client counts; everything else it says is honest."""

    def tamper(question: Message, reply: Message) -> Message | None:
        if question.content["config"].get("ask") != "scores":
            return reply
        changed = change(honest(reply))
        return None if changed is None else answered(question, changed)

    return tamper


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda scores: None, "no answer in time"),
        (lambda scores: scores[:-1], "'scores' is not"),
        (lambda scores: [-1, *scores[1:]], "'scores' is not whole numbers >= 0"),
        (lambda scores: [float(value) for value in scores], "'scores' is not whole numbers >= 0"),
        (lambda scores: [scores[0] + 1, *scores[1:]], "is not of the same rows for all models"),
        (lambda scores: [2**52 for _ in scores], "over the limit"),
    ],
)
def test_silent_or_malformed_answers_are_excluded_for_all_candidates(
    ready: ReadyApp, change: Callable[[list[int]], Any], said: str, lines: list[str]
) -> None:
    served(ready, "fair_fate", "clients", per_round=6, rounds=1, tamper={NODES[0]: nonsense(change)})
    assert any(
        said in line and ("ignored the answer" in line or said == "no answer in time") for line in lines
    )
    clients = pd.read_parquet(ready.result() / "clients.parquet")
    assert len(clients) == 6
    assert (clients["outcome"] != "dropped").all()  # its update counts


def test_round_without_validators_is_an_average(ready: ReadyApp) -> None:
    silent = dict.fromkeys(NODES, nonsense(lambda scores: [] if len(scores) > 8 else scores))
    served(ready, "fair_fate:lam0=1,max=1,momentum=none", "clients", rounds=2, tamper=silent)
    served(ready, "fedavg", "clients", rounds=2)
    models = [next((ready.result(n) / "models").iterdir()) for n in (1, 2)]
    ours, theirs = (read_model(model)[0] for model in models)
    for name, values in ours.items():
        np.testing.assert_allclose(values, theirs[name], atol=1e-6)


@pytest.mark.parametrize("who", ["clients", "clients:mode=secure"])
def test_run_killed_while_clients_validate_continues(
    ready: ReadyApp, who: str, tmp_path: Path, lines: list[str]
) -> None:
    asked: list[int] = []

    def die(question: Message, reply: Message) -> Message:
        asked.append(1)
        if question.content["config"].get("ask") == "scores" and len(asked) > 30:
            raise Killed
        return reply

    with pytest.raises(Killed):
        served(ready, "fair_fate", who, tamper=dict.fromkeys(NODES, die))
    assert not (ready.result() / "summary.csv").exists()
    served(ready, "fair_fate", who)
    assert any("Continuing after round 2" in line for line in lines)
    assert_same_as_fairfate_run(ready.result(), tmp_path)


def rows_of() -> Validation:
    return Validation(lambda arrays: np.array([0, 1, 0, 1]), label=[0, 1, 0, 1], group=["a", "a", "b", "b"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"validation_from": "clients", "validation": rows_of()}, "validation must be left out"),
        ({"validation_from": "clients"}, "test must be given where clients judge"),
        ({"validation_from": "server:rows=3", "validation": rows_of()}, "must not limit rows on Flower"),
        (
            {"validation_from": "clients", "test": rows_of(), "ask_clients": False},
            "ask_clients must be left out",
        ),
    ],
)
def test_malformed_content_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as error:
        flower_strategy("fair_fate", num_rounds=2, **options)
    assert said in str(error.value)


def test_a_step_at_the_server_is_refused() -> None:
    with pytest.raises(InputError, match="validation-from must be server for server_step"):
        FlowerStrategy("server_step", num_rounds=2, validation_from="clients", test=rows_of())

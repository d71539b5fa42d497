"""The ready app: real ServerApp and ClientApp code in this process, compared with `fairfate run`."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from fairfate import InputError, read_model, read_rounds, run
from fairfate.cli import main as cli
from fairfate.engine.loop import run_rounds
from fairfate.engine.server import Server
from fairfate.engine.simulation import Simulation
from fairfate.experiments.config import from_mapping, read_config
from fairfate.experiments.plan import resolve
from fairfate.experiments.prepare import load_table
from fairfate.fairness.disclosure import round_counts
from fairfate.federation.seeds import Streams
from fairfate.federation.split import build
from fairfate.flower.app.guard import UntrustedAppError, app_checksum, checksum_of, install, unpack
from fairfate.flower.app.init import init
from fairfate.models.mlp import Mlp
from fairfate.strategies import entries
from federation_in_process import Killed, Log
from ready_app import ReadyApp, StudyApp, assert_same_as_fairfate_run


@pytest.fixture
def ready(tmp_path: Path) -> ReadyApp:
    return ReadyApp(tmp_path / "three-wards")


def took_part(ready: ReadyApp) -> set[str]:
    """The sites that were asked to train."""
    clients = pd.read_csv(ready.result() / "clients.csv")
    return set(clients[clients["outcome"] != "refused"]["name"])


def fairfate(*words: str) -> int:
    """The command line in this process; returns the exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["fairfate", *words])
        return cli.run_command()


def flat(arrays: ArrayRecord) -> np.ndarray:
    layers = {name: array.numpy() for name, array in arrays.items()}
    return Mlp.from_arrays(layers).flat(layers)


# -- one truth -------------------------------------------------------------------------------------------


STEPS = ["fedavg+average", "fair_fate+average+thresholds", "fedavg+average+thresholds:from=clients,metric=sp"]
RULES = [
    "fair_fate+average+common_threshold:metric=sp,margin=0",
    "fedavg+average:share=1+tilt:margin=0,tolerance=0.2",
    "fedavg_lr+tilt:metric=sp,bins=8,tolerance=0.5",
    "fedavg+average+tilt:metric=sp,bins=16,tolerance=0.3,margin=0,distil=true",
]
ROBUST = ["fair_fate+clip+trimmed", "fedval+clip:norm=0.1", "fedavg+clip+krum+average", "fair_fate+median"]
GUARDED = ["fair_fate:min_mcc=0.05,keep=0.99,lam0=0.9", "fedval:min_mcc=0.3"]
PEOPLE = [
    "fair_fate:metric=flip,min_mcc=0.05,lam0=0.9",
    "fedval:metric=eo+consistency+flip,sharpness=9+clip:norm=0.1",
]


@pytest.mark.parametrize(
    "strategy",
    ["fair_fate", "fedval", "fedmom", "feddemon", "fedavg", *STEPS, *RULES, *ROBUST, *GUARDED, *PEOPLE],
)
def test_every_strategy_gives_the_model_of_fairfate_run(
    ready: ReadyApp, strategy: str, tmp_path: Path
) -> None:
    config = ready.config(strategy=strategy, rounds=4, per_round=2)
    ready.serve(ready.grid(config), config)
    assert_same_as_fairfate_run(ready.result(), tmp_path)


def test_global_reweighing_broadcasts_weights_and_local_reweighing_nothing(ready: ReadyApp) -> None:
    for strategy in ("fedavg_gr", "fedavg_lr"):
        config = ready.config(strategy=strategy, rounds=3, per_round=2)
        grid = ready.grid(config)
        ready.serve(grid, config)
        trained = [m.content["config"] for m in grid.sent if m.metadata.message_type == "train"]
        asked = [m.content["config"]["wants-rows"] for m in grid.sent if m.metadata.message_type == "query"]
        if strategy == "fedavg_gr":
            assert len({tuple(message["broadcast"]) for message in trained}) > 1
            assert all(asked)
        else:
            assert not any("broadcast" in message for message in trained)
            assert not any(asked)


def test_the_list_of_strategies_is_complete() -> None:
    built_in = {
        entry.name for entry in entries() if str(entry.build.__module__).startswith("fairfate.strategies")
    }
    assert built_in == {text.partition(":")[0] for text in ALL}


ALL = [
    "fair_fate",
    "fair_fate:metric=0.5*sp+0.5*eo",
    "fedval",
    "fedmom",
    "feddemon",
    "fedavg",
    "fedavg_lr",
    "fedavg_gr",
    "fedprox:mu=1",
    "fedadam",
    "fedyogi",
    "qffl",
    "afl:rate=0.1",
    "fedavg_gr:counts=once",
    "fair_best",
    "fair_avg:metric=sp",
    "fair_acc_avg:against=overall,weights=equal",
    "fedfb:metric=sp",
    "fedfb:step=0.05",
    "fairbatch:alpha=0.05",
    "fedgft:gamma=5",
    "fedminmax:rate=0.1",
    "dual_reweighing",
    "server_step",
    "fairfed",
    "fairfed:variant=exp,metric=sp",
    "prejudice:scope=batch",
    "prejudice:scope=client",
    "prejudice:scope=global",
    "ffalm",
    "fairgrad:rate=0.1",
    "fedfact:rate=1",
]


@pytest.mark.parametrize("protocol", ["paper", "published"])
@pytest.mark.parametrize("strategy", ALL)
def test_the_model_is_the_same_to_the_bit_after_every_round(
    ready: ReadyApp, strategy: str, protocol: str
) -> None:
    config = ready.config(strategy=strategy, protocol=protocol, rounds=5, per_round=2, seed=3)
    grid = ready.grid(config)
    ready.serve(grid, config)
    sent: dict[int, np.ndarray] = {}
    for message in grid.sent:
        if message.metadata.message_type == "train":
            sent[message.content["config"]["server-round"]] = flat(message.content["arrays"])

    run_config = from_mapping(read_config(ready.result() / "config.toml"))
    table = load_table(run_config)
    plan = resolve(run_config, table)
    streams = Streams(3, plan.published)
    federation = build(table, plan.partition, plan.clients, streams)
    clients = Simulation(federation, plan.model(federation.inputs), plan.training, streams)
    server = Server.start(plan.specs[0].build(plan.setup(table)), clients.initial())
    seen = [server.params.astype(np.float32)]
    run_rounds(clients, [server], 5, [lambda done: seen.append(server.params.astype(np.float32))])
    assert len(sent) == 5
    for t, model in enumerate(seen[:5], start=1):
        assert np.array_equal(sent[t], model), t


@pytest.mark.parametrize(
    ("strategy", "metric"),
    [
        ("fair_fate", "worst(eo@sex, eo@field)"),
        ("fairfed", "eo@sex*field[shrink=20]"),
        ("fedavg+average+thresholds:from=clients", "eqo@sex"),
    ],
)
def test_several_sensitive_columns_travel_as_well(
    ready: ReadyApp, strategy: str, metric: str, tmp_path: Path
) -> None:
    config = ready.config(strategy=strategy, metric=metric, sensitive="sex,field", rounds=3)
    ready.serve(ready.grid(config), config)
    clients = assert_same_as_fairfate_run(ready.result(), tmp_path)
    assert len(clients)
    schema = json.loads((ready.result() / "schema.json").read_text())
    assert schema["sensitive"]["columns"] == ["sex", "field"], schema["sensitive"]


@pytest.mark.parametrize("strategy", ["fedavg", "fedprox", "fedavg+average+thresholds"])
def test_l2_travels_as_well(ready: ReadyApp, strategy: str, tmp_path: Path) -> None:
    config = ready.config(strategy=strategy, rounds=3, l2=0.1)
    ready.serve(ready.grid(config), config)
    assert_same_as_fairfate_run(ready.result(), tmp_path)
    assert read_config(ready.result() / "config.toml")["l2"] == 0.1


@pytest.mark.parametrize("hidden", ["0", "8,4"])
def test_other_models_travel_as_well(ready: ReadyApp, hidden: str, tmp_path: Path) -> None:
    config = ready.config(strategy="fairfed", rounds=3, hidden=hidden)
    ready.serve(ready.grid(config), config)
    assert_same_as_fairfate_run(ready.result(), tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("local-counts", [1, 2], "'local-counts' is not 8 numbers >= 0"),
        ("local-counts", [10**9] * 8, "'local-counts' are not its"),
        ("local-loss", [float("nan")] * 4, "'local-loss' is not 4 numbers >= 0"),
        ("local-probability", [1e9] * 4, "'local-probability' is more than its rows"),
    ],
)
def test_a_report_that_makes_no_sense_is_dropped(ready: ReadyApp, name: str, value: list, said: str) -> None:
    def lie(message: Message, honest: Message) -> Message:
        if message.metadata.message_type == "train":
            honest.content["metrics"][name] = value
        return honest

    config = ready.config(strategy="fairfed", rounds=1)
    grid = ready.grid(config)
    grid.tamper[12] = lie
    ready.serve(grid, config)
    clients = pd.read_csv(ready.result() / "clients.csv").set_index("name")
    assert said in clients.loc["south", "reason"]
    assert "dropped" not in set(clients.loc[["north", "west"], "outcome"])


def test_half_of_the_validation_rows_test_where_there_is_not_a_test_file(
    ready: ReadyApp, tmp_path: Path
) -> None:
    config = ready.config(test="", rounds=2)
    ready.serve(ready.grid(config), config)
    assert_same_as_fairfate_run(ready.result(), tmp_path)


# -- what is left behind ---------------------------------------------------------------------------------


def test_a_run_leaves_what_fairfate_run_leaves(ready: ReadyApp, lines: list[str], capsys) -> None:
    config = ready.config(rounds=2)
    ready.serve(ready.grid(config), config)
    names = sorted(path.name for path in ready.result().iterdir())
    left = ["clients.csv", "clients.parquet", "config.toml", "groups.csv", "models", "rounds.parquet"]
    made = ["report-audit.csv", "report-tests.csv", "report.html", "report.json", "scores.parquet"]
    assert names == sorted([*left, *made, "schema.json", "summary.csv"])
    clients = pd.read_csv(ready.result() / "clients.csv")
    assert clients[["round", "name"]].values.tolist() == [
        [t, name] for t in (1, 2) for name in ("north", "south", "west")
    ]
    rows = {
        name: len(pd.read_csv(ready.folder / "data" / "sites" / f"{name}.csv")) for name in clients["name"]
    }
    assert clients["examples"].tolist() == [rows[name] for name in clients["name"]]
    for command in ("show", "plot"):
        assert fairfate(command, str(ready.result())) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "three-wards, split column:(file): test rows, round 2, one seed" in shown
    ready.serve(ready.grid(config), config)
    assert ready.result(2).exists()


def test_nodes_have_numbers_as_large_as_flower_gives_them(ready: ReadyApp) -> None:
    config = ready.config(rounds=1)
    ready.serve(ready.grid(config, nodes=(2**64 - 3, 12, 55)), config)
    clients = pd.read_parquet(ready.result() / "clients.parquet")
    assert set(clients["outcome"]) <= {"fair", "used"}


def test_a_replay_with_other_sites_says_so(ready: ReadyApp, tmp_path: Path, capsys) -> None:
    spoil(ready, "south", experience="much")
    config = ready.config(rounds=1)
    ready.serve(ready.grid(config), config)
    (ready.folder / "data" / "sites" / "south.csv").rename(tmp_path / "south.csv")
    replay = ("run", "--config", str(ready.result() / "config.toml"), "--jobs", "1", "--out")
    assert fairfate(*replay, str(tmp_path / "a")) == 0
    assert "Note" not in capsys.readouterr().err
    (ready.folder / "data" / "sites" / "west.csv").rename(ready.folder / "data" / "sites" / "east.csv")
    assert fairfate(*replay, str(tmp_path / "b")) == 0
    assert "is of a run by north, west, and these are east, north" in capsys.readouterr().err


def test_the_sites_own_settings_are_not_packed_into_the_app(ready: ReadyApp, tmp_path: Path) -> None:
    command = [str(Path(sys.executable).parent / "flwr"), "build", "--app", str(ready.folder)]
    quiet = {"FLWR_HOME": str(tmp_path), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (fab,) = tmp_path.glob("*.fab")
    names = zipfile.ZipFile(fab).namelist()
    assert "three_wards/client_app.py" in names
    assert not [name for name in names if name.startswith(("sites/", "data/"))]


def test_runs_can_be_shown_side_by_side(ready: ReadyApp, capsys) -> None:
    for strategy in ("fedavg", "fair_fate"):
        config = ready.config(rounds=2, strategy=strategy)
        ready.serve(ready.grid(config), config)
    one, two = str(ready.result(1)), str(ready.result(2))
    assert fairfate("show", one, two) == 0
    shown = capsys.readouterr().out
    assert shown.count("three-wards, split column:(file)") == 1
    assert "fedavg" in shown
    assert "fair_fate" in shown
    config = ready.config(rounds=2, strategy="fedavg", seed=2)
    ready.serve(ready.grid(config), config)
    assert fairfate("show", one, str(ready.result(3))) == 0
    assert "mean ± std over 2 seeds" in capsys.readouterr().out
    config = ready.config(rounds=2, strategy="fedavg")
    ready.serve(ready.grid(config), config)
    assert fairfate("show", one, str(ready.result(4))) == 0
    again = capsys.readouterr().out
    assert "fedavg [three-wards-1]" in again
    assert "fedavg [three-wards-4]" in again
    assert "Recommended: " in again
    config = ready.config(rounds=1)
    ready.serve(ready.grid(config), config)
    assert fairfate("show", one, str(ready.result(5))) == 2
    assert "runs must have the same number of rounds, got 2 in" in capsys.readouterr().err


# -- faults ----------------------------------------------------------------------------------------------


def broken(values: dict[str, np.ndarray], examples: object = 100):
    def tamper(message: Message, honest: Message) -> Message:
        if message.metadata.message_type != "train":
            return honest
        arrays = {name: array.numpy() for name, array in honest.content["arrays"].items()}
        sent = ArrayRecord({name: Array(array) for name, array in {**arrays, **values}.items()})
        metrics = MetricRecord({"num-examples": examples})
        return Message(RecordDict({"arrays": sent, "metrics": metrics}), reply_to=message)

    return tamper


def trailing(message: Message, honest: Message) -> Message:
    """The right array, and a megabyte behind it."""
    if message.metadata.message_type != "train":
        return honest
    arrays = honest.content["arrays"]
    array = arrays["b2"]
    long = Array(array.dtype, array.shape, array.stype, array.data + bytes(10**6))
    sent = ArrayRecord({**arrays, "b2": long})
    metrics = MetricRecord({"num-examples": 10})
    return Message(RecordDict({"arrays": sent, "metrics": metrics}), reply_to=message)


def failing(message: Message, honest: Message) -> Message:
    return (
        honest
        if message.metadata.message_type != "train"
        else Message(Error(2, "out of memory"), reply_to=message)
    )


@pytest.mark.parametrize(
    ("tamper", "reason"),
    [
        (failing, "error 2: out of memory"),
        (broken({"b2": np.float32([np.nan])}), "NaN or infinity"),
        (broken({"b2": np.float32([np.inf])}), "NaN or infinity"),
        (broken({"b2": np.ones((2, 2), dtype=np.float32)}), "has shape (2, 2)"),
        (broken({"b2": np.ones(1)}), "has type float64"),
        (broken({"extra": np.ones(1)}), "unknown arrays: extra"),
        (broken({"b2": np.float32([1e20])}), "over the limit of 100"),
        (trailing, "array 'b2' has 1000004 bytes instead of 4"),
        (broken({}, examples=0), "'num-examples' is 0"),
        (lambda m, h: h if m.metadata.message_type != "train" else None, "no reply within 300 s"),
        (
            lambda m, h: h if m.metadata.message_type != "train" else Message(RecordDict(), reply_to=m),
            "0 ArrayRecords and 0 MetricRecords",
        ),
    ],
)
def test_the_run_ends_well_whatever_a_client_sends(ready: ReadyApp, tamper, reason: str, lines) -> None:
    config = ready.config(rounds=3, max_norm=100.0)
    grid = ready.grid(config)
    grid.tamper[12] = tamper
    ready.serve(grid, config)
    clients = pd.read_csv(ready.result() / "clients.csv")
    south = clients[clients["name"] == "south"]
    assert (south["outcome"] == "dropped").all()
    assert all(reason in said for said in south["reason"])
    assert (clients[clients["name"] != "south"]["outcome"] != "dropped").all()
    assert any("south: dropped 3 times" in line for line in lines)
    assert len(pd.read_parquet(ready.result() / "rounds.parquet")) == 6


def test_without_a_limit_an_update_far_over_the_others_is_dropped(ready: ReadyApp) -> None:
    config = ready.config(rounds=2)
    grid = ready.grid(config)
    grid.tamper[12] = broken({"b2": np.float32([1e20])})
    ready.serve(grid, config)
    clients = pd.read_csv(ready.result() / "clients.csv").set_index("name")
    assert set(clients.loc["south", "outcome"]) == {"dropped"}
    assert set(clients.loc["south", "reason"]) == {
        "an update of norm 1e+20, far above the others of the round"
    }
    assert "dropped" not in set(clients.loc[["north", "west"], "outcome"])


def test_a_client_that_lies_about_its_rows_is_cut(ready: ReadyApp) -> None:
    config = ready.config(rounds=1, strategy="fedavg", max_examples=500.0)
    grid = ready.grid(config)
    grid.tamper[55] = broken({}, examples=10**9)
    ready.serve(grid, config)
    clients = pd.read_csv(ready.result() / "clients.csv").set_index("name")
    assert clients["examples"].to_dict() == {"north": 500, "south": 496, "west": 500}
    assert clients.loc["west", "reason"] == "example count cut to the limit"


def test_a_killed_run_continues_to_the_same_result(ready: ReadyApp, tmp_path: Path, lines: list[str]) -> None:
    config = ready.config(rounds=5, per_round=2)
    grid = ready.grid(config)

    def die(message: Message, honest: Message) -> Message:
        if message.content["config"].get("server-round") == 4:
            raise Killed
        return honest

    for node in grid.contexts:
        grid.tamper[node] = die
    with pytest.raises(Killed):
        ready.serve(grid, config)
    assert not (ready.result() / "summary.csv").exists()
    again = ready.grid(config)
    ready.serve(again, config)
    rounds = {m.content["config"].get("server-round") for m in again.sent}
    assert rounds == {None, 4, 5}
    assert any("Continuing after round 3" in line for line in lines)
    assert_same_as_fairfate_run(ready.result(), tmp_path)
    assert not ready.result(2).exists()


def test_a_run_killed_while_it_learns_to_guess_groups_continues(
    ready: ReadyApp, tmp_path: Path, lines: list[str]
) -> None:
    config = ready.config(rounds=3, strategy="fedavg+average+tilt:margin=0")
    grid = ready.grid(config)

    def die(message: Message, honest: Message) -> Message:
        config = message.content["config"]
        if config.get("target") == "group" and config["server-round"] == 3:
            raise Killed
        return honest

    for node in grid.contexts:
        grid.tamper[node] = die
    with pytest.raises(Killed):
        ready.serve(grid, config)
    again = ready.grid(config)
    ready.serve(again, config)
    trained = [m.content["config"] for m in again.sent if m.metadata.message_type == "train"]
    assert {(c.get("target"), c["server-round"]) for c in trained} == {("group", 3)}
    assert_same_as_fairfate_run(ready.result(), tmp_path)
    assert not list(ready.result().glob("checkpoint*"))


def test_a_run_killed_while_it_learns_a_rule_continues(ready: ReadyApp, tmp_path: Path) -> None:
    config = ready.config(rounds=3, strategy="fedavg+average+tilt:margin=0,tolerance=0.5,keep=0,distil=true")
    grid = ready.grid(config)

    def die(message: Message, honest: Message) -> Message:
        config = message.content["config"]
        if config.get("target") == "decision" and config["server-round"] == 3:
            raise Killed
        return honest

    for node in grid.contexts:
        grid.tamper[node] = die
    with pytest.raises(Killed):
        ready.serve(grid, config)
    again = ready.grid(config)
    ready.serve(again, config)
    trained = [m.content["config"] for m in again.sent if m.metadata.message_type == "train"]
    assert {(c.get("target"), c["server-round"]) for c in trained} == {("decision", 3)}
    assert_same_as_fairfate_run(ready.result(), tmp_path)
    assert not list(ready.result().glob("checkpoint*"))


@pytest.mark.parametrize("sensitive", ["field", "sex,field"])
@pytest.mark.parametrize("more", ["metric=sp", "metric=eqo,bins=16", "metric=eo,keep=0,distil=true"])
def test_prices_on_several_groups_are_those_of_fairfate_run(
    ready: ReadyApp, tmp_path: Path, sensitive: str, more: str
) -> None:
    """One model for each group but the first, and as many questions as the search of a simulation has."""
    config = ready.config(
        strategy=f"fedavg+average+tilt:margin=0,tolerance=0.3,{more}", sensitive=sensitive, rounds=2
    )
    grid = ready.grid(config)
    ready.serve(grid, config)
    assert_same_as_fairfate_run(ready.result(), tmp_path)
    configs = [m.content["config"] for m in grid.sent]
    guessed = {c["guessed"] for c in configs if c.get("target") == "group"}
    assert guessed == set(range(1, 4 if sensitive == "field" else len(guessed) + 1))
    assert len({c["server-round"] for c in configs if "prices" in c}) > 5
    assert not list(ready.result().glob("checkpoint*"))


def test_a_gap_in_the_numbers_hides_no_run_and_a_second_reply_is_not_a_site(
    ready: ReadyApp, tmp_path: Path
) -> None:
    config = ready.config(rounds=2)
    ready.serve(ready.grid(config), config)
    grid = ready.grid(config)
    grid.tamper[12] = lambda m, h: kill_in_round(2, m, h)
    with pytest.raises(Killed):
        ready.serve(grid, config)
    shutil.rmtree(ready.result(1))
    grid = ready.grid(config)
    honest = grid.pull_messages
    grid.pull_messages = lambda ids: [m for m in honest(ids) for _ in range(2)]  # type: ignore[method-assign]
    ready.serve(grid, config)
    assert (ready.result(2) / "summary.csv").exists()
    assert not ready.result(1).exists()
    assert read_config(ready.result(2) / "config.toml")["per-round"] == 3
    assert_same_as_fairfate_run(ready.result(2), tmp_path)


def test_an_interrupted_run_is_found_again_behind_others(ready: ReadyApp, tmp_path: Path) -> None:
    config = ready.config(rounds=3)
    grid = ready.grid(config)
    grid.tamper[12] = lambda m, h: kill_in_round(2, m, h)
    with pytest.raises(Killed):
        ready.serve(grid, config)
    (ready.result() / ".checkpoint.safetensors.half.unfinished").write_text("killed while writing")
    other = ready.config(rounds=1)
    ready.serve(ready.grid(other), other)
    again = ready.config(rounds=3, min_sites=3)  # has nothing to do with the numbers
    grid = ready.grid(again)
    ready.serve(grid, again)
    assert {m.content["config"].get("server-round") for m in grid.sent} == {None, 2, 3}
    assert (ready.result(1) / "summary.csv").exists()
    assert not ready.result(3).exists()
    assert not list(ready.result(1).glob(".*"))
    assert_same_as_fairfate_run(ready.result(1), tmp_path)


def kill_in_round(t: int, message: Message, honest: Message) -> Message:
    if message.content["config"].get("server-round") == t:
        raise Killed
    return honest


def test_other_settings_do_not_resume_an_interrupted_run(ready: ReadyApp) -> None:
    config = ready.config(rounds=3)
    grid = ready.grid(config)
    grid.tamper[12] = lambda m, h: (_ for _ in ()).throw(Killed)
    with pytest.raises(Killed):
        ready.serve(grid, config)
    other = ready.config(rounds=3, max_norm=9.0)
    ready.serve(ready.grid(other), other)
    assert (ready.result(2) / "summary.csv").exists()
    assert not (ready.result(1) / "summary.csv").exists()


def test_an_interrupted_run_is_not_resumed_when_the_servers_file_has_changed(ready: ReadyApp) -> None:
    config = ready.config(rounds=3)
    grid = ready.grid(config)
    grid.tamper[12] = lambda m, h: (_ for _ in ()).throw(Killed)
    with pytest.raises(Killed):
        ready.serve(grid, config)
    file = ready.folder / "data" / "validation.csv"
    pd.read_csv(file).iloc[1:].to_csv(file, index=False)
    ready.serve(ready.grid(config), config)
    assert (ready.result(2) / "summary.csv").exists()


def test_two_runs_never_share_a_folder(ready: ReadyApp, monkeypatch: pytest.MonkeyPatch) -> None:
    from fairfate.flower.app import folder
    from fairfate.flower.app.settings import Settings

    monkeypatch.setattr(folder, "WAIT_FOR_LOCK", 0.2)
    settings = Settings.read(ready.config(rounds=1))
    with (
        folder.open_run(settings),
        pytest.raises(InputError, match="a folder that no other run is using"),
        folder.open_run(settings),
    ):
        pass


# -- one encoding ----------------------------------------------------------------------------------------


def spoil(ready: ReadyApp, site: str, **columns: object) -> None:
    file = ready.folder / "data" / "sites" / f"{site}.csv"
    pd.read_csv(file).assign(**columns).to_csv(file, index=False)


def test_a_site_that_does_not_fit_says_why_and_is_excluded(
    ready: ReadyApp, lines: list[str], flower_log: Log
) -> None:
    spoil(ready, "south", experience="astrology")
    config = ready.config(rounds=2)
    ready.serve(ready.grid(config), config)
    said = [line for line in lines if "is excluded" in line]
    assert said == ["south (node 12) is excluded: column 'experience' must hold numbers, got text"]
    assert any("astrology" in line for line in flower_log.sites)
    assert not any("astrology" in line for line in lines)
    assert took_part(ready) == {"north", "west"}


def test_a_text_that_the_schema_does_not_know_is_one_of_the_others(ready: ReadyApp, tmp_path: Path) -> None:
    spoil(ready, "south", field="astrology")
    config = ready.config(rounds=2)
    ready.serve(ready.grid(config), config)
    assert took_part(ready) == {"north", "south", "west"}
    assert "astrology" not in (ready.result() / "schema.json").read_text()
    assert_same_as_fairfate_run(ready.result(), tmp_path)


def test_the_papers_encoding_travels_as_well(ready: ReadyApp, tmp_path: Path) -> None:
    config = ready.config(rounds=2, encode="ordinal")
    ready.serve(ready.grid(config), config)
    inputs = json.loads((ready.result() / "schema.json").read_text())["inputs"]
    assert set(inputs["commute"]) == {"low", "span", "median"}
    assert_same_as_fairfate_run(ready.result(), tmp_path)


def test_too_few_that_fit_end_the_run_and_say_why(ready: ReadyApp) -> None:
    for site in ("south", "west"):
        spoil(ready, site, experience="much")
    config = ready.config(rounds=2, max_wait=0.2)
    with pytest.raises(InputError, match=r"of 2 clients came within 0.2 s.*south is excluded: column 'exp"):
        ready.serve(ready.grid(config), config)


def test_a_file_that_breaks_during_the_run_is_dropped_without_showing_its_values(
    ready: ReadyApp, lines: list[str]
) -> None:
    config = ready.config(rounds=2)
    grid = ready.grid(config)

    def spoilt(message: Message, honest: Message) -> Message:
        if message.metadata.message_type == "query":
            spoil(ready, "south", sex="secret")
        return honest

    grid.tamper[12] = spoilt
    ready.serve(grid, config)
    clients = pd.read_csv(ready.result() / "clients.csv")
    reasons = clients[clients["name"] == "south"]["reason"]
    assert all("column 'sex' must hold only the schema's 2 values" in reason for reason in reasons)
    assert not any("secret" in reason for reason in reasons)


def test_a_query_round_makes_a_schema_that_covers_all_sites(ready: ReadyApp, tmp_path: Path) -> None:
    spoil(ready, "south", field="astrology", commute=90.0)
    config = ready.config(rounds=2, schema="sites")
    grid = ready.grid(config)
    ready.serve(grid, config)
    schema = json.loads((ready.result() / "schema.json").read_text())
    assert "astrology" in schema["inputs"]["field"]["categories"]
    folder = ready.folder / "data" / "sites"
    rows = pd.concat([pd.read_csv(file) for file in sorted(folder.glob("*.csv"))])["commute"]
    commute = schema["inputs"]["commute"]
    assert commute["mean"] == pytest.approx(rows.mean())
    assert commute["deviation"] == pytest.approx(rows.std(ddof=0))
    assert took_part(ready) == {"north", "south", "west"}
    assert_same_as_fairfate_run(ready.result(), tmp_path)


def test_a_query_round_never_adds_a_group_and_shows_no_label(ready: ReadyApp, lines: list[str]) -> None:
    """A mistyped group would leave fairness undefined for all; labels may be anything at a site."""
    file = ready.folder / "data" / "sites" / "south.csv"
    rows = pd.read_csv(file)
    rows.loc[0, "sex"] = "femle"
    rows["hired"] = [f"patient {number}" for number in range(len(rows))]
    rows.to_csv(file, index=False)
    config = ready.config(rounds=2, schema="sites")
    ready.serve(ready.grid(config), config)
    schema = json.loads((ready.result() / "schema.json").read_text())
    assert schema["sensitive"]["groups"] == ["female", "male"]
    assert not any("patient" in line or "femle" in line for line in lines)
    assert any("south (node 12) is excluded: column 'sex' must hold only" in line for line in lines)
    assert pd.read_parquet(ready.result() / "rounds.parquet")["eqo"].notna().all()


def test_a_query_round_may_cover_the_test_file(ready: ReadyApp) -> None:
    file = ready.folder / "data" / "test.csv"
    rows = pd.read_csv(file)
    rows.loc[0, "field"] = "astrology"
    rows.to_csv(file, index=False)
    spoil(ready, "south", field="astrology")
    config = ready.config(rounds=1, schema="sites")
    ready.serve(ready.grid(config), config)
    assert (ready.result() / "summary.csv").exists()


def test_a_site_whose_program_fails_shows_nothing_of_its_rows(
    ready: ReadyApp, lines: list[str], flower_log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fairfate.flower.app import site

    works = site.training_of

    def fail(config: dict) -> object:
        if config["client"] == 1:
            raise ValueError("the value 'secret' of row 7")
        return works(config)

    config = ready.config(rounds=1)
    monkeypatch.setattr(site, "training_of", fail)
    ready.serve(ready.grid(config), config)
    clients = pd.read_csv(ready.result() / "clients.csv")
    assert clients["reason"].str.contains("the site's program failed; its own log says why").any()
    assert not any("secret" in line for line in [*lines, *clients["reason"].fillna("")])


def test_file_names_are_sorted_without_their_ending(ready: ReadyApp, tmp_path: Path) -> None:
    """'north-east.csv' comes before 'north.csv', and 'north-east' after 'north'."""
    sites = ready.folder / "data" / "sites"
    (sites / "south.csv").rename(sites / "north-east.csv")
    config = ready.config(rounds=2, per_round=2)
    ready.serve(ready.grid(config), config)
    assert_same_as_fairfate_run(ready.result(), tmp_path)


@pytest.mark.parametrize(
    "answer",
    [
        lambda m: Message(Error(2, "boom"), reply_to=m),
        lambda m: Message(RecordDict(), reply_to=m),
        lambda m: Message(RecordDict({"client": ConfigRecord({"name": "x"})}), reply_to=m),
        lambda m: Message(RecordDict({"client": ConfigRecord({"describe": "no json"})}), reply_to=m),
        lambda m: Message(RecordDict({"client": ConfigRecord({"describe": "[1, 2]"})}), reply_to=m),
        lambda m: Message(RecordDict({"client": ConfigRecord({"describe": "[" * 100_000})}), reply_to=m),
        lambda m: Message(RecordDict({"client": ConfigRecord({"describe": " " * 2_000_000})}), reply_to=m),
        lambda m: Message(
            RecordDict({"client": ConfigRecord({"describe": '{"commute": [1, NaN]}'})}),
            reply_to=m,
        ),
        lambda m: Message(
            RecordDict({"client": ConfigRecord({"describe": f'{{"commute": [0, {10**400}]}}'})}), reply_to=m
        ),
        lambda m: Message(
            RecordDict({"client": ConfigRecord({"describe": '{"commute": [-1e29, 1e29]}'})}), reply_to=m
        ),
        lambda m: Message(
            RecordDict({"client": ConfigRecord({"describe": '{"field": ["\\ud800"]}'})}), reply_to=m
        ),
        lambda m: None,
    ],
)
def test_site_with_a_malformed_description_is_excluded_from_the_schema(
    ready: ReadyApp, answer, lines: list[str]
) -> None:
    config = ready.config(rounds=1, schema="sites")
    grid = ready.grid(config)
    grid.tamper[12] = lambda m, h: answer(m) if m.content["config"].get("ask") == "describe" else h
    ready.serve(grid, config)
    assert any("The schema covers the columns of 2 sites" in line for line in lines)
    assert len(pd.read_csv(ready.result() / "clients.csv")) >= 2


def test_a_schema_file_can_be_given(ready: ReadyApp, tmp_path: Path) -> None:
    config = ready.config(rounds=1)
    ready.serve(ready.grid(config), config)
    again = ready.config(rounds=1, schema=str(ready.result() / "schema.json"))
    ready.serve(ready.grid(again), again)
    assert_same_as_fairfate_run(ready.result(2), tmp_path)
    models = [next((ready.result(n) / "models").iterdir()).read_bytes() for n in (1, 2)]
    assert models[0] == models[1]


def test_a_site_may_name_its_file_and_columns_its_own_way(tmp_path: Path) -> None:
    ready = StudyApp(tmp_path / "wards", {"rounds": 2})
    own = pd.read_csv(ready.folder / "data" / "sites" / "south.csv")
    own.rename(columns={"hired": "taken", "sex": "gender", "commute": "way"}).to_csv(
        tmp_path / "own.csv", index=False
    )
    config = ready.config()
    grid = ready.grid(config)
    grid.contexts[12].node_config.update(
        {"data": str(tmp_path / "own.csv"), "name": "south", "target": "taken", "sensitive": "gender"}
    )
    grid.contexts[12].node_config["rename"] = "way=commute"
    ready.serve(grid, config)
    assert_same_as_fairfate_run(ready.result(), tmp_path)


@pytest.mark.parametrize(
    ("node_config", "said"),
    [
        ({"data": ""}, "west (node 55) is excluded: node-config must name the site's file"),
        ({"data": "/nowhere.csv"}, "west (node 55) is excluded: the site's program failed"),
        ({"partition-id": 0, "colour": "blue"}, "node-config must hold known keys only, got 1 other"),
        ({"renam": "a=b"}, "node-config must hold known keys only, got 1 other"),
        ({"target": "wage"}, "node-config must name a column of the site's file for 'hired'"),
        ({"rename": "wage"}, "rename must be like"),
        ({"sensitive": "field"}, "node-config must rename to a name that is free in the file, got 'sex'"),
        ({"study": ""}, "node 55 did not give its name"),
    ],
)
def test_a_site_with_wrong_settings_says_so(
    tmp_path: Path, node_config: dict, said: str, lines: list[str]
) -> None:
    ready = StudyApp(tmp_path / "wards", {"rounds": 1})
    config = ready.config()
    grid = ready.grid(config)
    grid.contexts[55].node_config.update(node_config)
    ready.serve(grid, config)
    assert any(said in line for line in lines)
    assert took_part(ready) == {"north", "south"}


def test_a_simulation_with_fewer_nodes_than_files_says_so(ready: ReadyApp, lines: list[str]) -> None:
    config = ready.config(rounds=1)
    ready.serve(ready.grid(config, nodes=(917, 12)), config)
    assert any("2 of the 3 files in 'sites' are simulated; num-supernodes=3 takes all" in x for x in lines)


# -- settings --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ronds": 3}, "unknown key in the run config 'ronds'; did you mean 'rounds'"),
        ({"rounds": "three"}, "rounds must be a whole number, got 'three'"),
        ({"rounds": True}, "rounds must be a whole number, got True"),
        ({"learning_rate": -1.0}, "learning-rate must be > 0"),
        ({"l2": -1.0}, "l2 must be in"),
        ({"early_stopping": 3}, "early-stopping must be left out on Flower, got 3"),
        ({"metric": "auc"}, "unknown name in metric 'auc'"),
        ({"strategy": "fairfate"}, "unknown strategy 'fairfate'; did you mean 'fair_fate'"),
        ({"protocol": "x"}, "protocol must be one of"),
        ({"min_sites": 0}, "min-sites must be >= 1, got 0"),
        ({"name": "a[1]"}, "name must be up to 64 letters, digits, dots, hyphens and underscores"),
        ({"name": "../up"}, "name must be up to 64 letters"),
        ({"name": ".."}, "name must be up to 64 letters"),
        ({"name": "a/b"}, "name must be up to 64 letters"),
        ({"max_norm": -1.0}, "max-norm must be >= 0, got -1"),
        ({"timeout": 0.0}, "timeout must be > 0"),
        ({"validation": ""}, "validation must be given in the run config, got none"),
        ({"validation": "/nowhere.csv"}, "validation must be a file, got '/nowhere.csv'"),
        ({"validation": "data/validation.csv"}, "validation must be a full path"),
        ({"out": "runs"}, "out must be a full path"),
        ({"target": "wage"}, "unknown column for target 'wage'"),
        ({"favourable": "fired"}, "favourable must be a value of column 'hired'"),
        ({"metric": "flip"}, "metric must be made of sp, eo, eqo"),
        ({"strategy": "fedval:metric=flip,min_mcc=0"}, "min_mcc must be > 0 for metric 'flip'"),
        (
            {"strategy": "fedval:metric=flip", "validation_from": "clients"},
            "validation-from must be server for metric 'flip'",
        ),
        (
            {"strategy": "fedval:metric=flip", "sensitive": "sex,field"},
            "flip must be of one sensitive column, got sex, field",
        ),
        ({"schema": "/nowhere.json"}, "schema must be a JSON file, got '/nowhere.json'"),
    ],
)
def test_bad_settings_end_the_run_before_any_message(ready: ReadyApp, changes: dict, said: str) -> None:
    config = ready.config(**changes)
    grid = ready.grid(config)
    with pytest.raises(InputError, match=said):
        ready.serve(grid, config)
    assert grid.sent == []
    assert not ready.result().exists()


@pytest.mark.parametrize("name", ["My-Fed", "2fed", "class", "data", "my_fed", "x" * 33])
def test_a_name_that_flower_or_python_cannot_use_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"small letters, digits and hyphens.*got '{name}'"):
        init(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_over(ready: ReadyApp) -> None:
    before = {path: path.read_bytes() for path in ready.folder.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="must be new or empty"):
        init(ready.folder)
    assert {path: path.read_bytes() for path in ready.folder.rglob("*") if path.is_file()} == before
    assert [path.name for path in ready.folder.parent.iterdir()] == [ready.folder.name]


def test_the_same_bytes_are_written_every_time(tmp_path: Path) -> None:
    one, two = init(tmp_path / "x" / "fed"), init(tmp_path / "y" / "fed")
    for file in sorted(path.relative_to(one) for path in one.rglob("*") if path.is_file()):
        text = (one / file).read_text().replace(str(tmp_path / "x"), str(tmp_path / "y"))
        assert text == (two / file).read_text()
        assert "{{" not in text


# -- apps that a site trusts -----------------------------------------------------------------------------


def packed(app: Path, tmp_path: Path) -> bytes:
    """An app as Flower packs it."""
    subprocess.run(
        [str(Path(sys.executable).parent / "flwr"), "build", "--app", str(app)],
        cwd=tmp_path,
        env={**os.environ, "FLWR_HOME": str(tmp_path), "FLWR_DISABLE_UPDATE_CHECK": "1"},
        capture_output=True,
        check=True,
    )
    (fab,) = tmp_path.glob("*.fab")
    return fab.read_bytes()


def test_an_apps_checksum_is_that_of_what_flower_sends_and_of_nothing_else(
    ready: ReadyApp, tmp_path: Path
) -> None:
    before = app_checksum(ready.folder)
    assert before == checksum_of(unpack(packed(ready.folder, tmp_path)))
    for name in ("schema.json", "study.toml", "notes.md", "runs/x/summary.json", "data/more.json"):
        (ready.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (ready.folder / name).write_text("{}")
    assert app_checksum(ready.folder) == before
    (ready.folder / ready.package / "net.py").write_text("")
    assert app_checksum(ready.folder) != before
    with pytest.raises(InputError, match="app must be the folder of a Flower app"):
        app_checksum(tmp_path)


def test_only_the_complete_app_of_the_study_is_unpacked(
    ready: ReadyApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, apps = packed(ready.folder, tmp_path), tmp_path / "apps"
    apps.mkdir()
    checksum = app_checksum(ready.folder)
    with pytest.raises(UntrustedAppError, match="this site does not run the app with the checksum"):
        install(content, "0" * 64, apps)
    assert not list(apps.iterdir())
    folder = install(content, checksum, apps)
    assert folder == apps / checksum
    client = folder / ready.package / "client_app.py"
    text = client.read_text()
    for spoil in (lambda: client.write_text("import evil"), client.unlink, (folder / "evil.py").touch):
        spoil()
        assert install(content, checksum, apps) == folder
        assert client.read_text() == text
        assert not (folder / "evil.py").exists()
    shutil.rmtree(folder)
    monkeypatch.setattr(Path, "write_bytes", lambda *_: (_ for _ in ()).throw(OSError(28, "no room")))
    with pytest.raises(OSError, match="no room"):
        install(content, checksum, apps)
    assert not list(apps.iterdir())


@pytest.mark.parametrize("name", ["../evil.py", "/evil.py", "a/../../evil.py", "a\\evil.py", "./evil.py"])
def test_names_in_an_app_that_lead_elsewhere_are_refused(name: str) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr(name, "x")
    with pytest.raises(UntrustedAppError, match="file names that point outside its folder"):
        unpack(content.getvalue())
    with pytest.raises(UntrustedAppError, match="cannot be unpacked"):
        unpack(b"no zip")


@pytest.mark.parametrize(
    "strategy",
    ["fair_fate", "fedavg+average+thresholds:from=clients", *RULES],
)
def test_model_of_a_federation_decides_the_same_at_all_sites(ready: ReadyApp, strategy: str) -> None:
    """As it was measured, from its file, and as ONNX."""
    onnxruntime = pytest.importorskip("onnxruntime")
    from fairfate import FairModel
    from fairfate.export import onnx_inputs, to_onnx

    config = ready.config(rounds=3, strategy=strategy)
    ready.serve(ready.grid(config), config)
    (file,) = (ready.result() / "models").iterdir()
    model, rows = FairModel.load(file), pd.read_csv(ready.folder / "data" / "test.csv")
    counts, scored = model.evaluate(rows)
    assert round_counts(counts, 10).tolist() == model.about["test"]
    session = onnxruntime.InferenceSession(to_onnx(model).SerializeToString())
    probability, prediction = session.run(None, onnx_inputs(model, rows))
    assert np.allclose(probability, scored.probability, atol=1e-9)
    assert (prediction == np.array(model.labels, dtype=object)[scored.decision]).all()


NET = """
from torch import nn


def build(inputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 6), nn.Tanh(), nn.Linear(6, 1))
"""


@pytest.mark.parametrize(
    "strategy", ["fair_fate", "fairfed", "fedavg+average+thresholds:from=clients", "fedavg+average+tilt"]
)
def test_network_of_the_user_comes_with_the_app(ready: ReadyApp, strategy: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    net = ready.folder / ready.package / "net.py"
    net.write_text(NET)
    config = ready.config(rounds=3, strategy=strategy)
    ready.serve(ready.grid(config), config)
    theirs = read_rounds(ready.result())
    run(from_mapping(read_config(ready.result() / "config.toml")), out=tmp_path / "twin", jobs=1)
    ours = read_rounds(tmp_path / "twin")
    last = theirs["round"].max()
    for name in ("accuracy", "mcc", "eqo"):
        mine = ours[ours["round"] == last][name].to_numpy()
        assert np.allclose(mine, theirs[theirs["round"] == last][name].to_numpy(), atol=0.02)
    (file,) = (ready.result() / "models").iterdir()
    arrays, _ = read_model(file)
    twin, _ = read_model(tmp_path / "twin" / "models" / file.name)
    assert sorted(arrays) == sorted(twin)
    for name, values in arrays.items():
        assert np.allclose(values, twin[name], atol=1e-5), name
    with pytest.raises(InputError, match=r"model must be the app's own net.py on Flower, got 'x.py'"):
        ready.serve(ready.grid(config), {**config, "model": "x.py"})

"""What is needed to go on: written, read, refused, and really taken up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from fairfate.data import synthetic
from fairfate.engine import checkpoint
from fairfate.engine.attack import parse_attack
from fairfate.engine.checkpoint import Checkpoint, pack, read_checkpoint, unpack, write_checkpoint
from fairfate.engine.record import ClientRound
from fairfate.engine.recorder import Recorder, Trace
from fairfate.engine.server import Server
from fairfate.engine.simulate import simulate
from fairfate.engine.simulation import Simulation
from fairfate.errors import InputError
from fairfate.federation.partition import parse_partition
from fairfate.federation.seeds import Streams
from fairfate.federation.split import Federation, build
from fairfate.federation.validation_source import parse_validation_source
from fairfate.models.mlp import Mlp
from fairfate.models.training import Training
from fairfate.strategies import ModelState, Setup, parse_spec
from fairfate.strategies.fedavg import AVERAGING
from fairfate.strategies.momentum import MomentumState

TRAINING = Training(rounds=4, per_round=3, epochs=1)


# -- states in files ---------------------------------------------------------------------------------------


class Nested(NamedTuple):
    """A state with everything that a state may hold."""

    params: np.ndarray
    inner: ModelState
    known: dict[str, Any]
    several: list[Any]
    number: Any
    nothing: None = None


STATE = Nested(
    np.arange(3.0),
    ModelState(np.arange(2)[::-1], {"lam": 0.5}),
    {"a": np.ones(2), "b": "text"},
    [1, np.zeros(1), "x"],
    np.float64(2.5),
)
LIKE = Nested(np.empty(0), ModelState(np.empty(0)), {}, [], 0.0)


def test_a_state_comes_back_as_it_was() -> None:
    arrays: dict[str, np.ndarray] = {}
    content = pack(STATE, arrays)
    assert set(arrays) == {"state.params", "state.inner.params", "state.known.a", "state.several.1"}
    assert arrays["state.inner.params"].flags["C_CONTIGUOUS"]
    found = unpack(content, arrays, LIKE)
    assert isinstance(found, Nested)
    assert isinstance(found.inner, ModelState)
    assert found.params.tolist() == [0, 1, 2]
    assert found.inner.params.tolist() == [1, 0]
    assert found.inner.notes == {"lam": 0.5}
    assert found.known["a"].tolist() == [1, 1]
    assert found.known["b"] == "text"
    assert [found.several[0], found.several[1].tolist(), found.several[2]] == [1, [0], "x"]
    assert (found.number, found.nothing) == (2.5, None)
    assert type(found.number) is float


def test_tuples_inside_a_dictionary_are_those_of_its_example() -> None:
    arrays: dict[str, np.ndarray] = {}
    content = pack({"a": ModelState(np.ones(1))}, arrays)
    assert isinstance(unpack(content, arrays, {"a": ModelState(np.empty(0))})["a"], ModelState)
    with pytest.raises(InputError, match="holds no state like NoneType"):
        unpack(content, arrays, None)


def test_a_state_of_another_kind_is_refused() -> None:
    arrays: dict[str, np.ndarray] = {}
    content = pack(ModelState(np.ones(1)), arrays)
    with pytest.raises(InputError, match="no state like MomentumState"):
        unpack(content, arrays, MomentumState(np.ones(1), np.ones(1)))
    with pytest.raises(InputError, match="where the strategy's state has an array"):
        unpack(content, arrays, np.ones(1))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"a": {1: 2}}, "state.a must have texts as keys to be saved, got 1"),
        ([1, {2}], "state.1 must be made of tuples, .* to be saved, got set"),
        (ModelState(np.ones(1), object()), "state.notes must be made of .* got object"),
    ],
)
def test_what_cannot_be_saved_is_named(value: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        pack(value, {})


def test_a_checkpoint_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "c.safetensors"
    write_checkpoint(file, 2, STATE, {"run": 1}, ["[1]", "é"])
    saved = read_checkpoint(file)
    assert (saved.round, saved.identity, saved.texts) == (2, {"run": 1}, ["[1]", "é"])
    found = unpack(saved.content, saved.arrays, LIKE)
    assert found.inner.params.tolist() == [1, 0]


@pytest.mark.parametrize("content", [b"", b"no such file", b"\x02\0\0\0\0\0\0\0{}"])
def test_another_file_is_not_a_checkpoint(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "c.safetensors"
    file.write_bytes(content)
    with pytest.raises(InputError, match="checkpoint must be a file that an earlier run has written, got"):
        read_checkpoint(file)


# -- going on ----------------------------------------------------------------------------------------------


def federation(rows: int = 300, seed: int = 1, **more: Any) -> Federation:
    return build(synthetic(rows=rows, seed=3), parse_partition("dirichlet:0.5"), 8, Streams(seed), **more)


SPECS = ("fedavg", "fedmom", "fair_fate", "fedavg+average:share=0.75", "afl")


class Run:
    """A simulation that can be stopped after some rounds, and says which ones it trains."""

    def __init__(self, file: Path | None, monkeypatch: pytest.MonkeyPatch) -> None:
        self.given: dict[str, Any] = {
            "federation": federation(),
            "specs": [parse_spec(text, "eqo") for text in SPECS],
            "training": TRAINING,
            "streams": Streams(1),
            "attack": None,
            "hidden": (10,),
        }
        self.file, self.trained = file, []
        train = Simulation.train

        def noting(clients: Simulation, t: int, servers: Any) -> Any:
            self.trained.append(t)
            return train(clients, t, servers)

        monkeypatch.setattr(Simulation, "train", noting)

    def __call__(self, stop: int | None = None, seconds: float = 0.0, **other: Any) -> list[Trace]:
        given = {**self.given, **other}
        self.trained.clear()

        def on_round() -> None:
            if stop is not None and len(self.trained) == stop:
                raise KeyboardInterrupt

        return simulate(
            given["federation"],
            given["specs"],
            Mlp(given["federation"].inputs, given["hidden"]),
            given["training"],
            Setup(given["training"].rounds),
            given["streams"],
            on_round,
            record_clients=True,
            checkpoint=self.file,
            seconds=seconds,
            attack=given["attack"],
        )

    def stopped(self, after: int, seconds: float = 0.0) -> None:
        with pytest.raises(KeyboardInterrupt):
            self(after, seconds)


@pytest.fixture
def simulation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(tmp_path / "c" / "seed-1.safetensors", monkeypatch)


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_only_the_rounds_that_are_left_are_trained(simulation: Run, stop: int) -> None:
    simulation.stopped(stop)
    assert simulation.trained == [*range(1, stop + 1)]
    again = simulation()
    assert simulation.trained == [*range(stop + 1, 5)]
    simulation.file = None
    whole = simulation()
    assert simulation.trained == [1, 2, 3, 4]
    for one, other in zip(whole, again, strict=True):
        assert one.rounds == other.rounds == [1, 2, 3, 4]
        assert np.array_equal(one.params, other.params), one.spec.text
        assert np.array_equal(one.validation, other.validation)
        assert np.array_equal(one.test, other.test)
        assert len(one.notes) == len(other.notes) == 4
        assert [c[:5] for c in one.clients] == [c[:5] for c in other.clients]
        for mine, theirs in zip(one.clients, other.clients, strict=True):
            assert (mine.counts is None) == (theirs.counts is None)
            assert mine.counts is None or np.array_equal(mine.counts, theirs.counts)
            assert theirs.counts is None or theirs.counts.dtype == np.int64
            assert mine.notes == theirs.notes
            assert theirs.node is None


@pytest.mark.parametrize(
    "other",
    [
        {"specs": [parse_spec(text, "eqo") for text in (*SPECS[:-1], "afl:rate=0.5")]},
        {"training": replace(TRAINING, epochs=2)},
        {"training": replace(TRAINING, learning_rate=0.02)},
        {"streams": Streams(2)},
        {"streams": Streams(1, published=True)},
        {"hidden": (9,)},
        {"attack": parse_attack("sign_flip")},
        {"federation": federation(rows=301)},
        {"federation": federation(seed=2)},
        {"federation": federation(validation_source=parse_validation_source("clients"))},
    ],
    ids=lambda other: next(iter(other)),
)
def test_any_other_setting_starts_over(simulation: Run, other: dict[str, Any]) -> None:
    simulation.stopped(2)
    simulation(**other)
    assert simulation.trained == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("key", "one", "other"),
    [
        ("attack", parse_attack("sign_flip"), parse_attack("sign_flip:clients=2")),
        (
            "federation",
            federation(validation_source=parse_validation_source("clients")),
            federation(validation_source=parse_validation_source("clients:mode=secure")),
        ),
    ],
)
def test_another_attack_or_validation_source_starts_over(
    simulation: Run, key: str, one: Any, other: Any
) -> None:
    simulation.given[key] = one
    simulation.stopped(2)
    simulation(**{key: other})
    assert simulation.trained == [1, 2, 3, 4]
    simulation.stopped(2)
    simulation()
    assert simulation.trained == [3, 4]


def test_another_partition_of_rows_starts_over(simulation: Run) -> None:
    """The same rows in the same order; the first client has one less."""
    simulation.stopped(2)
    one = simulation.given["federation"]
    offsets = one.rows.offsets.copy()
    offsets[1:-1] -= 1
    simulation(federation=replace(one, rows=replace(one.rows, offsets=offsets)))
    assert simulation.trained == [1, 2, 3, 4]


def test_a_damaged_file_starts_over(simulation: Run) -> None:
    simulation.stopped(2)
    assert simulation.file is not None
    simulation.file.write_bytes(simulation.file.read_bytes()[:-10])
    simulation()
    assert simulation.trained == [1, 2, 3, 4]


def test_nothing_is_written_before_its_time_and_without_a_path(simulation: Run, tmp_path: Path) -> None:
    simulation.stopped(3, seconds=1000.0)
    assert list(tmp_path.rglob("*")) == []
    simulation.file = None
    simulation.stopped(3)
    assert list(tmp_path.rglob("*")) == []


def test_checkpoint_is_written_at_most_every_thirty_seconds_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []

    class Noting(Checkpoint):
        def __init__(self, path: Path | None, identity: dict[str, Any], seconds: float) -> None:
            seen.append(seconds)
            super().__init__(path, identity, seconds)

    monkeypatch.setattr("fairfate.engine.simulate.Checkpoint", Noting)
    one = federation()
    given = (one, [parse_spec("fedavg", "eqo")], Mlp(one.inputs), TRAINING, Setup(4), Streams(1))
    simulate(*given)
    simulate(*given, checkpoint=tmp_path / "c", seconds=5.0)
    assert seen == [30.0, 5.0]


def test_a_file_is_written_again_when_its_time_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: now[0])
    file = tmp_path / "c.safetensors"
    saved = Checkpoint(file, {})
    server = Server.start(AVERAGING, np.zeros(3, np.float32))
    for seconds, rounds in ((29, None), (30, 2), (59, 2), (60, 4), (89.9, 4), (90, 6)):
        now[0] = 100.0 + seconds
        saved.save(int(seconds // 15) + (seconds < 30) * 9, [server], [])
        found = read_checkpoint(file).round if file.exists() else None
        assert found == rounds, seconds


def test_a_checkpoint_that_is_done_goes_with_its_empty_folder(tmp_path: Path) -> None:
    file, other = tmp_path / "c" / "seed-1.safetensors", tmp_path / "c" / "seed-2.safetensors"
    file.parent.mkdir()
    file.write_text("")
    other.write_text("")
    Checkpoint(file, {}).remove()
    assert not file.exists()
    assert other.exists()
    Checkpoint(other, {}).remove()
    assert not file.parent.exists()
    Checkpoint(other, {}).remove()  # nothing is there any more
    Checkpoint(None, {}).remove()


# -- all of a checkpoint, or nothing ---------------------------------------------------------------------


def recorder(server: Server, text: str = "fedavg") -> Recorder:
    return Recorder(parse_spec(text, "eqo"), server, 4)


def recorded(server: Server, text: str = "fedavg") -> Recorder:
    filled = recorder(server, text)
    for t, notes in ((1, {"lam": 0.5}), (2, {"fair": np.array([True, False])})):
        filled.release(t, notes)
        filled.measure(t, np.ones((2, 2, 2), np.int64), np.full((2, 2, 2), 3, np.int64))
    clients = [
        ClientRound(1, "a", "used", "", 5.0, np.ones((2, 2, 2), np.int64), {"gap": 0.25}, 7),
        ClientRound(2, "b", "dropped", "late"),
    ]
    filled.trace.clients.extend(clients)
    return filled


def server(value: float = 0.0, size: int = 3) -> Server:
    return Server.start(AVERAGING, np.full(size, value, np.float32))


def written(file: Path, servers: list[Server], recorders: list[Recorder], more: Any = None) -> None:
    Checkpoint(file, {"run": 1}, 0.0).save(2, servers, recorders, more)


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    old = server(5.0)
    old.discarded = 2
    averaged = recorded(old, "fedavg+average")
    for t, value in ((3, 1), (4, 3)):
        assert averaged.average is not None
        averaged.average.add(t, np.float32([value, value + 1, value + 2]))
    written(tmp_path / "c", [old], [averaged, recorded(old)], {"names": ["a", "b"], "rest": np.ones(2)})
    new = server()
    again = [recorder(new, "fedavg+average"), recorder(new)]
    done, more = Checkpoint(tmp_path / "c", {"run": 1}).load([new], again)
    assert done == 2
    assert (more["names"], more["rest"].tolist()) == (["a", "b"], [1, 1])
    assert new.params.tolist() == [5, 5, 5]
    assert new.discarded == 2
    assert again[0].average is not None
    assert again[0].average.total.tolist() == [4, 6, 8]
    assert again[0].average.count == 2
    assert again[0].released.tolist() == [2, 3, 4]
    assert again[1].average is None
    assert again[1].released.tolist() == [5, 5, 5]
    trace = again[1].trace
    assert trace.rounds == [1, 2]
    assert np.array_equal(trace.validation, np.ones((2, 2, 2, 2)))
    assert np.array_equal(trace.test, np.full((2, 2, 2, 2), 3))
    assert trace.notes == [{"lam": 0.5}, {"fair": [True, False]}]
    first, second = trace.clients
    assert first[:5] == (1, "a", "used", "", 5.0)
    assert np.array_equal(first.counts, np.ones((2, 2, 2)))
    assert first.counts.dtype == np.int64
    assert (dict(first.notes), first.node) == ({"gap": 0.25}, 7)
    assert second[:4] == (2, "b", "dropped", "late")
    assert second.counts is None
    trace.validation.append(np.zeros((2, 2, 2), np.int64))  # the next round's
    trace.clients.extend([ClientRound(3, "a", "used", "", 5.0, None, {"gap": 0.5}, 7)])
    assert len(trace.clients) == 3


def test_the_best_model_so_far_comes_back(tmp_path: Path) -> None:
    old, new = server(5.0), server()
    stopping = Recorder(parse_spec("fedavg", "eqo"), old, 4, early_stopping=2)
    stopping.release(1, {})
    stopping.choose(1, 0.5)
    old.state = old.state._replace(params=np.full(3, 6.0, np.float32))
    stopping.release(2, {})
    stopping.choose(2, 0.75)
    written(tmp_path / "c", [old], [stopping])
    again = Recorder(parse_spec("fedavg", "eqo"), new, 4, early_stopping=2)
    assert Checkpoint(tmp_path / "c", {"run": 1}).load([new], [again]) == (2, None)
    assert (again.best.loss, again.best.round) == (0.5, 1)
    assert again.released.tolist() == [5, 5, 5]
    assert new.params.tolist() == [6, 6, 6]
    assert again.is_stopped(3)


def test_a_checkpoint_of_another_run_is_not_changed(tmp_path: Path) -> None:
    old = server(5.0)
    written(tmp_path / "c", [old], [recorded(old)])
    for identity in ({"run": 2}, {}, {"run": 1, "more": 1}):
        new = server()
        assert Checkpoint(tmp_path / "c", identity).load([new], [recorder(new)]) == (0, None)
        assert new.params.tolist() == [0, 0, 0]
        with pytest.raises(InputError, match="checkpoint must be of the same run, got"):
            Checkpoint(tmp_path / "c", identity, strict=True).load([new], [recorder(new)])
    new = server()
    assert Checkpoint(tmp_path / "c", {"run": 1}).load([new], [recorder(new)])[0] == 2
    assert Checkpoint(None, {"run": 1}).load([new], [recorder(new)])[0] == 0
    assert Checkpoint(tmp_path / "nothing", {"run": 1}).load([new], [recorder(new)])[0] == 0


@pytest.mark.parametrize(
    "state",
    [ModelState(np.zeros(4, np.float32)), MomentumState(*[np.zeros(3, np.float32)] * 2)],
    ids=["shape", "another state"],
)
def test_a_checkpoint_that_does_not_fit_changes_nothing(tmp_path: Path, state: Any) -> None:
    """The second server's: the first keeps its model too."""
    servers = [server(5.0), server(6.0)]
    servers[1].state = state
    written(tmp_path / "c", servers, [recorded(of) for of in servers])
    new = [server(), server()]
    empty = [recorder(of) for of in new]
    assert Checkpoint(tmp_path / "c", {"run": 1}).load(new, empty) == (0, None)
    assert [of.params.tolist() for of in new] == [[0, 0, 0]] * 2
    assert [of.trace.rounds for of in empty] == [[], []]


@pytest.mark.parametrize("count", [1, 3])
def test_as_many_servers_and_records_must_be_there(tmp_path: Path, count: int) -> None:
    old = server(5.0)
    written(tmp_path / "c", [old] * 2, [recorded(old)] * 2)
    for servers, records in ((count, 2), (2, count)):
        new = [server() for _ in range(servers)]
        empty = [recorder(new[0]) for _ in range(records)]
        assert Checkpoint(tmp_path / "c", {"run": 1}).load(new, empty) == (0, None)
        assert all(of.params.tolist() == [0, 0, 0] for of in new)
        assert all(of.trace.rounds == [] for of in empty)

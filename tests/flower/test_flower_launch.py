"""A site starts only behind its guard, and replies that nobody can read or hold cost only themselves."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.constant import TASK_TYPE_TO_COMMAND

from command import Outcome
from fairfate.errors import InputError
from fairfate.flower.app.join import check_guard, launch, prepare
from fairfate.flower.messages import TooLargeError, inflated_size, within
from federation_in_process import LocalGrid, flower_strategy
from ready_app import StudyApp

GRID = "flwr.superlink.grid.http_grid"


@pytest.fixture
def app(tmp_path: Path) -> StudyApp:
    return StudyApp(tmp_path / "wards", {"rounds": 1})


@pytest.fixture
def node(app: StudyApp, tmp_path: Path) -> Path:
    file = tmp_path / "site.toml"
    file.write_text("".join(f'{key} = "{value}"\n' for key, value in app.node_config("north").items()))
    return file


def test_the_guard_is_what_flower_finds_and_runs(node: Path) -> None:
    gate, environment = prepare(node)
    guard = gate.folder.path / "guard"
    for command in TASK_TYPE_TO_COMMAND.values():
        done = subprocess.run(
            [command, "--help"], env=environment, capture_output=True, text=True, check=False
        )
        if command == "flwr-clientapp":
            assert done.returncode == 0, done.stderr
        else:
            assert done.returncode == 1
            assert done.stderr == "this site runs only the app of its study\n"
    assert environment["PATH"].startswith(str(guard))
    assert environment["FLWR_TELEMETRY_ENABLED"] == "0"


def test_a_guard_that_cannot_run_or_is_another_program_stops_the_start(node: Path, tmp_path: Path) -> None:
    gate, environment = prepare(node)
    guard, commands = gate.folder.path / "guard", list(TASK_TYPE_TO_COMMAND.values())
    script = guard / "flwr-clientapp"
    text = script.read_text()
    script.write_text("#!/bin/sh\necho trust me\n")
    with pytest.raises(InputError, match="guard must answer that it guards this site"):
        check_guard(guard, commands, environment)
    script.write_text(text)
    script.chmod(0o600)  # Flower's own would be found in its place
    with pytest.raises(InputError, match="guard must be what Flower runs as flwr-clientapp"):
        check_guard(guard, commands, environment)
    script.chmod(0o700)
    check_guard(guard, commands, environment)
    other = {**environment, "PATH": f"{Path(sys.executable).parent}:{environment['PATH']}"}
    with pytest.raises(InputError, match="guard must be what Flower runs as"):
        check_guard(guard, commands, other)


def test_each_start_writes_the_guard_anew_and_removes_what_is_half_unpacked(node: Path) -> None:
    gate, _ = prepare(node)
    home = gate.folder.path
    (home / "guard" / "flwr-clientapp").write_text("#!/bin/sh\nexec evil\n")
    (home / "apps" / ".half").mkdir()
    prepare(node)
    assert "evil" not in (home / "guard" / "flwr-clientapp").read_text()
    assert not (home / "apps" / ".half").exists()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("study = ", "# study = ", "node-config must name study and study-sha256"),
        ('study-sha256 = "', 'study-sha256 = "0', "must have the checksum that study-sha256 has pinned"),
        ("north-study.key", "none.key", "key must be a file that fairfate flower key has written"),
        ("north-study.key", "server-study.key", "key must be that of a site of the study"),
        ("north.csv", "none.csv", "data must be a file"),
    ],
)
def test_a_site_that_lacks_something_does_not_start(
    node: Path, old: str, new: str, said: str, fairfate: Callable[..., Outcome]
) -> None:
    node.write_text(node.read_text().replace(old, new, 1))
    done = fairfate("flower", "site", str(node), "--superlink", "127.0.0.1:1")
    assert done.code == 2
    assert said in " ".join(done.err.split())
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    "words",
    [
        ["--isolation", "process"],
        ["--isol=process"],
        ["--insec"],
        ["--i"],
        ["--node", "data='x'"],
        ["--trusted-entities=x"],
    ],
)
def test_options_set_by_the_site_cannot_be_given_even_abbreviated(words: list[str], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must be left out"):
        launch(tmp_path / "none.toml", ["--superlink", "127.0.0.1:1", *words])


def test_the_log_of_a_site_can_be_read(app: StudyApp, node: Path, fairfate: Callable[..., Outcome]) -> None:
    config = app.config()
    app.serve(app.grid(config), config)
    done = fairfate("flower", "log", str(node))
    assert done.code == 0
    assert "2 messages." in done.out
    assert "train" in done.out
    lines = [json.loads(line) for line in fairfate("flower", "log", str(node), "--json").out.splitlines()]
    assert [line["kind"] for line in lines] == ["fit", "train"]
    assert "0 messages." in fairfate("flower", "log", str(node), "--refused").out


def test_keys_and_studies_are_made_by_commands(tmp_path: Path, fairfate: Callable[..., Outcome]) -> None:
    assert fairfate("flower", "init", "wards").code == 0
    words = ["--party", "server-study.pub"]
    assert fairfate("flower", "key", "server").code == 0
    for site in ("north", "south"):
        assert fairfate("flower", "key", "--node", f"wards/sites/{site}.toml").code == 0
        words += ["--party", f"{site}-study.pub"]
    made = fairfate("flower", "study", "wards", *words, "-c", "rounds=5 strategy='fedavg'", "--seed", "2")
    assert made.code == 0
    assert "study-sha256 = " in made.out
    assert 'strategies = ["fedavg"]' in Path("study.toml").read_text()
    again = fairfate("flower", "study", "wards", *words)
    assert again.code == 2
    assert "out must be a new file" in again.err
    amended = fairfate(
        "flower", "study", "wards", "--amend", "study.toml", "--without", "south", "--out", "b.toml"
    )
    assert amended.code == 2
    assert "at least two sites" in amended.err
    assert not Path("b.toml").exists()
    amended = fairfate(
        "flower", "study", "wards", "--amend", "study.toml", "--out", "study.toml", "-c", "rounds=7"
    )
    assert "+ [training] rounds = 7  # at most, in a run" in amended.out
    assert "version = 2" in Path("study.toml").read_text()
    for words, said in (
        (["flower", "key"], "name must be given"),
        (["flower", "key", "server"], "must be a new file"),
        (["flower", "key", "north"], "node must be given for a site"),
        (["flower", "study", "wards", "--party", "none.pub", "--out", "c.toml"], "public key must be a file"),
        (
            ["flower", "study", "wards", "--party", "wards/pyproject.toml", "--out", "c.toml"],
            "public key must be",
        ),
        (["flower", "study", "wards", "-c", "rounds=[", "--out", "c.toml"], "run-config must be like"),
        (["flower", "study", "nowhere", "--out", "c.toml"], "app must be the folder"),
        (["flower", "log", "nowhere.toml"], "node must be a TOML file"),
    ):
        done = fairfate(*words)
        assert done.code == 2, words
        assert said in " ".join(done.err.split()), (words, done.err)


# -- replies ---------------------------------------------------------------------------------------------


def chunked(times: int) -> dict[str, bytes]:
    """An array that names one chunk so many times, as Flower's objects."""
    chunk, array = "a" * 64, "b" * 64
    body = b"x" * 16_000
    about = {"dtype": "float32", "shape": [1], "stype": "numpy.ndarray", "arraychunk_ids": [0] * times}
    text = json.dumps(about).encode()
    return {
        chunk: f"ArrayChunk  {len(body)}".encode() + b"\x00" + body,
        array: f"Array {chunk} {len(text)}".encode() + b"\x00" + text,
    }


def test_a_chunk_that_is_named_many_times_is_counted_as_often() -> None:
    from flwr.superlink.grid import http_grid

    assert inflated_size(chunked(300)) > 300 * 16_000
    with within(1_000_000, GRID):
        found = http_grid.inflate_object_from_contents("b" * 64, chunked(10))
        assert len(found.data) == 160_000
        with pytest.raises(TooLargeError, match="more than 1000000"):
            http_grid.inflate_object_from_contents("b" * 64, chunked(300))
    assert len(http_grid.inflate_object_from_contents("b" * 64, chunked(300)).data) == 4_800_000


def test_objects_are_counted_while_they_come() -> None:
    from flwr.superlink.grid import http_grid

    with within(1_000, GRID):
        assert len(http_grid.pull_objects(object_ids=["a", "b"], pull_object_fn=lambda name: b"x" * 400)) == 2
        with pytest.raises(TooLargeError):
            http_grid.pull_objects(object_ids=list("abcd"), pull_object_fn=lambda name: b"x" * 400)
        with pytest.raises(TooLargeError, match="parts"):
            http_grid.pull_objects(object_ids=map(str, range(20_000)), pull_object_fn=lambda name: b"")


class Unreadable(LocalGrid):
    """Flower cannot put the reply of one node together."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = list(super().pull_messages(message_ids))
        if any(reply.metadata.src_node_id == 3 for reply in replies):
            raise KeyError("ArrayChunk")
        return replies


def test_a_reply_that_cannot_be_read_costs_only_itself() -> None:
    client = ClientApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        arrays = ArrayRecord({"w": Array(message.content["arrays"]["w"].numpy() + 1)})
        metrics = MetricRecord({"num-examples": 10})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @client.query()
    def query(message: Message, context: Context) -> Message:
        return Message(RecordDict({"client": ConfigRecord({"name": "x"})}), reply_to=message)

    strategy = flower_strategy("fedavg", num_rounds=1, fraction_evaluate=0.0)
    strategy.start(Unreadable(client, {1: {}, 2: {}, 3: {}}), ArrayRecord({"w": Array(np.zeros(2))}))
    clients = strategy.clients().set_index("name")
    assert clients.loc["3", "outcome"] == "dropped"
    assert "cannot be read (KeyError" in clients.loc["3", "reason"]
    assert clients.loc[["1", "2"], "outcome"].tolist() == ["used", "used"]
    assert strategy.released.tolist() == [1, 1]

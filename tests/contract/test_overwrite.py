"""Files that users name are never replaced unasked, and files that are read never at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

import fairfate as package
from command import Outcome
from fairfate.errors import InputError
from fairfate.experiments.predict import find_model, predict_file
from fairfate.export import export
from fairfate.report.figures import draw
from fairfate.report.page import report, write_card
from fairfate.storage import check_output

Call = Callable[..., Outcome]
OLD = b"precious"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file, and a run on it."""
    folder = tmp_path_factory.mktemp("home")
    frame = pd.DataFrame({"age": [20.0 + n % 40 for n in range(400)]})
    frame["sex"] = ["male" if n % 3 else "female" for n in range(400)]
    frame["hired"] = ["yes" if n % 40 > 20 - n % 7 else "no" for n in range(400)]
    frame.to_csv(folder / "people.csv", index=False)
    options = {"target": "hired", "favourable": "yes", "sensitive": "sex"}
    data, out = folder / "people.csv", folder / "run"
    package.run(data=data, strategies="fedavg", rounds=3, seeds=1, jobs=1, out=out, **options)
    return folder


@pytest.fixture
def here(home: Path, tmp_path: Path, fairfate: Call) -> Path:
    """The working folder, with copies of both."""
    shutil.copytree(home, tmp_path, dirs_exist_ok=True)
    return tmp_path


PREDICT = ["predict", "run", "--strategy", "fedavg", "--data", "people.csv", "--out"]
EXPORT = ["export", "run", "--strategy", "fedavg"]
COMMANDS = {
    "out.csv": [*PREDICT, "out.csv"],
    "out.parquet": [*PREDICT, "out.parquet"],
    "out.json": [*EXPORT, "--format", "json", "--out", "out.json"],
    "run/model.json": [*EXPORT, "--format", "json"],
    "out.png": ["plot", "run", "--out", "out.png"],
    "out-tradeoff.png": ["plot", "run", "--kind", "both", "--out", "out.png"],
    "out.html": ["report", "run", "--out", "out.html"],
    "page.json": ["report", "run", "--out", "page.html"],
    "page-audit.csv": ["report", "run", "--out", "page.html"],
    "page-tests.csv": ["report", "run", "--out", "page.html"],
    "report.html": ["report", "run", "run2"],
    "out.md": ["report", "run", "--card", "--out", "out.md"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_replaces_an_existing_file_without_force(name: str, here: Path, fairfate: Call) -> None:
    shutil.copytree("run", "run2")
    Path(name).write_bytes(OLD)
    before = sorted(here.rglob("*"))
    refused = fairfate(*COMMANDS[name])
    assert refused.code == 2
    assert f"got '{name}', which exists" in refused.err
    assert refused.err.count("\n") == 1
    assert Path(name).read_bytes() == OLD
    assert sorted(here.rglob("*")) == before
    assert fairfate(*COMMANDS[name], "--force").code == 0
    assert Path(name).read_bytes() != OLD


@pytest.mark.parametrize("form", ["onnx", "skops", "json"])
def test_no_format_of_export_replaces_a_file_without_force(form: str, here: Path, fairfate: Call) -> None:
    Path("model").write_bytes(OLD)
    words = [*EXPORT, "--format", form, "--out", "model"]
    assert fairfate(*words).code == 2
    assert Path("model").read_bytes() == OLD
    pytest.importorskip(form)
    assert fairfate(*words, "--force").code == 0
    assert Path("model").read_bytes() != OLD


@pytest.mark.parametrize("command", ["schema", "study"])
def test_no_file_of_a_federation_is_replaced_without_force(command: str, fairfate: Call) -> None:
    pytest.importorskip("flwr")
    assert fairfate("flower", "init", "app").code == 0
    parties = ["server", *("--node app/sites/north.toml", "--node app/sites/south.toml")]
    for words in parties if command == "study" else ():
        assert fairfate("flower", "key", *words.split()).code == 0
    keys = [word for file in sorted(Path().glob("*.pub")) for word in ("--party", str(file))]
    Path("out").write_bytes(OLD)
    words = ["flower", command, "app", *keys, "--out"]
    assert fairfate(*words, "out").code == 2
    assert Path("out").read_bytes() == OLD
    assert fairfate(*words, "out", "--force").code == 0
    assert Path("out").read_bytes() != OLD
    for read in ("app/pyproject.toml", *keys[1::2], *(["app/data/validation.csv"] * (command == "schema"))):
        content = Path(read).read_bytes()
        refused = fairfate(*words, read, "--force")
        assert refused.code == 2
        assert "must be another file than the input" in refused.err
        assert Path(read).read_bytes() == content


def test_the_input_is_never_replaced_under_any_of_its_names(here: Path, fairfate: Call) -> None:
    content = Path("people.csv").read_bytes()
    Path("symbolic.csv").symlink_to("people.csv")
    os.link("people.csv", "hard.csv")
    names = ["people.csv", "run/../people.csv", str(here / "people.csv"), "symbolic.csv", "hard.csv"]
    for name in names:
        for force in ([], ["--force"]):
            refused = fairfate(*PREDICT, name, *force)
            assert refused.code == 2
            assert f"must be another file than the input, got '{name}'" in refused.err
            assert Path("people.csv").read_bytes() == content
    model = "run/models/fedavg-seed-1.safetensors"
    content = Path(model).read_bytes()
    assert fairfate("export", model, "--format", "json", "--out", model, "--force").code == 2
    assert Path(model).read_bytes() == content


def test_a_link_to_nothing_is_not_replaced_without_force(tmp_path: Path) -> None:
    link = tmp_path / "link.csv"
    link.symlink_to(tmp_path / "gone.csv")
    with pytest.raises(InputError, match="must be a new file"):
        check_output(link)
    check_output(link, force=True)
    check_output(tmp_path / "new.csv", tmp_path / "missing.csv")


def test_python_functions_replace_with_force_only(here: Path) -> None:
    model, _ = find_model(Path("run"), "fedavg")
    calls: dict[str, Callable[[Path, bool], object]] = {
        "a.csv": lambda out, force: predict_file(model, Path("people.csv"), out, force=force),
        "a.json": lambda out, force: export(model, out, "json", force=force),
        "a.svg": lambda out, force: list(draw(Path("run"), out=out, force=force)),
        "a.html": lambda out, force: report([Path("run")], out, force=force),
        "a.md": lambda out, force: write_card([Path("run")], out, force=force),
    }
    for name, write in calls.items():
        Path(name).write_bytes(OLD)
        with pytest.raises(InputError, match="must be a new file unless force is given"):
            write(Path(name), False)
        assert Path(name).read_bytes() == OLD
        write(Path(name), True)
        assert Path(name).read_bytes() != OLD


def test_files_in_a_runs_folder_are_replaced_by_a_new_run(here: Path, fairfate: Call) -> None:
    for words in (["report", "run"], ["report", "run", "--card"], ["plot", "run"]) * 2:
        assert fairfate(*words).code == 0
    finished = package.run(data="synthetic:rows=200", rounds=1, seeds=1, jobs=1, out="other")
    finished.report()
    finished.report()
    finished.report("page.html")
    with pytest.raises(InputError, match="must be a new file"):
        finished.report("page.html")
    finished.report("page.html", force=True)


def test_a_card_is_a_markdown_file(here: Path, fairfate: Call) -> None:
    rounds = Path("run/rounds.parquet").read_bytes()
    refused = fairfate("report", "run", "--card", "--out", "run/rounds.parquet", "--force")
    assert refused.code == 2
    assert "out must be a Markdown file" in refused.err
    assert Path("run/rounds.parquet").read_bytes() == rounds

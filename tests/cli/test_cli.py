from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from command import QUICK
from fairfate.cli.screen import Bar, watching
from fairfate.errors import Stopped
from fairfate.experiments.run import run
from fairfate.options import Execution, Options, options_of
from fairfate.report.data import ReportData
from fairfate.report.tables import remarks
from fairfate.report.tracking import Tracking


def test_a_run_prints_a_table_a_sentence_and_where_it_saved(fairfate) -> None:
    code, out, _ = fairfate("run", *QUICK)
    assert code == 0
    for word in ("accuracy", "balanced", "MCC", "SP", "EO", "EQO", "fedavg", "fair_fate", "±"):
        assert word in out
    assert "collapsed in" in out  # after two rounds
    assert "Saved to runs/synthetic-1/" in out
    saved = {path.name for path in Path("runs/synthetic-1").iterdir()}
    files = {"clients.parquet", "config.toml", "groups.csv", "rounds.parquet", "summary.csv"}
    files |= {"date.txt", "scores.parquet", "local.parquet"}
    files |= {"report.html", "report.json", "report-audit.csv", "report-tests.csv"}
    assert saved == {*files, "models"}


def test_a_second_run_takes_a_new_folder(fairfate) -> None:
    fairfate("run", *QUICK)
    assert "runs/synthetic-2/" in fairfate("run", *QUICK).out


@pytest.mark.parametrize("columns", ["72", "80", "140"])
def test_the_table_fits_the_terminal(fairfate, monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    strategies = ["--strategy", "fedavg", "--strategy", "fair_fate:max=0.8", "--strategy", "fair_fate:max=1"]
    code, out, _ = fairfate("run", *QUICK, *strategies)
    assert code == 0
    assert max(len(line) for line in out.splitlines()) <= int(columns)
    assert "…" not in out
    heading = next(line for line in out.splitlines() if line.startswith("strategy"))
    assert heading.rstrip().endswith("EQO")
    assert all(re.search(r"\d$", line.rstrip()) for line in out.splitlines() if line.startswith("fedavg  "))


def test_one_strategy_and_one_seed_need_no_comparison(fairfate) -> None:
    code, out, _ = fairfate("run", *QUICK, "--seeds", "1", "--strategy", "fedavg")
    assert code == 0
    assert "one seed" in out
    assert "fairer than" not in out
    assert "±" not in out.split("SP, EO")[0]


def test_a_collapsed_model_is_flagged() -> None:
    finished = run(
        data="synthetic:rows=300", rounds=1, seeds=(1,), jobs=1, strategies=("fedavg", "fair_fate")
    )
    rounds = finished.rounds.assign(mcc=finished.rounds["strategy"].map({"fedavg": 0.3, "fair_fate": 0.01}))
    flagged = [
        line.split(":")[0] for line in remarks(ReportData.from_runs([replace(finished, rounds=rounds)]))
    ]
    assert flagged == ["collapsed"]


def test_missing_values_are_reported(fairfate, people: Path) -> None:
    own = ["--data", str(people), "--target", "hired", "--favourable", "yes", "--sensitive", "sex"]
    code, out, _ = fairfate("run", *QUICK, *own, "--privileged", "male", "--client-column", "site")
    assert code == 0
    assert "missing numbers are replaced" in out
    assert "age (15)" in out
    assert "column:site" in out


def test_a_folder_of_files_is_a_federation(fairfate, people: Path) -> None:
    Path("sites").mkdir()
    frame = pd.read_csv(people)
    for site, rows in frame.groupby("site"):
        rows.drop(columns="site").to_csv(f"sites/{site}.csv", index=False)
    own = ["--data", "sites", "--target", "hired", "--favourable", "yes", "--sensitive", "sex"]
    code, out, err = fairfate("run", *QUICK, *own, "--out", "o")
    assert code == 0, err
    assert "column:(file)" in out
    assert "clients = 4" in Path("o/config.toml").read_text()
    code, out, err = fairfate("run", "--config", "o/config.toml", "--jobs", "1", "--out", "again")
    assert code == 0, err
    assert Path("o/rounds.parquet").read_bytes() == Path("again/rounds.parquet").read_bytes()
    assert "sites: 240 rows" in fairfate("data", "describe", *own[1:]).out


def test_options_come_from_a_file_and_the_command_line_wins(fairfate) -> None:
    Path("mine.toml").write_text(
        'data = "synthetic:rows=300"\nrounds = 5\nper-round = 2\nseeds = [4, 6]\nstrategy = ["fedmom"]\n'
    )
    code, out, _ = fairfate("run", "--config", "mine.toml", "--rounds", "2", "--jobs", "1", "--out", "o")
    assert code == 0
    assert "round 2" in out
    config = Path("o/config.toml").read_text()
    assert "seeds = [4, 6]" in config
    assert "per-round = 2" in config
    assert 'strategy = ["fedmom:beta=0.9"]' in config


def test_strategies_lists_settings_defaults_and_references(fairfate) -> None:
    out = fairfate("strategies").out
    for word in ("fedavg_gr", "lam0", "default 0.05", "sp|eo|eqo", "Salazar et al. 2023"):
        assert word in out


def test_data_list_says_where_each_dataset_is(fairfate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRFATE_DATA", "here")
    Path("here").mkdir()
    Path("here/law.csv").write_text("x")
    out = fairfate("data", "list").out
    assert "here/law.csv" in out
    assert "fairfate data fetch dutch" in out


def test_describe_shows_the_shares_of_the_clients(fairfate) -> None:
    code, out, _ = fairfate("data", "describe", "synthetic", "--partition", "dirichlet:0.5", "--clients", "4")
    assert code == 0
    assert "female, hired" in out
    rows = [line.split() for line in out.splitlines() if line.startswith("client ")]
    assert len(rows) == 1 + 4
    assert sum(int(row[-1]) for row in rows[1:]) == 3600


def test_version(fairfate) -> None:
    assert fairfate("--version").out.startswith("fairfate 0.")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--data", "nofile.csv"],
            "data must be a dataset's name or a file, got 'nofile.csv' (no such file)",
        ),
        (["--data", "empty.csv"], "data must have a header and rows, got 'empty.csv' (empty)"),
        (["--data", "adutl"], "unknown dataset 'adutl'; did you mean 'adult'?"),
        (["--partition", "dirichlet:0"], "sigma must be > 0 and finite, got 0"),
        (["--clients", "2000"], "clients must be <= the 180 training rows of 'synthetic', got 2000"),
        (["--per-round", "11"], "per-round must be <= the 10 clients, got 11"),
        (["--rounds", "0"], "rounds must be >= 1, got 0"),
        (["--strategy", "fairfate"], "unknown strategy 'fairfate'; did you mean 'fair_fate'?"),
        (
            ["--strategy", "fair_fate:lam=1"],
            "unknown hyperparameter of fair_fate 'lam'; did you mean 'lam0'?",
        ),
        (["--strategy", "fair_fate:lam0=2"], "fair_fate: lam0 must be in [0, 1], got 2"),
        (["--strategy", "fair_fate:rho=-1"], "fair_fate: rho must be in [0, 1], got -1"),
        (["--strategy", "fair_fate:max=7"], "fair_fate: max must be in [0, 1], got 7"),
        (["--strategy", "fair_fate:beta0=1"], "fair_fate: beta0 must be in [0, 1), got 1"),
        (["--seeds", "0"], "seeds must be >= 1, got 0"),
        (["--seeds", "a,b"], "seeds must be a number >= 1 or a list such as 3,5,8, got 'a,b'"),
        (["--config", "none.toml"], "config must be a TOML file, got 'none.toml' (no such file)"),
        (["--config", "broken.toml"], "config must be a TOML file, got 'broken.toml'"),
        (["--config", "typo.toml"], "unknown key in typo.toml 'rouns'; did you mean 'rounds'?"),
        (["--out", "empty.csv"], "out must be a folder, got 'empty.csv' (a file)"),
        (["--out", ""], "--out must be a path, got ''"),
        (["--jobs", "0"], "jobs must be >= 1, got 0"),
        (["--protocol", "both"], "protocol must be one of paper|published, got 'both'"),
    ],
)
def test_bad_input_is_one_message_exit_2_and_nothing_written(fairfate, arguments, message) -> None:
    Path("empty.csv").write_text("")
    Path("broken.toml").write_text("rounds = = 3")
    Path("typo.toml").write_text("rouns = 3")
    before = sorted(Path().rglob("*"))
    code, out, err = fairfate("run", *QUICK, *arguments)
    assert code == 2
    assert message in err.replace("\n", " ")
    assert "Traceback" not in out + err
    assert sorted(Path().rglob("*")) == before


def test_text_where_a_number_belongs_is_exit_2(fairfate) -> None:
    code, _, err = fairfate("run", "--rounds", "many")
    assert code == 2
    assert "--rounds" in err
    assert "must be a whole number, got 'many'" in err


def test_existing_results_ask_for_force(fairfate) -> None:
    fairfate("run", *QUICK, "--out", "o")
    before = {p: p.read_bytes() for p in Path("o").rglob("*") if p.is_file()}
    code, _, err = fairfate("run", *QUICK, "--out", "o", "--rounds", "1")
    assert code == 2
    assert "or give --force" in err
    assert {p: p.read_bytes() for p in Path("o").rglob("*") if p.is_file()} == before
    assert fairfate("run", *QUICK, "--out", "o", "--rounds", "1", "--force").code == 0


def start(arguments: list[str], folder: Path, **kwargs) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fairfate", *arguments]
    environment = {**os.environ, "COLUMNS": "100"}
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **kwargs,
    )


LONG = ["run", "--data", "synthetic:rows=2000", "--rounds", "60", "--seeds", "40", "--out", "o"]


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_keeps_finished_seeds_and_the_same_command_continues(tmp_path: Path, jobs: str) -> None:
    process = start([*LONG, "--jobs", jobs], tmp_path)
    cells, limit = tmp_path / "o" / "cells", time.monotonic() + 60
    while len(list(cells.glob("synthetic_*.parquet"))) < 2 and time.monotonic() < limit:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "Finished seeds are kept" in err
    assert "Traceback" not in err
    kept = {p.name: p.stat().st_mtime_ns for p in cells.glob("synthetic_*.parquet")}
    assert len(kept) >= 2
    assert not list((tmp_path / "o").rglob(".*"))  # no half-written file
    process = start([*LONG, "--jobs", jobs], tmp_path)
    limit = time.monotonic() + 60
    while len(list(cells.glob("synthetic_*.parquet"))) <= len(kept) and time.monotonic() < limit:
        time.sleep(0.02)
    now = {p.name: p.stat().st_mtime_ns for p in cells.glob("synthetic_*.parquet")}
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert len(now) > len(kept)
    assert all(now[name] == stamp for name, stamp in kept.items())


@pytest.mark.slow
@pytest.mark.parametrize("step", ["page.write_report", "tracking.Tracking.log"])
def test_a_run_killed_after_its_training_continues_with_the_rest(
    fairfate, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """What follows the training is a part of the run: the report, and what is logged elsewhere."""
    logged = []
    address = "fairfate.report.tracking.open_tracking"
    monkeypatch.setattr(address, lambda uri: Tracking(uri, None, ""))
    monkeypatch.setattr(Tracking, "log", lambda self, run: logged.append(run) or "1")
    arguments = ["run", *QUICK, "--mlflow", "sqlite:///m.db"]
    assert fairfate(*arguments, "--out", "whole").code == 0

    def killed(*args: object, **options: object) -> None:
        raise Stopped(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(f"fairfate.report.{step}", killed)
        with pytest.raises(Stopped):
            fairfate(*arguments, "--out", "o")
    assert not Path("o/summary.csv").exists()
    code, out, err = fairfate(*arguments, "--out", "o")
    assert (code, err) == (0, "")
    assert "Report: o/report.html" in out
    assert "Logged to sqlite:///m.db (run 1)" in out
    assert len(logged) == 2
    whole, result = (
        {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in (Path("whole"), Path("o"))
    )
    assert [name for name in {**whole, **result} if whole.get(name) != result.get(name)] == []


def test_a_full_disk_is_one_message_and_leaves_no_half_written_file(tmp_path: Path) -> None:
    """A limit on the size of files stands in for a disk that fills up in the middle."""

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))

    arguments = ["run", "--data", "synthetic:rows=300", "--rounds", "40", "--seeds", "2", "--out", "o"]
    process = start([*arguments, "--jobs", "1"], tmp_path, preexec_fn=small_files)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2, err
    assert "Error: could not read or write" in err
    assert "Traceback" not in err
    assert not (tmp_path / "o" / "rounds.parquet").exists()
    assert not list((tmp_path / "o").rglob(".*"))


def test_an_unwritable_folder_is_one_message(fairfate) -> None:
    Path("file").write_text("")
    code, _, err = fairfate("run", *QUICK, "--out", "file/inside")
    assert code == 2
    assert "could not read or write" in err


@pytest.mark.parametrize("option", ["--data", "--rounds", "--out", "--force", "--seeds"])
def test_an_option_given_twice_is_refused(fairfate, option: str) -> None:
    value = [] if option == "--force" else ["1"]
    code, _, err = fairfate("run", option, *value, option, *value)
    assert code == 2
    assert f"{option} was given 2 times; give it once" in err
    assert not list(Path().iterdir())
    assert fairfate("run", *QUICK, "--strategy", "fedavg", "--strategy", "fedmom").code == 0


NO_MEMORY = "Error: not enough memory. Finished work is kept.\n"


@pytest.mark.parametrize("megabytes", [200, 300, 400])
def test_a_limit_on_memory_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, megabytes: int
) -> None:
    """So little that a library cannot be loaded; some of them, written in C, end the process themselves."""
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")  # each takes address space, as many as there are cores

    def little_memory() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (megabytes * 1_000_000, megabytes * 1_000_000))

    process = start(["run", *QUICK, "--out", "o"], tmp_path, preexec_fn=little_memory)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2 or process.returncode < 0
    assert process.returncode < 0 or err.endswith(NO_MEMORY)  # after what a library may have written
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_memory_that_runs_out_in_training_is_one_message(tmp_path: Path, jobs: str) -> None:
    (tmp_path / "greedy.py").write_text(
        "import numpy as np\n"
        "from fairfate.strategies import ModelState, Strategy, register\n"
        "@register('greedy', 'takes all memory', 'nobody')\n"
        "def greedy(setup):\n"
        "    return Strategy(ModelState, lambda state, cohort: np.ones(2**50))\n"
    )
    words = ["run", *QUICK[:-1], jobs, "--plugin", "greedy.py", "--strategy", "greedy", "--out", "o"]
    process = start(words, tmp_path)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (2, NO_MEMORY)


@pytest.mark.parametrize("limit", [0, 100])
def test_a_limit_on_the_size_of_files_names_the_file_and_leaves_nothing(tmp_path: Path, limit: int) -> None:
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    process = start(["run", *QUICK, "--out", "o"], tmp_path, preexec_fn=small_files)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert err == "Error: could not read or write 'o/config.toml': File too large\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_error_that_cannot_be_written_anywhere_is_an_exit_code(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        words = [sys.executable, "-m", "fairfate", "data", "list"]
        process = subprocess.run(words, stdout=full, stderr=full, check=False, cwd=tmp_path)
    assert process.returncode == 2


def test_progress_is_drawn_on_terminals_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Bar("rounds", 8) as bar:
        bar.progress(3)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Bar("rounds", None) as bar:
        bar.plan(8)
        bar.progress(3)
    out, err = capsys.readouterr()
    assert out == ""  # which is for results
    assert "rounds" in err
    assert "3/8" in err


def test_interrupted_sweep_says_what_is_kept(tmp_path: Path) -> None:
    with pytest.raises(Stopped) as stopped, watching(tmp_path / "o"):
        raise Stopped(signal.SIGINT)
    assert stopped.value.advice == f"Finished jobs are kept in {tmp_path / 'o'}; the same command continues."


def test_help_of_a_run_has_a_panel_for_each_section(fairfate) -> None:
    text = fairfate("run", "--help").out
    panels = re.findall(r"^╭─ (\w+) ─", text, re.MULTILINE)
    assert panels == ["Options", "Data", "Federation", "Strategy", "Training", "Output"]
    training = text.partition(" Training ")[2].partition(" Output ")[0]
    assert "--learning-rate" in training
    assert "--sensitive" not in training


def test_run_takes_every_option_of_the_table(fairfate) -> None:
    text = fairfate("run", "--help").out
    options = [*options_of(Options).values(), *options_of(Execution).values()]
    assert [option.key for option in options if f"--{option.key} " not in text.replace(",", " ")] == []
    assert "[paper|published]" in text
    assert "--no-no-report" not in text


def test_a_file_and_the_command_line_may_name_a_list_differently(fairfate) -> None:
    Path("own.toml").write_text(
        'data = "synthetic:rows=300"\nrounds = 1\nseeds = 1\nstrategies = ["fedmom"]\n'
    )
    code, _, err = fairfate(
        "run", "--config", "own.toml", "--strategy", "fedavg", "--jobs", "1", "--out", "o"
    )
    assert code == 0, err
    assert 'strategy = ["fedavg"]' in Path("o/config.toml").read_text()

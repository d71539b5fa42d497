"""Shells complete commands, options and names, without the weight of a run."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fairfate.options import Options, options_of

DATASETS = options_of(Options)["data"].suggestions
MODULE = [sys.executable, "-m", "fairfate"]


def ask(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*MODULE, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def completions(line: str) -> list[str]:
    """What bash is told for the last word of a line."""
    words = line.split(" ")
    reply = ask(_FAIRFATE_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1))
    assert reply.returncode == 0, reply.stderr
    assert reply.stderr == ""
    return reply.stdout.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("fairfate ru", ["run"]),
        ("fairfate data f", ["fetch"]),
        ("fairfate run --strat", ["--strategy"]),
        (
            "fairfate run --strategy fedavg --strategy fa",
            ["fair_acc_avg", "fair_avg", "fair_best", "fair_fate", "fairbatch", "fairfed", "fairgrad"],
        ),
        ("fairfate run --data a", ["adult", "acs_income"]),
        ("fairfate run --protocol p", ["paper", "published"]),
        ("fairfate run --data people.c", []),  # then bash offers files
        ("fairfate data describe ", list(DATASETS)),
        ("fairfate data fetch ", list(DATASETS[1:])),
        ("fairfate export runs/x --format s", ["skops"]),
        ("fairfate show ru", []),
        ("fairfate run --seeds 1 --seeds 2 --strat", ["--strategy"]),  # refused later, not now
    ],
)
def test_words_are_completed(line: str, expected: list[str]) -> None:
    assert completions(line) == expected


def test_completing_loads_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['fairfate']\n"
        "try:\n    from fairfate.__main__ import main; main()\n"
        "except SystemExit: sys.exit(sum(m in sys.modules for m in ['numpy', 'pandas', 'numba', 'flwr']))"
    )
    line = {"_FAIRFATE_COMPLETE": "complete_bash", "COMP_WORDS": "fairfate run --data a"}
    process = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **line, "COMP_CWORD": "3"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert "adult" in process.stdout


def test_bash_completes_with_the_script_that_it_is_given(tmp_path: Path) -> None:
    """In bash itself, through the function that the script defines."""
    program = tmp_path / "fairfate"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(MODULE)} "$@"\n')
    program.chmod(0o700)
    script = (
        'eval "$(fairfate --show-completion bash)"\n'
        "COMP_WORDS=(fairfate sh) COMP_CWORD=1\n"
        "_fairfate_completion fairfate\n"
        'echo "${COMPREPLY[*]}"\ncomplete -p fairfate\n'
    )
    path = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    process = subprocess.run(
        ["bash", "-c", script], env=path, capture_output=True, text=True, check=False, timeout=60
    )
    assert process.stdout == "show\ncomplete -o default -F _fairfate_completion fairfate\n", process.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish", "powershell"])
def test_other_shells_have_a_script_too(shell: str) -> None:
    reply = ask("--show-completion", shell)
    assert reply.returncode == 0
    assert "_FAIRFATE_COMPLETE" in reply.stdout


def test_an_unknown_shell_is_named() -> None:
    reply = ask("--show-completion", "tcsh")
    assert reply.returncode == 2
    assert "must name one of bash, zsh, fish, powershell, pwsh, got 'tcsh'" in reply.stderr


def test_installing_writes_into_the_home_folder_only(tmp_path: Path) -> None:
    reply = ask("--install-completion", "bash", HOME=str(tmp_path))
    assert reply.returncode == 0, reply.stderr
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [".bashrc", "fairfate.sh"]
    assert str(tmp_path / ".bash_completions" / "fairfate.sh") in reply.stdout


def test_the_module_is_the_command() -> None:
    assert ask("--version").stdout.startswith("fairfate 0.")
    assert ask("--help").stdout.strip().startswith("Usage: fairfate ")
    assert ask("nonsense").returncode == 2


def test_commands_are_listed_as_a_newcomer_needs_them() -> None:
    panel = ask("--help", COLUMNS="100").stdout.partition(" Commands ")[2].splitlines()[1:]
    names = [line.split()[1] for line in panel if line.startswith("│ ") and line[2] != " "]
    assert names == [
        *("run", "show", "report", "watch", "plot", "predict", "evaluate", "export", "privacy"),
        *("strategies", "sweep", "reproduce", "benchmark", "data", "flower"),
    ]

"""Every command and every Python block of the README and the docs runs, and prints what the page shows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from documented import ROOT, RUN, SHOWN, blocks, differs, run_page, runnable
from fairfate.strategies import Cohort, Strategy

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
README = (ROOT / "README.md").read_text()
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the page, in one folder, and Python with one set of names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    for block, printed in run_page(page, tmp_path):
        wrong = "" if block.output is None else differs(block.output, printed)
        assert not wrong, f"{page.name}, line {block.line}: {wrong}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_code_that_does_not_run_says_why(page: Path) -> None:
    for block in blocks(page.read_text()):
        where = f"{page.name}, line {block.line}"
        assert block.language in (*RUN, *SHOWN), f"{where}: unknown language '{block.language}'"
        if block.mark:
            assert block.reason, f"{where}: '{block.mark}' must give a reason"
            assert block.language in RUN or block.mark == "file", f"{where}: only code that runs is marked"
        if block.language == "bash" and block.is_new and not block.inline:
            assert block.mark == "not run", f"{where}: must be marked 'not run: new' until it is there"


def test_the_readme_shows_its_main_commands() -> None:
    assert "pip install -e . && fairfate run" in README
    assert 'pip install -e ".[dev]" && pytest' in README
    assert sum(len(runnable(page)) for page in PAGES) >= 75
    assert sum(block.output is not None for page in PAGES for block in runnable(page)) >= 25
    assert any(block.output is not None for block in runnable(ROOT / "README.md"))


def test_the_readme_evaluates_on_rows_that_it_has_not_trained_on() -> None:
    trained, evaluated = (
        set(re.findall(rf"fairfate {command} .*?--data (\S+)", README)) for command in ("run", "evaluate")
    )
    assert trained
    assert evaluated
    assert not trained & evaluated


def test_the_page_on_strategies_lists_every_field_of_a_strategy_and_a_cohort() -> None:
    page = (ROOT / "docs" / "add-a-strategy.md").read_text()
    assert f"# {Strategy._fields}\n" in page
    first = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    named = {name for cell in first for name in re.findall(r"`(\w+)", cell)}
    assert named == {*Strategy._fields, *Cohort._fields}


@pytest.mark.skipif(not NGINX and "CI" not in os.environ, reason="nginx is not installed")
def test_the_certificates_of_the_flower_page_open_the_door(tmp_path: Path) -> None:
    """All its openssl commands in one folder, then nginx reads its configurations with them."""
    page = (ROOT / "docs" / "flower.md").read_text()
    scripts = [block.code for block in blocks(page) if block.language == "sh"]
    assert len(scripts) == 3
    proxy = ROOT / "src" / "fairfate" / "flower" / "app" / "template" / "proxy"
    for name in ("server.conf", "allowed.conf", "forwarder.conf"):
        text = (proxy / name).read_text()
        (tmp_path / name).write_text(text.replace("server fl.example.org", "server 127.0.0.1"))
    subprocess.run(
        ["bash", "-e", "-c", "umask 077\n" + "\n".join(scripts)],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    assert re.search(r"^[0-9A-F]{20,} site;  # north$", (tmp_path / "allowed.conf").read_text(), flags=re.M)
    (tmp_path / "north.crt").rename(tmp_path / "client.crt")  # as North calls it
    for name in ("server.conf", "forwarder.conf"):
        process = subprocess.run(
            [str(NGINX), "-t", "-p", str(tmp_path), "-c", name], capture_output=True, text=True, check=False
        )
        assert process.returncode == 0, process.stderr
    for name in ("ca", "server", "client", "local"):
        assert (tmp_path / f"{name}.key").stat().st_mode & 0o077 == 0

"""Every command and every Python block of the README and the docs runs."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import made_up

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
README = (ROOT / "README.md").read_text()
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.M | re.S)


def commands(text: str) -> list[str]:
    """The lines that start with `fairfate`, from code blocks and from running text."""
    joined = text.replace("\\\n", " ")
    found = [line for block in blocks(joined, "bash") for line in block.splitlines()]
    found += re.findall(r"^    (fairfate .*)$", joined, flags=re.M)
    found += [
        match.replace("\n", " ")
        for match in re.findall(r"`(fairfate run [^`]*|fairfate plot [^`]*)`", joined)
    ]
    plain = [line.partition(" # ")[0] for line in found if line.startswith("fairfate ")]
    return [re.sub(r"\s+", " ", line).strip() for line in plain]


COMMANDS = sorted({command for page in PAGES for command in commands(page.read_text())})
NEEDS_DATA = ("adult", "reproduce")
SMALL = ["--datasets", "compas", "--sigmas", "rnd", "--protocols", "published", "--seeds", "1"]


def shorten(words: list[str]) -> list[str]:
    """The same command with less work: few rounds and seeds; the options under test stay."""
    less = {"reproduce": SMALL, "run": ["--seeds", "1", "--rounds", "2", "--epochs", "1"]}.get(words[0], [])
    kept = list(words)
    for option in less[::2]:
        if option in kept:
            at = kept.index(option)
            del kept[at : at + 2]
    return [*kept, *less]


def test_the_readme_shows_its_main_commands() -> None:
    assert "pip install -e . && fairfate run" in README
    assert 'pip install -e ".[dev]" && pytest' in README
    assert len(COMMANDS) >= 8


@pytest.mark.parametrize("command", [c for c in COMMANDS if "fetch" not in c])
def test_commands_run(command: str, tmp_path: Path, people: Path) -> None:
    words = shlex.split(command)[1:]
    if any(name in words for name in NEEDS_DATA) and not os.environ.get("FAIRFATE_DATA"):
        pytest.skip("FAIRFATE_DATA is not set")
    if "--model" in words:
        pytest.importorskip("torch", reason='pip install "fairfate[torch]"')
    (tmp_path / "people.csv").exists() or shutil.copy(people, tmp_path / "people.csv")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    base = [sys.executable, "-m", "fairfate"]
    if any(word.startswith("hospitals/") for word in words):
        subprocess.run([*base, "flower", "init", "hospitals"], cwd=tmp_path, check=True, capture_output=True)
    if words[:2] == ["flower", "check"]:
        write = ["flower", "schema", "hospitals", "--out", "hospitals/schema.json"]
        subprocess.run([*base, *write], cwd=tmp_path, check=True, capture_output=True)
    if words[0] in ("predict", "evaluate"):  # of people about whom there is something to learn
        names, values = (
            {"risk": "hired", "house": "sex"},
            {"good": "yes", "bad": "no", "own": "f", "rent": "m"},
        )
        learnable = made_up.credit(600).rename(columns=names).replace(values)
        learnable.to_csv(tmp_path / "people.csv", index=False)
        own = ["--data", "people.csv", "--target", "hired", "--favourable", "yes", "--sensitive", "sex"]
        quick = ["run", *own, "--strategy", "fedavg", "--seeds", "2", "--out", "runs/people"]
        subprocess.run([*base, *quick], cwd=tmp_path, check=True, capture_output=True)
    if words[0] in ("plot", "export"):
        quick = ["run", "--rounds", "30", "--seeds", "1", "--out", "runs/synthetic-1"]
        subprocess.run([*base, *quick], cwd=tmp_path, check=True, capture_output=True)
    done = subprocess.run([*base, *shorten(words)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks(page.read_text(), "python"):
        exec(compile(block, str(page), "exec"), {})


def test_links_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_readme_prints_what_the_command_prints(tmp_path: Path) -> None:
    """The main job on the embedded data, word for word."""
    environment = {**os.environ, "COLUMNS": "80"}
    done = subprocess.run(
        [sys.executable, "-m", "fairfate", "run"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    shown = next(block for block in blocks(README, "text") if "Saved to" in block)
    assert shown.split() == done.stdout.split()


@pytest.mark.skipif(not NGINX and "CI" not in os.environ, reason="nginx is not installed")
def test_the_certificates_of_the_flower_page_open_the_door(tmp_path: Path) -> None:
    """All its openssl commands in one folder, then nginx reads its configurations with them."""
    scripts = blocks((ROOT / "docs" / "flower.md").read_text(), "sh")
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
    for name in ("server.conf", "forwarder.conf"):
        done = subprocess.run(
            [str(NGINX), "-t", "-p", str(tmp_path), "-c", name], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    for name in ("ca", "server", "client", "local"):
        assert (tmp_path / f"{name}.key").stat().st_mode & 0o077 == 0

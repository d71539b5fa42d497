"""The code of a Markdown page, in the order of the page, and what it prints.

What runs is said in the page itself, by a comment in the line above a block:

    <!-- not run: REASON -->   the block is not run
    <!-- short: REASON -->     its `fairfate run` commands are run with few rounds and one seed
    <!-- file: NAME -->        the block is saved under that name, for the blocks after it
    <!-- output -->            a `text` block: what the block before it prints; `...` stands for any lines

``python tests/documented.py docs/start.md`` runs a page and writes what its blocks print into it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import made_up

ROOT = Path(__file__).parent.parent
RUN = ("bash", "python")
SHOWN = ("text", "toml", "sh", "yaml", "json", "ini", "html", "csv", "dockerfile", "nginx")
"""Languages of blocks that are read and not run; `sh` are certificates, which have a test of their own."""
DATASETS = ("adult", "compas", "law", "dutch", "reproduce", "choosing.toml")
LESS = {
    "run": ["--seeds", "1", "--rounds", "2", "--epochs", "1"],
    "reproduce": ["--datasets", "compas", "--sigmas", "rnd", "--protocols", "published", "--seeds", "1"],
}
"""Options that take the place of a command's own where it is shortened."""
NEEDLESS = ("--jobs", "--out")
"""Options of `reproduce` that then make no difference, so that one command is run for several."""
STUBS = ("pip", "pytest")
"""Programs that a page names and that do nothing here."""
NEW: tuple[str, ...] = ()
"""Commands and options that pages speak of before they are there; a block with one of them must say so."""
UNMARKED = {"reproduction.md": ("fairfate reproduce",)}
"""Commands on a page that a program writes, and that are shortened."""

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)[^\n`]*$")
_MARK = re.compile(r"<!-- (?P<kind>not run|short|file|output)(?:: (?P<reason>.+?))? -->")
_INLINE = re.compile(r"`(fairfate (?:run|plot|sweep|data describe) [^`]+)`")


class Block(NamedTuple):
    """Some code of a page."""

    language: str
    code: str
    line: int
    mark: str = ""
    reason: str = ""
    output: str | None = None
    """What the page says that it prints."""
    inline: bool = False
    """A command in running text."""

    @property
    def is_new(self) -> bool:
        """Whether it needs what is not there yet."""
        return any(new in self.code for new in NEW)


def blocks(text: str) -> list[Block]:
    """All fenced blocks, indented commands and commands in running text, in the order of the page."""
    lines, result, index = text.splitlines(), [], 0
    while index < len(lines):
        fence = _FENCE.match(lines[index])
        if fence is None:
            result += _commands(lines, index)
            index += 1
            continue
        end = next(n for n in range(index + 1, len(lines)) if lines[n].strip() == "```")
        mark = _MARK.fullmatch(lines[index - 1].strip()) if index else None
        kind, reason = (mark["kind"], mark["reason"] or "") if mark is not None else ("", "")
        indent = len(fence["indent"])
        code = "".join(f"{line[indent:]}\n" for line in lines[index + 1 : end])
        if kind == "output":
            result[-1] = result[-1]._replace(output=code)
        else:
            result.append(Block(fence["language"], code, index + 1, kind, reason))
        index = end + 1
    return result


def _commands(lines: list[str], place: int) -> list[Block]:
    """Commands in a line of text, which may go on in the next, or in an indented one."""
    line = lines[place]
    if line.startswith("    fairfate "):
        return [Block("bash", line.strip() + "\n", place + 1)]
    inside = _INLINE.findall(line)
    if "`fairfate" in line and line.count("`") % 2:
        inside += _INLINE.findall(f"{line[line.rindex('`fairfate') :]} {lines[place + 1].partition('`')[0]}`")
    return [Block("bash", command + "\n", place + 1, inline=True) for command in inside]


def lacking(block: Block) -> str:
    """What this machine lacks for a block, if anything."""
    names = re.findall(r"[\w.]+", block.code)
    if any(name in names for name in DATASETS) and not os.environ.get("FAIRFATE_DATA"):
        return "FAIRFATE_DATA is not set"
    if "--model " in block.code and importlib.util.find_spec("torch") is None:
        return 'pip install "fairfate[torch]"'
    return ""


def runnable(page: Path) -> list[Block]:
    """The blocks of a page that are run or saved, shortened where the page says so."""
    results: list[Block] = []
    for block in blocks(page.read_text()):
        if block.mark == "file":
            results.append(block)
        elif block.language in RUN and block.mark != "not run" and not (block.inline and block.is_new):
            short = block.mark == "short" or any(part in block.code for part in UNMARKED.get(page.name, ()))
            code = shorten(block.code) if short else block.code
            results.append(block._replace(code=code, output=None if short else block.output))
    return results


def shorten(code: str) -> str:
    """The same commands with less work; the options under test stay."""

    def less(command: re.Match[str]) -> str:
        words = shlex.split(command[0], comments=True)
        needless = NEEDLESS if words[1] == "reproduce" else ()
        for option in (*LESS[words[1]][::2], *needless):
            if option in words:
                at = words.index(option)
                del words[at : at + 2]
        return shlex.join([*words, *LESS[words[1]]])

    return re.sub(r"^fairfate (?:run|reproduce)\b.*$", less, code.replace("\\\n", " "), flags=re.M)


def run_page(page: Path, folder: Path) -> Iterator[tuple[Block, str]]:
    """Run a page's code in an empty folder that is the current one; each block with what it prints.

    Python has one set of names for the page. A block that this machine lacks something for is left out, and
    so is a command that the page has already given.
    """
    result, outcome = runnable(page), set()
    if not result:
        return
    environment, names = prepare(folder), {"__name__": "__main__"}
    for block in result:
        if lacking(block) or (block.code in outcome and block.output is None):
            continue
        outcome.add(block.code)
        if block.mark == "file":
            (folder / block.reason).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.reason).write_text(block.code)
        elif block.language == "bash":
            yield block, _run_bash(block.code, folder, environment)
        else:
            yield block, _run_python(block.code, f"{page.name}, line {block.line}", names)


def prepare(folder: Path) -> dict[str, str]:
    """Put the files that pages speak of into a folder; returns the environment for its commands."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    names = {"risk": "hired", "house": "sex"}
    values = {"good": "yes", "bad": "no", "own": "f", "rent": "m"}
    for file, rows in {"people.csv": made_up.credit(600), "next-year.csv": made_up.credit(700)[600:]}.items():
        rows.rename(columns=names).replace(values).to_csv(folder / file, index=False)
    programs = folder / ".programs"
    programs.mkdir()
    scripts = {
        "fairfate": f'exec "{sys.executable}" -m fairfate "$@"',
        "python": f'exec "{sys.executable}" "$@"',
        **dict.fromkeys(STUBS, "exit 0"),
    }
    for name, script in scripts.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    path = f"{programs}:{os.environ.get('PATH', '')}"
    return {**os.environ, "PATH": path, "COLUMNS": "80", "MPLBACKEND": "Agg", "NO_COLOR": "1"}


def _run_bash(code: str, folder: Path, environment: dict[str, str]) -> str:
    process = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", code],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, f"{code}\n{process.stdout}\n{process.stderr}"
    return process.stdout


def _run_python(code: str, where: str, names: dict[str, Any]) -> str:
    """In this process."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, where, "exec"), names)
    return printed.getvalue()


POOLED = re.compile(
    r"(?<=on pooled rows: )logistic regression [-. 0-9]+gradient boosting [-. 0-9]+"
    r"|Trained on the pooled rows [^;]*; [^;]*? EQO [.0-9]+"
)
"""What scikit-learn's models reach: its sums depend on the CPU."""


def differs(shown: str, printed: str) -> str:
    """Why an output is not the one that a page shows; "" if it is. Blanks and ends of lines do not count."""
    marked = re.sub(r"^ *\.\.\.$", "\1", shown, flags=re.M)
    wanted, real = (
        POOLED.sub("", " ".join(word for line in text.splitlines() for word in line.split()))
        for text in (marked, printed)
    )
    pattern = r"\s*.*?\s*".join(re.escape(part.strip()) for part in wanted.split("\1"))
    if re.fullmatch(pattern, real, flags=re.S):
        return ""
    return f"the page shows\n{shown}\nbut this is printed:\n{printed}"


def update(page: Path) -> None:
    """Write what the blocks of a page print into it, except where something is left out."""
    text, at, here = page.read_text(), 0, Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for block, printed in run_page(page, Path(folder)):
                if block.output is None:
                    continue
                old = f"<!-- output -->\n```text\n{block.output}```"
                at = text.index(old, at)
                lines = [line.rstrip() for line in printed.strip("\n").splitlines()]
                new = "\n".join(["<!-- output -->", "```text", *lines, "```"])
                if differs(block.output, printed):
                    if re.search(r"^ *\.\.\.$", block.output, flags=re.M):
                        sys.stdout.write(
                            f"{page.name}, line {block.line} is to be changed by hand:\n{printed}\n"
                        )
                        continue
                    text = text[:at] + new + text[at + len(old) :]
                at += len("<!-- output -->")
        finally:
            os.chdir(here)
    page.write_text(text)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        update(Path(name).resolve())

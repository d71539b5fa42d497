"""CPU seconds of short commands: best of several, taken in turns, beside what they should take at most.

    python benchmarks/commands.py [--repeats 10] [--json FILE]

The commands run as a user's do, with compiled code on the disk. COMPAS is taken from FAIRFATE_DATA or the
cache. A computer that is busy otherwise makes CPU seconds longer, too.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

RUN = ["run", "--data", "compas", "--strategy", "fedavg", "--seeds", "1", "--out"]
TARGETS = {"run": 0.8, "show": 0.4, "strategies": 0.4, "data list": 0.4, "--help": 0.4, "--version": 0.4}
"""CPU seconds that each may take."""


def cpu_seconds(words: list[str]) -> float:
    """Of one command, with the processes that it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([sys.executable, "-m", "fairfate", *words], env=env, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(repeats: int, folder: Path) -> dict[str, float]:
    """The best of each command, after a first run that compiles."""
    first = folder / "first"
    cpu_seconds([*RUN, str(first)])
    results: dict[str, list[float]] = {name: [] for name in TARGETS}
    for number in range(repeats):
        for name, times in results.items():
            words = {"run": [*RUN, str(folder / str(number))], "show": ["show", str(first)]}
            times.append(cpu_seconds(words.get(name, name.split())))
    return {name: round(min(times), 3) for name, times in results.items()}


def main() -> None:
    """Print the table, and say what is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--json", type=Path, help="file for the numbers by name")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measures = measure(options.repeats, Path(folder))
    for name, seconds in measures.items():
        missed = "  missed" if seconds > TARGETS[name] else ""
        print(f"{name:12} {seconds:5.2f} s  at most {TARGETS[name]:.1f}{missed}")
    if options.json is not None:
        options.json.write_text(json.dumps(measures, indent=1) + "\n")


if __name__ == "__main__":
    main()

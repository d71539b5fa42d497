"""Keep the results of finished benchmarks: python tools/keep_benchmark.py FOLDER... [--note NOTE].

They are what `fairfate benchmark --methods mine` compares with, and what docs/benchmark.md is made from:
afterwards, run `python tools/benchmark_page.py` and `python tools/pages.py`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pandas as pd

from fairfate.studies.benchmark.measure import WHERE
from fairfate.studies.benchmark.run import kept_file, machine, read_jobs, write_kept
from fairfate.studies.pages import CLOCK


def main() -> None:
    """Put all cells of some folders into one file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--note", default="", help="about the machine")
    given = parser.parse_args()
    frames, cells, seconds = [], [], 0.0
    for folder in given.folders:
        for rows, key in read_jobs(folder):
            frames.append(rows)
            cells.append({name: value for name, value in key.items() if name != "version"})
        seconds += float((folder / CLOCK).read_text())
    rows = pd.concat(frames, ignore_index=True).sort_values(
        [*WHERE, "method", "setting", "part"], kind="stable"
    )
    about = {"cells": cells, "minutes": round(seconds / 60, 1), "machine": machine() + given.note}
    write_kept(kept_file(), rows.reset_index(drop=True), about)
    sys.stdout.write(f"{len(rows):,} rows, {kept_file().stat().st_size / 1e6:.2f} MB\n")


if __name__ == "__main__":
    main()

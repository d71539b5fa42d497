"""docs/benchmark.md, its interactive form and its pictures, from the results that come with the package."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from fairfate.studies.benchmark.findings import Findings
from fairfate.studies.benchmark.page import interactive as html
from fairfate.studies.benchmark.page import page as text
from fairfate.studies.benchmark.pictures import write_pictures
from fairfate.studies.benchmark.run import read_kept

IMAGES = Path(__file__).parent.parent / "docs" / "images" / "benchmark"


@cache
def findings() -> Findings:
    """What the kept results say."""
    rows, about = read_kept()
    return Findings(rows, float(about["minutes"]), str(about["machine"]))


def page() -> str:
    """The page to read."""
    return text(findings())


def interactive() -> str:
    """The page to click."""
    return html(findings())


if __name__ == "__main__":
    for path in IMAGES.glob("*.svg"):
        path.unlink()
    write_pictures(IMAGES, findings())

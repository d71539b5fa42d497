"""The files that a benchmark leaves: a page to read, one to click, tables and pictures."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, StrictUndefined, Template

from fairfate._version import __version__
from fairfate.fairness.selection import KEEP, TOLERANCE
from fairfate.report.page import asset, json_script
from fairfate.storage import replacing, write_bytes
from fairfate.studies.benchmark.baselines import BASELINES
from fairfate.studies.benchmark.findings import Findings, duration, finite, settings_of
from fairfate.studies.benchmark.methods import LEAD, REFERENCE
from fairfate.studies.benchmark.page import page
from fairfate.studies.benchmark.pictures import FIGURES

PAGE, HTML, BOARD, CELLS = "benchmark.md", "benchmark.html", "leaderboard.csv", "cells.csv"
IMAGES = "images"
_DIGITS = {"seconds": 3, "rank": 2}


def write_all(folder: Path, found: Findings) -> Path:
    """Everything into the folder; returns the page to open."""
    write_pictures(folder / IMAGES, found)
    write_bytes(folder / PAGE, page(found, IMAGES, HTML).encode())
    write_bytes(folder / BOARD, found.board.round(4).to_csv(index=False).encode())
    write_bytes(folder / CELLS, found.cells.round(4).to_csv(index=False).encode())
    write_bytes(folder / HTML, interactive(found).encode())
    return folder / HTML


def write_pictures(folder: Path, found: Findings) -> None:
    """SVG, the same bytes for the same numbers."""
    import matplotlib as mpl

    with mpl.rc_context({"svg.hashsalt": "fairfate", "svg.fonttype": "none"}):
        for encode in found.encodings:
            for name, draw in FIGURES.items():
                with replacing(folder / f"{name}-{encode}.svg") as temporary:
                    draw(found, encode).savefig(temporary, format="svg", metadata={"Date": None})


def interactive(found: Findings) -> str:
    """One HTML file that needs nothing else."""
    facts = [
        f"{len(found.methods)} methods",
        f"{len(found.rows[['dataset', 'partition', 'encode']].drop_duplicates())} federations",
        f"{found.rows['seed'].nunique()} seeds",
        f"{len(found.rows):,} models measured",
        duration(found.minutes),
        found.machine,
    ]
    cells = found.cells.drop(columns=["seeds", "accuracy_low", "accuracy_high", "matched"])
    data = {
        "encodings": found.encodings,
        "datasets": list(dict.fromkeys(cells["dataset"])),
        "partitions": list(dict.fromkeys(cells["partition"])),
        "baselines": list(BASELINES),
        "own": found.own,
        "lead": LEAD,
        "reference": REFERENCE,
        "cells": _columns(cells),
        "settings": _columns(settings_of(found)),
    }
    return _template().render(
        version=__version__,
        facts=[fact for fact in facts if fact],
        tolerance=TOLERANCE,
        keep=f"{KEEP:.0%}",
        reference=REFERENCE,
        style=asset("report.css"),
        plot=asset("plot.min.js"),
        script=_own("benchmark.js"),
        data=json_script(data),
    )


def _columns(frame: pd.DataFrame) -> dict[str, Any]:
    """A frame for JSON, which knows no NaN; texts as numbers, each text once."""
    found: dict[str, Any] = {}
    for name in frame.columns:
        values = frame[name].tolist()
        if values and isinstance(values[0], str):
            texts = list(dict.fromkeys(values))
            places = {text: place for place, text in enumerate(texts)}
            found[name] = {"texts": texts, "places": [places[text] for text in values]}
            continue
        digits = _DIGITS.get(name, 4)
        found[name] = [
            (None if finite(value) is None else round(value, digits)) if isinstance(value, float) else value
            for value in values
        ]
    return found


@cache
def _own(name: str) -> str:
    return (files("fairfate.studies.benchmark") / "html" / name).read_text("utf-8")


@cache
def _template() -> Template:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_own("benchmark.html.j2"))

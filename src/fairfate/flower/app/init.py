"""Writes a Flower app that trains the built-in model, with invented data to try it on."""

from __future__ import annotations

import keyword
import re
import secrets
import shutil
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fairfate._version import __version__
from fairfate.data import Table, synthetic
from fairfate.errors import InputError
from fairfate.federation.partition import dirichlet
from fairfate.federation.seeds import Streams

SITES = ("north", "south", "west")
MORE_SITES = (*SITES, "coast", "hills")
"""Under secure sums: one may drop out, and a sum is still over four: two that collude see no third one."""
ROWS = 3000
TAKEN = {
    "data",
    "sites",
    "runs",
    "deployment",
    "fairfate",
    "flwr",
    "numpy",
    "pandas",
    *sys.stdlib_module_names,
}


def init(path: str | Path, *, secure_sums: bool = False) -> Path:
    """Write an app into a new folder, whose name becomes the app's; returns the folder.

    With ``secure_sums`` its server sees sums over sites only, of which there are five.
    """
    folder = Path(path).expanduser().resolve()
    name = folder.name
    package = name.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,31}", name) or keyword.iskeyword(package) or package in TAKEN:
        raise InputError(
            "the app's name must be up to 32 small letters, digits and hyphens, and no word or module of"
            f" Python, got '{name}' (from '{path}')"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"the app's folder must be new or empty, got '{folder}'")
    if '"' in str(folder) or "\\" in str(folder):
        raise InputError(f"the app's folder must have a path without quotes or backslashes, got '{folder}'")
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = folder.with_name(f".{name}.{secrets.token_hex(8)}")
    try:
        building.mkdir()
        words = {"name": name, "package": package, "folder": str(folder), "version": __version__}
        sites = MORE_SITES if secure_sums else SITES
        _write_app(building, words | _SUMS[secure_sums], sites)
        _write_data(building / "data", sites)
        if folder.exists():
            folder.rmdir()
        building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return folder


_SUMS = {
    False: {"clip": "+clip", "from": "", "sums": "false", "min_sum": "3", "min_sites": "2"},
    True: {"clip": "", "from": "clients:mode=own", "sums": "true", "min_sum": "4", "min_sites": "4"},
}
"""What secure sums change in the run config."""


def _write_app(building: Path, words: dict[str, str], sites: Sequence[str]) -> None:
    template = files("fairfate.flower.app") / "template"
    paths = {
        "pyproject.toml.in": "pyproject.toml",
        "README.md": "README.md",
        "deploy_here.py": "deploy_here.py",
        "gitignore": ".gitignore",
        "proxy/server.conf": "proxy/server.conf",
        "proxy/allowed.conf": "proxy/allowed.conf",
        "proxy/forwarder.conf": "proxy/forwarder.conf",
        "app/__init__.py": f"{words['package']}/__init__.py",
        "app/server_app.py": f"{words['package']}/server_app.py",
        "app/client_app.py": f"{words['package']}/client_app.py",
    }
    texts = {path: (template / source).read_text("utf-8") for source, path in paths.items()}
    site = (template / "sites" / "site.toml").read_text("utf-8")
    texts |= {f"sites/{name}.toml": site.replace("{{site}}", name) for name in sites}
    for path, text in texts.items():
        for word, value in words.items():
            text = text.replace(f"{{{{{word}}}}}", value)
        file = building / path
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")


def _write_data(folder: Path, sites: Sequence[str]) -> None:
    """Invented rows: sites with unequal shares of the groups, and two files of the server's."""
    table, streams = synthetic(rows=ROWS), Streams(1)
    train, validation, test = streams.split(len(table))
    site = dirichlet(table.cell[train], len(sites), 1.0, streams.partition(), groups=table.groups)
    (folder / "sites").mkdir(parents=True)
    for number, name in enumerate(sites):
        frame_of(table, train[site == number]).to_csv(folder / "sites" / f"{name}.csv", index=False)
    frame_of(table, validation).to_csv(folder / "validation.csv", index=False)
    frame_of(table, test).to_csv(folder / "test.csv", index=False)


def frame_of(table: Table, rows: NDArray[np.int64]) -> pd.DataFrame:
    """Rows of a table as a file has them, with words for categories, groups and labels."""
    columns: dict[str, object] = {}
    for number, name in enumerate(table.feature_names):
        values = table.features[rows, number]
        words = table.group_names if (name,) == table.sensitive else table.categories.get(name)
        columns[name] = values.round(4) if words is None else np.array(words)[values.astype(int)]
    columns[table.target] = np.array(table.label_names)[table.label[rows]]
    return pd.DataFrame(columns)

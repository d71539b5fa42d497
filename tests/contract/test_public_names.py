"""The public names with their signatures, and the numbers of a run and a sweep, as they were written down.

``python tests/contract/test_public_names.py`` writes both anew.
"""

from __future__ import annotations

import importlib
import inspect
import json
import math
from pathlib import Path
from typing import Any

import fairfate

NAMES = Path(__file__).with_name("public_names.txt")
NUMBERS = Path(__file__).with_name("numbers.json")
PUBLIC = ("fairfate", "fairfate.strategies", "fairfate.flower")
RUN = {
    "data": "synthetic:rows=400",
    "strategies": ("fedavg", "fair_fate:metric=eqo", "fedavg_lr+average", "fedavg+average+thresholds"),
    "rounds": 4,
    "seeds": 2,
    "jobs": 1,
}
SWEEP = {
    "data": "synthetic:rows=300",
    "partition": ["random", "dirichlet:1"],
    "strategy": ["fedavg", "fedmom:beta=0.8|0.9"],
    "rounds": 3,
    "seeds": [1, 2],
}


def public_names() -> list[str]:
    lines = []
    for module in PUBLIC:
        package = importlib.import_module(module)
        for name in sorted(package.__all__):
            value = getattr(package, name)
            shape = ""
            if inspect.isclass(value) or inspect.isfunction(value):
                try:
                    shape = "(" + ", ".join(inspect.signature(value).parameters) + ")"
                except ValueError:
                    shape = ""
            lines.append(f"{module}.{name}{shape}")
    return lines


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return None if math.isnan(value) else round(value, 10)
    return value.item() if hasattr(value, "item") else value


def _rows(frame: Any) -> list[dict[str, Any]]:
    return [{key: _plain(value) for key, value in row.items()} for row in frame.to_dict("records")]


def numbers(folder: Path) -> dict[str, Any]:
    """What users read of a run and of a sweep: summaries, rates by group, clients, the recommended model."""
    import pandas as pd

    from fairfate.experiments.config import expand
    from fairfate.experiments.sweep import sweep

    run = fairfate.run(**RUN, out=folder / "run")  # type: ignore[arg-type]
    sweep(expand(SWEEP), folder / "sweep", jobs=1)
    clients = run.clients.drop(columns=[name for name in run.clients if name.startswith("note_")])
    return {
        "summary": _rows(run.summary),
        "groups": _rows(pd.read_csv(folder / "run" / "groups.csv")),
        "clients": _rows(clients.head(40)),
        "recommended": None if run.best is None else [run.best.name, run.best.seed],
        "sweep": _rows(pd.read_csv(folder / "sweep" / "summary.csv")),
    }


def test_public_names_and_their_parameters_are_those_written_down() -> None:
    assert public_names() == NAMES.read_text("utf-8").splitlines()


def test_numbers_of_a_run_and_a_sweep_are_those_written_down(tmp_path: Path) -> None:
    assert json.loads(json.dumps(numbers(tmp_path))) == json.loads(NUMBERS.read_text("utf-8"))


if __name__ == "__main__":
    import tempfile

    NAMES.write_text("".join(f"{line}\n" for line in public_names()), "utf-8")
    with tempfile.TemporaryDirectory() as made:
        NUMBERS.write_text(json.dumps(numbers(Path(made)), indent=0) + "\n", "utf-8")

"""The same bytes whatever the CPU: fingerprints under the sums of other families of processors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

TESTS = Path(__file__).parents[1]


def dispatched() -> str:
    """NumPy's faster loops that this processor has."""
    umath = np._core._multiarray_umath
    return " ".join(name for name in umath.__cpu_dispatch__ if umath.__cpu_features__.get(name))


@pytest.mark.parametrize(
    "variables",
    [
        *({"OPENBLAS_CORETYPE": family} for family in ("Haswell", "Zen", "SkylakeX", "Nehalem")),
        {"NPY_DISABLE_CPU_FEATURES": dispatched(), "OPENBLAS_CORETYPE": "Nehalem"},
    ],
    ids=lambda variables: ",".join(variables.values())[:20],
)
def test_golden_fingerprints_hold_under_other_processors(variables: dict[str, str], tmp_path: Path) -> None:
    named = [
        TESTS / name
        for name in (
            "golden/test_golden.py",
            "contract/test_strategies_contract.py",
            "engine/test_descent.py",
        )
    ]
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-x", *map(str, named)]
    environment = {**os.environ, **variables, "PYTEST_ADDOPTS": ""}
    environment.pop("PYTEST_XDIST_WORKER", None)
    process = subprocess.run(
        words, cwd=TESTS.parent, env=environment, capture_output=True, text=True, timeout=900
    )
    assert process.returncode == 0, process.stdout[-3000:]
    assert " passed" in process.stdout or "100%" in process.stdout

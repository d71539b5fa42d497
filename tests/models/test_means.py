"""Means of large updates come from a compiled loop; their bits are those of NumPy."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from fairfate.models import means
from fairfate.models.kernels import means as loops
from fairfate.models.means import weighted_means

VALUES = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "of all sizes": lambda rng, shape: rng.normal(size=shape) * 10.0 ** rng.integers(-44, 36, shape),
    "subnormal": lambda rng, shape: rng.normal(size=shape) * 1e-42,
    "signed zeros": lambda rng, shape: np.where(rng.random(shape) < 0.7, -0.0, 0.0),
}
WEIGHTS = [
    lambda rng, clients: rng.integers(1, 1000, clients),
    lambda rng, clients: np.where(rng.random(clients) < 0.5, 0.0, rng.random(clients)),
    lambda rng, clients: np.zeros(clients),
    lambda rng, clients: rng.normal(size=clients) + 0.5,
]


def one_after_another(deltas: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The mean as the documentation says it: every product rounded, and added to those before."""
    total, mean = float(weights.sum()), np.zeros(deltas.shape[1], dtype=deltas.dtype)
    if total > 0:
        for share, delta in zip((weights / total).astype(deltas.dtype), deltas, strict=True):
            mean = mean + share * delta
    return mean


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize(
    ("clients", "columns", "beside"),
    [(1, 2, 0), (3, 16_385, 0), (4, 700, 3), (11, 33_000, 1), (99, 4_042, 0)],
)
def test_compiled_means_have_the_bits_of_numpys(
    clients: int, columns: int, beside: int, values: str, dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(clients)
    deltas = VALUES[values](rng, (clients, columns + beside)).astype(dtype)[:, :columns]
    weights = [value(rng, clients) for value in WEIGHTS]
    called, loop = [], loops._KERNELS[np.dtype(dtype)]
    monkeypatch.setitem(loops._KERNELS, np.dtype(dtype), lambda *given: called.append(loop(*given)))
    numpys = weighted_means(deltas, *weights)
    assert not called  # too small
    monkeypatch.setattr(means, "_LARGE", 0)
    compiled = weighted_means(deltas, *weights)
    assert called
    for result, other, value in zip(compiled, numpys, weights, strict=True):
        assert result.dtype == dtype
        assert result.tobytes() == other.tobytes()
        assert result[:-1].tobytes() == one_after_another(deltas, value)[:-1].tobytes()


STORED = {
    "rows": lambda deltas: deltas,
    "columns": np.asfortranarray,
    "apart": lambda deltas: np.repeat(deltas, 2, axis=1)[:, ::2],
    "backwards": lambda deltas: deltas[::-1],
}


@pytest.mark.parametrize("stored", STORED)
def test_where_numpy_adds_in_another_order_that_is_kept(stored: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column that is alone in its block, and numbers that are not stored row after row."""
    rng, weights = np.random.default_rng(3), np.arange(200)
    for _ in range(10):
        deltas = STORED[stored](rng.normal(size=(200, 7 * 50 + 1)).astype(np.float32))
        monkeypatch.setattr(means, "_BLOCK", 7 * 200)
        monkeypatch.setattr(means, "_LARGE", np.inf)
        (numpys,) = weighted_means(deltas, weights)
        monkeypatch.setattr(means, "_LARGE", 0)
        (compiled,) = weighted_means(deltas, weights)
        assert compiled.tobytes() == numpys.tobytes()


def test_a_large_mean_is_compiled_and_small_ones_load_no_compiler() -> None:
    code = (
        "import numpy as np, sys; from fairfate.strategies import weighted_mean;"
        "weighted_mean(np.ones((10, 1000), np.float32), np.ones(10)); assert 'numba' not in sys.modules;"
        "mean = weighted_mean(np.ones((10, 1_000_000), np.float32), np.ones(10));"
        "assert 'numba' in sys.modules; assert (abs(mean - 1) < 1e-6).all()"
    )
    process = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr

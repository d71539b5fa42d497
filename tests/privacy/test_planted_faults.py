"""Faults planted in the shipped training loop itself, which the audit of `test_audit` must catch."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from test_audit import CLAIMED, CLIP, INPUTS, MODEL, NOISE, TRIALS, audited_epsilon, is_poisson

from fairfate.models import kernels
from fairfate.models import private as models_private
from fairfate.models.kernels import private
from fairfate.models.kernels.batches import batch_order
from fairfate.models.mlp import Mlp
from fairfate.models.model import Losses
from fairfate.models.private import NoisySteps, Randomness, train_private
from fairfate.models.rows import ClientRows
from fairfate.models.training import Training
from fairfate.privacy.mechanism import Seeded

LOSSES = Losses(np.ones((1, 1, 2), np.float32))


class Given(NamedTuple):
    """Noise that was drawn before."""

    noise: NDArray[np.float32]

    def normals(self, count: int) -> NDArray[np.float32]:
        return self.noise[:count]

    def exponentials(self, count: int) -> NDArray[np.float64]:
        raise AssertionError("all rows are in every batch")


def train(x: NDArray[np.float32], cell: NDArray[np.int32], noise: float, randomness: Randomness) -> Any:
    """One step on all rows, by what a site calls."""
    rows = ClientRows(np.ascontiguousarray(x).ravel(), cell, np.array([0, len(x)]))
    training = Training(1, 1, 1, len(x), float(len(x)))
    start = np.zeros(MODEL.num_parameters, np.float32)
    return train_private(MODEL, start, rows, 0, LOSSES, training, 1, NoisySteps(CLIP, noise, randomness))


def shipped(noise: float) -> Callable[..., NDArray[np.float64]]:
    """Updates by what a site calls, with a noise multiplier."""

    def updates(x: NDArray[np.float32], cell: NDArray[np.int32], seed: int) -> NDArray[np.float64]:
        normals = Seeded(seed, "noise").normals(TRIALS * MODEL.num_parameters).reshape(TRIALS, -1)
        return np.array([train(x, cell, noise, Given(step)) for step in normals], dtype=np.float64)

    return updates


def planted(folder: Path, *changes: tuple[str, str]) -> ModuleType:
    """The shipped kernels with some lines replaced, compiled."""
    text = inspect.getsource(private)
    for line, fault in changes:
        assert text.count(line) >= 1, f"the kernel has no '{line}' any more"
        text = text.replace(line, fault)
    file = folder / "planted.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location("planted", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HALVED = (("_F(deviation * rate)", "_F(0.5 * deviation * rate)"),)
AFTER = (
    ("_clip(z, squares, size, limit, step)", "_clip(z, squares, size, _F(1e30), step)"),
    (
        "        if size > 0:\n            _step_last(",
        "        for p in range(len(strips)):\n"
        "            partial[p] = strips[p]\n"
        "        if size > 0:\n"
        "            _step_last(",
    ),
    (
        "                learn(units, errors, strips, widths, layout, layer, size, sums)\n",
        "                learn(units, errors, strips, widths, layout, layer, size, sums)\n"
        "            total = 0.0\n"
        "            for p in range(len(strips)):\n"
        "                total += (strips[p] - partial[p]) ** 2\n"
        "            factor = _F(min(1.0, clip * rate * size / np.sqrt(total)))\n"
        "            for p in range(len(strips)):\n"
        "                strips[p] = partial[p] + (strips[p] - partial[p]) * factor\n",
    ),
)


@pytest.mark.slow
def test_audit_of_the_shipped_loop_stays_below_the_claim() -> None:
    assert 0.7 * CLAIMED < audited_epsilon(shipped(NOISE)) <= CLAIMED


@pytest.mark.slow
@pytest.mark.parametrize("changes", [HALVED, AFTER], ids=["noise halved", "clipped after averaging"])
def test_audit_catches_a_fault_in_the_shipped_loop(
    changes: tuple[tuple[str, str], ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "private", planted(tmp_path, *changes))
    assert audited_epsilon(shipped(NOISE)) > 1.5 * CLAIMED


@pytest.mark.slow
def test_planted_copy_without_a_fault_is_the_shipped_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(3).standard_normal((20, INPUTS)).astype(np.float32)
    cell, noise = (np.arange(20) % 2).astype(np.int32), Seeded(1, "noise").normals(MODEL.num_parameters)
    known = train(x, cell, NOISE, Given(noise))
    monkeypatch.setattr(kernels, "private", planted(tmp_path))
    assert np.array_equal(train(x, cell, NOISE, Given(noise)), known)


@pytest.mark.slow
@pytest.mark.parametrize("is_fixed", [False, True])
def test_batches_that_reach_the_shipped_loop_are_poisson_samples(
    is_fixed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the loop is given is looked at, and caught where batches are cut from a shuffled order."""
    rows, batch, epochs, seen = 100, 10, 500, []

    def keep(start: Any, x: Any, cell: Any, first: int, lengths: Any, steps: Any, *others: Any) -> Any:
        seen.append(steps)
        return start

    def fixed(randomness: Any, rows: int, rate: float, steps: int) -> Any:
        order = np.empty(rows * epochs, np.int32)
        batch_order(np.uint64(1), 1, 0, rows, epochs, order)
        return order, np.arange(0, len(order) + 1, round(rows * rate))

    monkeypatch.setattr(private, "train", keep)
    if is_fixed:
        monkeypatch.setattr(models_private, "draw_batches", fixed)
    x = np.zeros(rows * INPUTS, np.float32)
    clients = ClientRows(x, np.zeros(rows, np.int32), np.array([0, rows]))
    noisy = NoisySteps(CLIP, NOISE, Seeded(4, "batches"))
    start = np.zeros(MODEL.num_parameters, np.float32)
    train_private(
        Mlp(INPUTS, ()), start, clients, 0, LOSSES, Training(1, 1, epochs, batch, 0.1), epochs, noisy
    )
    ((order, bounds, _),) = seen
    assert is_poisson(order, bounds, rows, batch / rows) != is_fixed

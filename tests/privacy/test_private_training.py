"""Training by noisy steps of clipped gradients: the kernels against plain NumPy, batches and noise."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from fairfate.engine.local import train
from fairfate.models.kernels import private
from fairfate.models.kernels.noise import normals
from fairfate.models.mlp import Mlp
from fairfate.models.private import NoisySteps, draw_batches
from fairfate.models.rows import ClientRows
from fairfate.models.training import Training
from fairfate.privacy.mechanism import Secure, Seeded
from fairfate.strategies import LossTerms, ModelState, Strategy

CLIP, DEVIATION, RATE = 0.7, 0.35, 0.1 / 15
NONE = np.zeros(0, np.float32)


def row_gradient(
    model: Mlp, params: NDArray, x: NDArray, target: float, weight: float, push: float
) -> NDArray:
    """The gradient of one row's loss, by backpropagation in 64 bits."""
    layers, last = model.arrays(params), len(model.widths) - 1
    units = [x.astype(np.float64)]
    for layer in range(1, last):
        units.append(np.tanh(units[-1] @ layers[f"w{layer}"] + layers[f"b{layer}"]))
    chance = 1 / (1 + np.exp(-(units[-1] @ layers[f"w{last}"] + layers[f"b{last}"])[0]))
    error = weight * (chance - target) + push * chance * (1 - chance)
    gradient = {f"w{last}": error * units[-1], f"b{last}": np.array([error])}
    errors = error * layers[f"w{last}"] * (1 - units[-1] ** 2)
    for layer in range(last - 1, 0, -1):
        gradient |= {f"w{layer}": np.outer(units[layer - 1], errors), f"b{layer}": errors}
        errors = (layers[f"w{layer}"] @ errors) * (1 - units[layer - 1] ** 2)
    return model.flat(gradient)


def clipped(gradient: NDArray) -> NDArray:
    return gradient * min(1, CLIP / np.sqrt((gradient**2).sum()))


class Case:
    """A model, rows and steps."""

    def __init__(self, hidden: tuple[int, ...], inputs: int) -> None:
        rng = np.random.default_rng(3)
        self.model = Mlp(inputs, hidden)
        self.start = (10 * self.model.initial(rng.standard_normal(self.model.num_parameters))).astype("f4")
        self.x = rng.standard_normal((60, inputs)).astype(np.float32)
        self.cell = rng.integers(0, 4, 60).astype(np.int32)
        self.first, count = 10, 20  # the client's rows are 10 .. 59
        self.order, self.bounds = draw_batches(Seeded(1, "batches"), 50, 0.3, count)
        self.noise = Seeded(2, "noise").normals(count * self.model.num_parameters).reshape(count, -1)
        self.weight = np.array([1, 2, 0.5, 1.5], np.float32)
        self.target = np.array([0, 0.7, 0.2, 1], np.float32)
        self.push = np.array([0.1, -0.2, 0.3, 0.5], np.float32)
        self.anchor = rng.standard_normal(self.model.num_parameters).astype(np.float32)

    def trained(self, push: NDArray = NONE, anchor: NDArray = NONE, deviation: float = DEVIATION) -> NDArray:
        with np.errstate(over="ignore"):
            lengths = (self.x[self.first :] ** 2).sum(axis=1)
        return private.train(
            self.start,
            self.x.ravel(),
            self.cell,
            self.first,
            lengths,
            private.Steps(self.order, self.bounds, self.noise),
            (self.weight, self.target, push),
            (anchor, np.float32(0.01)),
            RATE,
            CLIP,
            deviation,
            self.model.widths,
        )

    def expected(self, push: NDArray, anchor: NDArray) -> NDArray:
        params = self.start.astype(np.float64)
        for step, (begin, end) in enumerate(zip(self.bounds, self.bounds[1:], strict=False)):
            pull = 0.01 * (params - anchor) if len(anchor) else 0.0
            total = DEVIATION * self.noise[step].astype(np.float64)
            for row in self.first + self.order[begin:end]:
                stratum = int(self.cell[row])
                price = float(push[stratum]) if len(push) else 0.0
                weight = float(self.weight[stratum])
                target = float(self.target[stratum])
                total += clipped(row_gradient(self.model, params, self.x[row], target, weight, price))
            params = params - RATE * total - pull
        return params


@pytest.mark.parametrize("inputs", [3, 14, 33])
@pytest.mark.parametrize("hidden", [(), (10,), (40,), (32, 16), (5, 20, 7)])
@pytest.mark.parametrize("has_terms", [False, True])
def test_noisy_steps_are_those_of_plain_numpy(hidden: tuple[int, ...], inputs: int, has_terms: bool) -> None:
    case = Case(hidden, inputs)
    push, anchor = (case.push, case.anchor) if has_terms else (NONE, NONE)
    expected = case.expected(push, anchor)
    assert np.abs(expected - case.start).max() > 0.02
    np.testing.assert_allclose(case.trained(push, anchor), expected, atol=5e-6)


def test_targets_of_the_other_label_train_as_rows_of_the_other_label() -> None:
    """Weights as well: a target belongs to the row's (group, label)."""
    case, training = Case((10,), 3), Training(1, 1, epochs=2, batch_size=15)
    sizes = np.array([[[10, 20], [12, 18]]])

    def trained(cell: NDArray, weight: NDArray, target: NDArray | None) -> NDArray:
        terms = LossTerms(weight, target=target)
        strategy = Strategy(ModelState, lambda state, cohort: state, local_loss=lambda *given: terms)
        rows = ClientRows(x=case.x.ravel(), cell=cell, offsets=np.array([0, 60]))
        steps = [NoisySteps(CLIP, 0.5, Seeded(4, "noise"))]
        first, key = np.array([0]), np.uint64(1)
        start, message = case.start[None], [None]
        common = case.model, [strategy], start, message, rows, first, sizes, {}, training, key
        return train(*common, 1, steps)[0, 0]

    weight = np.array([[1, 2], [0.5, 1.5]])
    usual = trained(case.cell, weight, None)
    other = trained(case.cell ^ 1, weight[:, ::-1], np.array([[1, 0], [1, 0]]))
    assert usual.tobytes() == other.tobytes()
    assert np.abs(usual - case.start).max() > 0.002


@pytest.mark.parametrize("hidden", [(), (10,), (32, 16)])
def test_one_row_moves_a_step_by_no_more_than_the_limit(hidden: tuple[int, ...]) -> None:
    case = Case(hidden, 14)
    case.x[:] *= 1000
    case.bounds = np.array([0, 1])
    for row in range(50):
        case.order = np.array([row], np.int32)
        moved = case.trained(deviation=0.0).astype(np.float64) - case.start
        assert 0 < np.sqrt((moved**2).sum()) < RATE * CLIP * 1.0001


@pytest.mark.parametrize("hidden", [(), (10,), (32, 16)])
def test_row_with_a_nan_gradient_counts_as_none(hidden: tuple[int, ...]) -> None:
    case = Case(hidden, 14)
    case.bounds = np.array([0, 3])
    case.order = np.array([1, 2, 3], np.int32)
    case.x[case.first + 2] = 3e38  # its square is infinite
    several = case.trained()
    case.bounds, case.order = np.array([0, 2]), np.array([1, 3], np.int32)
    np.testing.assert_allclose(several, case.trained(), atol=1e-6)


def test_step_without_rows_is_only_noise() -> None:
    case = Case((10,), 14)
    case.bounds, case.order = np.array([0, 0]), np.zeros(0, np.int32)
    np.testing.assert_allclose(case.trained() - case.start, -RATE * DEVIATION * case.noise[0], atol=1e-6)


def test_numbers_of_a_key_are_the_same_in_whatever_parts() -> None:
    whole, _ = normals(7, 0, 96)
    first, then = normals(7, 0, 32)
    rest, _ = normals(7, then, 64)
    assert (whole == np.concatenate([first, rest])).all()
    assert (normals(8, 0, 96)[0] != whole).all()


@pytest.mark.parametrize("randomness", [Seeded(1, "x"), Secure()])
def test_noise_is_standard_normal(randomness: Seeded | Secure) -> None:
    from scipy import stats

    numbers = randomness.normals(200_000).astype(np.float64)
    assert stats.kstest(numbers, "norm").pvalue > 1e-4
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.02
    assert abs(np.corrcoef(numbers[:-16], numbers[16:])[0, 1]) < 0.02


def test_all_rows_are_in_every_batch_where_the_batch_is_as_large_as_the_client() -> None:
    order, bounds = draw_batches(Seeded(1, "x"), 4, 1.0, 2)
    assert order.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert bounds.tolist() == [0, 4, 8]

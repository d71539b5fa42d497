"""L2: weights are pulled to 0 in every SGD step of the clients, biases are not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from builders import simulated
from fairfate import Config, run
from fairfate.data import synthetic
from fairfate.engine import local
from fairfate.errors import InputError
from fairfate.federation.partition import parse_partition
from fairfate.federation.seeds import Streams
from fairfate.federation.split import build
from fairfate.models.mlp import Mlp
from fairfate.models.training import Training
from fairfate.strategies import parse_spec
from fairfate.strategies.registry import Setup

STREAMS = Streams(1)
FEDERATION = build(synthetic(rows=300, seed=3), parse_partition("random"), 4, STREAMS)
LAYERS = [(), (10,), (5, 3)]
STEP = Training(per_round=1, epochs=1, batch_size=1000, learning_rate=0.1)
"""All rows of a client in one batch."""


def trained(text: str, model: Mlp, start: np.ndarray, training: Training) -> np.ndarray:
    """One client's model after a round."""
    client = np.array([1])
    return local.train(
        model, [parse_spec(text, "eqo").build(Setup(1))], start[None], [None], FEDERATION.rows, client,
        FEDERATION.client_cells[client], {}, training, STREAMS.batch_key, 1,
    )[0, 0]  # fmt: skip


def start_of(model: Mlp) -> np.ndarray:
    return np.random.default_rng(1).normal(size=model.num_parameters).astype(np.float32)


@pytest.mark.parametrize("hidden", LAYERS)
def test_step_takes_a_share_of_every_weight_and_of_no_bias(hidden: tuple[int, ...]) -> None:
    model = Mlp(FEDERATION.inputs, hidden)
    start = start_of(model)
    pulled = trained("fedavg", model, start, STEP) - trained("fedavg", model, start, replace(STEP, l2=0.5))
    assert_allclose(pulled, np.where(model.is_bias, 0, 0.1 * 0.5 * start), atol=1e-6)
    assert sum(model.is_bias) == sum(hidden) + 1


@pytest.mark.parametrize("hidden", LAYERS)
def test_proximal_term_and_l2_are_added(hidden: tuple[int, ...]) -> None:
    model, mu, l2 = Mlp(FEDERATION.inputs, hidden), 2.0, 0.5
    start = start_of(model)
    first = trained("fedprox:mu=2", model, start, replace(STEP, l2=l2))
    second = trained("fedprox:mu=2", model, start, replace(STEP, l2=l2, epochs=2, batch_size=_rows()))
    plain = trained("fedavg", model, first, STEP)
    weight = mu * (first - start) + l2 * first
    bias = (mu + l2) * (first - start)
    assert_allclose(second, plain - 0.1 * np.where(model.is_bias, bias, weight), atol=1e-5)


def _rows() -> int:
    return int(FEDERATION.rows.sizes[1])


@pytest.mark.parametrize("hidden", LAYERS)
def test_models_in_lanes_get_the_bits_of_each_alone(hidden: tuple[int, ...]) -> None:
    training = Training(rounds=3, per_round=2, epochs=2, l2=0.05)
    texts = [*(f"fedmom:beta={beta / 20}" for beta in range(1, 17)), "fedprox", "fair_fate", "fairfed"]
    together = simulated(FEDERATION, texts, training, STREAMS, hidden)
    for text, of in zip(texts, together, strict=True):
        assert_array_equal(
            of.params, simulated(FEDERATION, [text], training, STREAMS, hidden)[0].params, text
        )


def test_weights_become_smaller() -> None:
    training = Training(rounds=20, per_round=4, epochs=5, learning_rate=0.1)
    norms = [
        float(
            (
                simulated(FEDERATION, ["fedavg"], replace(training, l2=l2), STREAMS, ())[0].params[:-1] ** 2
            ).sum()
        )
        for l2 in (0.0, 0.01, 0.1, 1.0)
    ]
    assert norms == sorted(norms, reverse=True)
    assert norms[-1] < norms[0] / 10


@pytest.mark.parametrize(
    ("l2", "said"), [(-0.1, "in \\[0, 100\\]"), (200.0, "in"), (50.0, "< 1 / learning"), (float("nan"), "in")]
)
def test_l2_out_of_range_is_refused(l2: float, said: str) -> None:
    with pytest.raises(InputError, match=f"l2 must be {said}"):
        run(Config(rounds=1), learning_rate=0.03, l2=l2)

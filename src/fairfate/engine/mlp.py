"""The built-in model, ``sigmoid(w2 . tanh(W1' x + b1) + b2)``, as one flat vector."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

INITIAL_SCALE = 0.05
"""Standard deviation of the initial weights; biases start at 0."""

Vector = NDArray[np.float32]


def num_parameters(inputs: int, hidden: int) -> int:
    """Length of the vector.

    >>> num_parameters(14, 10)
    161
    """
    return (inputs + 2) * hidden + 1


def initial(normals: NDArray[np.float64], inputs: int, hidden: int) -> Vector:
    """The model at the start, from ``num_parameters`` standard normal numbers."""
    params = (normals * INITIAL_SCALE).astype(np.float32)
    params[inputs * hidden : (inputs + 1) * hidden] = 0
    params[-1] = 0
    return params


def arrays(params: NDArray[Any], inputs: int, hidden: int) -> dict[str, NDArray[Any]]:
    """The layers by name: ``w1 (inputs, hidden)``, ``b1``, ``w2 (hidden,)``, ``b2 (1,)``."""
    ends = np.cumsum([inputs * hidden, hidden, hidden])
    w1, b1, w2, b2 = np.split(params, ends)
    return {"w1": w1.reshape(inputs, hidden), "b1": b1, "w2": w2, "b2": b2}


def flat(layers: dict[str, NDArray[Any]]) -> NDArray[Any]:
    """The vector of layers given by name; the inverse of `arrays`."""
    return np.concatenate([layers[name].ravel() for name in ("w1", "b1", "w2", "b2")])


def probabilities(layers: dict[str, NDArray[Any]], x: NDArray[Any]) -> NDArray[np.float64]:
    """P(label = 1) of encoded rows, in plain NumPy."""
    hidden = np.tanh(x.astype(np.float64) @ layers["w1"] + layers["b1"])
    return np.asarray(1 / (1 + np.exp(-(hidden @ layers["w2"] + layers["b2"]))))

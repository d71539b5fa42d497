"""The built-in model: tanh layers and a sigmoid; without a layer, logistic regression."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairfate.errors import InputError, check
from fairfate.fairness.metrics import Counts, Statistics
from fairfate.models.model import Batches, Losses, Models, counts_of
from fairfate.models.rows import ClientRows, PackedRows
from fairfate.models.training import Training
from fairfate.sums import product

INITIAL_SCALE = 0.05
"""Standard deviation of the initial weights; biases start at 0."""
MOST_UNITS, MOST_LAYERS = 10_000, 20
_NO_PUSH, _NO_PREJUDICE, _NO_PROX, _NO_ANCHOR = (np.zeros((0,) * n, np.float32) for n in (3, 1, 2, 3))


def parse_hidden(text: str | int) -> tuple[int, ...]:
    """Widths of the hidden layers: ``10``, ``32,16``, or ``0`` for none.

    >>> parse_hidden("32,16"), parse_hidden(0)
    ((32, 16), ())
    """
    words = [word.strip() for word in str(text).split(",")]
    if not all(re.fullmatch(r"-?[0-9]{1,18}", word) for word in words):
        raise InputError(f"hidden must be a whole number or a list such as 32,16, got '{text}'")
    widths = tuple(int(word) for word in words)
    if widths == (0,):
        return ()
    for width in widths:
        check(width >= 1, "hidden must be >= 1, or 0 for no layer at all", text)
        check(width <= MOST_UNITS, f"hidden must be <= {MOST_UNITS:,}", text)
    check(len(widths) <= MOST_LAYERS, f"hidden must have at most {MOST_LAYERS} layers", len(widths))
    return widths


@dataclass(frozen=True)
class Mlp:
    """``sigmoid(w . tanh(... tanh(W' x + b) ...) + b)`` as one vector: each layer's weights, then biases.

    >>> Mlp(14, (10,)).num_parameters, Mlp(14, ()).num_parameters, Mlp(14, (32, 16)).num_parameters
    (161, 15, 1025)
    """

    inputs: int
    hidden: tuple[int, ...] = (10,)

    @cached_property
    def widths(self) -> NDArray[np.int64]:
        """Inputs, hidden units of each layer, and one output."""
        return np.array([self.inputs, *self.hidden, 1], dtype=np.int64)

    @property
    def num_parameters(self) -> int:
        """Length of the vector."""
        return int(((self.widths[:-1] + 1) * self.widths[1:]).sum())

    @property
    def text(self) -> str:
        """Widths of the hidden layers, as on the command line."""
        return ",".join(map(str, self.hidden)) or "0"

    @cached_property
    def is_bias(self) -> NDArray[np.bool_]:
        """(parameters,) which of them are biases, which L2 leaves alone."""
        mask = np.zeros(self.num_parameters, dtype=bool)
        for name, layer in self.arrays(mask).items():
            layer[:] = name.startswith("b")  # a view of the vector
        return mask

    def initial(self, normals: NDArray[np.float64]) -> Models:
        """The model at the start."""
        params = (normals * INITIAL_SCALE).astype(np.float32)
        for name, layer in self.arrays(params).items():
            if name.startswith("b"):
                layer[:] = 0  # a view of the vector
        return params

    def arrays(self, params: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """The layers by name: ``w1 (inputs, units)``, ``b1``, ...; the last one's weights are a vector."""
        layers: dict[str, NDArray[Any]] = {}
        at = 0
        for number, (wide, narrow) in enumerate(zip(self.widths[:-1], self.widths[1:], strict=True), start=1):
            last = number == len(self.widths) - 1
            weights = params[at : at + wide * narrow]
            layers[f"w{number}"] = weights if last else weights.reshape(wide, narrow)
            layers[f"b{number}"] = params[at + wide * narrow : at + (wide + 1) * narrow]
            at += (wide + 1) * narrow
        return layers

    def flat(self, arrays: dict[str, NDArray[Any]]) -> NDArray[Any]:
        """The vector of layers given by name."""
        names = [f"{kind}{number}" for number in range(1, len(self.widths)) for kind in "wb"]
        return np.concatenate([arrays[name].ravel() for name in names])

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]]) -> Mlp:
        """The model that layers by name belong to."""
        biases = [arrays[f"b{number}"] for number in range(1, len(arrays) // 2 + 1)]
        return cls(len(arrays["w1"]), tuple(len(bias) for bias in biases[:-1]))

    @property
    def _is_shallow(self) -> bool:
        return len(self.hidden) == 1

    def train(
        self,
        models: Models,
        rows: ClientRows,
        clients: NDArray[np.int64],
        losses: Losses,
        training: Training,
        batches: Batches,
    ) -> Models:
        """Train (models, clients, parameters), each at its client, all on the same batches."""
        from fairfate.models.kernels import deep, shallow  # which load Numba; so do those below
        from fairfate.models.kernels.batches import TermArrays

        anchor = _NO_ANCHOR
        if losses.prox is not None:
            assert losses.anchor is not None  # given whenever prox is
            anchor = np.require(losses.anchor, requirements=["C", "W"])
        common = (
            np.ascontiguousarray(models),
            rows,
            clients,
            TermArrays(
                np.ascontiguousarray(losses.weight),
                np.ascontiguousarray(losses.targets),
                _NO_PUSH if losses.push is None else np.ascontiguousarray(losses.push),
                _NO_PREJUDICE if losses.prejudice is None else losses.prejudice,
                _NO_PROX if losses.prox is None else np.ascontiguousarray(losses.prox),
                anchor,
            ),
            (training.epochs, batches.skip, training.epochs if batches.run is None else batches.run),
            training.batch_size,
            np.float32(training.learning_rate),
            batches.key,
            batches.round,
        )
        if self._is_shallow:
            return shallow.train(*common, self.hidden[0])
        return deep.train(*common, self.widths)

    def count(self, models: Models, rows: PackedRows) -> Counts:
        """(models, groups, 2, 2) counts of each model's predictions."""
        from fairfate.models.kernels import scoring

        if not self._is_shallow:
            return self.statistics(models, rows).counts
        positives = scoring.count_positives(np.ascontiguousarray(models), rows, self.inputs, self.hidden[0])
        return counts_of(positives, rows.sizes)

    def statistics(self, models: Models, rows: PackedRows) -> Statistics:
        """The same with sums of probabilities and losses."""
        from fairfate.models.kernels import scoring

        flat = np.ascontiguousarray(models)
        if self._is_shallow:
            positives, probability, loss = scoring.sum_statistics(flat, rows, self.inputs, self.hidden[0])
        else:
            positives, probability, loss = scoring.statistics_deep(flat, rows, self.widths)
        shape = (len(models), rows.cells // 2, 2)
        return Statistics(counts_of(positives, rows.sizes), probability.reshape(shape), loss.reshape(shape))

    def clipped_statistics(self, model: Models, rows: PackedRows, most: float) -> Statistics:
        """One model's `statistics`, where no row's loss counts for more than ``most``.

        Scores are clipped to where the loss of a wrong decision is that.
        """
        from fairfate.models.kernels import scoring

        flat, limit = np.ascontiguousarray(model), math.log(math.expm1(most * (1 - 1e-5)))
        if self._is_shallow:
            scores = scoring.margins(flat, rows, self.inputs, self.hidden[0])
        else:
            scores = scoring.margins_deep(flat, rows, self.widths)
        clipped = np.clip(scores, -abs(limit), abs(limit))
        positives, probability, loss = scoring.sum_scores(clipped, rows)
        shape = (rows.cells // 2, 2)
        counts = counts_of(positives, rows.sizes)[0]
        return Statistics(counts, probability.reshape(shape), loss.reshape(shape))

    def margins(self, model: Models, rows: PackedRows) -> list[NDArray[np.float32]]:
        """For each cell, its rows' scores by one model: the log-odds of label 1."""
        from fairfate.models.kernels import scoring

        flat = np.ascontiguousarray(model)
        if self._is_shallow:
            return rows.split_by_cell(scoring.margins(flat, rows, self.inputs, self.hidden[0]))
        return rows.split_by_cell(scoring.margins_deep(flat, rows, self.widths))


def margins_of(layers: dict[str, NDArray[Any]], x: NDArray[Any]) -> NDArray[np.float64]:
    """(rows,) the log-odds of label 1 of encoded rows, in plain NumPy."""
    units, last = x.astype(np.float64), sum(name[0] == "w" and name[1:].isdigit() for name in layers)
    for number in range(1, last):
        units = np.tanh(product(units, layers[f"w{number}"]) + layers[f"b{number}"])
    return np.asarray(product(units, layers[f"w{last}"]) + layers[f"b{last}"], dtype=np.float64)


def probabilities(layers: dict[str, NDArray[Any]], x: NDArray[Any]) -> NDArray[np.float64]:
    """P(label = 1) of encoded rows, in plain NumPy."""
    return np.asarray(1 / (1 + np.exp(-margins_of(layers, x))))

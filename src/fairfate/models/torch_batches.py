"""The batches of a round as tensors, for models that PyTorch trains, and what a batch's logits cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairfate.models.model import Batches, Losses, batch_rows
from fairfate.models.rows import ClientRows
from fairfate.models.training import Training

if TYPE_CHECKING:
    from torch import Tensor

_BLOCK = 256
"""Batches that are gathered together, at most."""
_BLOCK_NUMBERS = 2**21
"""Inputs that are gathered together, about."""
_LEAST = 1e-6
"""How far mean probabilities are kept from 0 and 1, as in the built-in model."""


class Pair(NamedTuple):
    """One model at one client, by their indices in the round."""

    model: int
    client: int


class Anchor(NamedTuple):
    """How strongly pairs are pulled, and where to: the models that were sent out, or nearer to 0 with L2."""

    strength: Tensor
    """(pairs,)"""
    tensors: Sequence[Tensor]
    """Each trained parameter, (pairs, ...)."""

    def first(self, pairs: int) -> Anchor:
        """Those of the first pairs."""
        return Anchor(self.strength[:pairs], [tensor[:pairs] for tensor in self.tensors])

    def pulls(self, moving: Sequence[Tensor]) -> list[Tensor]:
        """The gradient of half the squared distance, times the strength, for each parameter."""
        named = zip(moving, self.tensors, strict=True)
        return [
            self.strength.view(-1, *[1] * (tensor.dim() - 1)) * (tensor.detach() - at) for tensor, at in named
        ]


class Batch(NamedTuple):
    """One batch of several pairs, or with a dimension in front, several; padded rows weigh nothing."""

    x: Tensor
    """(pairs, rows, inputs)"""
    y: Tensor
    """(pairs, rows) what the rows' probabilities are compared with: their labels, or shares."""
    weight: Tensor
    """(pairs, rows) of each row's cross-entropy, divided by the rows of the batch."""
    push: Tensor | None
    """(pairs, rows) price of a prediction, likewise."""
    members: Tensor | None
    """(pairs, rows, groups) 1 where the row is of the group; only if a model removes prejudice."""
    strength: Tensor
    """(pairs, 1) of the prejudice remover."""

    def at(self, index: int) -> Batch:
        """One of several."""
        return Batch(*(None if tensor is None else tensor[index] for tensor in self))  # type: ignore[arg-type]

    def only(self, rows: int) -> Batch:
        """The first rows."""
        push, members = (None if tensor is None else tensor[:, :rows] for tensor in (self.push, self.members))
        x, y, weight = (tensor[:, :rows] for tensor in (self.x, self.y, self.weight))
        return Batch(x, y, weight, push, members, self.strength)

    def slope(self, logits: Tensor) -> Tensor:
        """(pairs, rows) the gradient of each pair's loss by its logits."""
        p = logits.sigmoid()
        gradient = self.weight * (p - self.y)
        price = self.push
        if self.members is not None:
            prejudice = self._prejudice(p, self.members)
            price = prejudice if price is None else price + prejudice
        return gradient if price is None else gradient + price * p * (1 - p)

    def _prejudice(self, p: Tensor, members: Tensor) -> Tensor:
        """(pairs, rows) what each row's group's odds in the batch cost, as in the built-in model."""
        rows = members.sum(1)
        sums = (members * p[..., None]).sum(1)
        total = rows.sum(1, keepdim=True)
        own = (sums / rows.clamp(min=1)).logit(_LEAST)
        cost = own - (sums.sum(1, keepdim=True) / total).logit(_LEAST)
        several = (rows > 0).sum(1, keepdim=True) > 1
        cost = self.strength * cost * ((rows > 0) & several) / total
        return (members * cost[:, None]).sum(2)


class RoundRows:
    """The data that pairs of a round are trained on."""

    def __init__(
        self,
        rows: ClientRows,
        clients: NDArray[np.int64],
        losses: Losses,
        training: Training,
        batches: Batches,
    ) -> None:
        import torch

        self._losses = losses
        self._x = torch.from_numpy(np.require(rows.x, requirements="W").reshape(len(rows), -1))
        self._y, self._cell = rows.y, rows.cell
        visited = [[*batch_rows(rows, int(client), training, batches)] for client in clients]
        self._sizes = [np.array([len(batch) for batch in visits]) for visits in visited]
        self.width = max(int(sizes.max(initial=1)) for sizes in self._sizes)
        """Rows of a batch, at most."""
        self._rows = [_padded(visits, self.width) for visits in visited]
        self._groups = losses.weight.shape[2] // 2

    def steps(self, pair: Pair) -> int:
        """How many batches a pair has."""
        return len(self._sizes[pair.client])

    def size(self, pair: Pair, step: int) -> int:
        """Rows of one of its batches."""
        return int(self._sizes[pair.client][step])

    def blocks(self, pairs: Sequence[Pair], first: int, last: int) -> Iterator[tuple[int, int, Batch]]:
        """Batches ``first`` to ``last``, which all pairs have, some at a time: from, to, and the batches."""
        each = len(pairs) * self.width * self._x.shape[1]
        length = int(np.clip(_BLOCK_NUMBERS // max(each, 1), 1, _BLOCK))
        for start in range(first, last, length):
            end = min(start + length, last)
            yield start, end, self._gather(pairs, slice(start, end))

    def _gather(self, pairs: Sequence[Pair], steps: slice) -> Batch:
        """(batches, pairs, rows, ...) some batches of each pair."""
        import torch

        models, clients = (np.array(indices) for indices in zip(*pairs, strict=True))
        at = np.stack([self._rows[client][steps] for client in clients], axis=1)
        sizes = np.stack([self._sizes[client][steps] for client in clients], axis=1)
        real = np.arange(self.width) < sizes[..., None]
        share = (real / sizes[..., None]).astype(np.float32)
        cell = self._cell[at]
        pair = np.arange(len(pairs))[None, :, None]
        loss = self._losses

        def weigh(values: NDArray[Any]) -> Tensor:
            return torch.from_numpy(values[models, clients][pair, cell] * share)

        members, strength = None, torch.zeros(len(at), len(pairs), 1)
        if loss.prejudice is not None and loss.prejudice[models].any():
            member = (cell // 2)[..., None] == np.arange(self._groups)
            members = torch.from_numpy((member & real[..., None]).astype(np.float32))
            strength += torch.from_numpy(loss.prejudice[models])[:, None]
        push = None if loss.push is None or not loss.push[models, clients].any() else weigh(loss.push)
        y = torch.from_numpy(self._y[at] if loss.target is None else loss.target[models, clients][pair, cell])
        return Batch(self._x[torch.from_numpy(at)], y, weigh(loss.weight), push, members, strength)


def _padded(batches: Sequence[NDArray[np.int64]], width: int) -> NDArray[np.int64]:
    """(batches, width) row numbers; a short batch repeats its first row."""
    if not batches:
        return np.zeros((0, width), dtype=np.int64)
    return np.stack([np.concatenate([rows, np.repeat(rows[:1], width - len(rows))]) for rows in batches])

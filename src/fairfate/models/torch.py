"""Any ``torch.nn.Module`` as the model of the simulator.

Models at clients are trained side by side with ``torch.func`` where the module allows it, and else one after
another. Nothing is left behind in PyTorch: its random numbers and its number of threads stay as they were.
"""

from __future__ import annotations

import hashlib
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from fairfate.errors import InputError, check, listing
from fairfate.fairness.metrics import Counts, Statistics
from fairfate.models.model import Batches, Losses, Models, counts_of, statistics_of
from fairfate.models.rows import ClientRows, PackedRows
from fairfate.models.torch_batches import Anchor, Batch, Pair, RoundRows
from fairfate.models.training import Training

try:
    import torch
    from torch import Tensor, nn

    _INSTALLED = True
except ImportError:  # reported when a model is made
    _INSTALLED = False

LEAST_STACK = 4
"""From so many models on, side by side is faster than one after another."""
MOST_STACKED = 2**23
"""Numbers in the models that are trained side by side, about; the rest come after them."""
_SCORED = 2**14
"""Rows that are scored at once."""
_TAKEN = {"thresholds", *(f"encoder.{part}" for part in ("low", "span", "median", "slots", "flagged"))}
"""Names of other arrays in a model's file."""

Optimizer = Callable[[Any], Any]
"""Makes an optimizer of a list of parameters."""


class TorchModel:
    """A PyTorch network: ``module`` maps (rows, inputs) 32-bit floats to (rows,) or (rows, 1) logits.

    The vector holds all parameters, then all buffers of floats (such as batch norm's running statistics), in
    the module's order. Buffers of whole numbers (batch norm's count of batches) stay out of it: at every
    client they start as the module has them.

    Parameters
    ----------
    module : a module, whose weights every run starts from, or a function without parameters that makes one,
        whose weights then come from the run's seed
    inputs : numbers that a model sees of a row
    text : what it is, for files and messages
    key : what its results depend on, if that is not the text: an interrupted run goes on with the same only
    optimizer : makes the clients' optimizer of a list of parameters, anew for every client and round;
        plain SGD with the run's learning rate if None
    compile : compile the side by side pass with ``torch.compile``, which pays in long runs only
    """

    def __init__(
        self,
        module: nn.Module | Callable[[], nn.Module],
        inputs: int,
        text: str = "torch",
        *,
        key: str | None = None,
        optimizer: Optimizer | None = None,
        compile: bool = False,  # noqa: A002 - PyTorch's name for it
    ) -> None:
        if not _INSTALLED:
            raise InputError('a model of PyTorch needs PyTorch: pip install "fairfate[torch]"')
        self.inputs, self.name, self.text = inputs, text, key or text
        self._make = None if isinstance(module, nn.Module) else module
        self._optimizer, self._compile = optimizer, compile
        with _deterministic(0):
            self.module = self._make_module(module)
        named = _tensors(self.module)
        self.names = list(named)
        self._shapes = [tuple(tensor.shape) for tensor in named.values()]
        sizes = [int(np.prod(shape)) for shape in self._shapes]
        self._ends = np.cumsum(sizes).tolist()
        self._trained = [tensor.requires_grad for tensor in named.values()]
        self._check()
        self._start = self._read()
        self._counters = _counters(self.module)
        self._plain: WeakKeyDictionary[PackedRows, Tensor] = WeakKeyDictionary()

    def _make_module(self, given: nn.Module | Callable[[], nn.Module]) -> nn.Module:
        """The module, ready for 32-bit floats, with weights even where its layers are lazy."""
        module = given if isinstance(given, nn.Module) else given()
        if not isinstance(module, nn.Module):
            raise InputError(f"model '{self.name}' must be a torch.nn.Module, got {type(module).__name__}")
        module = module.to(device="cpu", dtype=torch.float32)
        try:
            with torch.no_grad():
                out = module.eval()(self._probe)
        except Exception as error:
            raise InputError(
                f"model '{self.name}' must map (rows, {self.inputs}) inputs to logits, got {_first(error)}"
            ) from error
        rows = len(self._probe)
        shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        check(
            shape in ((rows,), (rows, 1)),
            f"model '{self.name}' must give logits of shape (rows,) or (rows, 1), that is ({rows},) or"
            f" ({rows}, 1) for {rows} rows",
            shape,
        )
        return module

    def _check(self) -> None:
        """Refuse what cannot be trained or saved."""
        name = f"model '{self.name}'"
        check(any(self._trained), f"{name} must have parameters to train")
        reserved = _TAKEN.intersection(self.names) | {n for n in self.names if n.startswith("tilt.")}
        check(not reserved, f"{name} must have other names for its parameters", listing(sorted(reserved)))
        for key, tensor in _tensors(self.module).items():
            check(not tensor.is_complex(), f"{name} must have real parameters", f"a complex '{key}'")
            bad = int((~torch.isfinite(tensor)).sum())
            check(bad == 0, f"{name} must start from finite weights", f"{bad} others in '{key}'")

    @property
    def _probe(self) -> Tensor:
        """A few rows that every encoding may give: of zeros and ones."""
        rows = np.arange(4)[:, None] >> (np.arange(self.inputs) % 2)
        return torch.from_numpy((rows % 2).astype(np.float32))

    @property
    def num_parameters(self) -> int:
        """Length of the vector."""
        return int(self._ends[-1])

    @cached_property
    def is_bias(self) -> NDArray[np.bool_]:
        """(parameters,) which of them are biases by name, which L2 leaves alone."""
        sizes = np.diff([0, *self._ends])
        return np.repeat([name.rpartition(".")[2] == "bias" for name in self.names], sizes)

    @property
    def about(self) -> dict[str, str]:
        """For a saved model's file: which network it is."""
        return {"model": self.text}

    def initial(self, normals: NDArray[np.float64]) -> Models:
        """The vector at the start: a given module's own, or of one that is made with a seed from these."""
        if self._make is None:
            return self._start.copy()
        seed = int.from_bytes(hashlib.sha256(normals.tobytes()).digest()[:8], "little") >> 1
        with _deterministic(seed):
            made = _tensors(self._make_module(self._make))
        shapes = [tuple(tensor.shape) for tensor in made.values()]
        same = list(made) == self.names and shapes == self._shapes
        check(same, f"model '{self.name}' must have the same parameters every time", listing(made))
        return _vector(made.values())

    def arrays(self, params: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """The vector as the module's own names have it, as in a ``state_dict``."""
        parts = np.split(params, self._ends[:-1])
        named = zip(self.names, parts, self._shapes, strict=True)
        return {name: part.reshape(shape) for name, part, shape in named}

    def flat(self, arrays: dict[str, NDArray[Any]]) -> NDArray[Any]:
        """The vector of named arrays."""
        return np.concatenate([arrays[name].ravel() for name in self.names])

    def load(self, params: NDArray[Any]) -> nn.Module:
        """The module with these weights, for use outside a run."""
        usable = self._usable(np.array(params, dtype=np.float32))
        with torch.no_grad():
            named = zip(_tensors(self.module).values(), self.arrays(usable).values(), strict=True)
            for tensor, array in named:
                tensor.copy_(torch.from_numpy(array))
            for name, tensor in self.module.named_buffers():
                if name in self._counters:
                    tensor.copy_(self._counters[name])
        return self.module

    def _usable(self, models: Models) -> Models:
        """The vectors, changed in place: a server that extrapolates may have made a variance negative."""
        below = _variances(self.module)
        for name, start, end in zip(self.names, [0, *self._ends], self._ends, strict=False):
            if name in below:
                np.maximum(models[..., start:end], 0, out=models[..., start:end])
        return models

    def _read(self) -> Models:
        return _vector(_tensors(self.module).values())

    @property
    def mode(self) -> str:
        """How clients are trained: ``side by side``, or why they are not, or not all of them."""
        obstacle, apart = self._obstacles
        if obstacle is not None:
            return f"one after another ({obstacle})"
        return "side by side" if apart is None else f"side by side at each client ({apart})"

    @cached_property
    def _obstacles(self) -> tuple[str | None, str | None]:
        """Why models cannot be trained side by side, if they cannot; why only those at the same client."""
        if self._optimizer is not None:
            return "an optimizer of its own", None
        with _deterministic(0):
            try:
                obstacles = self._find_obstacles()
            except Exception as error:
                obstacles = f"torch.func cannot stack it: {_first(error)}", None
        self.load(self._start)
        return obstacles

    def _find_obstacles(self) -> tuple[str | None, str | None]:
        """Try a few rows: whether buffers change, and whether the logits are the same alone and stacked."""
        x, module = self._probe, self.load(self._start).train()
        draws = torch.random.get_rng_state()
        with torch.no_grad():
            alone = module(x).reshape(-1)
        random = not torch.equal(draws, torch.random.get_rng_state())
        moved = _differ(self._counters, _counters(module))
        if moved or not np.array_equal(self._read(), self._start, equal_nan=True):
            return "its buffers change in training, as batch norm's do", None
        leaves = self._leaves(self._stack(np.stack([self._start] * 2)))
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="There is a performance drop")
            torch.default_generator.manual_seed(0)
            together = self._forward(leaves, torch.stack([x, x]))
            moving = _only(leaves, self._trained)
            torch.autograd.grad(together, moving, torch.ones_like(together), allow_unused=True)
        if not _close(together, torch.stack([alone, alone])):
            return "torch.func gives it other logits", None
        if random:
            return None, "it draws random numbers"
        for rows in range(1, len(x)):
            if not _close(together[:, :rows], self._forward(leaves, torch.stack([x[:rows]] * 2))):
                return None, "the rows of a batch look at each other"
        return None, None

    @cached_property
    def _forward(self) -> Callable[[Sequence[Tensor], Tensor], Tensor]:
        """(models, rows) logits of stacked weights on stacked batches."""

        def score(values: Sequence[Tensor], x: Tensor) -> Tensor:
            named = dict(zip(self.names, values, strict=True))
            logits: Tensor = torch.func.functional_call(self.module, named, (x,))
            return logits.reshape(-1)

        stacked = torch.func.vmap(score, randomness="same")
        return torch.compile(stacked) if self._compile else stacked

    def _stack(self, models: Models) -> list[Tensor]:
        """Each parameter of stacked models."""
        parts = np.split(models, self._ends[:-1], axis=1)
        named = zip(parts, self._shapes, strict=True)
        return [torch.from_numpy(part.reshape(len(models), *shape).copy()) for part, shape in named]

    def _leaves(self, stack: Sequence[Tensor], first: int | None = None) -> list[Tensor]:
        """The first models of a stack, in the same memory, for gradients."""
        named = zip(stack, self._trained, strict=True)
        return [tensor[:first].detach().requires_grad_(trained) for tensor, trained in named]

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
        data = RoundRows(rows, clients, losses, training, batches)
        pairs = [Pair(s, c) for c in range(len(clients)) for s in range(len(models))]
        pairs.sort(key=data.steps, reverse=True)
        seeds = [_seed(batches, int(client)) for client in clients]
        trained, rate = self._usable(models.copy()), training.learning_rate
        with _deterministic(0):
            for part in self._parts(pairs):
                if len(part) >= LEAST_STACK and self._obstacles[0] is None:
                    self._train_stack(trained, losses, data, part, rate, seeds[part[0].client])
                    continue
                for pair in part:
                    self._train_pair(trained, losses, data, pair, 0, rate, seeds[pair.client])
        return trained

    def _anchor(self, losses: Losses, pairs: Sequence[Pair]) -> Anchor | None:
        """What pairs are pulled to, if any of them is."""
        models, clients = (np.array(indices) for indices in zip(*pairs, strict=True))
        if losses.prox is None or losses.anchor is None or not losses.prox[models, clients].any():
            return None
        tensors = _only(self._stack(losses.anchor[models, clients]), self._trained)
        return Anchor(torch.from_numpy(losses.prox[models, clients]), tensors)

    def _parts(self, pairs: Sequence[Pair]) -> list[list[Pair]]:
        """What may be stacked together: not too many, and if need be those of one client only."""
        most = max(MOST_STACKED // self.num_parameters, 1)
        groups = [list(pairs)]
        if self._obstacles[1] is not None:
            groups = [list(members) for _, members in itertools.groupby(pairs, lambda pair: pair.client)]
        return [group[at : at + most] for group in groups for at in range(0, len(group), most)]

    def _train_stack(
        self, trained: Models, losses: Losses, data: RoundRows, pairs: Sequence[Pair], rate: float, seed: int
    ) -> None:
        """Pairs side by side, the longest first; finished pairs drop out, and the last few go alone."""
        indices = tuple(np.array(index) for index in zip(*pairs, strict=True))
        stack, anchor = self._stack(trained[indices]), self._anchor(losses, pairs)
        steps = [data.steps(pair) for pair in pairs]
        self.load(self._start).train()
        torch.default_generator.manual_seed(seed)
        now, active = 0, len(pairs)
        while active >= LEAST_STACK:
            end = steps[active - 1]
            leaves = self._leaves(stack, active)
            near = None if anchor is None else anchor.first(active)
            for start, stop, block in data.blocks(pairs[:active], now, end):
                for step in range(stop - start):
                    rows = max(data.size(pair, start + step) for pair in pairs[:active])
                    self._step(leaves, block.at(step).only(rows), near, rate)
            now = end
            active = sum(count > now for count in steps)
        trained[indices] = _rows(stack)
        for pair in pairs[:active]:
            self._train_pair(trained, losses, data, pair, now, rate, seed)

    def _step(self, leaves: Sequence[Tensor], batch: Batch, anchor: Anchor | None, rate: float) -> None:
        """One batch of plain SGD for stacked models."""
        logits = self._forward(leaves, batch.x)
        moving = _only(leaves, self._trained)
        slopes = torch.autograd.grad(logits, moving, batch.slope(logits.detach()), allow_unused=True)
        _descend(moving, _add_pull(slopes, moving, anchor), rate)

    def _train_pair(
        self, trained: Models, losses: Losses, data: RoundRows, pair: Pair, first: int, rate: float, seed: int
    ) -> None:
        """One model at one client, from a batch on."""
        module = self.load(trained[pair]).train()
        moving = [parameter for parameter in module.parameters() if parameter.requires_grad]
        optimizer = None if self._optimizer is None else self._optimizer(moving)
        anchor = self._anchor(losses, [pair])
        torch.default_generator.manual_seed(seed)
        for start, stop, block in data.blocks([pair], first, data.steps(pair)):
            for step in range(stop - start):
                rows = data.size(pair, start + step)
                with _frozen_norms(module, rows):
                    self._descend_pair(moving, optimizer, block.at(step).only(rows), anchor, rate)
        trained[pair] = self._read()

    def _descend_pair(
        self, moving: Sequence[Tensor], optimizer: Any, batch: Batch, anchor: Anchor | None, rate: float
    ) -> None:
        logits = self.module(batch.x[0]).reshape(1, -1)
        slope = batch.slope(logits.detach())
        if optimizer is None:
            slopes = torch.autograd.grad(logits, moving, slope, allow_unused=True)
            _descend(moving, _add_pull(slopes, moving, anchor), rate)
            return
        optimizer.zero_grad()
        logits.backward(slope)
        for tensor, gradient in zip(
            moving, _add_pull([parameter.grad for parameter in moving], moving, anchor), strict=True
        ):
            tensor.grad = gradient
        optimizer.step()

    def _scores(self, model: Models, rows: PackedRows) -> NDArray[np.float32]:
        """The log-odds of each row, cell by cell."""
        if rows not in self._plain:
            self._plain[rows] = torch.from_numpy(rows.plain(self.inputs))
        module = self.load(model).eval()
        with _deterministic(0), torch.no_grad():
            parts = [module(x).reshape(-1) for x in torch.split(self._plain[rows], _SCORED) if len(x)]
        return torch.cat([torch.empty(0), *parts]).numpy()

    def scores(self, arrays: Mapping[str, NDArray[Any]], x: NDArray[np.float32]) -> NDArray[np.float32]:
        """(rows,) the log-odds of encoded rows, by named arrays."""
        missing = [name for name in self.names if name not in arrays]
        check(
            not missing,
            f"model '{self.name}' must be the one that was trained",
            f"no '{(missing or [''])[0]}'",
        )
        module = self.load(self.flat(dict(arrays))).eval()
        with _deterministic(0), torch.no_grad():
            logits: NDArray[np.float32] = module(torch.from_numpy(x)).reshape(-1).numpy()
        return logits

    def margins(self, model: Models, rows: PackedRows) -> list[NDArray[np.float32]]:
        """For each cell, its rows' scores by one model: the log-odds of label 1."""
        return np.split(self._scores(model, rows), np.cumsum(rows.sizes)[:-1])

    def statistics(self, models: Models, rows: PackedRows) -> Statistics:
        """Counts, with sums of probabilities and losses."""
        with np.errstate(over="ignore"):
            each = [statistics_of(self.margins(model, rows)) for model in models]
        return Statistics(*(np.concatenate(values) for values in zip(*each, strict=True)))

    def count(self, models: Models, rows: PackedRows) -> Counts:
        """(models, groups, 2, 2) counts of each model's predictions."""
        ends = np.concatenate([[0], np.cumsum(rows.sizes)])
        sums = [np.concatenate([[0], np.cumsum(self._scores(model, rows) > 0)]) for model in models]
        positives = np.diff(np.stack(sums)[:, ends], axis=1).astype(np.int64)
        return counts_of(positives, rows.sizes)


@contextmanager
def _deterministic(seed: int) -> Iterator[None]:
    """Use one thread, since sums depend on their number, and a seed's random numbers; restored at the end."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _frozen_norms(module: nn.Module, rows: int) -> Iterator[None]:
    """For a batch of one row, which has no variance, batch norm uses its running statistics."""
    changed: list[nn.Module] = []
    if rows == 1:
        norms = (part for part in module.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm))
        changed = [norm for norm in norms if norm.training]
    for norm in changed:
        norm.eval()
    try:
        yield
    finally:
        for norm in changed:
            norm.train()


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters, then buffers of floats."""
    buffers = {
        name: buffer
        for name, buffer in module.named_buffers()
        if buffer.is_floating_point() or buffer.is_complex()
    }
    return {**dict(module.named_parameters()), **buffers}


def _counters(module: nn.Module) -> dict[str, Tensor]:
    """Copies of the other buffers."""
    floats = _tensors(module)
    return {name: buffer.clone() for name, buffer in module.named_buffers() if name not in floats}


def _variances(module: nn.Module) -> set[str]:
    """Buffers that must not be negative."""
    kind = nn.modules.batchnorm._NormBase
    norms = [name for name, part in module.named_modules() if isinstance(part, kind)]
    return {f"{name}.running_var".lstrip(".") for name in norms}


def _vector(tensors: Any) -> Models:
    vector: Models = torch.cat([tensor.detach().reshape(-1) for tensor in tensors]).numpy()
    return vector


def _rows(stack: Sequence[Tensor]) -> Models:
    """(models, parameters) the vectors of a stack."""
    vectors: Models = torch.cat([tensor.reshape(len(tensor), -1) for tensor in stack], 1).numpy()
    return vectors


def _close(tensor: Tensor, other: Tensor) -> bool:
    return torch.allclose(tensor, other, rtol=1e-3, atol=1e-4, equal_nan=True)


def _differ(buffers: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return any(not torch.equal(buffer, other[name]) for name, buffer in buffers.items())


def _only(leaves: Sequence[Tensor], trained: Sequence[bool]) -> list[Tensor]:
    return [*itertools.compress(leaves, trained)]


def _descend(moving: Sequence[Tensor], slopes: Sequence[Tensor | None], rate: float) -> None:
    """Plain SGD; what has no gradient stays."""
    with torch.no_grad():
        for tensor, slope in zip(moving, slopes, strict=True):
            if slope is not None:
                tensor.sub_(slope, alpha=rate)


def _add_pull(
    slopes: Sequence[Tensor | None], moving: Sequence[Tensor], anchor: Anchor | None
) -> Sequence[Tensor | None]:
    """The gradients plus those of the pull to the anchor."""
    if anchor is None:
        return slopes
    pairs = zip(slopes, anchor.pulls(moving), strict=True)
    return [None if slope is None else slope + pull.view_as(slope) for slope, pull in pairs]


def _seed(batches: Batches, client: int) -> int:
    """For the random numbers of one client in a round, dropout's say."""
    text = f"{int(batches.key)} {batches.round} {client} {batches.skip}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def _first(error: BaseException) -> str:
    """An error in a line."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__

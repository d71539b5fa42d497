"""Clients that do harm, by mistake or on purpose, in the simulator.

Each attack is an entry of `ATTACKS`: what it changes of an attacker's rows, of its update, of the numbers of
rows that it reports, or of the statistics that it reports. The attacks that train are in `attack_training`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairfate.engine.attack_training import train_apart, train_on_harmful_rows
from fairfate.errors import InputError, check, plain, unknown
from fairfate.fairness.metrics import Statistics
from fairfate.federation.seeds import Streams
from fairfate.federation.split import Federation
from fairfate.models.mlp import Mlp
from fairfate.models.model import Model, Models
from fairfate.models.rows import ClientRows
from fairfate.models.training import Training
from fairfate.strategies.hyperparameters import Choice, Number, Setting, read_settings, resolve_settings
from fairfate.sums import norm

Cells = NDArray[np.int32]
NO_ATTACK = "none"
CONSTANT_SHIFT = 10.0
"""Added to the log-odds of every row by an attacker that gives one answer."""


@dataclass(frozen=True)
class Attack:
    """An attack with every setting resolved."""

    name: str
    settings: tuple[tuple[str, float | str], ...]

    def __str__(self) -> str:
        return f"{self.name}:{','.join(f'{key}={plain(value)}' for key, value in self.settings)}"

    def __getitem__(self, key: str) -> Any:
        return dict(self.settings)[key]

    @property
    def entry(self) -> AttackEntry:
        """What it does."""
        return ATTACKS[self.name]


class Sent(NamedTuple):
    """What an attacker was sent and has trained, when it chooses what to send back."""

    attack: Attack
    model: Model
    federation: Federation
    client: int
    clients: NDArray[np.int64]
    """All of the round."""
    start: Models
    """(parameters,) the model that it was sent"""
    trained: Models
    """(parameters,) the same after honest training"""
    training: Training
    key: np.uint64
    round: int


class AttackEntry(NamedTuple):
    """An attack: each part that is None is done honestly."""

    summary: str
    settings: Mapping[str, Setting] = {}
    update: Callable[[Sent], Models] | None = None
    """The update that it sends in place of the honest one."""
    relabel: Callable[[Attack, Cells, int], tuple[NDArray[np.bool_], Cells]] | None = None
    """From its rows' strata (2 * group + label) and the number of groups: which rows may be changed, and the
    stratum that each then has."""
    report_rows: Callable[[Attack, NDArray[Any]], NDArray[Any]] | None = None
    """The numbers of rows that it reports."""
    report: Callable[[Attack, Statistics], Statistics] | None = None
    """The statistics that it reports of a model on its own rows."""
    needs_built_in: bool = False
    """Whether it knows where the built-in model's last bias is."""


# -- what they send ----------------------------------------------------------------------------------------


def _answer_constantly(shift: float, sent: Sent) -> Models:
    update = np.zeros_like(sent.start)
    update[-1] = shift
    return update


def _scale_update(sent: Sent) -> Models:
    return np.asarray((sent.trained - sent.start) * np.float32(sent.attack["factor"]))


def _flip_sign(sent: Sent) -> Models:
    return -(sent.trained - sent.start)


def _train_apart(sent: Sent) -> Models:
    update = train_apart(
        sent.model,
        sent.federation,
        sent.client,
        sent.start,
        sent.training,
        sent.key,
        sent.round,
        float(sent.attack["kappa"]),
    )
    sizes = sent.federation.sizes
    replacing = sizes[sent.clients].sum() / sizes[sent.client]
    return _shorten(update * np.float32(replacing), float(sent.attack["norm"]))


def _shorten(update: Models, limit: float) -> Models:
    length = norm(update)
    return update if limit == 0 or length <= limit else np.asarray(update * np.float32(limit / length))


def _train_on_harmful_rows(sent: Sent) -> Models:
    update = sent.trained - sent.start
    if sent.round <= sent.attack["start"] * sent.training.rounds:
        return update
    return update + train_on_harmful_rows(
        sent.model,
        sent.federation,
        sent.client,
        sent.trained,
        replace(sent.training, epochs=int(sent.attack["epochs"])),
        sent.key,
        sent.round,
        harm=sent.attack["sign"] == "harm",
    )


# -- which rows they hold ----------------------------------------------------------------------------------


def _flip_labels(attack: Attack, cell: Cells, groups: int) -> tuple[NDArray[np.bool_], Cells]:
    is_targeted = attack["targeted"] == "yes"
    changes = cell == 1 if is_targeted else np.ones(len(cell), dtype=bool)  # group 0, label 1
    return changes, cell ^ 1


def _flip_groups(attack: Attack, cell: Cells, groups: int) -> tuple[NDArray[np.bool_], Cells]:
    return np.ones(len(cell), dtype=bool), (cell + 2) % (2 * groups)


# -- what they report --------------------------------------------------------------------------------------


def _multiply_rows(attack: Attack, numbers: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(np.rint(numbers * float(attack["factor"])).astype(numbers.dtype))


def _multiply_statistics(attack: Attack, true: Statistics) -> Statistics:
    factor = float(attack["factor"])
    counts = np.rint(true.counts * factor).astype(true.counts.dtype)
    return Statistics(counts, true.probability * factor, true.loss * factor)


def _equalise_statistics(attack: Attack, true: Statistics) -> Statistics:
    """Statistics of the same rows, if all groups and labels had the same selection rate and mean loss."""
    rows, total = true.rows, max(int(true.rows.sum()), 1)
    selected = np.rint(rows * (true.counts[..., 1].sum() / total)).astype(true.counts.dtype)
    counts = np.stack([rows - selected, selected], axis=-1)
    return Statistics(counts, rows * (true.probability.sum() / total), rows * (true.loss.sum() / total))


_SHARE = Number(1.0, "of its rows")
_FACTOR = Number(10.0, "times what is true", high=1e6)
ATTACKS: dict[str, AttackEntry] = {
    "accept_all": AttackEntry(
        "sends the model it got, with log-odds 10 higher: everybody is accepted",
        update=partial(_answer_constantly, CONSTANT_SHIFT),
        needs_built_in=True,
    ),
    "reject_all": AttackEntry(
        "the same with log-odds 10 lower",
        update=partial(_answer_constantly, -CONSTANT_SHIFT),
        needs_built_in=True,
    ),
    "scale": AttackEntry("sends its update times a factor", {"factor": _FACTOR}, update=_scale_update),
    "sign_flip": AttackEntry("sends its update with the other sign", update=_flip_sign),
    "label_flip": AttackEntry(
        "trains on turned labels",
        {
            "share": _SHARE,
            "targeted": Choice("no", "only label 1 of the first group, to 0", ("no", "yes")),
        },
        relabel=_flip_labels,
    ),
    "attribute_flip": AttackEntry(
        "counts and trains its rows in the wrong group", {"share": _SHARE}, relabel=_flip_groups
    ),
    "lie_n": AttackEntry(
        "tells of more rows than it has",
        {"factor": _FACTOR},
        report_rows=_multiply_rows,
        report=_multiply_statistics,
    ),
    "lie_counts": AttackEntry(
        "reports that the model treats all its rows alike", report=_equalise_statistics
    ),
    "biased_rows": AttackEntry(
        "trains on, with rows of the last group that harm the others (EAB-FL)",
        {
            "sign": Choice("harm", "rows kept; help: as the public code has it", ("harm", "help")),
            "epochs": Number(10.0, "more epochs", low=1.0, high=1000.0, whole=True),
            "start": Number(0.4, "share of the rounds before it begins"),
        },
        update=_train_on_harmful_rows,
    ),
    "pf": AttackEntry(
        "trains for a large difference between groups, and sends as much as replaces the model (PFAttack)",
        {
            "kappa": Number(0.5, "weight of the squared difference", high=100.0),
            "norm": Number(10.0, "longest update it dares to send; 0 for any", high=1e6),
        },
        update=_train_apart,
    ),
}
_CLIENTS = Number(1.0, "how many clients do it", low=1.0, high=1e6, whole=True)


def parse_attack(text: str | None) -> Attack | None:
    """Read ``NAME[:clients=N,key=value,...]``; None for ``none``.

    >>> str(parse_attack("scale:clients=2"))
    'scale:clients=2,factor=10'
    """
    if text is None or text == NO_ATTACK:
        return None
    name, _, rest = text.partition(":")
    if name not in ATTACKS:
        raise unknown("attack", name, [*ATTACKS, NO_ATTACK])
    settings = {"clients": _CLIENTS, **ATTACKS[name].settings}
    given = read_settings(rest, text, "attack")
    return Attack(name, resolve_settings(name, settings, given, "eqo", "attack"))


@dataclass(frozen=True, eq=False)
class Attackers:
    """Those clients of a federation that attack, drawn by the seed; more of them contain the fewer."""

    attack: Attack
    federation: Federation
    """With the rows that they train on."""
    is_attacker: NDArray[np.bool_]
    """(clients,)"""

    @classmethod
    def draw(cls, attack: Attack, federation: Federation, model: Model, streams: Streams) -> Attackers:
        """Choose them among the clients that have rows."""
        with_rows, wanted = np.flatnonzero(federation.sizes > 0), int(attack["clients"])
        check(wanted <= len(with_rows), f"attack must be by <= {len(with_rows)} clients with rows", wanted)
        if attack.entry.needs_built_in and not isinstance(model, Mlp):
            raise InputError(f"attack {attack.name} must be on the built-in model, got {model.text}")
        chosen = np.zeros(federation.clients, dtype=bool)
        chosen[streams.attackers(with_rows, wanted)] = True
        return cls(attack, change_rows(federation, attack, np.flatnonzero(chosen), streams), chosen)

    @property
    def names(self) -> set[str]:
        """The attackers' names as clients."""
        return {self.federation.client_names[client] for client in np.flatnonzero(self.is_attacker)}

    def notes(self, clients: tuple[str, ...], noted: Mapping[str, Any]) -> dict[str, Any]:
        """A round's notes, with the number of attackers, how many of them were fair, and who they are."""
        attacks = np.array([name in self.names for name in clients], dtype=bool)
        fair = noted.get("fair")
        among = {} if fair is None else {"fair_attackers": float((np.asarray(fair) & attacks).sum())}
        return {**noted, "attackers": float(attacks.sum()), **among, "attacker": attacks}

    def send(
        self,
        model: Model,
        start: Models,
        trained: Models,
        clients: NDArray[np.int64],
        training: Training,
        key: np.uint64,
        t: int,
    ) -> Models:
        """(models, clients, parameters) what comes back of a round."""
        update, positions = self.attack.entry.update, np.flatnonzero(self.is_attacker[clients])
        if update is None or not len(positions):
            return trained
        models = trained.copy()
        for position in positions:
            for number, params in enumerate(start):
                own = models[number, position]
                client = int(clients[position])
                sent = Sent(
                    self.attack, model, self.federation, client, clients, params, own, training, key, t
                )
                models[number, position] = params + update(sent)
        return models

    def report_rows(self, numbers: NDArray[Any], clients: NDArray[np.int64]) -> NDArray[Any]:
        """(clients, ...) numbers of rows, as they are reported to the server."""
        lie, attacks = self.attack.entry.report_rows, self.is_attacker[clients]
        if lie is None:
            return numbers
        return np.where(attacks.reshape(-1, *(1,) * (numbers.ndim - 1)), lie(self.attack, numbers), numbers)

    def report(self, true: Statistics, clients: NDArray[np.int64]) -> Statistics:
        """(models, clients, ...) how the model does on the clients' own rows, as reported to the server."""
        lie, positions = self.attack.entry.report, np.flatnonzero(self.is_attacker[clients])
        if lie is None or not len(positions):
            return true
        reported = Statistics(true.counts.copy(), true.probability.copy(), true.loss.copy())
        for position in positions:
            for model in range(len(true.counts)):
                own = Statistics(*(values[model, position] for values in true))
                for values, changed in zip(reported, lie(self.attack, own), strict=True):
                    values[model, position] = changed
        return reported


def change_rows(
    federation: Federation, attack: Attack, clients: NDArray[np.int64], streams: Streams
) -> Federation:
    """The federation in which attackers hold other labels or groups, where the attack is that."""
    relabel = attack.entry.relabel
    if relabel is None:
        return federation
    rows, groups = federation.rows, federation.groups
    x, cell = rows.x.reshape(len(rows), -1).copy(), rows.cell.copy()
    cells = federation.client_cells.copy()
    inputs = _group_inputs(x, cell // 2, groups)
    for client in clients:
        own = np.arange(rows.offsets[client], rows.offsets[client + 1])
        may_change, strata = relabel(attack, cell[own], groups)
        candidates = np.flatnonzero(may_change)
        number = round(float(attack["share"]) * len(candidates))
        chosen = streams.attacked_rows(int(client)).permutation(own[candidates])[:number]
        is_regrouped = not np.array_equal(strata // 2, cell[own] // 2)
        cell[chosen] = strata[chosen - rows.offsets[client]]
        if is_regrouped:
            for column, of_group in inputs.items():
                x[chosen, column] = of_group[cell[chosen] // 2]
        cells[client] = np.bincount(cell[own], minlength=2 * groups).reshape(groups, 2)
    return replace(federation, rows=ClientRows(x.ravel(), cell, rows.offsets), client_cells=cells)


def _group_inputs(
    x: NDArray[np.float32], group: NDArray[np.int32], groups: int
) -> dict[int, NDArray[np.float32]]:
    """Inputs that say nothing but the group, each with its value for every group."""
    inputs = {}
    for column in range(x.shape[1]):
        least, most = (
            np.array([f(x[group == g, column]) if (group == g).any() else 0 for g in range(groups)])
            for f in (np.min, np.max)
        )
        if (least == most).all() and len(np.unique(least)) > 1:
            inputs[column] = least.astype(np.float32)
    return inputs

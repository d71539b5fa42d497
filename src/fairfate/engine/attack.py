"""Clients that do harm, by mistake or on purpose, in the simulator: which there are, and what they do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
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

NO_ATTACK = "none"
ONE_ANSWER = 10.0
"""Added to the log-odds of everybody."""


class AttackEntry(NamedTuple):
    """An attack that there is."""

    summary: str
    settings: Mapping[str, Setting]


_SHARE = Number(1.0, "of its rows")
_FACTOR = Number(10.0, "times what is true", high=1e6)
ATTACKS: dict[str, AttackEntry] = {
    "accept_all": AttackEntry("sends the model it got, with log-odds 10 higher: everybody is accepted", {}),
    "reject_all": AttackEntry("the same with log-odds 10 lower", {}),
    "scale": AttackEntry("sends its update times a factor", {"factor": _FACTOR}),
    "sign_flip": AttackEntry("sends its update with the other sign", {}),
    "label_flip": AttackEntry(
        "trains on turned labels",
        {
            "share": _SHARE,
            "targeted": Choice("no", "only label 1 of the first group, to 0", ("no", "yes")),
        },
    ),
    "attribute_flip": AttackEntry("counts and trains its rows in the wrong group", {"share": _SHARE}),
    "lie_n": AttackEntry("tells of more rows than it has", {"factor": _FACTOR}),
    "lie_counts": AttackEntry("reports that the model treats all its rows alike", {}),
    "biased_rows": AttackEntry(
        "trains on, with rows of the last group that harm the others (EAB-FL)",
        {
            "sign": Choice("harm", "rows kept; help: as the public code has it", ("harm", "help")),
            "epochs": Number(10.0, "more epochs", low=1.0, high=1000.0, whole=True),
            "start": Number(0.4, "share of the rounds before it begins"),
        },
    ),
    "pf": AttackEntry(
        "trains for a large difference between groups, and sends as much as replaces the model (PFAttack)",
        {
            "kappa": Number(0.5, "weight of the squared difference", high=100.0),
            "norm": Number(10.0, "longest update it dares to send; 0 for any", high=1e6),
        },
    ),
}
_CLIENTS = Number(1.0, "how many clients do it", low=1.0, high=1e6, whole=True)


@dataclass(frozen=True)
class Attack:
    """An attack with every setting resolved."""

    name: str
    settings: tuple[tuple[str, float | str], ...]

    def __str__(self) -> str:
        return f"{self.name}:{','.join(f'{key}={plain(value)}' for key, value in self.settings)}"

    def __getitem__(self, key: str) -> Any:
        return dict(self.settings)[key]


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
    is_one: NDArray[np.bool_]
    """(clients,)"""

    @classmethod
    def draw(cls, attack: Attack, federation: Federation, model: Model, streams: Streams) -> Attackers:
        """Choose them among the clients that have rows."""
        with_rows, wanted = np.flatnonzero(federation.sizes > 0), int(attack["clients"])
        check(wanted <= len(with_rows), f"attack must be by <= {len(with_rows)} clients with rows", wanted)
        if attack.name in ("accept_all", "reject_all") and not isinstance(model, Mlp):
            raise InputError(f"attack {attack.name} must be on the built-in model, got {model.text}")
        chosen = np.zeros(federation.clients, dtype=bool)
        chosen[streams.attackers(with_rows, wanted)] = True
        return cls(attack, _wrong_rows(federation, attack, np.flatnonzero(chosen), streams), chosen)

    @property
    def names(self) -> set[str]:
        """As clients are called."""
        return {self.federation.client_names[k] for k in np.flatnonzero(self.is_one)}

    def notes(self, clients: tuple[str, ...], noted: Mapping[str, Any]) -> dict[str, Any]:
        """A round's notes, with the number of attackers, how many of them were fair, and who they are."""
        mine = np.array([name in self.names for name in clients], dtype=bool)
        fair = noted.get("fair")
        among = {} if fair is None else {"fair_attackers": float((np.asarray(fair) & mine).sum())}
        return {**noted, "attackers": float(mine.sum()), **among, "attacker": mine}

    # -- what they send ------------------------------------------------------------------------------------

    def sent(
        self,
        model: Model,
        begun: Models,
        trained: Models,
        clients: NDArray[np.int64],
        training: Training,
        key: np.uint64,
        t: int,
    ) -> Models:
        """(models, clients, parameters) what comes back of a round."""
        places = np.flatnonzero(self.is_one[clients])
        name = self.attack.name
        if not len(places) or name in ("label_flip", "attribute_flip", "lie_n", "lie_counts"):
            return trained
        if name == "biased_rows" and t <= self.attack["start"] * training.rounds:
            return trained
        found = trained.copy()
        for place in places:
            client = int(clients[place])
            for number, start in enumerate(begun):
                update = found[number, place] - start
                if name in ("accept_all", "reject_all"):
                    update = np.zeros_like(start)
                    update[-1] = ONE_ANSWER if name == "accept_all" else -ONE_ANSWER
                elif name == "scale":
                    update = update * np.float32(self.attack["factor"])
                elif name == "sign_flip":
                    update = -update
                elif name == "pf":
                    update = train_apart(
                        model, self.federation, client, start, training, key, t, float(self.attack["kappa"])
                    )
                    replacing = self.federation.sizes[clients].sum() / self.federation.sizes[client]
                    update = _no_longer(update * np.float32(replacing), float(self.attack["norm"]))
                else:
                    update = update + train_on_harmful_rows(
                        model,
                        self.federation,
                        client,
                        found[number, place],
                        replace(training, epochs=int(self.attack["epochs"])),
                        key,
                        t,
                        harm=self.attack["sign"] == "harm",
                    )
                found[number, place] = start + update
        return found

    # -- what they tell ------------------------------------------------------------------------------------

    def told(self, numbers: NDArray[Any], clients: NDArray[np.int64]) -> NDArray[Any]:
        """(clients, ...) numbers of rows, as the server hears of them."""
        if self.attack.name != "lie_n":
            return numbers
        factor = np.where(self.is_one[clients], float(self.attack["factor"]), 1.0)
        lies = numbers * factor.reshape(-1, *(1,) * (numbers.ndim - 1))
        return np.asarray(np.rint(lies).astype(numbers.dtype))

    def reported(self, told: Statistics, clients: NDArray[np.int64]) -> Statistics:
        """(models, clients, ...) how the model does on the clients' own rows, as the server hears of it."""
        mine = self.is_one[clients]
        if self.attack.name == "lie_n":
            factor = np.where(mine, float(self.attack["factor"]), 1.0)[:, None, None]
            counts = np.rint(told.counts * factor[..., None]).astype(told.counts.dtype)
            return Statistics(counts, told.probability * factor, told.loss * factor)
        if self.attack.name != "lie_counts" or not mine.any():
            return told
        counts, probability, loss = told.counts.copy(), told.probability.copy(), told.loss.copy()
        for place in np.flatnonzero(mine):
            for number in range(len(counts)):
                alike = _alike(
                    Statistics(counts[number, place], probability[number, place], loss[number, place])
                )
                counts[number, place], probability[number, place], loss[number, place] = alike
        return Statistics(counts, probability, loss)


def _alike(true: Statistics) -> Statistics:
    """Statistics of the same rows, if every group and label were accepted, and lost, alike."""
    rows, total = true.rows, max(int(true.rows.sum()), 1)
    accepted = np.rint(rows * (true.counts[..., 1].sum() / total)).astype(true.counts.dtype)
    counts = np.stack([rows - accepted, accepted], axis=-1)
    return Statistics(counts, rows * (true.probability.sum() / total), rows * (true.loss.sum() / total))


def _no_longer(update: Models, limit: float) -> Models:
    length = norm(update)
    return update if limit == 0 or length <= limit else np.asarray(update * np.float32(limit / length))


def _wrong_rows(
    federation: Federation, attack: Attack, clients: NDArray[np.int64], streams: Streams
) -> Federation:
    """The federation in which attackers hold other labels or groups, where the attack is that."""
    if attack.name not in ("label_flip", "attribute_flip"):
        return federation
    rows, groups = federation.rows, federation.groups
    x, cell = rows.x.reshape(len(rows), -1).copy(), rows.cell.copy()
    cells = federation.client_cells.copy()
    values = _group_inputs(x, cell // 2, groups)
    for client in clients:
        mine = np.arange(rows.offsets[client], rows.offsets[client + 1])
        if attack.name == "label_flip" and attack["targeted"] == "yes":
            mine = mine[cell[mine] == 1]  # group 0, label 1
        number = round(float(attack["share"]) * len(mine))
        turned = streams.attacked_rows(int(client)).permutation(mine)[:number]
        if attack.name == "label_flip":
            cell[turned] ^= 1
        else:
            cell[turned] = (cell[turned] + 2) % (2 * groups)
            for column, of_group in values.items():
                x[turned, column] = of_group[cell[turned] // 2]
        own = cell[rows.offsets[client] : rows.offsets[client + 1]]
        cells[client] = np.bincount(own, minlength=2 * groups).reshape(groups, 2)
    return replace(federation, rows=ClientRows(x.ravel(), cell, rows.offsets), client_cells=cells)


def _group_inputs(
    x: NDArray[np.float32], group: NDArray[np.int32], groups: int
) -> dict[int, NDArray[np.float32]]:
    """Inputs that say nothing but the group, each with its value for every group."""
    found = {}
    for column in range(x.shape[1]):
        least, most = (
            np.array([f(x[group == g, column]) if (group == g).any() else 0 for g in range(groups)])
            for f in (np.min, np.max)
        )
        if (least == most).all() and len(np.unique(least)) > 1:
            found[column] = least.astype(np.float32)
    return found

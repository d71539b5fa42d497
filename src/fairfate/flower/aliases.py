"""Strategies by names of their own, for those who replace Flower's FedAvg by one of them.

Each has the hyperparameters of its factory in `fairfate.strategies` as keywords. One that is left out has the
default that `fairfate run` gives it on users' own files: guards against models that give everybody one answer
are on, unless the protocol is ``published``. All others are keywords of `FlowerStrategy`, and those of its
`Cohorts` and `ReplyPolicy`, which Flower's FedAvg takes one by one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, ClassVar

from fairfate.federation.validation_source import parse_validation_source
from fairfate.flower.clients import Cohorts
from fairfate.flower.replies import ReplyPolicy
from fairfate.flower.strategy import FlowerStrategy
from fairfate.flower.validation import Measure
from fairfate.strategies import (
    Spec,
    fair_fate,
    fedavg,
    fedavg_gr,
    fedavg_lr,
    feddemon,
    fedmom,
    fedval,
    parse_spec,
)


def group_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords of `FlowerStrategy`; those of its `Cohorts` and `ReplyPolicy` may be given one by one."""
    grouped = dict(options)
    for name, kind in (("cohorts", Cohorts), ("replies", ReplyPolicy)):
        own = {field.name: grouped.pop(field.name) for field in fields(kind) if field.name in grouped}
        grouped[name] = replace(grouped.get(name) or kind(), **own)
    return grouped


class Alias(FlowerStrategy):
    """A strategy whose hyperparameters are keywords.

    Parameters
    ----------
    validation : the server's labelled rows, and how its copy of the model predicts on them
    metric : fairness it looks at
    options : its hyperparameters, what `FlowerStrategy` takes, and the fields of its `Cohorts` and of its
        `ReplyPolicy`, as Flower's FedAvg takes them
    """

    factory: ClassVar[Callable[..., Spec]]

    def __init_subclass__(cls, factory: Callable[..., Spec]) -> None:
        cls.factory = staticmethod(factory)
        others = list(inspect.signature(Alias.__init__).parameters.values())[1:]
        given = inspect.signature(factory).parameters.values()
        hyperparameters = [each for each in given if each.name not in ("validation", "metric")]
        cls.__signature__ = inspect.Signature([*others[:-1], *hyperparameters, others[-1]])  # type: ignore[attr-defined]

    def __init__(self, validation: Measure | None = None, metric: str = "eqo", **options: Any) -> None:
        names = set(inspect.signature(self.factory).parameters)
        given = {key: options.pop(key) for key in names & set(options)}
        given = {key: value for key, value in given.items() if value is not None}
        spec = parse_spec(
            self.factory(**given),
            metric,
            guard=options.get("protocol", "paper") == "paper",
            trials=not parse_validation_source(options.get("validation_from", "server")).at_clients,
        )
        super().__init__(spec, validation=validation, metric=metric, **group_options(options))


class FairFate(Alias, factory=fair_fate):
    """FAIR-FATE (Salazar et al. 2023): the momentum of the fair clients' updates mixed with FedAvg."""


class FedVal(Alias, factory=fedval):
    """FedVal (Mehrabi et al. 2022): the clients' models averaged by their fairness on the validation rows."""


class FedAvg(Alias, factory=fedavg):
    """FedAvg (McMahan et al. 2017), with this library's checks, checkpoints and measurements."""


class FedMom(Alias, factory=fedmom):
    """FedMom (Liu et al. 2020): FedAvg with server momentum."""


class FedDemon(Alias, factory=feddemon):
    """FedDemon (Fernandes et al. 2021): FedAvg with server momentum that decays over the rounds."""


class FedAvgLR(Alias, factory=fedavg_lr):
    """FedAvg+LR (Abay et al. 2020): clients' losses are reweighed by their own counts, which stay there."""


class FedAvgGR(Alias, factory=fedavg_gr):
    """FedAvg+GR (Abay et al. 2020): clients' losses are reweighed by the counts of the round's clients.

    Clients answer a query with their counts by group and label, and use the weights they are sent. The
    groups are those of the validation rows. With ``counts="once"`` the counts are those of all clients.
    """

"""A class for each strategy of the paper, to replace Flower's FedAvg by it.

Each takes the hyperparameters of its factory in `fairfate.strategies` as keywords. The defaults are those of
`fairfate run` on users' own files: guards against models that give everybody one answer are on, unless the
protocol is ``published``. All other keywords are those of `FlowerStrategy` and of its `Cohorts` and
`ReplyPolicy`, one by one as in Flower's FedAvg.
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
    metric : the objective
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
    """FAIR-FATE: the momentum of the fair clients' updates mixed with FedAvg.

    Parameters
    ----------
    metric, lam0, rho, max, beta0, momentum, growth, min_mcc, keep : as of `fairfate.strategies.fair_fate`;
        the guards ``min_mcc`` and ``keep`` are on by default
    validation : the server's labelled rows, and how its copy of the model predicts on them
    options : those of `FlowerStrategy`, and the fields of its `Cohorts` and `ReplyPolicy`, one by one

    References
    ----------
    Salazar, Fernandes, Araújo, Abreu, "FAIR-FATE: Fair Federated Learning with Momentum", ICCS 2023.

    Examples
    --------
    >>> from fairfate.flower import Validation
    >>> rows = Validation(lambda arrays: [1, 0, 1, 0], label=[1, 0, 1, 1], group=["a", "a", "b", "b"])
    >>> strategy = FairFate(validation=rows, metric="eo", num_rounds=100, per_round=3)
    >>> strategy.spec.name, strategy.cohorts.per_round
    ('fair_fate', 3)
    """


class FedVal(Alias, factory=fedval):
    """FedVal: the clients' models averaged by their fairness on the validation rows.

    Parameters
    ----------
    metric, floor, sharpness, min_mcc : as of `fairfate.strategies.fedval`; ``min_mcc`` is on by default
    validation : the server's labelled rows, and how its copy of the model predicts on them
    options : those of `FlowerStrategy`, and the fields of its `Cohorts` and `ReplyPolicy`, one by one

    References
    ----------
    Mehrabi, de Lichy, McKay, He, Campbell, "Towards Multi-Objective Statistically Fair Federated Learning",
    arXiv 2201.09917, 2022.

    Examples
    --------
    >>> from fairfate.flower import Validation
    >>> rows = Validation(lambda arrays: [1, 0, 1, 0], label=[1, 0, 1, 1], group=["a", "a", "b", "b"])
    >>> FedVal(validation=rows, metric="sp").spec.metric
    'sp'
    """


class FedAvg(Alias, factory=fedavg):
    """FedAvg, with this library's checks, checkpoints and measurements.

    Parameters
    ----------
    metric : not used by this strategy
    validation : the server's labelled rows, and how its copy of the model predicts on them
    options : those of `FlowerStrategy`, and the fields of its `Cohorts` and `ReplyPolicy`, one by one

    References
    ----------
    McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-Efficient Learning of Deep Networks from
    Decentralized Data", AISTATS 2017.

    Examples
    --------
    >>> FedAvg(num_rounds=10, per_round=3).spec.text
    'fedavg'
    """


class FedMom(Alias, factory=fedmom):
    """FedMom: FedAvg with server momentum.

    Parameters
    ----------
    beta : share of the old momentum that is kept
    metric : not used by this strategy
    validation : the server's labelled rows, and how its copy of the model predicts on them
    options : those of `FlowerStrategy`, and the fields of its `Cohorts` and `ReplyPolicy`, one by one

    References
    ----------
    Salazar, Fernandes, Araújo, Abreu, "FAIR-FATE: Fair Federated Learning with Momentum", ICCS 2023.

    Examples
    --------
    >>> FedMom(beta=0.8).spec.text
    'fedmom:beta=0.8'
    """


class FedDemon(Alias, factory=feddemon):
    """FedDemon: FedAvg with server momentum that decays over the rounds.

    Parameters
    ----------
    beta0 : momentum at the start
    metric : not used by this strategy
    validation : the server's labelled rows, and how its copy of the model predicts on them
    options : those of `FlowerStrategy`, and the fields of its `Cohorts` and `ReplyPolicy`, one by one

    References
    ----------
    Fernandes, Silva, Arrais, Cardoso, Ribeiro, "Decay Momentum for Improving Federated Learning", ESANN 2021.

    Examples
    --------
    >>> FedDemon(beta0=0.8, num_rounds=100).spec.text
    'feddemon:beta0=0.8'
    """


class FedAvgLR(Alias, factory=fedavg_lr):
    """FedAvg+LR: each client reweighs its loss by its own counts, which it does not send.

    Parameters
    ----------
    metric : not used by this strategy
    validation : the server's labelled rows, and how its copy of the model predicts on them
    options : those of `FlowerStrategy`, and the fields of its `Cohorts` and `ReplyPolicy`, one by one

    References
    ----------
    Abay, Zhou, Baracaldo, Rajamoni, Chuba, Ludwig, "Mitigating Bias in Federated Learning", arXiv 2012.02447,
    2020.

    Examples
    --------
    >>> FedAvgLR(num_rounds=10).spec.text
    'fedavg_lr'
    """


class FedAvgGR(Alias, factory=fedavg_gr):
    """FedAvg+GR: clients reweigh their losses by the counts of all clients of the round.

    Clients answer a query with their counts by group and label, and use the weights that they are sent. The
    groups are those of the validation rows.

    Parameters
    ----------
    counts : ``round``, or ``once`` for the counts of all clients
    metric : not used by this strategy
    validation : the server's labelled rows, and how its copy of the model predicts on them
    options : those of `FlowerStrategy`, and the fields of its `Cohorts` and `ReplyPolicy`, one by one

    References
    ----------
    Abay, Zhou, Baracaldo, Rajamoni, Chuba, Ludwig, "Mitigating Bias in Federated Learning", arXiv 2012.02447,
    2020.

    Examples
    --------
    >>> from fairfate.flower import Validation
    >>> rows = Validation(lambda arrays: [1, 0, 1, 0], label=[1, 0, 1, 1], group=["a", "a", "b", "b"])
    >>> FedAvgGR(validation=rows, num_rounds=10).spec.name
    'fedavg_gr'
    """

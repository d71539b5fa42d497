"""Each strategy by its own name and settings, for those who replace Flower's FedAvg by it.

A setting that is left out has the default that `fairfate run` gives it on files of users' own: guards against
models that give everybody one answer are on, unless the protocol is ``published``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairfate.federation.holders import parse_holders
from fairfate.flower.strategy import FlowerStrategy
from fairfate.flower.validation import Measure
from fairfate.strategies import make_spec


def _text(name: str, options: Mapping[str, Any], **settings: object) -> str:
    """The strategy with those settings that are given; ``options`` are `FlowerStrategy`'s."""
    given = {key: value for key, value in settings.items() if value is not None}
    guard = options.get("protocol", "paper") == "paper"
    trials = not parse_holders(options.get("validation_from", "server")).at_clients
    return make_spec(name, given, "eqo", guard=guard, trials=trials).text


class FairFate(FlowerStrategy):
    """FAIR-FATE (Salazar et al. 2023): the momentum of the fair clients' updates mixed with FedAvg.

    Parameters
    ----------
    validation : the server's labelled rows, and how its copy of the model predicts on them
    metric : fairness it looks at: sp, eo or eqo
    lam0, rho, max : share of fairness at the start, its growth rate and its upper bound
    beta0 : momentum at the start; it decays to 0 over the rounds
    momentum, growth : none|constant|decaying and constant|linear|exponential, for ablation
    min_mcc, keep : least MCC of a fair client (0.05); share of balanced accuracy above one half that the
        momentum must leave (0.8; 0 where clients hold the validation rows); 0 for the paper's rule
    options : see `FlowerStrategy`
    """

    def __init__(
        self,
        validation: Measure,
        metric: str = "eqo",
        *,
        lam0: float | None = None,
        rho: float | None = None,
        max: float | None = None,  # noqa: A002  # the paper's name
        beta0: float | None = None,
        momentum: str | None = None,
        growth: str | None = None,
        min_mcc: float | None = None,
        keep: float | None = None,
        **options: Any,
    ) -> None:
        text = _text(
            "fair_fate",
            options,
            metric=metric,
            lam0=lam0,
            rho=rho,
            max=max,
            beta0=beta0,
            momentum=momentum,
            growth=growth,
            min_mcc=min_mcc,
            keep=keep,
        )
        super().__init__(text, validation=validation, metric=metric, **options)


class FedVal(FlowerStrategy):
    """FedVal (Mehrabi et al. 2022): the clients' models averaged by their fairness on the validation rows.

    Parameters
    ----------
    validation : the server's labelled rows, and how its copy of the model predicts on them
    metric : fairness it looks at; of several metrics such as ``sp+accuracy``, their mean
    floor, sharpness : what is added to every score, and the power it is then raised to
    min_mcc : least MCC of a client that counts (0.05); 0 for the paper's rule
    options : see `FlowerStrategy`
    """

    def __init__(
        self,
        validation: Measure,
        metric: str = "eqo",
        *,
        floor: float | None = None,
        sharpness: float | None = None,
        min_mcc: float | None = None,
        **options: Any,
    ) -> None:
        text = _text("fedval", options, metric=metric, floor=floor, sharpness=sharpness, min_mcc=min_mcc)
        super().__init__(text, validation=validation, metric=metric, **options)


class FedAvg(FlowerStrategy):
    """FedAvg (McMahan et al. 2017), with this library's checks, checkpoints and measurements."""

    def __init__(self, **options: Any) -> None:
        super().__init__("fedavg", **options)


class FedMom(FlowerStrategy):
    """FedMom (Liu et al. 2020): FedAvg with server momentum."""

    def __init__(self, *, beta: float | None = None, **options: Any) -> None:
        super().__init__(_text("fedmom", options, beta=beta), **options)


class FedDemon(FlowerStrategy):
    """FedDemon (Fernandes et al. 2021): FedAvg with server momentum that decays over the rounds."""

    def __init__(self, *, beta0: float | None = None, **options: Any) -> None:
        super().__init__(_text("feddemon", options, beta0=beta0), **options)


class FedAvgLR(FlowerStrategy):
    """FedAvg+LR (Abay et al. 2020): clients' losses are reweighed by their own counts, which stay there."""

    def __init__(self, validation: Measure, **options: Any) -> None:
        super().__init__("fedavg_lr", validation=validation, **options)


class FedAvgGR(FlowerStrategy):
    """FedAvg+GR (Abay et al. 2020): clients' losses are reweighed by the counts of the round's clients.

    Clients answer a query with their counts by group and label, and use the weights they are sent. The
    groups are those of the validation rows. With ``counts="once"`` the counts are those of all clients.
    """

    def __init__(self, validation: Measure, *, counts: str | None = None, **options: Any) -> None:
        super().__init__(_text("fedavg_gr", options, counts=counts), validation=validation, **options)

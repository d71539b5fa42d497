"""The methods of the benchmark, with the settings that each is tuned over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from fairfate.errors import check, unknown
from fairfate.experiments.config import read_specs
from fairfate.fairness.metrics import FAIRNESS
from fairfate.strategies import THRESHOLDS, Spec, entries
from fairfate.strategies.steps import split_steps

METRICS = tuple(FAIRNESS)
MOST_SETTINGS = 8
"""The most settings that a method may be tuned over, for each metric."""
REFERENCE = "fedavg+average"
"""The method whose accuracy and skill the others must keep, in the same track."""
AWARE, BLIND = TRACKS = "aware", "blind"
"""Whether the group is an input and may be used at decisions, or is neither."""
LEADS = {AWARE: "fedavg+average+thresholds:from=clients", BLIND: "fedavg+average+tilt"}
"""The method that we would deploy, by track."""

_AVERAGED, _COMMON = "+average", "+average+common_threshold"
_TOLERANCE = "tolerance=0.01|0.02|0.05"
_TRAINED = {
    "fedavg": ["fedavg"],
    "fedmom": ["fedmom:beta=0.8|0.9|0.99"],
    "feddemon": ["feddemon:beta0=0.8|0.9|0.99"],
    "fedprox": ["fedprox:mu=0.001|0.01|0.1|1"],
    "fedadam": ["fedadam:rate=0.01|0.03|0.1|0.3"],
    "fedyogi": ["fedyogi:rate=0.01|0.03|0.1|0.3"],
    "qffl": ["qffl:q=0|0.001|0.01|0.1|0.5|1|2|5"],
    "afl": ["afl:rate=0.001|0.01|0.1"],
    "fedavg_lr": ["fedavg_lr"],
    "fedavg_gr": ["fedavg_gr"],
    "fedavg_gr:counts=once": ["fedavg_gr:counts=once"],
    "prejudice": ["prejudice:eta=0.1|1|5|10,scope=batch", "prejudice:eta=0.1|0.5|1|2,scope=global"],
    "fairfed": ["fairfed:beta=0.02|0.2|1|5|50"],
    "fairfed:variant=exp": ["fairfed:variant=exp,beta=0.02|0.2|1|5|50"],
    "fedval": ["fedval"],
    "fair_best": ["fair_best"],
    "fair_avg": ["fair_avg:alpha=0.2|0.34|0.5|0.67"],
    "fair_acc_avg": ["fair_acc_avg:alpha=0.2|0.34|0.5|0.67"],
    "fair_fate": ["fair_fate:lam0=0.1,rho=0.04|0.05,max=0.8|1.0,beta0=0.9|0.99"],
    "fair_fate:min_mcc=0.05,keep=0.8": [
        "fair_fate:min_mcc=0.05,keep=0.8,lam0=0.1|0.5,rho=0.04|0.05,max=1.0,beta0=0.9|0.99"
    ],
    "fedavg+clip": ["fedavg+clip"],
    "fedavg+median": ["fedavg+median"],
    "fedavg+trimmed": ["fedavg+trimmed"],
    "fedavg+krum": ["fedavg+krum"],
    "fedfb": [
        "fedfb:metric=sp,alpha=0.001|0.05|0.1|0.5|2,surrogate=error",
        "fedfb:metric=sp,alpha=0.001|1|2,surrogate=loss",
        "fedfb:metric=eo,step=0.001|0.005|0.01|0.05|0.1|0.2",
        "fedfb:metric=eqo,step=0.001|0.005|0.01|0.05|0.1|0.2",
    ],
    "fairbatch": ["fairbatch:alpha=0.001|0.005|0.02|0.05"],
    "fedfact": ["fedfact:rate=0.05|0.1|0.2|0.5,epsilon=0|0.01"],
    "fairgrad": ["fairgrad:rate=0.005|0.01|0.05|0.1,epsilon=0|0.02"],
    "fedgft": ["fedgft:gamma=0.05|0.1|0.3|1|5|10|20|50"],
    "ffalm": ["ffalm:beta=1|5,rate=0.2|2,labels=all|favourable"],
    "fedminmax": ["fedminmax:rate=0.005|0.01|0.05|0.1,risks=groups|cells"],
    "server_step": ["server_step:rho=0.05|0.1|0.3"],
    "dual_reweighing": ["dual_reweighing:rate=0.1|0.2|0.5|1"],
}
_AFTERWARDS = {
    "fedavg+thresholds": [f"fedavg+thresholds:{_TOLERANCE}"],
    "fedavg+average+thresholds": [f"fedavg+average+thresholds:{_TOLERANCE}"],
    LEADS[AWARE]: [f"{LEADS[AWARE]},{_TOLERANCE}"],
    "fedavg_lr+average+thresholds:from=clients": [f"fedavg_lr+average+thresholds:from=clients,{_TOLERANCE}"],
    LEADS[BLIND]: [LEADS[BLIND]],
    "fedavg+average+tilt:tuned": [f"fedavg+average+tilt:{_TOLERANCE}"],
    "fedavg_lr+average+tilt": ["fedavg_lr+average+tilt"],
}


@dataclass(frozen=True)
class Method:
    """A method with all settings that are tried."""

    name: str
    specs: tuple[Spec, ...]

    def settings(self, metric: str) -> int:
        """How many settings there are to choose from for a metric."""
        return sum(spec.metric in (None, metric) for spec in self.specs)

    def is_in(self, track: str) -> bool:
        """Whether it takes part in a track: a threshold for each group needs the group at decisions."""
        return track == AWARE or all(spec.step(THRESHOLDS) is None for spec in self.specs)

    @property
    def is_published(self) -> bool:
        """Whether it is trained and released as its paper says, without our steps."""
        return self.name in _TRAINED


@cache
def every() -> tuple[Method, ...]:
    """All methods: as published, with the average of the last rounds, and with a rule chosen afterwards."""
    grids = {
        f"{name}{steps}": [f"{text}{steps}" for text in grid]
        for steps in ("", _AVERAGED, _COMMON)
        for name, grid in _TRAINED.items()
    } | _AFTERWARDS
    return tuple(_method(name, grid) for name, grid in grids.items())


def find(texts: Sequence[str]) -> tuple[Method, ...]:
    """Methods by name; another text is a method of its own, as in a sweep: ``mine:strength=0.1|1``."""
    known = {method.name: method for method in every()}
    methods = []
    for text in texts:
        if text in known:
            methods.append(known[text])
            continue
        name = split_steps(text)[0].partition(":")[0]
        if name not in {entry.name for entry in entries()}:
            raise unknown("method", text, known)
        plain = "+".join(part.partition(":")[0] for part in (split_steps(text)[0], *split_steps(text)[1]))
        methods.append(_method(plain if plain not in known else text, [text]))
    names = [method.name for method in methods]
    check(len(set(names)) == len(names), "methods must be named once each", ", ".join(names))
    return tuple(methods)


def _method(name: str, grid: Sequence[str]) -> Method:
    """Every setting, for each metric to be reached; none is trained for one and has a rule for another."""
    specs = [spec for text in grid for metric in METRICS for spec in read_specs(text, metric)]
    matching = [spec for spec in specs if spec.base.metric in (None, spec.metric)]
    method = Method(name, tuple(dict.fromkeys(matching or specs)))
    most = max(method.settings(metric) for metric in METRICS)
    check(
        most <= MOST_SETTINGS,
        f"method '{name}' must have at most {MOST_SETTINGS} settings for a metric",
        most,
    )
    return method

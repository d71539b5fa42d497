"""Which runs the paper made, and the few that a reviewer would add."""

from __future__ import annotations

from collections.abc import Sequence

from fairfate.errors import unknown
from fairfate.experiments.config import Config, expand, parse_seeds

DATASETS = ("compas", "adult", "law", "dutch")
SPLITS = {"0.5": "dirichlet:0.5", "1.0": "dirichlet:1", "rnd": "random"}
"""The paper's names of the splits, and ours."""
METRICS = ("sp", "eo", "eqo")
PROTOCOLS = ("published", "paper")
BASELINES = ("fedavg", "fedmom", "feddemon", "fedavg_lr", "fedavg_gr", "fedval")

STRATEGIES = (
    "fedavg",
    "fedavg_lr",
    "fedavg_gr",
    "fedmom:beta=0.8|0.9|0.99",
    "feddemon:beta0=0.8|0.9|0.99",
    "fedval:metric=sp|eo|eqo",
    "fair_fate:metric=sp|eo|eqo,lam0=0.1|0.5,rho=0.04|0.05,max=0.8|0.9|1,beta0=0.8|0.9|0.99",
)
ABLATIONS = ("fair_fate:metric=sp|eo|eqo,momentum=none|constant|decaying,growth=constant|linear|exponential",)
THRESHOLDS = "+thresholds:metric=sp|eo|eqo,tolerance=0.02,keep=0,against=best"
"""Taken by every setting; the rule that the kept results were made with."""


def configs(
    datasets: Sequence[str],
    splits: Sequence[str],
    protocols: Sequence[str],
    seeds: int | str,
    data_dir: str | None = None,
) -> list[Config]:
    """All of it, or a part. The ablations and the thresholds belong to the `paper` protocol only."""
    for names, known, what in (
        (datasets, DATASETS, "dataset"),
        (splits, tuple(SPLITS), "sigma"),
        (protocols, PROTOCOLS, "protocol"),
    ):
        for name in names:
            if name not in known:
                raise unknown(what, name, known)
    chosen = []
    for protocol in protocols:
        trained = [*STRATEGIES, *(ABLATIONS if protocol == "paper" else ())]
        taken = [f"{text}{THRESHOLDS}" for text in trained] if protocol == "paper" else []
        chosen += expand(
            {
                "data": list(datasets),
                "partition": [SPLITS[split] for split in splits],
                "protocol": [protocol],
                "strategy": [*trained, *taken],
                "seeds": list(parse_seeds(seeds)),
                **({} if data_dir is None else {"data-dir": data_dir}),
            },
            where="reproduce",
        )
    return chosen

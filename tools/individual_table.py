"""The table of docs/fairness.md, from docs/measurements/individual.csv.

``python tools/individual_table.py`` measures what is not in the file yet (a few minutes on one core, and it
needs the public datasets), and writes it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from fairfate.experiments.config import from_mapping
from fairfate.experiments.job import run_job
from fairfate.experiments.plan import resolve
from fairfate.experiments.prepare import load_table
from fairfate.fairness.individual import INDIVIDUAL
from fairfate.fairness.metrics import METRICS
from fairfate.federation.individual import IndividualRows
from fairfate.federation.seeds import Streams
from fairfate.federation.split import split_rows

FILE = Path(__file__).parent.parent / "docs" / "measurements" / "individual.csv"
TITLES = {"compas": "COMPAS", "adult": "Adult"}
OBJECTIVES = ("eqo", "consistency", "flip", "0.5*eqo+0.5*flip")
STRATEGIES = ("fedavg", *(f"fair_fate:metric={text},min_mcc=0.05,keep=0.8" for text in OBJECTIVES))
SEEDS = 5
SHOWN = ("accuracy", "mcc", "eqo", *INDIVIDUAL)


def measure(dataset: str, seed: int) -> list[dict[str, object]]:
    """Every strategy's model on the test rows; individual fairness on the validation rows too."""
    options = {"data": dataset, "partition": "dirichlet:0.5", "strategy": list(STRATEGIES), "seeds": [seed]}
    config = from_mapping(options)
    table = load_table(config)
    plan = resolve(config, table)
    outcome = run_job(plan, table, seed, plan.specs, lambda: None)
    federation = outcome.federation
    model = plan.model(federation.inputs)
    models = np.stack([trace.params for trace in outcome.traces])
    _, _, test = split_rows(table, Streams(seed))
    observed = IndividualRows(table, test, federation.test, federation.encoder).fairness(
        INDIVIDUAL, model, models
    )
    assert federation.individual is not None
    known = federation.individual.fairness(INDIVIDUAL, model, models)
    return [
        {
            "dataset": dataset,
            "seed": seed,
            "strategy": text,
            **{name: float(METRICS[name](trace.test[-1])) for name in ("accuracy", "mcc", "eqo")},
            **{term: values[index] for term, values in observed.items()},
            **{f"validation_{term}": values[index] for term, values in known.items()},
        }
        for index, (text, trace) in enumerate(zip(STRATEGIES, outcome.traces, strict=True))
    ]


def collect() -> None:
    """Measure what is missing; the file is written after every pass."""
    known = pd.read_csv(FILE) if FILE.is_file() else pd.DataFrame(columns=["dataset", "seed"])
    names = set(known[["dataset", "seed"]].itertuples(index=False, name=None))
    for dataset in TITLES:
        for seed in range(1, SEEDS + 1):
            if (dataset, seed) not in names:
                known = pd.concat([known, pd.DataFrame(measure(dataset, seed))], ignore_index=True)
                known.round(5).to_csv(FILE, index=False)
                sys.stderr.write(f"{dataset} {seed}\n")


def table() -> str:
    """Means over seeds on the test rows."""
    means = pd.read_csv(FILE).groupby(["dataset", "strategy"])[list(SHOWN)].mean()
    text = "| | accuracy | MCC | EQO | consistency | flip |\n| --- | ---: | ---: | ---: | ---: | ---: |\n"
    for dataset, title in TITLES.items():
        for strategy in STRATEGIES:
            name = strategy.removesuffix(",min_mcc=0.05,keep=0.8")
            values = " | ".join(f"{value:.3f}" for value in means.loc[(dataset, strategy)])
            text += f"| {title}, `{name}` | {values} |\n"
    return text


TABLES = {"individual": table}

if __name__ == "__main__":
    collect()

"""With the defaults for users' files, FedAvg does about as well as logistic regression on all rows."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import matthews_corrcoef, roc_auc_score

import made_up
from fairfate.data import Columns, Table, load
from fairfate.engine.simulate import simulate
from fairfate.experiments.config import Config
from fairfate.experiments.plan import resolve
from fairfate.federation.seeds import Streams
from fairfate.federation.split import build, split_rows
from fairfate.models.mlp import probabilities

SEEDS = (1, 2, 3)


def skill(table: Table, encode: str = "onehot") -> np.ndarray:
    """(2, 2) AUC and MCC of FedAvg and of logistic regression on the test rows, means over seeds."""
    config = Config(partition="random", strategies=("fedavg",), encode=encode)
    plan = resolve(config, table)
    results = []
    for seed in SEEDS:
        streams = Streams(seed)
        federation = build(table, plan.partition, plan.clients, streams)
        train, _, test = split_rows(table, streams)
        model = plan.model(federation.inputs)
        (trace,) = simulate(federation, plan.specs, model, plan.training, plan.setup(table), streams)
        x, y = federation.encoder.transform(table.features), table.label
        ours = probabilities(model.arrays(trace.params), x[test])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # not converged to the last digit
            central = LogisticRegression(max_iter=300).fit(x[train], y[train]).predict_proba(x[test])[:, 1]
        results.append(
            [[roc_auc_score(y[test], p), matthews_corrcoef(y[test], p > 0.5)] for p in (ours, central)]
        )
    mean: np.ndarray = np.mean(results, axis=0)
    return mean


FILES = {
    "bank": ("subscribed", "yes", "origin"),
    "census": ("rich", None, "sex"),
    "credit": ("risk", "good", "age"),
    "hospital": ("readmitted", "yes", "region"),
}


@pytest.mark.parametrize("name", list(FILES))
def test_made_up_files(name: str, tmp_path: Path) -> None:
    target, favourable, sensitive = FILES[name]
    file = made_up.write(getattr(made_up, name)(), tmp_path / f"{name}.csv")
    columns = Columns(target=target, favourable=favourable, sensitive=(sensitive,))
    ours, central = skill(load(str(file), columns=columns))
    assert ours[0] >= central[0] - 0.01
    assert ours[1] >= central[1] - 0.03


@pytest.mark.parametrize(
    ("name", "target", "favourable", "sensitive"),
    [("adult", "income", ">50K", "gender"), ("compas", "two_year_recid", "0", "race")],
)
def test_public_data_as_files(
    data_folder: Path, name: str, target: str, favourable: str, sensitive: str
) -> None:
    columns = Columns(target=target, favourable=favourable, sensitive=(sensitive,))
    ours, central = skill(load(str(data_folder / f"{name}.csv"), columns=columns))
    assert ours[0] >= central[0] - 0.01
    assert ours[1] >= central[1] - 0.03


def test_wide_file_of_yes_or_no_questions() -> None:
    """Trained as a long file of as many columns is, it would have less than half of this MCC."""
    rng, rows, columns = np.random.default_rng(5), 2500, 500
    answers = rng.random((rows, columns)) < 0.3
    score = answers @ (rng.normal(size=columns) * (rng.random(columns) < 0.2))
    chosen = 1.2 * (score - score.mean()) / score.std() + rng.logistic(size=rows) > 0.3
    frame = pd.DataFrame(answers.astype(int), columns=[f"q{number}" for number in range(columns)])
    frame = frame.assign(sex=rng.choice(["f", "m"], rows), chosen=chosen.astype(int))
    ours, central = skill(load(frame, columns=Columns("chosen", ("sex",))))
    assert central[1] > 0.2
    assert ours[1] >= central[1] - 0.03


def test_ordinal_codes_leave_skill_behind(tmp_path: Path) -> None:
    """Why files are not encoded as the paper's datasets are."""
    file = made_up.write(made_up.census(), tmp_path / "census.csv")
    columns = Columns(target="rich", sensitive=("sex",))
    onehot, _ = skill(load(str(file), columns=columns))
    ordinal, _ = skill(load(str(file), columns=columns, encode="ordinal"), "ordinal")
    assert onehot[0] > ordinal[0] + 0.05

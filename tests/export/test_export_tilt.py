"""A tilted score for several groups decides alike as a file, as ONNX, with skops and from plain JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fairfate
import made_up
from fairfate import FairModel
from fairfate.errors import InputError
from fairfate.export import export, onnx_inputs, to_json, to_onnx
from fairfate.export.write import TRUSTED
from fairfate.fairness.tilt_groups import GroupTilt
from fairfate.report.data import ReportData
from fairfate.report.page import report
from fairfate.report.rule import proxy_sentence
from fairfate.storage import read_arrays, write_arrays

FAMILIES = ("sp", "eo", "eqo")
RULE = "fedavg+average+tilt:margin=0,tolerance=0.2,metric="
PEOPLE = made_up.census(3000)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fairfate.Run:
    folder = tmp_path_factory.mktemp("tilted")
    PEOPLE.to_csv(folder / "census.csv", index=False)
    return fairfate.run(
        data=folder / "census.csv",
        target="rich",
        favourable="1",
        sensitive=("sex", "race"),
        drop=("sex", "race"),
        strategies=tuple(f"{RULE}{family}@sex*race" for family in FAMILIES),
        rounds=30,
        seeds=(1,),
        jobs=1,
        out=folder / "run",
    )


def model_of(run: fairfate.Run, family: str) -> FairModel:
    (name,) = (name for name, _ in run.models if f"metric={family}@" in name)
    return run.models[name, 1]


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    """Rows that it has seen, and others with far numbers and gaps."""
    rng = np.random.default_rng(3)
    people = PEOPLE.drop(columns="rich").astype(object)
    odd = people.copy()
    for name in odd.columns:
        odd.loc[rng.random(len(odd)) < 0.1, name] = None
    return pd.concat([people, odd], ignore_index=True)


def decide(model: FairModel, rows: pd.DataFrame) -> list[str]:
    """Without the notes on gaps."""
    return np.array(model.labels, dtype=object)[model.score(rows).decision].tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_rule_changes_decisions_and_needs_no_group(
    run: fairfate.Run, rows: pd.DataFrame, family: str
) -> None:
    model = model_of(run, family)
    assert model.tilt is not None
    assert isinstance(model.tilt.rule, GroupTilt)
    assert model.tilt.rule.family == family
    assert len(model.tilt.models) == len(model.groups) - 1 > 1
    scored = model.score(rows.drop(columns=["sex", "race"]))
    assert 0.01 < (scored.decision != (scored.probability > 0.5)).mean() < 0.8


@pytest.mark.parametrize("family", FAMILIES)
def test_onnx_decides_as_the_model(run: fairfate.Run, rows: pd.DataFrame, family: str) -> None:
    runtime = pytest.importorskip("onnxruntime")
    model = model_of(run, family)
    session = runtime.InferenceSession(to_onnx(model).SerializeToString())
    _, prediction = session.run(None, onnx_inputs(model, rows))
    assert prediction.tolist() == decide(model, rows)


@pytest.mark.parametrize("family", FAMILIES)
def test_skops_and_a_saved_file_decide_as_the_model(
    run: fairfate.Run, rows: pd.DataFrame, family: str, tmp_path: Path
) -> None:
    skops_io = pytest.importorskip("skops.io")
    model = model_of(run, family)
    export(model, tmp_path / "model.skops", "skops")
    classifier = skops_io.load(tmp_path / "model.skops", trusted=TRUSTED)
    assert decide(classifier.model, rows) == decide(model, rows)
    again = FairModel.load(model.save(tmp_path / "model.safetensors"))
    assert decide(again, rows) == decide(model, rows)
    assert repr(again) == repr(model)


@pytest.mark.parametrize("family", FAMILIES)
def test_json_holds_all_that_is_needed(run: fairfate.Run, family: str) -> None:
    """Decided in whole numbers of plain Python, one row after another."""
    model = model_of(run, family)
    content = json.loads(to_json(model))
    x = np.random.default_rng(1).normal(0, 1, (200, model.schema.encoder.inputs)).astype(np.float32)

    def log_odds(layers: list[dict], row: np.ndarray) -> float:
        units = [float(value) for value in row]
        for number, layer in enumerate(layers):
            columns = np.array(layer["weights"]).T
            sums = [
                sum(u * w for u, w in zip(units, column, strict=True)) + bias
                for column, bias in zip(columns.tolist(), layer["bias"], strict=True)
            ]
            units = sums if number == len(layers) - 1 else [math.tanh(value) for value in sums]
        return units[0]

    tilt = content["tilt"]
    most = 2 * (len(tilt["edges"]) + 1)

    def middle(layers: list[dict], row: np.ndarray) -> int:
        score = log_odds(layers, row)
        return 2 * sum(score > edge for edge in tilt["edges"]) + 1

    def decide_row(row: np.ndarray) -> bool:
        own = middle(content["layers"], row)
        guesses = [middle(layers, row) for layers in tilt["layers-of-groups"]]
        first, second = (
            sum(price * guess for price, guess in zip(prices, guesses, strict=True))
            for prices in tilt["prices"]
        )
        if tilt["family"] == "sp":
            return tilt["unit"] * own + first >= tilt["threshold"]
        return own * (tilt["unit"] * most + first) + (most - own) * second >= tilt["threshold"]

    assert model.tilt is not None
    guesses = [model._margins(arrays, x) for arrays in model.tilt.models]
    expected = model.tilt.excess(model.margins(x), guesses) > 0
    assert [decide_row(row) for row in x] == expected.tolist()
    assert 0 < expected.mean() < 1


@pytest.mark.parametrize("lacking", ["tilt.family", "tilt.prices", "tilt.group.1.w1", "tilt.group.2.b2"])
def test_file_without_a_part_of_the_rule_is_refused(run: fairfate.Run, tmp_path: Path, lacking: str) -> None:
    path = model_of(run, "sp").save(tmp_path / "model.safetensors")
    arrays, about = read_arrays(path)
    del arrays[lacking]
    write_arrays(path, arrays, about)
    with pytest.raises(InputError):
        FairModel.load(path)


@pytest.mark.parametrize(
    ("name", "values"),
    [("tilt.family", [0, 31, 128]), ("tilt.family", [3, 32, 128]), ("tilt.prices", [[1000], [0]])],
)
def test_file_with_a_rule_that_none_can_be_is_refused(
    run: fairfate.Run, tmp_path: Path, name: str, values: list
) -> None:
    path = model_of(run, "sp").save(tmp_path / "model.safetensors")
    arrays, about = read_arrays(path)
    shape = arrays[name].shape
    arrays[name] = np.broadcast_to(np.array(values, dtype=np.int64), shape).copy()
    write_arrays(path, arrays, about)
    with pytest.raises(InputError):
        FairModel.load(path)


def test_report_counts_who_gains_and_loses_in_each_group(run: fairfate.Run) -> None:
    data = ReportData.from_runs([run])
    for (name, seed), about in data.rules.items():
        assert len(about["changes"]) == len(data.groups.names)
        assert "guesses a protected attribute" in proxy_sentence(data, list(data.names).index(name), seed)
    assert run.out is not None
    page = report([run.out], force=True).read_text("utf-8")
    assert "How it decides" in page

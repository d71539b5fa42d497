"""Exported models decide as the models themselves do, also on odd rows."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fairfate
import made_up
from fairfate import FairModel, InputError
from fairfate.data import MISSING, OTHERS, SMALL, Reading, read_file
from fairfate.export import export, onnx_inputs, to_json, to_onnx
from fairfate.export.write import TRUSTED
from fairfate.report.tracking import open_tracking
from fairfate.storage import read_arrays, write_arrays

BOTH = ("fedavg", "fedavg+thresholds")
FILES: dict[str, tuple[pd.DataFrame, dict[str, Any]]] = {
    "bank": (made_up.bank(2000), {"target": "subscribed", "favourable": "yes", "sensitive": ("origin",)}),
    "census": (
        made_up.census(3000),
        {"target": "rich", "favourable": "1", "sensitive": ("sex", "race"), "hidden": "6,4"},
    ),
    "ages": (
        made_up.census(2000),
        {"target": "rich", "favourable": "1", "sensitive": ("sex", "age:30,50"), "hidden": "0"},
    ),
    "gaps": (
        made_up.credit(1500).assign(age=lambda values: values["age"].where(values.index % 6 > 0)),
        {"target": "risk", "favourable": "good", "sensitive": ("age:30,50",)},
    ),
    "hospital": (
        made_up.hospital(2000),
        {"target": "readmitted", "favourable": "no", "sensitive": ("region",), "min_group": 0},
    ),
    "against": (
        made_up.bank(2000),
        {"target": "subscribed", "favourable": "yes", "sensitive": ("origin",), "privileged": ("A",)},
    ),
}


def odd(frame: pd.DataFrame, model: FairModel) -> pd.DataFrame:
    """Rows with unknown texts, missing values and far numbers, as far as the model takes them."""
    rng = np.random.default_rng(5)
    schema, result = model.schema, frame.copy()
    for name in schema.features:
        texts = name in schema.categories or (name in schema.sensitive and name not in schema.bands)
        known = schema.grouping.values[schema.sensitive.index(name)] if name in schema.sensitive else ()
        if name in schema.sensitive and model.needs_groups and not {OTHERS, SMALL, MISSING} & set(known):
            continue
        result[name] = result[name].astype(object)
        result.loc[rng.random(len(result)) < 0.1, name] = None
        if texts and (name not in schema.sensitive or {OTHERS, SMALL} & set(known)):
            result.loc[rng.random(len(result)) < 0.1, name] = "never seen"
        elif not texts and name not in schema.dates:
            result.loc[rng.random(len(result)) < 0.05, name] = 1e9
    return result


def differ(model: FairModel, frame: pd.DataFrame) -> float:
    """The largest difference of probabilities; the decisions are equal."""
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(to_onnx(model).SerializeToString())
    probability, prediction = session.run(None, onnx_inputs(model, frame))
    scores = model.score(frame)
    assert probability.shape == prediction.shape == (len(frame),)
    assert prediction.tolist() == np.array(model.labels, dtype=object)[scores.decision].tolist()
    return float(np.abs(probability - scores.probability).max())


def split_in_halves(model: FairModel, rows: pd.DataFrame) -> FairModel:
    """The same model with thresholds that differ from group to group, and decide either way for many."""
    probability = model.score(rows).probability
    middle = np.quantile(probability, np.linspace(0.3, 0.7, len(model.groups)))
    changed = replace(model, thresholds=np.log(middle / (1 - middle)) + 1e-9)
    assert 0.2 < changed.score(rows).decision.mean() < 0.8
    return changed


def trained(data: Path | str, **options: Any) -> fairfate.Run:
    usual = {"rounds": 15, "seeds": (1,), "jobs": 1, "strategies": BOTH, "partition": "random"}
    return fairfate.run(data=str(data), **{**usual, **options})


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> fairfate.Run:
    frame, options = FILES["bank"]
    return trained(made_up.write(frame, tmp_path_factory.mktemp("bank") / "bank.csv"), **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "synthetic"
    trained("synthetic:rows=600", rounds=20, out=out, strategies=("fedavg", "fair_fate", "fedavg+thresholds"))
    return out


@pytest.mark.parametrize("encode", ["onehot", "ordinal"])
@pytest.mark.parametrize("name", FILES)
def test_onnx_decides_as_the_model(name: str, encode: str, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    frame, options = FILES[name]
    run = trained(made_up.write(frame, tmp_path / "file.csv"), encode=encode, learning_rate=0.1, **options)
    rows, _, _ = read_file(tmp_path / "file.csv", Reading())
    for model in (*run.models.values(), split_in_halves(run.model("fedavg"), rows)):
        assert differ(model, rows) < 1e-12
        assert differ(model, odd(rows, model)) < 1e-12


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("encode", ["onehot", "ordinal"])
@pytest.mark.parametrize("name", ["adult", "compas"])
def test_onnx_decides_as_the_model_on_public_data(name: str, encode: str, data_folder: Path) -> None:
    pytest.importorskip("onnx")
    columns = {"adult": ("gender", "race"), "compas": ("race", "sex")}[name]
    run = trained(name, data_dir=str(data_folder), encode=encode, rounds=4, sensitive=columns)
    rows, _, _ = read_file(data_folder / f"{name}.csv", Reading())
    for model in (*run.models.values(), split_in_halves(run.model("fedavg"), rows)):
        assert differ(model, rows) < 1e-12
        assert differ(model, odd(rows, model)) < 1e-12


def test_a_group_without_a_threshold_gets_no_decision(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    frame, options = FILES["ages"]
    run = trained(made_up.write(frame, tmp_path / "file.csv"), **options)
    model = run.model("fedavg+thresholds")
    rows = frame.astype({"age": object})
    rows.loc[::3, "sex"] = "another"
    rows.loc[::7, "sex"] = None
    rows.loc[::5, "age"] = None
    strange = ~rows["sex"].isin(["female", "male"]) | rows["age"].isna()
    made = to_onnx(model)
    session = runtime.InferenceSession(made.SerializeToString())
    probability, prediction = session.run(None, onnx_inputs(model, rows))
    assert ((prediction == "") == strange).all()
    assert np.abs(probability - model.score(rows, decide=False).probability).max() < 1e-12
    known = np.array(model.labels, dtype=object)[model.score(rows[~strange]).decision]
    assert (prediction[~strange] == known).all()
    about = {prop.key: prop.value for prop in made.metadata_props}
    assert about["group-without-threshold"] == "prediction is empty"


def test_the_graph_says_what_it_is(bank: fairfate.Run) -> None:
    onnx = pytest.importorskip("onnx")
    model = bank.model("fedavg")
    made = to_onnx(model)
    about = {prop.key: prop.value for prop in made.metadata_props}
    assert about["strategy"] == "fedavg"
    assert json.loads(about["labels"]) == ["no", "yes"]
    assert json.loads(about["groups"]) == list(model.groups)
    assert json.loads(about["inputs"])["last call"] == "days since 1970-01-01, NaN where it is missing"
    assert (about["fairfate"], about["opset"]) == (fairfate.__version__, "21, ai.onnx.ml 3")
    assert {use.domain: use.version for use in made.opset_import} == {"": 21, "ai.onnx.ml": 3}
    assert made.ir_version == 10
    assert [value.name for value in made.graph.input] == list(model.schema.features)
    assert [value.name for value in made.graph.output] == ["probability", "prediction"]
    onnx.checker.check_model(made, full_check=True)


def test_the_reference_evaluator_agrees(bank: fairfate.Run) -> None:
    reference = pytest.importorskip("onnx.reference")
    rows = FILES["bank"][0].iloc[:200]
    for model in bank.models.values():
        evaluator = reference.ReferenceEvaluator(to_onnx(model))
        probability, prediction = evaluator.run(None, onnx_inputs(model, rows))
        scores = model.score(rows)
        assert np.abs(probability - scores.probability).max() < 1e-12
        assert prediction.tolist() == np.array(model.labels, dtype=object)[scores.decision].tolist()


def test_columns_may_have_the_names_of_outputs(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    frame = made_up.credit(600).rename(columns={"amount": "probability", "house": "gemm_1", "age": "größe"})
    file = made_up.write(frame, tmp_path / "file.csv")
    run = trained(file, target="risk", favourable="good", sensitive=("gemm_1",), rounds=3)
    made = to_onnx(run.model("fedavg+thresholds"))
    assert [value.name for value in made.graph.output] == ["probability_", "prediction"]
    assert differ(run.model("fedavg+thresholds"), frame) < 1e-12


def test_a_network_of_the_user_cannot_be_exported(bank: fairfate.Run, tmp_path: Path) -> None:
    own = replace(bank.model("fedavg"), network=lambda arrays, x: x[:, 0])
    for form in ("onnx", "skops", "json"):
        pytest.importorskip(form)
        with pytest.raises(InputError, match=r"built-in kind to be exported, not a network of your own"):
            export(own, tmp_path / "model", form)
    assert not list(tmp_path.iterdir())


def test_onnx_inputs_name_what_is_missing(bank: fairfate.Run) -> None:
    rows = FILES["bank"][0]
    with pytest.raises(InputError, match="the model needs 'job'"):
        onnx_inputs(bank.model("fedavg"), rows.drop(columns="job"))
    with pytest.raises(InputError, match="data must fit the model: column 'balance' must hold numbers"):
        onnx_inputs(bank.model("fedavg"), rows.assign(balance="much"))


@pytest.mark.filterwarnings("ignore:(job|balance|contacts|origin)")
def test_skops_gives_the_same_predictions(bank: fairfate.Run, tmp_path: Path) -> None:
    io = pytest.importorskip("skops.io")
    from sklearn.base import clone, is_classifier

    rows = FILES["bank"][0].drop(columns="subscribed")
    for model in bank.models.values():
        exported = export(model, tmp_path / "model.skops", "skops", force=True)
        assert io.get_untrusted_types(file=exported.path) == list(TRUSTED)
        pipeline = io.load(exported.path, trusted=list(TRUSTED))
        assert (pipeline.predict(rows) == model.predict(rows)).all()
        assert (pipeline.predict_proba(rows) == model.predict_proba(rows)).all()
        assert pipeline.classes_.tolist() == ["no", "yes"]
        assert is_classifier(pipeline)
        assert pipeline.score(rows, model.predict(rows)) == 1
        assert (clone(pipeline).predict(rows) == model.predict(rows)).all()


def from_json(content: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    """What a program in another language would do with the layers."""
    units = x.astype(np.float64)
    for layer in content["layers"]:
        units = units @ np.array(layer["weights"]) + np.array(layer["bias"])
        units = np.tanh(units) if layer["activation"] == "tanh" else 1 / (1 + np.exp(-units))
    return units[:, 0]


def test_json_holds_all_that_is_needed(bank: fairfate.Run) -> None:
    model = bank.model("fedavg+thresholds")
    content = json.loads(to_json(model))
    schema = fairfate.data.Schema.from_json(json.dumps(content["schema"]))
    rows = FILES["bank"][0]
    x = schema.encoder.transform(schema.table(rows.dropna(subset=["job"]), "rows").features)
    assert np.abs(from_json(content, x) - model.score(rows.dropna(subset=["job"])).probability).max() < 1e-12
    assert content["thresholds"] == list(model.thresholds)
    assert content["groups"] == list(model.groups)
    endless = replace(model, thresholds=np.full(len(model.groups), -np.inf))
    assert json.loads(to_json(endless))["thresholds"][0] == "-inf"


def fairfate_command(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fairfate", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def test_the_command_writes_beside_the_run(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    process = fairfate_command("export", folder, "--format", "onnx", "--strategy", "fedavg+thresholds")
    assert process.returncode == 0, process.stderr
    assert "Inputs (text, empty where it is missing): field, sex" in process.stdout
    assert "Outputs: probability (of 'hired'), prediction ('not hired' or 'hired')" in process.stdout
    assert "Opset 21, ai.onnx.ml 3" in process.stdout
    assert (folder / "model.onnx").stat().st_size < 10_000
    out = tmp_path / "mine.json"
    process = fairfate_command(
        "export", folder, "--format", "json", "--strategy", "fedavg", "--seed", 1, "--out", out
    )
    assert process.returncode == 0, process.stderr
    assert json.loads(out.read_text())["about"]["strategy"] == "fedavg"
    process = fairfate_command("export", folder / "models" / "fedavg-seed-1.safetensors", "--format", "pmml")
    assert (process.returncode, process.stderr) == (
        2,
        "Error: format must be one of onnx|skops|json, got 'pmml'\n",
    )


@pytest.mark.parametrize("form", ["onnx", "skops"])
def test_without_the_extra_the_command_says_what_to_install(form: str, folder: Path) -> None:
    words = ["fairfate", "export", str(folder), "--format", form, "--strategy", "fedavg", "--force"]
    code = (
        f"import sys; sys.modules['{form}'] = None; sys.argv = {words!r};"
        "from fairfate.__main__ import main; main()"
    )
    process = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert process.returncode == 2
    assert process.stderr == f'Error: format {form} needs {form}: pip install "fairfate[{form}]"\n'


RUN = ["run", "--data", "synthetic:rows=300", "--rounds", 3, "--seeds", 2, "--jobs", 1]
RUN += ["--strategy", "fedavg", "--strategy", "fair_fate", "--no-baselines"]


@pytest.mark.slow
def test_mlflow_gets_options_rounds_summary_and_files(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("alembic")
    uri = f"sqlite:///{tmp_path}/store/mlflow.db"
    process = fairfate_command(*RUN, "--out", "out", "--mlflow", uri, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""
    assert f"Logged to {uri} (run " in process.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "store"]
    client = mlflow.MlflowClient(uri)
    (experiment,) = [value for value in client.search_experiments() if value.name == "fairfate"]
    assert experiment.artifact_location == (tmp_path / "store" / "mlflow-artifacts").as_uri()
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert set(runs) == {"out", "fedavg", "fair_fate"}
    assert runs["out"].data.params["data"] == "synthetic:rows=300"
    assert all(run.info.status == "FINISHED" for run in runs.values())
    nested = runs["fedavg"]
    assert nested.data.tags["mlflow.parentRunId"] == runs["out"].info.run_id
    rounds, summary = fairfate.read_rounds(tmp_path / "out"), pd.read_csv(tmp_path / "out" / "summary.csv")
    wanted = rounds[(rounds["strategy"] == "fedavg") & (rounds["split"] == "test")]
    history = client.get_metric_history(nested.info.run_id, "test/accuracy")
    assert {value.step: value.value for value in history} == pytest.approx(
        wanted.groupby("round")["accuracy"].mean().to_dict()
    )
    assert nested.data.metrics["summary/accuracy_last_mean"] == pytest.approx(
        summary["accuracy_last_mean"][0]
    )
    files = {value.path for value in client.list_artifacts(runs["out"].info.run_id)}
    assert {"groups.csv", "config.toml", "summary.csv"} <= files
    assert ("best.safetensors" in files) == (tmp_path / "out/models/best.safetensors").exists()


@pytest.mark.parametrize("uri", ["mlruns", "file:///tmp/mlruns", "sqlite:///people.csv", "sqlite:///"])
def test_addresses_of_mlflow_are_checked(uri: str, people: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(people.parent)
    with pytest.raises(InputError, match=r"^mlflow must "):
        open_tracking(uri)
    assert [path.name for path in people.parent.iterdir()] == ["people.csv"]


def test_without_mlflow_the_command_says_what_to_install(tmp_path: Path) -> None:
    words = ["fairfate", *map(str, RUN), "--mlflow", "sqlite:///mlflow.db"]
    code = (
        f"import sys; sys.modules['mlflow'] = None; sys.argv = {words!r};"
        "from fairfate.__main__ import main; main()"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, cwd=tmp_path
    )
    assert (process.returncode, process.stderr) == (
        2,
        'Error: mlflow needs MLflow: pip install "fairfate[mlflow]"\n',
    )
    assert not list(tmp_path.iterdir())


def test_a_model_with_a_text_that_no_file_can_hold_is_refused(tmp_path: Path) -> None:
    frame = made_up.hospital(600).assign(region=lambda values: values["region"].fillna("west"))
    options = {"target": "readmitted", "favourable": "no", "sensitive": ("region",), "min_group": 0}
    run = fairfate.run(data=frame, **options, rounds=1, seeds=1, jobs=1, strategies="fedavg+thresholds")
    path = run.model("fedavg+thresholds").save(tmp_path / "model.safetensors")
    arrays, about = read_arrays(path)
    text = json.dumps(about)
    for known in ("no", "ward", "w1", "west", "thresholds"):  # label, column, category, group, strategy
        assert f'"{known}' in text or f"+{known}" in text
        write_arrays(path, arrays, json.loads(text.replace(known, f"{known}\\udc80")))
        with pytest.raises(InputError, match="must hold texts that UTF-8 can hold, got a lone surrogate"):
            FairModel.load(path)
    for form in ("onnx", "skops", "json"):
        process = fairfate_command("export", path, "--format", form, cwd=tmp_path)
        assert process.returncode == 2, process.stderr
        assert process.stderr.startswith("Error: model '")
        assert process.stderr.count("\n") == 1
        assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]

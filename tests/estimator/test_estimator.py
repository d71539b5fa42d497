from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import BaggingClassifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import make_scorer, roc_auc_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import fairfate
from fairfate import FairFederatedClassifier, FairModel, InputError
from fairfate.federation.seeds import Streams
from fairfate.federation.weights import copies
from fairfate.models.mlp import Mlp
from made_up import bank, credit, hospital

QUICK: dict[str, Any] = {"max_iter": 20, "n_clients": 4, "random_state": 1}
PLAIN = "fedavg+average"
POOLED = pytest.mark.filterwarnings("ignore:.*texts that the model does not tell apart")


@pytest.fixture
def rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    sex = rng.choice(["f", "m"], 600)
    x = rng.normal(size=(600, 4)) + 0.4 * (sex == "m")[:, None]
    y = np.where(x[:, 0] + 0.5 * x[:, 1] + 0.5 * rng.normal(size=600) > 0.3, "yes", "no")
    return x, y, sex


@pytest.fixture
def people() -> tuple[pd.DataFrame, pd.Series, pd.Series]:
    frame = hospital(900)
    frame["region"] = frame["region"].fillna("west")
    return frame.drop(columns=["readmitted", "region"]), frame["readmitted"], frame["region"]


@pytest.fixture
def routing() -> Iterator[None]:
    import sklearn

    with sklearn.config_context(enable_metadata_routing=True):
        yield


def make(strategy: str = PLAIN, **settings: Any) -> FairFederatedClassifier:
    return FairFederatedClassifier(strategy, **{**QUICK, **settings})


def arrays_of(clf: FairFederatedClassifier) -> bytes:
    return b"".join(array.tobytes() for array in clf.model_.arrays.values())


def test_every_check_of_scikit_learn_passes() -> None:
    shuffled = "fits the same rows in another order too, and clients get other rows then"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is fitted without sensitive features, which it says
        checks = check_estimator(
            FairFederatedClassifier(),
            on_fail=None,
            on_skip=None,
            expected_failed_checks={"check_sample_weight_equivalence_on_dense_data": shuffled},
        )
    failed = {check["check_name"]: check["exception"] for check in checks if check["status"] == "failed"}
    assert not failed
    assert [check["check_name"] for check in checks if check["status"] == "skipped"] in (
        [],
        ["check_array_api_input"],  # needs SCIPY_ARRAY_API=1, with which it passes
    )


@pytest.fixture
def unequal() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows whose labels ask more of one group, which the inputs tell."""
    rng = np.random.default_rng(4)
    sex = rng.choice(["f", "m"], 4000)
    x = np.column_stack([rng.normal(size=(4000, 3)), sex == "m"])
    y = x[:, 0] + 0.5 * x[:, 1] + 0.3 * rng.normal(size=4000) > np.where(sex == "f", 0.6, 0.0)
    return x, y, sex


def test_the_default_is_fairer_without_the_group_and_keeps_the_accuracy(unequal: Any) -> None:
    x, y, sex = unequal
    clf = FairFederatedClassifier(random_state=1).fit(x[:2000], y[:2000], sensitive_features=sex[:2000])
    logistic = LogisticRegression().fit(x[:2000], y[:2000])
    ours, theirs = (
        fairfate.measure(y[2000:], value.predict(x[2000:]), group=(sex[2000:] == "m") * 1)
        for value in (clf, logistic)
    )
    assert ours["accuracy"] > theirs["accuracy"] - 0.03
    assert ours["eqo"] > theirs["eqo"] + 0.1


def test_the_metric_reaches_the_default_strategy(unequal: Any) -> None:
    x, y, sex = unequal
    fits = {
        metric: FairFederatedClassifier(metric=metric, random_state=1).fit(x, y, sensitive_features=sex)
        for metric in ("sp", "eo", "eqo")
    }
    assert len({arrays_of(clf) for clf in fits.values()}) == 3
    rates = {
        metric: fairfate.measure(y, clf.predict(x), group=(sex == "m") * 1) for metric, clf in fits.items()
    }
    assert rates["sp"]["sp"] > rates["eqo"]["sp"] + 0.05
    assert fits["sp"].strategy_.startswith("fairgrad:metric=sp")
    assert [clf.plot_history().axes[-1].get_ylabel() for clf in fits.values()] == ["sp", "eo", "eqo"]


def test_a_metric_that_the_strategy_names_wins(rows: Any) -> None:
    x, y, sex = rows
    named = "fairgrad:metric=eo"
    first, second = (make(named, metric=metric).fit(x, y, sensitive_features=sex) for metric in ("sp", "eqo"))
    assert arrays_of(first) == arrays_of(second)
    assert first.strategy_ == second.strategy_
    assert first.history_.columns[-1] == "eo"
    with pytest.raises(InputError, match=r"metric must be sp, eo or eqo, got '0.5\*sp\+0.5\*eo'"):
        FairFederatedClassifier(metric="0.5*sp+0.5*eo").fit(x, y, sensitive_features=sex)


def test_cross_validation_of_the_default_gives_numbers(rows: Any) -> None:
    x, y, sex = rows
    clf = FairFederatedClassifier(random_state=1)
    given = {"params": {"sensitive_features": sex}, "cv": 3}
    plain = cross_val_score(clf, x, y, **given)
    assert (plain > 0.7).all()
    assert (cross_val_score(clf, x, y, scoring="roc_auc", **given) > 0.7).all()
    frame = _named(x).assign(sex=sex)
    assert (cross_val_score(clf, frame, y, cv=3, params={"sensitive_features": "sex"}) > 0.7).all()


def test_cross_validation_routes_the_group_by_itself(rows: Any, routing: None) -> None:
    x, y, sex = rows
    given = {"params": {"sensitive_features": sex}, "cv": 3, "error_score": "raise"}
    for strategy in ("fairgrad+average", "fedavg+thresholds:metric=sp"):
        assert (cross_val_score(make(strategy), x, y, **given) > 0.7).all()
    search = GridSearchCV(make(), {"metric": ["sp", "eo"]}, cv=2, error_score="raise")
    assert search.fit(x, y, sensitive_features=sex).best_score_ > 0.7


def test_it_learns_and_thresholds_make_it_fairer(rows: Any) -> None:
    x, y, sex = rows
    plain = make(max_iter=60).fit(x, y, sensitive_features=sex)
    fair = make("fedavg+average+thresholds:metric=sp,tolerance=0.1", max_iter=60).fit(
        x, y, sensitive_features=sex
    )
    auc = roc_auc_score(y == "yes", plain.predict_proba(x)[:, 1])
    logistic = LogisticRegression().fit(x, y)
    assert auc > roc_auc_score(y == "yes", logistic.predict_proba(x)[:, 1]) - 0.02
    scores = [
        fairfate.measure(
            y == "yes", value.predict(x, sensitive_features=sex) == "yes", group=(sex == "m") * 1
        )
        for value in (plain, fair)
    ]
    assert scores[1]["sp"] > scores[0]["sp"] + 0.1
    assert fair.score(x, y, sensitive_features=sex) > 0.7


@pytest.mark.parametrize("rule", ["tilt", "common_threshold"])
def test_a_rule_for_everybody_is_fairer_and_needs_no_group_to_predict(unequal: Any, rule: str) -> None:
    x, y, sex = unequal
    texts = "fedavg+average", f"fedavg+average+{rule}:metric=sp,tolerance=0.1"
    plain, fair = (make(text, max_iter=40).fit(x, y, sensitive_features=sex) for text in texts)
    before, after = (
        fairfate.measure(y, clf.predict(x), group=(sex == "m") * 1)["sp"] for clf in (plain, fair)
    )
    assert after > before + 0.05
    assert ((fair.decision_function(x) > 0) == (fair.predict(x) == fair.classes_[1])).all()
    assert (fair.predict_proba(x) == plain.predict_proba(x)).all()
    assert not fair.model_.needs_groups
    assert fair.history_["stage"].iloc[-1] == "final"
    none = make(texts[1], max_iter=5, validation_fraction=0).fit(x, y, sensitive_features=sex)
    assert set(none.predict(x)) <= set(none.classes_)


def test_attributes_and_history(rows: Any) -> None:
    x, y, sex = rows
    clf = make("fair_fate+average", metric="sp").fit(x, y, sensitive_features=sex)
    assert clf.classes_.tolist() == ["no", "yes"]
    assert clf.groups_.tolist() == ["f", "m"]
    assert clf.clients_.tolist() == [f"client {number}" for number in range(1, 5)]
    assert clf.n_iter_ == 20
    assert clf.n_features_in_ == 4
    assert clf.strategy_.startswith("fair_fate:metric=sp")
    assert isinstance(clf.model_, FairModel)
    history = clf.history_
    assert history["round"].tolist() == [*range(1, 21), 20]
    assert history["stage"].tolist() == ["training"] * 20 + ["final"]
    assert {"accuracy", "mcc", "sp", "eo", "eqo"} <= set(history)
    assert history[["accuracy", "sp"]].notna().all(axis=None)
    assert not any(isinstance(value, pd.DataFrame) for value in vars(clf).values())


def test_the_same_seed_gives_the_same_bytes_and_no_other_numbers_are_drawn(rows: Any) -> None:
    x, y, sex = rows
    state = np.random.get_state()[1].copy()  # noqa: NPY002 - it must stay as it is

    def bytes_of(random_state: Any) -> bytes:
        clf = make("fair_fate", random_state=random_state).fit(x, y, sensitive_features=sex)
        return b"".join(array.tobytes() for array in clf.model_.arrays.values())

    assert bytes_of(3) == bytes_of(np.int64(3)) != bytes_of(4)
    assert bytes_of(np.random.RandomState(5)) == bytes_of(np.random.RandomState(5))
    assert bytes_of(np.random.default_rng(5)) == bytes_of(np.random.default_rng(5))
    assert bytes_of(None) != bytes_of(None)
    assert (np.random.get_state()[1] == state).all()  # noqa: NPY002


@pytest.mark.parametrize(
    "labels",
    [
        np.array(["a", "b"]),
        np.array([False, True]),
        np.array([-1, 1]),
        np.array([0.0, 1.0]),
        pd.Series(["x", "y"], dtype="category"),
        pd.Series(["x", "y"], dtype="str"),
        pd.Series([False, True], dtype="boolean"),
        pd.Series([5, 7], dtype="Int64"),
        np.array(["b", "b "], dtype=object),
    ],
    ids=str,
)
def test_labels_of_any_kind(rows: Any, labels: Any) -> None:
    x, y, _ = rows
    values = pd.Series(labels).take((y == "yes").astype(int)).reset_index(drop=True)
    clf = make().fit(x, values)
    assert clf.classes_.tolist() == sorted(labels)
    predicted = clf.predict(x)
    assert predicted.dtype == clf.classes_.dtype
    assert (predicted == values.to_numpy()).mean() > 0.75
    assert clf.score(x, values) > 0.75
    assert ((clf.decision_function(x) > 0) == (predicted == clf.classes_[1])).all()
    assert ((clf.predict_proba(x)[:, 1] > 0.5) == (predicted == clf.classes_[1])).all()


def test_the_favourable_outcome_may_be_the_first_class(rows: Any) -> None:
    x, y, sex = rows
    clf = make("fedavg+thresholds", pos_label="no").fit(x, y, sensitive_features=sex)
    assert clf.classes_.tolist() == ["no", "yes"]
    assert clf.model_.labels == ("yes", "no")
    predicted = clf.predict(x, sensitive_features=sex)
    assert (predicted == y).mean() > 0.7
    assert (clf.model_.predict(_named(x), sensitive_features=sex) == predicted).all()
    above = clf.decision_function(x, sensitive_features=sex) > 0
    assert (above == (predicted == "yes")).all()
    proba = clf.predict_proba(x)
    assert proba.sum(axis=1) == pytest.approx(1)
    assert proba[y == "yes", 1].mean() > proba[y == "no", 1].mean()


def _named(x: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(x, columns=[f"x{number}" for number in range(x.shape[1])])


@POOLED
def test_frames_are_encoded_as_files_are(people: Any) -> None:
    x, y, region = people
    x = x.assign(patient=[f"P{number}" for number in range(len(x))], same=1.0)
    x["ward"] = x["ward"].astype("category")
    x["admitted"] = pd.to_datetime(x["admitted"])
    clf = make("fedavg+thresholds").fit(x, y, sensitive_features=region)
    schema = clf.model_.schema
    assert schema.features == ("admitted", "diagnosis", "ward", "stay", "earlier", "share")
    assert schema.categories["ward"][:3] == ("w1", "w2", "w3")
    assert "(others)" in schema.categories["diagnosis"]
    assert schema.sensitive == ("region",)
    assert clf.feature_names_in_.tolist() == list(x.columns)
    assert any("patient" in note for note in clf.notes_)
    assert not any("--" in note for note in clf.notes_)
    decided = clf.model_.predict(x.assign(region=region))
    assert (decided == clf.predict(x, sensitive_features=region)).all()


@POOLED
def test_polars_and_pandas_are_the_same(people: Any) -> None:
    polars = pytest.importorskip("polars")
    x, y, region = people
    first = make("fedavg+thresholds").fit(x, y, sensitive_features=region)
    frame = polars.from_pandas(x)
    second = make("fedavg+thresholds").fit(
        frame, polars.Series("y", y.tolist()), sensitive_features=polars.Series("region", region.tolist())
    )
    for name, array in first.model_.arrays.items():
        assert array.tobytes() == second.model_.arrays[name].tobytes()
    assert (first.predict_proba(x) == second.predict_proba(frame)).all()
    both = [
        first.predict(x, sensitive_features=region),
        second.predict(frame, sensitive_features=polars.Series(region.tolist())),
    ]
    assert (both[0] == both[1]).all()


def test_texts_in_arrays_and_lists_are_encoded_as_those_of_frames(rows: Any) -> None:
    x, y, sex = rows
    town = np.where(x[:, 2] > 0, "Ulm", "Bonn")
    frame = pd.DataFrame({"x0": x[:, 0], "x1": town, "x2": sex})
    fitted = make("fedavg+thresholds:metric=sp").fit(frame, y, sensitive_features=sex)
    expected = fitted.predict(frame, sensitive_features=sex)
    table = frame.astype(object).to_numpy()
    for given in (table, table.tolist(), [tuple(row) for row in table], table.astype(str)):
        clf = make("fedavg+thresholds:metric=sp").fit(given, y, sensitive_features=sex)
        assert clf.model_.schema.categories["x1"][:2] == ("Bonn", "Ulm")
        assert arrays_of(clf) == arrays_of(fitted)
        assert (clf.predict(given, sensitive_features=sex) == expected).all()
        assert clf.predict([[1.0, "Ulm", "m"]], sensitive_features=["m"]).shape == (1,)
        assert clf.n_features_in_ == 3
        with pytest.raises(InputError, match="column 'x0' must hold numbers"):
            clf.predict([["high", "Ulm", "m"]], sensitive_features=["m"])


def test_missing_values_in_arrays_with_texts_are_accepted_and_infinity_is_not(rows: Any) -> None:
    x, y, _ = rows
    table = np.column_stack([x[:, :2].astype(object), np.where(x[:, 2] > 0, "a", "b")])
    table[::9, 0], table[::7, 2] = None, np.nan
    assert make().fit(table, y).score(table, y) > 0.7
    table[3, 1] = np.inf
    with pytest.raises(InputError, match="column 'x1' must be finite"):
        make().fit(table, y)
    table[3, 1] = {"a": 1}
    with pytest.raises(InputError, match="column 'x1' must hold numbers or texts"):
        make().fit(table, y)


def test_categories_that_are_numbers_stay_categories() -> None:
    rng = np.random.default_rng(1)
    x = pd.DataFrame({"code": pd.Categorical(rng.integers(0, 3, 300)), "number": rng.normal(size=300)})
    y = (x["code"] == 1).astype(int)
    clf = make(max_iter=60).fit(x, y)
    assert clf.model_.schema.categories["code"] == ("0", "1", "2", "(others)")
    assert clf.score(x, y) > 0.9


def test_missing_numbers_are_accepted_and_infinity_is_not(rows: Any) -> None:
    x, y, _ = rows
    gaps = x.copy()
    gaps[::7, 0] = np.nan
    clf = make().fit(gaps, y)
    assert clf.score(gaps, y) > 0.75
    gaps[3, 1] = np.inf
    for bad in (gaps, _named(gaps)):
        with pytest.raises(ValueError, match=r"infinity|must be finite"):
            make().fit(bad, y)
    with pytest.raises(ValueError, match="infinity"):
        clf.predict(gaps)


@pytest.mark.parametrize(
    "form",
    [
        lambda sex, age: sex,
        lambda sex, age: sex.tolist(),
        lambda sex, age: pd.Series(sex, name="sex", index=range(5, 605)),
        lambda sex, age: pd.Series(sex).astype("category"),
        lambda sex, age: pd.DataFrame({"sex": sex}),
        lambda sex, age: sex[:, None],
        lambda sex, age: pd.DataFrame({"sex": sex, "age": age}),
        lambda sex, age: np.stack([sex, age], axis=1),
    ],
)
def test_sensitive_features_of_any_form(rows: Any, form: Any) -> None:
    x, y, sex = rows
    age = np.random.default_rng(2).choice(["old", "young"], len(x))
    given = form(sex, age)
    clf = make("fedavg+thresholds:metric=sp").fit(x, y, sensitive_features=given)
    several = np.ndim(given) == 2 and np.shape(given)[1] == 2
    crossed = ["f, old", "f, young", "m, old", "m, young"]
    assert clf.groups_.tolist() == (crossed if several else ["f", "m"])
    assert clf.model_.schema.features == ("x0", "x1", "x2", "x3")
    again = clf.predict(x, sensitive_features=np.asarray(given))
    assert (again == clf.predict(x, sensitive_features=given)).all()


def test_groups_of_numbers_are_cut_into_bands(rows: Any) -> None:
    x, y, _ = rows
    age = np.random.default_rng(2).integers(18, 80, len(x)).tolist()
    clf = make("fedavg+thresholds:metric=sp").fit(x, y, sensitive_features=age)
    assert len(clf.groups_) == 4
    assert clf.groups_[0].startswith("below")
    assert clf.predict(x, sensitive_features=age).shape == y.shape


def test_a_sensitive_feature_that_is_a_column_of_x_is_an_input(rows: Any) -> None:
    x, y, sex = rows
    frame = _named(x).assign(sex=sex)
    clf = make("fedavg+thresholds:metric=sp@sex").fit(frame, y, sensitive_features=frame["sex"])
    assert clf.model_.schema.sensitive == ("sex",)
    assert "sex" in clf.model_.schema.features
    both = clf.predict(frame), clf.predict(frame, sensitive_features=sex)
    assert (both[0] == both[1]).all()
    other = np.where(sex == "f", "m", "f")
    with pytest.raises(InputError, match="must be the column of X, as in fit, got 'f' for 'm' in row 1"):
        clf.predict(frame, sensitive_features=other)


def test_sensitive_features_may_be_names_of_columns(rows: Any) -> None:
    polars = pytest.importorskip("polars")
    x, y, sex = rows
    half = np.where(np.arange(600) % 2, "odd", "even")
    frame = _named(x).assign(sex=sex, half=half)
    clf = make("fedavg+thresholds:metric=sp").fit(frame, y, sensitive_features="sex")
    given = make("fedavg+thresholds:metric=sp").fit(frame, y, sensitive_features=frame["sex"])
    assert arrays_of(clf) == arrays_of(given)
    expected = given.predict(frame, sensitive_features=sex)
    for named in ("sex", ["sex"]):
        assert (clf.predict(frame, sensitive_features=named) == expected).all()
        assert clf.predict(frame[:1], sensitive_features=named) == expected[:1]
        assert clf.score(frame, y, sensitive_features=named) == (expected == y).mean()
    assert (clf.predict(polars.from_pandas(frame), sensitive_features="sex") == expected).all()
    both = make("fedavg+thresholds:metric=sp").fit(frame, y, sensitive_features=["sex", "half"])
    assert both.groups_.tolist() == ["f, even", "f, odd", "m, even", "m, odd"]
    swapped = both.predict(frame[:2], sensitive_features=["half", "sex"])
    assert (swapped == both.predict(frame[:2], sensitive_features=frame[["sex", "half"]][:2])).all()


def test_a_list_of_values_is_not_a_list_of_names(rows: Any) -> None:
    x, y, sex = rows
    frame = _named(x).assign(f=(sex == "f") * 1.0, m=(sex == "m") * 1.0)
    clf = make("fedavg+thresholds:metric=sp").fit(frame, y, sensitive_features=sex.tolist())
    assert clf.groups_.tolist() == ["f", "m"]
    both = clf.predict(frame[:2], sensitive_features=["f", "m"]), clf.predict(frame, sensitive_features=sex)
    assert clf.model_.predict(frame[:2], sensitive_features=["f", "m"]).tolist() == both[0].tolist()
    assert clf.predict(frame[:1], sensitive_features=[sex[0]]) == both[1][:1]


@pytest.mark.parametrize(
    ("array", "named", "message"),
    [
        (False, "sexx", "unknown column of X in sensitive_features 'sexx'; did you mean 'sex'"),
        (False, ["sex", "rcae"], "unknown column of X in sensitive_features 'rcae'"),
        (True, "sex", "sensitive_features must have a value for each row where X is no DataFrame, got 'sex'"),
    ],
)
def test_names_that_are_no_columns_are_refused(rows: Any, array: bool, named: Any, message: str) -> None:
    x, y, sex = rows
    with pytest.raises(InputError, match=message):
        make().fit(x if array else _named(x).assign(sex=sex), y, sensitive_features=named)


def weigh(rows: Any, weight: Any, strategy: str = "fairgrad+average", **given: Any) -> bytes:
    x, y, sex = rows
    return arrays_of(make(strategy).fit(x, y, weight, sensitive_features=sex, **given))


def repeated(rows: Any, times: np.ndarray) -> Any:
    return tuple(np.repeat(values, times, axis=0) for values in rows)


@pytest.mark.parametrize("strategy", ["fairgrad+average", "fair_fate", "fedavg+thresholds:metric=sp"])
def test_weight_2_is_a_row_twice_and_weight_0_none(rows: Any, strategy: str) -> None:
    times = np.random.default_rng(5).integers(0, 4, 600)
    expected = weigh(repeated(rows, times), None, strategy)
    assert weigh(rows, times, strategy) == expected
    assert weigh(rows, times, strategy) != weigh(rows, None, strategy)
    assert weigh(rows, pd.Series(times, index=range(7, 607)), strategy) == expected
    sites = np.arange(600) % 3
    weighted = weigh(rows, times.tolist(), strategy, clients=sites)
    assert weighted == weigh(repeated(rows, times), None, strategy, clients=np.repeat(sites, times))


def test_only_ratios_of_weights_matter(rows: Any) -> None:
    rng = np.random.default_rng(6)
    for weight in (np.ones(600), rng.integers(0, 4, 600), rng.uniform(0, 3, 600), rng.lognormal(0, 3, 600)):
        expected = weigh(rows, weight)
        assert all(weigh(rows, scale * weight) == expected for scale in (2, 0.1, 1 / 3, 1e-300, 1e300))
    assert weigh(rows, np.full(600, 0.7)) == weigh(rows, None)


def test_weights_of_any_size_are_followed_row_by_row_and_label_by_label(rows: Any) -> None:
    _, y, sex = rows
    weight = np.random.default_rng(7).gamma(1, size=600)
    order = np.lexsort([sex, y])
    taken = copies(weight, order, Streams(3))
    expected = 600 * weight / weight.sum()
    assert taken.sum() == 600
    assert ((taken >= np.floor(expected)) & (taken <= np.ceil(expected))).all()
    for kind in {*zip(y, sex, strict=True)}:
        own = (y == kind[0]) & (sex == kind[1])
        assert abs(taken[own].sum() - expected[own].sum()) < 1
    assert (taken != copies(weight, order, Streams(4))).any()
    many = np.ones(600)
    many[0] = 1e6
    assert copies(many, order, Streams(1)).sum() == 600
    assert copies(np.array([1e-320, 1e300, 0.0]), np.arange(3), Streams(1)).tolist() == [0, 1, 0]


def test_weights_move_the_model_towards_their_rows(rows: Any) -> None:
    x, y, sex = rows
    weight = np.where(y == "yes", 3.3, 0.7)
    plain, weighted = (
        make(max_iter=200).fit(x, y, sample_weight=given, sensitive_features=sex) for given in (None, weight)
    )
    logistic = LogisticRegression().fit(x, y, sample_weight=weight)
    shares = [(clf.predict(x) == "yes").mean() for clf in (plain, weighted, logistic)]
    assert shares[1] > shares[0] + 0.05
    assert shares[1] == pytest.approx(shares[2], abs=0.05)


def test_a_score_is_weighted(rows: Any) -> None:
    x, y, sex = rows
    clf = make().fit(x, y, sensitive_features=sex)
    right = clf.predict(x) == y
    assert clf.score(x, y, sample_weight=right + 0.0) == 1
    assert clf.score(x, y, np.where(right, 1, 3)) < clf.score(x, y)


def test_rows_of_weight_0_do_not_count_as_groups_clients_or_classes(rows: Any) -> None:
    x, y, sex = rows
    weight = (sex == "f") + 0.0
    with pytest.warns(UserWarning, match="two groups"):
        clf = make("fair_fate").fit(x, y, weight, sensitive_features=sex, clients=sex)
    assert clf.clients_.tolist() == ["f"]
    with pytest.raises(InputError, match="two classes, got 1 class"):
        make().fit(x, y, sample_weight=y == "yes")


def test_ensembles_and_routing_hand_weights_on(rows: Any, routing: None) -> None:
    x, y, sex = rows
    clf = make(PLAIN, max_iter=5).set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
    weight = np.where(y == "yes", 5.0, 1.0)
    params = {"sensitive_features": sex, "sample_weight": weight}
    scores = cross_val_score(clf, x, y, params=params, cv=2, error_score="raise")
    halves = StratifiedKFold(2).split(x, y)
    for score, (train, test) in zip(scores, halves, strict=True):
        fitted = clone(clf).fit(x[train], y[train], weight[train], sensitive_features=sex[train])
        assert score == fitted.score(x[test], y[test], weight[test])
    bagged = BaggingClassifier(clf, n_estimators=2, random_state=1).fit(x, y, sample_weight=weight)
    assert (bagged.predict(x) == "yes").mean() > 0.4


def test_a_column_of_x_of_the_same_name_may_be_another(rows: Any) -> None:
    x, y, sex = rows
    frame = _named(x).assign(sex=(sex == "m") * 1.0)
    given = pd.Series(sex, name="sex")
    clf = make("fedavg+thresholds:metric=sp").fit(frame, y, sensitive_features=given)
    assert clf.model_.schema.sensitive == ("sex_",)
    assert clf.groups_.tolist() == ["f", "m"]
    predictions = clf.predict(frame, sensitive_features=given)
    assert (predictions == clf.predict(frame, sensitive_features=given.to_frame())).all()
    assert (predictions == clf.model_.predict(frame, sensitive_features=given)).all()


@pytest.mark.parametrize("strategy", ["fair_fate+average", "fedavg_lr", "prejudice", "fedavg+thresholds"])
@pytest.mark.parametrize("groups", [None, "a", "few missing"])
def test_without_groups_a_fair_strategy_is_fedavg_and_says_so(
    rows: Any, strategy: str, groups: str | None
) -> None:
    x, y, _ = rows
    given = None if groups is None else np.full(len(x), "a", dtype=object)
    if groups == "few missing":
        given[:3] = None
    with pytest.warns(UserWarning, match="needs sensitive_features with two groups at least: 'fedavg"):
        clf = make(strategy).fit(x, y, sensitive_features=given)
    assert clf.strategy_ == ("fedavg+average:share=0.5" if "average" in strategy else "fedavg")
    assert clf.groups_.tolist() == ["everybody"]
    assert clf.score(x, y, sensitive_features=given) > 0.7
    assert "eqo" not in clf.history_


def test_without_groups_others_are_trained_as_they_are(rows: Any) -> None:
    x, y, _ = rows
    for text in ("fedmom:beta=0.5", "fedprox:mu=0.5", "qffl:q=0.01", "afl:rate=0.1,start=rows"):
        clf = make(text).fit(x, y)
        assert clf.strategy_ == text
        assert clf.score(x, y) > 0.6


def test_a_model_without_groups_can_be_saved_and_evaluated(rows: Any, tmp_path: Path) -> None:
    x, y, _ = rows
    clf = make().fit(x, y)
    model = FairModel.load(clf.model_.save(tmp_path / "m.safetensors"))
    assert (model.predict(_named(x)) == clf.predict(x)).all()
    counts, _ = model.evaluate(_named(x).assign(y=y))
    assert counts.sum() == len(x)
    assert counts[0].trace() / len(x) == pytest.approx(clf.score(x, y))


def test_clients_are_labels_of_rows(rows: Any) -> None:
    x, y, sex = rows
    sites = pd.Series(np.random.default_rng(3).choice(["north", "south", "west"], len(x)))
    clf = make("fair_fate", n_clients=10_000, per_round=2).fit(x, y, sensitive_features=sex, clients=sites)
    assert clf.clients_.tolist() == ["north", "south", "west"]
    assert make().fit(x, y, clients=[1] * 300 + [2] * 300).clients_.tolist() == ["1", "2"]


def test_partitions_and_validation_rows_matter(rows: Any) -> None:
    x, y, _ = rows
    results = {}
    for name, settings in {
        "random": {},
        "dirichlet": {"partition": "dirichlet:0.3"},
        "all": {"validation_fraction": 0},
    }.items():
        results[name] = make(**settings).fit(x, y).model_.arrays["w1"].tobytes()
    assert len(set(results.values())) == 3
    clf = make(validation_fraction=0).fit(x, y)
    assert clf.history_["accuracy"].isna().all()


def test_thresholds_from_the_clients_need_no_validation_rows(rows: Any) -> None:
    x, y, sex = rows
    clf = make("fedavg+thresholds:metric=sp,from=clients", validation_fraction=0)
    clf.fit(x, y, sensitive_features=sex)
    assert clf.model_.thresholds.shape == (2,)
    assert clf.score(x, y, sensitive_features=sex) > 0.7


def test_a_fit_that_fails_leaves_nothing_to_predict_with(rows: Any) -> None:
    x, y, sex = rows
    clf = make(per_round=100)
    with pytest.raises(InputError):
        clf.fit(x, y, sensitive_features=sex)
    with pytest.raises(NotFittedError):
        clf.predict(x)


class Twice(Mlp):
    """A model of one's own, by its methods alone: the built-in one, with twice the margins."""

    def margins(self, model: Any, rows: Any) -> Any:
        return [2 * scores for scores in super().margins(model, rows)]


@pytest.mark.parametrize(
    "model", [Twice, Twice(4), lambda inputs: Twice(inputs, (3,))], ids=["class", "object", "function"]
)
def test_models_of_the_user(rows: Any, model: Any) -> None:
    x, y, sex = rows
    clf = clone(make("fedavg+thresholds:metric=sp", model=model)).fit(x, y, sensitive_features=sex)
    assert clf.score(x, y, sensitive_features=sex) > 0.7
    decided = clf.model_.predict(_named(x), sensitive_features=sex)
    assert (decided == clf.predict(x, sensitive_features=sex)).all()


@pytest.mark.slow
def test_a_torch_module_is_a_model(rows: Any) -> None:
    pytest.importorskip("fairfate.models.torch")
    torch = pytest.importorskip("torch")
    x, y, sex = rows

    def network(inputs: int) -> Any:
        return torch.nn.Sequential(torch.nn.Linear(inputs, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))

    clf = make("fedavg+thresholds:metric=sp", model=network, max_iter=10, learning_rate=0.1)
    clf.fit(x, y, sensitive_features=sex)
    assert clf.score(x, y, sensitive_features=sex) > 0.7
    assert (clf.predict_proba(x) == clone(clf).fit(x, y, sensitive_features=sex).predict_proba(x)).all()


def test_hidden_layers(rows: Any) -> None:
    x, y, _ = rows
    for hidden, layers in ((0, 1), ("10", 2), ("6,4", 3)):
        arrays = make(hidden=hidden).fit(x, y).model_.arrays
        assert sum(name.startswith("w") for name in arrays) == layers


@POOLED
def test_pipelines_grids_and_routing(people: Any, routing: None) -> None:
    x, y, region = people
    sites = np.arange(len(x)) % 3
    clf = make("fedavg+thresholds:metric=sp", max_iter=5)
    asks = {"sensitive_features": True}
    clf.set_fit_request(**asks, clients=True).set_score_request(**asks).set_predict_request(**asks)
    encode = ColumnTransformer(
        [
            ("numbers", StandardScaler(), ["stay", "earlier", "share"]),
            ("texts", OneHotEncoder(sparse_output=False, handle_unknown="ignore"), ["ward"]),
        ]
    )
    pipe = make_pipeline(encode, clf)
    params = {"sensitive_features": region, "clients": sites}
    grid = {"fairfederatedclassifier__strategy": ["fedavg+thresholds:metric=sp", "fair_fate"]}
    search = GridSearchCV(pipe, grid, cv=2, error_score="raise").fit(x, y, **params)
    best = search.best_estimator_
    assert best.predict(x, sensitive_features=region).shape == y.shape
    assert best[-1].clients_.tolist() == ["0", "1", "2"]
    scores = cross_validate(clf, x, y, cv=2, params=params, error_score="raise")
    assert scores["test_score"].shape == (2,)


@POOLED
def test_fairness_as_a_score(people: Any, routing: None) -> None:
    metrics = pytest.importorskip("fairlearn.metrics")
    x, y, region = people
    clf = make("fair_fate:metric=sp", max_iter=5).set_fit_request(sensitive_features=True)

    def gap(y_true: Any, y_pred: Any, *, sensitive_features: Any) -> float:
        return metrics.demographic_parity_difference(
            y_true == "yes", y_pred == "yes", sensitive_features=sensitive_features
        )

    scorer = make_scorer(gap, greater_is_better=False).set_score_request(sensitive_features=True)
    scores = cross_validate(
        clf, x, y, cv=2, scoring=scorer, params={"sensitive_features": region}, error_score="raise"
    )
    assert ((scores["test_score"] <= 0) & (scores["test_score"] >= -1)).all()


def test_steps_of_a_pipeline_take_them_without_routing(people: Any) -> None:
    x, y, region = people
    pipe = make_pipeline(OneHotEncoder(sparse_output=False), make("fedavg+thresholds:metric=sp", max_iter=5))
    pipe.fit(x[["ward"]], y, fairfederatedclassifier__sensitive_features=region)
    assert pipe.predict(x[["ward"]], sensitive_features=region).shape == y.shape


def test_fairlearn_takes_what_it_gives(rows: Any) -> None:
    metrics = pytest.importorskip("fairlearn.metrics")
    x, y, sex = rows
    clf = make("fedavg+average+thresholds:metric=sp").fit(x, y == "yes", sensitive_features=sex)
    predicted = clf.predict(x, sensitive_features=sex)
    frame = metrics.MetricFrame(
        metrics={"selection": metrics.selection_rate},
        y_true=y == "yes",
        y_pred=predicted,
        sensitive_features=sex,
    )
    rates = frame.by_group["selection"]
    ours = fairfate.measure(y == "yes", predicted, group=(sex == "m") * 1)
    assert rates.min() / rates.max() == pytest.approx(ours["sp"])


@POOLED
def test_saved_with_pickle_and_skops(people: Any, tmp_path: Path) -> None:
    x, y, region = people
    clf = make("fedavg+thresholds").fit(x, y, sensitive_features=region)
    expected = clf.predict(x, sensitive_features=region)
    again = pickle.loads(pickle.dumps(clf))
    assert (again.predict(x, sensitive_features=region) == expected).all()
    skops = pytest.importorskip("skops.io")
    skops.dump(clf, tmp_path / "clf.skops")
    unknown = skops.get_untrusted_types(file=tmp_path / "clf.skops")
    assert all(name.startswith("fairfate.") for name in unknown), unknown
    loaded = skops.load(tmp_path / "clf.skops", trusted=unknown)
    assert (loaded.predict(x, sensitive_features=region) == expected).all()
    pd.testing.assert_frame_equal(loaded.history_, clf.history_)


@pytest.mark.filterwarnings("ignore:.*(tell apart|what the model has seen)")
@pytest.mark.filterwarnings("ignore:balance")  # whose tail is long
def test_the_model_s_file_decides_as_the_estimator_does(tmp_path: Path) -> None:
    frame = bank(2000)
    frame["origin"] = frame["origin"].fillna("A")
    x, y = frame.drop(columns=["subscribed", "origin"]), frame["subscribed"]
    clf = make("fedavg+average+thresholds:metric=sp", max_iter=100)
    clf.fit(x, y, sensitive_features=frame["origin"])
    assert "(small groups)" in clf.groups_
    expected = clf.predict(x, sensitive_features=frame["origin"])
    assert set(expected) == {"no", "yes"}
    loaded = FairModel.load(clf.model_.save(tmp_path / "clf.safetensors"))
    for model in (clf.model_, loaded):
        assert (model.predict(frame.drop(columns="subscribed")) == expected).all()
        assert (model.predict(x, sensitive_features=frame["origin"]) == expected).all()


def test_notes_on_new_rows_are_warnings(rows: Any) -> None:
    x, y, sex = rows
    frame = _named(x).assign(town=np.where(x[:, 2] > 0, "Ulm", "Bonn"))
    clf = make("fedavg+thresholds").fit(frame, y, sensitive_features=sex)
    assert clf.predict(frame, sensitive_features=sex).shape == (600,)  # no warning: they are errors here
    changed = frame.assign(x0=1000 * frame["x0"], town="Köln")
    calls = (
        lambda: clf.predict(changed, sensitive_features=sex),
        lambda: clf.decision_function(changed, sensitive_features=sex),
        lambda: clf.predict_proba(changed),
    )
    for call in calls:
        with pytest.warns(UserWarning, match="values|model") as caught:
            call()
        messages = [str(warning.message) for warning in caught]
        assert len(messages) == 2, messages
        assert re.fullmatch(r"x0: 5\d\d values more than 6 standard deviations from the mean .+", messages[0])
        assert messages[1].startswith("town: 600 rows with texts that the model does not tell apart")
        assert {warning.filename for warning in caught} == {__file__}


def test_repr_shows_the_parameters(rows: Any) -> None:
    x, y, sex = rows
    clf = FairFederatedClassifier(max_iter=20, random_state=1)
    assert repr(clf) == "FairFederatedClassifier(max_iter=20, random_state=1)"
    clf.fit(x, y, sensitive_features=sex)
    assert "FairFederatedClassifier" in clf._repr_html_()
    figure = clf.plot_history()
    assert [panel.get_ylabel() for panel in figure.axes] == ["accuracy", "balanced accuracy", "eqo"]
    assert all(len(panel.lines) == 2 for panel in figure.axes)
    figure.canvas.draw()


def test_what_needs_fit_says_so() -> None:
    assert not hasattr(make(), "history_")
    with pytest.raises(NotFittedError):
        make().plot_history()


@pytest.mark.parametrize(
    ("settings", "given", "message"),
    [
        ({}, {"sensitive_features": ["f"] * 599}, "sensitive_features must have 1 column.*600 rows"),
        ({}, {"sample_weight": [1] * 599}, "sample_weight must have a number for each of the 600 rows"),
        ({}, {"sample_weight": 2}, "sample_weight must have a number for each of the 600 rows"),
        ({}, {"sample_weight": ["a"] * 600}, "sample_weight must hold numbers, got"),
        ({}, {"sample_weight": [-1.0] * 600}, "sample_weight must hold finite numbers >= 0, got -1"),
        ({}, {"sample_weight": [np.inf] * 600}, "sample_weight must hold finite numbers >= 0, got inf"),
        ({}, {"sample_weight": [0] * 600}, "sample_weight must be above zero in some row"),
        ({}, {"clients": ["a"] * 599}, "clients must have a label for each of the 600 rows"),
        ({}, {"clients": [None] * 600}, "clients must have a label for each row, got 600 missing"),
        ({}, {"clients": "dirichlet:0.5"}, "clients must be an array of labels"),
        ({}, {"y": np.array(["yes"] * 600)}, "y must have two classes, got 1 class: yes"),
        ({}, {"y": np.arange(600) % 3}, "Only binary classification is supported.*got 3: 0, 1, 2"),
        ({}, {"y": np.array([np.nan, 1.0] * 300)}, "Input y contains NaN"),
        ({}, {"y": np.array([None, "a", "b"] * 200)}, "y must have a label in every row, got 200 missing"),
        ({}, {"y": ["yes", "no"] * 299}, "y must have a label for each of the 600 rows"),
        ({"strategy": "nonsense"}, {}, "unknown strategy 'nonsense'"),
        ({"strategy": "fedavg+nonsense"}, {}, "unknown step 'nonsense'"),
        ({"strategy": 3}, {}, "'strategy' parameter .* must be an instance of"),
        ({"metric": "nonsense"}, {}, "unknown name in metric 'nonsense'"),
        ({"partition": "nonsense"}, {}, "partition must be random"),
        ({"partition": "column:x"}, {}, "partition must be random, dirichlet:SIGMA, .* fit's clients"),
        ({"partition": "dirichlet:-1"}, {}, "sigma must be > 0"),
        ({"n_clients": 601}, {}, "n_clients must be <= the 600 rows, got 601"),
        ({"n_clients": 0}, {}, "'n_clients' parameter .* must be an int in the range"),
        ({"per_round": 5}, {}, "per_round must be <= the 4 clients, got 5"),
        ({"max_iter": 0}, {}, "'max_iter' parameter .* must be an int in the range"),
        ({"epochs": 1.5}, {}, "'epochs' parameter .* must be an int .* Got 1.5 instead"),
        ({"learning_rate": 0}, {}, "'learning_rate' parameter .* must be a float in the range"),
        ({"learning_rate": "x"}, {}, "'learning_rate' parameter .* Got 'x' instead"),
        ({"hidden": "a"}, {}, "hidden must be a whole number"),
        ({"model": 3}, {}, "'model' parameter .* must be an object implementing"),
        ({"model": lambda inputs: inputs}, {}, "model must make a model or a torch.nn.Module, got int"),
        ({"model": Mlp(5)}, {}, "model must be made for the 4 inputs that the columns become, got 5"),
        ({"pos_label": "maybe"}, {}, "pos_label must be one of the classes no, yes, got 'maybe'"),
        ({"random_state": -1}, {}, "'random_state' parameter .* must be an int in the range"),
        ({"validation_fraction": 1}, {}, "'validation_fraction' parameter .* must be a float in the range"),
        ({"strategy": "fair_fate", "validation_fraction": 0}, {}, "validation_fraction must be > 0"),
    ],
)
def test_bad_input_is_refused(rows: Any, settings: Any, given: Any, message: str) -> None:
    x, y, sex = rows
    clf = make(**settings)
    arguments = {"X": x, "y": y, "sensitive_features": sex, **given}
    with pytest.raises(ValueError, match=message):
        clf.fit(**arguments)


def test_a_metric_that_is_undefined_names_the_group(rows: Any) -> None:
    x, y, sex = rows
    y = np.where(sex == "f", "no", y)
    for strategy in ("fair_fate:metric=eo", "fedavg+thresholds:metric=eo"):
        with pytest.raises(
            InputError, match="'eo' must be defined on the validation rows, got no rows of f with yes"
        ):
            make(strategy).fit(x, y, sensitive_features=sex)


def test_bad_rows_to_predict_are_refused(rows: Any) -> None:
    x, y, sex = rows
    clf = make("fedavg+thresholds:metric=sp").fit(x, y, sensitive_features=sex)
    with pytest.raises(InputError, match="sensitive_features must be given"):
        clf.predict(x)
    with pytest.raises(InputError, match="sensitive_features must be given"):
        clf.decision_function(x)
    assert clf.predict_proba(x).shape == (600, 2)
    with pytest.raises(InputError, match=r"one of those that have a threshold \(f, m\), got 'd' in row 1"):
        clf.predict(x[:2], sensitive_features=["d", "f"])
    with pytest.raises(InputError, match=r"sensitive_features must have 1 column.*2 rows, got shape"):
        clf.predict(x[:2], sensitive_features=sex)
    with pytest.raises(ValueError, match="X has 3 features"):
        clf.predict(x[:, :3], sensitive_features=sex)
    two = make("fedavg+thresholds:metric=sp").fit(
        x, y, sensitive_features=pd.DataFrame({"sex": sex, "half": np.arange(600) % 2})
    )
    with pytest.raises(InputError, match="missing 'half'"):
        two.predict(x, sensitive_features=pd.DataFrame({"sex": sex}))


def test_bad_tables_are_refused(rows: Any) -> None:
    x, y, _ = rows
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        make().fit(sparse.csr_matrix(x), y)
    with pytest.raises(InputError, match="X must have columns of different names, got 'a' twice"):
        make().fit(pd.DataFrame(x, columns=["a", "a", "b", "c"]), y)
    with pytest.raises(InputError, match="X must have a row"):
        make().fit(_named(x[:0]), y[:0])
    frame = credit(200)
    clf = make().fit(frame.drop(columns="risk"), frame["risk"])
    with pytest.raises(ValueError, match="feature names"):
        clf.predict(frame.drop(columns="risk").iloc[:, ::-1])

"""Individual fairness as an objective: consistency, and the attribute flip rate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fairfate import FairFederatedClassifier, InputError, run
from fairfate.data import Columns, Table, synthetic, table_from_frame
from fairfate.engine import server as rounds
from fairfate.engine.server import Replies, Server
from fairfate.engine.simulate import simulate
from fairfate.engine.simulation import Simulation
from fairfate.experiments.config import Config, from_mapping
from fairfate.experiments.prepare import prepare
from fairfate.fairness.individual import IndividualObjective, consistency, gower_neighbours
from fairfate.fairness.objective import (
    bind,
    bind_individual,
    individual_terms,
    is_individual,
    parse_objective,
)
from fairfate.federation.individual import IndividualRows
from fairfate.federation.partition import parse_partition
from fairfate.federation.seeds import Streams
from fairfate.federation.split import Federation, build, pack, split_rows
from fairfate.models.mlp import Mlp
from fairfate.models.training import Training
from fairfate.results.tables import read_clients
from fairfate.strategies import Need, Setup, load_plugin, parse_spec
from fairfate.strategies.registry import TWO_GROUPS

GOOD = np.array([[[8, 2], [2, 8]], [[7, 3], [4, 6]]])
ONE_ANSWER = np.array([[[0, 10], [0, 10]], [[0, 10], [0, 10]]])
GUARDED = "fair_fate:metric=flip,min_mcc=0.05"


# -- objectives ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "terms", "alone"),
    [
        ("flip", {"flip"}, True),
        ("0.5*eo+0.5*flip", {"flip"}, False),
        ("worst(eo, consistency)", {"consistency"}, False),
        ("geometric(consistency, flip)", {"consistency", "flip"}, True),
        ("0*eo+flip", {"flip"}, True),  # a term without weight guards nothing
        ("eqo", set(), False),
    ],
)
def test_an_objective_knows_its_terms(text: str, terms: set[str], alone: bool) -> None:
    assert str(parse_objective(text)) == text
    assert individual_terms(text) == terms
    assert is_individual(text) is alone
    assert isinstance(bind_individual(text, TWO_GROUPS), IndividualObjective) is bool(terms)


def test_people_have_no_attribute() -> None:
    with pytest.raises(InputError, match="must have no attribute for flip, which is everybody's"):
        parse_objective("flip@sex")


def test_objectives_by_hand() -> None:
    """METHODS: x = (0, .1, .2, .9, 1), decisions (0, 0, 1, 1, 1), k = 2: .6."""
    near = gower_neighbours(np.array([[0.0], [0.1], [0.2], [0.9], [1.0]]), np.array([False]), k=2)
    people = {
        "consistency": np.array([consistency(np.array([0, 0, 1, 1, 1], dtype=bool), near), 1.0]),
        "flip": np.array([0.5, 1.0]),
    }
    counts = np.stack([GOOD, ONE_ANSWER])  # eo 6/8 and 1
    for text, first in (
        ("consistency", 0.6),
        ("3*eo+1*flip", 0.75 * 0.75 + 0.25 * 0.5),
        ("worst(eo, consistency)", 0.6),
        ("geometric(eo, flip)", (0.75 * 0.5) ** 0.5),
    ):
        assert bind_individual(text, TWO_GROUPS)(counts, people) == pytest.approx([first, 1.0])


def test_metrics_of_counts_do_not_need_rows() -> None:
    assert bind_individual("eo+accuracy", TWO_GROUPS)(GOOD) == bind("eo+accuracy", TWO_GROUPS)(GOOD)
    with pytest.raises(InputError, match=r"metric must be made of sp, eo, .* got '0.5\*eo\+0.5\*flip'"):
        bind("0.5*eo+0.5*flip", TWO_GROUPS)


# -- people ----------------------------------------------------------------------------------------------


def people_of(table: Table) -> tuple[IndividualRows, Mlp]:
    every, encoder = np.arange(len(table)), table.fit_encoder()
    return IndividualRows(table, every, pack(table, every, encoder), encoder), Mlp(encoder.inputs, ())


@pytest.mark.parametrize("names", ["abc", "cab", "bca"])
def test_flips_by_hand_whatever_groups_are_called(names: str) -> None:
    """Accepted if x + (0, .25, .5 by group) > .58.

    (0, a) never is. (.4, b) is, and would not be in a. (.35, c) is, would be in b and not in a. (1, a) always
    is. So two of four people are decided otherwise in some other group.
    """
    a, b, c = names
    frame = pd.DataFrame({"x": [0, 0.4, 0.35, 1], "s": [a, b, c, a], "y": [0, 1, 0, 1]})
    table = table_from_frame(frame, Columns("y", ("s",)), encode="onehot")
    people, model = people_of(table)
    inputs = people.encoder.names(table.feature_names, {"s": table.grouping.values[0]})
    low, span = people.encoder.low[0], people.encoder.span[0]
    weight = {"x": span, f"s={a}": 0.0, f"s={b}": 0.25, f"s={c}": 0.5}
    arrays = {"w1": np.array([weight[name] for name in inputs]), "b1": np.array([low - 0.58])}
    params = np.asarray(model.flat(arrays), dtype=np.float32)
    accepted = people.accepted(lambda rows, group: np.concatenate(model.margins(params, rows)) > 0)
    assert accepted.sum() == 3
    assert people.fairness(["flip"], model, params[None])["flip"].tolist() == [0.5]


def brute_force(
    table: Table, numbers: np.ndarray, people: IndividualRows, params: np.ndarray
) -> dict[str, float]:
    """Both terms of a linear model, row by row, from the features alone."""
    weights, bias = params[:-1].astype(np.float64), float(params[-1])

    def decide(features: np.ndarray) -> np.ndarray:
        return people.encoder.transform(features).astype(np.float64) @ weights + bias > 0

    features = table.features[numbers]
    accepted = decide(features)
    other = features.copy()
    other[:, -1] = 1 - other[:, -1]  # sex
    apart = []
    spans = np.ptp(features, axis=0)
    for item in features:
        each = np.abs(features - item)[:, :4] / spans[:4]
        apart.append(each.sum(axis=1) + (features[:, 4] != item[4]))
    unlike = []
    for number, distances in enumerate(apart):
        near = [k for k in np.argsort(distances, kind="stable") if k != number][:5]
        unlike.append(abs(accepted[number] - accepted[near].mean()))
    return {"consistency": 1 - np.mean(unlike), "flip": np.mean(accepted == decide(other))}


def test_people_are_those_of_a_count_row_by_row() -> None:
    table = synthetic(300, 3)
    numbers = np.random.default_rng(0).permutation(300)[:120]
    encoder = table.fit_encoder()
    people = IndividualRows(table, numbers, pack(table, numbers, encoder), encoder)
    model = Mlp(encoder.inputs, ())
    models = np.random.default_rng(1).normal(size=(4, model.num_parameters)).astype(np.float32)
    models[:, -1] = -models[:, :-1].sum(axis=1) / 2  # about half are accepted
    result = people.fairness(["consistency", "flip"], model, models)
    for index, params in enumerate(models):
        expected = brute_force(table, numbers, people, params)
        assert 0 < expected["flip"] < 1
        assert {term: values[index] for term, values in result.items()} == pytest.approx(expected)


def test_one_answer_for_everybody_is_perfect() -> None:
    people, model = people_of(synthetic(200, 1))
    params = np.zeros((1, model.num_parameters), dtype=np.float32)
    params[0, -1] = 1.0
    assert people.fairness(["consistency", "flip"], model, params) == {"consistency": [1.0], "flip": [1.0]}


def test_neighbours_are_looked_for_among_two_thousand_at_most() -> None:
    people, _ = people_of(synthetic(2500, 1))
    whom, near = people._neighbours
    assert len(whom) == len(near) == 2000
    assert near.max() < 2000


# -- a round ---------------------------------------------------------------------------------------------


def server(text: str) -> Server:
    model = Server.start(parse_spec(text, "sp").build(Setup(10)), np.zeros(3))
    model.counts = GOOD
    return model


def replies(people: dict[str, Any], *counts: np.ndarray) -> Replies:
    given = np.stack(counts or [GOOD] * 3)
    calls = {term: np.array(values) for term, values in people.items()}
    return Replies(("a", "b", "c"), np.eye(3), np.array([10.0, 20.0, 30.0]), given, individual=calls)


def test_a_round_of_fair_fate_by_hand() -> None:
    """The server's flip is .8; the clients' are .9, .7 and .8: a and c are fair, by 9/17 and 8/17."""
    first = server(f"{GUARDED},lam0=0.5,rho=0,momentum=none")
    outcome = first.take(1, replies({"flip": [0.9, 0.7, 0.8, 0.8]}))
    fair, by_rows = np.array([9 / 17, 0, 8 / 17]), np.array([1, 2, 3]) / 6
    assert outcome.notes["fair"].tolist() == [True, False, True]
    assert first.params == pytest.approx(0.5 * fair + 0.5 * by_rows)
    assert outcome.notes["flip"].tolist() == [0.9, 0.7, 0.8]
    assert outcome.notes["server_flip"] == 0.8


def test_the_guard_keeps_one_answer_for_everybody_out() -> None:
    first = server(f"{GUARDED},lam0=0.5,rho=0,momentum=none")
    outcome = first.take(1, replies({"flip": [0.9, 0.7, 1.0, 0.8]}, GOOD, GOOD, ONE_ANSWER))
    assert outcome.notes["fair"].tolist() == [True, False, False]


def test_a_round_of_fedval_by_hand() -> None:
    first = server("fedval:metric=0.5*eo+0.5*consistency,floor=0")
    first.take(1, replies({"consistency": [0.25, 0.5, 0.75, 0.0]}))
    scores = 0.5 * 0.75 + 0.5 * np.array([0.25, 0.5, 0.75])  # eo of all three is 6/8
    assert first.params == pytest.approx(scores / scores.sum())


def test_only_what_the_objective_names_is_measured() -> None:
    for text, needs in (
        ("fair_fate", set()),
        (GUARDED, {Need.FLIP}),
        ("fair_fate:metric=worst(eo, consistency)", {Need.CONSISTENCY}),
        ("fedval:metric=consistency+flip,min_mcc=0.1", {Need.CONSISTENCY, Need.FLIP}),
    ):
        result = parse_spec(text, "sp").build(Setup(10)).needs
        assert result & {Need.CONSISTENCY, Need.FLIP} == needs
        assert Need.SCORES in result


TRAINING = Training(rounds=5, per_round=4, epochs=2, learning_rate=0.1)
TEXTS = [
    "fair_fate",
    f"{GUARDED},keep=0.8",
    "fair_fate:metric=worst(eo, consistency)",
    "fedval:metric=consistency+flip,min_mcc=0.01+clip:norm=1",
]


@pytest.fixture(scope="module")
def federation() -> Federation:
    return build(synthetic(1500, 2), parse_partition("dirichlet:0.5"), 6, Streams(1))


def test_individual_fairness_is_measured_on_the_validation_rows(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the models as they are used: with updates that ``+clip`` has cut, and without a broken client's."""
    model = Mlp(federation.inputs, ())
    simulation = Simulation(federation, model, replace(TRAINING, learning_rate=1.0, epochs=5), Streams(1))
    specs = [parse_spec(text, "eqo") for text in TEXTS]
    servers = [Server.start(spec.build(Setup(5)), simulation.initial()) for spec in specs]
    for first, counts in zip(
        servers, simulation.validate(rounds.stack([s.params for s in servers])), strict=True
    ):
        first.counts = counts
    train = Mlp.train

    def break_one(self: Mlp, *given: Any) -> np.ndarray:
        trained = train(self, *given)
        trained[:, 1] = np.nan
        return trained

    monkeypatch.setattr(Mlp, "train", break_one)
    trained = simulation.train(1, servers)
    assert trained[0].individual is None
    table = synthetic(1500, 2)
    _, validation, _ = split_rows(table, Streams(1))
    for first, got in list(zip(servers, trained, strict=True))[1:]:
        assert len(got.clients) == 3
        assert got.individual is not None
        assert federation.individual is not None
        assert sorted(got.individual) == sorted(first.individual_terms)
        assert all(len(set(values)) == 4 for values in got.individual.values())
        for index, params in enumerate([*(first.params + got.deltas), first.params]):
            expected = brute_force(table, validation, federation.individual, params)
            assert {t: v[index] for t, v in got.individual.items()} == pytest.approx(
                {term: expected[term] for term in got.individual}, abs=1e-9
            )


def test_a_killed_run_continues_with_the_same_bytes(federation: Federation, tmp_path: Path) -> None:
    specs, model = [parse_spec(text, "eqo") for text in TEXTS], Mlp(federation.inputs)
    given = federation, specs, model, TRAINING, Setup(5), Streams(1)
    whole = simulate(*given, record_clients=True)
    done = 0

    def interrupt() -> None:
        nonlocal done
        done += 1
        if done == 3:
            raise KeyboardInterrupt

    options: dict[str, Any] = {
        "record_clients": True,
        "checkpoint": tmp_path / "c.safetensors",
        "seconds": 0.0,
    }
    with pytest.raises(KeyboardInterrupt):
        simulate(*given, interrupt, **options)
    for first, other in zip(whole, simulate(*given, **options), strict=True):
        assert first.params.tobytes() == other.params.tobytes(), first.spec.text
        assert np.array_equal(first.test, other.test)
        for own, theirs in zip(first.notes, other.notes, strict=True):
            assert own.keys() == theirs.keys()
            assert all(np.array_equal(own[key], theirs[key]) for key in own)


# -- what cannot be ----------------------------------------------------------------------------------------


def own_file(folder: Path, **changes: Any) -> dict[str, Any]:
    """A file of the user's with two sensitive columns."""
    table = synthetic(300, 1)
    frame = pd.DataFrame(table.features[:, :2], columns=["a", "b"])
    frame = frame.assign(s=np.where(table.group, "m", "f"), t=np.tile(["x", "y", "z"], 100), y=table.label)
    frame.assign(age=np.arange(300) % 70).to_csv(folder / "own.csv", index=False)
    about = {"data": str(folder / "own.csv"), "target": "y", "favourable": "1", "sensitive": ["s"]}
    return {**about, "rounds": 1, "seeds": [1], **changes}


@pytest.mark.parametrize(
    ("strategy", "changes", "message"),
    [
        ("fair_fate:metric=flip", {}, "min_mcc must be > 0 for metric 'flip', which is 1 for one answer"),
        ("fedval:metric=consistency", {"protocol": "published"}, "min_mcc must be > 0 for metric 'consist"),
        ("fedval:metric=worst(flip, consistency),min_mcc=0", {}, "min_mcc must be > 0 .* got 0"),
        ("fairfed:metric=flip", {}, "metric must be made of sp, eo and eqo by + and worst(), got 'flip'"),
        ("fair_best:metric=consistency", {}, "metric must be made of sp, eo and eqo by"),
        ("server_step:metric=flip", {}, "server_step: metric must be sp, eo or eqo, got 'flip'"),
        ("fedavg+thresholds:metric=flip", {}, "thresholds: metric must be made of sp, eo, .* got 'flip'"),
        (
            GUARDED,
            {"validation-from": "clients"},
            "validation-from must be server for metric 'flip' (flip is",
        ),
        (
            GUARDED,
            {"validation-from": "clients:mode=secure"},
            "validation-from must be server for metric 'flip'",
        ),
        ("fedavg", {"metric": "consistency"}, "metric must be made of sp, .* here, .* got 'consistency'"),
        (
            "fedval:metric=consistency,min_mcc=0.1",
            {"validation-from": "server:rows=5"},
            "consistency must have more than 5 validation rows, got 5",
        ),
    ],
)
def test_impossible_combinations_are_refused_before_anything_runs(
    strategy: str, changes: dict, message: str
) -> None:
    about = {"data": "synthetic:rows=300", "strategy": [strategy], **changes}
    pattern = message.replace("(", r"\(").replace(")", r"\)").replace("+", r"\+")
    with pytest.raises(InputError, match=pattern):
        prepare(from_mapping(about))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sensitive": ["s", "t"]}, "flip must be of one sensitive column, got s, t"),
        ({"drop": ["s"]}, "flip must have the sensitive column 's' as an input, got a, b, t, age"),
        ({"sensitive": ["age:20,40"]}, "flip must have the sensitive column 'age' as an input, got it as"),
    ],
)
def test_flip_needs_one_attribute_that_the_model_sees(changes: dict, message: str, tmp_path: Path) -> None:
    about = own_file(tmp_path, strategy=["fair_fate:metric=0.5*sp+0.5*flip"], **changes)
    with pytest.raises(InputError, match=message):
        prepare(from_mapping(about))


def test_the_guard_of_the_user_data_is_enough(tmp_path: Path) -> None:
    plan, _ = prepare(from_mapping(own_file(tmp_path, strategy=["fair_fate:metric=flip"])))
    assert dict(plan.specs[0].settings)["min_mcc"] == 0.05


PLUGIN = """
from fairfate.strategies import (
    RUN_METRIC, ModelState, Need, Objective, Strategy, needs_of, register, scores
)

@register("by_counts", "by counts alone", "me 2026")
def build(setup, *, metric: Objective = RUN_METRIC):
    fairness = setup.fairness(metric)
    step = lambda state, cohort: ModelState(state.params + cohort.mean(fairness(cohort.client_counts)))
    return Strategy(ModelState, step, needs={Need.SCORES})

@register("by_people", "by people too", "me 2026")
def build_people(setup, *, metric: Objective = RUN_METRIC, min_mcc: float = 0.1):
    fairness = setup.objective(metric, min_mcc)
    step = lambda state, cohort: ModelState(state.params + cohort.mean(scores(fairness, cohort)[0]))
    return Strategy(ModelState, step, needs=needs_of(fairness))
"""


def test_plugin_gets_individual_fairness_if_it_declares_it(federation: Federation, tmp_path: Path) -> None:
    (tmp_path / "individual_plugin.py").write_text(PLUGIN)
    load_plugin(tmp_path / "individual_plugin.py")
    with pytest.raises(InputError, match="metric must be made of sp, eo"):
        parse_spec("by_counts:metric=flip", "sp").build(Setup(3))
    spec, model = parse_spec("by_people:metric=flip", "sp"), Mlp(federation.inputs)
    (trace,) = simulate(federation, [spec], model, TRAINING, Setup(5), Streams(1))
    assert "server_flip" in trace.notes[-1]


def test_the_classifier_takes_them_too() -> None:
    table = synthetic(400, 1)
    x = pd.DataFrame(table.features, columns=list(table.feature_names)).astype({"sex": int})
    options: dict[str, Any] = {"max_iter": 2, "random_state": 1}
    fitted = FairFederatedClassifier(f"{GUARDED},keep=0.8", **options).fit(
        x, table.label, sensitive_features=x["sex"]
    )
    assert fitted.strategy_.startswith("fair_fate:metric=flip")
    with pytest.raises(InputError, match="flip must have the sensitive column 'sex' as an input"):
        FairFederatedClassifier(GUARDED, **options).fit(
            x.drop(columns="sex"), table.label, sensitive_features=x["sex"]
        )
    with pytest.raises(InputError, match="metric must be made of sp"):
        FairFederatedClassifier(metric="flip", **options).fit(x, table.label, sensitive_features=x["sex"])


# -- a run -----------------------------------------------------------------------------------------------


def test_run_with_individual_fairness_is_chosen_by_counts(tmp_path: Path) -> None:
    from fairfate.report.data import ReportData
    from fairfate.report.tables import remarks

    strategies = (GUARDED, "fedval:metric=0.5*eo+0.5*consistency")
    config = Config(data="synthetic:rows=600", strategies=strategies, rounds=3, seeds=(1, 2))
    finished = run(config, out=tmp_path / "out", jobs=1)
    (result,) = ReportData.read([tmp_path / "out"])
    assert result.objective == "eqo"
    assert any("consistency, flip: in no table, since counts do not tell" in line for line in remarks(result))
    assert finished.report().exists()
    clients = read_clients(tmp_path / "out")
    assert clients.loc[clients["metric"] == "flip", "note_flip"].between(0, 1).all()
    noted = finished.rounds.loc[finished.rounds["metric"] == "flip", "notes"]
    assert noted.str.contains("server_flip").all()


@pytest.mark.data
def test_flip_as_an_objective_improves_flip_on_compas(data_folder: Path) -> None:
    """On the validation rows that it looks at, in the mean over three seeds; on others it need not."""
    table, result = None, {}
    texts = ("fedavg", f"{GUARDED},keep=0.8")
    config = Config(data="compas", data_dir=str(data_folder), partition="dirichlet:0.5", strategies=texts)
    plan, table = prepare(replace(config, seeds=(1, 2, 3)))
    for seed in (1, 2, 3):
        federation = build(table, plan.partition, plan.clients, Streams(seed))
        model = plan.model(federation.inputs)
        traces = simulate(federation, plan.specs, model, plan.training, plan.setup(table), Streams(seed))
        assert federation.individual is not None
        models = np.stack([trace.params for trace in traces])
        result[seed] = federation.individual.fairness(["flip"], model, models)["flip"]
    fedavg, flip = np.mean(list(result.values()), axis=0)
    assert flip > fedavg

"""What every strategy owes its caller. A new strategy is one more row of STRATEGIES."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fairfate.engine.checkpoint import pack, unpack
from fairfate.engine.local import local_terms
from fairfate.strategies import (
    Cohort,
    Loss,
    Need,
    Setup,
    Statistics,
    Strategy,
    entries,
    parse_spec,
    weighted_mean,
)

STRATEGIES = [
    "fedavg",
    "fedavg_lr",
    "fedavg_gr",
    "fedmom",
    "feddemon",
    "fedprox",
    "fedadam",
    "fedadam:correction=flower",
    "fedyogi",
    "qffl:q=0",
    "qffl:q=2",
    "afl",
    "afl:rate=1,start=equal",
    "fedavg_gr:counts=once",
    "fedval:metric=sp+accuracy,floor=0,sharpness=3",
    "fair_best:min_mcc=-1",
    "fair_avg:metric=sp,weights=equal",
    "fair_acc_avg:metric=worst(sp, eo),against=overall",
    "fedfb:metric=sp",
    "fedfb:metric=sp,surrogate=error",
    "fedfb:metric=eo,step=0.1",
    "fedfb:metric=eqo,gaps=sums,surrogate=error",
    "fairbatch:metric=sp,alpha=0.1",
    "fairbatch:metric=eo",
    "fairbatch:metric=eqo",
    "fedgft:metric=sp",
    "fedgft:metric=eo,penalty=absolute",
    "fedgft:metric=eqo",
    "fedminmax:rate=1",
    "fedminmax:risks=cells",
    "server_step:metric=sp",
    "server_step:metric=eo,rho=1",
    "server_step:metric=eqo,target=0.9",
    "dual_reweighing:metric=sp",
    "dual_reweighing:metric=eo,keep=0",
    "dual_reweighing:metric=eqo,keep=1",
    "fedval:metric=sp",
    "fedval:metric=eqo",
    "fair_fate:metric=sp",
    "fair_fate:metric=eo",
    "fair_fate:metric=eqo,max=1,lam0=0.5",
    "fair_fate:metric=0.5*sp+0.5*worst(eo, eqo)",
    "fair_fate:metric=flip,min_mcc=0.01",
    "fedval:metric=eo+worst(consistency, flip)",
    "fairfed:metric=eo",
    "fairfed:variant=exp,local=none",
    "prejudice:scope=batch",
    "prejudice:scope=client",
    "prejudice:scope=global",
    "ffalm",
    "ffalm:labels=favourable",
    "fairgrad:metric=sp",
    "fairgrad:metric=eo",
    "fairgrad:metric=eqo",
    "fedfact:metric=sp",
    "fedfact:metric=eo,bound=0.2",
    "fedfact:metric=eqo,rate=1",
    *(
        f"fair_fate:momentum={momentum},growth={growth}"
        for momentum in ("none", "constant", "decaying")
        for growth in ("constant", "linear", "exponential")
    ),
]
ROUNDS = 5


def make_cohort(t: int = 1, clients: int = 4, parameters: int = 7, seed: int = 0) -> Cohort:
    rng = np.random.default_rng(seed + 100 * t)
    return Cohort(
        round=t,
        deltas=rng.normal(size=(clients, parameters)).astype(np.float32),
        num_examples=rng.integers(1, 50, clients),
        client_counts=rng.integers(1, 40, (clients, 2, 2, 2)),
        server_counts=rng.integers(1, 40, (2, 2, 2)),
        clients=tuple(f"client {number}" for number in range(clients)),
        measured={
            Need.REPORTS: make_statistics(rng, clients),
            Need.DESCENT: descend,
            Need.CONSISTENCY: np.random.default_rng(t).random(clients + 1),
            Need.FLIP: np.random.default_rng(t).random(clients + 1),
        },
    )


def reporting(cohort: Cohort, reports: Statistics) -> Cohort:
    """The same round with other reports."""
    return cohort._replace(measured={**cohort.measured, Need.REPORTS: reports})


def descend(params: np.ndarray, loss: Loss) -> np.ndarray:
    """A step that depends on the model and on the loss, whose rows are always the same ones."""
    statistics = make_statistics(np.random.default_rng(9), 1)
    terms = loss(Statistics(*(value[0] for value in statistics)))
    return -params * np.float32(np.abs(terms.push).sum())


def make_statistics(rng: np.random.Generator, clients: int) -> Statistics:
    counts = rng.integers(1, 40, (clients, 2, 2, 2))
    rows = counts.sum(axis=-1)
    return Statistics(counts, rows * rng.random(rows.shape), rows * rng.random(rows.shape))


def run(strategy: Strategy, cohorts: list[Cohort], parameters: int = 7):
    state = strategy.init(np.linspace(-1, 1, parameters, dtype=np.float32))
    for cohort in cohorts:
        state = strategy.aggregate(state, cohort)
    return state


@pytest.fixture(params=[(text, published) for text in STRATEGIES for published in (False, True)], ids=str)
def strategy(request: pytest.FixtureRequest) -> Strategy:
    text, published = request.param
    return parse_spec(text, "eqo").build(Setup(ROUNDS, published, learning_rate=0.1))


def test_every_registered_strategy_is_under_test() -> None:
    builtin = {entry.name for entry in entries() if str(entry.build.__module__).startswith("fairfate.")}
    assert {text.split(":")[0] for text in STRATEGIES} == builtin


def test_ignores_the_order_of_clients(strategy: Strategy) -> None:
    cohort = make_cohort()
    order = [2, 0, 3, 1]
    shuffled = cohort._replace(
        deltas=cohort.deltas[order],
        num_examples=cohort.num_examples[order],
        client_counts=cohort.client_counts[order],
        clients=tuple(cohort.clients[number] for number in order),
        measured={
            **cohort.measured,
            Need.REPORTS: Statistics(*(values[order] for values in cohort.get(Need.REPORTS))),
            Need.CONSISTENCY: cohort.get(Need.CONSISTENCY)[[*order, -1]],
            Need.FLIP: cohort.get(Need.FLIP)[[*order, -1]],
        },
    )
    np.testing.assert_allclose(
        run(strategy, [cohort]).params, run(strategy, [shuffled]).params, rtol=1e-5, atol=1e-6
    )


def test_ignores_the_names_of_groups(strategy: Strategy) -> None:
    """The same model, and for each row the same loss, when the groups change places."""
    cohorts = [make_cohort(t) for t in range(1, 4)]
    swapped = [
        cohort._replace(
            client_counts=cohort.client_counts[:, ::-1],
            server_counts=cohort.server_counts[::-1],
            measured={
                **cohort.measured,
                Need.REPORTS: Statistics(*(values[:, ::-1] for values in cohort.get(Need.REPORTS))),
            },
        )
        for cohort in cohorts
    ]
    first, other = run(strategy, cohorts), run(strategy, swapped)
    np.testing.assert_allclose(first.params, other.params, rtol=1e-5, atol=1e-6)
    rows, every = np.array([[30, 10], [5, 25]]), np.array([[[30, 10], [5, 25]], [[3, 0], [4, 5]]])
    local = make_statistics(np.random.default_rng(3), 1)
    there, back = (Statistics(*(value[0][::step] for value in local)) for step in (1, -1))
    message, told_back = (
        None if strategy.broadcast is None else strategy.broadcast(state, value)
        for state, value in ((first, every), (other, every[:, ::-1]))
    )
    terms = local_terms(strategy, message, rows, there)
    mirrored = local_terms(strategy, told_back, rows[::-1], back)
    np.testing.assert_allclose(terms.weight, mirrored.weight[::-1], rtol=1e-9)
    push, mirror = (
        np.zeros_like(terms.weight) if value.push is None else value.push for value in (terms, mirrored)
    )
    np.testing.assert_allclose(push, mirror[::-1], rtol=1e-9, atol=1e-12)
    assert (terms.target is None) == (mirrored.target is None)
    if terms.target is not None and mirrored.target is not None:
        np.testing.assert_allclose(terms.target, mirrored.target[::-1], rtol=1e-9, atol=1e-12)


def test_keeps_shape_and_dtype_and_stays_finite_to_the_last_round(strategy: Strategy) -> None:
    state = run(strategy, [make_cohort(t) for t in range(1, ROUNDS + 1)])
    assert state.params.shape == (7,)
    assert state.params.dtype == np.float32
    assert np.isfinite(state.params).all()


def test_does_not_change_its_inputs(strategy: Strategy) -> None:
    cohort, untouched = make_cohort(), make_cohort()
    state = strategy.init(np.zeros(7, np.float32))
    after = strategy.aggregate(state, cohort)
    again = strategy.aggregate(state, cohort)
    for own, other in zip(cohort[:5], untouched[:5], strict=True):
        np.testing.assert_array_equal(own, other)
    for own, other in zip(cohort.get(Need.REPORTS), untouched.get(Need.REPORTS), strict=True):
        np.testing.assert_array_equal(own, other)
    np.testing.assert_array_equal(state.params, np.zeros(7))
    np.testing.assert_array_equal(after.params, again.params)


def test_works_with_one_client(strategy: Strategy) -> None:
    assert np.isfinite(run(strategy, [make_cohort(clients=1)]).params).all()


ALONE_OTHERWISE = ("fedmom", "feddemon", "fair_fate", "fedadam", "fedyogi", "qffl:q=2", "server_step")
"""Those that do more than to average: a lone client's update is not the server's."""


@pytest.mark.parametrize("text", [text for text in STRATEGIES if not text.startswith(ALONE_OTHERWISE)])
def test_the_mean_of_one_client_is_its_model(text: str) -> None:
    strategy, cohort = parse_spec(text, "eqo").build(Setup(ROUNDS, learning_rate=0.1)), make_cohort(clients=1)
    start = np.linspace(-1, 1, 7, dtype=np.float32)
    np.testing.assert_array_equal(run(strategy, [cohort]).params, start + cohort.deltas[0])


def test_survives_undefined_fairness(strategy: Strategy) -> None:
    cohort = make_cohort()
    nobody = np.zeros_like(cohort.client_counts)
    empty = Statistics(nobody, np.zeros(nobody.shape[:-1]), np.zeros(nobody.shape[:-1]))
    only_one = cohort.get(Need.REPORTS).counts.copy()
    only_one[:, 0] = 0
    one_group = cohort.get(Need.REPORTS)._replace(counts=only_one)
    nothing = cohort._replace(client_counts=nobody, server_counts=nobody[0])
    state = run(strategy, [reporting(nothing, one_group)])
    assert np.isfinite(state.params).all()
    state = run(strategy, [reporting(nothing, empty)]) if "fairgrad" not in str(strategy) else state
    assert np.isfinite(state.params).all()
    message = None if strategy.broadcast is None else strategy.broadcast(state, np.ones((2, 2, 2), np.int64))
    assert message is None or np.isfinite(message).all()


@pytest.mark.parametrize("text", STRATEGIES)
def test_reports_of_absurd_losses_do_not_end_a_run(text: str) -> None:
    """Replies are checked to be finite, but not their sums: what is told must be, and so is the model."""
    strategy, cohort = parse_spec(text, "eqo").build(Setup(ROUNDS, learning_rate=0.1)), make_cohort()
    absurd = reporting(cohort, cohort.get(Need.REPORTS)._replace(loss=np.full((4, 2, 2), 1.7e308)))
    with np.errstate(over="ignore", invalid="ignore"):
        state = run(strategy, [absurd, make_cohort(2)])
        message = (
            None if strategy.broadcast is None else strategy.broadcast(state, np.ones((2, 2, 2), np.int64))
        )
    assert message is None or np.isfinite(message).all()
    assert np.isfinite(state.params).all()


def test_a_clients_loss_is_finite_and_of_its_rows_shape(strategy: Strategy) -> None:
    cohort_rows = np.array([[[3, 0], [4, 5]], [[0, 0], [0, 7]], [[1, 1], [1, 1]]])
    state = strategy.init(np.zeros(7, np.float32))
    for after in (state, strategy.aggregate(state, make_cohort())):
        message = None if strategy.broadcast is None else strategy.broadcast(after, cohort_rows)
        for rows in cohort_rows:
            counts = np.stack([rows - rows // 2, rows // 2], axis=-1)
            local = Statistics(counts, rows * 0.3, rows * 0.7)
            terms = local_terms(strategy, message, rows, local)
            assert terms.weight.shape == rows.shape


def test_the_state_survives_a_checkpoint(strategy: Strategy) -> None:
    state = strategy.aggregate(strategy.init(np.zeros(7, np.float32)), make_cohort())
    arrays: dict[str, np.ndarray] = {}
    content = json.loads(json.dumps(pack(state, arrays)))
    again = unpack(content, arrays, strategy.init(np.zeros(7, np.float32)))
    first, other = (strategy.aggregate(value, make_cohort(2)).params for value in (state, again))
    np.testing.assert_array_equal(first, other)


NOT_A_MEAN = ("fedmom", "feddemon", "fedadam", "fedyogi", "server_step")


@pytest.mark.parametrize("text", [t for t in STRATEGIES if t.split(":")[0] not in NOT_A_MEAN])
def test_equal_deltas_move_the_model_by_no_more_than_that_delta(text: str) -> None:
    strategy = parse_spec(text, "eqo").build(Setup(ROUNDS, learning_rate=0.1))
    cohort = make_cohort()
    same = np.tile(np.float32([1, 2, 3, 4, 5, 6, 7]), (4, 1))
    cohort = cohort._replace(deltas=same)
    moved = run(strategy, [cohort]).params - np.linspace(-1, 1, 7, dtype=np.float32)
    assert (moved <= same[0] + 1e-5).all()
    assert (moved > 0).all()


def test_weighted_mean_of_no_weight_is_zero() -> None:
    assert weighted_mean(np.ones((3, 2), np.float32), np.zeros(3)).tolist() == [0, 0]

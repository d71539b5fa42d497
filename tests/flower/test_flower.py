"""The adapter: what goes out, what is believed of what comes back, and what is kept."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import strategy as theirs

from fairfate import InputError
from fairfate.engine.checkpoint import read_checkpoint
from fairfate.flower import (
    FairFate,
    FedAvg,
    FedAvgGR,
    FedDemon,
    FedMom,
    FedVal,
    FlowerStrategy,
    Validation,
    loss_terms,
)
from fairfate.flower.messages import Layout, MismatchError
from fairfate.strategies import NO_NOTES, Cohort, ModelState, Notes, Setup, Strategy, parse_spec, register
from federation_in_process import Killed, LocalGrid, clients_of, count_replies, dropped, flower_strategy

NODES = [901, 17, 333, 58]
X = np.random.default_rng(1).normal(size=(60, 3))
LABEL = (X[:, 0] + 0.3 * np.random.default_rng(2).normal(size=60) > 0).astype(int)
GROUP = np.array(["a", "b", "c"])[np.arange(60) % 3]


def record(**arrays: object) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(values)) for name, values in arrays.items()})


def start_model() -> ArrayRecord:
    return record(w=np.zeros(3, dtype=np.float32), b=np.zeros(1, dtype=np.float32))


def predict(arrays: ArrayRecord) -> np.ndarray:
    return X @ arrays["w"].numpy() + arrays["b"].numpy() > 0


def validation() -> Validation:
    return Validation(predict, LABEL, GROUP)


app = ClientApp()


def own_rows(context: Context) -> list[int]:
    return [1, 2, 3, 1, 2, 1 + context.node_id % 7]


@app.train()
def train(message: Message, context: Context) -> Message:
    """A step that depends on the node and the round, and on the model it was sent."""
    config = message.content["config"]
    rng = np.random.default_rng([context.node_id, int(config["server-round"])])
    model = {name: array.numpy() for name, array in message.content["arrays"].items()}
    weights = loss_terms(config, np.reshape(own_rows(context), (-1, 2))).weight
    step = {
        name: (0.1 * (rng.normal(size=values.shape) - values) * np.mean(weights)).astype(np.float32)
        for name, values in model.items()
    }
    arrays = record(**{name: model[name] + step[name] for name in model})
    metrics = MetricRecord({"num-examples": 10 + context.node_id % 7, "loss": float(context.node_id)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    metrics = MetricRecord({"num-examples": context.node_id % 10, "accuracy": context.node_id / 1000})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


@app.query()
def query(message: Message, context: Context) -> Message:
    about = ConfigRecord({"name": f"site {context.node_id % 10}"})
    counts = MetricRecord({"rows": own_rows(context)})
    return Message(RecordDict({"client": about, "counts": counts}), reply_to=message)


def grid(nodes: list[int] = NODES) -> LocalGrid:
    return LocalGrid(app, {node: {} for node in nodes})


def reply(message: Message, arrays: ArrayRecord, examples: object = 10) -> Message:
    metrics = MetricRecord({} if examples is None else {"num-examples": examples})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def vector(arrays: ArrayRecord) -> np.ndarray:
    return np.concatenate([array.numpy().ravel() for array in arrays.values()])


# -- the same as Flower, and as Flower's users know it ---------------------------------------------------


def test_fedavg_is_flowers_fedavg() -> None:
    ours = FedAvg().start(grid(), start_model(), num_rounds=4)
    flowers = theirs.FedAvg().start(grid(), start_model(), num_rounds=4)
    assert vector(ours.arrays) == pytest.approx(vector(flowers.arrays), abs=1e-6)
    for t in range(1, 5):
        assert ours.train_metrics_clientapp[t]["loss"] == pytest.approx(
            flowers.train_metrics_clientapp[t]["loss"]
        )
        assert dict(ours.evaluate_metrics_clientapp[t]) == pytest.approx(
            dict(flowers.evaluate_metrics_clientapp[t])
        )


def test_start_calls_the_users_evaluation_as_flower_does() -> None:
    seen: list[tuple[int, float]] = []

    def evaluate(t: int, arrays: ArrayRecord) -> MetricRecord:
        seen.append((t, float(vector(arrays).sum())))
        return MetricRecord({"sum": seen[-1][1]})

    result = FedAvg().start(grid(), start_model(), num_rounds=2, evaluate_fn=evaluate)
    assert [t for t, _ in seen] == [0, 1, 2]
    assert {t: record["sum"] for t, record in result.evaluate_metrics_serverapp.items()} == dict(seen)


def test_the_users_config_reaches_the_clients() -> None:
    here = grid()
    FedAvg(fraction_evaluate=0).start(here, start_model(), 1, train_config=ConfigRecord({"lr": 0.5}))
    configs = [dict(message.content["config"]) for message in here.sent]
    assert configs == [{"lr": 0.5, "server-round": 1}] * 4


@pytest.mark.parametrize("name", ["FairFate", "FedVal"])
def test_a_rounds_numbers_are_in_flowers_result_and_log(name: str, lines: list[str]) -> None:
    strategy = {"FairFate": FairFate, "FedVal": FedVal}[name](validation(), "sp", fraction_evaluate=0)
    result = strategy.start(grid(), start_model(), num_rounds=2)
    metrics = result.train_metrics_clientapp[2]
    assert (metrics["clients"], metrics["dropped"], metrics["dropped-nodes"]) == (4, 0, [])
    counts = strategy.trace.validation[1]
    assert metrics["validation-sp"] == pytest.approx(float(strategy_metric("sp", counts)), nan_ok=True)
    if name == "FairFate":
        fair = [client.node for client in clients_of(strategy, 2, "fair")]
        assert metrics["fair-nodes"] == fair
        assert metrics["fair-clients"] == len(fair) == sum(strategy.trace.notes[1]["fair"])
        assert metrics["lambda"] == pytest.approx(0.1 * 1.05**2)
        assert metrics["beta"] == 0  # the last round
        assert any("lambda 0.1103" in line and "fair (" in line for line in lines)
    assert any("4 replies count, 0 dropped" in line for line in lines)


def test_strategies_by_name_have_the_guard_that_users_files_have() -> None:
    def settings(strategy: FlowerStrategy) -> dict[str, object]:
        return {key: value for key, value in strategy.spec.recorded.items() if key in ("min_mcc", "keep")}

    assert FairFate(validation(), "sp").spec == parse_spec("fair_fate", "sp", guard=True)
    assert settings(FairFate(validation())) == {"min_mcc": 0.05, "keep": 0.8}
    assert settings(FairFate(validation(), keep=0.0)) == {"min_mcc": 0.05, "keep": 0.0}
    assert settings(FairFate(validation(), protocol="published")) == {}
    assert settings(FairFate(None, test=validation(), validation_from="clients"))["keep"] == 0
    assert settings(FedVal(validation())) == {"min_mcc": 0.05}
    assert settings(FlowerStrategy("fair_fate", validation=validation())) == {}


def test_a_client_with_one_answer_for_everybody_is_not_fair_to_fair_fate_by_default() -> None:
    everybody = record(w=np.zeros(3, "f4"), b=np.full(1, 5, "f4"))
    outcomes = {}
    for name, options in {"guarded": {}, "paper": {"min_mcc": 0.0, "keep": 0.0}}.items():
        here = grid()
        here.tamper[901] = lambda message, _: reply(message, everybody)
        strategy = FairFate(validation(), "sp", fraction_evaluate=0, max_norm=1e6, **options)
        strategy.start(here, start_model(), num_rounds=1)
        outcomes[name] = {client.node: client.outcome for client in clients_of(strategy, 1)}[901]
    assert outcomes == {"guarded": "used", "paper": "fair"}


def strategy_metric(name: str, counts: np.ndarray) -> float:
    from fairfate.fairness.metrics import FAIRNESS

    return float(FAIRNESS[name](counts))


def test_scores_are_those_of_the_validation_rows() -> None:
    import fairlearn.metrics

    strategy = FairFate(validation(), "sp", fraction_evaluate=0)
    result = strategy.start(grid(), start_model(), num_rounds=3)
    measured = fairlearn.metrics.demographic_parity_ratio(
        LABEL, predict(result.arrays), sensitive_features=GROUP
    )
    assert result.train_metrics_clientapp[3]["validation-sp"] == pytest.approx(measured)
    clients = strategy.clients()
    assert clients["round"].tolist() == [1] * 4 + [2] * 4 + [3] * 4
    assert set(clients["outcome"]) <= {"fair", "used"}
    assert clients["sp"].between(0, 1).all()


def test_flowers_privacy_wrapper_can_be_put_around_it() -> None:
    inner = FairFate(validation(), num_rounds=2, fraction_evaluate=0)
    wrapped = theirs.DifferentialPrivacyServerSideFixedClipping(inner, 0.01, 1.0, num_sampled_clients=4)
    wrapped.start(grid(), start_model(), num_rounds=2)
    assert [len(clients_of(inner, t)) for t in (1, 2)] == [4, 4]
    with pytest.raises(InputError, match="checkpoint must be left out when the strategy is not run by its"):
        theirs.DifferentialPrivacyServerSideFixedClipping(
            FairFate(validation(), num_rounds=1, checkpoint="x"), 0.01, 1.0, num_sampled_clients=4
        ).start(grid(), start_model(), num_rounds=1)
    with pytest.raises(InputError, match="num_rounds must be given"):
        theirs.DifferentialPrivacyServerSideFixedClipping(
            FairFate(validation()), 0.01, 1.0, num_sampled_clients=4
        ).start(grid(), start_model(), num_rounds=1)


@pytest.mark.parametrize("spec", ["fair_fate", "fedval", "fedmom", "feddemon", "fedavg", "fedavg_gr"])
def test_every_strategy_is_what_its_pure_functions_say(spec: str) -> None:
    """The global model of every round, from the functions of the library and the messages on the wire."""
    here, replies = grid(), []
    for node in NODES:
        here.tamper[node] = lambda message, honest: replies.append((message, honest)) or honest
    strategy = flower_strategy(spec, validation=validation(), fraction_evaluate=0, num_rounds=3)
    result = strategy.start(here, start_model())
    pure = parse_spec(spec, "eqo").build(Setup(3))
    state = pure.init(vector(start_model()))
    for t in range(1, 4):
        of_round = [
            (m, r) for m, r in replies if m.content["config"].get("server-round") == t and r.has_content()
        ]
        sent = vector(of_round[0][0].content["arrays"])
        assert sent.tolist() == state.params.astype(np.float32).tolist()
        names = lambda node: (f"site {node % 10}" if spec == "fedavg_gr" else str(node), node)  # noqa: E731
        ordered = sorted(of_round, key=lambda pair: names(pair[0].metadata.dst_node_id))
        models = [r.content["arrays"] for _, r in ordered]
        rows = validation()
        state = pure.aggregate(
            state,
            Cohort(
                t,
                np.stack([vector(model) - sent for model in models]),
                np.array([r.content["metrics"]["num-examples"] for _, r in ordered]),
                np.stack([rows.counts(model) for model in models]),
                rows.counts(of_round[0][0].content["arrays"]),
            ),
        )
    assert vector(result.arrays) == pytest.approx(state.params, abs=1e-6)


def test_what_a_strategy_must_know_is_asked_for_before_anything_runs() -> None:
    with pytest.raises(InputError, match="learning_rate must be given for qffl"):
        FlowerStrategy("qffl", validation=validation())
    with pytest.raises(InputError, match="learning_rate must be > 0, got 0"):
        FlowerStrategy("qffl", validation=validation(), learning_rate=0)
    told = flower_strategy("qffl", validation=validation(), learning_rate=0.5, fraction_evaluate=0)
    assert told.spec.name == "qffl"
    with pytest.raises(InputError, match="server_step must be run in the ready app"):
        FlowerStrategy("server_step", validation=validation())
    with pytest.raises(InputError, match="metric 'flip' must be run in the ready app, where the server sees"):
        FlowerStrategy("fedval:metric=flip,min_mcc=0.1", validation=validation())
    with pytest.raises(InputError, match="validation must be given for server_step"):
        FlowerStrategy("server_step")


# -- every reply is checked ------------------------------------------------------------------------------

GOOD = {"w": np.ones(3, dtype=np.float32), "b": np.ones(1, dtype=np.float32)}
BAD: dict[str, tuple[Callable[[Message, Message], Message | None], str]] = {
    "error": (lambda m, _: Message(Error(2, "boom"), reply_to=m), "error 2: boom"),
    "silence": (lambda m, _: None, "no reply within 9 s"),
    "nothing in it": (lambda m, _: Message(RecordDict(), reply_to=m), "0 ArrayRecords and 0 MetricRecords"),
    "no arrays": (lambda m, _: reply(m, ArrayRecord()), "arrays missing: w, b"),
    "missing array": (lambda m, _: reply(m, record(w=GOOD["w"])), "arrays missing: b"),
    "unknown array": (lambda m, _: reply(m, record(**GOOD, c=[1.0])), "unknown arrays: c"),
    "shape": (lambda m, _: reply(m, record(**{**GOOD, "w": np.ones(4, "f4")})), "has shape (4,)"),
    "type": (lambda m, _: reply(m, record(**{**GOOD, "w": np.ones(3)})), "has type float64"),
    "text": (lambda m, _: reply(m, record(**{**GOOD, "w": np.array(["a"] * 3)})), "has type <U1"),
    "nan": (lambda m, _: reply(m, record(**{**GOOD, "b": np.float32([np.nan])})), "NaN or infinity"),
    "infinite": (lambda m, _: reply(m, record(**{**GOOD, "b": np.float32([np.inf])})), "NaN or infinity"),
    "huge": (
        lambda m, _: reply(m, record(**{**GOOD, "b": np.float32([1e30])})),
        "norm 1e+30, over the limit",
    ),
    "no count": (lambda m, _: reply(m, record(**GOOD), None), "'num-examples' is None"),
    "no examples": (lambda m, _: reply(m, record(**GOOD), 0), "'num-examples' is 0"),
    "negative": (lambda m, _: reply(m, record(**GOOD), -5), "'num-examples' is -5"),
    "nan examples": (lambda m, _: reply(m, record(**GOOD), float("nan")), "'num-examples' is nan"),
    "list of examples": (lambda m, _: reply(m, record(**GOOD), [3]), r"'num-examples' is [3]"),
    "endless": (lambda m, _: reply(m, record(**GOOD), 1e300), "'num-examples' is 1e+300"),
    "strange storage": (
        lambda m, _: reply(
            m, ArrayRecord({"w": Array("float32", (3,), "x", Array(GOOD["w"]).data), "b": Array(GOOD["b"])})
        ),
        "array 'w' is stored as 'x'",
    ),
    "garbage": (
        lambda m, _: reply(
            m, ArrayRecord({"w": Array("float32", (3,), "numpy.ndarray", b"junk"), "b": Array(GOOD["b"])})
        ),
        "array 'w' cannot be read",
    ),
    "cut short": (
        lambda m, _: reply(
            m,
            ArrayRecord(
                {
                    "w": Array("float32", (3,), "numpy.ndarray", Array(GOOD["w"]).data[:-4]),
                    "b": Array(GOOD["b"]),
                }
            ),
        ),
        "array 'w' has 8 bytes instead of 12",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_reply_is_dropped_named_and_counted(kind: str, lines: list[str]) -> None:
    """The run goes on, and its model is that of a federation in which the node did not reply."""
    tamper, reason = BAD[kind]
    here, silent = grid(), grid()
    here.tamper[17] = tamper
    silent.tamper[17] = lambda m, _: None
    strategy = FairFate(validation(), fraction_evaluate=0, max_norm=1e6)
    result = strategy.start(here, start_model(), num_rounds=2, timeout=9)
    without = FairFate(validation(), fraction_evaluate=0).start(silent, start_model(), num_rounds=2)
    assert vector(result.arrays).tolist() == vector(without.arrays).tolist()
    for t in (1, 2):
        assert result.train_metrics_clientapp[t]["dropped"] == 1
        assert result.train_metrics_clientapp[t]["dropped-nodes"] == [17]
        assert result.train_metrics_clientapp[t]["clients"] == 3
    (gone,) = dropped(strategy)
    assert (gone.node, gone.outcome) == (17, "dropped")
    assert reason in gone.reason
    assert any("dropped 17" in line and reason in line for line in lines)
    assert any("17: dropped 2 times" in line for line in lines)


def test_a_round_whose_model_would_be_infinite_is_discarded(lines: list[str]) -> None:
    @register("bursting", "bursts in its second round", "this test")
    def _build(setup: Setup) -> Strategy:
        def aggregate(state: ModelState, cohort: Cohort) -> ModelState:
            size = np.float32(3e38) if cohort.round == 2 else np.float32(1)
            return ModelState(state.params + size * size * cohort.deltas.mean(axis=0))

        return Strategy(ModelState, aggregate)

    here = grid()
    strategy = flower_strategy("bursting", fraction_evaluate=0)
    result = strategy.start(here, start_model(), num_rounds=3)
    sent = {m.content["config"]["server-round"]: vector(m.content["arrays"]) for m in here.sent}
    assert sent[2].tolist() == sent[3].tolist()
    assert np.isfinite(vector(result.arrays)).all()
    assert result.train_metrics_clientapp[2]["dropped"] == 4
    reasons = {client.reason for client in clients_of(strategy, 2)}
    assert reasons == {"the new model would not be finite"}
    assert any("dropped 17: the new model would not be finite" in line for line in lines)


def test_a_round_without_a_good_reply_keeps_the_model(lines: list[str]) -> None:
    here = grid()
    strategy = FairFate(validation(), fraction_evaluate=0)

    def broken_in_round_two(message: Message, honest: Message) -> Message | None:
        return None if message.content["config"]["server-round"] == 2 else honest

    for node in NODES:
        here.tamper[node] = broken_in_round_two
    result = strategy.start(here, start_model(), num_rounds=3)
    sent = {m.content["config"]["server-round"]: vector(m.content["arrays"]) for m in here.sent}
    assert sent[2].tolist() == sent[3].tolist() != sent[1].tolist()
    assert result.train_metrics_clientapp[2]["dropped"] == 4
    assert any("no usable reply in round 2" in line for line in lines)
    assert np.isnan(strategy.rounds()["lam"].tolist()[1])


def test_a_client_that_lies_about_its_examples_is_cut_to_the_limit(lines: list[str]) -> None:
    def lie(message: Message, honest: Message) -> Message:
        return reply(message, honest.content["arrays"], 10**12)

    here, honest = grid([17, 58]), grid([17, 58])
    here.tamper[17] = lie
    honest.tamper[17] = lambda m, h: reply(m, h.content["arrays"], 20)
    strategy = FedAvg(fraction_evaluate=0, max_examples=20)
    capped = strategy.start(here, start_model(), num_rounds=1)
    fair = FedAvg(fraction_evaluate=0).start(honest, start_model(), num_rounds=1)
    assert vector(capped.arrays).tolist() == vector(fair.arrays).tolist()
    assert strategy.clients().set_index("node").loc[17, "reason"] == "example count cut to the limit"
    assert any("used 17: example count cut to the limit" in line for line in lines)


def test_a_model_that_predicts_nan_is_dropped() -> None:
    def shaky(arrays: ArrayRecord) -> np.ndarray:
        return np.full(60, np.nan) if arrays["b"].numpy()[0] > 5 else predict(arrays)

    here = grid()
    here.tamper[333] = lambda m, _: reply(m, record(w=GOOD["w"], b=np.float32([9])))
    strategy = FairFate(Validation(shaky, LABEL, GROUP), fraction_evaluate=0)
    strategy.start(here, start_model(), num_rounds=1)
    assert [(c.node, c.reason) for c in dropped(strategy)] == [(333, "predictions that are NaN")]
    assert sorted(c.node for c in clients_of(strategy, 1, "used", "fair")) == [17, 58, 901]


def test_a_model_on_which_predictions_fail_is_dropped() -> None:
    def fragile(arrays: ArrayRecord) -> np.ndarray:
        if arrays["b"].numpy()[0] > 5:
            raise OverflowError("too large")
        return predict(arrays)

    here = grid()
    here.tamper[333] = lambda m, _: reply(m, record(w=GOOD["w"], b=np.float32([9])))
    strategy = FairFate(Validation(fragile, LABEL, GROUP), fraction_evaluate=0)
    strategy.start(here, start_model(), num_rounds=2)
    reasons = [(c.node, c.reason) for c in dropped(strategy)]
    assert reasons == [(333, "predictions fail: OverflowError: too large")]


def test_arrays_are_scored_in_the_models_order_whatever_the_replys() -> None:
    def by_position(arrays: ArrayRecord) -> np.ndarray:
        w, b = arrays.to_numpy_ndarrays()
        return X @ w + b > 0

    here, straight = grid(), grid()
    here.tamper[333] = lambda m, h: reply(
        m,
        ArrayRecord(dict(reversed(list(h.content["arrays"].items())))),
        h.content["metrics"]["num-examples"],
    )
    results = [
        FairFate(Validation(by_position, LABEL, GROUP), fraction_evaluate=0).start(g, start_model(), 2)
        for g in (here, straight)
    ]
    assert vector(results[0].arrays).tolist() == vector(results[1].arrays).tolist()


def test_evaluations_are_matched_with_what_was_asked_and_limited(lines: list[str]) -> None:
    def lie(message: Message, honest: Message) -> Message:
        if message.metadata.message_type != "evaluate":
            return honest
        metrics = MetricRecord({"num-examples": 10**9, "accuracy": 0.0})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    here = grid([17, 58])
    here.tamper[17] = lie
    strategy = FedAvg(max_examples=8)
    result = strategy.start(here, start_model(), num_rounds=1)
    assert result.evaluate_metrics_clientapp[1]["accuracy"] == pytest.approx(0.058 / 2)
    here.tamper[17] = lambda m, h: None if m.metadata.message_type == "evaluate" else h
    FedAvg().start(here, start_model(), num_rounds=1, timeout=7)
    assert any("17 could not evaluate: no reply within 7 s" in line for line in lines)
    messages = list(strategy.configure_evaluate(1, start_model(), ConfigRecord(), here))
    replies = list(here.send_and_receive(messages))
    stranger = lie(messages[0], replies[0])
    stranger.metadata.__dict__["_reply_to_message_id"] = "something else"
    assert strategy.aggregate_evaluate(1, [*replies, stranger])["accuracy"] == pytest.approx(0.058)


def test_replies_of_strangers_and_second_replies_do_not_count() -> None:
    here = grid()
    strategy = FedAvg(num_rounds=1)
    messages = list(strategy.configure_train(1, start_model(), ConfigRecord(), here))
    replies = list(here.send_and_receive(messages))
    stranger = reply(messages[0], record(**GOOD))
    stranger.metadata.__dict__["_reply_to_message_id"] = "something else"
    twice = reply(messages[0], record(**GOOD))
    _, metrics = strategy.aggregate_train(1, [*replies, twice, stranger])
    assert (metrics["clients"], metrics["dropped"]) == (4, 2)
    reasons = {client.reason for client in dropped(strategy)}
    assert reasons == {"reply to nothing that was asked", "more than one reply"}


# -- determinism -----------------------------------------------------------------------------------------


def test_neither_the_order_of_replies_nor_that_of_nodes_matters() -> None:
    results = []
    for order in (NODES, NODES[::-1]):
        here = LocalGrid(app, {node: {} for node in order})
        here._order.seed(len(results))
        result = FairFate(validation(), per_round=3, fraction_evaluate=0).start(here, start_model(), 5)
        results.append(vector(result.arrays).tolist())
    assert results[0] == results[1]


def test_the_seed_decides_who_is_asked() -> None:
    def asked(seed: int) -> list[int]:
        here = grid()
        FedAvg(per_round=2, seed=seed, fraction_evaluate=0).start(here, start_model(), 6)
        return [message.metadata.dst_node_id for message in here.sent]

    assert asked(1) == asked(1) != asked(2)


def test_fractions_choose_as_many_as_flowers_fedavg() -> None:
    many = list(range(1, 21))
    for fraction, expected in ((0.25, 5), (0.0, 0), (0.01, 2), (1.0, 20)):
        here = grid(many)
        FedAvg(fraction_train=fraction, fraction_evaluate=0).start(here, start_model(), 1)
        assert len(here.sent) == expected


# -- clients that are late, gone, or too few -------------------------------------------------------------


def test_too_few_clients_are_waited_for_but_not_forever(lines: list[str]) -> None:
    strategy = FedAvg(min_available_nodes=5, max_wait=0.3)
    with pytest.raises(InputError, match=r"only 4 of 5 clients came within 0\.3 s"):
        strategy.start(grid(), start_model(), num_rounds=1)
    assert any("Waiting for 1 more site (4 of 5 are there: 17, 333, 58, 901; 0 s left)" in x for x in lines)


def test_waiting_server_logs_repeatedly_for_whom_and_why(lines: list[str]) -> None:
    here = grid()
    here.tamper[17] = answering(client={"name": "east", "problem": "column 'age' must be in the file"})
    here.tamper[333] = lambda m, h: Message(Error(2, "boom"), reply_to=m)
    strategy = FedAvg(ask_clients=True, min_available_nodes=4, max_wait=0.4)
    strategy.roster.interval = 0.1
    with pytest.raises(InputError, match=r"only 2 of 4 clients came within 0\.4 s"):
        strategy.start(here, start_model(), num_rounds=1)
    waiting = [line for line in lines if line.startswith("Waiting")]
    assert 3 <= len(waiting) <= 6
    assert set(waiting) == {
        "Waiting for 2 more sites (2 of 4 are there: site 1, site 8;"
        " refused: east: column 'age' must be in the file; no answer: node 333; 0 s left)"
    }


def test_a_line_every_half_minute_counts_down_and_one_more_when_a_client_comes(
    lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    here = grid([17, 58])
    here.offline = {17, 58}

    def sleep(seconds: float) -> None:
        clock[0] += seconds
        here.offline = set() if clock[0] >= 95 else {17} if clock[0] >= 75 else {17, 58}

    monkeypatch.setattr("fairfate.flower.roster.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("fairfate.flower.roster.time.sleep", sleep)
    assert len(FedAvg(max_wait=600).roster.clients(here, 2)) == 2
    assert lines == [
        "Waiting for 2 more sites (0 of 2 are there; 600 s left)",
        "Waiting for 2 more sites (0 of 2 are there; 570 s left)",
        "Waiting for 2 more sites (0 of 2 are there; 540 s left)",
        "Waiting for 1 more site (1 of 2 are there: 58; 525 s left)",
    ]


def test_client_that_disappears_and_returns_takes_part_again() -> None:
    here = grid()
    strategy = FedAvg(fraction_evaluate=0)

    def presence(t: int, arrays: ArrayRecord) -> None:
        here.offline = {17} if t in (1, 2) else set()

    strategy.start(here, start_model(), num_rounds=4, evaluate_fn=presence)
    assert count_replies(strategy) == [4, 3, 3, 4]


def test_the_timeout_is_reported(lines: list[str]) -> None:
    FedAvg().start(grid(), start_model(), num_rounds=1)
    assert any("waits up to 3600 s" in line for line in lines)


# -- asking clients who they are -------------------------------------------------------------------------


def test_clients_are_asked_once_and_sorted_by_name() -> None:
    here = grid()
    strategy = FedAvg(ask_clients=True, fraction_evaluate=0, query_config=ConfigRecord({"hello": "x"}))
    strategy.start(here, start_model(), num_rounds=3)
    queries = [message for message in here.sent if message.metadata.message_type == "query"]
    assert sorted(message.metadata.dst_node_id for message in queries) == sorted(NODES)
    assert dict(queries[0].content["config"]) == {"hello": "x", "wants-rows": False}
    assert [client.name for client in clients_of(strategy, 1)] == [
        "site 1",
        "site 3",
        "site 7",
        "site 8",
    ]
    trains = [message for message in here.sent if message.metadata.message_type == "train"][:4]
    assert {m.metadata.dst_node_id: m.content["config"]["client"] for m in trains} == {
        901: 0,
        333: 1,
        17: 2,
        58: 3,
    }


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (None, "got None"),
        ([1, 2, 3], "got [1, 2, 3]"),
        ([1.5, 2.0, 3.0, 4.0, 1.0, 1.0], "got [1.5"),
        ([1, -2, 3, 4, 1, 1], "got [1, -2"),
        ([0, 0, 0, 0, 0, 0], "got [0"),
        ([2**52, 2**52, 2**52, 1, 1, 1], "got [4503599627370496"),
    ],
)
def test_counts_that_make_no_sense_keep_a_client_out(rows: object, said: str, lines: list[str]) -> None:
    def lie(message: Message, honest: Message) -> Message:
        if message.metadata.message_type != "query":
            return honest
        counts = MetricRecord({} if rows is None else {"rows": rows})
        about = honest.content["client"]
        return Message(RecordDict({"client": about, "counts": counts}), reply_to=message)

    here = grid()
    here.tamper[17] = lie
    strategy = FedAvgGR(validation(), fraction_evaluate=0)
    strategy.start(here, start_model(), num_rounds=2)
    assert count_replies(strategy) == [3, 3]
    assert any("site 7 (node 17) is excluded: 'rows' must be" in x and said in x for x in lines)
    refused = strategy.clients().query("outcome == 'refused'")
    assert refused[["round", "name"]].values.tolist() == [[1, "site 7"], [2, "site 7"]]


def answering(**about: object):
    """A node that answers the query in its own way."""

    def tamper(message: Message, honest: Message) -> Message:
        if message.metadata.message_type != "query":
            return honest
        records = {"client": ConfigRecord({**honest.content["client"], **about.get("client", {})})}
        records["counts"] = MetricRecord(about.get("counts") or dict(honest.content["counts"]))
        return Message(RecordDict(records), reply_to=message)

    return tamper


def test_a_client_that_counts_other_groups_is_excluded(lines: list[str]) -> None:
    here = grid()
    here.tamper[17] = answering(counts={"rows": [1, 2, 3, 4]})
    strategy = FedAvgGR(validation(), fraction_evaluate=0)
    strategy.start(here, start_model(), num_rounds=2)
    assert count_replies(strategy) == [3, 3]
    said = "site 7 (node 17) is excluded: 'rows' must be its rows by label in each of 3 groups"
    assert sum(line.startswith(said) for line in lines) == 1
    with pytest.raises(InputError, match="validation must be given for fedavg_gr, which counts groups"):
        FlowerStrategy("fedavg_gr")


def test_client_that_trains_on_other_rows_than_it_reported_is_dropped() -> None:
    here = grid()
    here.tamper[17] = answering(counts={"rows": [2**51, 1, 1, 2**51, 1, 1]})
    strategy = FedAvgGR(validation(), fraction_evaluate=0)
    strategy.start(here, start_model(), num_rounds=1)
    (gone,) = dropped(strategy)
    assert gone.node == 17
    assert "examples, but it had reported" in gone.reason


def test_weights_from_all_clients_counts_never_change() -> None:
    def told(counts: str | None) -> set[tuple[float, ...]]:
        here = grid()
        strategy = FedAvgGR(validation(), counts=counts, per_round=2, fraction_evaluate=0)
        strategy.start(here, start_model(), num_rounds=5)
        sent = [m.content["config"] for m in here.sent if m.metadata.message_type == "train"]
        return {tuple(config["broadcast"]) for config in sent}

    assert len(told("once")) == 1
    assert len(told(None)) > 1


def test_absurd_counts_neither_overflow_nor_outweigh_the_limit() -> None:
    def weights(rows: list[int], limit: float | None) -> list[float]:
        here = grid([17, 58])
        here.tamper[17] = answering(counts={"rows": rows})
        strategy = FedAvgGR(validation(), fraction_evaluate=0, max_examples=limit)
        strategy.start(here, start_model(), num_rounds=1)
        sent = [m for m in here.sent if m.metadata.message_type == "train"]
        return list(sent[0].content["config"]["broadcast"])

    assert min(weights([2**51, 1, 1, 2**51, 1, 1], 16)) > 0
    assert max(weights([2**51, 1, 1, 2**51, 1, 1], 16)) < 10
    huge = weights([3 * 10**9, 2 * 10**9, 10**9, 2 * 10**9, 10**9, 10**9], None)
    assert min(huge) > 0
    assert huge == pytest.approx(weights([300, 200, 100, 200, 100, 100], None), rel=0.1)
    assert weights([6 * 10**12, 2 * 10**12, 2 * 10**12, 10**12, 10**12, 10**12], 13) == pytest.approx(
        weights([6, 2, 2, 1, 1, 1], 13)
    )


def test_names_and_reasons_are_one_line_and_not_too_long(lines: list[str]) -> None:
    here = grid()
    here.tamper[17] = answering(client={"name": "evil\nINFO: all is well" + "x" * 1000})
    here.tamper[58] = answering(client={"problem": "a\nb\x1b[31m" + "y" * 1000})
    broken = lambda m, h: Message(Error(2, "z\n" * 1000), reply_to=m)  # noqa: E731
    here.tamper[333] = lambda m, h: h if m.metadata.message_type == "query" else broken(m, h)
    strategy = FedAvg(ask_clients=True, fraction_evaluate=0)
    strategy.start(here, start_model(), num_rounds=1)
    assert all("\n" not in line and len(line) < 500 for line in lines)
    names = [client.name for client in clients_of(strategy, 1)]
    assert all(len(name) <= 60 for name in names)
    assert strategy.clients()["reason"].str.len().max() <= 300


def test_a_client_that_was_refused_is_asked_again_while_the_server_waits(
    lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairfate.flower.roster.PAUSE", 0.01)
    here, times = grid([17, 58]), []

    def mended_at_last(message: Message, honest: Message) -> Message:
        times.append(message.metadata.message_type)
        return honest if len(times) > 2 else answering(client={"problem": "a gap"})(message, honest)

    here.tamper[17] = mended_at_last
    strategy = FedAvg(ask_clients=True, fraction_evaluate=0, max_wait=20)
    strategy.start(here, start_model(), num_rounds=1)
    assert times == ["query", "query", "query", "train"]
    assert count_replies(strategy) == [2]
    assert not strategy.roster.refused


def test_collapsed_model_is_flagged(lines: list[str]) -> None:
    rows = Validation(lambda arrays: np.ones(60), LABEL, GROUP)
    FedAvg(validation=rows, fraction_evaluate=0).start(grid(), start_model(), num_rounds=1)
    assert any(
        "The model has collapsed: it gives nearly everybody the same answer (MCC " in line for line in lines
    )


def test_a_client_that_was_refused_is_asked_again_when_it_comes_back() -> None:
    here = grid()
    here.tamper[17] = answering(client={"problem": "a column is missing"})
    strategy = FedAvg(ask_clients=True, fraction_evaluate=0)

    def mend(t: int, arrays: ArrayRecord) -> None:
        here.offline = {17} if t == 1 else set()
        if t == 2:
            here.tamper.clear()

    strategy.start(here, start_model(), num_rounds=4, evaluate_fn=mend)
    assert count_replies(strategy) == [3, 3, 4, 4]


def test_a_client_that_cannot_answer_is_asked_again_after_a_pause(
    lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("fairfate.flower.roster.time.monotonic", lambda: clock[0])
    here = grid()
    here.tamper[17] = lambda m, h: (
        Message(Error(2, "boom"), reply_to=m) if m.metadata.message_type == "query" else h
    )
    strategy = FedAvg(ask_clients=True, fraction_evaluate=0)

    def later(t: int, arrays: ArrayRecord) -> None:
        clock[0] = t * 4.0
        if t == 5:
            here.tamper.clear()

    strategy.start(here, start_model(), num_rounds=8, evaluate_fn=later)
    pauses = [line for line in lines if "did not give its name" in line]
    assert [line.partition("next try in ")[2] for line in pauses] == [
        "5 s): error 2: boom",
        "10 s): error 2: boom",
    ]
    assert count_replies(strategy) == [3] * 5 + [4] * 3


def test_two_clients_with_one_name_both_count_with_a_warning(lines: list[str]) -> None:
    here = grid([17, 27, 58])
    strategy = FedAvg(ask_clients=True, fraction_evaluate=0)
    strategy.start(here, start_model(), num_rounds=1)
    assert [client.node for client in clients_of(strategy, 1)] == [17, 27, 58]
    assert any("2 nodes have the name 'site 7'" in line for line in lines)


# -- resume ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["fair_fate", "fedmom", "fedval", "fedavg_gr"])
@pytest.mark.parametrize("last", [1, 3])
def test_an_interrupted_run_ends_as_one_that_was_never_stopped(spec: str, last: int, tmp_path: Path) -> None:
    def make(checkpoint: Path | None) -> FlowerStrategy:
        return flower_strategy(
            spec, num_rounds=5, validation=validation(), per_round=3, checkpoint=checkpoint, seed=4
        )

    whole = make(None)
    expected = whole.start(grid(), start_model())

    def die(message: Message, honest: Message) -> Message:
        if message.content.get("config", {}).get("server-round") == last + 1:
            raise Killed
        return honest

    file, dying = tmp_path / "deep" / "run.safetensors", grid()
    dying.tamper = dict.fromkeys(NODES, die)
    with pytest.raises(Killed):
        make(file).start(dying, start_model())
    again = make(file)
    here = grid()
    result = again.start(here, start_model())
    first = min(m.content["config"]["server-round"] for m in here.sent if m.metadata.message_type == "train")
    assert first == last + 1
    assert vector(result.arrays).tolist() == vector(expected.arrays).tolist()
    assert again.rounds().equals(whole.rounds())
    assert again.clients().equals(whole.clients())
    for name in ("train_metrics_clientapp", "evaluate_metrics_clientapp"):
        assert {t: dict(r) for t, r in getattr(result, name).items()} == {
            t: dict(r) for t, r in getattr(expected, name).items()
        }
    finished = make(file)
    silent = grid()
    assert vector(finished.start(silent, start_model()).arrays).tolist() == vector(expected.arrays).tolist()
    assert silent.sent == []
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_round_is_safe_before_its_evaluation(tmp_path: Path, lines: list[str]) -> None:
    file = tmp_path / "run.safetensors"

    def fail(t: int, arrays: ArrayRecord) -> None:
        if t == 2:
            raise Killed

    with pytest.raises(Killed):
        FedAvg(checkpoint=file, fraction_evaluate=0, num_rounds=3).start(
            grid(), start_model(), evaluate_fn=fail
        )
    here = grid()
    again = FedAvg(checkpoint=file, num_rounds=3, min_evaluate_nodes=5, max_wait=0.2)
    again.start(here, start_model())
    assert {m.content["config"]["server-round"] for m in here.sent} == {3}
    assert len(again.asked) == 3
    assert any("No evaluation: only " in line for line in lines)


def test_an_evaluation_that_was_missed_is_made_up_for(tmp_path: Path) -> None:
    file, seen = tmp_path / "run.safetensors", []

    def evaluate(t: int, arrays: ArrayRecord) -> MetricRecord:
        seen.append(t)
        if seen == [0, 1, 2]:
            raise Killed
        return MetricRecord({"round": t})

    with pytest.raises(Killed):
        FedAvg(checkpoint=file, num_rounds=4).start(grid(), start_model(), evaluate_fn=evaluate)
    result = FedAvg(checkpoint=file, num_rounds=4).start(grid(), start_model(), evaluate_fn=evaluate)
    assert {t: r["round"] for t, r in result.evaluate_metrics_serverapp.items()} == {t: t for t in range(5)}
    assert sorted(result.evaluate_metrics_clientapp) == [1, 2, 3, 4]
    assert seen == [0, 1, 2, 2, 3, 4]


def test_a_clients_number_does_not_depend_on_who_is_there(tmp_path: Path) -> None:
    """Also not after an interruption: batches, and so models, depend on it."""
    file = tmp_path / "run.safetensors"

    def numbers(here: LocalGrid) -> dict[int, set[int]]:
        trained = [m for m in here.sent if m.metadata.message_type == "train"]
        return {
            node: {m.content["config"]["client"] for m in trained if m.metadata.dst_node_id == node}
            for node in here.contexts
        }

    def make() -> FlowerStrategy:
        return FedAvg(ask_clients=True, checkpoint=file, num_rounds=4, fraction_evaluate=0)

    def die(message: Message, honest: Message) -> Message:
        if message.content.get("config", {}).get("server-round") == 3:
            raise Killed
        return honest

    first, second = grid(), grid()
    first.tamper = dict.fromkeys(NODES, die)
    with pytest.raises(Killed):
        make().start(first, start_model())
    second.offline = {901, 333}
    make().start(second, start_model())
    assert numbers(first) == {901: {0}, 17: {2}, 333: {1}, 58: {3}}
    assert numbers(second) == {901: set(), 17: {2}, 333: set(), 58: {3}}


def test_a_checkpoint_of_many_rounds_is_written_quickly(tmp_path: Path) -> None:
    """After every round, all rounds are written: numbers as they are, without a text for each."""
    many = list(range(1, 41))
    strategy = FairFate(validation(), num_rounds=60, fraction_evaluate=0, checkpoint=tmp_path / "run")
    strategy.start(grid(many), start_model())
    saved = read_checkpoint(tmp_path / "run")
    assert saved.round == 60
    assert len(saved.arrays["state.recorders.0.clients.round"]) == 60 * 40
    began = time.process_time()
    strategy._recorder.pack()
    assert time.process_time() - began < 0.1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"per_round": 2}, "another clients"),
        ({"max_norm": 3.0}, "another limits"),
        ({"averaged": ()}, "another averaged"),
        ({"test": Validation(lambda a: LABEL, LABEL, GROUP)}, "another rows"),
        ({"seed": 2}, "another seed: 1 instead of 2"),
        ({"num_rounds": 7}, "another num_rounds: 3 instead of 7"),
        ({"strategy": "fedmom:beta=0.5"}, "another strategy"),
        ({"protocol": "published"}, "another protocol"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(change: dict, said: str, tmp_path: Path) -> None:
    file = tmp_path / "run.safetensors"
    common = {"strategy": "fedmom", "num_rounds": 3, "checkpoint": file, "fraction_evaluate": 0}
    flower_strategy(**common).start(grid(), start_model())
    before = file.read_bytes()
    with pytest.raises(InputError, match=said):
        flower_strategy(**{**common, **change}).start(grid(), start_model())
    with pytest.raises(InputError, match="another arrays"):
        flower_strategy(**common).start(grid(), record(w=np.zeros(5, "f4")))
    assert file.read_bytes() == before
    file.write_bytes(before[:50])
    with pytest.raises(InputError, match="checkpoint must be a file that an earlier run has written"):
        flower_strategy(**common).start(grid(), start_model())


# -- models and settings of all kinds --------------------------------------------------------------------


def test_whole_numbers_and_halves_and_doubles_keep_their_types() -> None:
    model = record(
        steps=np.array(7, dtype=np.int64),
        half=np.ones((2, 2), dtype=np.float16),
        double=np.array([1.0, 2.0]),
        mask=np.array([True, False]),
    )
    layout = Layout.from_record(model)
    assert layout.dtype == "float64"
    again = layout.record(layout.flat(model))
    assert {name: (a.dtype, a.shape) for name, a in again.items()} == {
        name: (a.dtype, a.shape) for name, a in model.items()
    }
    assert all(np.array_equal(again[name].numpy(), model[name].numpy()) for name in model)
    assert Layout.from_record(record(a=np.ones(2, "f4"), steps=np.array([3]))).dtype == "float32"
    assert Layout.from_record(record(a=np.ones(2, "f4"), steps=np.array([2**30]))).dtype == "float64"


def batch_norm_model() -> ArrayRecord:
    return record(
        **{
            "norm.weight": np.ones(2, "f4"),
            "norm.running_var": np.full(2, 0.1, "f4"),
            "norm.num_batches_tracked": np.array(0),
            "out.weight": np.zeros(2, "f4"),
        }
    )


def batch_norm_reply(message: Message, _: Message) -> Message:
    """Every weight up by one; variance down to nothing; ten more batches."""
    sent = {name: array.numpy() for name, array in message.content["arrays"].items()}
    node = message.metadata.dst_node_id
    new = {
        "norm.weight": sent["norm.weight"] + np.float32(1),
        "norm.running_var": sent["norm.running_var"] * np.float32(0.01),
        "norm.num_batches_tracked": sent["norm.num_batches_tracked"] + 10 * node,
        "out.weight": sent["out.weight"] + np.float32(1),
    }
    return reply(message, record(**new), node)


def test_running_figures_are_averaged_and_not_moved_by_momentum(tmp_path: Path) -> None:
    def run(rounds: int, strategy: FlowerStrategy, model: ArrayRecord) -> ArrayRecord:
        here = grid([1, 3])
        here.tamper = {1: batch_norm_reply, 3: batch_norm_reply}
        return strategy.start(here, model, num_rounds=rounds).arrays

    moved = run(4, FedMom(beta=0.9, fraction_evaluate=0, checkpoint=tmp_path / "c"), batch_norm_model())
    assert list(moved) == list(batch_norm_model())  # in the model's own order
    assert moved["norm.running_var"].numpy() == pytest.approx(0.1 * 0.01**4)
    assert moved["norm.running_var"].dtype == "float32"
    assert moved["norm.num_batches_tracked"].numpy() == 4 * 25  # (1 * 10 + 3 * 30) / 4 a round
    assert moved["norm.num_batches_tracked"].dtype == "int64"
    assert moved["out.weight"].numpy() == pytest.approx([sum(1 - 0.9**t for t in range(1, 5))] * 2, rel=1e-5)
    again = FedMom(beta=0.9, fraction_evaluate=0, checkpoint=tmp_path / "c")
    assert vector(run(4, again, batch_norm_model())).tolist() == vector(moved).tolist()
    negative = run(4, FedMom(beta=0.9, fraction_evaluate=0, averaged=()), batch_norm_model())
    assert negative["norm.running_var"].numpy() != pytest.approx(0.1 * 0.01**4, rel=0.1)


def test_whole_numbers_beyond_reason_are_dropped() -> None:
    spoilt = {name: array.numpy() for name, array in batch_norm_model().items()}
    spoilt["norm.num_batches_tracked"] = np.array(2**63 - 1)
    here = grid([1, 3])
    here.tamper = {1: batch_norm_reply, 3: lambda m, _: reply(m, record(**spoilt))}
    strategy = FedAvg(fraction_evaluate=0)
    result = strategy.start(here, batch_norm_model(), num_rounds=1)
    (gone,) = dropped(strategy)
    assert gone.reason == "array 'norm.num_batches_tracked' has whole numbers beyond 2**53"
    assert result.arrays["norm.num_batches_tracked"].numpy() == 10


def test_a_limit_on_the_norm_does_not_count_batches() -> None:
    here = grid([1, 3])
    here.tamper = {1: batch_norm_reply, 3: batch_norm_reply}
    strategy = FedAvg(fraction_evaluate=0, max_norm=2.1)  # four weights up by one, ten batches more
    strategy.start(here, batch_norm_model(), num_rounds=1)
    assert not dropped(strategy)
    spoilt = {name: array.numpy() for name, array in batch_norm_model().items()}
    spoilt["norm.running_var"] = np.float32([-1e30, 1])
    here.tamper[3] = lambda m, _: reply(m, record(**spoilt))
    strategy = FedAvg(fraction_evaluate=0, max_norm=2.1)
    strategy.start(here, batch_norm_model(), num_rounds=1)
    assert [client.node for client in dropped(strategy)] == [3]


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_new_model_that_predicts_nan_is_discarded(split: str) -> None:
    def shaky(arrays: ArrayRecord) -> np.ndarray:
        steps = float(arrays["b"].numpy()[0])
        return np.full(60, np.nan) if 2.5 < steps < 3.5 or np.isnan(steps) else predict(arrays)

    here = grid()
    for node in NODES:
        here.tamper[node] = lambda m, _: reply(
            m, record(w=GOOD["w"], b=m.content["arrays"]["b"].numpy() + np.float32(1))
        )
    strategy = FedAvg(**{split: Validation(shaky, LABEL, GROUP)}, fraction_evaluate=0)
    result = strategy.start(here, start_model(), num_rounds=4)
    assert result.arrays["b"].numpy().tolist() == [2]
    reasons = [{client.reason for client in clients_of(strategy, t)} for t in (1, 2, 3, 4)]
    assert reasons == [{""}, {""}, *[{"the new model makes predictions that are NaN"}] * 2]
    with pytest.raises(InputError, match="validation must get numbers for the initial model"):
        FedAvg(validation=Validation(lambda a: np.full(60, np.nan), LABEL, GROUP)).start(
            grid(), start_model(), 1
        )


def test_the_order_of_arrays_and_of_memory_does_not_matter() -> None:
    model = record(a=np.arange(6, dtype="f4").reshape(2, 3), b=np.ones(1, "f4"))
    layout = Layout.from_record(model)
    other = record(b=np.ones(1, "f4"), a=np.asfortranarray(np.arange(6, dtype="f4").reshape(2, 3)))
    assert layout.flat(other).tolist() == layout.flat(model).tolist()
    with pytest.raises(MismatchError):
        layout.flat(record(a=np.ones((3, 2), "f4"), b=np.ones(1, "f4")))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "at least one array"),
        ({"w": np.array([np.nan])}, "must be finite"),
        ({"w": np.array(["a"])}, "must hold numbers"),
        ({"w": np.array([1, 2])}, "must hold an array of floats to train"),
    ],
)
def test_an_initial_model_that_cannot_be_averaged_is_refused(values: dict, said: str) -> None:
    with pytest.raises(InputError, match=said):
        FedAvg().start(grid(), record(**values), num_rounds=1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_rounds": 0}, "num_rounds must be >= 1, got 0"),
        ({"metric": "auc"}, "unknown name in (fair_fate: )?metric 'auc'"),
        ({"protocol": "exact"}, "protocol must be paper or published, got exact"),
        ({"per_round": 0}, "per_round must be >= 1, got 0"),
        ({"fraction_train": 1.5}, r"fraction_train must be in \[0, 1\], got 1.5"),
        ({"max_norm": -1.0}, "max_norm must be > 0, got -1"),
        ({"max_examples": 0}, "max_examples must be > 0, got 0"),
        ({"min_train_nodes": -1}, "min_train_nodes must be >= 0"),
        ({"max_wait": 0}, "max_wait must be > 0"),
        ({"lam0": 2.0}, r"fair_fate: lam0 must be in \[0, 1\], got 2"),
        ({"validation": None}, "validation must be given for fair_fate"),
    ],
)
def test_bad_settings_are_refused_with_their_names(options: dict, said: str) -> None:
    with pytest.raises(InputError, match=said):
        FairFate(**{"validation": validation(), **options})


def test_the_strategy_and_start_must_agree_on_the_rounds() -> None:
    with pytest.raises(InputError, match=r"num_rounds must be the same .* got 3 and 4"):
        FedAvg(num_rounds=3).start(grid(), start_model(), num_rounds=4)
    with pytest.raises(InputError, match="timeout must be > 0"):
        FedAvg().start(grid(), start_model(), num_rounds=4, timeout=0)
    with pytest.raises(InputError, match="ask_clients must be left out"):
        FedAvgGR(validation(), ask_clients=False)
    assert len(FedDemon(num_rounds=2).start(grid(), start_model()).train_metrics_clientapp) == 2


@pytest.mark.parametrize(
    ("predicted", "said"),
    [
        (np.zeros(59), r"one value for each of the 60 rows, got shape \(59,\)"),
        (np.full(60, 2.0), "0 or 1, or probabilities, got 2"),
        (np.full(60, -0.5), "0 or 1, or probabilities, got -0.5"),
    ],
)
def test_predictions_of_the_wrong_kind_end_the_run_with_a_reason(predicted: np.ndarray, said: str) -> None:
    rows = Validation(lambda arrays: predicted, LABEL, GROUP)
    with pytest.raises(InputError, match=said):
        FairFate(rows).start(grid(), start_model(), num_rounds=1)


def test_probabilities_columns_and_labels_are_all_predictions() -> None:
    answers = [LABEL == 1, LABEL, LABEL.astype(float) * 0.9, (LABEL * 0.9)[:, None]]
    counts = [Validation(lambda a, p=p: p, LABEL, GROUP).counts(start_model()).tolist() for p in answers]
    assert counts[0] == counts[1] == counts[2] == counts[3]


@pytest.mark.parametrize(
    ("label", "group", "said"),
    [
        ([1, 0, 2], ["a", "b", "a"], "y_true must be 0 or 1, got 2"),
        ([1, 0], ["a", "b", "a"], "one value for each row"),
        ([1, 0], ["a", "a"], "group must have at least two different values, got 1"),
    ],
)
def test_validation_rows_are_checked(label: list, group: list, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Validation(predict, label, group)


def test_users_strategy_may_keep_its_arguments(tmp_path: Path) -> None:
    from typing import NamedTuple

    class Keeper(NamedTuple):
        params: np.ndarray
        seen: np.ndarray
        rounds: int = 0
        notes: Notes = NO_NOTES

    @register("keeper", "keeps the first update it sees", "this test")
    def _build(setup: Setup) -> Strategy:
        def aggregate(state: Keeper, cohort: Cohort) -> Keeper:
            seen = cohort.deltas[0] if state.rounds == 0 else state.seen
            return Keeper(state.params + cohort.deltas.mean(axis=0), seen, state.rounds + 1)

        return Strategy(lambda params: Keeper(params, np.zeros_like(params)), aggregate)

    strategy = flower_strategy("keeper", checkpoint=tmp_path / "c", fraction_evaluate=0)
    strategy.start(grid(), start_model(), num_rounds=1)
    first = strategy.server.state.seen.copy()
    longer = flower_strategy("keeper", fraction_evaluate=0)
    longer.start(grid(), start_model(), num_rounds=4)
    assert longer.server.state.seen.tolist() == first.tolist()

    @register("vague", "remembers what cannot be saved", "this test")
    def _build_vague(setup: Setup) -> Strategy:
        class Vague(NamedTuple):
            params: np.ndarray
            what: object
            notes: Notes = NO_NOTES

        return Strategy(lambda params: Vague(params, object()), lambda state, cohort: state)

    with pytest.raises(
        InputError,
        match="must be made of tuples, dictionaries, arrays, numbers and texts to be saved, got object",
    ):
        FlowerStrategy("vague", checkpoint=tmp_path / "v").start(grid(), start_model(), num_rounds=1)


def test_a_run_without_rows_at_the_server_has_no_rounds_to_show() -> None:
    strategy = FedAvg(fraction_evaluate=0)
    strategy.start(grid(), start_model(), num_rounds=2)
    assert strategy.rounds().empty
    assert len(strategy.clients()) == 8


def test_a_rounds_line_names_a_dozen_fair_clients() -> None:
    from fairfate.engine.record import ClientRound
    from fairfate.flower.logs import RoundSummary

    clients = [ClientRound(1, f"site {n}", "fair", node=n) for n in range(1, 21)]
    done = RoundSummary(1, clients, {"fair": [True] * 20}, None, None, None)
    assert "20 fair (site 1, site 2, " in done.line()
    assert "site 12 and 8 more)" in done.line()
    few = done._replace(clients=clients[:2])
    assert "2 fair (site 1, site 2)" in few.line()

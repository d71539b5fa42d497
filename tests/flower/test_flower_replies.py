"""What is believed of a reply, and what is said of the others: without a grid."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict

from fairfate.engine.server import Dropped
from fairfate.fairness.metrics import Statistics
from fairfate.flower.messages import Layout, MismatchError
from fairfate.flower.replies import (
    Received,
    ReplyPolicy,
    automatic_limit,
    check_rows,
    example_count,
    read_replies,
    read_report,
    read_reports,
    report_metrics,
    rows_told,
    scale_updates,
    score,
)
from fairfate.flower.roster import Client


def record(w: list[float], seen: int = 0, **more: list[float]) -> ArrayRecord:
    """A model of two trained numbers and a whole one, which is no part of a norm."""
    floats = {name: Array(np.array(values, dtype=np.float32)) for name, values in {"w": w, **more}.items()}
    return ArrayRecord({**floats, "seen": Array(np.int64([seen]))})


LAYOUT = Layout.from_record(record([0, 0]))
MODEL = LAYOUT.flat(record([3, 4], 7))


class Reply:
    """As much of a Flower message as is read."""

    def __init__(self, content: RecordDict | None = None, error: Error | None = None, to: str = "") -> None:
        self.content, self.error = content, error
        self.metadata = SimpleNamespace(reply_to_message_id=to, src_node_id=99)

    def has_error(self) -> bool:
        return self.error is not None

    def has_content(self) -> bool:
        return self.content is not None


def reply(to: int, update: list[float], examples: object = 10, seen: int = 7) -> Message:
    """Node ``to`` sends the model plus an update."""
    arrays = record((MODEL[:2] + update).tolist(), seen)
    return said(to, {"arrays": arrays, "metrics": MetricRecord({"num-examples": examples})})


def said(to: int, content: dict[str, Any]) -> Any:
    return Reply(RecordDict(content), to=f"m{to}")


def read(
    messages: list[Any], nodes: int = 4, limits: ReplyPolicy | None = None, model: np.ndarray = MODEL
) -> Received:
    asked = {f"m{node}": node for node in range(nodes)}
    buffer = np.full((nodes, LAYOUT.size), 99, dtype=np.float32)
    return read_replies(asked, messages, LAYOUT, model, limits or ReplyPolicy(), "late", buffer)


def reasons(found: Received) -> dict[int, str]:
    return {gone.node: gone.reason for gone in found.dropped}


# -- which replies count --------------------------------------------------------------------------------


def test_good_replies_stand_in_the_order_of_those_who_were_asked() -> None:
    found = read([reply(2, [1, 0], 5), reply(0, [0, 1], 6, seen=9), reply(1, [2, 2], 7)], 3)
    assert found.nodes == [0, 1, 2]
    assert found.num_examples.tolist() == [6, 7, 5]
    assert found.deltas.tolist() == [[0, 1, 2], [2, 2, 0], [1, 0, 0]]
    assert [model["w"].numpy().tolist() for model in found.records] == [[3, 5], [5, 6], [4, 4]]
    assert [metrics["num-examples"] for metrics in found.metrics] == [6, 7, 5]
    assert found.dropped == []
    assert found.capped == set()


def test_strangers_and_those_who_reply_twice_or_not_at_all_are_named() -> None:
    stranger = reply(7, [0, 1])
    found = read([reply(1, [0, 1], 5), stranger, reply(1, [1, 0], 6)], 3)
    assert found.nodes == [1]
    assert found.num_examples.tolist() == [5]  # the first of two
    assert found.deltas.tolist() == [[0, 1, 0]]
    assert found.dropped == [
        Dropped("99", "reply to nothing that was asked", 99),
        Dropped("1", "more than one reply", 1),
        Dropped("0", "late", 0),
        Dropped("2", "late", 2),
    ]


def test_a_reply_after_a_bad_one_has_its_own_update() -> None:
    found = read([reply(0, [np.nan, 0]), reply(1, [1, 0]), reply(2, [0, 1], 0), reply(3, [0, 2])])
    assert found.nodes == [1, 3]
    assert found.deltas.tolist() == [[1, 0, 0], [0, 2, 0]]
    assert reasons(found) == {
        0: "an update with NaN or infinity",
        2: "'num-examples' is 0 instead of a number > 0 and < 2**53",
    }


NOTHING = MetricRecord({"num-examples": 1})


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Reply(error=Error(3, "no\nmemory"), to="m0"), "error 3: no memory"),
        (Reply(to="m0"), "an empty reply"),
        (said(0, {"m": NOTHING}), "0 ArrayRecords and 1 MetricRecords instead of one of each"),
        (said(0, {"a": record([0, 0])}), "1 ArrayRecords and 0 MetricRecords instead of one of each"),
        (
            said(0, {"a": record([0, 0]), "m": NOTHING, "n": NOTHING}),
            "1 ArrayRecords and 2 MetricRecords instead of one of each",
        ),
        (
            said(0, {"a": record([0, 0]), "b": record([0, 0]), "m": NOTHING}),
            "2 ArrayRecords and 1 MetricRecords instead of one of each",
        ),
        (said(0, {"a": record([0, 0], v=[1]), "m": NOTHING}), "unknown arrays: v"),
    ],
)
def test_what_cannot_be_read_is_dropped_with_the_reason(message: Any, reason: str) -> None:
    assert reasons(read([message], 1)) == {0: reason}


@pytest.mark.parametrize("count", [0, -1, 2**53, float("nan"), float("inf"), None, [1, 2]])
def test_a_number_of_examples_must_make_sense(count: object) -> None:
    metrics = MetricRecord({} if count is None else {"n": count})
    with pytest.raises(MismatchError, match=r"'n' is .* instead of a number > 0 and < "):
        example_count(metrics, "n")


@pytest.mark.parametrize("count", [1, 0.5, 2**53 - 1])
def test_numbers_of_examples_are_taken(count: float) -> None:
    assert example_count(MetricRecord({"n": count}), "n") == count


def test_a_long_value_is_cut_in_the_reason() -> None:
    with pytest.raises(MismatchError) as found:
        example_count(MetricRecord({"n": list(range(100))}), "n")
    assert len(str(found.value)) == len("'n' is  instead of a number > 0 and < 2**53") + 40


# -- limits ---------------------------------------------------------------------------------------------


def test_more_examples_than_allowed_are_cut_and_noted() -> None:
    limits = ReplyPolicy(max_norm=np.inf, max_examples=10)
    found = read([reply(0, [0, 1], 9), reply(1, [0, 1], 10), reply(2, [0, 1], 11)], 3, limits)
    assert found.num_examples.tolist() == [9, 10, 10]
    assert found.capped == {2}
    free = read([reply(0, [0, 1], 11)], 1, ReplyPolicy(np.inf))
    assert free.num_examples.tolist() == [11]
    assert free.capped == set()


def test_an_update_may_be_as_long_as_the_limit_and_no_longer() -> None:
    limits = ReplyPolicy(max_norm=5)
    found = read([reply(0, [3, 4]), reply(1, [3, 4.01], seen=7), reply(2, [0, 1], seen=1000)], 3, limits)
    assert found.nodes == [0, 2]  # whole numbers are no part of a norm
    assert reasons(found) == {1: "an update of norm 5.008, over the limit of 5"}
    assert read([reply(0, [300, 400])], 1, ReplyPolicy(np.inf)).nodes == [0]


def test_the_round_itself_sets_a_limit() -> None:
    # the median of 1, 1, 2 and 60 (the lower one) is 1: 50 times that, and 10 times the model's 5, are 50
    replies = [reply(0, [1, 0]), reply(1, [0, 60]), reply(2, [0, 1]), reply(3, [2, 0])]
    found = read(replies)
    assert found.nodes == [0, 2, 3]
    assert found.num_examples.tolist() == [10, 10, 10]
    assert found.deltas.tolist() == [[1, 0, 0], [0, 1, 0], [2, 0, 0]]
    assert len(found.records) == len(found.metrics) == 3
    assert reasons(found) == {1: "an update of norm 60, far above the others of the round"}
    assert read([*replies[:1], reply(1, [0, 50]), *replies[2:]]).nodes == [0, 1, 2, 3]
    # the whole number is no part of the model's norm either
    whole = LAYOUT.flat(record([3, 4], 1000))
    assert read(replies, model=whole).nodes == [0, 2, 3]


def test_several_are_dropped_and_the_others_keep_their_places() -> None:
    found = read([reply(0, [0, 900], 1), reply(1, [1, 0], 2), reply(2, [900, 0], 3), reply(3, [2, 0], 4)])
    assert found.nodes == [1, 3]
    assert found.num_examples.tolist() == [2, 4]
    assert found.deltas.tolist() == [[1, 0, 0], [2, 0, 0]]


@pytest.mark.parametrize(
    ("norms", "model", "limit"),
    [
        ([], 3, 300),
        ([1, 1e9], 3, 300),
        ([1e9], 0.5, 100),  # a small model counts as one of norm 1
        ([1, 2, 1e9], 3, 100),
        ([1, 2, 3, 4], 0, 100),  # the lower of two medians
        ([5, 4, 3, 2, 1], 0, 150),
        ([0.1, 0.1, 0.1], 7, 70),
        ([0, 0, 0], 0, 10),
    ],
)
def test_the_automatic_limit_by_hand(norms: list[float], model: float, limit: float) -> None:
    assert automatic_limit(norms, model) == pytest.approx(limit)


def test_an_update_too_long_for_its_type_still_has_a_norm() -> None:
    found = read([reply(0, [3e38, 0])], 1, ReplyPolicy(max_norm=1e30))
    assert reasons(found) == {0: "an update of norm 3e+38, over the limit of 1e+30"}
    assert read([reply(0, [3e38, 0])], 1, ReplyPolicy(np.inf)).nodes == [0]


# -- what clients tell of the model on their own rows ---------------------------------------------------

COUNTS = np.array([[[1, 2], [0, 3]], [[4, 0], [1, 1]]])
LOCAL = Statistics(COUNTS, np.array([[1.5, 3.0], [0.5, 1.0]]), np.array([[9.0, 1.0], [0.0, 2.0]]))


def told(change: Callable[[dict[str, Any]], None] = lambda metrics: None) -> MetricRecord:
    metrics: dict[str, Any] = {**report_metrics(LOCAL), "num-examples": 12}
    change(metrics)
    return MetricRecord(metrics)


def test_a_report_is_read_as_it_was_written() -> None:
    found = read_report(told(), 2, 12)
    for mine, theirs in zip(LOCAL, found, strict=True):
        assert mine.tolist() == theirs.tolist()
    assert all(isinstance(value, int) for value in told()["local-counts"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: m.pop("local-counts"), "'local-counts' is not 8 numbers >= 0"),
        (lambda m: m["local-counts"].pop(), "'local-counts' is not 8 numbers >= 0"),
        (lambda m: m["local-loss"].append(0.0), "'local-loss' is not 4 numbers >= 0"),
        (lambda m: m.update({"local-loss": 1.0}), "'local-loss' is not 4 numbers >= 0"),
        (lambda m: m["local-probability"].__setitem__(3, -0.1), "'local-probability' is not 4 numbers >= 0"),
        (lambda m: m["local-loss"].__setitem__(0, float("nan")), "'local-loss' is not 4 numbers >= 0"),
        (lambda m: m["local-loss"].__setitem__(0, float("inf")), "'local-loss' is not 4 numbers >= 0"),
        (lambda m: m["local-counts"].__setitem__(0, 2), "'local-counts' are not its 12 rows"),
        (lambda m: m["local-counts"].__setitem__(0, 0), "'local-counts' are not its 12 rows"),
        (
            lambda m: m.update({"local-counts": [1.5, 1.5, 0.0, 3.0, 4.0, 0.0, 1.0, 1.0]}),
            "'local-counts' are not its 12 rows",
        ),
        (lambda m: m["local-probability"].__setitem__(0, 3.1), "'local-probability' is more than its rows"),
    ],
)
def test_a_report_that_makes_no_sense_is_refused(change: Callable[..., None], said: str) -> None:
    with pytest.raises(MismatchError, match=said):
        read_report(told(change), 2, 12)


def test_a_report_of_halves_of_rows_is_refused_even_if_what_is_left_adds_up() -> None:
    halves = told(lambda m: m.update({"local-counts": [1.5, 1.5, 0.0, 3.0, 4.0, 0.0, 1.0, 1.0]}))
    with pytest.raises(MismatchError, match="'local-counts' are not its 11 rows"):
        read_report(halves, 2, 11)


def test_a_report_of_no_rows_is_refused() -> None:
    nothing = report_metrics(Statistics(0 * COUNTS, np.zeros((2, 2)), np.zeros((2, 2))))
    with pytest.raises(MismatchError, match="'local-counts' are not its 0 rows"):
        read_report(MetricRecord(nothing), 2, 0)


def test_a_report_of_one_row_and_one_rounding_over_are_taken() -> None:
    one = np.zeros((2, 2, 2), dtype=np.int64)
    one[1, 0, 1] = 1
    probability = np.zeros((2, 2))
    probability[1, 0] = 1 + 5e-7
    local = Statistics(one, probability, np.zeros((2, 2)))
    assert read_report(MetricRecord(report_metrics(local)), 2, 1).counts.sum() == 1
    probability[1, 0] = 1 + 1e-6  # no more than that
    assert read_report(MetricRecord(report_metrics(local)), 2, 1).counts.sum() == 1
    probability[1, 0] = 1 + 2e-6
    with pytest.raises(MismatchError, match="more than its rows"):
        read_report(MetricRecord(report_metrics(local)), 2, 1)


def replies(*metrics: MetricRecord, examples: list[float] | None = None) -> Received:
    n = len(metrics)
    deltas = np.arange(3.0 * n, dtype=np.float32).reshape(n, 3)
    nodes = list(range(10, 10 + n))
    records = [record([k, k]) for k in range(n)]
    given = np.array(examples if examples is not None else [12.0] * n)
    return Received(nodes, records, list(metrics), deltas, given, set(), [])


def test_reports_are_stacked_without_malformed_ones() -> None:
    bad = told(lambda m: m.pop("local-loss"))
    good = replies(bad, told(), bad, told())
    found = read_reports(good, 2, ReplyPolicy())
    assert found is not None
    assert found.counts.tolist() == [COUNTS.tolist()] * 2
    assert good.nodes == [11, 13]
    assert good.deltas.tolist() == [[3, 4, 5], [9, 10, 11]]
    assert [gone.node for gone in good.dropped] == [10, 12]
    assert {gone.reason for gone in good.dropped} == {"'local-loss' is not 4 numbers >= 0"}
    assert read_reports(replies(bad), 2, ReplyPolicy()) is None


def test_each_report_is_compared_with_its_own_number_of_examples() -> None:
    other = told(lambda metrics: metrics.update({"num-examples": 13}))
    good = replies(told(), other, told(), examples=[12, 13, 5])  # the last one counts for fewer rows
    read_reports(good, 2, ReplyPolicy())
    assert good.nodes == [10, 12]


# -- the rows that clients have told of -----------------------------------------------------------------


def client(node: int, rows: list[list[int]] | None) -> Client:
    return Client(node, f"site {node}", None if rows is None else np.array(rows))


def test_reported_rows_are_cut_to_the_limit() -> None:
    clients = [client(1, [[10, 20], [30, 40]]), client(2, None), client(3, [[1, 2], [3, 4]])]
    assert rows_told(clients, None).tolist() == [[[10, 20], [30, 40]], [[1, 2], [3, 4]]]
    assert rows_told(clients, 20).tolist() == [[[2, 4], [6, 8]], [[1, 2], [3, 4]]]
    assert rows_told(clients, 10).tolist() == [[[1, 2], [3, 4]]] * 2
    assert rows_told([client(1, [[1, 0], [0, 2]])], 2).tolist() == [[[1, 0], [0, 1]]]  # 2/3 and 4/3


@pytest.mark.parametrize(("most", "kept"), [(None, [10]), (8, [11]), (5, [])])
def test_clients_must_train_on_the_rows_that_they_reported(most: float | None, kept: list[int]) -> None:
    """One has told of 12 rows and one of 8; the third has told of none."""
    known = {10: client(10, [[3, 4], [5, 0]]), 11: client(11, [[8, 0], [0, 1]]), 12: client(12, None)}
    good = replies(told(), told(), told(), examples=[12, 8, 8])
    check_rows(good, known, most)
    assert good.nodes == kept
    gone = reasons(good)
    assert gone[12] == "8 examples, but it had reported 0 rows"
    if most is None:
        assert gone[11] == "8 examples, but it had reported 9 rows"
    if most == 5:
        assert gone[10] == "12 examples, but it had reported 5 rows"


# -- scaled and scored ----------------------------------------------------------------------------------


def test_only_updates_whose_factor_is_not_one_are_scaled_with_their_models() -> None:
    good = read([reply(0, [2, 4], seen=9), reply(1, [1, 1])], 2)
    first = good.records[1]
    seen: list[np.ndarray] = []

    def scale(deltas: np.ndarray) -> np.ndarray:
        seen.append(deltas.copy())
        return np.array([0.5, 1.0])

    scale_updates(good, scale, LAYOUT, MODEL)
    assert seen[0].tolist() == [[2, 4], [1, 1]]
    assert good.deltas.tolist() == [[1, 2, 2], [1, 1, 0]]
    assert good.records[0]["w"].numpy().tolist() == [4, 6]
    assert good.records[0]["seen"].numpy().tolist() == [9]
    assert good.records[1] is first


def test_nothing_is_scaled_without_a_rule_or_without_replies() -> None:
    good = read([reply(0, [2, 4])], 1)
    before = good.records[0]
    scale_updates(good, None, LAYOUT, MODEL)
    assert good.records[0] is before

    def never(deltas: np.ndarray) -> np.ndarray:
        raise AssertionError("must not be asked")

    scale_updates(read([], 1), never, LAYOUT, MODEL)


def test_a_model_that_cannot_be_scored_is_dropped_and_the_others_keep_their_counts() -> None:
    class Measure:
        grouping = ("a", "b")

        def counts(self, arrays: ArrayRecord) -> np.ndarray:
            first = int(arrays["w"].numpy()[0])
            if first in (0, 2):
                raise ValueError("no such thing")
            return np.full((2, 2, 2), first)

    good = replies(told(), told(), told(), told())
    found = score(good, Measure())  # type: ignore[arg-type]
    assert found[:, 0, 0, 0].tolist() == [1, 3]
    assert found.shape == (2, 2, 2, 2)
    assert good.nodes == [11, 13]
    assert reasons(good)[10] == "predictions fail: ValueError: no such thing"
    nobody = score(replies(), Measure())  # type: ignore[arg-type]
    assert nobody.shape == (0, 2, 2, 2)
    assert nobody.dtype == np.int64

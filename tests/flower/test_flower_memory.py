"""How much memory a round takes at the server: two models a client, its reply and its update."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fairfate.flower import FlowerStrategy, Validation
from fairfate.strategies import NO_NOTES, Cohort, Notes, Setup, Strategy, register
from federation_in_process import LocalGrid, dropped, flower_strategy

CLIENTS, SIZE = 40, 50_000
app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Add another number in every round; the last five nodes send updates that are far too long."""
    number = context.node_id * int(message.content["config"]["server-round"])
    step = np.float32(number if context.node_id <= CLIENTS - 5 else 1e9)
    arrays = ArrayRecord({"w": Array(message.content["arrays"]["w"].numpy() + step)})
    metrics = MetricRecord({"num-examples": context.node_id})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def run(spec: str, size: int = SIZE, rounds: int = 3, **options: Any) -> FlowerStrategy:
    validation = Validation(lambda arrays: arrays["w"].numpy()[:4] > 0, [0, 1, 0, 1], ["a", "a", "b", "b"])
    strategy = flower_strategy(spec, validation=validation, fraction_evaluate=0.0, **options)
    grid = LocalGrid(app, {node: {} for node in range(1, CLIENTS + 1)})
    strategy.start(grid, ArrayRecord({"w": Array(np.zeros(size, dtype=np.float32))}), num_rounds=rounds)
    return strategy


@pytest.mark.parametrize("limit", [np.inf, None, 1e6], ids=["all count", "dropped late", "dropped early"])
@pytest.mark.parametrize("spec", ["fair_fate", "fedavg+clip:norm=1"])
def test_a_round_takes_two_models_a_client(spec: str, limit: float | None) -> None:
    """Replies are let go of before the next come, and those that are dropped leave no copies behind."""
    run(spec, size=10, max_norm=limit)  # whatever is imported or made once
    gc.disable()  # which would clean up behind us at times, and at others not
    tracemalloc.start()
    try:
        strategy = run(spec, max_norm=limit)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    assert [len(dropped(strategy, t)) for t in (1, 2, 3)] == [0 if limit == np.inf else 5] * 3
    assert peak / (CLIENTS * SIZE * 4) < 2.6


class Memory(NamedTuple):
    params: np.ndarray
    seen: dict[str, tuple[np.ndarray, ...]]
    notes: Notes = NO_NOTES


def test_what_a_strategy_keeps_of_updates_is_not_written_over() -> None:
    @register("hoarder", "keeps every client's first update", "this test")
    def _build(setup: Setup) -> Strategy:
        def aggregate(state: Memory, cohort: Cohort) -> Memory:
            firsts: Iterable[tuple[str, np.ndarray]] = zip(cohort.clients, cohort.deltas, strict=True)
            seen = state.seen or {name: (delta,) for name, delta in firsts}
            return Memory(state.params + np.float32(cohort.round), seen)

        return Strategy(lambda params: Memory(params, {}), aggregate)

    once, often = (run("hoarder", size=4, rounds=rounds, max_norm=np.inf) for rounds in (1, 4))
    kept = [{name: delta.tolist() for name, (delta,) in s.server.state.seen.items()} for s in (once, often)]
    assert kept[0] == kept[1]

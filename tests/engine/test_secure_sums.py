"""Secure sums in the simulator: the same numbers as under masks, and the fair set's minimum."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fairfate import InputError, run
from fairfate.engine.secure_sums import SecureSums, sum_updates, weigh_own
from fairfate.engine.server import Replies, Server
from fairfate.engine.simulation import Simulation
from fairfate.experiments.config import from_mapping
from fairfate.experiments.plan import Plan
from fairfate.experiments.prepare import prepare
from fairfate.fairness.objective import bind
from fairfate.federation.seeds import Streams
from fairfate.federation.split import build
from fairfate.federation.validation_source import parse_validation_source
from fairfate.strategies import Setup, parse_spec
from fairfate.strategies.registry import TWO_GROUPS

OWN, PUBLIC = "clients:mode=own", "clients:mode=public"
SMALL = {"data": "synthetic:rows=1500", "rounds": 3, "seeds": 1, "clients": 8, "per-round": 8}


def planned(**options) -> Plan:
    return prepare(from_mapping({**SMALL, **options}))[0]


def simulation(seed: int, source: str, secure_sums: SecureSums | None) -> tuple[Simulation, Server]:
    """A round of FAIR-FATE from a model that has been trained a little."""
    plan, table = prepare(from_mapping({**SMALL, "strategy": "fair_fate"}))
    streams = Streams(seed)
    federation = build(table, plan.partition, 8, streams, parse_validation_source(source))
    clients = Simulation(federation, plan.model(federation.inputs), plan.training, streams, None, secure_sums)
    setup = Setup(3, groups=table.grouping)
    server = Server.start(
        parse_spec("fair_fate:lam0=0.5,momentum=none", "eqo").build(setup), clients.initial()
    )
    server.counts = clients.validate(server.params[None])[0]
    return clients, server


def test_public_scoring_is_the_papers_rule_to_fixed_point_precision() -> None:
    """In rounds in which the fair set's minimum does not apply."""
    compared = 0
    for seed in range(1, 13):
        models, members = [], []
        for rule in (None, SecureSums()):
            clients, server = simulation(seed, PUBLIC if rule else "server", rule)
            outcome = server.take(1, clients.train(1, [server])[0])
            models.append(server.params)
            members.append(int(np.sum(outcome.notes["fair"])))
            withheld = "withheld" in outcome.notes
        assert members[0] == members[1]
        if withheld:
            assert members[0] in (1, 2, 6, 7)
            assert not np.allclose(models[0], models[1], atol=1e-4, rtol=0)
            continue
        compared += members[0] > 0
        assert np.allclose(models[0], models[1], atol=2e-6, rtol=0)
        assert not np.array_equal(models[0], models[1])
    assert compared >= 2


def test_own_scoring_compares_both_models_on_the_rows_that_a_client_holds_out() -> None:
    clients, server = simulation(3, OWN, SecureSums())
    reply = clients.train(1, [server])[0]
    plain = Simulation(clients.federation, clients.model, clients.training, clients.streams)
    trained = Server.start(parse_spec("fedavg", "eqo").build(Setup(3)), plain.initial())
    updates = plain.train(1, [trained])[0]
    fairness, total, mean = bind("eqo", TWO_GROUPS), 0.0, 0.0
    for k, delta in enumerate(updates.deltas):
        both = np.stack([trained.params + delta, trained.params])
        own, received = fairness(clients.model.count(both, clients.federation.held_out[k]))
        if own >= received and own > 0:
            total, mean = total + own, mean + own * delta.astype(np.float64)
    assert reply.summed is not None
    assert reply.num_examples.tolist() == [float(clients.federation.sizes.sum())]
    if reply.summed.mean is not None and total:
        assert np.allclose(reply.summed.mean, mean / total, atol=2e-6)


def replies(weights: list[float]) -> Replies:
    names = tuple(f"c{k}" for k in range(len(weights)))
    deltas = np.arange(len(weights), dtype=np.float32)[:, None] * np.ones(4, np.float32) / 8
    none = np.zeros((0, 2, 2, 2), dtype=np.int64)
    return Replies(names, deltas, np.full(len(weights), 10), none)


@pytest.mark.parametrize(
    ("members", "is_open"), [(0, True), (1, False), (2, False), (3, True), (5, False), (6, True)]
)
def test_a_fair_sum_is_withheld_from_few_members_and_from_few_others(members: int, is_open: bool) -> None:
    summed = sum_updates(
        replies([0.5] * members + [0.0] * (6 - members)), [0.5] * members + [0.0] * (6 - members), 3
    )
    assert summed.summed is not None
    assert summed.summed.members == members
    assert (summed.summed.mean is not None) == is_open
    if is_open and members:
        assert summed.summed.mean.tolist() == [(members - 1) / 16] * 4


def test_fewer_clients_than_the_minimum_are_not_summed() -> None:
    assert not sum_updates(replies([1.0, 1.0]), None, 3).clients
    assert sum_updates(replies([1.0, 1.0, 1.0]), None, 3).clients == ("sum of 3 clients",)


def test_a_client_below_the_guard_gives_itself_no_weight() -> None:
    strategy = parse_spec("fair_fate:min_mcc=0.3", "eqo").build(Setup(3))
    collapsed = np.array([[[0, 9], [0, 9]], [[0, 9], [0, 9]]])
    skilled = np.array([[[8, 1], [1, 8]], [[8, 1], [1, 8]]])
    assert weigh_own(strategy, collapsed, collapsed) == 0
    assert weigh_own(strategy, skilled, collapsed) == 1
    assert weigh_own(parse_spec("fedval:min_mcc=0.3", "eqo").build(Setup(3)), collapsed, skilled) == 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"strategy": "fedavg+clip"},
            "secure-sums must be left out for fedavg+clip, which measures each update",
        ),
        ({"strategy": "fedavg+median"}, "which compares the updates"),
        ({"strategy": "fedavg+trimmed"}, "which compares the updates"),
        ({"strategy": "fedavg+krum"}, "which compares the updates"),
        ({"strategy": "fair_best"}, "which compares the scores of single models"),
        ({"strategy": "fair_fate", "protocol": "published"}, "which compares the scores of single models"),
        ({"strategy": "fedfb"}, "whose clients report 8 sums for each group, each for itself"),
        ({"strategy": "fedavg_gr"}, "whose clients report their rows by group and label, each for itself"),
        ({"strategy": "fair_fate:metric=flip,min_mcc=0.1"}, "metric 'flip'"),
        (
            {"strategy": "fair_fate:keep=0.5"},
            "keep must be 0 for fair_fate with secure-sums and mode=own",
        ),
        (
            {"strategy": "fedval", "validation-from": "server"},
            "validation-from must be clients:mode=own or clients:mode=public for fedval with secure-sums",
        ),
        (
            {"strategy": "fedval", "validation-from": "clients"},
            "each client scores its own model, got 'clients:",
        ),
        ({"per-round": 2}, "per-round must be >= the 3 clients of min-sum, got 2"),
        ({"min-sum": 2}, "min-sum must be >= 3, got 2"),
        (
            {"secure-sums": False},
            "secure-sums must be given with validation-from 'clients:mode=own,share=0.2'",
        ),
    ],
)
def test_what_cannot_work_on_sums_is_refused_before_training(options: dict, reason: str) -> None:
    with pytest.raises(InputError) as error:
        planned(**{"secure-sums": True, "validation-from": OWN, "strategy": "fedavg", **options})
    assert reason in str(error.value)


def test_a_run_records_sums_and_continues_from_its_folder(tmp_path: Path) -> None:
    options = {"secure_sums": True, "validation_from": OWN, "jobs": 1, "min_cell": 10}
    kept = run(from_mapping({**SMALL, "strategy": ["fair_fate", "fedavg"]}), out=tmp_path / "a", **options)
    again = run(from_mapping({**SMALL, "strategy": ["fair_fate", "fedavg"]}), **options)
    assert kept.rounds["accuracy"].tolist() == again.rounds["accuracy"].tolist()
    assert set(kept.clients["name"]) == {"sum of 8 clients"}
    assert set(kept.clients["examples"]) == {kept.clients["examples"][0]}
    config = from_mapping({k: v for k, v in kept.config.items() if k != "provenance"})
    assert config.secure_sums
    assert config.min_sum == 3


def test_minimum_counts_apply_to_the_opened_sum() -> None:
    """A client's own small strata stay in; the sum is rounded."""
    clients, server = simulation(1, OWN, SecureSums(3, 60))
    exact, _ = simulation(1, OWN, SecureSums(3, 0))
    counts, known = clients.validate(server.params[None])[0], exact.validate(server.params[None])[0]
    assert ((counts == 0) | (counts >= 60)).all()
    assert (known[known > 0] < 60).any()
    assert np.array_equal(counts.sum(axis=-1) >= 60, known.sum(axis=-1) >= 60)

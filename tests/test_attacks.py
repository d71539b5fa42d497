"""Attackers in the simulator: what each attack does exactly, and that a run says so."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from fairfate import InputError, run
from fairfate.data import synthetic
from fairfate.fairness.metrics import Statistics, eo, eqo, sp
from fairfate.federation.partition import parse_partition
from fairfate.federation.split import Federation, build
from fairfate.federation.streams import Streams
from fairfate.models.mlp import Mlp
from fairfate.models.rows import ClientRows
from fairfate.models.training import Training
from fairfate.rounds.attack import ATTACKS, Attackers, parse_attack
from fairfate.rounds.attack_training import train_apart, train_on_harmful_rows
from fairfate.rounds.server import Replies, Server
from fairfate.rounds.simulation import Simulation
from fairfate.runs.config import read_config
from fairfate.runs.sweep import expand, sweep
from fairfate.strategies import Setup, parse_spec

STREAMS = Streams(1)
FEDERATION = build(synthetic(rows=600, seed=2), parse_partition("dirichlet:1"), 5, STREAMS)
MODEL = Mlp(FEDERATION.inputs)
TRAINING = Training(rounds=5, per_round=5, epochs=2, batch_size=10, learning_rate=0.05)


def drawn(text: str) -> Attackers:
    attack = parse_attack(text)
    assert attack is not None
    return Attackers.draw(attack, FEDERATION, MODEL, STREAMS)


def one_round(text: str, strategy: str = "fair_fate", t: int = 5) -> tuple[Simulation, Server, Replies]:
    clients = Simulation(FEDERATION, MODEL, TRAINING, STREAMS, parse_attack(text))
    setup = Setup(5, learning_rate=0.05)
    server = Server.start(parse_spec(strategy, "eqo").build(setup), clients.initial())
    server.counts = clients.validate(server.params[None])[0]
    return clients, server, clients.train(t, [server])[0]


CLIENTS, _, HONEST = one_round("none")
NAMES = drawn("scale:clients=2").names
IS_ONE = np.array([name in NAMES for name in HONEST.clients])


def test_more_attackers_contain_the_fewer_and_depend_on_the_seed() -> None:
    assert drawn("scale:clients=1").names < drawn("sign_flip:clients=2").names
    every = {tuple(Streams(seed).attackers(np.arange(10), 2)) for seed in range(20)}
    assert len(every) > 10


@pytest.mark.parametrize(("name", "answer"), [("accept_all", 1), ("reject_all", 0)])
def test_one_answer_for_everybody(name: str, answer: int) -> None:
    _, server, replies = one_round(f"{name}:clients=2")
    for delta, counts in zip(replies.deltas[IS_ONE], replies.client_counts[IS_ONE], strict=True):
        assert_array_equal(delta[:-1], 0)
        assert delta[-1] == pytest.approx(10 if answer else -10, abs=1e-5)
        assert counts[..., 1 - answer].sum() == 0
        assert sp(counts) == 1 or not answer
    assert_array_equal(replies.deltas[~IS_ONE], HONEST.deltas[~IS_ONE])
    assert server.take(5, replies).notes["fair"][IS_ONE].all() or not answer


@pytest.mark.parametrize(("text", "factor"), [("scale:factor=7", 7), ("sign_flip:", -1)])
def test_updates_times_a_factor(text: str, factor: float) -> None:
    _, _, replies = one_round(f"{text},clients=2")
    assert_allclose(replies.deltas[IS_ONE], factor * HONEST.deltas[IS_ONE], atol=1e-6)
    assert_array_equal(replies.deltas[~IS_ONE], HONEST.deltas[~IS_ONE])


def rows_of(federation: Federation, client: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    mine = slice(federation.rows.offsets[client], federation.rows.offsets[client + 1])
    x = federation.rows.x.reshape(len(federation.rows.y), -1)
    return x[mine], federation.rows.y[mine], federation.rows.cell[mine]


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_labels_are_turned(share: float) -> None:
    attackers = drawn(f"label_flip:clients=2,share={share}")
    for client in range(5):
        (x, y, cell), (old_x, old_y, old_cell) = (
            rows_of(f, client) for f in (attackers.federation, FEDERATION)
        )
        turned = y != old_y
        assert turned.sum() == (round(share * len(y)) if attackers.is_one[client] else 0)
        assert_array_equal(cell % 2, y)
        assert_array_equal(cell // 2, old_cell // 2)
        assert_array_equal(x, old_x)
        assert_array_equal(attackers.federation.client_cells[client].ravel(), np.bincount(cell, minlength=4))


def test_targeted_labels_are_those_of_the_first_group() -> None:
    attackers = drawn("label_flip:clients=2,targeted=yes")
    for client in np.flatnonzero(attackers.is_one):
        before, after = FEDERATION.client_cells[client], attackers.federation.client_cells[client]
        assert after.tolist() == [[before[0].sum(), 0], before[1].tolist()]


def test_groups_are_turned_with_the_input_that_says_so() -> None:
    attackers = drawn("attribute_flip:clients=2")
    changed = 0
    for client in np.flatnonzero(attackers.is_one):
        (x, y, cell), (old_x, old_y, old_cell) = (
            rows_of(f, client) for f in (attackers.federation, FEDERATION)
        )
        assert_array_equal(y, old_y)
        assert_array_equal(cell, (old_cell + 2) % 4)
        changed += int((x != old_x).any(axis=0).sum())
    assert changed == len(np.flatnonzero(attackers.is_one))  # one input of the synthetic rows


def test_more_rows_are_told_than_there_are() -> None:
    clients, _, replies = one_round("lie_n:clients=2,factor=10", "fairgrad")
    _, _, honest = one_round("none", "fairgrad")
    assert_array_equal(replies.num_examples, np.where(IS_ONE, 10, 1) * honest.num_examples)
    assert replies.local is not None
    assert honest.local is not None
    assert_array_equal(replies.local.rows.sum(axis=(1, 2)), replies.num_examples)
    assert_allclose(replies.local.loss[IS_ONE], 10 * honest.local.loss[IS_ONE])
    assert_array_equal(replies.deltas, honest.deltas)
    params = clients.initial()
    true, told = CLIENTS.histograms(params).sum(), clients.histograms(params).sum()
    assert told - true == 9 * honest.num_examples[IS_ONE].sum()


def test_counts_of_a_liar_are_alike_in_all_groups() -> None:
    _, _, replies = one_round("lie_counts:clients=2", "fairgrad")
    _, _, honest = one_round("none", "fairgrad")
    assert replies.local is not None
    assert honest.local is not None
    for metric in (sp, eo, eqo):
        assert (metric(replies.local.counts[IS_ONE]) > 0.85).all()
    assert_array_equal(replies.local.rows, honest.local.rows)
    assert_array_equal(replies.local.counts[~IS_ONE], honest.local.counts[~IS_ONE])


def test_a_model_trained_apart_treats_groups_differently_and_is_no_longer_than_told() -> None:
    _, server, replies = one_round("pf:clients=2,kappa=20,norm=0.5")
    norms = np.linalg.norm(replies.deltas.astype(np.float64), axis=1)
    assert (norms[IS_ONE] <= 0.5 + 1e-6).all()
    _, _, free = one_round("pf:clients=2,kappa=20,norm=0")
    for place in np.flatnonzero(IS_ONE):
        client = FEDERATION.client_names.index(HONEST.clients[place])
        rows = FEDERATION.local[client]

        def gap(delta: np.ndarray, rows=rows) -> float:
            found: Statistics = MODEL.statistics((server.params + delta)[None], rows)
            means = found.probability[0].sum(axis=1) / rows.rows.sum(axis=1)
            return abs(float(means[1] - means[0]))

        assert gap(free.deltas[place]) > gap(HONEST.deltas[place])


def test_biased_rows_begin_late_and_harm_the_other_group() -> None:
    _, _, early = one_round("biased_rows:clients=2", t=2)
    assert_array_equal(early.deltas, one_round("none", t=2)[2].deltas)
    losses = {}
    for sign in ("harm", "help"):
        _, server, replies = one_round(f"biased_rows:clients=2,sign={sign}")
        assert_array_equal(replies.deltas[~IS_ONE], HONEST.deltas[~IS_ONE])
        losses[sign] = []
        for place in np.flatnonzero(IS_ONE):
            rows = FEDERATION.local[FEDERATION.client_names.index(HONEST.clients[place])]
            found = MODEL.statistics((server.params + replies.deltas[place])[None], rows)
            losses[sign].append(float(found.loss[0, 0].sum()))
    assert all(harm > good for harm, good in zip(losses["harm"], losses["help"], strict=True))


@pytest.mark.parametrize("name", ATTACKS)
def test_a_run_says_that_it_was_attacked(name: str, tmp_path: Path) -> None:
    done = run(
        data="synthetic", attack=f"{name}:clients=2", rounds=3, seeds=1, clients=6, out=tmp_path / "a", jobs=1
    )
    text = str(parse_attack(f"{name}:clients=2"))
    assert tomllib.loads((tmp_path / "a/config.toml").read_text())["attack"] == text
    assert set(done.rounds["partition"]) == {f"dirichlet:0.5 {text}"}
    clients = pd.read_parquet(tmp_path / "a/clients.parquet")
    attackers = clients.groupby("name")["note_attacker"].agg(["min", "max"])
    assert (attackers["min"] == attackers["max"]).all()
    assert attackers["max"].sum() <= 2
    fair = done.rounds[done.rounds["strategy"] == "fair_fate"]
    for fair_clients, notes in zip(fair["fair_clients"], map(json.loads, fair["notes"]), strict=True):
        assert notes["fair_attackers"] <= min(notes["attackers"], fair_clients)


def test_a_sweep_keeps_attacks_apart(tmp_path: Path) -> None:
    values = {
        "attack": ["none", "accept_all", "accept_all:clients=2"],
        "rounds": 2,
        "seeds": 1,
        "strategy": ["fedavg"],
    }
    done = sweep(expand(values), tmp_path, jobs=1)
    frames = [done.rounds(cell) for cell in done.cells]
    assert [frame["partition"].iloc[0] for frame in frames] == [
        "dirichlet:0.5",
        "dirichlet:0.5 accept_all:clients=1",
        "dirichlet:0.5 accept_all:clients=2",
    ]
    assert len(pd.read_csv(tmp_path / "summary.csv")) == 3
    assert sweep(expand(values), tmp_path, jobs=1).ran == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("accept", "unknown attack 'accept'; did you mean 'accept_all'"),
        ("scale:clients=0", r"scale: clients must be in \[1, 1e\+06\], got 0"),
        ("accept_all:clients=11", "attack must be by <= the 10 clients, got 11$"),
        ("sign_flip:factor=2", "factor"),
    ],
)
def test_what_is_wrong_is_said(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        run(data="synthetic", attack=text, rounds=1, seeds=1)


@pytest.mark.data
def test_two_clients_ruin_fair_fate_and_the_guard_keeps_it(data_folder: Path) -> None:
    done = run(
        data="compas",
        data_dir=data_folder,
        attack="accept_all:clients=2",
        strategies=["fair_fate", "fair_fate:min_mcc=0.05,keep=0.8", "fedval", "fedval:min_mcc=0.05"],
        seeds=2,
    )
    last = done.rounds[(done.rounds["split"] == "test") & (done.rounds["round"] == 100)]
    mcc = last.groupby(["strategy", "settings"], sort=False)["mcc"].mean()
    assert (mcc["fair_fate"] < 0.02).tolist() == [True, False]
    assert (mcc["fair_fate"] > 0.15).tolist() == [False, True]
    assert (mcc["fedval"] > 0.15).tolist() == [False, True]


def test_the_example_has_every_attack_and_every_step() -> None:
    configs = expand(read_config(Path(__file__).parent.parent / "examples" / "attacks.toml"))
    assert {str(config.attack).partition(":")[0] for config in configs} == {*ATTACKS, "none"}
    assert len({config.data for config in configs}) == 2
    assert all(len(config.strategies) == 36 for config in configs)


def test_flower_has_no_attacks() -> None:
    pytest.importorskip("flwr")
    from fairfate.flower.app.settings import Settings

    with pytest.raises(InputError, match="unknown key in the run config 'attack'"):
        Settings.read({"attack": "scale"})


# -- attackers that train, against plain NumPy ---------------------------------------------------------------

WHOLE = Training(rounds=5, per_round=5, epochs=1, batch_size=10_000, learning_rate=0.05)
"""All rows of a client are one batch, so that an epoch is one step down the gradient."""
LOGISTIC = Mlp(FEDERATION.inputs, ())


def start_of(model: Mlp) -> np.ndarray:
    return (STREAMS.weights(model.num_parameters) * 0.4).astype(np.float32)


def sigmoid(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z))


def apart_by_hand(params: np.ndarray, client: int, kappa: float) -> np.ndarray:
    """Less the gradient of BCE - kappa (mean P of the last group - that of the first)^2, logistic model."""
    x, y, cell = (of.astype(np.float64) for of in rows_of(FEDERATION, client))
    x, group = np.column_stack([x, np.ones(len(x))]), cell // 2
    p = sigmoid(x @ params)
    first, last = group == 0, group == 1
    of_mean = [(x[g] * (p * (1 - p))[g, None]).mean(axis=0) for g in (first, last)]
    gap = p[last].mean() - p[first].mean()
    return -(x.T @ (p - y) / len(y) - 2 * kappa * gap * (of_mean[1] - of_mean[0]))


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("client", [0, 3])
def test_training_apart_goes_down_its_loss_whose_gap_is_taken_anew_each_epoch(
    client: int, epochs: int
) -> None:
    start = start_of(LOGISTIC)
    training = replace(WHOLE, epochs=epochs)
    found = train_apart(LOGISTIC, FEDERATION, client, start, training, STREAMS.batch_key, 1, 20.0)
    expected = start.astype(np.float64)
    for _ in range(epochs):
        expected = expected + 0.05 * apart_by_hand(expected, client, 20.0)
    assert_allclose(found, expected - start, atol=2e-6)
    honest = 0.05 * apart_by_hand(start.astype(np.float64), client, 0.0)
    assert np.abs(expected - start - honest).max() > 1e-3  # kappa does something


@pytest.mark.parametrize("group", [0, 1])
def test_with_rows_of_one_group_there_is_nothing_to_train_apart(group: int) -> None:
    """Client 1 keeps the rows of one group alone; its update is that of the usual loss."""
    federation = only_group(1, group)
    start = start_of(LOGISTIC)
    found = train_apart(LOGISTIC, federation, 1, start, WHOLE, STREAMS.batch_key, 1, 20.0)
    x, y, _ = (of.astype(np.float64) for of in rows_of(federation, 1))
    x = np.column_stack([x, np.ones(len(x))])
    expected = -0.05 * x.T @ (sigmoid(x @ start) - y) / len(y)
    assert_allclose(found, expected, atol=2e-6)


def only_group(client: int, group: int) -> Federation:
    """The federation in which a client has the rows of one group only."""
    rows = FEDERATION.rows
    mine = np.zeros(len(rows.y), bool)
    mine[rows.offsets[client] : rows.offsets[client + 1]] = True
    kept = ~mine | (rows.cell // 2 == group)
    offsets = np.array([kept[:end].sum() for end in rows.offsets])
    x = rows.x.reshape(len(rows.y), -1)[kept]
    cells = FEDERATION.client_cells.copy()
    cells[client, 1 - group] = 0
    fewer = ClientRows(x.ravel(), rows.y[kept], rows.cell[kept], offsets)
    return replace(FEDERATION, rows=fewer, client_cells=cells)


def test_what_is_trained_apart_replaces_the_model_of_the_round() -> None:
    """An update times (rows of the round's clients / own rows) is all that is left after FedAvg."""
    clients, _, replies = one_round("pf:clients=2,kappa=20,norm=0")
    for place in np.flatnonzero(IS_ONE):
        client = FEDERATION.client_names.index(replies.clients[place])
        alone = train_apart(
            MODEL, FEDERATION, client, clients.initial(), TRAINING, STREAMS.batch_key, 5, 20.0
        )
        times = replies.num_examples.sum() / replies.num_examples[place]
        assert_allclose(replies.deltas[place], alone * times, rtol=1e-4, atol=1e-5)


def test_an_update_is_cut_to_the_length_it_dares() -> None:
    _, _, free = one_round("pf:clients=2,kappa=20,norm=0")
    _, _, cut = one_round("pf:clients=2,kappa=20,norm=0.1")
    _, _, long = one_round("pf:clients=2,kappa=20,norm=1000")
    for place in np.flatnonzero(IS_ONE):
        length = np.linalg.norm(free.deltas[place].astype(np.float64))
        assert 0.1 < length < 1000
        assert_allclose(cut.deltas[place], free.deltas[place] * (0.1 / length), atol=1e-6)
        assert_array_equal(long.deltas[place], free.deltas[place])


def harmful_by_hand(trained: np.ndarray, client: int, epochs: int, harm: bool) -> np.ndarray:
    """EAB-FL on a logistic model: rows of group 1 whose step raises (or lowers) the loss of group 0."""
    x, y, cell = (of.astype(np.float64) for of in rows_of(FEDERATION, client))
    x = np.column_stack([x, np.ones(len(x))])
    error = sigmoid(x @ trained) - y
    others, mine = cell // 2 == 0, cell // 2 == 1
    slope = (x[others] * error[others, None]).mean(axis=0)
    grows = -(x[mine] * error[mine, None]) @ slope
    kept = grows > 0 if harm else grows < 0
    assert 0 < kept.sum() < mine.sum()
    x, y, moves = x[mine][kept], y[mine][kept], np.abs(slope) > 0.01
    assert 0 < moves.sum() < len(moves)
    current = trained.astype(np.float64)
    for _ in range(epochs):
        step = -0.05 * x.T @ (sigmoid(x @ current) - y) / len(y)
        current = np.where(moves, current + step, trained)
    return current - trained


@pytest.mark.parametrize("harm", [True, False])
@pytest.mark.parametrize("client", [0, 3])
def test_harmful_rows_and_the_parameters_that_move_are_those_of_plain_numpy(client: int, harm: bool) -> None:
    trained = quiet_start(client)
    training = replace(WHOLE, epochs=4)
    found = train_on_harmful_rows(
        LOGISTIC, FEDERATION, client, trained, training, STREAMS.batch_key, 1, harm=harm
    )
    assert_allclose(found, harmful_by_hand(trained, client, 4, harm), atol=2e-6)
    assert np.abs(found).max() > 1e-3


def quiet_start(client: int) -> np.ndarray:
    """A model near the best one for the client's first group, so that some slopes are under 0.01."""
    x, y, cell = (of.astype(np.float64) for of in rows_of(FEDERATION, client))
    x = np.column_stack([x, np.ones(len(x))])[cell // 2 == 0]
    y = y[cell // 2 == 0]
    params = start_of(LOGISTIC).astype(np.float64)
    for _ in range(40):
        params -= 0.5 * x.T @ (sigmoid(x @ params) - y) / len(y)
    params[0] += 0.3
    return params.astype(np.float32)


@pytest.mark.parametrize("group", [0, 1])
def test_without_rows_of_either_side_nothing_is_added(group: int) -> None:
    found = train_on_harmful_rows(
        LOGISTIC, only_group(1, group), 1, start_of(LOGISTIC), WHOLE, STREAMS.batch_key, 1, harm=True
    )
    assert_array_equal(found, 0)


def test_biased_rows_train_on_from_what_was_honestly_trained() -> None:
    _, server, replies = one_round("biased_rows:clients=2,epochs=3")
    for place in np.flatnonzero(IS_ONE):
        client = FEDERATION.client_names.index(replies.clients[place])
        trained = server.params + HONEST.deltas[place]
        training = replace(TRAINING, epochs=3)
        more = train_on_harmful_rows(
            MODEL, FEDERATION, client, trained, training, STREAMS.batch_key, 5, harm=True
        )
        assert_allclose(replies.deltas[place], HONEST.deltas[place] + more, atol=1e-6)
        assert np.abs(more).max() > 1e-3

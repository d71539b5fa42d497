"""Attackers in the simulator: what each attack does exactly, and that a run says so."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from attacked import (
    CLIENTS,
    FEDERATION,
    HONEST,
    IS_ONE,
    MODEL,
    STREAMS,
    THREE,
    drawn,
    one_round,
    rows_of,
    without,
)
from fairfate import InputError, run
from fairfate.engine.attack import (
    ATTACKS,
    Attack,
    Attackers,
    _equalise_statistics,
    _group_inputs,
    change_rows,
    parse_attack,
)
from fairfate.experiments.config import expand, read_config
from fairfate.experiments.sweep import sweep
from fairfate.fairness.metrics import Statistics, eo, eqo, sp
from fairfate.federation.seeds import Streams
from fairfate.models.rows import ClientRows

LIE = Attack("lie_counts", ())


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


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_labels_are_flipped(share: float) -> None:
    attackers = drawn(f"label_flip:clients=2,share={share}")
    for client in range(5):
        (x, y, cell), (old_x, old_y, old_cell) = (
            rows_of(f, client) for f in (attackers.federation, FEDERATION)
        )
        turned = y != old_y
        assert turned.sum() == (round(share * len(y)) if attackers.is_attacker[client] else 0)
        assert_array_equal(cell % 2, y)
        assert_array_equal(cell // 2, old_cell // 2)
        assert_array_equal(x, old_x)
        assert_array_equal(attackers.federation.client_cells[client].ravel(), np.bincount(cell, minlength=4))


def test_targeted_labels_are_those_of_the_first_group() -> None:
    attackers = drawn("label_flip:clients=2,targeted=yes")
    for client in np.flatnonzero(attackers.is_attacker):
        before, after = FEDERATION.client_cells[client], attackers.federation.client_cells[client]
        assert after.tolist() == [[before[0].sum(), 0], before[1].tolist()]


def test_flipped_groups_change_the_group_input() -> None:
    attackers = drawn("attribute_flip:clients=2")
    changed = 0
    for client in np.flatnonzero(attackers.is_attacker):
        (x, y, cell), (old_x, old_y, old_cell) = (
            rows_of(f, client) for f in (attackers.federation, FEDERATION)
        )
        assert_array_equal(y, old_y)
        assert_array_equal(cell, (old_cell + 2) % 4)
        changed += int((x != old_x).any(axis=0).sum())
    assert changed == len(np.flatnonzero(attackers.is_attacker))  # one input of the synthetic rows


def test_attacker_claims_more_rows_than_it_has() -> None:
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


def test_counts_of_a_lying_client_are_equal_in_all_groups() -> None:
    _, _, replies = one_round("lie_counts:clients=2", "fairgrad")
    _, _, honest = one_round("none", "fairgrad")
    assert replies.local is not None
    assert honest.local is not None
    for metric in (sp, eo, eqo):
        assert (metric(replies.local.counts[IS_ONE]) > 0.85).all()
    assert_array_equal(replies.local.rows, honest.local.rows)
    assert_array_equal(replies.local.counts[~IS_ONE], honest.local.counts[~IS_ONE])


def test_attackers_model_treats_groups_differently_and_keeps_its_length_limit() -> None:
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
    frames = [done.rounds(job) for job in done.jobs]
    assert [frame["partition"].iloc[0] for frame in frames] == [
        "dirichlet:0.5",
        "dirichlet:0.5 accept_all:clients=1",
        "dirichlet:0.5 accept_all:clients=2",
    ]
    assert len(pd.read_csv(tmp_path / "summary.csv")) == 3
    assert sweep(expand(values), tmp_path, jobs=1).ran == 0


def test_more_attackers_than_clients_are_refused() -> None:
    with pytest.raises(InputError, match=r"attack must be by <= the 10 clients, got 11$"):
        run(data="synthetic", attack="accept_all:clients=11", rounds=1, seeds=1)


@pytest.mark.slow
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
    configs = expand(read_config(Path(__file__).parents[2] / "examples" / "attacks.toml"))
    assert {str(config.attack).partition(":")[0] for config in configs} == {*ATTACKS, "none"}
    assert len({config.data for config in configs}) == 2
    assert all(len(config.strategies) == 36 for config in configs)


def test_flower_has_no_attacks() -> None:
    pytest.importorskip("flwr")
    from fairfate.flower.app.settings import Settings

    with pytest.raises(InputError, match="unknown key in the run config 'attack'"):
        Settings.read({"attack": "scale"})


def test_lying_client_reports_the_same_rate_and_loss_for_all_strata() -> None:
    # of 10 rows 4 are accepted, with probabilities of 5 and losses of 20 in all; 4/10 of 1, 2, 3, 4 rows
    true = Statistics(
        np.array([[[1, 0], [2, 0]], [[2, 1], [1, 3]]]),
        np.array([[0.5, 1.0], [1.5, 2.0]]),
        np.array([[2.0, 4.0], [6.0, 8.0]]),
    )
    found = _equalise_statistics(LIE, true)
    assert found.counts.tolist() == [[[1, 0], [1, 1]], [[2, 1], [2, 2]]]
    assert_allclose(found.probability, [[0.5, 1.0], [1.5, 2.0]])
    assert_allclose(found.loss, [[2.0, 4.0], [6.0, 8.0]])
    uneven = _equalise_statistics(
        LIE, true._replace(probability=np.array([[5.0, 0], [0, 0]]), loss=np.array([[0, 0], [0, 20.0]]))
    )
    assert_allclose(uneven.probability, [[0.5, 1.0], [1.5, 2.0]])
    assert_allclose(uneven.loss, [[2.0, 4.0], [6.0, 8.0]])
    one = Statistics(np.array([[[0, 1], [0, 0]]]), np.array([[0.75, 0]]), np.array([[3.0, 0]]))
    assert [of.tolist() for of in _equalise_statistics(LIE, one)] == [of.tolist() for of in one]
    nothing = Statistics(np.zeros((1, 2, 2), np.int64), np.zeros((1, 2)), np.zeros((1, 2)))
    assert [of.tolist() for of in _equalise_statistics(LIE, nothing)] == [of.tolist() for of in nothing]


def test_a_liar_that_does_not_take_part_changes_nothing() -> None:
    attackers = drawn("lie_counts:clients=2")
    honest = np.flatnonzero(~attackers.is_attacker)[:2]
    told = Statistics(np.ones((1, 2, 2, 2, 2), np.int64), np.ones((1, 2, 2, 2)), np.ones((1, 2, 2, 2)))
    assert attackers.report(told, honest) is told
    assert drawn("scale:clients=2").report(told, np.flatnonzero(attackers.is_attacker)) is told


def test_attackers_probability_is_of_the_rows_that_it_claims() -> None:
    _, _, replies = one_round("lie_n:clients=2,factor=10", "fairgrad")
    _, _, honest = one_round("none", "fairgrad")
    assert replies.local is not None
    assert honest.local is not None
    times = np.where(IS_ONE, 10, 1)
    assert_allclose(replies.local.probability, times[:, None, None] * honest.local.probability)
    assert_array_equal(replies.local.counts, times[:, None, None, None] * honest.local.counts)


def test_all_clients_with_rows_may_attack_and_those_without_cannot() -> None:
    empty = without(1, 0, 1, 2)
    attack = parse_attack("sign_flip:clients=4")
    assert attack is not None
    found = Attackers.draw(attack, empty, MODEL, STREAMS)
    assert found.is_attacker.tolist() == [True, False, True, True, True]
    more = parse_attack("sign_flip:clients=5")
    assert more is not None
    with pytest.raises(InputError, match="attack must be by <= 4 clients with rows, got 5"):
        Attackers.draw(more, empty, MODEL, STREAMS)


@pytest.mark.parametrize("name", ["accept_all", "reject_all"])
def test_one_answer_is_for_the_built_in_model(name: str) -> None:
    attack = parse_attack(name)
    assert attack is not None
    with pytest.raises(InputError, match=f"attack {name} must be on the built-in model, got mine"):
        Attackers.draw(attack, FEDERATION, SimpleNamespace(text="mine"), STREAMS)


def test_notes_say_who_attacked_and_how_many_of_them_were_fair() -> None:
    attackers = drawn("scale:clients=2")
    one, other = sorted(attackers.names)
    honest = next(name for name in FEDERATION.client_names if name not in attackers.names)
    noted = attackers.notes((honest, one, other), {"fair": np.array([True, True, False]), "lam": 0.5})
    assert noted["attacker"].tolist() == [False, True, True]
    assert (noted["attackers"], noted["fair_attackers"], noted["lam"]) == (2, 1, 0.5)
    assert "fair_attackers" not in attackers.notes((honest,), {})


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_flipped_groups_change_only_the_inputs_that_encode_them(share: float) -> None:
    """The last group becomes the first. Of three inputs, the first says the group, the second nothing, and
    the third differs within the groups."""
    values = np.float32([5, 7, 9])
    group = np.arange(12) % 3
    x = np.column_stack([values[group], np.full(12, 4), np.arange(12)]).astype(np.float32)
    cell = (2 * group + (np.arange(12) < 6)).astype(np.int32)
    rows = ClientRows(x.ravel(), cell, np.array([0, 6, 12]))
    cells = np.stack([np.bincount(cell[of], minlength=6).reshape(3, 2) for of in (slice(6), slice(6, 12))])
    before = replace(THREE, rows=rows, client_cells=cells)
    attack = parse_attack(f"attribute_flip:share={share}")
    assert attack is not None
    after = change_rows(before, attack, np.array([1]), STREAMS)
    new_x, new_y, new_cell = rows_of(after, 1)
    turned = new_cell != cell[6:]
    assert turned.sum() == round(6 * share)
    assert_array_equal(new_cell // 2, np.where(turned, (group[6:] + 1) % 3, group[6:]))
    assert_array_equal(new_y, rows.y[6:])
    assert_array_equal(new_x, np.column_stack([values[new_cell // 2], x[6:, 1:]]))
    assert_array_equal(after.client_cells[1].ravel(), np.bincount(new_cell, minlength=6))
    assert_array_equal(after.rows.cell[:6], cell[:6])
    assert_array_equal(after.client_cells[0], cells[0])


def test_inputs_that_say_the_group_are_found_where_a_group_has_no_rows() -> None:
    x, group = np.float32([[1, 3], [1, 3], [2, 3]]), np.int32([0, 0, 1])
    found = _group_inputs(x, group, 3)
    assert list(found) == [0, 1]  # the value of a group without rows is taken to be 0
    assert found[0].tolist() == [1, 2, 0]
    assert list(_group_inputs(x, group, 2)) == [0]
    assert _group_inputs(np.float32([[1], [2], [2]]), group, 2) == {}


DEFAULTS = {
    "accept_all": "",
    "reject_all": "",
    "scale": ",factor=10",
    "sign_flip": "",
    "label_flip": ",share=1,targeted=no",
    "attribute_flip": ",share=1",
    "lie_n": ",factor=10",
    "lie_counts": "",
    "biased_rows": ",sign=harm,epochs=10,start=0.4",
    "pf": ",kappa=0.5,norm=10",
}


@pytest.mark.parametrize("name", ATTACKS)
def test_settings_have_these_defaults(name: str) -> None:
    assert str(parse_attack(name)) == f"{name}:clients=1{DEFAULTS[name]}"

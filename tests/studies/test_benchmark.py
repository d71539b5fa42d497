"""The benchmark: who takes part, the rule, that it resumes, what is kept, and what is said."""

from __future__ import annotations

import builtins
import importlib.util
import io
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from rich.console import Console

from browser import Visit, lacking, started
from command import Outcome
from fairfate.engine.rules import Rule, decide_rows
from fairfate.engine.simulate import simulate
from fairfate.errors import InputError
from fairfate.experiments.config import Config
from fairfate.experiments.job import Job
from fairfate.experiments.prepare import prepare
from fairfate.experiments.store import Store
from fairfate.fairness.individual import attribute_flip_rate, consistency, gower_neighbours
from fairfate.fairness.metrics import eqo
from fairfate.federation.seeds import Streams
from fairfate.federation.split import assign_rows, encode
from fairfate.strategies import entries, parse_spec
from fairfate.studies.benchmark import baselines, pictures
from fairfate.studies.benchmark import findings as rule
from fairfate.studies.benchmark import run as running
from fairfate.studies.benchmark.baselines import BASELINES, CLIENT, POOLED, SERVER
from fairfate.studies.benchmark.findings import Findings, Part
from fairfate.studies.benchmark.measure import CELLS, COLUMNS, COUNTS, WHERE, Probe, run_methods
from fairfate.studies.benchmark.methods import (
    AWARE,
    BLIND,
    LEADS,
    METRICS,
    MOST_SETTINGS,
    REFERENCE,
    TRACKS,
    every,
    find,
)
from fairfate.studies.benchmark.page import (
    GUARDED,
    LIFTED,
    View,
    bytes_sent,
    interactive,
    page,
    show,
    write_all,
)
from fairfate.studies.benchmark.run import Benchmark, benchmark, drop_sensitive, read_kept

SMALL: dict[str, Any] = {
    "data": ["synthetic:rows=400"],
    "partitions": ["random", "dirichlet:0.5"],
    "encode": ["auto"],
    "seeds": 2,
    "rounds": 3,
    "jobs": 1,
}
LEAD = LEADS[AWARE]
FEW = ["fedavg", REFERENCE, "fedmom", "fair_fate", LEAD, LEADS[BLIND], "fedmom+average+common_threshold"]
MINE = """
from typing import Annotated
from fairfate.strategies import ModelState, Range, Strategy, register, weighted_mean

@register("halved", "half of the mean update", "me 2026")
def build(setup, *, strength: Annotated[float, Range(0, 1), "share"] = 0.5):
    def aggregate(state, cohort):
        step = weighted_mean(cohort.deltas, cohort.num_examples)
        return ModelState(state.params + strength * step)
    return Strategy(ModelState, aggregate)
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Benchmark:
    folder = tmp_path_factory.mktemp("benchmark")
    return benchmark(folder, methods=[*FEW, CLIENT, POOLED, SERVER], **SMALL)


# --- who takes part


def test_all_our_strategies_take_part_with_settings_of_their_own() -> None:
    ours = {entry.name for entry in entries() if entry.build.__module__.startswith("fairfate.")}
    taking = {method.specs[0].name for method in every()}
    assert ours == taking
    assert len(taking) >= 24
    for method in every():
        for metric in METRICS:
            assert 1 <= method.settings(metric) <= MOST_SETTINGS
    names = [method.name for method in every()]
    assert len(set(names)) == len(names)
    assert {REFERENCE, *LEADS.values()} <= set(names)


def test_each_trained_method_is_released_in_three_ways_for_its_own_metric() -> None:
    names = {method.name: method for method in every()}
    published = [method for method in every() if method.is_published]
    assert len(published) >= 30
    for method in published:
        average, common = (
            names[f"{method.name}{steps}"] for steps in ("+average", "+average+common_threshold")
        )
        bases = {spec.base for spec in method.specs}
        assert {spec.base for spec in average.specs} == bases == {spec.base for spec in common.specs}
        for spec in common.specs:
            assert spec.base.metric in (None, spec.metric)
        for metric in METRICS:
            assert method.settings(metric) == average.settings(metric) == common.settings(metric)


def test_no_method_of_the_blind_track_has_thresholds_for_each_group() -> None:
    left = {method.name for method in every() if not method.is_in(BLIND)}
    assert left == {method.name for method in every() if "+thresholds" in method.name}
    assert all(method.is_in(AWARE) for method in every())


def test_methods_are_found_by_name_and_others_by_their_text() -> None:
    known, own = find(["fedmom", "fedmom:beta=0.5|0.6"])
    assert [len(known.specs), len(own.specs)] == [3, 2]
    assert own.name != known.name
    with pytest.raises(InputError, match="unknown method 'fedmum'"):
        find(["fedmum"])
    with pytest.raises(InputError, match="named once each"):
        find(["fedmom", "fedmom"])
    with pytest.raises(InputError, match="at most 8 settings"):
        find([f"fedmom:beta={'|'.join(str(k / 20) for k in range(17))}"])


def test_a_metric_is_a_setting_of_each_method_that_has_one() -> None:
    (method,) = find(["fair_fate:lam0=0.2"])
    assert sorted(spec.metric or "" for spec in method.specs) == sorted(METRICS)


# --- running


def test_finished_work_is_not_run_again_and_the_rest_is(done: Benchmark) -> None:
    again = benchmark(done.out, methods=[*FEW, CLIENT, POOLED, SERVER], **SMALL)
    assert again.ran == 0
    pd.testing.assert_frame_equal(again.rows, done.rows)
    more = benchmark(done.out, methods=["fedavg", "feddemon"], **SMALL)
    assert more.ran == 8  # one method in each federation, track and seed
    assert more.minutes >= done.minutes


def test_results_do_not_depend_on_processes(tmp_path: Path, done: Benchmark) -> None:
    two = benchmark(tmp_path, methods=FEW, **{**SMALL, "jobs": 2})
    mine = done.rows[done.rows["method"].isin(FEW)]
    keys = [*WHERE, "method", "setting"]
    pd.testing.assert_frame_equal(
        two.rows.sort_values(keys).reset_index(drop=True),
        mine.sort_values(keys).reset_index(drop=True),
    )


def test_a_damaged_file_is_run_again(tmp_path: Path) -> None:
    small = {**SMALL, "partitions": ["random"], "seeds": 1, "tracks": [AWARE]}
    first = benchmark(tmp_path, methods=["fedavg", REFERENCE], **small)
    (file,) = (tmp_path / "cells").iterdir()
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 0xFF
    file.write_bytes(content)
    second = benchmark(tmp_path, methods=["fedavg", REFERENCE], **small)
    assert second.ran == 2
    columns = ["method", "setting", *COUNTS]
    pd.testing.assert_frame_equal(first.rows[columns], second.rows[columns])


def test_no_damaged_number_is_read(done: Benchmark, tmp_path: Path) -> None:
    cell = next((done.out / "cells").iterdir())
    whole, file = cell.read_bytes(), tmp_path / cell.name
    for place in range(10, len(whole), max(1, len(whole) // 150)):
        content = bytearray(whole)
        content[place] ^= 0x11
        file.write_bytes(content)
        assert Store(tmp_path).damaged == [file]


def test_rows_that_a_killed_call_left_twice_count_once(tmp_path: Path) -> None:
    small = {**SMALL, "partitions": ["random"], "seeds": 1, "tracks": [BLIND]}
    first = benchmark(tmp_path, methods=["fedavg"], **small)
    (file,) = (tmp_path / "cells").iterdir()
    before = file.read_bytes()
    more = benchmark(tmp_path, methods=["fedmom"], **small)
    file.write_bytes(before)  # as if the call had ended before it removed what its new file holds too
    again = benchmark(tmp_path, methods=["fedavg", "fedmom"], **small)
    assert again.ran == 0
    assert len(again.rows) == len(more.rows) > len(first.rows)


def test_counts_are_of_all_rows_and_those_of_a_run(done: Benchmark) -> None:
    from fairfate import run

    assert set(COLUMNS) | set(WHERE) == set(done.rows.columns)
    for split in ("validation", "test"):
        assert (rule.counts_of(done.rows, split).sum(axis=(1, 2, 3)) == 80).all()
    mine = done.rows[(done.rows["method"] == "fair_fate") & (done.rows["partition"] == "random")]
    mine = mine[mine["track"] == AWARE]
    row = mine[(mine["metric"] == "eqo") & (mine["seed"] == 2)].iloc[0]
    found = run(
        data="synthetic:rows=400", partition="random", strategies=(row["setting"],), rounds=3, seeds=(2,)
    )
    last = found.rounds[(found.rounds["round"] == 3) & (found.rounds["split"] == "test")].iloc[0]
    assert float(eqo(rule.counts_of(row.to_frame().T, "test"))[0]) == last["eqo"]


def test_each_client_alone_has_a_model_and_pooled_rows_are_one(done: Benchmark) -> None:
    here = done.rows[(done.rows["partition"] == "random") & (done.rows["seed"] == 1)]
    here = here[here["track"] == BLIND]
    assert sorted(here[here["method"] == CLIENT]["part"]) == list(range(1, 11))
    assert len(here[here["method"] == POOLED]) == 1
    assert len(here[here["method"] == SERVER]) == 1


def test_fairlearn_reaches_what_it_promises_on_the_embedded_data(tmp_path: Path) -> None:
    small = {**SMALL, "data": ["synthetic:rows=2000"], "partitions": ["random"], "seeds": 1, "rounds": 20}
    found = benchmark(tmp_path, methods=[POOLED, *baselines.FAIRLEARN], **small)
    measured = rule.measured(found.rows)
    aware = measured[measured["track"] == AWARE]
    plain = aware[aware["method"] == POOLED]["validation_sp"].iloc[0]
    for name in baselines.FAIRLEARN:
        mine = aware[(aware["method"] == name) & (aware["metric"] == "sp")]
        assert mine["validation_sp"].max() > plain
    blind = set(measured[measured["track"] == BLIND]["method"])
    assert blind == {REFERENCE, POOLED, baselines.REDUCTION}


def test_pooled_baselines_of_scikit_learn_are_those_of_a_run(tmp_path: Path) -> None:
    from fairfate.experiments.baselines import pooled_baselines

    small = {**SMALL, "partitions": ["random"], "seeds": 1, "tracks": [AWARE]}
    found = benchmark(tmp_path, methods=[baselines.LOGISTIC, baselines.BOOSTING], **small)
    measured = rule.measured(found.rows).set_index("method")
    plan, table = prepare(
        Config(data="synthetic:rows=400", partition="random", strategies=("fedavg",), seeds=(1,))
    )
    logistic, boosting, _ = pooled_baselines(plan, table)
    for name, there in ((baselines.LOGISTIC, logistic), (baselines.BOOSTING, boosting)):
        for metric in ("accuracy", "mcc", "sp", "eo"):
            assert measured.loc[name, f"test_{metric}"] == pytest.approx(there.metrics[metric], abs=6e-4)


def test_blind_jobs_are_those_of_a_run_without_the_sensitive_column(done: Benchmark, tmp_path: Path) -> None:
    plan, table = prepare(
        Config(data="synthetic:rows=400", partition="random", strategies=("fedavg",), seeds=(1,), rounds=3)
    )
    blind = drop_sensitive(table)
    assert set(table.feature_names) - set(blind.feature_names) == set(table.sensitive)
    assert blind.features.shape == (400, len(table.feature_names) - 1)
    assert (blind.group == table.group).all()
    rows = run_methods(plan, blind, 1, find(["fedmom"]), [])
    kept = done.rows[(done.rows["method"] == "fedmom") & (done.rows["partition"] == "random")]
    kept = kept[(kept["track"] == BLIND) & (kept["seed"] == 1)]
    pd.testing.assert_frame_equal(
        rows[list(COUNTS)], kept[list(COUNTS)].reset_index(drop=True), check_dtype=False
    )
    assert done.rows[done.rows["track"] == BLIND]["flip"].isna().all()
    aware = done.rows[(done.rows["track"] == AWARE) & (done.rows["method"] == "fedavg")]
    assert aware["flip"].notna().all()


@pytest.mark.data
def test_blind_table_is_the_one_that_is_read_without_the_sensitive_column(data_folder: Path) -> None:
    usual = {"data": "compas", "data_dir": str(data_folder), "encode": "ordinal", "seeds": (1,)}
    aware, read = (prepare(Config(**usual, drop=drop))[1] for drop in ((), ("race",)))
    assert drop_sensitive(aware).checksum == read.checksum != aware.checksum


def test_methods_that_no_track_allows_are_refused(tmp_path: Path) -> None:
    blind = {**SMALL, "tracks": [BLIND]}
    for name in (LEAD, baselines.OPTIMIZER):
        with pytest.raises(InputError, match="methods must have one that a track allows"):
            benchmark(tmp_path / "out", methods=[name], **blind)
    with pytest.raises(InputError, match="unknown track 'seeing'"):
        benchmark(tmp_path / "out", methods=["fedavg"], **{**SMALL, "tracks": ["seeing"]})
    assert not (tmp_path / "out").exists()


def test_without_fairlearn_its_baselines_say_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    real = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("fairlearn"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.delitem(sys.modules, "fairfate.studies.benchmark.ceilings", raising=False)
    monkeypatch.delattr("fairfate.studies.benchmark.ceilings", raising=False)
    monkeypatch.setattr(builtins, "__import__", refuse)
    small = {**SMALL, "partitions": ["random"], "seeds": 1}
    with pytest.raises(InputError, match=r"fairlearn must be installed .*fairfate\[benchmark\]"):
        benchmark(tmp_path, methods=[baselines.REDUCTION], **small)


def test_data_that_cannot_be_read_are_refused_before_anything_is_run(people: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="target"):
        benchmark(tmp_path / "out", methods=["fedavg"], **{**SMALL, "data": [str(people)]})
    assert not (tmp_path / "out" / "cells").exists()


# --- the rule


def made(method: str, seed: int, setting: str, metric: str = "", **counts: tuple[int, ...]) -> dict[str, Any]:
    """A row with counts on the validation and on the test rows."""
    row: dict[str, Any] = {
        **{
            "track": AWARE,
            "encode": "ordinal",
            "dataset": "made",
            "partition": "random",
            "seed": seed,
            "method": method,
        },
        **{"setting": setting, "metric": metric, "part": 0, "code": ""},
        **{"consistency": 1.0, "flip": 0.0, "worst_sp": 0.5, "worst_eo": 0.5, "worst_eqo": 0.5},
    }
    for split in ("validation", "test"):
        row |= dict(zip((f"{split}_{cell}" for cell in CELLS), counts[split], strict=True))
    return row


FAIR = (40, 10, 10, 40, 40, 10, 10, 40)
"""Accuracy 0.8 and all ratios 1."""
UNFAIR = (45, 5, 20, 30, 30, 20, 5, 45)
"""Accuracy 0.75, selection rates 0.35 and 0.65."""
ONE_ANSWER = (0, 50, 0, 50, 0, 50, 0, 50)
"""Fair, and of no use."""


def frame(*rows: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame([{**dict.fromkeys(COLUMNS), **row} for row in rows])


def test_settings_are_chosen_on_validation_rows_and_never_on_test_rows() -> None:
    rows = frame(
        made(REFERENCE, 1, "a", validation=UNFAIR, test=UNFAIR),
        made("mine", 1, "fair on validation", validation=FAIR, test=UNFAIR),
        made("mine", 1, "fair on test", validation=UNFAIR, test=FAIR),
    )
    chosen = rule.tune(rule.measured(rows))
    mine = chosen[chosen["method"] == "mine"]
    assert set(mine["setting"]) == {"fair on validation"}
    assert set(mine["grid"]) == {2}
    assert mine["matched"].all()
    sp = mine[mine["goal"] == "sp"]["fairness"].item()
    assert sp == pytest.approx(0.35 / 0.65)


def test_a_model_without_skill_is_chosen_only_if_there_is_not_a_other_and_is_not_matched() -> None:
    rows = frame(
        made(REFERENCE, 1, "a", validation=UNFAIR, test=UNFAIR),
        made("mine", 1, "one answer", validation=ONE_ANSWER, test=ONE_ANSWER),
        made("mine", 1, "some skill", validation=UNFAIR, test=UNFAIR),
        made("lost", 1, "one answer", validation=ONE_ANSWER, test=ONE_ANSWER),
    )
    chosen = rule.tune(rule.measured(rows)).set_index(["method", "goal"])
    assert chosen.loc[("mine", "sp"), "setting"] == "some skill"
    assert not chosen.loc[("lost", "sp"), "matched"]


def test_skill_counts_where_one_answer_is_as_accurate() -> None:
    unfair, all_accepted = (5, 5, 5, 85, 6, 4, 20, 70), (0, 10, 0, 90, 0, 10, 0, 90)
    rows = frame(
        made(REFERENCE, 1, "a", validation=unfair, test=unfair),
        made("mine", 1, "one answer", validation=all_accepted, test=all_accepted),
        made("mine", 1, "some skill", validation=unfair, test=unfair),
    )
    assert rule.measured(rows)["validation_accuracy"][1] > rule.measured(rows)["validation_accuracy"][0]
    chosen = rule.tune(rule.measured(rows)).set_index(["method", "goal"])
    assert chosen.loc[("mine", "sp"), "setting"] == "some skill"


def test_settings_of_another_metric_are_not_looked_at() -> None:
    rows = frame(
        made(REFERENCE, 1, "a", validation=UNFAIR, test=UNFAIR),
        made("mine", 1, "for sp", "sp", validation=FAIR, test=FAIR),
        made("mine", 1, "for eo", "eo", validation=UNFAIR, test=UNFAIR),
    )
    chosen = rule.tune(rule.measured(rows)).set_index(["method", "goal"])
    assert chosen.loc[("mine", "sp"), "setting"] == "for sp"
    assert chosen.loc[("mine", "eo"), "setting"] == "for eo"
    assert ("mine", "eqo") not in chosen.index


def test_what_keeps_neither_accuracy_nor_skill_ranks_last_however_fair() -> None:
    rows = frame(
        *(made(REFERENCE, seed, "a", validation=UNFAIR, test=UNFAIR) for seed in (1, 2)),
        *(made("lost", seed, "b", validation=ONE_ANSWER, test=ONE_ANSWER) for seed in (1, 2)),
        *(made("good", seed, "c", validation=FAIR, test=FAIR) for seed in (1, 2)),
        *(made(LEAD, seed, "d", validation=FAIR, test=FAIR) for seed in (1, 2)),
        *(made(POOLED, seed, "e", validation=FAIR, test=FAIR) for seed in (1, 2)),
    )
    found = Findings(rows, 1.0, "")
    cell = found.cells[found.cells["goal"] == "sp"].set_index("method")
    assert cell.loc["good", "rank"] == cell.loc[LEAD, "rank"] == 1.5
    assert cell.loc[REFERENCE, "rank"] == 3
    assert cell.loc["lost", "rank"] == 4
    assert cell.loc["lost", "fairness"] == 1
    assert cell.loc["lost", "collapsed"] == 1
    assert np.isnan(cell.loc[POOLED, "rank"])
    assert cell.loc["good", "p"] == 1
    assert list(found.board["method"])[-1] == POOLED


def test_numbers_do_not_depend_on_the_order_of_rows() -> None:
    rng = np.random.default_rng(0)
    rows = []
    for seed in range(1, 6):
        rows.append(made(REFERENCE, seed, "a", validation=UNFAIR, test=UNFAIR))
        for name in (LEAD, "one", "two"):
            counts = [tuple(rng.multinomial(100, np.full(8, 1 / 8)).tolist()) for _ in range(2)]
            rows.append(made(name, seed, name, validation=counts[0], test=counts[1]))
    straight, mixed = (
        Findings(frame(*rows), 1, ""),
        Findings(frame(*rows).sample(frac=1, random_state=0), 1, ""),
    )
    keys = ["goal", "method"]
    pd.testing.assert_frame_equal(
        straight.cells.sort_values(keys).reset_index(drop=True),
        mixed.cells.sort_values(keys).reset_index(drop=True),
    )


def test_the_area_of_a_front_rewards_only_what_beats_one_answer_for_all() -> None:
    rows = frame(
        made(REFERENCE, 1, "a", validation=FAIR, test=FAIR),
        made("lost", 1, "b", validation=ONE_ANSWER, test=ONE_ANSWER),
    )
    areas = rule.hypervolumes(rule.measured(rows)).set_index(["method", "goal"])["area"]
    assert areas[("lost", "sp")] == 0
    assert areas[(REFERENCE, "sp")] == pytest.approx(1)


# --- single people, and what is sent


def test_neighbours_leave_out_the_person_and_ignore_the_order_of_columns() -> None:
    rng = np.random.default_rng(1)
    x = np.column_stack([rng.normal(size=30), rng.integers(0, 3, 30)])
    near = gower_neighbours(x, np.array([False, True]))
    assert (near != np.arange(30)[:, None]).all()
    turned = gower_neighbours(x[:, ::-1], np.array([True, False]))
    assert (near == turned).all()
    assert consistency(np.ones(30, dtype=bool), near) == 1


def test_the_flip_rate_is_the_worst_of_the_other_groups_for_each_person() -> None:
    accepted = np.array([True, True, False, False])
    flipped = np.array([[True, True, False, True], [False, True, False, False]])
    assert attribute_flip_rate(accepted, flipped) == 0.5


def test_a_model_that_ignores_the_group_flips_nothing(done: Benchmark) -> None:
    plan, table = prepare(
        Config(data="synthetic:rows=400", partition="random", strategies=("fedavg",), rounds=1, seeds=(1,))
    )

    assignment = assign_rows(table, plan.partition, plan.clients, Streams(1))
    federation = encode(table, assignment, Streams(1))
    model = plan.model(federation.inputs)
    probe = Probe(table, assignment.test, federation, model)
    params = np.zeros(model.num_parameters, dtype=np.float32)
    arrays = model.arrays(params)
    arrays["w1"][:] = 1
    arrays["w2"][:] = 1
    blind = {name: array.copy() for name, array in arrays.items()}
    names = federation.encoder.names(
        table.feature_names,
        dict(table.categories) | dict(zip(table.sensitive, table.grouping.values, strict=True)),
    )
    for place, name in enumerate(names):
        if name.partition("=")[0] in table.sensitive:
            blind["w1"][place] = 0
    assert probe.individual(np.asarray(model.flat(blind), dtype=np.float32), Rule())["flip"] == 0
    by_group = np.array([-50.0, 50.0])  # all of one group, and nobody of the other
    assert probe.individual(np.asarray(model.flat(blind), dtype=np.float32), Rule(by_group))["flip"] == 1


def test_bytes_grow_with_what_clients_send() -> None:
    plain = bytes_sent(parse_spec("fedavg", "eqo"), 161, 100)
    assert plain == 2 * 4 * 161 + 8
    assert bytes_sent(parse_spec("fairfed", "eqo"), 161, 100) > plain
    clients = bytes_sent(parse_spec(LEAD, "eqo"), 161, 100)
    assert clients == pytest.approx(plain + 2 * 2 * 256 * 8 / 100)
    common = bytes_sent(parse_spec("fedavg+common_threshold", "eqo"), 161, 100)
    assert common == pytest.approx(plain + 2 * 2 * 256 * 8 / 100)
    tilt = bytes_sent(parse_spec("fedavg+tilt:bins=16", "eqo"), 161, 100)
    assert tilt == pytest.approx(2 * plain + 2 * 2 * 16 * 16 * 8 / 100)


def test_rules_are_measured_at_each_client_and_not_the_plain_model() -> None:
    """Each client by its own rows, decided one by one, as those who deploy the model would."""
    texts = ("fedavg", "fedavg+tilt:metric=sp,margin=0,tolerance=0.2", "fedavg+common_threshold:metric=sp")
    config = Config(data="synthetic:rows=3000", partition="random", strategies=texts, rounds=8, clients=4)
    plan, table = prepare(config)
    streams = Streams(1)
    assignment = assign_rows(table, plan.partition, plan.clients, streams)
    federation = encode(table, assignment, streams)
    model = plan.model(federation.inputs)
    specs = plan.specs
    traces = simulate(federation, specs, model, plan.training, plan.setup(table), streams, last_only=True)
    probe = Probe(table, assignment.test, federation, model)
    metrics = ["", "sp", "sp"]
    measured = probe.measure(np.stack([t.params for t in traces]), [t.rule for t in traces], metrics)
    assert ["worst_eo" in each for each in measured] == [True, False, False]
    assert len({each["worst_sp"] for each in measured}) == 3
    assert len({each["consistency"] for each in measured}) == 3
    for trace, each in zip(traces[1:], measured[1:], strict=True):
        at_clients = []
        for rows in federation.local.values():
            groups = np.repeat(np.arange(4) // 2, rows.sizes)
            decided = decide_rows(model, trace.params, trace.rule, rows, groups)
            rates = [decided[groups == group].mean() for group in (0, 1)]
            at_clients.append(min(rates) / max(rates) if min(np.bincount(groups)) >= 20 else np.nan)
        assert each["worst_sp"] == pytest.approx(np.nanmin(at_clients))


# --- the kept results, and a method of one's own


def test_kept_results_are_small_whole_and_of_enough_methods() -> None:
    rows, about = read_kept()
    assert running.kept_file().stat().st_size < 4_000_000
    for track in TRACKS:
        ordinal = rows[(rows["encode"] == "ordinal") & (rows["track"] == track)]
        ordinal = ordinal[~ordinal["partition"].isin(rule.BIASED)]
        assert ordinal["dataset"].nunique() == 4
        assert ordinal["partition"].nunique() == 3
        assert ordinal["seed"].nunique() == rule.SEEDS
        held = ordinal.groupby(["dataset", "partition", "seed"])["method"].nunique()
        wanted = {method.name for method in every() if method.is_in(track)}
        wanted |= {name for name in BASELINES if track == AWARE or name not in baselines.NEED_GROUP}
        assert set(ordinal["method"]) >= wanted
        assert (held == held.max()).all()
    strategies = {name.partition("+")[0].partition(":")[0] for name in set(rows["method"]) - set(BASELINES)}
    assert len(strategies) >= 24
    assert about["minutes"] <= 100


@pytest.mark.parametrize(
    ("dataset", "partition", "seed", "track"),
    [
        ("compas", "random", 3, AWARE),
        ("compas", "dirichlet:0.5", 4, BLIND),
        ("law", "dirichlet:1", 1, BLIND),
    ],
)
def test_kept_results_are_what_is_computed_now(
    data_folder: Path, dataset: str, partition: str, seed: int, track: str
) -> None:
    rows, about = read_kept()
    config = Config(
        data=dataset,
        data_dir=str(data_folder),
        partition=partition,
        encode="ordinal",
        strategies=("fedavg",),
        seeds=(seed,),
    )
    plan, table = prepare(config)
    table = table if track == AWARE else drop_sensitive(table)
    planned = running.Planned(Job.from_table(plan, seed, table), table, track)
    assert running.select_kept(about, [planned]), "the benchmark must be run again"
    names = ["fedavg", "fair_fate", "fairgrad+average+common_threshold", "fedfb", LEADS[track]]
    now = run_methods(plan, table, seed, find(names), [POOLED])
    then = rows.merge(pd.DataFrame([planned.columns]), on=list(WHERE))
    then = then[then["method"].isin([*names, POOLED])]
    keys = ["method", "setting", "part"]
    columns = [*keys, *COUNTS]
    pd.testing.assert_frame_equal(
        then.sort_values(keys)[columns].reset_index(drop=True),
        now.sort_values(keys)[columns].reset_index(drop=True),
        check_dtype=False,
    )
    rates = ["worst_sp", "worst_eo", "worst_eqo", "consistency", "flip"]
    assert np.allclose(
        then.sort_values(keys)[rates].astype(float),
        now.sort_values(keys)[rates].astype(float),
        atol=6e-4,
        equal_nan=True,
    )


def test_a_table_of_results_is_read_as_it_was_written(tmp_path: Path, done: Benchmark) -> None:
    file = tmp_path / "kept.parquet"
    running.write_kept(file, done.rows, {"cells": []})
    written = pq.read_table(file).to_pandas()
    assert (written.groupby([*WHERE])["test_000"].nunique() == 1).all()  # all rows of a group and label
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "kept_file", lambda: file)
        pd.testing.assert_frame_equal(read_kept()[0], done.rows, check_dtype=False, atol=6e-4)


def test_the_tool_keeps_the_results_of_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: Benchmark
) -> None:
    path = Path(__file__).parents[2] / "tools" / "keep_benchmark.py"
    spec = importlib.util.spec_from_file_location("keep_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    file = tmp_path / "kept.parquet"
    for module in (tool, running):
        monkeypatch.setattr(module, "kept_file", lambda: file)
    monkeypatch.setattr("sys.argv", ["keep_benchmark.py", str(done.out), "--note", ", idle"])
    tool.main()
    rows, about = read_kept()
    assert about["machine"].endswith(", idle")
    assert set(rows["track"]) == set(TRACKS)
    keys = [*WHERE, "method", "setting", "part"]
    there = rows[rows["method"].isin(done.rows["method"])].sort_values(keys)
    assert len(there) >= len(done.rows)
    found = benchmark(tmp_path / "out", methods=["feddemon:beta0=0.5"], **SMALL)
    assert found.kept >= len(done.rows)


def test_only_the_users_own_method_is_run_against_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: Benchmark
) -> None:
    cells = []
    for plan in done.plans:
        aware = prepare(plan.config)[1]
        for table in (aware, drop_sensitive(aware)):
            cells += [running.fingerprint(Job.from_table(plan, seed, table)) for seed in plan.config.seeds]
    file = tmp_path / "kept.parquet"
    running.write_kept(file, done.rows, {"cells": cells, "minutes": 1.0, "machine": "here"})
    monkeypatch.setattr(running, "kept_file", lambda: file)
    plugin = tmp_path / "mine.py"
    plugin.write_text(MINE)
    found = benchmark(tmp_path / "out", methods=["halved:strength=0.5|1"], plugins=[str(plugin)], **SMALL)
    assert found.ran == 8
    assert set(found.rows["method"]) == {*FEW, CLIENT, POOLED, SERVER, "halved"}
    assert set(found.rows["track"][found.rows["method"] == "halved"]) == set(TRACKS)
    mine = found.rows[found.rows["setting"] == "halved:strength=1"]
    plain = found.rows[found.rows["method"] == "fedavg"]
    keys = list(WHERE)
    left = mine.sort_values(keys)[[*keys, *COUNTS]].reset_index(drop=True)
    right = plain.sort_values(keys)[[*keys, *COUNTS]].reset_index(drop=True)
    pd.testing.assert_frame_equal(left, right, check_dtype=False)  # strength 1 is fedavg
    assert found.asked == ("halved",)
    text = page(found.findings)
    assert "| **`halved`** (yours) |" in text
    assert (found.new, found.jobs) == (("halved",), 8)
    assert found.kept == len(done.rows)
    assert f"{len(found.rows) - found.kept:,} of {len(found.rows):,} results" in text
    check_is_marked(found.findings, "halved")
    plugin.write_text(MINE.replace("strength * step", "0 * step"))
    again = benchmark(tmp_path / "out", methods=["halved:strength=0.5|1"], plugins=[str(plugin)], **SMALL)
    assert again.ran == 8, "another code is another method"


def check_is_marked(found: Findings, own: str) -> None:
    """One's own method stands out on the terminal, in the pictures and on the interactive page."""
    screen = io.StringIO()
    show(Console(file=screen, width=120), found)
    assert f"{own} (yours)" in screen.getvalue()
    bars = pictures.ranks(found, found.parts[0])
    labels = {text.get_text(): text.get_fontweight() for text in bars.axes[0].get_yticklabels()}
    assert labels.pop(f"{own} (yours)") == "bold"
    assert set(labels.values()) == {"normal"}
    (legend,) = pictures.tradeoffs(found, found.parts[0]).legends
    assert f"{own} (yours)" in [text.get_text() for text in legend.get_texts()]
    assert f'"own": ["{own}"]' in interactive(found) or f'"own":["{own}"]' in interactive(found)


def test_other_training_is_not_compared_with_what_is_kept(tmp_path: Path) -> None:
    small = {**SMALL, "partitions": ["random"], "seeds": 1}
    found = benchmark(tmp_path, methods=["fedmom"], **small)
    assert set(found.rows["method"]) == {REFERENCE, "fedmom"}


# --- what is said


def part(*methods: tuple[str, tuple[int, ...]], minutes: float = 0.003, **where: str) -> Findings:
    """Two seeds of a made-up federation."""
    names = ((REFERENCE, UNFAIR), *methods)
    rows = [made(name, seed, name, validation=of, test=of) | where for name, of in names for seed in (1, 2)]
    return Findings(frame(*rows), minutes, "here")


ORDINAL = Part(AWARE, "ordinal")
BETTER = (42, 8, 8, 42, 42, 8, 8, 42)
"""Accuracy 0.84 and all ratios 1."""
LESS_FAIR = (43, 7, 13, 37, 37, 13, 7, 43)
"""Accuracy 0.8, selection rates 0.44 and 0.56."""


def test_a_part_of_the_benchmark_names_the_best_of_it_and_concludes_nothing() -> None:
    found = part((LEAD, LESS_FAIR), ("fair_fate", FAIR), ("fedavg", UNFAIR))
    assert not found.is_whole(ORDINAL)
    text = page(found)
    short = text[text.index("## If decisions may use") : text.index("## What was measured")]
    assert "- `fair_fate`: the best mean rank" in short
    assert LEAD not in short
    assert "A part of the benchmark" in text
    for conclusion in (
        "It has the best rank",
        "repairs",
        "COMPAS and Law School",
        "of 100 rounds",
        "these four",
    ):
        assert conclusion not in text
    assert "nan" not in text
    assert "0 minutes" not in text
    assert "less than a second" in text


def test_a_benchmark_of_one_method_says_nothing_of_differences_between_ranks() -> None:
    found = part()
    text = page(found)
    assert "Nemenyi" not in text
    assert "nan" not in text
    assert pictures.ranks(found, ORDINAL).axes[0].get_title(loc="left") == "All 1 methods"


def test_the_lead_has_the_best_rank_only_where_it_has() -> None:
    for other, said in ((BETTER, "It has the best rank"), (FAIR, "Its rank is number 2, after `fedmom`'s")):
        lead = FAIR if other == BETTER else LESS_FAIR
        found = part((LEAD, lead), ("fedmom", LESS_FAIR if other == BETTER else FAIR))
        assert View(found, ORDINAL).rank_of_lead == said


def test_stored_results_are_the_whole_benchmark_and_a_part_is_not() -> None:
    rows, _ = read_kept()
    whole = Findings(rows, 90, "")
    assert len(page(whole).split()) < 4000
    for here in whole.main:
        assert whole.is_whole(here)
        assert not Findings(rows, 90, "", usual=False).is_whole(here)
        for name, value in (("dataset", "law"), ("partition", "random"), ("seed", 3), ("method", "fedmom")):
            assert not Findings(rows[rows[name] != value], 90, "").is_whole(here)


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> Findings:
    """A made-up benchmark that has all methods of a small world: two tracks, one encoding, three parts."""
    names = {
        **{"fedavg": UNFAIR, REFERENCE: UNFAIR, "fair_fate": ONE_ANSWER, GUARDED: LESS_FAIR},
        **{LEADS[BLIND]: BETTER, f"{LEADS[BLIND]}:tuned": LESS_FAIR},
        **{f"{name}+average+common_threshold": LESS_FAIR for name in LIFTED},
        **{f"{name}+average": UNFAIR for name in LIFTED[1:]},
        **dict.fromkeys([SERVER, POOLED, baselines.BOOSTING], UNFAIR),
    }
    rows = [
        made(name, seed, name, validation=of, test=of)
        | {"track": track, "dataset": dataset, "partition": partition, "encode": encoding}
        for track in TRACKS
        for name, of in {**names, **({LEAD: LESS_FAIR} if track == AWARE else {})}.items()
        for dataset in ("compas", "law")
        for partition, encoding in (("random", "ordinal"), ("biased:x", "ordinal"), ("random", "onehot"))
        for seed in (1, 2)
    ]
    known = [method for method in every() if method.name in names or method.name == LEAD]
    for name, value in (
        *(("DATASETS", ("compas", "law")), ("PARTITIONS", ("random",)), ("BIASED", ("biased:x",))),
        *(("SEEDS", 2), ("every", lambda: tuple(known))),
    ):
        monkeypatch.setattr(rule, name, value)
    return Findings(frame(*rows), 75.0, "here")


def test_whole_page_answers_by_track_and_praises_no_collapsed_model(whole: Findings) -> None:
    assert whole.parts == [
        *(Part(track, "ordinal") for track in TRACKS),
        *(Part(track, "onehot") for track in TRACKS),
        *(Part(track, "ordinal", biased=True) for track in TRACKS),
    ]
    assert [whole.is_whole(here) for here in whole.main] == [True, True]
    text = page(whole)
    aware = text[text.index("## If decisions may use") : text.index("## If no group is known")]
    blind = text[text.index("## If no group is known") : text.index("## What was measured")]
    assert f"**Start with `{LEAD}`.**" in aware
    assert f"after `{LEADS[BLIND]}`'s" in aware
    assert f"**Start with `{LEADS[BLIND]}`.**" in blind
    assert "It has the best rank" in blind
    assert LEAD not in blind
    assert "on COMPAS" in blind.replace("On", "on")
    assert "does not use the group" not in text
    assert "## Biased partitions" in text
    assert f"| blind | `{LEADS[BLIND]}` |" in text[text.index("## The effect of the encoder") :]
    assert "nan" not in text.replace("Nan", "")
    suits = text[text.index("## What suits") : text.index("## Baselines")]
    lines = [line.split(" | ") for line in suits.splitlines() if line.startswith(("| aware", "| blind"))]
    assert len(lines) == 6
    for _, fairest, collapsed in lines:
        assert "`fair_fate`" not in fairest
        assert "`fair_fate` 100 %" in collapsed
    assert len(text.split()) < 4000


def test_another_method_is_named_where_it_is_fairer_at_matched_accuracy() -> None:
    found = part((LEADS[BLIND], LESS_FAIR), ("fedmom", BETTER), ("lost", ONE_ANSWER), track=BLIND)
    blind = View(found, Part(BLIND, "ordinal"))
    assert blind.fairer == [("fedmom", 3)]
    assert {row["best"][0] for row in blind.against} == {"fedmom"}


def test_another_tolerance_of_the_lead_is_no_other_method() -> None:
    variant = f"{LEADS[BLIND]}:tuned"
    found = part((LEADS[BLIND], FAIR), (variant, BETTER), ("fedmom", LESS_FAIR), track=BLIND)
    blind = View(found, Part(BLIND, "ordinal"))
    assert set(blind.comparison["rival"]) == {"fedmom"}
    assert {row["best"][0] for row in blind.against} == {"fedmom"}


def test_each_track_has_a_reference_and_a_lead_of_its_own() -> None:
    rows = [
        made(name, seed, name, validation=of, test=of) | {"track": track}
        for track, base in ((AWARE, UNFAIR), (BLIND, ONE_ANSWER))
        for name, of in ((REFERENCE, base), ("fedmom", FAIR), (LEADS[track], FAIR))
        for seed in (1, 2)
    ]
    found = Findings(frame(*rows), 1.0, "")
    board = found.board.set_index(["track", "method"])
    assert board.loc[(AWARE, "fedmom"), "cost"] == pytest.approx(0.75 - 0.8)
    assert board.loc[(BLIND, "fedmom"), "cost"] == pytest.approx(0.5 - 0.8)
    for track in TRACKS:
        cells = found.select_cells(Part(track, "ordinal")).set_index("method")
        assert cells.loc[LEADS[track], "p"].isna().all()
        assert cells.loc["fedmom", "p"].notna().all()


def test_pictures_name_only_what_they_show_and_nothing_is_cut_off() -> None:
    found = part(("fair_fate", FAIR), (LEAD, LESS_FAIR))
    figure = pictures.tradeoffs(found, ORDINAL)
    (legend,) = figure.legends
    assert {text.get_text() for text in legend.get_texts()} == {REFERENCE, "fair_fate", LEAD}
    FigureCanvasAgg(figure).draw()
    box = legend.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1


def test_everything_is_written_and_the_same_twice(done: Benchmark, tmp_path: Path) -> None:
    first = write_all(tmp_path / "a", done.findings)
    write_all(tmp_path / "b", done.findings)
    names = sorted(
        str(path.relative_to(tmp_path / "a")) for path in (tmp_path / "a").rglob("*") if path.is_file()
    )
    assert "benchmark.md" in names
    assert first.name == "benchmark.html"
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
    board = pd.read_csv(tmp_path / "a" / "leaderboard.csv")
    text = (tmp_path / "a" / "benchmark.md").read_text()
    for row in board[~board["method"].isin(BASELINES)].to_dict("records"):
        assert re.search(
            rf"\| `{re.escape(row['method'])}` \| {row['rank']:.1f} \| {row['fairness']:.3f} ", text
        )


def test_the_command(fairfate: Callable[..., Outcome], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE.replace('"halved"', '"quartered"'))
    few = ["--data", "synthetic:rows=300", "--partition", "random", "--encode", "auto", "--seeds", "2"]
    few += ["--rounds", "2", "--jobs", "1"]
    outcome = fairfate(
        "benchmark",
        *few,
        "--plugin",
        "mine.py",
        "--methods",
        "quartered",
        "--methods",
        "fedavg",
        "--out",
        "found",
    )
    assert outcome.code == 0, outcome.err
    assert "quartered (yours)" in outcome.out
    assert "Run now: 3 methods (" in outcome.out  # with the reference
    assert "4 jobs." in outcome.out
    assert "Track blind" in outcome.out
    assert "minutes" not in outcome.out
    assert "found/benchmark.html" in outcome.out
    assert (tmp_path / "found" / "benchmark.html").is_file()
    for words, said in (
        (["--methods", "nonsense"], "unknown method 'nonsense'"),
        (["--seeds", "0"], "seeds must be >= 1"),
        (["--data", "nowhere"], "nowhere"),
        (["--partition", "diri"], "partition must be"),
        (["--encode", "hot"], "encode must be one of"),
        (["--track", "seeing"], "unknown track 'seeing'"),
        (["--methods", "fedmom:beta=2"], "beta"),
    ):
        options = [*few[:2], *words] if words[0] != "--data" else words
        bad = fairfate("benchmark", *options, "--jobs", "1", "--out", "bad")
        assert bad.code == 2, (words, bad)
        assert said in bad.err
        assert "Traceback" not in bad.err
        assert not (tmp_path / "bad" / "cells").exists()


@pytest.mark.skipif(bool(lacking()), reason=lacking())
def test_the_interactive_page(done: Benchmark, tmp_path: Path) -> None:
    file = tmp_path / "benchmark.html"
    file.write_text(interactive(done.findings), "utf-8")
    with started() as browser:
        opened = Visit(browser).open(file)
        there = opened.page
        names = there.locator("#table tbody th").all_inner_texts()
        assert set(names) == set(FEW)
        there.get_by_label("Track").select_option(BLIND)
        assert set(there.locator("#table tbody th").all_inner_texts()) == set(FEW) - {LEAD}
        there.get_by_label("Track").select_option(AWARE)
        ranks = [float(text) for text in there.locator("#table tbody tr td:nth-child(2)").all_inner_texts()]
        assert ranks == sorted(ranks)
        there.get_by_label("baselines").check()
        assert len(there.locator("#table tbody tr").all()) == len(FEW) + 3
        there.get_by_label("Metric").select_option("sp")
        there.get_by_label("Split").select_option("random")
        cell = done.findings.cells
        cell = cell[(cell["goal"] == "sp") & (cell["partition"] == "random") & (cell["track"] == AWARE)]
        cell = cell.set_index("method")
        for row in there.locator("#table tbody tr").all():
            name = row.locator("th").inner_text()
            shown = row.locator("td").nth(1).inner_text()
            assert (
                shown == f"{cell.loc[name, 'fairness']:.3f}"
                or abs(float(shown) - cell.loc[name, "fairness"]) < 6e-4
            )
        there.locator("[data-sort=accuracy]").click()
        values = [float(text) for text in there.locator("#table tbody tr td:nth-child(4)").all_inner_texts()]
        assert values == sorted(values, reverse=True)
        there.get_by_role("button", name="fair_fate", exact=True).click()
        assert "fair_fate" in there.locator("#front-title").inner_text()
        assert there.locator("#front svg circle").count() > 1
        if axe := os.environ.get("FAIRFATE_AXE"):
            there.evaluate(Path(axe).read_text("utf-8"))
            for width in (400, 1000):
                there.set_viewport_size({"width": width, "height": 900})
                there.wait_for_timeout(300)
                assert there.evaluate("document.documentElement.scrollWidth") <= width
                found = there.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
                assert [one["id"] for one in found] == []
        opened.close()
        opened.check()


def test_the_data_of_the_page_are_json_without_nan(done: Benchmark) -> None:
    text = interactive(done.findings)
    start = text.index('id="data">') + len('id="data">')
    data = json.loads(text[start : text.index("</script>", start)])
    assert len(data["cells"]["method"]["places"]) == len(done.findings.cells)

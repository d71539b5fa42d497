"""Clients that are each biased against another group, or another attribute's disadvantaged value."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairfate.data import SMALL, Columns, Table, synthetic, table_from_frame
from fairfate.errors import InputError
from fairfate.federation.bias import bias_targets, draw_targets
from fairfate.federation.partition import ATTRIBUTE_BIASED, VALUE_BIASED, biased, parse_partition
from fairfate.federation.seeds import Streams
from fairfate.federation.split import assign_rows, build


@st.composite
def federations(draw):
    """Rows of up to five groups, some strata empty, and whom each client is biased against."""
    groups, clients = draw(st.integers(1, 5)), draw(st.integers(1, 12))
    sizes = draw(st.lists(st.integers(0, 60), min_size=2 * groups, max_size=2 * groups))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    cell = rng.permutation(np.repeat(np.arange(2 * groups), sizes))
    return cell, rng.random((clients, groups)) < draw(st.sampled_from([0.2, 0.5, 1.0]))


def counts_of(cell, against, strength):
    """(clients, groups, 2) rows of each client."""
    clients, groups = against.shape
    counts = np.zeros((clients, 2 * groups), dtype=int)
    np.add.at(counts, (biased(cell, against, strength), cell), 1)
    return counts.reshape(clients, groups, 2)


@given(federation=federations(), strength=st.floats(0, 1))
def test_biased_clients_have_equal_parts_of_every_group_and_each_row_once(federation, strength) -> None:
    cell, against = federation
    client = biased(cell, against, strength)
    assert client.shape == cell.shape
    assert ((client >= 0) & (client < len(against))).all()
    counts = counts_of(cell, against, strength)
    assert (counts.sum(axis=0).ravel() == np.bincount(cell, minlength=2 * against.shape[1])).all()
    assert np.ptp(counts.sum(axis=(1, 2))) <= 1
    assert (np.ptp(counts.sum(axis=2), axis=0) <= 1).all()


@given(federation=federations(), strengths=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_favourable_rows_of_biased_clients_fall_with_strength(federation, strengths) -> None:
    cell, against = federation
    weak, strong = (counts_of(cell, against, strength) for strength in sorted(strengths))
    for group in range(against.shape[1]):
        own = against[:, group]
        assert strong[own, group, 1].sum() <= weak[own, group, 1].sum()
        assert strong[~own, group, 1].sum() >= weak[~own, group, 1].sum()


@given(federation=federations())
def test_full_strength_exchanges_all_rows_that_can_be(federation) -> None:
    cell, against = federation
    counts = counts_of(cell, against, 1.0)
    for group in range(against.shape[1]):
        own = against[:, group]
        assert 0 in (counts[own, group, 1].sum(), counts[~own, group, 0].sum())


def test_a_biased_client_keeps_one_minus_strength_of_its_part_of_the_favourable_rows() -> None:
    """FeDa4Fair's drop rate, here of rows that other clients get: 1 - strength of an equal part stay."""
    cell = np.random.default_rng(0).permutation(np.repeat([0, 1, 2, 3], [700, 300, 600, 400]))
    against = np.eye(2, dtype=bool)[[0, 1, 0, 1, 0]]
    counts = counts_of(cell, against, 0.4)
    assert counts[:, 0, 1].tolist() == pytest.approx([36, 96, 36, 96, 36], abs=1)
    assert counts[:, 1, 1].tolist() == pytest.approx([101, 48, 101, 48, 101], abs=1)


def test_strength_zero_makes_clients_alike() -> None:
    cell = np.random.default_rng(0).integers(0, 6, 1000)
    counts = counts_of(cell, np.eye(3, dtype=bool)[[0, 1, 2, 0, 1, 2, 0]], 0.0)
    assert np.ptp(counts, axis=0).max() <= 2


def people(rows: int = 4000, seed: int = 0) -> Table:
    """Women, and people of the south, had the outcome less often."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.integers(20, 60, rows),
            "sex": rng.choice(["f", "m"], rows),
            "region": rng.choice(["north", "south", "west"], rows),
        }
    )
    rate = 0.5 - 0.1 * (frame["sex"] == "f") - 0.15 * (frame["region"] == "south")
    frame["hired"] = (rng.random(rows) < rate).astype(int)
    return table_from_frame(frame, Columns("hired", ("sex", "region")))


def rates(table: Table, text: str, clients: int, column: str, seed: int = 1) -> dict[str, np.ndarray]:
    """The favourable rate by the values of a column, of each client by its name."""
    assignment = assign_rows(table, parse_partition(text), clients, Streams(seed))
    counts = assignment.client_cells(table)
    index = table.grouping.index_of((column,))
    merged = np.zeros((clients, int(index.max()) + 1, 2))
    np.add.at(merged, (slice(None), index), counts)
    return dict(zip(assignment.names, merged[..., 1] / merged.sum(axis=2), strict=True))


def test_bias_by_client_grows_against_the_group_in_its_name() -> None:
    table = synthetic()
    gaps = {"female": [], "male": []}
    for strength in ("0", "0.3", "0.6", "0.9"):
        of_client = rates(table, f"value-biased:{strength}", 4, "sex")
        assert len(of_client) == 4
        for name, (female, male) in of_client.items():
            side = "female" if "(against female)" in name else "male"
            assert f"(against {side})" in name
            gaps[side].append((male - female) if side == "female" else (female - male))
    for side in gaps:
        pairs = np.array(gaps[side]).reshape(4, 2)
        assert (np.diff(pairs, axis=0) > 0.1).all()  # grows with the strength
    assert min(gaps["female"][-2:]) > 0.5
    assert min(gaps["male"][-2:]) > 0.3  # against the direction of the whole table


def test_bias_by_client_grows_against_the_attribute_in_its_name() -> None:
    table = people()
    text = "attribute-biased:{}"
    for strength, least in (("0.3", 0.03), ("0.6", 0.1), ("0.9", 0.17)):
        by_sex = rates(table, text.format(strength), 6, "sex")
        by_region = rates(table, text.format(strength), 6, "region")
        names = {"sex": [n for n in by_sex if "sex = f" in n], "region": [n for n in by_sex if "south" in n]}
        assert [len(some) for some in names.values()] == [3, 3]

        def gap(of_client, names, low):
            return np.mean([np.delete(of_client[n], low).mean() - of_client[n][low] for n in names])

        assert gap(by_sex, names["sex"], 0) > gap(by_sex, names["region"], 0) + least
        assert gap(by_region, names["region"], 1) > gap(by_region, names["sex"], 1) + least


def test_the_seed_says_whom_clients_are_biased_against() -> None:
    table, partition = people(), parse_partition("value-biased:0.5")
    names = [build(table, partition, 9, Streams(seed)).client_names for seed in (1, 1, 2)]
    assert names[0] == names[1] != names[2]
    for drawn in names:
        groups = [name.partition(" (")[2] for name in drawn]
        assert {groups.count(group) for group in groups} == {1, 2}  # six groups, nine clients


@pytest.mark.parametrize("published", [False, True])
def test_fewer_clients_than_groups_take_some_of_them(published: bool) -> None:
    federation = build(people(), parse_partition("value-biased:1"), 2, Streams(1, published))
    assert len(set(federation.client_names)) == 2
    seeds = [Streams(seed, published).against(6, 2).tolist() for seed in range(9)]
    assert set(np.ravel(seeds)) > {0, 1, 2}


def test_groups_of_one_label_and_small_ones_are_no_targets() -> None:
    table, train = people(), np.arange(4000)
    label = table.label.copy()
    label[table.group == 0] = 0
    targets = bias_targets(replace(table, label=label), train, VALUE_BIASED)
    assert [target.name for target in targets] == list(table.group_names[1:])
    values = (table.grouping.values[0], (*table.grouping.values[1][:2], SMALL))
    small = replace(table, grouping=replace(table.grouping, values=values))
    names = [target.name for target in bias_targets(small, train, VALUE_BIASED)]
    assert names == [name for name in small.group_names if SMALL not in name]
    (least,) = [t for t in bias_targets(small, train, ATTRIBUTE_BIASED) if t.name.startswith("region")]
    assert least.name == "region = south"


def test_data_with_one_group_of_both_labels_is_refused() -> None:
    table = synthetic()
    table = replace(table, label=np.where(table.group == 1, 1, table.label).astype(np.int8))
    with pytest.raises(InputError, match="two or more groups with training rows of both labels in 'synth"):
        draw_targets(table, np.arange(6000), parse_partition("value-biased:1"), 5, Streams(1))

from __future__ import annotations

import random

import numpy as np
import pytest
from sklearn.model_selection import train_test_split

from fairfate.federation.seeds import Streams
from fairfate.models.mlp import Mlp


@pytest.mark.parametrize("published", [False, True])
def test_split_is_a_60_20_20_cover(published: bool) -> None:
    parts = Streams(3, published).split(1000)
    assert [len(part) for part in parts] == [600, 200, 200]
    assert sorted(np.concatenate(parts)) == list(range(1000))


@pytest.mark.parametrize("rows", [*range(3, 40), 101, 6172, 48842])
def test_published_split_is_scikit_learns(rows: int) -> None:
    train, rest = train_test_split(np.arange(rows), test_size=0.4, random_state=40)
    test, validation = train_test_split(rest, test_size=0.5, random_state=40)
    for ours, theirs in zip(Streams(4, published=True).split(rows), (train, validation, test), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("published", [False, True])
def test_cohorts_have_no_repeats_and_do_not_depend_on_the_number_of_rounds(published: bool) -> None:
    streams = Streams(2, published)
    long = streams.cohorts(50, 9, 4)
    assert (np.diff(long, axis=1) > 0).all()
    np.testing.assert_array_equal(streams.cohorts(20, 9, 4), long[:20])
    assert len(np.unique(long)) == 9


@pytest.mark.parametrize("published", [False, True])
def test_same_seed_same_numbers_other_seed_others(published: bool) -> None:
    one, same, other = Streams(1, published), Streams(1, published), Streams(2, published)
    assert one.batch_key == same.batch_key != other.batch_key
    np.testing.assert_array_equal(one.weights(50), same.weights(50))
    assert not np.array_equal(one.weights(50), other.weights(50))
    assert not np.array_equal(one.split(100)[0], other.split(100)[0])


def test_the_global_generators_are_not_changed() -> None:
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    Streams(1, published=True).split(50)
    Streams(1, published=True).cohorts(5, 9, 3)
    np.testing.assert_array_equal(before, np.random.get_state()[1])  # noqa: NPY002


def test_published_cohorts_are_the_authors_draws() -> None:
    """Whole numbers from Python's generator, seeded with ten times the run; repeats are redrawn."""
    source, expected = random.Random(30), []
    for _ in range(6):
        members: list[int] = []
        while len(members) < 3:
            draw = source.randint(0, 9)
            if draw not in members:
                members.append(draw)
        expected.append(sorted(members))
    assert Streams(3, published=True).cohorts(6, 10, 3).tolist() == expected


def test_the_initial_model_has_small_weights_and_no_biases() -> None:
    model = Mlp(200, (50,))
    layers = model.arrays(model.initial(Streams(1).weights(model.num_parameters)))
    assert layers["w1"].std() == pytest.approx(0.05, rel=0.05)
    assert not layers["b1"].any()
    assert not layers["b2"].any()
    assert layers["w2"].any()


def test_every_use_keeps_its_stream() -> None:
    """What users get from their seeds, and what pages were measured with: streams' numbers must not move."""
    streams, rows = Streams(3), np.arange(40)
    found = {
        "split": streams.split(40)[0][:3],
        "partition": streams.partition().integers(0, 1000, 3),
        "weights": (1000 * streams.weights(3)).astype(int),
        "cohort": streams.cohort(4, 20, 3),
        "evaluators": streams.evaluators(4, 20, 3),
        "attackers": streams.attackers(rows, 3),
        "attacked rows": streams.attacked_rows(2).integers(0, 1000, 3),
        "few": streams.few(rows, 3),
        "sample": streams.sample(np.array([20, 20]), 3),
        "held": np.flatnonzero(streams.held_out(1, rows % 2, 0.1)),
        "buckets": streams.buckets(1, 6, 2)[0],
        "batches": [int(streams.batch_key % np.uint64(1000))],
    }
    assert {use: np.asarray(numbers).tolist() for use, numbers in found.items()} == {
        "split": [0, 37, 34],
        "partition": [712, 100, 159],
        "weights": [-362, -783, -507],
        "cohort": [0, 7, 9],
        "evaluators": [2, 11, 19],
        "attackers": [12, 20, 28],
        "attacked rows": [534, 286, 43],
        "few": [14, 1, 20],
        "sample": [2, 19, 21, 33],
        "held": [11, 21, 30, 38],
        "buckets": [0, 4],
        "batches": [303],
    }

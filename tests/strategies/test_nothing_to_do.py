"""A strategy that is told to do nothing is FedAvg, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from builders import simulated
from fairfate.data import Table
from fairfate.federation.partition import parse_partition
from fairfate.federation.seeds import Streams
from fairfate.federation.split import build
from fairfate.models.training import Training
from fairfate.strategies import entries

ZERO = {
    "fedmom": "beta=0",
    "feddemon": "beta0=0",
    "fair_fate": "lam0=0",
    "fairfed": "beta=0,local=none",
    "prejudice": "eta=0",
    "ffalm": "beta=0,rate=0",
    "fairgrad": "rate=0",
    "fedfact": "rate=0",
    "fedprox": "mu=0",
    "fair_avg": "alpha=1,min_mcc=-1",
    "fair_acc_avg": "alpha=1,min_mcc=-1",
    "fedfb": "step=0",
    "fairbatch": "alpha=0",
    "fedgft": "gamma=0",
    "fedminmax": "rate=0",
    "afl": "rate=0",
    "dual_reweighing": "rate=0",
    "server_step": "rho=0",
}
MORE = ["prejudice:eta=0,scope=batch", "prejudice:eta=0,scope=global", "fedfb:metric=sp,alpha=0"]
EQUAL = [
    "qffl:q=0",
    "fair_avg:alpha=1,min_mcc=-1,weights=equal",
    "fedval:sharpness=0",
    "afl:rate=0,start=equal",
]
"""Those in which every client counts alike."""
NEVER = {"fedavg", "fedavg_lr", "fedavg_gr", "fedval", "fair_best", "fedadam", "fedyogi", "qffl"}
"""Those without a setting that turns them off, and those of `EQUAL`."""
TRAINING = Training(rounds=5, per_round=3, epochs=2, batch_size=1)
"""With batches of one row, epochs end where batches do, also where a strategy looks again between them."""


def finals(small: Table, texts: list[str]) -> list[np.ndarray]:
    streams = Streams(4)
    federation = build(small, parse_partition("dirichlet:0.5"), 8, streams)
    return [trace.params for trace in simulated(federation, texts, TRAINING, streams)]


def test_every_strategy_is_under_test() -> None:
    built_in = {entry.name for entry in entries() if str(entry.build.__module__).startswith("fairfate.")}
    assert built_in == {*ZERO, *NEVER}


def test_doing_nothing_is_fedavg(small: Table) -> None:
    texts = [*(f"{name}:{settings}" for name, settings in ZERO.items()), *MORE]
    plain, *others = finals(small, ["fedavg", *texts])
    for text, result in zip(texts, others, strict=True):
        assert np.array_equal(result, plain), text


def test_clients_with_equal_weights(small: Table) -> None:
    plain, first, *others = finals(small, ["fedavg", *EQUAL])
    assert not np.array_equal(first, plain)
    for text, result in zip(EQUAL[1:], others, strict=True):
        assert np.array_equal(result, first), text


def test_settings_that_are_not_zero_do_something(small: Table) -> None:
    names = sorted({*ZERO, *NEVER} - {"fedavg"})
    guarded = ("fair_best", "fair_avg", "fair_acc_avg")  # after so few rounds, no client would pass
    plain, *others = finals(
        small, ["fedavg", *(f"{name}:min_mcc=-1" if name in guarded else name for name in names)]
    )
    for name, result in zip(names, others, strict=True):
        assert not np.array_equal(result, plain), name


@pytest.mark.parametrize("name", sorted(ZERO))
def test_the_settings_are_those_of_the_strategy(name: str) -> None:
    (entry,) = [entry for entry in entries() if entry.name == name]
    assert {pair.partition("=")[0] for pair in ZERO[name].split(",")} <= set(entry.settings)

"""A strategy's half at a client, for a ClientApp of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fairfate.data.groups import Groups
from fairfate.engine.local import local_terms
from fairfate.fairness.metrics import Statistics
from fairfate.flower.messages import BROADCAST, LEARNING_RATE
from fairfate.strategies import LossTerms, Setup, Strategy, parse_spec
from fairfate.strategies.strategy import plain_loss


def strategy_of(config: Mapping[str, Any], groups: Groups, min_cell: int = 0) -> Strategy:
    """The strategy that the server's message names; a rate has ``min_cell`` rows behind it."""
    rate = config.get(LEARNING_RATE)
    setup = Setup(
        int(config["num-rounds"]),
        config.get("protocol") == "published",
        groups,
        None if rate is None else float(rate),
        min_cell,
    )
    return parse_spec(str(config["strategy"]), "eqo").build(setup)


def loss_terms(config: Mapping[str, Any], rows: ArrayLike, local: Statistics | None = None) -> LossTerms:
    """What a strategy asks this client to minimise in this round.

    Parameters
    ----------
    config : the config that came with the model
    rows : (groups, 2) the client's rows by group and label, with groups in the order of the validation rows'
    local : the received model's statistics on these rows, for strategies that need them

    Returns
    -------
    the terms of the loss

    Examples
    --------
    >>> config = {"strategy": "fedavg_lr", "num-rounds": 3}
    >>> loss_terms(config, [[30, 10], [10, 30]]).weight.round(3).tolist()
    [[0.667, 2.0], [2.0, 0.667]]
    """
    counted = np.asarray(rows, dtype=np.int64)
    if "strategy" not in config:  # one that leaves clients alone
        return plain_loss(counted)
    groups = Groups.single("group", tuple(map(str, range(len(counted)))))
    broadcast = np.array(config[BROADCAST], dtype=np.float64) if BROADCAST in config else None
    return local_terms(strategy_of(config, groups), broadcast, counted, local)

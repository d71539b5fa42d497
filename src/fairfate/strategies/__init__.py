"""How the server turns a round's replies into the next model: one paper, one file."""

from fairfate.strategies.fair_fate import at_least_as_fair, fair_fate, fairer_normalised
from fairfate.strategies.fedavg import fedavg
from fairfate.strategies.fedval import fedval
from fairfate.strategies.momentum import momentum
from fairfate.strategies.registry import (
    METRIC,
    Choice,
    Entry,
    Number,
    Setup,
    Spec,
    entries,
    labels,
    load_plugin,
    make_spec,
    parse_spec,
    register,
    short_names,
)
from fairfate.strategies.reweighing import global_weights, local_weights, reweigh
from fairfate.strategies.strategy import Cohort, Model, Notes, State, Strategy, weighted_mean, weighted_means

__all__ = [
    "METRIC",
    "Choice",
    "Cohort",
    "Entry",
    "Model",
    "Notes",
    "Number",
    "Setup",
    "Spec",
    "State",
    "Strategy",
    "at_least_as_fair",
    "entries",
    "fair_fate",
    "fairer_normalised",
    "fedavg",
    "fedval",
    "global_weights",
    "labels",
    "load_plugin",
    "local_weights",
    "make_spec",
    "momentum",
    "parse_spec",
    "register",
    "reweigh",
    "short_names",
    "weighted_mean",
    "weighted_means",
]

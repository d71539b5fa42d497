"""How a federation learns: one paper, one file. Importing this registers all of them."""

from fairfate.strategies.fair_fate import at_least_as_fair, fair_fate, fairer_normalised
from fairfate.strategies.fairfed import fairfed
from fairfate.strategies.fairgrad import fairgrad
from fairfate.strategies.fedavg import fedavg
from fairfate.strategies.fedprox import fedprox
from fairfate.strategies.fedval import fedval
from fairfate.strategies.ffalm import ffalm
from fairfate.strategies.momentum import momentum
from fairfate.strategies.prejudice import prejudice
from fairfate.strategies.registry import (
    Entry,
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
from fairfate.strategies.reweighing import fedavg_gr, fedavg_lr, local_reweighing, reweigh
from fairfate.strategies.settings import METRIC, Choice, Number, ObjectiveSetting
from fairfate.strategies.steps import AVERAGE, STEPS, THRESHOLDS, Average, Step
from fairfate.strategies.strategy import (
    NO_NOTES,
    CellRows,
    Cohort,
    LossTerms,
    ModelState,
    Need,
    Notes,
    State,
    Statistics,
    Strategy,
    Vector,
    plain_loss,
    weighted_mean,
    weighted_means,
)

__all__ = [
    "AVERAGE",
    "METRIC",
    "NO_NOTES",
    "STEPS",
    "THRESHOLDS",
    "Average",
    "CellRows",
    "Choice",
    "Cohort",
    "Entry",
    "LossTerms",
    "ModelState",
    "Need",
    "Notes",
    "Number",
    "ObjectiveSetting",
    "Setup",
    "Spec",
    "State",
    "Statistics",
    "Step",
    "Strategy",
    "Vector",
    "at_least_as_fair",
    "entries",
    "fair_fate",
    "fairer_normalised",
    "fairfed",
    "fairgrad",
    "fedavg",
    "fedavg_gr",
    "fedavg_lr",
    "fedprox",
    "fedval",
    "ffalm",
    "labels",
    "load_plugin",
    "local_reweighing",
    "make_spec",
    "momentum",
    "parse_spec",
    "plain_loss",
    "prejudice",
    "register",
    "reweigh",
    "short_names",
    "weighted_mean",
    "weighted_means",
]

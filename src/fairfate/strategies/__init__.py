"""How a federation learns: one paper, one file. Importing this registers all of them."""

from fairfate.strategies.adaptive import adam, adaptive, yogi
from fairfate.strategies.afl import afl
from fairfate.strategies.dual_reweighing import dual_reweighing
from fairfate.strategies.f3 import best_ratio, f3, fairest
from fairfate.strategies.fair_fate import at_least_as_fair, fair_fate, fairer_normalised
from fairfate.strategies.fairbatch import fairbatch
from fairfate.strategies.fairfed import fairfed
from fairfate.strategies.fairgrad import fairgrad
from fairfate.strategies.fedavg import fedavg
from fairfate.strategies.fedfb import fedfb_odds, fedfb_parity
from fairfate.strategies.fedgft import fedgft
from fairfate.strategies.fedminmax import fedminmax
from fairfate.strategies.fedprox import fedprox
from fairfate.strategies.fedval import fedval
from fairfate.strategies.ffalm import ffalm
from fairfate.strategies.momentum import momentum
from fairfate.strategies.prejudice import prejudice
from fairfate.strategies.qffl import qffl
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
from fairfate.strategies.robust import krum, median, scaled, trimmed
from fairfate.strategies.server_step import server_step
from fairfate.strategies.settings import (
    METRIC,
    ONE_METRIC,
    Choice,
    MetricSetting,
    Number,
    ObjectiveSetting,
)
from fairfate.strategies.steps import AVERAGE, ROBUST, STEPS, THRESHOLDS, Average, Step
from fairfate.strategies.strategy import (
    NO_NOTES,
    OF_PEOPLE,
    ON_VALIDATION,
    CellRows,
    Cohort,
    Combine,
    Descend,
    Loss,
    LossTerms,
    ModelState,
    Need,
    Notes,
    Score,
    State,
    Statistics,
    Strategy,
    Vector,
    divide,
    needs_of,
    plain_loss,
    rows_so_far,
    scores,
    told_weights,
    weighted_mean,
    weighted_means,
)

__all__ = [
    "AVERAGE",
    "METRIC",
    "NO_NOTES",
    "OF_PEOPLE",
    "ONE_METRIC",
    "ON_VALIDATION",
    "ROBUST",
    "STEPS",
    "THRESHOLDS",
    "Average",
    "CellRows",
    "Choice",
    "Cohort",
    "Combine",
    "Descend",
    "Entry",
    "Loss",
    "LossTerms",
    "MetricSetting",
    "ModelState",
    "Need",
    "Notes",
    "Number",
    "ObjectiveSetting",
    "Score",
    "Setup",
    "Spec",
    "State",
    "Statistics",
    "Step",
    "Strategy",
    "Vector",
    "adam",
    "adaptive",
    "afl",
    "at_least_as_fair",
    "best_ratio",
    "divide",
    "dual_reweighing",
    "entries",
    "f3",
    "fair_fate",
    "fairbatch",
    "fairer_normalised",
    "fairest",
    "fairfed",
    "fairgrad",
    "fedavg",
    "fedavg_gr",
    "fedavg_lr",
    "fedfb_odds",
    "fedfb_parity",
    "fedgft",
    "fedminmax",
    "fedprox",
    "fedval",
    "ffalm",
    "krum",
    "labels",
    "load_plugin",
    "local_reweighing",
    "make_spec",
    "median",
    "momentum",
    "needs_of",
    "parse_spec",
    "plain_loss",
    "prejudice",
    "qffl",
    "register",
    "reweigh",
    "rows_so_far",
    "scaled",
    "scores",
    "server_step",
    "short_names",
    "told_weights",
    "trimmed",
    "weighted_mean",
    "weighted_means",
    "yogi",
]

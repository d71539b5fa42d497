"""How a federation learns: one paper, one file. Importing this registers all of them."""

from fairfate.strategies.adaptive import fedadam, fedyogi
from fairfate.strategies.afl import afl
from fairfate.strategies.dual_reweighing import dual_reweighing
from fairfate.strategies.f3 import fair_acc_avg, fair_avg, fair_best
from fairfate.strategies.fair_fate import fair_fate
from fairfate.strategies.fairbatch import fairbatch
from fairfate.strategies.fairfed import fairfed
from fairfate.strategies.fairgrad import fairgrad
from fairfate.strategies.fedavg import fedavg, fedprox
from fairfate.strategies.fedfact import fedfact
from fairfate.strategies.fedfb import fedfb
from fairfate.strategies.fedgft import fedgft
from fairfate.strategies.fedminmax import fedminmax
from fairfate.strategies.fedval import fedval
from fairfate.strategies.ffalm import ffalm
from fairfate.strategies.guards import guard
from fairfate.strategies.hyperparameters import (
    EXTENSION,
    RUN_METRIC,
    GroupMetric,
    Guarded,
    Objective,
    Range,
)
from fairfate.strategies.momentum import feddemon, fedmom, momentum
from fairfate.strategies.prejudice import prejudice
from fairfate.strategies.qffl import qffl
from fairfate.strategies.registry import (
    Entry,
    Setup,
    Spec,
    StrategyLike,
    entries,
    labels,
    load_plugin,
    make_spec,
    parse_spec,
    register,
)
from fairfate.strategies.reweighing import fedavg_gr, fedavg_lr, local_reweighing, reweigh
from fairfate.strategies.schedules import Schedule, constant, demon, exponential, linear
from fairfate.strategies.server_step import server_step
from fairfate.strategies.steps import (
    AVERAGE,
    COMMON,
    ROBUST,
    RULES,
    STEPS,
    THRESHOLDS,
    TILT,
    Average,
    Step,
)
from fairfate.strategies.strategy import (
    NO_NOTES,
    CellRows,
    Cohort,
    Combine,
    Descend,
    Loss,
    LossTerms,
    ModelState,
    Need,
    Needs,
    Notes,
    Score,
    State,
    Statistics,
    Strategy,
    Summed,
    Vector,
    broadcast_weights,
    needs_of,
    rows_so_far,
    scores,
    weighted_mean,
    weighted_means,
)

__all__ = [
    "AVERAGE",
    "COMMON",
    "EXTENSION",
    "NO_NOTES",
    "ROBUST",
    "RULES",
    "RUN_METRIC",
    "STEPS",
    "THRESHOLDS",
    "TILT",
    "Average",
    "CellRows",
    "Cohort",
    "Combine",
    "Descend",
    "Entry",
    "GroupMetric",
    "Guarded",
    "Loss",
    "LossTerms",
    "ModelState",
    "Need",
    "Needs",
    "Notes",
    "Objective",
    "Range",
    "Schedule",
    "Score",
    "Setup",
    "Spec",
    "State",
    "Statistics",
    "Step",
    "Strategy",
    "StrategyLike",
    "Summed",
    "Vector",
    "afl",
    "broadcast_weights",
    "constant",
    "demon",
    "dual_reweighing",
    "entries",
    "exponential",
    "fair_acc_avg",
    "fair_avg",
    "fair_best",
    "fair_fate",
    "fairbatch",
    "fairfed",
    "fairgrad",
    "fedadam",
    "fedavg",
    "fedavg_gr",
    "fedavg_lr",
    "feddemon",
    "fedfact",
    "fedfb",
    "fedgft",
    "fedminmax",
    "fedmom",
    "fedprox",
    "fedval",
    "fedyogi",
    "ffalm",
    "guard",
    "labels",
    "linear",
    "load_plugin",
    "local_reweighing",
    "make_spec",
    "momentum",
    "needs_of",
    "parse_spec",
    "prejudice",
    "qffl",
    "register",
    "reweigh",
    "rows_so_far",
    "scores",
    "server_step",
    "weighted_mean",
    "weighted_means",
]

"""What a client may spend of its rows' privacy, as the user says it: ``epsilon=3,delta=1e-5,clip=1``."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from fairfate.errors import InputError, plain, unknown
from fairfate.strategies.hyperparameters import Number, read_settings

_SETTINGS = {
    "epsilon": Number(0.0, "of each client and strategy", high=math.inf, above_low=True),
    "delta": Number(1e-5, "chance that epsilon does not hold", above_low=True, below_high=True),
    "clip": Number(1.0, "limit of a row's gradient", high=1e6, above_low=True),
    "participations": Number(1.0, "rounds that a client takes part in", low=1, high=1e7, whole=True),
    "share": Number(0.3, "of epsilon, for all but updates", above_low=True, below_high=True),
    "loss": Number(2.0, "limit of a row's loss in sums", low=1, high=100),
    "noise": Number(50.0, "most noise, as a multiple of clip", high=1e6, above_low=True),
}


@dataclass(frozen=True)
class Budget:
    """The most that one client's rows may be told by, for each strategy and seed.

    (epsilon, delta) differential privacy of a row: what a client releases hardly depends on whether any one
    of its rows is an empty one instead. The number of its rows is public.
    """

    epsilon: float
    delta: float = 1e-5
    clip: float = 1.0
    """Limit of the norm of a row's gradient."""
    participations: int | None = None
    """Rounds after which a client takes no further part; None for as many as the run has for it."""
    share: float = 0.3
    """Of epsilon, what counts, sums and histograms may cost by themselves."""
    loss: float = 2.0
    """Limit of a row's loss in sums of losses."""
    noise: float = 50.0
    """Most noise of a step, in units of ``clip``: a client that needs more is too small for its budget."""

    def __str__(self) -> str:
        given = {item.name: getattr(self, item.name) for item in fields(self)}
        return ",".join(f"{key}={plain(value)}" for key, value in given.items() if value is not None)


def parse_budget(text: str | None) -> Budget | None:
    """Read ``epsilon=E[,delta=D,clip=C,participations=N,share=S,loss=L,noise=Z]``; None for ``none``.

    >>> str(parse_budget("epsilon=3"))
    'epsilon=3,delta=1e-05,clip=1,share=0.3,loss=2,noise=50'
    """
    if text is None or text.strip() == "none":
        return None
    given = read_settings(text, text, "privacy")
    for key in given:
        if key not in _SETTINGS:
            raise unknown("setting of privacy", key, _SETTINGS)
    if "epsilon" not in given:
        raise InputError(f"privacy must have an epsilon, such as epsilon=3, got '{text}'")
    values = {key: _SETTINGS[key].parse(value, f"privacy: {key}") for key, value in given.items()}
    participations = values.pop("participations", None)
    return Budget(participations=None if participations is None else int(participations), **values)


OUTSIDE = (
    "Outside of the guarantee: the number of a client's rows; whether its file fits the columns, and means,"
    " deviations and texts by which columns are encoded, where these were learned from training rows; the"
    " server's own validation and test rows and all that was measured on them; models of pooled rows; the"
    " choice among seeds and strategies and any tuning, which train on the same rows again; the time and"
    " memory that training takes; and that noise is of floating-point numbers."
)


def describe_guarantee(budget: Budget) -> list[str]:
    """The guarantee of a run in sentences, for reports and model cards."""
    return [
        f"Differential privacy of single rows: epsilon {budget.epsilon:g}, delta {budget.delta:g}, for each"
        " client, and for each strategy and seed by itself.",
        "It holds for all that a client sends: whoever sees every message, and the released model, learns"
        " hardly more of any one row than if an empty one stood in its place.",
        "How: each row's gradient is clipped and Gaussian noise is added in every step, on batches that rows"
        " join by chance; counts, sums and histograms have noise of their own. All are added up as Rényi"
        " differential privacy.",
        OUTSIDE,
    ]

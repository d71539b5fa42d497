"""The figures of a run or a sweep, as files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from fairfate.errors import InputError, check
from fairfate.experiments.runs import Run, read_runs
from fairfate.report.figures import over_rounds, save
from fairfate.report.lines import PERFORMANCE
from fairfate.report.style import Style
from fairfate.report.tradeoff import trade_off
from fairfate.results.folder import is_sweep
from fairfate.storage import check_output

KINDS = ("rounds", "tradeoff", "both")
PANELS = ("accuracy", "sp", "eo", "eqo")


def draw(
    run: Path,
    metrics: Sequence[str] = (),
    out: Path | None = None,
    kind: str | None = None,
    style: Style | None = None,
    *,
    force: bool = False,
) -> Iterator[Path]:
    """Draw a run, or each dataset, partition and protocol of a sweep; gives each file once it is saved.

    Parameters
    ----------
    run : folder
    metrics : panels over the rounds; the first that is about fairness is the trade-off's
    out : file of a run's figure; without it, both figures are saved in the folder
    kind : rounds, tradeoff or both; both if None, or rounds with ``out``
    style : the figures' width and font size, and whether they have titles
    force : whether ``out`` may exist, and is replaced
    """
    chosen = kind if kind is not None else "both" if out is None else "rounds"
    check(chosen in KINDS, f"kind must be one of {'|'.join(KINDS)}", f"'{chosen}'")
    if out is not None and is_sweep(run):
        raise InputError(f"out must be left out for a sweep, which has files of its own, got '{out}'")
    for path in () if out is None else (out, _beside(out)) if chosen == "both" else (out,):
        check_output(path, force=force)
    for part in read_runs(run):
        for drawn in ("rounds", "tradeoff") if chosen == "both" else (chosen,):
            beside = drawn == "tradeoff" and chosen == "both"
            path = _file(run, part.name, drawn) if out is None else _beside(out) if beside else out
            yield _save(part, tuple(metrics), drawn, path, style)


def _file(run: Path, name: str, kind: str) -> Path:
    folder = run if run.is_dir() else run.parent
    return folder / (f"{name}-{kind}.png" if name else f"{kind}.png")


def _beside(out: Path) -> Path:
    return out.with_name(f"{out.stem}-tradeoff{out.suffix}")


def _save(part: Run, metrics: tuple[str, ...], kind: str, path: Path, style: Style | None) -> Path:
    """Draw and save one figure."""
    fair = next((metric for metric in metrics if metric not in PERFORMANCE), part.metric)
    shown = (metrics or PANELS) if kind == "rounds" else (fair,)
    rounds, groups = part.rounds, part.grouping
    if kind == "rounds":
        return save(over_rounds(rounds, shown, groups, style), path)
    return save(trade_off(rounds, fair, groups, style), path)

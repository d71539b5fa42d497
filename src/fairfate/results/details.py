"""The released models in detail: which scores they give to whom, and what they do at each client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fairfate.engine.rules import PLAIN, Rule, count_decisions
from fairfate.fairness.metrics import Counts
from fairfate.fairness.thresholds import BINS, histogram
from fairfate.federation.split import Federation
from fairfate.models.model import Model, Models
from fairfate.models.rows import PackedRows
from fairfate.results.folder import LOCAL, SCORES
from fairfate.results.tables import count_columns, model_key, read_local, read_scores, write_table
from fairfate.strategies import Spec


class Released(NamedTuple):
    """A strategy's model, ready to be used."""

    spec: Spec
    params: Models
    rule: Rule


class Final(NamedTuple):
    """What is known of the released models of one seed, or of all."""

    scores: pd.DataFrame
    """A row for each model and bin: test rows by group and label with such a score, ``n_GROUP_LABEL``, and
    the models' decision thresholds, ``cut_GROUP``, as probabilities."""
    local: pd.DataFrame | None = None
    """A row for each model and client: its own rows, which it trained on, by group, label and decision.
    None where clients tell nobody of their rows."""

    @classmethod
    def together(cls, each: Sequence[Final]) -> Final:
        """Of all seeds."""
        local = [model_of.local for model_of in each if model_of.local is not None]
        scores = pd.concat([model_of.scores for model_of in each], ignore_index=True)
        return cls(scores, pd.concat(local, ignore_index=True) if local else None)


def describe(model: Model, released: Sequence[Released], federation: Federation, seed: int) -> Final:
    """Score the released models on the test rows, and on the rows of each client."""
    scores = score_table(model, released, federation.test, federation.groups, seed)
    return Final(scores, _local(model, released, federation, seed))


def score_table(
    model: Model, released: Sequence[Released], rows: PackedRows, groups: int, seed: int
) -> pd.DataFrame:
    """How many rows of each group and label get which score."""
    frames = []
    for model_of in released:
        counted = histogram(model.margins(model_of.params, rows)).reshape(2 * groups, BINS)
        cuts = np.zeros(groups) if model_of.rule.thresholds is None else model_of.rule.thresholds
        columns: dict[str, Any] = {**model_key(model_of.spec, seed), "bin": np.arange(BINS)}
        columns |= {f"n_{g}_{y}": counted[2 * g + y] for g in range(groups) for y in range(2)}
        columns |= {f"cut_{g}": _probability(cuts[g]) for g in range(groups)}
        frames.append(pd.DataFrame(columns))
    return pd.concat(frames, ignore_index=True)


def _probability(margin: float) -> float:
    return float(1 / (1 + np.exp(-np.clip(margin, -700, 700))))


def _local(model: Model, released: Sequence[Released], federation: Federation, seed: int) -> pd.DataFrame:
    names, counts = [], []
    for name, rows in _clients(federation):
        names.append(name)
        counts.append(_decide(model, released, rows))
    counts_by_client = np.stack(counts, axis=1)  # (models, clients, groups, 2, 2)
    frames = []
    for model_of, own_counts in zip(released, counts_by_client, strict=True):
        cells = dict(zip(count_columns(federation.groups), own_counts.reshape(len(names), -1).T, strict=True))
        frames.append(pd.DataFrame({**model_key(model_of.spec, seed), "name": names, **cells}))
    return pd.concat(frames, ignore_index=True)


def _clients(federation: Federation) -> Iterator[tuple[str, PackedRows]]:
    """Those that have rows, packed one after another so that memory stays small."""
    for k, name in enumerate(federation.client_names):
        if federation.sizes[k]:
            yield name, federation.rows.packed(k, federation.groups)


def _decide(model: Model, released: Sequence[Released], rows: PackedRows) -> Counts:
    """(models, groups, 2, 2) the models' decisions."""
    counts = model.count(np.stack([model_of.params for model_of in released]), rows)
    for number, model_of in enumerate(released):
        if model_of.rule is not PLAIN:
            counts[number] = count_decisions(model, model_of.params, model_of.rule, rows)
    return counts


def write_final(folder: Path, final: Final, names: tuple[str, str] = (SCORES, LOCAL)) -> list[Path]:
    """Write both tables, where they are known."""
    paths = []
    for kind, name, frame in zip((SCORES, LOCAL), names, final, strict=True):
        if frame is not None:
            write_table(folder / name, frame, kind)
            paths.append(folder / name)
    return paths


def read_final(folder: Path, groups: int) -> Final | None:
    """Both tables of a run's folder; None where it has none. A run on Flower has scores only."""
    scores, local = folder / SCORES, folder / LOCAL
    if not scores.is_file():
        return None
    return Final(read_scores(scores, groups), read_local(local, groups) if local.is_file() else None)

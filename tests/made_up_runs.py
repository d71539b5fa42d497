"""Folders of runs that never ran: plausible numbers, as many as wanted, under any names."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from fairfate.data.groups import Groups
from fairfate.engine.record import MEASURES
from fairfate.experiments.config import Config, config_text
from fairfate.fairness.objective import metrics_by
from fairfate.fairness.thresholds import BINS
from fairfate.results.details import Final, write_final
from fairfate.results.tables import Line, count_columns, rounds_frame, write_rounds, write_table


class Named(NamedTuple):
    """What is written of a strategy."""

    label: str
    metric: str | None = "eqo"
    settings_json: str = "{}"


def write_run(
    folder: Path,
    groups: Groups,
    strategies: Sequence[Named] = (Named("fedavg", None), Named("fair_fate")),
    *,
    seeds: int = 3,
    rounds: int = 12,
    clients: Sequence[str] = ("client 1", "client 2", "client 10"),
    sizes: Sequence[int] | None = None,
    skill: float = 2.0,
    dataset: str = "made up",
    reason: str = "not finite",
) -> Path:
    """Write the files that a run leaves, but for its models.

    Parameters
    ----------
    sizes : test rows of each group
    skill : how far the scores of the two labels lie apart; 0 for models that have collapsed
    """
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    people = np.array(sizes or [200 + 50 * g for g in range(len(groups))])
    frames, scores, local, record = [], [], [], []
    for seed in range(1, seeds + 1):
        kept_rows = np.stack([people - (people * 0.4).astype(int), (people * 0.4).astype(int)], axis=1)
        lines = []
        for number, spec in enumerate(strategies):
            about = dict(zip(("strategy", "metric", "settings"), spec, strict=True)) | {"seed": seed}
            histogram = _histogram(rng, kept_rows, skill, 0.05 * number)
            last = np.stack(
                [histogram[..., : BINS // 2].sum(axis=-1), histogram[..., BINS // 2 :].sum(axis=-1)], -1
            )
            counts = [_towards(rng, last, t / rounds) for t in range(1, rounds)] + [last]
            asked = rng.random((rounds, len(clients))) < 0.7
            fair = asked & (rng.random(asked.shape) < 0.4) & (spec.metric is not None)
            notes = [{"lam": 0.1 + 0.8 * t / rounds, "beta": 0.9**t, "fair": fair[t]} for t in range(rounds)]
            splits = {"validation": counts, "test": counts}
            lines.append(Line(spec, range(1, rounds + 1), splits, notes if spec.metric else [{}] * rounds))
            bins = {f"n_{g}_{y}": histogram[g, y] for g in range(len(groups)) for y in range(2)}
            cuts = {f"cut_{g}": 0.5 for g in range(len(groups))}
            scores.append(pd.DataFrame({**about, "bin": np.arange(BINS), **bins, **cuts}))
            at = np.stack([_towards(rng, last, 1) // (k % 3 + 1) for k in range(len(clients))])
            cells = dict(zip(count_columns(len(groups)), at.reshape(len(clients), -1).T, strict=True))
            local.append(pd.DataFrame({**about, "name": list(clients), **cells}))
            record.append(_record(asked, fair, clients, reason).assign(**about))
        key = {"dataset": dataset, "partition": "dirichlet:0.5", "protocol": "paper", "seed": seed}
        frames.append(rounds_frame(key, lines, metrics_by(groups)))
    write_rounds(folder / "rounds.parquet", pd.concat(frames, ignore_index=True), groups)
    write_table(folder / "clients.parquet", pd.concat(record, ignore_index=True), "clients.parquet")
    write_final(folder, Final(pd.concat(scores, ignore_index=True), pd.concat(local, ignore_index=True)))
    config = Config(
        data=dataset,
        sensitive=groups.attributes,
        clients=len(clients),
        rounds=rounds,
        strategies=tuple(f"{spec.label}:{spec.settings_json}" for spec in strategies),
        seeds=tuple(range(1, seeds + 1)),
    )
    messages = {"data-rows": int(5 * people.sum()), "data-notes": [f"made up: {dataset}"]}
    (folder / "config.toml").write_text(config_text(config, messages), encoding="utf-8")
    return folder


def _histogram(rng: np.random.Generator, kept: np.ndarray, skill: float, shift: float) -> np.ndarray:
    """(groups, 2, bins) scores; later groups get lower ones."""
    counts = np.zeros((*kept.shape, BINS), dtype=np.int64)
    for g, y in np.ndindex(*kept.shape):
        above, below = 2 + skill * y + shift, 2 + skill * (1 - y) + 0.2 * g
        drawn = rng.beta(above, below, kept[g, y])
        counts[g, y] = np.bincount((drawn * BINS).astype(int), minlength=BINS)
    return counts


def _towards(rng: np.random.Generator, last: np.ndarray, way: float) -> np.ndarray:
    """Counts of a model that has come a part of the way."""
    rows = last.sum(axis=-1)
    rate = np.clip(way * last[..., 1] / np.maximum(rows, 1), 0, 1)
    accepted = rng.binomial(rows, rate)
    return np.stack([rows - accepted, accepted], axis=-1)


def _record(asked: np.ndarray, fair: np.ndarray, clients: Sequence[str], reason: str) -> pd.DataFrame:
    """Who took part; in the first round the first client was dropped, the last one did not come."""
    asked = asked.copy()
    asked[0, 0] = True
    t, k = np.nonzero(asked)
    outcome = np.where(fair[t, k], "fair", "used").astype(object)
    outcome[(t == 0) & (k == 0)] = "dropped"
    outcome[(t == 0) & (k == len(clients) - 1)] = "refused"
    reasons = np.where(np.isin(outcome, ["dropped", "refused"]), reason, "")
    names = np.array(clients, dtype=object)[k]
    columns = {"round": t + 1, "name": names, "outcome": outcome, "reason": reasons, "examples": 10.0}
    return pd.DataFrame({**columns, **dict.fromkeys(MEASURES, 0.5)})


def settings(**values: object) -> str:
    """As they are written."""
    return json.dumps(values)

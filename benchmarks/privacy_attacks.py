"""How well attacks on rows work, without protection and with it.

python benchmarks/privacy_attacks.py [--json FILE]

The attacker is the server, and sees what each mode shows it: every client's update, the sum of updates
under secure sums, or updates under differential privacy (epsilon 1 and 8, delta 1e-5).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairfate.fairness.thresholds import auc
from fairfate.models.mlp import Mlp, margins_of
from fairfate.models.model import Batches, Losses, Models
from fairfate.models.private import NoisySteps, train_private
from fairfate.models.rows import ClientRows
from fairfate.models.training import Training
from fairfate.privacy.budget import Budget
from fairfate.privacy.calibration import Calibration, Exposure, calibrate
from fairfate.privacy.mechanism import Seeded, add_noise
from fairfate.privacy.releases import SUMS, Releases, sensitivity

CLIENTS, ROWS, INPUTS, ROUNDS = 5, 100, 20, 10
"""Of the federation whose model, or one update, is searched for members. Its labels say nothing."""
EPSILONS = (None, 8.0, 1.0)
MODEL = Mlp(INPUTS, (32,))
LOSSES = Losses(np.ones((1, 1, 4), np.float32))
BATCH, EPOCHS, RATE = 10, 20, 0.3
NOTHING_ELSE = Releases()
"""Than updates."""
Rows = NDArray[np.float32]


class People(NamedTuple):
    """Rows of all clients, and as many like them that nobody has."""

    x: Rows
    cell: NDArray[np.int32]

    @classmethod
    def draw(cls, seed: int) -> People:
        """Standard normal inputs; labels by chance, so that only memory can get them right."""
        rng = np.random.default_rng(seed)
        rows = 2 * CLIENTS * ROWS
        return cls(
            rng.standard_normal((rows, INPUTS)).astype(np.float32), rng.integers(0, 4, rows).astype(np.int32)
        )

    @property
    def clients(self) -> ClientRows:
        """The first half, dealt to the clients."""
        half = CLIENTS * ROWS
        return ClientRows(self.x[:half].ravel(), self.cell[:half], np.arange(CLIENTS + 1) * ROWS)

    def losses(self, params: Models) -> NDArray[np.float64]:
        """Of each row."""
        margins = margins_of(MODEL.arrays(params), self.x).ravel().astype(np.float64)
        return np.logaddexp(0, (1 - 2 * (self.cell % 2)) * margins)


def separation(scores: NDArray[np.float64], members: NDArray[np.bool_]) -> float:
    """AUC of telling members from others by a score; 0.5 is chance."""
    ranks = np.argsort(np.argsort(scores))
    rows = np.zeros((1, 2, len(scores)), dtype=np.int64)
    rows[0, members.astype(int), ranks] = 1
    return float(auc(rows))


def noise_of(
    epsilon: float | None, releases: Releases = NOTHING_ELSE, rounds: int = ROUNDS
) -> Calibration | None:
    """What a budget asks of a client; None without privacy."""
    if epsilon is None:
        return None
    calibration = calibrate(Budget(epsilon), Exposure(ROWS, EPOCHS, BATCH, rounds), releases)
    assert calibration is not None
    return calibration


def train(people: People, seed: int, epsilon: float | None) -> tuple[Models, Models, Models]:
    """FedAvg: the released model, the model before the last round, and the clients' models of that round."""
    training, calibration = Training(1, 1, EPOCHS, BATCH, RATE), noise_of(epsilon)
    rng = np.random.default_rng(seed)
    model = MODEL.initial(rng.standard_normal(MODEL.num_parameters))
    rows, own, before = people.clients, np.empty(0), model
    for t in range(1, ROUNDS + 1):
        before = model
        if calibration is None:
            start = np.repeat(model[None, None], CLIENTS, axis=1)
            batches = Batches(np.uint64(seed), t)
            own = MODEL.train(
                start,
                rows,
                np.arange(CLIENTS),
                Losses(np.ones((1, CLIENTS, 4), np.float32)),
                training,
                batches,
            )[0]
        else:
            own = np.stack(
                [
                    train_private(
                        MODEL, model, rows, client, LOSSES, training, EPOCHS,
                        NoisySteps(1.0, calibration.update, Seeded(seed, "attack", client, t)),
                    )
                    for client in range(CLIENTS)
                ]
            )  # fmt: skip
        model = own.mean(axis=0).astype(np.float32)
    return model, before, own


def membership(epsilon: float | None, seeds: int = 8) -> dict[str, float]:
    """AUC of telling rows of a client from rows that nobody has, by what a server sees."""
    results: dict[str, list[float]] = {"released model": [], "sum of updates": [], "single update": []}
    for seed in range(seeds):
        people = People.draw(seed)
        model, before, own = train(people, seed, epsilon)
        first, nobody = np.arange(ROWS), np.arange(CLIENTS * ROWS, (CLIENTS + 1) * ROWS)
        which, members = np.concatenate([first, nobody]), np.repeat([True, False], ROWS)
        results["released model"].append(separation(-people.losses(model)[which], members))
        summed = people.losses(before) - people.losses(model)
        results["sum of updates"].append(separation(summed[which] - people.losses(model)[which], members))
        single = people.losses(own[0])
        results["single update"].append(separation(-single[which], members))
    return {name: float(np.mean(values)) for name, values in results.items()}


# -- rows from an update -------------------------------------------------------------------------------------

STOLEN, UNITS, COLUMNS, NEAR = 10, 40, 8, 0.05
"""Rows of a client in one batch; units and inputs of the server's model; how near a row must be found."""


def trap(rng: np.random.Generator) -> tuple[Mlp, Models]:
    """A model by which a hostile server reads rows: each unit answers to one narrow range of a projection."""
    model = Mlp(COLUMNS, (UNITS,))
    direction = rng.standard_normal(COLUMNS)
    direction /= np.linalg.norm(direction)
    cuts = np.linspace(-2.2, 2.2, UNITS)
    sharp = 40.0
    arrays = {
        "w1": np.repeat(sharp * direction[:, None], UNITS, axis=1),
        "b1": -sharp * cuts,
        "w2": np.full((UNITS, 1), 0.01),
        "b2": np.zeros(1),
    }
    return model, np.asarray(model.flat(arrays), dtype=np.float32)


def read_rows(model: Mlp, start: Models, trained: Models) -> NDArray[np.float64]:
    """Rows from the change of a model's first layer: of each unit, weights by bias."""
    before, after = model.arrays(start), model.arrays(trained)
    weights = after["w1"].astype(np.float64) - before["w1"]
    bias = (after["b1"].astype(np.float64) - before["b1"]).ravel()
    return np.asarray((weights[:, bias != 0] / bias[bias != 0]).T)


def inversion(epsilon: float | None, clients: int = 1, seeds: int = 20) -> float:
    """How many of a client's ten rows a hostile server reads from a round, or from the sum over some."""
    training, stolen = Training(1, 1, 1, STOLEN, 0.5), []
    calibration = (
        None if epsilon is None else calibrate(Budget(epsilon), Exposure(STOLEN, 1, STOLEN, 1), NOTHING_ELSE)
    )
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        model, start = trap(rng)
        x = rng.standard_normal((clients, STOLEN, COLUMNS)).astype(np.float32)
        cell = rng.integers(0, 4, (clients, STOLEN)).astype(np.int32)
        rows = ClientRows(x.ravel(), cell.ravel(), np.arange(clients + 1) * STOLEN)
        changes = []
        for client in range(clients):
            if calibration is None:
                batches = Batches(np.uint64(seed), 1)
                trained = model.train(start[None, None], rows, np.array([client]), LOSSES, training, batches)[
                    0, 0
                ]
            else:
                noisy = NoisySteps(1.0, calibration.update, Seeded(seed, "inversion", client))
                trained = train_private(model, start, rows, client, LOSSES, training, 1, noisy)
            changes.append(trained - start)
        guesses = read_rows(model, start, start + np.sum(changes, axis=0, dtype=np.float32))
        distance = np.abs(guesses[:, None] - x[0][None]).max(axis=-1)
        stolen.append(float((distance.min(axis=0) < NEAR).sum()) if len(guesses) else 0.0)
    return float(np.mean(stolen))


# -- counts of two rounds ------------------------------------------------------------------------------------


def differencing(epsilon: float | None, trials: int = 2000) -> float:
    """How often a server tells right whether one person has the favourable label, from sums of two rounds.

    Both rounds' models decide alike about everybody but that person, so that only one of the eight sums of
    counts moves, by one.
    """
    counts = np.array([[[400, 300], [100, 200]], [[300, 200], [250, 250]]])
    calibration = noise_of(epsilon, Releases((), (SUMS,)))
    right, rng = 0, np.random.default_rng(1)
    for trial in range(trials):
        label = int(rng.integers(0, 2))
        after = counts.copy()
        after[0, label] += (-1, 1)
        messages = [counts.astype(np.float64), after.astype(np.float64)]
        if calibration is not None:
            deviation = calibration.other * sensitivity(SUMS, Budget(1.0))
            messages = [
                add_noise(each, deviation, Seeded(trial, "sums", t)) for t, each in enumerate(messages)
            ]
        moved = messages[1] - messages[0]
        evidence = [moved[0, y, 1] - moved[0, y, 0] for y in (0, 1)]
        right += int(np.argmax(evidence)) == label
    return right / trials


def measure(seeds: int = 8) -> dict[str, dict[str, float]]:
    """Every attack in every mode."""
    table: dict[str, dict[str, float]] = {}
    names: list[tuple[str, float | None]] = [
        ("none" if epsilon is None else f"epsilon={epsilon:g}", epsilon) for epsilon in EPSILONS
    ]
    attacks: dict[str, Callable[[float | None], float]] = {
        "rows read, of ten": lambda epsilon: inversion(epsilon, seeds=2 * seeds),
        "rows read from the sum over five clients": lambda epsilon: inversion(epsilon, CLIENTS, 2 * seeds),
        "label told from counts of two rounds": lambda epsilon: differencing(epsilon, 250 * seeds),
    }
    for name, epsilon in names:
        table[name] = {f"membership: {key}": value for key, value in membership(epsilon, seeds).items()}
        table[name] |= {key: attack(epsilon) for key, attack in attacks.items()}
    return table


def main(arguments: list[str]) -> None:
    """Print a line for each attack, a column for each mode."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    table = measure()
    print(f"{'':<44}" + "".join(f"{name:>12}" for name in table))
    for attack in table["none"]:
        print(f"{attack:<44}" + "".join(f"{values[attack]:>12.3f}" for values in table.values()))
    if given.json is not None:
        given.json.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])

"""Differential privacy, simulated and at real sites: noise, who may take part, and what was spent."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fairfate.engine.rules import Labelling, ScoredRows
from fairfate.engine.server import Server
from fairfate.fairness.metrics import CellRows, Statistics
from fairfate.fairness.thresholds import histogram
from fairfate.fairness.tilt_groups import Ask
from fairfate.federation.seeds import Streams
from fairfate.federation.split import Federation
from fairfate.models.mlp import Mlp
from fairfate.models.model import Models
from fairfate.models.private import NoisySteps, Randomness
from fairfate.models.rows import PackedRows
from fairfate.models.training import Training
from fairfate.privacy.budget import Budget
from fairfate.privacy.calibration import Calibration, Exposure, calibrate
from fairfate.privacy.ledger import Entry
from fairfate.privacy.mechanism import (
    Seeded,
    noisy_counts,
    noisy_histogram,
    noisy_statistics,
    smooth_histogram,
)
from fairfate.privacy.releases import COUNTS, HISTOGRAM, SUMS, UPDATE, Releases, sensitivity
from fairfate.strategies import Spec


def participations_of(
    cohorts: NDArray[np.int64], clients: int, most: int | None
) -> tuple[NDArray[np.bool_], int]:
    """(rounds, clients) who may take part in which round, and the most rounds of a client.

    Who has taken part in so many rounds sits out the others: a round too many would pass its budget.
    """
    asked = np.zeros((len(cohorts), clients), dtype=np.int64)
    np.put_along_axis(asked, cohorts, 1, axis=1)
    before = np.cumsum(asked, axis=0)
    limit = max(1, int(before[-1].max(initial=1))) if most is None else most
    return (asked > 0) & (before <= limit), limit


class PrivateClient:
    """One client's releases, with the noise that its budget asks for.

    Parameters
    ----------
    budget : the most that they may tell of a row
    calibration : the noise
    randomness : of a kind of release in a round, where its chance comes from
    """

    def __init__(
        self, budget: Budget, calibration: Calibration, randomness: Callable[[str, int], Randomness]
    ) -> None:
        self.budget, self.calibration, self._randomness = budget, calibration, randomness

    def steps(self, t: int) -> NoisySteps:
        """How it trains in a round."""
        return NoisySteps(self.budget.clip, self.calibration.update, self._randomness(UPDATE, t))

    def rows(self, exact: CellRows) -> CellRows:
        """(groups, 2) its rows by group and label, with noise.

        Where neither it nor the server uses them, the public number of rows stands there in equal parts.
        """
        if COUNTS not in self.calibration.releases.once:
            return np.full(exact.shape, self.calibration.exposure.rows // exact.size, dtype=np.int64)
        return noisy_counts(exact, self._deviation(COUNTS), self._randomness(COUNTS, 0))

    def report(self, t: int, model: Mlp, params: Models, rows: PackedRows) -> Statistics:
        """A model on its rows, as it is told in a round: losses clipped, and with noise."""
        exact = model.clipped_statistics(params, rows, self.budget.loss)
        return noisy_statistics(exact, self._deviation(SUMS), self._randomness(SUMS, t))

    def histogram(self, model: Mlp, params: Models, rows: PackedRows) -> NDArray[np.int64]:
        """(groups, 2, private bins) its rows by the score of a model, with noise."""
        exact = histogram(model.margins(params, rows))
        return noisy_histogram(exact, self._deviation(HISTOGRAM), self._randomness(HISTOGRAM, 0))

    def _deviation(self, kind: str) -> float:
        return self.calibration.other * sensitivity(kind, self.budget)


def seeded(seed: int, server: str, kind: str, client: int, t: int) -> Seeded:
    """The chance of a client's release in an experiment; ``server`` is from `name_server`."""
    return Seeded(seed, server, kind, client, t)


class PrivateClients:
    """All clients' budgets, and their noise, in one run of one seed."""

    def __init__(
        self,
        budget: Budget,
        federation: Federation,
        training: Training,
        cohorts: NDArray[np.int64],
        streams: Streams,
    ) -> None:
        self.budget, self.federation, self.training, self.seed = budget, federation, training, streams.seed
        self.takes_part, self.participations = participations_of(
            cohorts, federation.clients, budget.participations
        )
        self._counts: dict[tuple[str, int], CellRows] = {}
        self._histograms: set[str] = set()

    def allowed(self, t: int, clients: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(clients,) who still has a budget for round ``t``."""
        return np.asarray(self.takes_part[t - 1, clients])

    def calibration(self, client: int, releases: Releases) -> Calibration:
        """The noise of a client."""
        exposure = Exposure.of_training(
            int(self.federation.sizes[client]), self.training, self.participations
        )
        calibration = calibrate(self.budget, exposure, releases)
        assert calibration is not None  # checked before anything was trained
        return calibration

    def _client(self, server: Server, client: int) -> PrivateClient:
        """A client, with noise of its own for every strategy: of shared noise, one tells of another."""

        def randomness(kind: str, t: int) -> Randomness:
            return seeded(self.seed, server.name, kind, client, t)

        return PrivateClient(self.budget, self.calibration(client, server.releases), randomness)

    def steps(self, t: int, server: Server, clients: NDArray[np.int64]) -> list[NoisySteps]:
        """How each client of a round trains a server's model."""
        return [self._client(server, client).steps(t) for client in clients.tolist()]

    def rows(self, server: Server, clients: NDArray[np.int64]) -> CellRows:
        """(clients, groups, 2) rows by group and label as a server's clients tell them: once, with noise."""
        return np.stack([self._rows_of(server, client) for client in clients.tolist()])

    def _rows_of(self, server: Server, client: int) -> CellRows:
        key = server.name, client
        if key not in self._counts:
            self._counts[key] = self._client(server, client).rows(self.federation.client_cells[client])
        return self._counts[key]

    def report(self, t: int, server: Server, model: Mlp, clients: NDArray[np.int64]) -> Statistics:
        """A server's model on each client's rows, as clients report it: losses clipped, and with noise."""
        params = server.params.astype(np.float32)
        each = [
            self._client(server, client).report(t, model, params, self.federation.local[client])
            for client in clients.tolist()
        ]
        return Statistics(*(np.stack(values) for values in zip(*each, strict=True)))

    def histograms(self, server: Server, model: Mlp, params: Models) -> NDArray[np.int64]:
        """(groups, 2, bins) all clients' rows by the score of a model: sums of noisy histograms."""
        each = [
            self._client(server, client).histogram(model, params, rows)
            for client, rows in self.federation.local.items()
        ]
        self._histograms.add(server.name)
        return smooth_histogram(np.asarray(np.sum(each, axis=0)))

    def histogram_noise(self, server: Server) -> float:
        """The standard deviation of the noise in each count of the sums of noisy histograms."""
        clients = np.flatnonzero(self.federation.sizes > 0).tolist()
        deviation = self.calibration(clients[0], server.releases).other  # which is everybody's
        return math.sqrt(len(clients)) * deviation * sensitivity(HISTOGRAM, self.budget)

    def entries(self, server: Server, rounds: int) -> list[Entry]:
        """What every client has released to a server in so many rounds."""
        took_part = self.takes_part[:rounds].sum(axis=0)
        entries = []
        for client in np.flatnonzero(self.federation.sizes > 0).tolist():
            once = [
                kind for kind in server.releases.once if kind == COUNTS or server.name in self._histograms
            ]
            calibration = self.calibration(client, server.releases)
            name = self.federation.client_names[client]
            entries += calibration.entries(name, int(took_part[client]), once)
        return entries


class PrivateScores:
    """The rows by which a server's rule is chosen, of which those at clients come with noise."""

    at_clients = False

    def __init__(self, clients: PrivateClients, server: Server, model: Mlp, rows: ScoredRows) -> None:
        self._clients, self._server, self._model = clients, server, model
        self.margins, self.joint_rows = rows.margins, rows.joint_rows  # the server's own

    def histograms(self, params: Models) -> NDArray[np.int64]:
        """(groups, 2, bins) all clients' rows by the score that a model gives them."""
        return self._clients.histograms(self._server, self._model, params)

    @property
    def histogram_noise(self) -> float:
        """The standard deviation of the noise in each of their counts."""
        return self._clients.histogram_noise(self._server)

    def held_histograms(self, params: Models) -> NDArray[np.int64]:
        """Never asked for: the server has the validation rows."""
        raise NotImplementedError

    def guess_groups(self, share: float, group: int = 1) -> Models:
        """Never asked for: no strategy that trains a second model is let in."""
        raise NotImplementedError

    def priced(self, params: Models, group_params: Models, *, held_out: bool = False) -> Ask:
        """Never asked for, likewise."""
        raise NotImplementedError

    def distil(self, labelling: Labelling, share: float) -> Models:
        """Never asked for, likewise."""
        raise NotImplementedError

    def split_histograms(self, params: Models, other: Models, *, held_out: bool = False) -> NDArray[np.int64]:
        """Never asked for, likewise."""
        raise NotImplementedError

    def joint_histograms(
        self, params: Models, group_params: Models, bins: int, *, held_out: bool = False
    ) -> NDArray[np.int64]:
        """Never asked for, likewise."""
        raise NotImplementedError


def name_server(spec: Spec, releases: Releases) -> str:
    """What a server's streams of noise are made from: strategies of other names have clients of their own.

    A histogram is of one released model, so no two strategies share a server that has one.
    """
    base = spec if HISTOGRAM in releases.once else spec.base
    return "|".join([base.text, *releases.once, "each round", *releases.each_round])

"""All clients in this process: every strategy's models are trained side by side, on the same batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fairfate.engine import local
from fairfate.engine.attack import Attack, Attackers
from fairfate.engine.descent import descend
from fairfate.engine.server import Dropped, Replies, Server, stack
from fairfate.engine.validators import Candidates, candidates
from fairfate.errors import check
from fairfate.fairness.disclosure import merge_bins, round_counts, round_statistics
from fairfate.fairness.metrics import CellRows, Counts, Statistics
from fairfate.fairness.thresholds import histogram
from fairfate.federation.seeds import Streams
from fairfate.federation.split import Federation
from fairfate.federation.validation_source import scoring_rows
from fairfate.models.model import Model, Models
from fairfate.models.rows import PackedRows
from fairfate.models.training import Training
from fairfate.strategies import Loss, Need, Vector
from fairfate.strategies.steps import scaled

_OWN_ROWS = Need.LOCAL | Need.REPORTS
"""Where clients look at their own rows again."""


class Simulation:
    """The clients of a federation, here."""

    def __init__(
        self,
        federation: Federation,
        model: Model,
        training: Training,
        streams: Streams,
        attack: Attack | None = None,
    ) -> None:
        check(
            training.per_round <= federation.clients,
            f"per-round must be <= the {federation.clients} clients",
            training.per_round,
        )
        self.attackers: Attackers | None = None
        if attack is not None:
            self.attackers = Attackers.draw(attack, federation, model, streams)
            federation = self.attackers.federation
        self.federation, self.model, self.training, self.streams = federation, model, training, streams
        self._key = streams.batch_key
        self._nothing = np.zeros((0, federation.groups, 2, 2), dtype=np.int64)
        self._zero = np.zeros((1, federation.groups, 2, 2), dtype=np.int64)
        self._sampled = streams.cohorts(training.rounds, federation.clients, training.per_round)
        self._scoring_rows = federation.validation
        if not federation.validation_source.at_clients:
            self._scoring_rows = scoring_rows(federation.validation, training.per_round, streams)
        self._sizes = federation.sizes
        self._has_rows = self._sizes > 0

    def initial(self) -> Models:
        """The model that every strategy starts from."""
        return self.model.initial(self.streams.weights(self.model.num_parameters))

    def validate(self, models: Models) -> Counts:
        """(models, groups, 2, 2) on the validation rows: the server's, or all that clients hold out."""
        f = self.federation
        if f.validation_source.at_clients and f.min_cell > 1:
            return _each_once(models, partial(self._sum_held, range(f.clients)))
        return self._count(models, f.validation)

    def test(self, models: Models) -> Counts:
        """(models, groups, 2, 2) on the test rows."""
        return self._count(models, self.federation.test)

    def _count(self, models: Models, rows: PackedRows) -> Counts:
        """Counts of models, of which equal ones are looked at once."""
        return _each_once(models, partial(self.model.count, rows=rows))

    def descend(self, params: Vector, loss: Loss) -> Vector:
        """What a step of training on the validation rows adds to a model."""
        return descend(self.model, self.federation.validation, params, loss)

    def train(self, t: int, servers: Sequence[Server]) -> list[Replies]:
        """One round: each server's replies. A client without rows sends nothing."""
        f = self.federation
        sampled = self._sampled[t - 1]
        clients = sampled[self._has_rows[sampled]]
        names = tuple([f.client_names[k] for k in clients.tolist()])
        models = stack([server.params for server in servers])
        if not len(clients):
            return [Replies((), models[:0], np.empty(0), self._nothing)] * len(servers)
        strategies, rows = [server.strategy for server in servers], f.client_cells[clients]
        told = [
            None if s.strategy.broadcast is None else s.broadcast(self._rows_told(s, rows, clients))
            for s in servers
        ]
        packed = f.local if any(s.needs(_OWN_ROWS) for s in servers) else {}
        reports = self._reports(models, clients, servers)
        distinct, places = _distinct(models, servers)
        begun = models if len(distinct) == len(models) else models[distinct]
        trained = local.train(
            self.model,
            [strategies[s] for s in distinct],
            begun,
            [told[s] for s in distinct],
            f.rows,
            clients,
            rows,
            packed,
            self.training,
            self._key,
            t,
        )
        if self.attackers is not None:
            trained = self.attackers.sent(self.model, begun, trained, clients, self.training, self._key, t)
        judged = f.validation_source.at_clients
        scored = [self._nothing] * len(servers) if judged else self._score_clients(trained, servers, places)
        deltas = trained - begun[:, None]
        deltas.setflags(write=False)  # several strategies may look at them
        sizes = self._told(self._sizes[clients], clients)
        found = [Replies(names, deltas[p], sizes, scored[s], reports[s]) for s, p in enumerate(places)]
        found = self._on_sample(found, models, servers)
        finite: NDArray[np.bool_] = np.isfinite(trained)
        if not finite.all():
            usable = [finite[p].all(axis=1) for p in places]
            found = [_only(replies, of) for replies, of in zip(found, usable, strict=True)]
        if judged:
            return self._judge(t, found, trained, begun, clients, servers, places)
        result = [self._scaled(server, replies) for server, replies in zip(servers, found, strict=True)]
        for s, (server, p) in enumerate(zip(servers, places, strict=True)):
            if server.of_people and len(found[s].clients):
                models = trained[p][np.isin(names, found[s].clients)]
                changed = (result[s].deltas != found[s].deltas).any(axis=1)
                models[changed] = begun[p] + result[s].deltas[changed]
                result[s] = self._see_people(server, result[s], models, begun[p])
        return result

    def _judge(
        self,
        t: int,
        found: Sequence[Replies],
        trained: Models,
        begun: Models,
        clients: NDArray[np.int64],
        servers: Sequence[Server],
        places: Sequence[int],
    ) -> list[Replies]:
        """The same replies, with what those who sent them count on the rows that they hold out."""
        named = dict(zip([self.federation.client_names[k] for k in clients.tolist()], clients, strict=True))
        judges = [np.array([named[name] for name in replies.clients], dtype=np.int64) for replies in found]
        asked: dict[int, Candidates] = {}
        result = list(found)
        for s, (server, p) in enumerate(zip(servers, places, strict=True)):
            replies, scale = found[s], server.strategy.scale
            if scale is not None and len(judges[s]):
                replies = replies._replace(deltas=scaled(replies.deltas, scale(replies.deltas)))
            if server.needs(Need.TRIALS) and len(judges[s]):
                replies = replies._replace(score=partial(self._count_held, judges[s]))
            if server.needs(Need.SCORES) and len(judges[s]):
                place = p if scale is None else -1 - s
                if place not in asked:
                    models = (
                        trained[p][np.isin(clients, judges[s])]
                        if scale is None
                        else begun[p] + replies.deltas
                    )
                    about = replies.clients, models, replies.num_examples
                    asked[place] = candidates(self.federation.validation_source, self.streams, t, *about)
                replies = self._judged(replies, asked[place], begun[p], judges[s])
            result[s] = replies
        return result

    def _judged(self, replies: Replies, of: Candidates, begun: Models, judges: NDArray[np.int64]) -> Replies:
        """A server's replies with the candidates in the place of clients."""
        models = np.concatenate([of.models, begun[None]])
        counts = self._count_held(judges, models) if of.judged else np.repeat(self._zero, len(models), axis=0)
        deltas = replies.deltas if len(of.members) == len(replies.clients) else of.models - begun
        return replies._replace(
            clients=of.names,
            deltas=deltas,
            num_examples=of.num_examples,
            client_counts=counts[:-1],
            server_counts=counts[-1],
        )

    def _count_held(self, judges: NDArray[np.int64], models: Models) -> Counts:
        """(models, groups, 2, 2) summed over what these clients hold out, or all."""
        given = np.ascontiguousarray(models, dtype=np.float32)
        if self.federation.validation_source.validators == "all":
            return self.validate(given)
        return self._sum_held(judges, given)

    def _sum_held(self, judges: Iterable[int], models: Models) -> Counts:
        """(models, groups, 2, 2) the sums of what these clients count."""
        f = self.federation
        each = [round_counts(self.model.count(models, f.held[k]), f.min_cell) for k in judges]
        return np.asarray(np.sum(each, axis=0))

    def _scaled(self, server: Server, replies: Replies) -> Replies:
        """Replies whose updates are scaled down where the strategy says so, and then scored."""
        if server.strategy.scale is None or not len(replies.clients):
            return replies
        factors = server.strategy.scale(replies.deltas)
        deltas, changed, counts = scaled(replies.deltas, factors), factors != 1, replies.client_counts
        if len(counts) and changed.any():
            counts = counts.copy()
            moved = stack(list(server.params + deltas[changed]))
            counts[changed] = self._count(moved, self._scoring_rows)
        return replies._replace(deltas=deltas, client_counts=counts)

    def _see_people(self, server: Server, replies: Replies, models: Models, begun: Models) -> Replies:
        """Replies with how the clients' models, and the server's, treat single people."""
        assert self.federation.people is not None
        every = np.concatenate([models, begun[None]])
        return replies._replace(people=self.federation.people.fairness(server.of_people, self.model, every))

    def _rows_told(self, server: Server, rows: CellRows, clients: NDArray[np.int64]) -> CellRows | None:
        """What a server knows of its clients' rows before a round."""
        if server.needs(Need.ALL_ROWS):
            return self._told(self.federation.client_cells[self._has_rows], np.flatnonzero(self._has_rows))
        return self._told(rows, clients) if server.needs(Need.ROWS) else None

    def _told(self, numbers: NDArray[np.int64], clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """Numbers of rows, as the server hears of them."""
        return numbers if self.attackers is None else self.attackers.told(numbers, clients)

    def _reports(
        self, models: Models, clients: NDArray[np.int64], servers: Sequence[Server]
    ) -> list[Statistics | None]:
        """For servers that need them, the model that was sent out on each client's own rows."""
        wanted = [s for s, server in enumerate(servers) if server.needs(Need.REPORTS)]
        found: list[Statistics | None] = [None] * len(servers)
        if wanted:
            f = self.federation
            each = [
                round_statistics(self.model.statistics(models[wanted], f.local[int(k)]), f.min_cell)
                for k in clients
            ]
            together = Statistics(*(np.stack(values, axis=1) for values in zip(*each, strict=True)))
            if self.attackers is not None:
                together = self.attackers.reported(together, clients)
            for place, s in enumerate(wanted):
                found[s] = local.one(together, place)
        return found

    def _score_clients(
        self, trained: Models, servers: Sequence[Server], places: Sequence[int]
    ) -> list[Counts]:
        """For each server, its clients' models on the validation rows; nothing where it does not look."""
        looks = [server.needs(Need.SCORES) for server in servers]
        wanted = sorted({place for place, look in zip(places, looks, strict=True) if look})
        if not wanted:
            return [self._nothing] * len(servers)
        looked_at = trained if len(wanted) == len(trained) else trained[wanted]
        counts = self.model.count(looked_at.reshape(-1, trained.shape[-1]), self._scoring_rows)
        each = dict(
            zip(wanted, counts.reshape(len(wanted), trained.shape[1], *counts.shape[1:]), strict=True)
        )
        return [each[place] if look else self._nothing for place, look in zip(places, looks, strict=True)]

    def _on_sample(self, found: list[Replies], models: Models, servers: Sequence[Server]) -> list[Replies]:
        """The same with servers' models on the rows of their clients' scores, if these are a sample."""
        looks = [s for s, server in enumerate(servers) if server.needs(Need.SCORES)]
        if self._scoring_rows is self.federation.validation or not looks:
            return found
        counts = dict(zip(looks, self._count(models[looks], self._scoring_rows), strict=True))
        return [of._replace(server_counts=counts.get(s)) for s, of in enumerate(found)]

    def histograms(self, params: Models) -> NDArray[np.int64]:
        """(groups, 2, bins) all clients' rows by the score that a model gives them: sums of theirs."""
        each = [self._histogram(params, rows) for rows in self.federation.local.values()]
        return np.asarray(np.sum(self._told(np.stack(each), np.array([*self.federation.local])), axis=0))

    def held_histograms(self, params: Models) -> NDArray[np.int64]:
        """(groups, 2, bins) the same of all rows that clients hold out."""
        f = self.federation
        parts = f.held if f.min_cell > 1 else (f.validation,)
        return np.asarray(np.sum([self._histogram(params, rows) for rows in parts], axis=0))

    def _histogram(self, params: Models, rows: PackedRows) -> NDArray[np.int64]:
        """What a client tells of the scores of its rows."""
        return merge_bins(histogram(self.model.margins(params, rows)), self.federation.min_cell)


def _each_once(models: Models, count: Callable[[Models], Counts]) -> Counts:
    """Counts of models, where equal ones are counted once."""
    if len(models) == 1:
        return count(models)
    first, places = _first_of_each([model.tobytes() for model in models])
    return count(models) if len(first) == len(models) else count(models[first])[places]


def _distinct(models: Models, servers: Sequence[Server]) -> tuple[list[int], list[int]]:
    """The servers whose clients must be trained, and for each server, which of these stands for it.

    Servers with the same model, whose clients have the usual loss, get the same replies: settings of one
    strategy often share their first rounds.
    """
    return _first_of_each(
        [
            models[s].tobytes() if server.strategy.local_loss is None else b"%d" % s
            for s, server in enumerate(servers)
        ]
    )


def _first_of_each(keys: Sequence[bytes]) -> tuple[list[int], list[int]]:
    """Where each key stands first, and for each key, which of these it is.

    >>> _first_of_each([b"a", b"b", b"a", b"c"])
    ([0, 1, 3], [0, 1, 0, 2])
    """
    numbers: dict[bytes, int] = {}
    first: list[int] = []
    places: list[int] = []
    for at, key in enumerate(keys):
        if key not in numbers:
            numbers[key] = len(first)
            first.append(at)
        places.append(numbers[key])
    return first, places


def _only(replies: Replies, usable: NDArray[np.bool_]) -> Replies:
    """The replies of some clients; the others have sent something that is no number."""
    names = np.array(replies.clients, dtype=object)
    return Replies(
        tuple(names[usable]),
        replies.deltas[usable],
        replies.num_examples[usable],
        replies.client_counts[usable] if len(replies.client_counts) else replies.client_counts,
        None if replies.local is None else local.one(replies.local, usable),
        tuple(Dropped(name, "an update with NaN or infinity") for name in names[~usable]),
        replies.server_counts,
    )

"""All clients in this process: every strategy's models are trained side by side, on the same batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairfate.engine import local
from fairfate.engine.attack import Attack, Attackers
from fairfate.engine.descent import descend
from fairfate.engine.private import PrivateClients, PrivateScores
from fairfate.engine.rules import Labelling, ScoredRows, label_by_rule, train_average
from fairfate.engine.secure_sums import SecureSums, sum_updates, weigh_own
from fairfate.engine.server import Dropped, Replies, Server, stack
from fairfate.engine.validators import Candidates, candidates
from fairfate.errors import check
from fairfate.fairness.disclosure import merge_bins, round_counts, round_statistics
from fairfate.fairness.metrics import CellRows, Counts, Statistics
from fairfate.fairness.split_scores import merge_split, split_histogram
from fairfate.fairness.thresholds import Margins, histogram
from fairfate.fairness.tilt import joint_histogram, merge_squares
from fairfate.fairness.tilt_groups import Ask, GroupTilt, priced_histogram
from fairfate.federation.seeds import Streams
from fairfate.federation.split import Federation
from fairfate.federation.validation_source import scoring_rows
from fairfate.models.mlp import Mlp
from fairfate.models.model import Model, Models
from fairfate.models.rows import PackedRows
from fairfate.models.training import Training
from fairfate.privacy.budget import Budget
from fairfate.strategies import Loss, Need, Vector
from fairfate.strategies.steps import scaled

_OWN_ROWS = (Need.LOCAL, Need.REPORTS)
"""Where clients look at their own rows again."""


class Trained(NamedTuple):
    """What the clients of a round have trained, for servers of which some may share their models."""

    models: Models
    """(distinct, clients, parameters)"""
    start: Models
    """(distinct, parameters) what was sent out"""
    of_server: Sequence[int]
    """For each server, which of these are its clients'."""


class Simulation:
    """The clients of a federation, here."""

    def __init__(
        self,
        federation: Federation,
        model: Model,
        training: Training,
        streams: Streams,
        attack: Attack | None = None,
        secure_sums: SecureSums | None = None,
        budget: Budget | None = None,
    ) -> None:
        check(
            training.per_round <= federation.clients,
            f"per-round must be <= the {federation.clients} clients",
            training.per_round,
        )
        self._honest, self._attack = federation, attack
        self._guesses: dict[tuple[float, int], Models] = {}
        self.attackers: Attackers | None = None
        if attack is not None:
            self.attackers = Attackers.draw(attack, federation, model, streams)
            federation = self.attackers.federation
        self.federation, self.model, self.training, self.streams = federation, model, training, streams
        self._key, self._secure = streams.batch_key, secure_sums
        self._no_counts = np.zeros((0, federation.groups, 2, 2), dtype=np.int64)
        self._cohorts = streams.cohorts(training.rounds, federation.clients, training.per_round)
        self.private = (
            None if budget is None else PrivateClients(budget, federation, training, self._cohorts, streams)
        )
        self._scoring_rows = federation.validation
        if not federation.validation_source.at_clients and secure_sums is None:
            self._scoring_rows = scoring_rows(federation.validation, training.per_round, streams)
        self._sizes = federation.sizes
        self._has_rows = self._sizes > 0

    def initial(self) -> Models:
        """The model that every strategy starts from."""
        return self.model.initial(self.streams.weights(self.model.num_parameters))

    def validate(self, models: Models) -> Counts:
        """(models, groups, 2, 2) on the validation rows: the server's, or all that clients hold out."""
        federation = self.federation
        if self._secure is not None and federation.validation_source.at_clients:
            return round_counts(self._count(models, federation.validation), self._secure.min_cell)
        if federation.validation_source.at_clients and federation.min_cell > 1:
            return _count_distinct(models, partial(self._sum_held_out, range(federation.clients)))
        return self._count(models, federation.validation)

    def test(self, models: Models) -> Counts:
        """(models, groups, 2, 2) on the test rows."""
        return self._count(models, self.federation.test)

    def _count(self, models: Models, rows: PackedRows) -> Counts:
        """Counts of models, of which equal ones are looked at once."""
        return _count_distinct(models, partial(self.model.count, rows=rows))

    def descend(self, params: Vector, loss: Loss) -> Vector:
        """What a step of training on the validation rows adds to a model."""
        return descend(self.model, self.federation.validation, params, loss)

    def train(self, t: int, servers: Sequence[Server]) -> list[Replies]:
        """One round: each server's replies. A client without rows sends nothing."""
        federation = self.federation
        cohort = self._cohorts[t - 1]
        clients = cohort[self._has_rows[cohort]]
        if self.private is not None:
            clients = clients[self.private.allowed(t, clients)]
        models = stack([server.params for server in servers])
        if not len(clients):
            return [Replies((), models[:0], np.empty(0), self._no_counts)] * len(servers)
        reports = self._reports(t, models, clients, servers)
        trained = self._train_models(t, models, clients, servers)
        at_clients = federation.validation_source.at_clients
        scores = [self._no_counts] * len(servers) if at_clients else self._score_clients(trained, servers)
        names = tuple([federation.client_names[client] for client in clients.tolist()])
        sizes = self._reported_rows(self._sizes[clients], clients)
        deltas = trained.models - trained.start[:, None]
        deltas.setflags(write=False)  # several strategies may look at them
        replies = [
            Replies(names, deltas[index], sizes, scores[s], reports[s])
            for s, index in enumerate(trained.of_server)
        ]
        replies = self._count_on_sample(replies, models, servers)
        finite: NDArray[np.bool_] = np.isfinite(trained.models)
        if not finite.all():
            replies = [
                _keep_usable(reply, finite[index].all(axis=1))
                for reply, index in zip(replies, trained.of_server, strict=True)
            ]
        if self._secure is not None:
            return [
                sum_updates(reply, self._weigh(server, reply, trained, s, clients), self._secure.min_sum)
                for s, (server, reply) in enumerate(zip(servers, replies, strict=True))
            ]
        if at_clients:
            return self._validate_at_clients(t, replies, trained, clients, servers)
        scaled_replies = [self._scale(server, reply) for server, reply in zip(servers, replies, strict=True)]
        for s, (server, index) in enumerate(zip(servers, trained.of_server, strict=True)):
            if server.individual_terms and len(replies[s].clients):
                own = trained.models[index][np.isin(names, replies[s].clients)]
                changed = (scaled_replies[s].deltas != replies[s].deltas).any(axis=1)
                own[changed] = trained.start[index] + scaled_replies[s].deltas[changed]
                scaled_replies[s] = self._measure_individual(
                    server, scaled_replies[s], own, trained.start[index]
                )
        return scaled_replies

    def _train_models(
        self, t: int, models: Models, clients: NDArray[np.int64], servers: Sequence[Server]
    ) -> Trained:
        """The clients' models, of servers that cannot differ trained once."""
        if self.private is not None:
            return self._train_private(t, models, clients, servers, self.private)
        federation, rows = self.federation, self.federation.client_cells[clients]
        broadcasts = [
            None
            if server.strategy.broadcast is None
            else server.broadcast(self._known_rows(server, rows, clients))
            for server in servers
        ]
        distinct, of_server = _distinct(models, servers)
        start = models if len(distinct) == len(models) else models[distinct]
        packed = federation.local if any(server.needs(*_OWN_ROWS) for server in servers) else {}
        trained = local.train(
            self.model,
            [servers[s].strategy for s in distinct],
            start,
            [broadcasts[s] for s in distinct],
            federation.rows,
            clients,
            rows,
            packed,
            self.training,
            self._key,
            t,
        )
        if self.attackers is not None:
            trained = self.attackers.send(self.model, start, trained, clients, self.training, self._key, t)
        return Trained(trained, start, of_server)

    def _train_private(
        self,
        t: int,
        models: Models,
        clients: NDArray[np.int64],
        servers: Sequence[Server],
        private: PrivateClients,
    ) -> Trained:
        """The same with noise, which is every server's own: no two share their clients' models."""
        trained = []
        for s, server in enumerate(servers):
            known = np.flatnonzero(self._has_rows) if server.needs(Need.ALL_ROWS) else clients
            is_told = server.needs(Need.ALL_ROWS, Need.ROWS)
            broadcast = None
            if server.strategy.broadcast is not None:
                broadcast = server.broadcast(private.rows(server, known) if is_told else None)
            trained.append(
                local.train(
                    self.model,
                    [server.strategy],
                    models[s : s + 1],
                    [broadcast],
                    self.federation.rows,
                    clients,
                    private.rows(server, clients),
                    {},
                    self.training,
                    self._key,
                    t,
                    private.steps(t, server, clients),
                )
            )
        return Trained(np.concatenate(trained), models, range(len(servers)))

    def scored_rows(self, server: Server) -> ScoredRows:
        """The rows by which a server's rule is chosen after training."""
        if self.private is None:
            return self
        assert isinstance(self.model, Mlp)
        return PrivateScores(self.private, server, self.model, self)

    def _weigh(
        self, server: Server, replies: Replies, trained: Trained, s: int, clients: NDArray[np.int64]
    ) -> list[float] | None:
        """What weights the clients of a round give themselves, if the strategy has them do so."""
        if server.strategy.weigh is None:
            return None
        if not self.federation.validation_source.at_clients:
            counts = [(own, server.counts) for own in replies.client_counts]
        else:
            index, names = trained.of_server[s], self.federation.client_names
            numbers = [k for k, client in enumerate(clients) if names[client] in replies.clients]
            start = trained.start[index]
            counts = []
            for k in numbers:
                both = np.stack([trained.models[index][k], start])
                own, received = self.model.count(both, self.federation.held_out[clients[k]])
                counts.append((own, received))
        return [weigh_own(server.strategy, own, received) for own, received in counts]

    def _validate_at_clients(
        self,
        t: int,
        replies: Sequence[Replies],
        trained: Trained,
        clients: NDArray[np.int64],
        servers: Sequence[Server],
    ) -> list[Replies]:
        """The same replies, with what those who sent them count on the rows that they hold out."""
        numbers = {self.federation.client_names[client]: client for client in clients.tolist()}
        known: dict[int, Candidates] = {}
        result = list(replies)
        for s, (server, index) in enumerate(zip(servers, trained.of_server, strict=True)):
            reply, scale = replies[s], server.strategy.scale
            validators = np.array([numbers[name] for name in reply.clients], dtype=np.int64)
            if scale is not None and len(validators):
                reply = reply._replace(deltas=scaled(reply.deltas, scale(reply.deltas)))
            if server.needs(Need.TRIALS) and len(validators):
                reply = reply._replace(score=partial(self._count_held_out, validators))
            if server.needs(Need.SCORES) and len(validators):
                key = index if scale is None else -1 - s  # scaled models are this server's alone
                if key not in known:
                    sent = (
                        trained.models[index][np.isin(clients, validators)]
                        if scale is None
                        else trained.start[index] + reply.deltas
                    )
                    known[key] = candidates(
                        self.federation.validation_source,
                        self.streams,
                        t,
                        reply.clients,
                        sent,
                        reply.num_examples,
                    )
                reply = self._count_candidates(reply, known[key], trained.start[index], validators)
            result[s] = reply
        return result

    def _count_candidates(
        self, replies: Replies, models: Candidates, start: Models, validators: NDArray[np.int64]
    ) -> Replies:
        """A server's replies with the candidates in the place of clients."""
        every = np.concatenate([models.models, start[None]])
        counts = (
            self._count_held_out(validators, every)
            if models.is_scored
            else np.zeros((len(every), *self._no_counts.shape[1:]), dtype=np.int64)
        )
        is_each = len(models.members) == len(replies.clients)
        return replies._replace(
            clients=models.names,
            deltas=replies.deltas if is_each else models.models - start,
            num_examples=models.num_examples,
            client_counts=counts[:-1],
            server_counts=counts[-1],
        )

    def _count_held_out(self, validators: NDArray[np.int64], models: Models) -> Counts:
        """(models, groups, 2, 2) summed over what these clients hold out, or all."""
        given = np.ascontiguousarray(models, dtype=np.float32)
        if self.federation.validation_source.validators == "all":
            return self.validate(given)
        return self._sum_held_out(validators, given)

    def _sum_held_out(self, validators: Iterable[int], models: Models) -> Counts:
        """(models, groups, 2, 2) the sums of what these clients count."""
        held_out, min_cell = self.federation.held_out, self.federation.min_cell
        each = [round_counts(self.model.count(models, held_out[client]), min_cell) for client in validators]
        return np.asarray(np.sum(each, axis=0))

    def _scale(self, server: Server, replies: Replies) -> Replies:
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

    def _measure_individual(self, server: Server, replies: Replies, models: Models, start: Models) -> Replies:
        """Replies with the individual fairness of the clients' models, and of the server's."""
        assert self.federation.individual is not None
        every = np.concatenate([models, start[None]])
        return replies._replace(
            individual=self.federation.individual.fairness(server.individual_terms, self.model, every)
        )

    def _known_rows(self, server: Server, rows: CellRows, clients: NDArray[np.int64]) -> CellRows | None:
        """What a server knows of its clients' rows before a round."""
        if server.needs(Need.ALL_ROWS):
            every = self.federation.client_cells[self._has_rows]
            return self._reported_rows(every, np.flatnonzero(self._has_rows))
        return self._reported_rows(rows, clients) if server.needs(Need.ROWS) else None

    def _reported_rows(self, numbers: NDArray[np.int64], clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """Numbers of rows, as clients report them to the server."""
        return numbers if self.attackers is None else self.attackers.report_rows(numbers, clients)

    def _reports(
        self, t: int, models: Models, clients: NDArray[np.int64], servers: Sequence[Server]
    ) -> list[Statistics | None]:
        """For servers that need them, the model that was sent out on each client's own rows."""
        wanted = [s for s, server in enumerate(servers) if server.needs(Need.REPORTS)]
        reports: list[Statistics | None] = [None] * len(servers)
        if self.private is not None:
            for s in wanted:
                assert isinstance(self.model, Mlp)
                reports[s] = self.private.report(t, servers[s], self.model, clients)
            return reports
        if wanted:
            own, min_cell = self.federation.local, self.federation.min_cell
            each = [
                round_statistics(self.model.statistics(models[wanted], own[client]), min_cell)
                for client in clients.tolist()
            ]
            together = Statistics(*(np.stack(values, axis=1) for values in zip(*each, strict=True)))
            if self.attackers is not None:
                together = self.attackers.report(together, clients)
            for index, s in enumerate(wanted):
                reports[s] = local.part(together, index)
        return reports

    def _score_clients(self, trained: Trained, servers: Sequence[Server]) -> list[Counts]:
        """For each server, its clients' models on the validation rows; nothing where it does not look."""
        looks = [server.needs(Need.SCORES) for server in servers]
        wanted = sorted({index for index, look in zip(trained.of_server, looks, strict=True) if look})
        if not wanted:
            return [self._no_counts] * len(servers)
        models = trained.models if len(wanted) == len(trained.models) else trained.models[wanted]
        counts = self.model.count(models.reshape(-1, models.shape[-1]), self._scoring_rows)
        by_client = counts.reshape(*models.shape[:2], *counts.shape[1:])
        each = dict(zip(wanted, by_client, strict=True))
        return [
            each[index] if look else self._no_counts
            for index, look in zip(trained.of_server, looks, strict=True)
        ]

    def _count_on_sample(
        self, replies: list[Replies], models: Models, servers: Sequence[Server]
    ) -> list[Replies]:
        """The same with servers' models on the rows of their clients' scores, if these are a sample."""
        looks = [s for s, server in enumerate(servers) if server.needs(Need.SCORES)]
        if self._scoring_rows is self.federation.validation or not looks:
            return replies
        counts = dict(zip(looks, self._count(models[looks], self._scoring_rows), strict=True))
        return [reply._replace(server_counts=counts.get(s)) for s, reply in enumerate(replies)]

    @property
    def at_clients(self) -> bool:
        """Whether the validation rows are those that clients hold out."""
        return self.federation.validation_source.at_clients

    def margins(self, params: Models, split: str) -> Margins:
        """The rows of a split by the score that a model gives them."""
        return self.model.margins(
            params, self.federation.test if split == "test" else self.federation.validation
        )

    def histograms(self, params: Models) -> NDArray[np.int64]:
        """(groups, 2, bins) all clients' rows by the score that a model gives them: sums of theirs."""
        own = self.federation.local
        each = np.stack([self._histogram(params, rows) for rows in own.values()])
        return self._open_bins(np.asarray(np.sum(self._reported_rows(each, np.array([*own])), axis=0)))

    histogram_noise = 0.0
    """Without differential privacy, which has `PrivateScores`."""

    def held_histograms(self, params: Models) -> NDArray[np.int64]:
        """(groups, 2, bins) the same of all rows that clients hold out."""
        federation = self.federation
        parts = federation.held_out if federation.min_cell > 1 else (federation.validation,)
        return self._open_bins(np.asarray(np.sum([self._histogram(params, rows) for rows in parts], axis=0)))

    def _open_bins(self, bins: NDArray[np.int64]) -> NDArray[np.int64]:
        """A sum of histograms as the server shows it: under secure sums the minimum count applies to it."""
        return bins if self._secure is None else merge_bins(bins, self._secure.min_cell)

    def _histogram(self, params: Models, rows: PackedRows) -> NDArray[np.int64]:
        """What a client sends of the scores of its rows."""
        return merge_bins(histogram(self.model.margins(params, rows)), self.federation.min_cell)

    def guess_groups(self, share: float, group: int = 1) -> Models:
        """A model of who is in a group, from the same rows, cohorts and batches."""
        if (share, group) not in self._guesses:
            self._guesses[share, group] = self._train_again(self._honest.guessing(group), share)
        return self._guesses[share, group]

    def distil(self, labelling: Labelling, share: float) -> Models:
        """A model of what a rule decides about the same rows, from the same cohorts and batches."""
        labelled = label_by_rule(self._honest, self.model, labelling)
        return self._train_again(labelled, share)

    def _train_again(self, federation: Federation, share: float) -> Models:
        """A model of other labels of the same rows."""
        clients = Simulation(federation, self.model, self.training, self.streams, self._attack, self._secure)
        return train_average(clients, clients.initial(), self.training.rounds, share)

    def split_histograms(self, params: Models, other: Models, *, held_out: bool = False) -> NDArray[np.int64]:
        """(groups, 2, 2, bins) all clients' rows by a model's decision and another one's score: sums."""
        federation = self.federation
        min_cell = federation.min_cell if self._secure is None else self._secure.min_cell
        if held_out:
            parts = federation.held_out if federation.min_cell > 1 else (federation.validation,)
            sent = [self._split(params, other, rows) for rows in parts]
            total = np.sum(sent, axis=0)
        else:
            own = federation.local
            sent = [self._split(params, other, rows) for rows in own.values()]
            total = np.sum(self._reported_rows(np.stack(sent), np.array([*own])), axis=0)
        return total if self._secure is None else merge_split(total, min_cell)

    def priced(self, params: Models, group_params: Models, *, held_out: bool = False) -> Ask:
        """A way to ask all clients about prices on several guessed groups; each scores its rows once."""
        federation, min_cell = self.federation, self.federation.min_cell
        is_each = min_cell > 1 or self.attackers is not None
        if held_out:
            parts = list(federation.held_out) if min_cell > 1 else [federation.validation]
            numbers = np.arange(0)
        else:
            own = federation.local
            parts = list(own.values()) if is_each else [federation.all_local]
            numbers = np.array([*own])
        scored = [
            (self.model.margins(params, rows), [self.model.margins(guess, rows) for guess in group_params])
            for rows in parts
        ]

        def ask(rules: Sequence[GroupTilt]) -> NDArray[np.int64]:
            answers = []
            for rule in rules:
                sent = np.stack([merge_split(priced_histogram(rule, *scores), min_cell) for scores in scored])
                is_reported = is_each and not held_out
                answers.append(np.sum(self._reported_rows(sent, numbers) if is_reported else sent, axis=0))
            return np.stack(answers)

        return ask

    def _split(self, params: Models, other: Models, rows: PackedRows) -> NDArray[np.int64]:
        own, scored = self.model.margins(params, rows), self.model.margins(other, rows)
        return merge_split(split_histogram(own, scored), self.federation.min_cell)

    def joint_rows(self, params: Models, group_params: Models, bins: int, split: str) -> NDArray[np.int64]:
        """(groups, 2, bins, bins) the server's rows of a split by both scores."""
        rows = self.federation.test if split == "test" else self.federation.validation
        return self._joint(params, group_params, bins, rows)

    def joint_histograms(
        self, params: Models, group_params: Models, bins: int, *, held_out: bool = False
    ) -> NDArray[np.int64]:
        """The same of the rows that clients train on or, with ``held_out``, hold out: sums."""
        federation, min_cell = self.federation, self.federation.min_cell
        if held_out:
            parts = federation.held_out if min_cell > 1 else (federation.validation,)
            sent = np.stack([self._joint(params, group_params, bins, rows) for rows in parts])
            total = np.sum(merge_squares(sent, min_cell), axis=0)
        else:
            own = federation.local
            sent = np.stack([self._joint(params, group_params, bins, rows) for rows in own.values()])
            total = np.sum(self._reported_rows(merge_squares(sent, min_cell), np.array([*own])), axis=0)
        return total if self._secure is None else merge_squares(total, self._secure.min_cell)

    def _joint(self, params: Models, group_params: Models, bins: int, rows: PackedRows) -> NDArray[np.int64]:
        own, guessed = self.model.margins(params, rows), self.model.margins(group_params, rows)
        return joint_histogram(own, guessed, bins)


def _count_distinct(models: Models, count: Callable[[Models], Counts]) -> Counts:
    """Counts of models, where equal ones are counted once."""
    if len(models) == 1:
        return count(models)
    first, numbers = _number_keys([model.tobytes() for model in models])
    return count(models) if len(first) == len(models) else count(models[first])[numbers]


def _distinct(models: Models, servers: Sequence[Server]) -> tuple[list[int], list[int]]:
    """The servers whose clients must be trained, and for each server, which of these stands for it.

    Servers with the same model, whose clients have the usual loss, get the same replies: settings of one
    strategy often share their first rounds.
    """
    return _number_keys(
        [
            models[s].tobytes() if server.strategy.local_loss is None else b"%d" % s
            for s, server in enumerate(servers)
        ]
    )


def _number_keys(keys: Sequence[bytes]) -> tuple[list[int], list[int]]:
    """The first index of each distinct key, and for each key, which of these it is.

    >>> _number_keys([b"a", b"b", b"a", b"c"])
    ([0, 1, 3], [0, 1, 0, 2])
    """
    numbers: dict[bytes, int] = {}
    first: list[int] = []
    for index, key in enumerate(keys):
        if key not in numbers:
            numbers[key] = len(first)
            first.append(index)
    return first, [numbers[key] for key in keys]


def _keep_usable(replies: Replies, usable: NDArray[np.bool_]) -> Replies:
    """The replies of some clients; the others have sent something that is no number."""
    names = np.array(replies.clients, dtype=object)
    return Replies(
        tuple(names[usable]),
        replies.deltas[usable],
        replies.num_examples[usable],
        replies.client_counts[usable] if len(replies.client_counts) else replies.client_counts,
        None if replies.local is None else local.part(replies.local, usable),
        tuple(Dropped(name, "an update with NaN or infinity") for name in names[~usable]),
        replies.server_counts,
    )

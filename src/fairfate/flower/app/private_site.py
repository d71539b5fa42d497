"""What a site answers under differential privacy: with noise, within its budget, and the same to the same.

What a release costs is in the site's ledger, safe on the disk, before it is made. A question that comes again
gets the answer that it got: noise drawn twice could be averaged out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict

from fairfate.data import Table
from fairfate.engine.private import PrivateClient, name_server, seeded
from fairfate.fairness.metrics import CellRows
from fairfate.federation.split import pack
from fairfate.flower.app.gate import Gate, Question, question_digest
from fairfate.flower.app.node import NodeConfig, NodeError, data_file
from fairfate.flower.app.settings import Settings
from fairfate.flower.app.site import Site, train_model
from fairfate.flower.app.site_state import AnswerStore
from fairfate.flower.messages import CLIENT, COUNTS, NAME, ROUND, SPEC
from fairfate.flower.replies import report_metrics
from fairfate.flower.study import HISTOGRAM, ROWS, TRAIN
from fairfate.flower.validation import built_in_arrays
from fairfate.models.mlp import Mlp
from fairfate.models.private import Randomness
from fairfate.models.training import Training
from fairfate.privacy import releases
from fairfate.privacy.budget import Budget
from fairfate.privacy.calibration import Exposure, calibrate
from fairfate.privacy.ledger import Account, Entry, Posting, SpentError
from fairfate.privacy.mechanism import Secure
from fairfate.strategies import Need, Setup, parse_spec

LEDGER = "ledger"
"""The end of the name of the file that says what of another file's rows was released."""
_MARKER = "ledgers.json"
"""In a site's folder: which ledgers it has written, and how much is in them."""


@dataclass(frozen=True)
class Terms:
    """What a run's noise depends on, beside the strategy and the number of a site's rows."""

    budget: Budget
    training: Training
    metric: str
    protocol: str

    @property
    def participations(self) -> int:
        """The most rounds that a site takes part in."""
        return self.budget.participations or self.training.rounds


@dataclass(frozen=True)
class Simulated:
    """Where a simulation's noise comes from: the run's seed, as in the simulator."""

    seed: int
    number: int
    """Of the site among all."""

    def randomness(self, server: str) -> Callable[[str, int], Randomness]:
        """Of a kind of release in a round."""
        return lambda kind, t: seeded(self.seed, server, kind, self.number, t)

    def spend(self, strategy: str, entries: Sequence[Entry], delta: float, later: Sequence[Entry]) -> None:
        """Nothing to write down."""

    def read(self, kind: str, question: str) -> RecordDict | None:
        """Nothing is kept."""
        return None

    def keep(self, kind: str, question: str, answer: RecordDict) -> None:
        """Nothing to keep."""


@dataclass(frozen=True)
class AtSite:
    """At a site of a federation: noise of the system's secure source, a ledger, answers that are kept."""

    account: Account
    """Of the site's file, over all runs."""
    answers: AnswerStore
    study: str
    """The study's checksum."""

    def randomness(self, server: str) -> Callable[[str, int], Randomness]:
        """Of a kind of release in a round: nobody else can know or repeat it."""
        return lambda kind, t: Secure()

    def spend(self, strategy: str, entries: Sequence[Entry], delta: float, later: Sequence[Entry]) -> None:
        """Write down what an answer costs; NodeError without enough for it and what follows."""
        now, rest = ([Posting(self.study[:16], strategy, each) for each in part] for part in (entries, later))
        try:
            self.account.spend(now, delta, rest)
        except SpentError as error:
            public = "this site's budget of differential privacy does not allow the rest of this run"
            raise NodeError(public, str(error)) from None

    def read(self, kind: str, question: str) -> RecordDict | None:
        """What was answered to the same question."""
        return self.answers.read(kind, f"{self.study} {question}")

    def keep(self, kind: str, question: str, answer: RecordDict) -> None:
        """Keep an answer, for when the question comes again."""
        self.answers.keep(kind, f"{self.study} {question}", answer)


@dataclass(frozen=True)
class SitePrivacy:
    """Under what terms a site answers, and what it does it with."""

    terms: Terms
    source: Simulated | AtSite


def simulated_privacy(context: Context) -> SitePrivacy | None:
    """Of a node of a simulation, by the run config."""
    if not context.run_config.get("privacy"):
        return None
    settings = Settings.read(context.run_config)
    assert settings.budget is not None
    config = settings.config
    terms = Terms(settings.budget, settings.training, config.metric, config.protocol)
    return SitePrivacy(terms, Simulated(settings.seed, int(context.node_config["partition-id"])))


def study_privacy(context: Context, gate: Gate) -> SitePrivacy | None:
    """Of a site, by its study and its own settings."""
    study, config = gate.study, context.node_config
    budget, training = study.budget, study.training
    if budget is None:
        return None
    sgd = Training(
        rounds=training.rounds,
        per_round=1,
        epochs=training.epochs,
        batch_size=training.batch_size,
        learning_rate=training.learning_rate,
        l2=training.l2,
    )
    source = AtSite(
        open_account(config, budget, gate.folder.path), AnswerStore(gate.folder.path), study.checksum
    )
    return SitePrivacy(Terms(budget, sgd, training.metric, training.protocol), source)


def open_account(config: NodeConfig, budget: Budget, state: Path) -> Account:
    """The ledger of a site's file: where its settings say, or beside the file, whatever it is called there.

    Parameters
    ----------
    config : the site's settings
    budget : of a run, which is the most for all runs as well unless the settings say more
    state : the site's folder, which remembers how much is in the ledger
    """
    file, given = data_file(config), str(config.get("ledger") or "")
    if not (file.is_absolute() and (not given or Path(given).expanduser().is_absolute())):
        raise NodeError("node-config must name data and ledger by full paths with differential privacy")
    try:
        data = file.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise NodeError("the site's file cannot be read; its own log says why", str(error)) from None
    if not given and data.stat().st_nlink > 1:
        public = "node-config must name a ledger for a file that has several names"
        raise NodeError(public, f"{public} (hard links), got '{data}' without one")
    ledger = Path(given).expanduser().resolve() if given else data.with_name(f"{data.name}.{LEDGER}")
    most, delta = config.get("epsilon", budget.epsilon), config.get("delta", budget.delta)
    if isinstance(most, bool) or not isinstance(most, int | float) or not 0 < most < math.inf:
        raise NodeError("node-config epsilon must be a number > 0, got another")
    if isinstance(delta, bool) or not isinstance(delta, int | float) or not 0 < delta < 1:
        raise NodeError("node-config delta must be a number in (0, 1), got another")
    return Account(ledger, float(most), float(delta), data, state / _MARKER)


class PrivateSite:
    """A site, for one question."""

    def __init__(self, question: Question, site: Site, privacy: SitePrivacy) -> None:
        self.question, self.site, self.source = question, site, privacy.source
        terms = privacy.terms
        table = self.table
        site.check_rows(len(table))
        self.spec = parse_spec(str(question.config[SPEC]), terms.metric)
        setup = Setup(
            terms.training.rounds,
            terms.protocol == "published",
            question.schema.grouping,
            terms.training.learning_rate,
        )
        self.releases = releases.releases_of(self.spec, setup)
        trained, _ = site.parts(table, question.config)  # all of them, unless some are held out
        exposure = Exposure.of_training(int(trained.sum()), terms.training, terms.participations)
        if isinstance(self.source, AtSite) and terms.budget.delta * len(table) > 1:
            raise NodeError(
                f"delta must be at most one in a site's number of rows, got {terms.budget.delta:g}: a larger"
                " one allows to publish rows"
            )
        calibration = calibrate(terms.budget, exposure, self.releases)
        if calibration is None:
            raise NodeError("this site has too few rows for the budget of differential privacy")
        randomness = self.source.randomness(name_server(self.spec, self.releases))
        self.client, self._delta = PrivateClient(terms.budget, calibration, randomness), terms.budget.delta
        self._terms = terms

    @property
    def table(self) -> Table:
        """All of its rows."""
        return self.site.table(self.question.schema)

    def answer(self) -> RecordDict:
        """What it tells."""
        kind = self.question.kind
        if kind in (TRAIN, HISTOGRAM):
            digest = question_digest(self.question)
            kept = self.source.read(kind, digest)
            if kept is None:
                kept = self._train() if kind == TRAIN else self._histogram()
                self.source.keep(kind, digest, kept)
            return kept
        result = RecordDict({CLIENT: ConfigRecord({NAME: self.site.name})})
        if kind == ROWS:
            result[COUNTS] = MetricRecord({ROWS: [int(number) for number in self._rows().ravel()]})
        return result

    def _rows(self) -> CellRows:
        """(groups, 2) its rows by group and label: told once, with noise."""
        table = self.table
        exact = np.bincount(table.cell, minlength=2 * table.groups).reshape(-1, 2)
        if releases.COUNTS not in self.releases.once:
            return self.client.rows(exact)
        kept = self.source.read(ROWS, self.spec.text)
        if kept is None:
            self._spend(0, releases.COUNTS)
            numbers = self.client.rows(exact)
            kept = RecordDict({COUNTS: MetricRecord({ROWS: [int(number) for number in numbers.ravel()]})})
            self.source.keep(ROWS, self.spec.text, kept)
        return np.array(kept[COUNTS][ROWS], dtype=np.int64).reshape(-1, 2)

    def _train(self) -> RecordDict:
        """An update by noisy steps, and what the strategy needs beside it."""
        rows = self._rows()
        self._spend(1)
        t = int(self.question.config[ROUND])
        trained = train_model(self.question, self.site, None, private=(self.client.steps(t), rows))
        metrics: dict[str, Any] = {"num-examples": len(self.table)}
        if Need.REPORTS in trained.strategy.needs:
            model = trained.model
            assert isinstance(model, Mlp)
            own = trained.clients.local[trained.number]
            metrics |= report_metrics(self.client.report(t, model, trained.start, own))
        layers = built_in_arrays(trained.params, trained.model)
        sent = ArrayRecord({name: Array(layer) for name, layer in layers.items()})
        return RecordDict({"arrays": sent, "metrics": MetricRecord(metrics)})

    def _histogram(self) -> RecordDict:
        """Its rows by the score of the released model."""
        self._spend(0, releases.HISTOGRAM)
        layers, schema = dict(self.question.models[0]), self.question.schema
        model, table = Mlp.from_arrays(layers), self.table
        params = np.asarray(model.flat(layers), dtype=np.float32)
        rows = pack(table, np.arange(len(table)), schema.encoder)
        counts = [int(number) for number in self.client.histogram(model, params, rows).ravel()]
        about = ConfigRecord({NAME: self.site.name})
        return RecordDict({CLIENT: about, COUNTS: MetricRecord({HISTOGRAM: counts})})

    def _spend(self, rounds: int, *once: str) -> None:
        """Write down what so many rounds and other releases cost, if the rest of the run can be paid."""
        entries = self.client.calibration.entries
        histogram = [kind for kind in self.releases.once if kind == releases.HISTOGRAM and kind not in once]
        first = int(self.question.config.get(ROUND, 1)) if self.question.kind != HISTOGRAM else None
        left = 0 if first is None else self._terms.training.rounds - first + 1 - rounds
        later = min(left, self._terms.participations - rounds)
        rest = entries(self.site.name, max(later, 0), histogram)
        self.source.spend(self.spec.text, entries(self.site.name, rounds, once), self._delta, rest)

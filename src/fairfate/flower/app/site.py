"""The ready app at a site: reads the site's file, answers the server's questions, trains its model.

A site's rows never leave it. What it says of problems names columns and rules, not values; what its owner
needs to mend a file is in its own log.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from logging import INFO, WARNING
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from fairfate.data import Schema, Table, UnfitError, describe_frame
from fairfate.data.readers import list_folder, stem
from fairfate.engine import local
from fairfate.engine.rules import Labelling, label_by_rule
from fairfate.errors import InputError
from fairfate.fairness.disclosure import large_strata, merge_bins, round_counts, round_statistics
from fairfate.fairness.metrics import CellRows
from fairfate.fairness.split_scores import merge_split, split_histogram
from fairfate.fairness.thresholds import histogram
from fairfate.fairness.tilt import joint_histogram, merge_squares
from fairfate.fairness.tilt_groups import GroupTilt, priced_histogram, read_rule
from fairfate.federation.seeds import Streams
from fairfate.federation.split import Federation, pack
from fairfate.flower.app.gate import SCHEMA, Gate, Question, RefusedError, describe_message, state_folder
from fairfate.flower.app.node import NodeError, check_keys, data_file, read_rows
from fairfate.flower.app.site_state import NO_STUDY, SiteFolder, file_checksum
from fairfate.flower.client import strategy_of
from fairfate.flower.logs import log, one_line
from fairfate.flower.messages import (
    ASK,
    BINS,
    BROADCAST,
    CLIENT,
    COUNTS,
    DECISION,
    GROUP,
    GUESSED,
    HELD,
    HELD_SEED,
    HELD_SHARE,
    NAME,
    NOTE,
    PART,
    PRICES,
    PROBLEM,
    ROUND,
    SPLIT,
    TABLE,
    TARGET,
)
from fairfate.flower.replies import report_metrics
from fairfate.flower.sealed_grid import PROBLEM as PROBLEM_RECORD
from fairfate.flower.sealed_grid import REASON
from fairfate.flower.study import FIT, HISTOGRAM, ROWS, SCORES, TRAIN
from fairfate.flower.validation import built_in_arrays
from fairfate.models.mlp import Mlp, parse_hidden
from fairfate.models.model import Model
from fairfate.models.private import NoisySteps
from fairfate.models.training import Training
from fairfate.models.user_network import Network
from fairfate.strategies import Need, Strategy
from fairfate.strategies.fedavg import AVERAGING

if TYPE_CHECKING:
    from fairfate.flower.app.private_site import SitePrivacy

DESCRIBE = "describe"
"""In a query of a simulation: what the columns of a site hold."""
Mask = NDArray[np.bool_]
Layers = dict[str, NDArray[Any]]
Metrics = dict[str, Any]


_TABLES: dict[tuple[str, str, str], Table] = {}
"""What files hold, by their checksums, names and schemas."""
_MOST_TABLES = 16


class SiteError(RuntimeError):
    """What a site tells the server when it cannot do what it was asked."""


def is_simulated(context: Context) -> bool:
    """Whether this is a node of Flower's simulation: it has these settings, and no others."""
    return set(context.node_config) == {"partition-id", "num-partitions"}


def file_of(context: Context) -> Path:
    """The site's file: ``data`` in its node-config or, in a simulation, its share of the ``sites`` folder."""
    if not is_simulated(context):
        return data_file(context.node_config)
    folder = Path(str(context.run_config.get("sites", ""))).expanduser()
    if not folder.is_dir():
        raise SiteError(f"sites must be a folder with a file for each site, got '{folder}'")
    files, number = list_folder(folder), int(context.node_config["partition-id"])
    if number >= len(files):
        raise SiteError(f"sites must hold a file for each of the nodes, got {len(files)} in '{folder}'")
    return files[number]


@contextmanager
def _discreet() -> Iterator[None]:
    """Whatever goes wrong, others hear of it without seeing values; all of it is in the site's own log."""
    try:
        yield
    except SiteError:
        raise
    except NodeError as error:
        log(WARNING, "%s", error)
        raise SiteError(error.public) from None
    except UnfitError as error:
        log(WARNING, "The file does not fit the server's schema: %s", error)
        raise SiteError(error.public) from None
    except Exception as error:
        log(WARNING, "The server's question could not be answered", exc_info=error)
        raise SiteError("the site's program failed; its own log says why") from None


@dataclass(frozen=True)
class Site:
    """Who answers: the site's settings, and the bounds on what it tells."""

    context: Context
    name: str
    checksum: str
    """Of its file, and of the settings by which it is read."""
    min_cell: int = 0
    rows: tuple[int, float] = (0, math.inf)
    """How many training rows it must have, at least and at most."""
    privacy: SitePrivacy | None = None
    """Under differential privacy, its terms and where noise and budget come from."""

    @classmethod
    def simulated(cls, context: Context) -> Site:
        """A node of a simulation: nobody's rows are behind it, and nothing is sealed."""
        from fairfate.flower.app.private_site import simulated_privacy  # which needs us

        file, min_cell = file_of(context), int(context.run_config.get("min-cell") or 0)
        checksum, privacy = file_checksum(file, context.node_config), simulated_privacy(context)
        return cls(context, stem(file), checksum, min_cell, privacy=privacy)

    @classmethod
    def of_study(cls, context: Context, gate: Gate, checksum: str) -> Site:
        """A site of a federation, as its study has it."""
        limits, (low, high) = gate.study.limits, gate.study.sites[gate.name].rows
        from fairfate.flower.app.private_site import study_privacy  # which needs us

        min_cell = 0 if limits.secure_sums else limits.min_cell  # which then applies to the opened sum
        rows = max(low, limits.min_rows), high
        return cls(context, gate.name, checksum, min_cell, rows, study_privacy(context, gate))

    def frame(self, schema: Schema) -> pd.DataFrame:
        """The site's rows, with its own column names replaced by the schema's."""
        return read_rows(self.context.node_config, file_of(self.context), schema)

    def table(self, schema: Schema) -> Table:
        """The same in the schema; a file that has not changed is parsed once for all rounds of a process."""
        key = self.checksum, self.name, schema.to_json()
        if key not in _TABLES:
            while len(_TABLES) >= _MOST_TABLES:
                del _TABLES[next(iter(_TABLES))]
            _TABLES[key] = schema.table(self.frame(schema), self.name)
        return _TABLES[key]

    def parts(self, table: Table, config: Mapping[str, Any]) -> tuple[Mask, Mask]:
        """Which rows are trained on, and which are held out; rows of small strata are in neither."""
        held_out = np.zeros(len(table), dtype=bool)
        if HELD_SEED in config:
            streams, share = Streams(int(config[HELD_SEED])), float(config[HELD_SHARE])
            held_out = streams.held_out(int(config["client"]), table.cell, share)
        elif HELD_SHARE in config:  # which rows depends on our number, how many of them does not
            held_out = Streams(0).held_out(0, table.cell, float(config[HELD_SHARE]))
        return self._large(table, ~held_out), self._large(table, held_out)

    def _large(self, table: Table, part: Mask) -> Mask:
        kept = part.copy()
        kept[part] = large_strata(table.cell[part], self.min_cell, 2 * table.groups)
        return kept

    def check_rows(self, number: int) -> None:
        """SiteError unless the site has as many training rows as it must."""
        low, high = self.rows
        if number < low:
            raise SiteError("this site has fewer training rows than the minimum")
        if number > high:
            raise SiteError("this site has more training rows than the study allows")


class SiteApp(ClientApp):
    """A site's half of the app: every message, of whatever type, comes to `respond`, and so into its log.

    Parameters
    ----------
    network : a network of the app's own, in place of the built-in model
    """

    def __init__(self, network: str | None = None) -> None:
        super().__init__()
        self.network = network

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message."""
        return respond(message, context, self.network)


def respond(message: Message, context: Context, network: str | None = None) -> Message:
    """Answer a message of the server's, if the site's study has it; RefusedError otherwise.

    Parameters
    ----------
    message : what came
    context : the site's settings
    network : a network of the app's own, in place of the built-in model
    """
    if is_simulated(context):
        return Message(_respond_in_simulation(message, context, network), reply_to=message)
    try:
        return Message(_respond_at_site(message, context, network), reply_to=message)
    except RefusedError:
        raise
    except Exception as error:  # whatever it is, others hear nothing of it
        log(WARNING, "The message is refused: %s", error)
        raise RefusedError from None


def _respond_at_site(message: Message, context: Context, network: str | None) -> RecordDict:
    """The sealed answer to a message that the study has."""
    from fairfate.flower.app.masking import answer_in_sum  # which needs us

    gate = _open_gate(message, context)
    question, envelope = gate.open(message, context, network)
    problem = ""
    try:
        with _discreet():
            check_keys(context.node_config)
            checksum = file_checksum(file_of(context), context.node_config)
            if not gate.check_file(checksum):
                raise SiteError("the site's file, or how it is read, has changed since the study began")
            site = Site.of_study(context, gate, checksum)
            is_summed = gate.study.limits.secure_sums and question.kind not in (FIT, ROWS)
            content = (
                answer_in_sum(question, site, gate, network) if is_summed else answer(question, site, network)
            )
            gate.keep_file(checksum)
    except SiteError as error:
        problem = str(error)
        content = RecordDict({PROBLEM_RECORD: ConfigRecord({REASON: problem})})
        if question.kind in (FIT, ROWS):
            content = RecordDict({CLIENT: ConfigRecord({NAME: gate.name, PROBLEM: str(error)})})
    return gate.close(question, envelope, content, problem)


def _open_gate(message: Message, context: Context) -> Gate:
    """The gate; a site whose study, key or state is not right logs the message, if it has a folder for it."""
    try:
        return Gate(context.node_config)
    except (InputError, OSError, ValueError) as error:
        with suppress(InputError, OSError, ValueError):
            folder = SiteFolder(state_folder(context.node_config))
            folder.check_owner()
            folder.refuse(NO_STUDY, **describe_message(message, context), reason=one_line(error))
        raise


def _respond_in_simulation(message: Message, context: Context, network: str | None) -> RecordDict:
    """The same without a gate, for a node of a simulation."""
    content = message.content
    config = dict(content.config_records["config"])
    is_training = message.metadata.message_type == MessageType.TRAIN
    kind = TRAIN if is_training else str(config[ASK]) if config.get(ASK) in _ASKED else FIT
    if kind == FIT and config.get("wants-rows"):
        kind = ROWS
    names = sorted(content.array_records, key=lambda name: (len(name), name))
    try:
        with _discreet():
            models = tuple(
                {key: array.numpy() for key, array in content.array_records[name].items()} for name in names
            )
            site = Site.simulated(context)
            if config.get(ASK) == DESCRIBE:
                return _describe(site, Schema.from_json(str(config[SCHEMA])))
            question = Question(kind, config, models, _schema_of(config, context))
            return answer(question, site, network)
    except SiteError as error:
        if is_training:
            raise
        with suppress(SiteError):
            return RecordDict({CLIENT: ConfigRecord({NAME: stem(file_of(context)), PROBLEM: str(error)})})
        return RecordDict({CLIENT: ConfigRecord({PROBLEM: str(error)})})


_ASKED = {SCORES, HISTOGRAM}


def _schema_of(config: Mapping[str, Any], context: Context) -> Schema:
    """The schema, which comes with the first question of a run; a node of a simulation keeps it."""
    if SCHEMA in config:
        context.state[SCHEMA] = ConfigRecord({SCHEMA: str(config[SCHEMA])})
    if SCHEMA not in context.state:
        raise SiteError("the run's first question had no schema")
    return Schema.from_json(str(context.state[SCHEMA][SCHEMA]))


def _describe(site: Site, schema: Schema) -> RecordDict:
    """What the site's columns hold, which only a simulation asks: no minimum cell count could hide it."""
    described = json.dumps(describe_frame(schema, site.frame(schema)))
    return RecordDict({CLIENT: ConfigRecord({NAME: site.name, DESCRIBE: described})})


def answer(question: Question, site: Site, network: str | None = None) -> RecordDict:
    """What the site tells: the smallest answer that the question can have, under its minimum cell count."""
    if site.privacy is not None:
        from fairfate.flower.app.private_site import PrivateSite  # which needs us

        return PrivateSite(question, site, site.privacy).answer()
    kind, config = question.kind, question.config
    if kind == TRAIN:
        layers, metrics = _train(question, site, network)
        sent = ArrayRecord({name: Array(layer) for name, layer in layers.items()})
        return RecordDict({"arrays": sent, "metrics": MetricRecord(metrics)})
    result = RecordDict({CLIENT: ConfigRecord({NAME: site.name, **_note(site.context)})})
    if kind in (SCORES, HISTOGRAM):
        result[COUNTS] = MetricRecord({kind: [int(n) for n in count_rows(question, site, network).ravel()]})
        return result
    table = site.table(question.schema)
    trained, _ = site.parts(table, config)
    site.check_rows(int(trained.sum()))
    log(INFO, "%s: %d rows fit the server's schema", table.name, len(table))
    if kind == ROWS:
        cells = np.bincount(table.cell[trained], minlength=2 * table.groups)
        result[COUNTS] = MetricRecord({ROWS: [int(number) for number in cells]})
    return result


def count_rows(question: Question, site: Site, network: str | None) -> NDArray[np.int64]:
    """The site's rows by what models decide for them, or by the score that one gives them."""
    kind, config, table = question.kind, question.config, site.table(question.schema)
    trained, held_out = site.parts(table, config)
    site.check_rows(int(trained.sum()))
    layers = dict(question.models[0])
    model: Model = Mlp.from_arrays(layers) if network is None else model_of(question.schema, "", network)
    vectors = np.stack([np.asarray(model.flat(dict(arrays)), dtype=np.float32) for arrays in question.models])
    part = held_out if kind == SCORES or config.get(PART) == HELD else trained
    rows = pack(table, np.flatnonzero(part), question.schema.encoder)
    if kind == SCORES:
        return round_counts(model.count(vectors, rows), site.min_cell)
    if PRICES in config:
        plain, *guesses = (model.margins(vector, rows) for vector in vectors)
        rules = [GroupTilt.from_text(str(text)) for text in config[PRICES]]
        return np.stack(
            [merge_split(priced_histogram(rule, plain, guesses), site.min_cell) for rule in rules]
        )
    if SPLIT in config:
        own, scored = (model.margins(vector, rows) for vector in vectors)
        return merge_split(split_histogram(own, scored), site.min_cell)
    if BINS in config:
        margins, guessed = (model.margins(vector, rows) for vector in vectors)
        return merge_squares(joint_histogram(margins, guessed, int(config[BINS])), site.min_cell)
    return merge_bins(histogram(model.margins(vectors[0], rows)), site.min_cell)


def _note(context: Context) -> dict[str, str]:
    """What the server should know of a simulation that leaves sites out."""
    if context.node_config.get("data"):
        return {}
    files, nodes = len(list_folder(file_of(context).parent)), context.node_config.get("num-partitions", 0)
    note = f"{nodes} of the {files} files in 'sites' are simulated; num-supernodes={files} takes all"
    return {} if nodes == files else {NOTE: note}


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """What a site has trained, before anything of it leaves."""

    model: Model
    strategy: Strategy
    start: NDArray[np.float32]
    """The model that was sent."""
    params: NDArray[np.float32]
    clients: Federation
    """The site alone."""
    number: int


def _train(question: Question, site: Site, network: str | None) -> tuple[Layers, Metrics]:
    """The layers after training, and what the server is told beside them."""
    trained = train_model(question, site, network)
    model, clients = trained.model, trained.clients
    metrics: Metrics = {"num-examples": len(clients.rows)}
    if Need.REPORTS in trained.strategy.needs:
        statistics = local.part(model.statistics(trained.start[None], clients.local[trained.number]), 0)
        metrics |= report_metrics(round_statistics(statistics, site.min_cell))
    return built_in_arrays(trained.params, model), metrics


def train_model(
    question: Question,
    site: Site,
    network: str | None,
    min_cell: int = 0,
    private: tuple[NoisySteps, CellRows] | None = None,
) -> TrainedModel:
    """Train exactly as `fairfate run` does; under differential privacy by noisy steps and counts."""
    config, schema = question.config, question.schema
    table = site.table(schema)
    trained, _ = site.parts(table, config)
    site.check_rows(int(trained.sum()))
    number, model = int(config["client"]), model_of(schema, str(config["hidden"]), network)
    clients = Federation.site(table, schema.encoder, number, ~trained)
    if config.get(TARGET) == GROUP:
        clients = clients.guessing(int(config.get(GUESSED, 1)))
    elif config.get(TARGET) == DECISION:
        own, *guesses = (np.asarray(model.flat(dict(arrays)), np.float32) for arrays in question.models[1:])
        rule = read_rule(str(config[TABLE]))
        clients = label_by_rule(clients, model, Labelling(own, np.stack(guesses), rule))
    strategy = strategy_of(config, schema.grouping, min_cell) if "strategy" in config else AVERAGING
    start = np.asarray(model.flat(dict(question.models[0])), dtype=np.float32)
    broadcast = np.array(config[BROADCAST], dtype=np.float64) if BROADCAST in config else None
    steps, cells = (None, clients.client_cells[number]) if private is None else private
    params = local.train(
        model,
        [strategy],
        start[None],
        [broadcast],
        clients.rows,
        np.array([number]),
        cells[None],
        clients.local,
        training_of(config),
        Streams(int(config["seed"]), config.get("protocol") == "published").batch_key,
        int(config[ROUND]),
        None if steps is None else [steps],
    )[0, 0]
    return TrainedModel(model, strategy, start, params, clients, number)


def model_of(schema: Schema, hidden: str, network: str | None) -> Model:
    """The built-in model with these layers, or the network that comes with the app."""
    if network is not None:
        return Network.read(network).model(schema)
    return Mlp(schema.encoder.inputs, parse_hidden(hidden))


def training_of(config: Mapping[str, Any]) -> Training:
    """The clients' SGD from the server's message."""
    return Training(
        rounds=1,
        per_round=1,
        epochs=int(config["epochs"]),
        batch_size=int(config["batch-size"]),
        learning_rate=float(config["learning-rate"]),
        l2=float(config["l2"]),
    )

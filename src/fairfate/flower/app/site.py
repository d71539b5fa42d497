"""The ready app at a site: reads the site's file, answers the server's questions, trains its model.

A site's rows never leave it. What it says of problems names columns and rules, not values; what its owner
needs to mend a file is in its own log.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict
from numpy.typing import NDArray

from fairfate.data import Schema, Table, UnfitError, describe_frame
from fairfate.data.read import list_folder, stem
from fairfate.fairness.thresholds import histogram
from fairfate.federation.split import Federation, pack
from fairfate.federation.streams import Streams
from fairfate.flower.app.node import NodeError, check_keys, data_file, read_rows
from fairfate.flower.client import strategy_of
from fairfate.flower.logs import log
from fairfate.flower.nodes import CLIENT, COUNTS, NAME, NOTE, PROBLEM, ROWS
from fairfate.flower.replies import BROADCAST, report_metrics
from fairfate.flower.steps import ASK, HISTOGRAM
from fairfate.flower.validation import built_in_arrays
from fairfate.flower.validators import HELD, HELD_SEED, HELD_SHARE, MODEL, PART, SCORES
from fairfate.lazy import pandas as pd
from fairfate.models.mlp import Mlp, parse_hidden
from fairfate.models.model import Model
from fairfate.models.own import Network
from fairfate.models.training import Training
from fairfate.rounds import local
from fairfate.strategies import Need, fedavg

DESCRIBE, SCHEMA = "describe", "schema"
Layers = dict[str, NDArray[Any]]
Metrics = dict[str, Any]


class SiteError(RuntimeError):
    """What a site tells the server when it cannot do what it was asked."""


def file_of(context: Context) -> Path:
    """The site's file: ``data`` in its node-config or, in a simulation, its share of the ``sites`` folder."""
    simulated = set(context.node_config) == {"partition-id", "num-partitions"}  # what a simulation sets
    if not simulated:
        return data_file(context.node_config)
    folder = Path(str(context.run_config.get("sites", ""))).expanduser()
    if not folder.is_dir():
        raise SiteError(f"sites must be a folder with a file for each site, got '{folder}'")
    files, number = list_folder(folder), int(context.node_config["partition-id"])
    if number >= len(files):
        raise SiteError(f"sites must hold a file for each of the nodes, got {len(files)} in '{folder}'")
    return files[number]


def name_of(context: Context) -> str:
    """What the site calls itself: ``name`` in its node-config, or its file's name."""
    return str(context.node_config.get("name") or stem(file_of(context)))


def read_site(context: Context, schema: Schema) -> pd.DataFrame:
    """The site's rows, with its own column names replaced by the schema's."""
    return read_rows(context.node_config, file_of(context), schema)


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
        log(WARNING, "Could not do what the server asked", exc_info=error)
        raise SiteError("the site's program failed; its own log says why") from None


def answer(content: RecordDict, context: Context, network: str | None = None) -> RecordDict:
    """Answer the server's query: who we are, and whether our file fits its schema.

    If the server asks so, add our rows by group and label (for reweighing), or our columns' sums
    (or ranges) and category names (for a schema that covers all sites).
    """
    about = ConfigRecord()
    result = RecordDict({CLIENT: about})
    try:
        with _discreet():
            about.update({NAME: name_of(context), **_note(context)})
            check_keys(context.node_config)
            config = content.config_records["config"]
            arrays = content.array_records.get("arrays")
            if config.get(ASK) == SCORES:
                result.update(_judge(content, config, context, network))
            elif config.get(ASK) == HISTOGRAM and arrays is not None:
                result.update(_scores(arrays, config, context, network))
            else:
                result.update(_answer(config, context, about))
    except SiteError as error:
        about[PROBLEM] = str(error)
    return result


def _scores(
    arrays: ArrayRecord, config: ConfigRecord, context: Context, network: str | None
) -> dict[str, MetricRecord]:
    """Our rows by group, label and the score that a model gives them, for thresholds."""
    schema = Schema.from_json(str(config[SCHEMA]))
    table = schema.table(read_site(context, schema), name_of(context))
    layers = {name: array.numpy() for name, array in arrays.items()}
    model: Model = Mlp.of(layers) if network is None else model_of(schema, "", network)
    held = _held(table, config)
    rows = pack(table, np.flatnonzero(held if config.get(PART) == HELD else ~held), schema.encoder)
    found = histogram(model.margins(np.asarray(model.flat(layers), dtype=np.float32), rows))
    return {COUNTS: MetricRecord({HISTOGRAM: [int(number) for number in found.ravel()]})}


def _judge(
    content: RecordDict, config: ConfigRecord, context: Context, network: str | None
) -> dict[str, MetricRecord]:
    """How models do on the rows that we hold out, by group, label and decision."""
    schema = Schema.from_json(str(config[SCHEMA]))
    table = schema.table(read_site(context, schema), name_of(context))
    sent = [content.array_records[f"{MODEL}{number}"] for number in range(len(content.array_records))]
    layers = [{name: array.numpy() for name, array in arrays.items()} for arrays in sent]
    model: Model = Mlp.of(layers[0]) if network is None else model_of(schema, "", network)
    models = np.stack([np.asarray(model.flat(of), dtype=np.float32) for of in layers])
    found = model.count(models, pack(table, np.flatnonzero(_held(table, config)), schema.encoder))
    return {COUNTS: MetricRecord({SCORES: [int(number) for number in found.ravel()]})}


def _held(table: Table, config: ConfigRecord) -> NDArray[np.bool_]:
    """Which rows we hold out; none unless the server says so."""
    if HELD_SEED not in config:
        return np.zeros(len(table), dtype=bool)
    share = float(str(config[HELD_SHARE]))
    return Streams(_whole(config, HELD_SEED)).held(_whole(config, "client"), table.cell, share)


def _answer(config: ConfigRecord, context: Context, about: ConfigRecord) -> dict[str, MetricRecord]:
    schema = Schema.from_json(str(config[SCHEMA]))
    frame = read_site(context, schema)
    if config.get(ASK) == DESCRIBE:
        if not context.node_config.get("describe", True):
            raise SiteError("this site tells nothing of its columns (describe = false)")
        about[DESCRIBE] = json.dumps(describe_frame(schema, frame))
        return {}
    table = schema.table(frame, name_of(context))
    log(INFO, "%s: %d rows fit the server's schema", table.name, len(table))
    if not config.get("wants-rows"):
        return {}
    held = np.zeros(len(table), dtype=bool)
    if HELD_SHARE in config:  # which rows depends on our number, how many of them does not
        held = Streams(0).held(0, table.cell, float(str(config[HELD_SHARE])))
    cells = np.bincount(table.cell[~held], minlength=2 * table.groups)
    return {COUNTS: MetricRecord({ROWS: [int(number) for number in cells]})}


def _note(context: Context) -> dict[str, str]:
    """What the server should know of a simulation that leaves sites out."""
    if context.node_config.get("data"):
        return {}
    files, nodes = len(list_folder(file_of(context).parent)), context.node_config.get("num-partitions", 0)
    said = f"{nodes} of the {files} files in 'sites' are simulated; num-supernodes={files} takes all"
    return {} if nodes == files else {NOTE: said}


def train(content: RecordDict, context: Context, network: str | None = None) -> RecordDict:
    """Train the server's model on the site's rows, exactly as `fairfate run` does."""
    with _discreet():
        arrays = {name: array.numpy() for name, array in content.array_records["arrays"].items()}
        trained, metrics = _train(arrays, content.config_records["config"], context, network)
    sent = ArrayRecord({name: Array(layer) for name, layer in trained.items()})
    return RecordDict({"arrays": sent, "metrics": MetricRecord(metrics)})


def _train(
    layers: Layers, config: ConfigRecord, context: Context, network: str | None
) -> tuple[Layers, Metrics]:
    """The layers after training, and what the server is told beside them."""
    schema = Schema.from_json(str(config[SCHEMA]))
    table = schema.table(read_site(context, schema), name_of(context))
    number, model = _whole(config, "client"), model_of(schema, str(config["hidden"]), network)
    site = Federation.site(table, schema.encoder, number, _held(table, config))
    strategy = strategy_of(config, schema.grouping) if "strategy" in config else fedavg()
    start = np.asarray(model.flat(layers), dtype=np.float32)
    told = np.array(config[BROADCAST], dtype=np.float64) if BROADCAST in config else None
    metrics: Metrics = {"num-examples": len(site.rows)}
    if Need.REPORTS in strategy.needs:
        metrics |= report_metrics(local.one(model.statistics(start[None], site.local[number]), 0))
    trained = local.train(
        model,
        [strategy],
        start[None],
        [told],
        site.rows,
        np.array([number]),
        site.client_cells[number][None],
        site.local,
        training_of(config),
        Streams(_whole(config, "seed"), config.get("protocol") == "published").batch_key,
        _whole(config, "server-round"),
    )[0, 0]
    return built_in_arrays(trained, model), metrics


def model_of(schema: Schema, hidden: str, network: str | None) -> Model:
    """The built-in model with these layers, or the network that comes with the app."""
    if network is not None:
        return Network.read(network).model(schema)
    return Mlp(schema.encoder.inputs, parse_hidden(hidden))


def training_of(config: ConfigRecord) -> Training:
    """The clients' SGD from the server's message."""
    return Training(
        rounds=1,
        per_round=1,
        epochs=_whole(config, "epochs"),
        batch_size=_whole(config, "batch-size"),
        learning_rate=float(str(config["learning-rate"])),
    )


def _whole(config: ConfigRecord, key: str) -> int:
    return int(str(config[key]))

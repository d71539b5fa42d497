"""The ready app at a site: reads the site's file, answers the server's questions, trains its model.

A site's rows never leave it. What it says to others names columns and rules, not values; what its owner
needs to mend a file is in its own log.
"""

from __future__ import annotations

import json
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict

from fairfate.data import Schema, Table, UnfitError, describe_frame, read_frame
from fairfate.data.read import list_folder
from fairfate.engine import mlp
from fairfate.engine.training import Training
from fairfate.errors import InputError
from fairfate.federation import Federation
from fairfate.flower.logs import log
from fairfate.flower.nodes import CLIENT, COUNTS, NAME, NOTE, PROBLEM, ROWS
from fairfate.flower.validation import built_in_arrays
from fairfate.streams import Streams

ASK, DESCRIBE, SCHEMA = "ask", "describe", "schema"


class SiteError(RuntimeError):
    """What a site tells the server when it cannot do what it was asked."""


def file_of(context: Context) -> Path:
    """The site's file: ``data`` in its node-config or, in a simulation, its share of the ``sites`` folder."""
    given = context.node_config.get("data")
    if given:
        return Path(str(given)).expanduser()
    if "partition-id" not in context.node_config:
        raise SiteError("node-config must name the site's file, as in data='/path/to/file.csv', got none")
    folder = Path(str(context.run_config.get("sites", ""))).expanduser()
    if not folder.is_dir():
        raise SiteError(f"sites must be a folder with a file for each site, got '{folder}'")
    files, number = list_folder(folder), int(context.node_config["partition-id"])
    if number >= len(files):
        raise SiteError(f"sites must hold a file for each of the nodes, got {len(files)} in '{folder}'")
    return files[number]


def name_of(context: Context) -> str:
    """What the site calls itself: ``name`` in its node-config, or its file's name."""
    return str(context.node_config.get("name") or file_of(context).stem)


def read_site(context: Context, schema_target: str, schema_sensitive: str) -> pd.DataFrame:
    """The site's rows, with its own column names replaced by the schema's."""
    config = context.node_config
    renamed = {
        str(config[key]): name
        for key, name in (("target", schema_target), ("sensitive", schema_sensitive))
        if config.get(key)
    }
    for pair in filter(None, str(config.get("rename", "")).split(",")):
        own, equals, name = pair.partition("=")
        if not equals:
            raise SiteError("node-config rename must be like 'own=schema,own=schema', got something else")
        renamed[own.strip()] = name.strip()
    try:
        frame = read_frame(file_of(context))
    except InputError as error:
        log(WARNING, "%s", error)
        raise SiteError("the site's file cannot be read; its own log says why") from None
    for own in renamed:
        if own not in frame.columns:
            raise SiteError(f"node-config names a column '{own}' that the site's file does not have")
    return frame.rename(columns=renamed)


def _table(context: Context, schema: Schema) -> Table:
    """The site's rows in the server's schema."""
    frame = read_site(context, schema.target, schema.sensitive)
    try:
        return schema.table(frame, name_of(context))
    except UnfitError as error:
        log(WARNING, "The file does not fit the server's schema: %s", error)
        raise SiteError(error.public) from None


def answer(content: RecordDict, context: Context) -> RecordDict:
    """Answer the server's query: who we are, and whether our file fits its schema.

    If the server asks so, add our rows by group and label (for reweighing), or our columns' ranges and
    category names (for a schema that covers all sites).
    """
    config = content.config_records["config"]
    schema = Schema.from_json(str(config[SCHEMA]))
    about = ConfigRecord()
    result = RecordDict({CLIENT: about})
    try:
        about.update({NAME: name_of(context), **_note(context)})
        if config.get(ASK) == DESCRIBE:
            if not context.node_config.get("describe", True):
                raise SiteError("this site tells nothing of its columns (describe = false)")
            frame = read_site(context, schema.target, schema.sensitive)
            about[DESCRIBE] = json.dumps(_described(schema, frame))
            return result
        table = _table(context, schema)
    except SiteError as error:
        about[PROBLEM] = str(error)
        return result
    log(INFO, "%s: %d rows fit the server's schema", table.name, len(table))
    if config.get("wants-rows"):
        cells = np.bincount(table.cell, minlength=2 * table.groups)
        result[COUNTS] = MetricRecord({ROWS: [int(number) for number in cells]})
    return result


def _note(context: Context) -> dict[str, str]:
    """What the server should know of a simulation that leaves sites out."""
    if context.node_config.get("data"):
        return {}
    files, nodes = len(list_folder(file_of(context).parent)), context.node_config.get("num-partitions", 0)
    said = f"{nodes} of the {files} files in 'sites' are simulated; num-supernodes={files} takes all"
    return {} if nodes == files else {NOTE: said}


def _described(schema: Schema, frame: pd.DataFrame) -> dict[str, Any]:
    try:
        return describe_frame(schema, frame)
    except UnfitError as error:
        log(WARNING, "The file does not fit the server's columns: %s", error)
        raise SiteError(error.public) from None


def train(content: RecordDict, context: Context) -> RecordDict:
    """Train the server's model on the site's rows, exactly as `fairfate run` does."""
    config = content.config_records["config"]
    schema = Schema.from_json(str(config[SCHEMA]))
    table = _table(context, schema)
    training = training_of(config)
    number, t = _whole(config, "client"), _whole(config, "server-round")
    site = Federation.site(table, schema.encoder, number)
    layers = {name: array.numpy() for name, array in content.array_records["arrays"].items()}
    start = mlp.flat(layers).astype(np.float32)
    weights = np.ones((1, 1, 2 * table.groups), dtype=np.float32)
    given = config.get("loss-weights")
    if isinstance(given, list):
        weights[0, 0] = given
    streams = Streams(_whole(config, "seed"), config.get("protocol") == "published")
    key = streams.batch_key
    trained = site.train(start[None], np.array([number]), weights, training, key, t)[0, 0]
    arrays = built_in_arrays(trained, site.inputs, training.hidden)
    metrics = MetricRecord({"num-examples": len(table)})
    sent = ArrayRecord({name: Array(layer) for name, layer in arrays.items()})
    return RecordDict({"arrays": sent, "metrics": metrics})


def training_of(config: ConfigRecord) -> Training:
    """The clients' SGD from the server's message."""
    return Training(
        rounds=1,
        per_round=1,
        epochs=_whole(config, "epochs"),
        batch_size=_whole(config, "batch-size"),
        learning_rate=float(str(config["learning-rate"])),
        hidden=_whole(config, "hidden"),
    )


def _whole(config: ConfigRecord, key: str) -> int:
    return int(str(config[key]))

"""What a site answers under secure sums: what it has trained and counted, under masks that open as a sum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fairfate.data import Table
from fairfate.data.readers import read_frame
from fairfate.engine.secure_sums import weigh_own
from fairfate.errors import InputError
from fairfate.federation.split import pack
from fairfate.federation.validation_source import parse_validation_source
from fairfate.flower.app.gate import Gate, Question
from fairfate.flower.app.site import Site, SiteError, count_rows, train_model
from fairfate.flower.app.sum_state import least_of
from fairfate.flower.messages import (
    MASKED,
    MEMBERS,
    REVEALED,
    SHARES,
    SIGNATURES,
    SUM_PART,
)
from fairfate.flower.study import TRAIN, UNMASK
from fairfate.models.rows import PackedRows
from fairfate.privacy.fixed_point import ROWS, Ring, contribute
from fairfate.privacy.masked_sums import Party, SumError, statement
from fairfate.storage import sha256_of

PUBLIC = "public"
"""In a node-config: the site's copy of the rows on which every site scores its model."""


def answer_in_sum(question: Question, site: Site, gate: Gate, network: str | None) -> RecordDict:
    """The site's part of a sum, or what opens one."""
    if question.kind == UNMASK:
        return _reveal(question, gate)
    if question.kind == TRAIN:
        return _mask(question, gate, _update(question, site, gate, network))
    counts = np.ascontiguousarray(count_rows(question, site, network).ravel(), dtype=np.int64)
    return _mask(question, gate, {ROWS: counts.view(np.uint64)})


def _update(question: Question, site: Site, gate: Gate, network: str | None) -> dict[str, Ring]:
    """The site's update in fixed point, by its rows and by the weight that it gives itself."""
    source = parse_validation_source(gate.study.training.validation_from)
    trained = train_model(question, site, network, source.min_cell)
    delta, weight = trained.params - trained.start, None
    if trained.strategy.weigh is not None:
        table = site.table(question.schema)
        if source.at_clients:
            _, held_out = site.parts(table, question.config)
            rows = pack(table, np.flatnonzero(held_out), question.schema.encoder)
        else:
            rows = _public_rows(question, site, gate)
        own, received = trained.model.count(np.stack([trained.params, trained.start]), rows)
        weight = weigh_own(trained.strategy, own, received)
    part = contribute(delta, len(trained.clients.rows), weight)
    if weight is not None:
        gate.keep_membership(question, is_member=part.is_member)
    return part.parts


def _public_rows(question: Question, site: Site, gate: Gate) -> PackedRows:
    """The rows on which every site scores its model: the study's, or nothing is answered."""
    given = str(site.context.node_config.get(PUBLIC) or "")
    path = Path(given).expanduser()
    try:
        if not given or sha256_of(path) != gate.study.limits.public:
            raise SiteError("this site has not the public rows of the study (public in its node-config)")
        frame: pd.DataFrame = read_frame(path)
        table: Table = question.schema.table(frame, PUBLIC)
    except (OSError, InputError):
        raise SiteError("the public rows cannot be read; the site's own log says why") from None
    return pack(table, np.arange(len(table)), question.schema.encoder)


def _mask(question: Question, gate: Gate, parts: dict[str, Ring]) -> RecordDict:
    party, _ = _party(question, gate)
    masked = party.mask(parts)
    arrays = {name: Array(values.view(np.int64)) for name, values in masked.parts.items()}
    shares = ConfigRecord({name: packet.hex() for name, packet in masked.shares.items()})
    return RecordDict({MASKED: ArrayRecord(arrays), SHARES: shares})


def _reveal(question: Question, gate: Gate) -> RecordDict:
    """What opens one part of a sum; the gate has written down that it is opened."""
    config, (party, entry) = question.config, _party(question, gate)
    cohort, part = party.transcript.cohort, str(config[SUM_PART])
    parts = [ROWS] if entry["member"] is None else [ROWS, "weights"]
    try:
        packets = {name: bytes.fromhex(text) for name, text in zip(cohort, config[SHARES], strict=True)}
        shares = party.reveal(part, parts, packets)
    except (SumError, ValueError) as error:
        raise SiteError(f"this sum cannot be opened: {error}") from None
    content = RecordDict({REVEALED: ConfigRecord({name: share.hex() for name, share in shares.items()})})
    if part == ROWS and entry["member"] is not None:
        number = party.count(bool(entry["member"]))
        signature = gate.key.sign(statement(party.transcript, number))
        content[MEMBERS] = ConfigRecord({MEMBERS: f"{number:016x}", SIGNATURES: signature.hex()})
    return content


def _party(question: Question, gate: Gate) -> tuple[Party, dict[str, Any]]:
    """The site in the sum of a question, and what it remembers of that."""
    transcript, entry = gate.read_sum(question)
    keys = {name: member.key for name, member in gate.study.sites.items()}
    return Party(gate.name, lambda name: gate.key.agree(keys[name]), transcript, least_of(gate.study)), entry

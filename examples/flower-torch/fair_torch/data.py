"""Where the rows come from: here the embedded data, shared out so that clients differ."""

import numpy as np

import fairfate
from fairfate.data import Encoder
from fairfate.federation.partition import parse_partition
from fairfate.federation.seeds import Streams
from fairfate.federation.split import build

TABLE, STREAMS = fairfate.load("synthetic:rows=3000"), Streams(seed=1)


def load_client(number: int, clients: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels (1 is the good outcome) of one client."""
    federation = build(TABLE, parse_partition("dirichlet:1.0"), clients, STREAMS)
    rows = slice(*federation.rows.offsets[number : number + 2])
    return federation.rows.x.reshape(-1, federation.inputs)[rows], federation.rows.y[rows]


def load_server() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, labels and groups of the server's validation rows."""
    train, validation, _ = STREAMS.split(len(TABLE))
    inputs = Encoder.fit(TABLE.features[train]).transform(TABLE.features[validation])
    return inputs, TABLE.label[validation], TABLE.group[validation]

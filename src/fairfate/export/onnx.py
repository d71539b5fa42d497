"""A trained model as an ONNX graph, from raw columns to the decision."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fairfate._version import __version__
from fairfate.data.columns import free_name
from fairfate.data.groups import band_names
from fairfate.data.schema import Vocabulary
from fairfate.errors import InputError, check
from fairfate.export.columns import MEANING, TEXT, RawColumn, raw_columns
from fairfate.fairness.tilt import SP, Tilt, bin_edges
from fairfate.fairness.tilt_groups import UNIT, GroupTilt
from fairfate.models.fair_model import FairModel

if TYPE_CHECKING:
    from onnx import ModelProto

IR, OPSET, ML_OPSET = 10, 21, 3
"""Versions of the format that runtimes since 2024 read."""
ML = "ai.onnx.ml"
_SHOWN = ("strategy", "protocol", "seed", "data", "data-checksum")
"""Of what the model tells about itself."""
UNKNOWN = ""
"""What is decided for a person of a group without a threshold."""


def to_onnx(model: FairModel) -> ModelProto:
    """A model as ONNX, with one input for each raw column and nothing to be prepared but texts and numbers.

    Inputs are (rows, 1): texts as strings (empty where missing), numbers as doubles (NaN where missing),
    dates as days since 1970-01-01. Outputs are ``probability`` (rows,) of the favourable outcome, and
    ``prediction`` (rows,), the outcome decided; it is empty for a person of a group without a threshold.

    Parameters
    ----------
    model : a model of the built-in kind; InputError for one with a network of its own

    Returns
    -------
    The model, checked by ONNX's own checker.
    """
    try:
        import onnx
    except ImportError:
        raise InputError('format onnx needs onnx: pip install "fairfate[onnx]"') from None
    layers = model_layers(model)
    graph = _Graph(model)
    encoded = _encoded(graph)
    margin = _network(graph, encoded, layers)
    graph.node("Sigmoid", [margin], output=graph.probability)
    if model.tilt is None:
        _decide(graph, margin)
    else:
        guesses = [_network(graph, encoded, array_layers(arrays)) for arrays in model.tilt.models]
        if isinstance(model.tilt.rule, GroupTilt):
            _decide_by_prices(graph, model.tilt.rule, margin, guesses)
        else:
            _decide_by_table(graph, model.tilt.rule, margin, guesses[0])
    exported = onnx.helper.make_model(
        graph.build(),
        producer_name="fairfate",
        producer_version=__version__,
        ir_version=IR,
        opset_imports=[onnx.helper.make_opsetid("", OPSET), onnx.helper.make_opsetid(ML, ML_OPSET)],
    )
    onnx.helper.set_model_props(exported, _about(graph))
    onnx.checker.check_model(exported)
    return exported


def model_layers(model: FairModel) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """The weights (inputs, units) and biases of each layer of a built-in model."""
    if model.network is not None or "w1" not in model.arrays:
        raise InputError("model must be of the built-in kind to be exported, not a network of your own")
    return array_layers(model.arrays)


def array_layers(arrays: Mapping[str, NDArray[Any]]) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """The same of a model's arrays by name."""
    count = sum(name[0] == "w" and name[1:].isdigit() for name in arrays)
    parts = [(np.asarray(arrays[f"w{n}"]), np.asarray(arrays[f"b{n}"])) for n in range(1, count + 1)]
    return [(weights.reshape(len(weights), -1), bias) for weights, bias in parts]


class _Graph:
    """A graph that grows node by node; names of its own never meet those of columns."""

    def __init__(self, model: FairModel) -> None:
        from onnx import helper

        self.helper: Any = helper
        self.model, self.schema = model, model.schema
        self.columns = raw_columns(model)
        self.taken = set(self.columns)
        self.probability, self.prediction = self.name("probability"), self.name("prediction")
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.codes: dict[str, str] = {}

    def name(self, wanted: str) -> str:
        """A name that is free."""
        name = free_name(wanted, self.taken)
        self.taken.add(name)
        return name

    def node(self, kind: str, inputs: Sequence[str], *, output: str = "", **attributes: Any) -> str:
        """Add a node; returns the name of its output."""
        output = output or self.name(f"{kind.lower()}_{len(self.nodes)}")
        self.nodes.append(self.helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def constant(self, values: Any, kind: Any = np.float64) -> str:
        """Add a constant; returns its name."""
        from onnx import numpy_helper

        name = self.name(f"constant_{len(self.constants)}")
        array = np.ascontiguousarray(np.asarray(values, dtype=kind))
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def cast(self, value: str, kind: Any) -> str:
        """As another type."""
        return self.node("Cast", [value], to=self.helper.np_dtype_to_tensor_dtype(np.dtype(kind)))

    def build(self) -> Any:
        """The whole graph."""
        from onnx import TensorProto

        make = self.helper.make_tensor_value_info
        kinds = {True: TensorProto.STRING, False: TensorProto.DOUBLE}
        inputs = [
            make(column.name, kinds[column.kind == TEXT], ["rows", 1], doc_string=MEANING[column.kind])
            for column in self.columns.values()
        ]
        good = self.model.labels[1]
        outputs = [
            make(self.probability, TensorProto.DOUBLE, ["rows"], doc_string=f"probability of '{good}'"),
            make(self.prediction, TensorProto.STRING, ["rows"], doc_string="the outcome that is decided"),
        ]
        return self.helper.make_graph(self.nodes, "fairfate", inputs, outputs, self.constants)


def _code(graph: _Graph, column: RawColumn) -> str:
    """(rows, 1) the index of each text among the known ones; -1 for none."""
    if column.name not in graph.codes:
        index = {**column.known.indices, "": column.known.missing}
        graph.codes[column.name] = graph.node(
            "LabelEncoder",
            [column.name],
            domain=ML,
            keys_strings=list(index),
            values_int64s=list(index.values()),
            default_int64=column.known.rest,
        )
    return graph.codes[column.name]


def _encoded(graph: _Graph) -> str:
    """(rows, inputs) what the encoder makes of the columns, in 32 bits."""
    schema, slots = graph.schema, graph.schema.encoder.slots
    texts = [] if slots is None else np.flatnonzero(slots).tolist()
    numbers = [column for column in range(len(schema.features)) if column not in set(texts)]
    parts, order = [], []
    if numbers:
        scaled, missing = _numbers(graph, numbers)
        parts.append(scaled)
        order += [(number, 0) for number in numbers]
        is_flagged = schema.encoder.flagged
        flagged = [] if is_flagged is None else [number for number in numbers if is_flagged[number]]
        if flagged:
            index = graph.constant([numbers.index(number) for number in flagged], np.int64)
            parts.append(graph.cast(graph.node("Gather", [missing, index], axis=1), np.float32))
            order += [(number, 1) for number in flagged]
    for number in texts:
        column = graph.columns[schema.features[number]]
        codes = np.arange(len(column.known.names))
        every = graph.constant(codes[None], np.int64)
        parts.append(graph.cast(graph.node("Equal", [_code(graph, column), every]), np.float32))
        order += [(number, code) for code in codes.tolist()]
    return _in_order(graph, graph.node("Concat", parts, axis=1), order)


def _in_order(graph: _Graph, inputs: str, order: list[tuple[int, int]]) -> str:
    """The encoder's inputs in its own order."""
    wanted = sorted(range(len(order)), key=order.__getitem__)
    if wanted == list(range(len(order))):
        return inputs
    return graph.node("Gather", [inputs, graph.constant(wanted, np.int64)], axis=1)


def _numbers(graph: _Graph, numbers: Sequence[int]) -> tuple[str, str]:
    """(rows, numbers) the numbers scaled, and which are missing; with ordinal codes, texts are numbers."""
    schema, encoder = graph.schema, graph.schema.encoder
    raw = []
    for number in numbers:
        column = graph.columns[schema.features[number]]
        if column.kind == TEXT:
            known = graph.constant([*range(len(column.known.names)), np.nan])  # -1 is the last
            raw.append(graph.node("Gather", [known, _code(graph, column)]))
        else:
            raw.append(column.name)
    values = graph.node("Concat", raw, axis=1)
    missing = graph.node("IsNaN", [values])
    median, low, span = (
        graph.constant(array[list(numbers)][None]) for array in (encoder.median, encoder.low, encoder.span)
    )
    filled = graph.node("Where", [missing, median, values])
    scaled = graph.node("Div", [graph.node("Sub", [filled, low]), span])
    return graph.cast(scaled, np.float32), missing


def _network(graph: _Graph, inputs: str, layers: list[tuple[NDArray[Any], NDArray[Any]]]) -> str:
    """(rows,) the log-odds, from weights of 32 bits in 64-bit arithmetic, as the model itself does it."""
    units = graph.cast(inputs, np.float64)
    for number, (weights, bias) in enumerate(layers):
        doubled = [graph.cast(graph.constant(part, np.float32), np.float64) for part in (weights, bias)]
        units = graph.node("Gemm", [units, *doubled])
        if number < len(layers) - 1:
            units = graph.node("Tanh", [units])
    return graph.node("Squeeze", [units, graph.constant([1], np.int64)])


def _decide(graph: _Graph, margin: str) -> None:
    """The outcome that is decided, by each person's threshold or everybody's."""
    labels = graph.constant([*graph.model.labels, UNKNOWN], object)
    if graph.model.thresholds is None or graph.model.common_threshold is not None:
        cut = graph.constant(graph.model.common_threshold or 0.0)
        accepted = graph.cast(graph.node("Greater", [margin, cut]), np.int64)
        graph.node("Gather", [labels, accepted], output=graph.prediction)
        return
    cuts = graph.constant([*graph.model.thresholds, np.nan])  # -1 is the last
    flat = graph.node("Squeeze", [_group(graph), graph.constant([1], np.int64)])
    cut = graph.node("Gather", [cuts, flat])
    accepted = graph.cast(graph.node("Greater", [margin, cut]), np.int64)
    is_undecided = graph.node("IsNaN", [cut])
    index = graph.node("Where", [is_undecided, graph.constant(2, np.int64), accepted])
    graph.node("Gather", [labels, index], output=graph.prediction)


def _decide_by_prices(graph: _Graph, rule: GroupTilt, margin: str, guesses: Sequence[str]) -> None:
    """The outcome that is decided, by whole prices on the ranges that the scores of several groups are in."""

    def number(value: int) -> str:
        return graph.constant(value, np.int64)

    def middle(score: str) -> str:
        twice = graph.node("Mul", [_range(graph, score, rule.bins), number(2)])
        return graph.node("Add", [twice, number(1)])

    def total(prices: Sequence[int]) -> str:
        parts = [graph.node("Mul", [own, number(price)]) for own, price in zip(groups, prices, strict=True)]
        sum_of = parts[0]
        for part in parts[1:]:
            sum_of = graph.node("Add", [sum_of, part])
        return sum_of

    own, groups, most = middle(margin), [middle(guess) for guess in guesses], 2 * rule.bins
    first, second = rule.prices.tolist()
    if rule.family == SP:
        score = graph.node("Add", [graph.node("Mul", [own, number(UNIT)]), total(first)])
    else:
        favourable = graph.node("Mul", [own, graph.node("Add", [number(UNIT * most), total(first)])])
        rest = graph.node("Mul", [graph.node("Sub", [number(most), own]), total(second)])
        score = graph.node("Add", [favourable, rest])
    reached = graph.node("GreaterOrEqual", [score, number(rule.threshold)])
    labels = graph.constant([*graph.model.labels], object)
    graph.node("Gather", [labels, graph.cast(reached, np.int64)], output=graph.prediction)


def _decide_by_table(graph: _Graph, tilt: Tilt, margin: str, group_margin: str) -> None:
    """The outcome that is decided, by the ranges that both scores are in."""
    bins = tilt.bins
    row, column = _range(graph, margin, bins), _range(graph, group_margin, bins)
    field = graph.node("Add", [graph.node("Mul", [row, graph.constant(bins, np.int64)]), column])
    accepted = graph.node("Gather", [graph.constant(tilt.table.ravel(), np.int64), field])
    labels = graph.constant([*graph.model.labels], object)
    graph.node("Gather", [labels, accepted], output=graph.prediction)


def _range(graph: _Graph, margin: str, bins: int) -> str:
    """(rows,) the number of the range that each score is in."""
    axis = graph.constant([1], np.int64)
    over = graph.node(
        "Greater", [graph.node("Unsqueeze", [margin, axis]), graph.constant(bin_edges(bins)[None])]
    )
    return graph.node("ReduceSum", [graph.cast(over, np.int64), axis], keepdims=0)


def _group(graph: _Graph) -> str:
    """(rows, 1) each person's group; -1 for none of the known."""
    grouping = graph.schema.grouping
    codes = [_value(graph, number) for number in range(len(grouping.attributes))]
    if len(codes) == 1:
        return codes[0]
    sizes = [len(values) + 1 for values in grouping.values]
    strides = [int(np.prod(sizes[:number], dtype=object)) for number in range(len(sizes))]
    check(strides[-1] * sizes[-1] < 2**62, "sensitive columns must have fewer combinations", strides[-1])
    offset = graph.constant(1, np.int64)
    parts = [
        graph.node("Mul", [graph.node("Add", [code, offset]), graph.constant(stride, np.int64)])
        for code, stride in zip(codes, strides, strict=True)
    ]
    total = parts[0]
    for part in parts[1:]:
        total = graph.node("Add", [total, part])
    keys = [
        sum((value + 1) * stride for value, stride in zip(member, strides, strict=True))
        for member in grouping.members
    ]
    return graph.node(
        "LabelEncoder",
        [total],
        domain=ML,
        keys_int64s=keys,
        values_int64s=list(range(len(keys))),
        default_int64=-1,
    )


def _value(graph: _Graph, number: int) -> str:
    """(rows, 1) the index of each person's value of a sensitive column; -1 for none."""
    grouping = graph.schema.grouping
    column, known = graph.columns[grouping.attributes[number]], Vocabulary(grouping.values[number])
    if column.kind == TEXT:
        return _code(graph, column)
    cuts = graph.schema.bands[column.name]
    over = graph.node("GreaterOrEqual", [column.name, graph.constant(np.asarray(cuts)[None])])
    axis = graph.constant([1], np.int64)
    band = graph.node("ReduceSum", [graph.cast(over, np.int64), axis], keepdims=1)
    missing = graph.node("IsNaN", [column.name])
    band = graph.node("Where", [missing, graph.constant(len(cuts) + 1, np.int64), band])
    indices = [*(known.indices.get(name, known.rest) for name in band_names(cuts)), known.missing]
    return graph.node("Gather", [graph.constant(indices, np.int64), band])


def _about(graph: _Graph) -> dict[str, str]:
    """What a reader of the file may want to know."""
    model, about = graph.model, graph.model.about
    content: dict[str, Any] = {
        "fairfate": __version__,
        "opset": f"{OPSET}, {ML} {ML_OPSET}",
        **{key: about[key] for key in _SHOWN if key in about},
        "labels": list(model.labels),
        "favourable": model.labels[1],
        "sensitive": list(model.schema.sensitive),
        "groups": list(model.groups),
        "inputs": {column.name: MEANING[column.kind] for column in graph.columns.values()},
    }
    if model.rule and not model.needs_groups:
        content["rule"] = f"{model.rule}, in the graph"
    if model.needs_groups:
        content["thresholds"] = "log-odds of each group, in the graph"
        content["group-without-threshold"] = "prediction is empty"
    return {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for key, value in content.items()
    }

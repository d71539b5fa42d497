"""Odd input by families, and what must hold of every call.

A family fills a folder and returns the words of a command. What it chooses is drawn from Hypothesis, which
cuts a call that breaks a rule down to the smallest one that does.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import struct
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from builders import OWN, people

T = TypeVar("T")
MOST_SECONDS = 20
"""Of the processor's time for a call: on a busy machine, the clock tells nothing of hangs."""
LONGEST = 6 * MOST_SECONDS
"""By the clock, for a call that waits for something."""
TINY = ["--rounds", "1", "--epochs", "1", "--seeds", "1", "--jobs", "1"]
DATA = ["--data", "synthetic:rows=200"]


class Draw(Protocol):
    def __call__(self, strategy: st.SearchStrategy[T]) -> T: ...


def pick(draw: Draw, values: Sequence[T]) -> T:
    return draw(st.sampled_from(values))


def chance(draw: Draw, one_in: int) -> bool:
    return draw(st.integers(1, one_in)) == one_in


# ---------------------------------------------------------------- values


def split(text: str, separator: str | None = None) -> list[str]:
    """The words of a table."""
    return [word.strip() for word in text.split(separator)]


WORDS = split(r"""
0 1 -1 2 nan inf -inf 1e400 0.5 1e-320 true none None = : , ,, a=b a:b=c := + | - -- .. / \ . ~ * %s {}
{0} ( ' " [red]x[/red] :smile: é 日本 😀 ٣ ½ 1_000 0x10 1e3 +5 3,5 5, 1,1 0,0 4294967296 sp eqo
0.5*sp+0.5*eo 1* *sp sp+ (((( -1*sp 0*sp nan*sp fedavg fair_fate fedavg+average fedavg+thresholds
fedmom:beta=0.9 fedmom:beta=9 fedmom:beta= fedmom:=0.9 fedmom:beta=0.9,beta=0.8 fedavg+median
fedavg+krum:f=99 a+b random dirichlet:0.5 dirichlet:0 dirichlet:nan dirichlet:-1 dirichlet:1e-300
dirichlet:1e308 column:x column: dirichlet: random:1 column:sex column:(file) server server:rows=5
server:rows=0 clients clients:mode=secure clients:mode=x clients:share=0 clients:share=2
clients:min-cell=-1 clients: accept_all scale:factor=1e300 scale:clients=0 scale:clients=99
lie_n:clients=1 pf:x sign_flip:clients=1.5 label_flip scale: biased_rows:clients=2 lie_counts synthetic
synthetic:rows=0 synthetic:rows=-5 synthetic:rows=x synthetic:seed=-1 synthetic:rows=200,rows=300
synthetic: synthetic:rows=1e3 adultt /dev/null /dev/null/x people.csv people.csv:1 hired sex age
age:25,40 age: age:x age:1,1 age:40,25 age:nan sex:1 yes sex=male male hired=yes paper published auto
onehot ordinal 32,16 10,0 -3 1,2,3,4,5,6,7,8,9 1e9 ; tab \t utf-8 rot13 utf-16 idna zip x.py:f x.py :f
x.py: keep drop refuse onnx json
""")
TEXTS = [
    *WORDS,
    *("", " ", " 7 ", "a b", "\x1b[31mred\x1b[0m", "\x07", "\x7f", "\x85", "\u202egnp", "\ufeff", "a\nb"),
    *("a\tb", "a\rb", "\udcff", "\ud800", "x" * 300, "9" * 5000, str(10**30), "sp" * 200, "\x00", "a\x00b"),
    *("synthetic:rows=" + "9" * 40, "synthetic:seed=" + "9" * 5000),
]
NUMBERS = ["1", "2", "0", "-1", "nan", "1.5", "", "x", "9" * 5000, "1e2", "inf", str(2**63), "٣", " 3", "0x1"]
FLOATS = ["0.1", "0", "-1", "nan", "inf", "1e400", "-0.0", "1e-320", "", "x", "9" * 5000, "1,5", "0.8", "1"]
texts = st.sampled_from(TEXTS) | st.sampled_from(TEXTS) | st.text(max_size=6)
cells = texts.map(lambda text: text.encode("utf-8", "ignore").decode())
scalars = (
    st.none()
    | st.booleans()
    | st.sampled_from([0, -1, 1, 5, 2**62, 10**30, 1.5])
    | st.floats()
    | st.integers()
    | texts
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab", min_size=1), inner, max_size=2),
    max_leaves=4,
)


def changed(draw: Draw, value: Any) -> Any:
    """A JSON value of which some part is another, or gone."""
    if isinstance(value, dict | list) and value and not chance(draw, 5):
        copy: Any = value.copy()
        key = pick(draw, sorted(value) if isinstance(value, dict) else range(len(value)))
        if chance(draw, 5):
            del copy[key]
        else:
            copy[key] = changed(draw, value[key])
        return copy
    return draw(values)


def damaged(draw: Draw, content: bytes) -> bytes:
    """Bytes that are cut, changed, doubled or others."""
    share = draw(
        st.integers(0, 2**16)
    )  # and not a position: some writers' files differ in length by the time
    at = share * max(len(content) - 1, 0) >> 16
    new = draw(st.binary(min_size=1, max_size=8))
    junk = [b"", b"\x00", b"{}", b"[]", b"null", b"PAR1PAR1", b"\xff\xfe", b"a,b\n1,2\n", new * 20]
    kept = [content[:at], content[at:], content + content[:at]]
    return pick(draw, [content[:at] + new + content[at + len(new) :]] * 3 + kept + [pick(draw, junk)])


# ---------------------------------------------------------------- commands with odd options

TEXT_OPTIONS = split("""
target favourable sensitive privileged client-column drop categorical keep missing-group missing encode
sep decimal encoding strategy metric plugin partition attack validation-from hidden model seeds protocol
data-dir config out validation test schema data mlflow
""")
WHOLES = ["min-group", "clients", "min-cell", "per-round", "batch-size", "jobs", "epochs", "rounds"]
REALS = ["learning-rate", "fair-from"]
DESCRIBE_OPTIONS = [*TEXT_OPTIONS[:14], "partition", "min-group", "clients", "protocol", "data-dir"]


def odd_options(draw: Draw, names: Sequence[str], most: int = 3) -> dict[str, str]:
    """Options with values, most often such that another option would take."""
    numbers = {**dict.fromkeys(WHOLES, NUMBERS), **dict.fromkeys(REALS, FLOATS)}
    chosen = draw(st.lists(st.sampled_from(names), unique=True, max_size=most))
    return {
        f"--{name}": pick(draw, numbers[name]) if name in numbers and not chance(draw, 5) else draw(texts)
        for name in chosen
    }


def with_options(words: list[str], odd: dict[str, str]) -> list[str]:
    """The words, but for the options that are given anew."""
    old = {name: value for name, value in zip(words[::2], words[1::2], strict=True) if name not in odd}
    return [word for pair in (old | odd).items() for word in pair]


COMMANDS = [
    *split(
        """
show RUN | show RUN RUN | show RUN --clients --seed NUMBER | show | plot RUN --kind TEXT |
plot RUN --out TEXT | plot RUN --metric TEXT --out x.png | report RUN --out TEXT |
report RUN --card --out TEXT | report RUN --fair-from SHARE --out r.html | report RUN RUN --out r.html |
predict RUN --data NEW --out TEXT | predict RUN --data NEW --out p.csv |
predict RUN --data NEW --out p.parquet | predict RUN --data NEW --out p.csv --strategy TEXT |
predict RUN --data NEW --out p.csv --seed NUMBER --strict |
predict RUN --data NEW --out p.csv --model TEXT | predict RUN --data NEW --out p.csv --sep TEXT |
evaluate RUN --data NEW --strategy TEXT | evaluate RUN --data NEW --encoding TEXT |
export RUN --format TEXT --out m | export RUN --format json --out TEXT |
export RUN --format json --seed NUMBER --out m.json |
export RUN --format json --strategy TEXT --out m.json | strategies --plugin TEXT | strategies TEXT |
data list --data-dir TEXT | sweep TEXT | sweep TEXT --out TEXT | sweep TEXT --jobs NUMBER | TEXT |
TEXT TEXT
""",
        "|",
    ),
    *(
        f"reproduce --{name} TEXT --out rep --data-dir /nowhere"
        for name in ("datasets", "sigmas", "protocols", "seeds", "tolerance", "reference")
    ),
    *(
        f"benchmark --{name} TEXT --out bench --rounds 1 --data-dir /nowhere"
        for name in ("methods", "plugin", "data", "partition", "encode", "track", "seeds", "jobs")
    ),
]


def options(draw: Draw, base: Path, folder: Path) -> list[str]:
    """Any command with odd options."""
    shutil.copy(base / "people.csv", folder)
    if chance(draw, 2):
        own = [*pick(draw, [DATA, ["--data", "people.csv", *OWN]]), *TINY, "--out", "out"]
        odd = odd_options(draw, TEXT_OPTIONS + WHOLES + REALS)
        return [
            "run",
            "--no-report",
            *with_options(own, odd),
            *(["--rounds", "2"] if chance(draw, 9) else []),
        ]
    text, number, share = draw(texts), pick(draw, NUMBERS), pick(draw, FLOATS)
    if chance(draw, 3):
        data = pick(draw, ["people.csv", "people.csv", "synthetic:rows=200", ".", text])
        odd = odd_options(draw, DESCRIBE_OPTIONS)
        return ["data", "describe", data, *with_options(pick(draw, [OWN, []]), odd)]
    finished = [str(base / name) for name in ("run", "sweep", "run/models/best.safetensors")]
    run = pick(draw, [*finished, text])
    new = pick(draw, [str(folder / "people.csv"), text])
    values = {"RUN": run, "NEW": new, "TEXT": text, "NUMBER": number, "SHARE": share}
    return [values.get(word, word) for word in split(pick(draw, COMMANDS))]


# ---------------------------------------------------------------- configs

RAW_TOML = [
    *split("1979-05-27 07:32:00 1979-05-27T07:32:00Z '''a''' '' 0x10 1_0 1e400"),
    *('"""a\nb"""', "9" * 5000, '"\\ud800"', '"', '"a\x1bb"'),
    *("[" * n + "]" * m for n in (10, 200, 2000) for m in (10, n)),
]
KEYS = [name for name in TEXT_OPTIONS + WHOLES + REALS if name not in ("config", "mlflow", "fair-from")]
KEYS += split("""
strategies plugins force provenance seed data_dir per_round Data x "" "\\u001b[31m" ":smile:" a.b data.x
no-report live groups provenance.x provenance.data-notes provenance.data-checksum provenance.server-sites
""")
SMALL_CONFIG = {"data": "synthetic:rows=200", "rounds": 1, "epochs": 1, "seeds": 1, "jobs": 1, "clients": 4}
SWEPT = [
    [{"name": "fedmom", "beta": [0.8, 0.9]}],
    [{"name": 0}],
    [{}],
    [{"name": "fedmom", "beta": []}],
    [{"name": "fedmom", "beta": {"a": 1}}],
    [{"name": "fedmom", "beta": [[0.9]]}],
    [{"name": "fedmom+average", "x": 1}],
    {"name": "fedavg"},
    [["fedavg"]],
]


def toml_text(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml_text(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_text, value)) + "]"
    return str(value) if isinstance(value, float) else json.dumps(value)


def toml_value(draw: Draw) -> str:
    return pick(draw, RAW_TOML) if chance(draw, 4) else toml_text(draw(values))


def config_lines(draw: Draw, swept: bool = False) -> bytes:
    """A config of a run, or of a sweep, with some keys made odd."""
    pairs = {key: json.dumps(value) for key, value in SMALL_CONFIG.items()} | {"strategy": '["fedavg"]'}
    if swept:
        pairs.pop("jobs")
        pairs["strategy"] = (
            toml_text(pick(draw, SWEPT)) if chance(draw, 2) else '["fedavg", "fedmom:beta=0.8|0.9"]'
        )
    for key in draw(st.lists(st.sampled_from(KEYS), max_size=3)):
        pairs[key] = toml_value(draw)
    for key in ("rounds", "epochs"):  # a thousand million rounds are no error
        pairs[key] = "1" if pairs[key].isdigit() and pairs[key] not in "0123" else pairs[key]
    lines = [f"{key} = {value}" for key, value in pairs.items()]
    if chance(draw, 5):
        heads = ["[provenance]", "[run]", "[[data]]", "[a.b.c]", "[provenance", "=", "a", "\x00", lines[0]]
        lines.append(pick(draw, [*heads, "[" + ".".join(["a"] * 2000) + "]"]))
    content = "\n".join(lines).encode("utf-8", "surrogatepass")
    return damaged(draw, content) if chance(draw, 15) else content


def configs(draw: Draw, base: Path, folder: Path) -> list[str]:
    """``run --config`` with odd files."""
    shutil.copy(base / "people.csv", folder)
    (folder / "c.toml").write_bytes(config_lines(draw))
    return ["run", "--no-report", "--config", "c.toml", *pick(draw, [["--out", "out"], []])]


def sweeps(draw: Draw, base: Path, folder: Path) -> list[str]:
    """``sweep`` with odd files."""
    shutil.copy(base / "people.csv", folder)
    (folder / "s.toml").write_bytes(config_lines(draw, swept=True))
    return ["sweep", "s.toml", "--out", "out", "--jobs", "1"]


# ---------------------------------------------------------------- files of data

ROWS = 120


def csv_bytes(draw: Draw) -> bytes:
    rows = [line.split(",") for line in people(ROWS).to_csv(index=False).splitlines()]
    edits = ["cell", "column", "header", "more", "less", "empty", "quote", "trailing", "end"]
    for edit in draw(st.lists(st.sampled_from(edits), min_size=1, max_size=3)):
        at, column, text = draw(st.integers(0, len(rows) - 1)), draw(st.integers(0, 5)), draw(cells)
        if edit == "cell":
            odd = ["9" * 400, str(2**64), "1e999", "-0", "0.1.2", "1.234,5", "€ 5", text]
            rows[at][column:][:1] = [pick(draw, odd)]
            rows[at][column : column + 1] = [pick(draw, odd)]
        elif edit == "column":
            for row in rows[1:]:
                row[column : column + 1] = [text.replace("\n", " ")]
        elif edit == "header":
            rows[0][column:] = [pick(draw, ["hired", "age", "", "\x7f", "a\x1b[0m"])]
        elif edit == "more":
            rows[at].append(text)
        elif edit in ("less", "empty"):
            rows[at] = rows[at][:column] if edit == "less" else [""] * len(rows[at])
        elif edit == "quote":
            rows[at][:1] = ['"' + "".join(rows[at][:1])]
        elif edit == "trailing":
            rows = [[*row, *[""] * (column % 3)] for row in rows]
        else:
            rows = rows[: at + 1]
    text = pick(draw, ["\n", "\n", "\r\n", "\r"]).join(",".join(row) for row in rows)
    content = text.encode(pick(draw, ["utf-8"] * 5 + ["utf-16", "utf-8-sig", "latin-1", "utf-32"]), "replace")
    return damaged(draw, content) if chance(draw, 7) else content


def _column(values: list[Any], type_: pa.DataType | None = None) -> pa.Array:
    return pa.array((values * ROWS)[:ROWS], type_)


ODD_COLUMNS = [
    *map(
        _column, ([[1, 2]], [{"a": 1}], [2**63 - 1, -(2**63)], [b"\xff\x00"], [True, None], [np.nan, np.inf])
    ),
    *map(_column, ([[[["x"]]]], [None, "yes"], [None], [np.float16(1)], ["a", "\x1b[31m"], [10**400 > 1])),
    *(
        _column(values, type_)
        for values, type_ in (
            ([2**64 - 1, 0], pa.uint64()),
            ([10**15, -(10**15)], pa.timestamp("s")),
            ([2**62, 0], pa.timestamp("ns", "Europe/Lisbon")),
            ([1, 2], pa.duration("ns")),
            ([1, 2], pa.date32()),
            ([1, 2], pa.time64("us")),
            ([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
            (["x"], pa.large_string()),
            ([b"abcd"], pa.binary(4)),
        )
    ),
    _column(["a", "b"]).dictionary_encode(),
    _column([1, 2]).cast(pa.decimal128(38, 2)),
]


def with_pandas_notes(draw: Draw, table: pa.Table) -> pa.Table:
    """The same with odd notes of pandas in its header."""
    known: Any = {}
    with suppress(ValueError):
        known = json.loads((table.schema.metadata or {}).get(b"pandas", b"{}"))
    index = {"kind": "range", "name": None, "start": 0, "stop": 120, "step": 0}
    column = {
        "name": "age",
        "field_name": "age",
        "pandas_type": "x",
        "numpy_type": "period[Q]",
        "metadata": 4,
    }
    zone = {
        "pandas_type": "datetimetz",
        "numpy_type": "datetime64[ns]",
        "metadata": {"timezone": "Mars/Base"},
    }
    odd = [
        *("", "x", "{", "null", "[]", "0", '{"columns": 5}', '{"index_columns": "x"}', "\xff"),
        *({"index_columns": [value]} for value in ("age", "nowhere", 5, ["a"], index, {"kind": "range"})),
        *({"columns": [value]} for value in ({}, column, {**column, "name": None}, {**column, **zone})),
        *({"columns": [{**column, "name": "sex", "pandas_type": "categorical"}]}, {"columns": None}),
        *({"column_indexes": value} for value in (3, [{}], [{"name": "x", "pandas_type": "datetime"}])),
        changed(draw, known),
    ]
    chosen = pick(draw, odd)
    chosen = {**known, **chosen} if isinstance(chosen, dict) and isinstance(known, dict) else chosen
    content = chosen.encode("latin-1") if isinstance(chosen, str) else json.dumps(chosen).encode()
    return table.replace_schema_metadata({b"pandas": content})


def parquet_bytes(draw: Draw) -> bytes:
    table = pa.Table.from_pandas(people(ROWS))
    kind = pick(draw, ["notes", "column", "column", "both", "names", "short", "damaged"])
    if kind in ("column", "both"):
        at = draw(st.integers(0, 5))
        table = table.set_column(at, table.column_names[at], pick(draw, ODD_COLUMNS))
    if kind in ("notes", "both"):
        table = with_pandas_notes(draw, table)
    if kind == "names":
        names = list(table.column_names)
        names[draw(st.integers(0, 5))] = pick(draw, ["sex", draw(cells)])
        table = table.rename_columns(names)
    if kind == "short":
        table = pick(draw, [table.slice(0, draw(st.integers(0, 3))), table.select([])])
    content = parquet(table)
    return damaged(draw, content) if kind == "damaged" else content


def parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def json_bytes(draw: Draw) -> bytes:
    records: Any = json.loads(people(40).to_json(orient="records"))
    kind = pick(draw, ["part", "column", "text", "damaged", "good"])
    if kind == "part":
        records = changed(draw, records)
    elif kind == "column":
        name, value = pick(draw, ["age", "sex", "hired", "new"]), draw(values)
        records = [{**record, name: value} for record in records]
    whole = chance(draw, 2) or not isinstance(records, list)
    text = json.dumps(records) if whole else "\n".join(map(json.dumps, records))
    if kind == "text":
        text = pick(
            draw,
            ["[" * 5000, "{", "[{}]", "[]", "{}", "null", '{"a":1}\n{"a":', '[{"a":1,"a":2}]', "1" * 5000],
        )
    return damaged(draw, text.encode()) if kind == "damaged" else text.encode()


def excel_bytes(draw: Draw) -> bytes:
    sink = io.BytesIO()
    people(40).to_excel(sink, index=False)
    return csv_bytes(draw) if chance(draw, 10) else damaged(draw, sink.getvalue())


FORMATS: dict[str, Callable[[Draw], bytes]] = {
    "csv": csv_bytes,
    "parquet": parquet_bytes,
    "json": json_bytes,
    "jsonl": json_bytes,
    "xlsx": excel_bytes,
}


def files(draw: Draw, base: Path, folder: Path) -> list[str]:
    """Odd data in every place that takes a file."""
    import gzip

    ending = pick(draw, ["csv"] * 4 + ["parquet"] * 4 + ["json", "jsonl", "xlsx"])
    content = FORMATS[ending](draw)
    if chance(draw, 20):
        ending, content = f"{ending}.gz", pick(draw, [gzip.compress(content), content])
    name = f"odd.{ending}"
    (folder / name).write_bytes(content)
    run = ["run", "--no-report", *OWN, *TINY, "--out", "out", "--data"]
    kind = pick(
        draw,
        ["validation", "folder", "describe", "describe", "own", "own", "run", "run", "predict", "evaluate"],
    )
    if kind in ("validation", "folder"):
        shutil.copy(base / "people.csv", folder)
    if kind == "folder":
        (folder / "site").mkdir()
        shutil.move(folder / name, folder / "site" / name)
        shutil.move(folder / "people.csv", folder / "site")
    return {
        "describe": ["data", "describe", name],
        "own": ["data", "describe", name, *OWN, *pick(draw, [["--client-column", "site"], [], []])],
        "run": [*run, name, "--clients", "3"],
        "predict": [
            "predict",
            str(base / "own"),
            "--data",
            name,
            "--out",
            pick(draw, ["p.csv", "p.parquet"]),
        ],
        "evaluate": ["evaluate", str(base / "own"), "--data", name],
        "validation": [*run, "people.csv", "--clients", "3", "--validation", name],
        "folder": [*run, "site"],
    }[kind]


# ---------------------------------------------------------------- folders and models of ours

ABOUT = split(
    r"""
{ | [] | null | 5 | {"members": 5} | {"members": [], "values": [], "attributes": []} | ÿ |
{"members": [[0]], "values": [["a"]], "attributes": ["x"]} | {"format": 99} | {"cell": 5} |
{"members": [["a"]], "values": [["a"]], "attributes": ["x"]} | {"members": [1], "values": 2} |
{"cell": {}, "code": 5, "specs": 4, "saved": 3} | {"cell": {"seed": "x"}}
""",
    "|",
)


def odd_results(draw: Draw, content: bytes) -> bytes:
    """A Parquet file of ours with other columns or another header."""
    try:
        table = pq.read_table(io.BytesIO(content))
    except (pa.ArrowInvalid, OSError):
        return b""
    if not table.num_columns:
        return content
    at, rows = draw(st.integers(0, table.num_columns - 1)), table.num_rows
    name, kind = (
        table.column_names[at],
        pick(draw, ["gone", "filled", "short", "about", "notes", "more", "value"]),
    )
    if kind == "gone":
        table = table.drop_columns([name])
    elif kind == "filled":
        table = table.set_column(at, name, pa.array([pick(draw, [None, "x", 5, [1], np.nan, 2**62])] * rows))
    elif kind == "short":
        table = table.slice(0, draw(st.integers(0, 2)))
    elif kind == "about":
        header = pick(draw, [{b"fairfate": pick(draw, ABOUT).encode("latin-1")}, None])
        table = table.replace_schema_metadata(header)
    elif kind == "notes":
        table = with_pandas_notes(draw, table)
    elif kind == "more":
        table = table.append_column(pick(draw, ["x", name, "n_9_0_0"]), pa.array([1] * rows))
    elif rows:
        old = table.column(at).to_pylist()
        odd = draw(cells) if isinstance(old[0], str) else pick(draw, [0, -1, 2**40, None])
        old[draw(st.integers(0, rows - 1))] = odd
        with suppress(pa.ArrowInvalid, pa.ArrowTypeError):
            table = table.set_column(at, name, pa.array(old, table.schema.types[at]))
    return parquet(table)


def odd_model(draw: Draw, path: Path) -> bytes:
    """A model or a checkpoint that is whole but wrong."""
    from fairfate.storage import read_arrays, write_arrays

    try:
        arrays, about = read_arrays(path)
    except ValueError:
        return damaged(draw, path.read_bytes())
    name = pick(draw, sorted(arrays)) if arrays else ""
    kind = pick(draw, ["array", "about", "schema", "gone"] if name else ["about"])
    if kind == "array":
        array = arrays[name]
        whole = np.nan_to_num(array, posinf=9.0, neginf=-9.0).astype(np.int64)
        odd = [array[:-1], array.astype(np.float64), whole, np.zeros(0, np.float32), array[..., None]]
        odd += [np.full(array.shape, value, np.float32) for value in (1e38, np.nan)]
        arrays[name] = pick(draw, odd)
    elif kind == "schema" and "schema" in about:
        about = {**about, "schema": changed(draw, about["schema"])}
    elif kind == "gone":
        del arrays[name]
    else:
        about = changed(draw, about)
    new = path.with_name("new.safetensors")
    with suppress(UnicodeEncodeError):
        write_arrays(new, arrays, about if isinstance(about, dict) else {"x": about})
        return new.rename(path).read_bytes()
    return b""


def damage_folder(draw: Draw, root: Path) -> None:
    """Damage some files of a run or a sweep."""
    for _ in range(draw(st.integers(1, 2))):
        every = sorted(path for path in root.rglob("*") if path.is_file())
        if not every:
            return
        path = pick(draw, every)
        kind = pick(draw, ["whole"] * 3 + ["bytes"] * 3 + ["gone", "folder", "another", "line"])
        if kind in ("gone", "folder"):
            path.unlink()
            if kind == "folder":
                path.mkdir()
        elif kind == "whole" and path.suffix == ".parquet":
            content = odd_results(draw, path.read_bytes())
            path.write_bytes(content)
            if path.parent.name == "cells":  # with the right checksum
                digest = hashlib.sha256(content).hexdigest()[:32]
                path.rename(path.with_name(f"{path.stem.rpartition('_')[0]}_{digest}.parquet"))
        elif kind == "whole" and path.suffix == ".toml":
            path.write_bytes(config_lines(draw))
        elif kind == "whole" and path.suffix == ".safetensors":
            path.write_bytes(odd_model(draw, path))
        elif kind == "another":
            path.write_bytes(pick(draw, every).read_bytes())
        elif kind == "line" and path.suffix == ".toml":
            lines = path.read_text(errors="replace").split("\n")
            lines[draw(st.integers(0, len(lines) - 1))] = f"{pick(draw, KEYS)} = {toml_value(draw)}"
            path.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
        else:
            path.write_bytes(damaged(draw, path.read_bytes()))


def folders(draw: Draw, base: Path, folder: Path) -> list[str]:
    """Run folders whose files are damaged, missing or foreign."""
    kind = pick(draw, ["run", "run", "run", "sweep", "stopped", "own"])
    shutil.copytree(base / kind, folder / "there")
    damage_folder(draw, folder / "there")
    if kind == "stopped" and not chance(draw, 4):
        return ["run", "--no-report", "--config", str(base / "stopped.toml"), "--out", "there"]
    if kind == "sweep" and chance(draw, 2):
        return ["sweep", str(base / "sweep.toml"), "--out", "there", "--jobs", "1"]
    if chance(draw, 15):  # which take longer
        return pick(draw, [["plot", "there"], ["plot", "there", "--kind", "tradeoff"], ["report", "there"]])
    new = ["there", "--data", str(base / "people.csv")]
    again = ["run", "--no-report", *DATA, *TINY, "--out", "there"]
    return pick(
        draw,
        [
            *(["show", "there"], ["show", "there", "--groups"], ["show", "there", str(base / "run")]),
            *(["show", "there", "--clients"], ["show", "there/rounds.parquet"], again, [*again, "--force"]),
            *(["report", "there", "--card", "--out", "card.md"], ["predict", *new, "--out", "p.csv"]),
            *(["evaluate", *new, "--strategy", "fedavg"], ["export", "there", "--format", "json"]),
        ],
    )


HEADERS = [
    *("{}", "[]", "x", '{"__metadata__": {"fairfate": "{}"}}', '{"__metadata__": 5}', "[" * 5000),
    *('{"__metadata__": {"fairfate": "[]"}}', '{"__metadata__": {"fairfate": "' + "[" * 5000 + '"}}'),
]


def models(draw: Draw, base: Path, folder: Path) -> list[str]:
    """Model files that are damaged, or whole and wrong."""
    from safetensors.numpy import save

    path = folder / "m.safetensors"
    shutil.copy(pick(draw, sorted(base.glob("[or]*n/models/*.safetensors"))), path)
    shutil.copy(base / "people.csv", folder)
    kind = pick(draw, ["whole"] * 5 + ["damaged"] * 3 + ["header", "foreign"])
    if kind == "whole":
        path.write_bytes(odd_model(draw, path))
    elif kind == "damaged":
        path.write_bytes(damaged(draw, path.read_bytes()))
    elif kind == "header":
        header = pick(draw, HEADERS)
        path.write_bytes(struct.pack("<Q", len(header)) + header.encode())
    else:
        array = {pick(draw, ["w1", "thresholds", "x"]): np.zeros(3, np.float16)}
        path.write_bytes(save(array, metadata=pick(draw, [None, {"a": "b"}])))
    new, export = ["m.safetensors", "--data", "people.csv"], ["export", "m.safetensors", "--format", "json"]
    return pick(
        draw,
        [
            *(["predict", *new, "--out", "p.csv"], ["predict", *new, "--out", "p.parquet", "--strict"]),
            *(["evaluate", *new], export, [*export, "--out", "x.json"]),
        ],
    )


# ---------------------------------------------------------------- plugins

RAISING = split(
    r"""
raise ValueError('no') | raise KeyError('a') | 1 / 0 | raise SystemExit(0) | raise SystemExit('x') |
import sys; sys.exit(3) | import nowhere | [][1] | None.x | raise StopIteration | assert False |
raise Exception | raise BaseException('x') | raise GeneratorExit | raise OSError(5, 'io', 'f') |
raise RecursionError | raise NotImplementedError | raise UnicodeDecodeError('a', b'b', 0, 1, 'c') |
raise ExceptionGroup('g', [ValueError('x')]) | raise Odd | raise Exception('\x1b[31m:smile:[b]') |
raise BrokenPipeError | raise EOFError | raise Warning('w') | raise FileNotFoundError
""",
    "|",
)
ODD_VALUES = split(
    r"""
None | 5 | 'x' | [] | {} | object() | np.nan | np.full(3, np.nan) | np.zeros((2, 2)) | 1j | b'x' |
np.array(['a']) | np.array([None]) | (1, 2) | lambda: 0 | np.zeros(0) | float('inf') | np.array(1.0) |
np.zeros(3, dtype=complex) | {'a': object()} | {1: 2} | {'lam': 'x'} | {'fair': 'x'} | {'fair': [1]} |
{'x': np.zeros((2, 2))} | {'beta': None} | {'x': 1j} | {'a' * 300: 1.0} | {'x': {}} | {'x': np.nan} |
{'lam': [1, 2]} | {'\x1b[31m': 1} | {'x': 'text'} | {'x': True} | {'x': 10**400} | {'x': np.array('t')} |
{'fair': np.zeros((3, 3))} | {'x': [1.0, None]} | {'notes': 1, 'round': 2} | state.params * np.nan |
state.params[:-1] | state.params.astype(str)
""",
    "|",
)
PLUGIN = """\
import numpy as np
from fairfate.strategies import ModelState, Strategy, register, LossTerms, Need

class Odd(Exception):
    def __str__(self):
        raise ValueError("no text")

{module}

@register({name}, {summary}, "a reference")
def build(setup{arguments}):
    {build}

    def init(params):
        {init}
        return ModelState(params)

    def aggregate(state, cohort):
        {aggregate}
        return ModelState({params}, {notes})

    def broadcast(state, rows):
        {broadcast}
        return {message}

    def local_loss(message, rows, local):
        {local_loss}
        return {terms}

    def release(state):
        {release}
        return {released}

    return Strategy(init=init, aggregate=aggregate{more})
"""
PARTS = {
    **dict.fromkeys(["module", "build", "init", "aggregate", "broadcast", "local_loss", "release"], "pass"),
    **{
        "name": "'made_up'",
        "summary": "'mine'",
        "arguments": "",
        "notes": "{'x': 1.0}",
        "message": "np.ones(4)",
    },
    **{"params": "state.params + cohort.mean(cohort.num_examples)", "released": "state.params", "more": ""},
    "terms": "LossTerms(np.ones(rows.shape))",
}
RETURNED_BY = {"message": "broadcast", "terms": "local_loss", "released": "release"}
ARGUMENTS = [", x", ", x=None", ", x='a'", ", **k", ", x: 'Unknown' = 1", ", *, metric=[]", ", x=object()"]
MORE = ["needs=5", "needs=None", "refresh='x'", "refresh=0", "broadcast=5", "scale=5", "release=3"]
MORE += [f"needs={{Need.{need}}}" for need in ("SCORES", "REPORTS", "ROWS", "TRIALS")]


def odd_plugin(draw: Draw) -> str:
    """A file with a strategy that fails somewhere."""
    parts, odd = dict(PARTS), pick(draw, ODD_VALUES)
    used = {name for name in RETURNED_BY.values() if chance(draw, 3)}
    kind = pick(draw, ["raises"] * 4 + ["returns"] * 5 + ["arguments", "build", "more"])
    if kind == "raises":
        where = pick(draw, [name for name, part in PARTS.items() if part == "pass"])
        parts[where] = pick(draw, RAISING)
        used |= {where} & set(RETURNED_BY.values())
    elif kind == "returns":
        where = pick(draw, ["params", "notes", "message", "terms", "released", "name", "summary"])
        fields = [
            "LossTerms(%s)",
            "LossTerms(np.ones(rows.shape), %s)",
            "LossTerms(np.ones(rows.shape), prox=%s)",
        ]
        fields += ["LossTerms(np.ones(rows.shape), prejudice=%s)", "%s"]
        parts[where] = pick(draw, fields) % odd if where == "terms" else odd
        used |= {RETURNED_BY[where]} if where in RETURNED_BY else set()
    elif kind == "arguments":
        parts["arguments"] = pick(draw, ARGUMENTS)
    elif kind == "build":
        parts["build"] = f"return {odd}"
    given = {name: f"{name}={name}" for name in sorted(used)}
    if kind == "more" or chance(draw, 4):
        more = pick(draw, MORE)
        given[more.partition("=")[0]] = more
    return PLUGIN.format(**{**parts, "more": "".join(f", {text}" for text in given.values())})


def plugins(draw: Draw, base: Path, folder: Path) -> list[str]:
    """A strategy of the user's that fails somewhere."""
    content = odd_plugin(draw).encode()
    (folder / "mine.py").write_bytes(damaged(draw, content) if chance(draw, 20) else content)
    step = pick(draw, ["", "", "", "+average", "+thresholds", "+median"])
    if chance(draw, 10):
        return ["strategies", "--plugin", "mine.py"]
    if chance(draw, 6):
        config = {**SMALL_CONFIG, "plugin": "mine.py", "strategy": [f"made_up{step}"]}
        config.pop("jobs")
        (folder / "s.toml").write_text(
            "".join(f"{key} = {json.dumps(value)}\n" for key, value in config.items())
        )
        return ["sweep", "s.toml", "--out", "out", "--jobs", "1"]
    words = ["--plugin", "mine.py", "--strategy", f"made_up{step}"]
    return ["run", "--no-report", *DATA, *TINY, "--out", "out", "--clients", "4", *words]


# ---------------------------------------------------------------- Flower's commands


def flower(draw: Draw, base: Path, folder: Path) -> list[str]:
    """The commands for a federation: odd apps, schemas, node-configs, tables and words."""
    kind = pick(draw, ["check"] * 5 + ["schema"] * 4 + ["checksum"] * 2 + ["init", "words"])
    if kind == "check":
        return ["flower", "check", *odd_site(draw, base, folder)]
    if kind == "init":
        (folder / "taken").mkdir()
        (folder / "taken" / "file").write_text("mine")
        return ["flower", "init", pick(draw, ["new", "new/deeper", "taken", draw(texts)])]
    if kind == "words":
        names = ["init", "checksum", "schema", "check", draw(texts)]
        return ["flower", pick(draw, names), pick(draw, ["--out", "--schema", "--node", "app", draw(texts)])]
    shutil.copytree(base / "app", folder / "app")
    if not chance(draw, 10):
        damage_app(draw, folder / "app")
    if kind == "checksum":
        return ["flower", "checksum", pick(draw, ["app", "app", "app/pyproject.toml"])]
    out = ["--out", pick(draw, ["s.json", "s.json", "app", "app/pyproject.toml", draw(texts)])]
    return ["flower", "schema", "app", *pick(draw, [out, []])]


def odd_site(draw: Draw, base: Path, folder: Path) -> list[str]:
    """A schema, and a site's settings or its file; some of them odd."""
    odd, ending = pick(draw, ["schema", "node", "data", "none"]), "csv"
    schema = json.loads((base / "schema.json").read_text())
    content = json.dumps(changed(draw, schema) if odd == "schema" else schema).encode()
    rows = (base / "app/data/sites/north.csv").read_bytes()
    node = {"data": json.dumps("rows.csv"), "name": '"north"'}
    if odd == "data":
        ending = pick(draw, ["csv", "parquet", "jsonl"])
        rows = damaged(draw, rows) if chance(draw, 3) else FORMATS[ending](draw)
        node["data"] = json.dumps(f"rows.{ending}")
    elif odd == "node":
        keys = ["data", "name", "sep", "decimal", "encoding", "rename", "target", "x"]
        node |= {
            key: toml_value(draw) for key in draw(st.lists(st.sampled_from(keys), min_size=1, max_size=2))
        }
    settings = "\n".join(f"{key} = {value}" for key, value in node.items()).encode("utf-8", "surrogatepass")
    whole = {"schema": content, "node": settings}
    if odd in whole and chance(draw, 5):
        whole[odd] = damaged(draw, whole[odd])
    (folder / "schema.json").write_bytes(whole["schema"])
    (folder / "site.toml").write_bytes(whole["node"])
    (folder / f"rows.{ending}").write_bytes(rows)
    return ["--schema", "schema.json", *pick(draw, [["--node", "site.toml"], ["--data", f"rows.{ending}"]])]


def damage_app(draw: Draw, app: Path) -> None:
    """Make an app's config or its files others than were written."""
    file = app / "pyproject.toml"
    kind = pick(draw, ["line", "line", "line", "damaged", "other", "link"])
    if kind == "damaged":
        file.write_bytes(damaged(draw, file.read_bytes()))
    elif kind == "other":
        other = pick(draw, sorted(path for path in app.rglob("*") if path.is_file()))
        other.unlink() if chance(draw, 2) else other.write_bytes(damaged(draw, other.read_bytes()))
    elif kind == "link":
        (app / "link").symlink_to(pick(draw, ["pyproject.toml", "/nowhere", ".", "data"]))
    else:
        lines = file.read_text().splitlines()
        settings = [at for at, line in enumerate(lines) if " = " in line and not line.startswith(("#", "["))]
        for at in draw(st.lists(st.sampled_from(settings), min_size=1, max_size=2)):
            lines[at] = f"{lines[at].partition(' = ')[0]} = {toml_value(draw)}"
        file.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))


FAMILIES: dict[str, Callable[[Draw, Path, Path], list[str]]] = {
    "options": options,
    "configs": configs,
    "sweeps": sweeps,
    "files": files,
    "folders": folders,
    "models": models,
    "plugins": plugins,
    "flower": flower,
}

# ---------------------------------------------------------------- Python's functions

ARGUMENT_NAMES = split("""
data target sensitive rounds seeds strategies strategy metric clients out jobs hidden learning_rate
partition plugins encode force favourable nonsense validation attack validation_from per_round batch_size
drop min_group model min_cell missing favorable
""")


def python_values(draw: Draw) -> Any:
    import pandas as pd

    objects: list[Any] = [
        *({1, 2}, {1, "a"}, range(3), range(0), np.array([1, 2]), np.array([[1]]), np.float32(1)),
        np.array(["a"]),
        *(1j, b"x", (), object(), pd.Series([1, 2]), people(20), Path("x"), Path(), lambda: 0, type),
        iter([1]),
        *(np.array([], dtype=object), pd.DataFrame(), [[1], [2]], [[[]]], ["a", 1]),
    ]
    return draw(values | st.sampled_from(objects))


def odd_arguments(draw: Draw) -> Callable[[], object]:
    """``fairfate.run`` or the estimator with odd arguments; some have too many rounds to be called."""
    import fairfate

    if chance(draw, 2):
        given: dict[str, Any] = {
            "data": "synthetic:rows=200",
            "rounds": 1,
            "epochs": 1,
            "seeds": (1,),
            "jobs": 1,
        }
        for name in draw(st.lists(st.sampled_from(ARGUMENT_NAMES), min_size=1, max_size=2)):
            given[name] = python_values(draw)
        call: Callable[[], object] = partial(fairfate.run, **({"strategies": ["fedavg"]} | given))
    else:
        classifier, frame = fairfate.FairFederatedClassifier, people(80)
        given = {"max_iter": 1, "epochs": 1, "strategy": "fedavg"}
        if not chance(draw, 3):
            given[pick(draw, sorted(classifier().get_params()))] = python_values(draw)
        names = {"X": frame[["age", "income"]], "y": frame["hired"], "sensitive_features": frame["sex"]}
        if not chance(draw, 3):
            names[pick(draw, list(names))] = python_values(draw)

        def call() -> object:
            return classifier(**given).fit(
                names["X"], names["y"], sensitive_features=names["sensitive_features"]
            )

    long = [given.get(name) for name in ("rounds", "max_iter", "epochs")]
    return call if all(not isinstance(many, int) or many < 100 for many in long) else lambda: None


# ---------------------------------------------------------------- calls, and what must hold of them


class HangError(BaseException):
    """A call took too long."""


class Call(NamedTuple):
    """What came of one call."""

    code: int | None
    out: str
    err: str
    broken: tuple[str, ...]
    """What must not be."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """No longer than this."""

    def late(number: int, frame: FrameType | None) -> None:
        raise HangError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


RAW = {
    chr(n)
    for n in (*range(32), *range(127, 160), 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}
RAW -= {"\n"}


@contextmanager
def working_in(folder: Path, out: io.StringIO, err: io.StringIO) -> Iterator[list[str]]:
    """In a folder, with a limit of time, and what is printed kept; errors and lost time are noted."""
    broken: list[str] = []
    cwd, began = Path.cwd(), time.process_time()
    os.chdir(folder)
    try:
        with redirect_stdout(out), redirect_stderr(err), limited(LONGEST), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield broken
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        broken.append(f"traceback: {''.join(traceback.format_exception(error))}")
    finally:
        os.chdir(cwd)
    if (seconds := time.process_time() - began) > MOST_SECONDS:
        broken.append(f"{seconds:.0f} s")


def command(words: list[str], folder: Path) -> Call:
    """Run the command in this process, in a folder, and look at what it has done."""
    from fairfate.cli.main import run_command

    before = {path.relative_to(folder) for path in folder.rglob("*")}
    out, err, argv = io.StringIO(), io.StringIO(), sys.argv
    code: int | None = None
    sys.argv = ["fairfate", *(word.replace("\0", "") for word in words)]  # which no system hands on
    with working_in(folder, out, err) as broken:
        code = run_command()
    sys.argv = argv
    printed = out.getvalue() + err.getvalue()
    if "Traceback" in printed:
        broken.append("a traceback is printed")
    if code not in (None, 0, 2):
        broken.append(f"exit code {code}")
    if code == 2 and not err.getvalue().strip():
        broken.append("exit code 2 without a message")
    if raw := sorted({hex(ord(letter)) for letter in printed if letter in RAW}):
        broken.append(f"raw characters are printed: {raw}")
    new = {path.relative_to(folder) for path in folder.rglob("*")} - before
    if half := [path for path in new if path.name.endswith(".unfinished") or path.name == ".lock"]:
        broken.append(f"half-written: {half}")
    if code == 2 and (files := [path for path in new if "there" not in path.parts[:1]]):
        broken.append(f"left by a failed call: {sorted(map(str, files))}")
    return Call(code, out.getvalue(), err.getvalue(), tuple(broken))


def python_call(call: Callable[[], object], folder: Path) -> Call:
    """Call a function in a folder: it works, or raises what is documented."""
    from fairfate.errors import InputError

    sink = io.StringIO()
    code = 2
    with working_in(folder, sink, sink) as broken:
        try:
            call()
            code = 0
        except (InputError, OSError):
            pass
        except (ValueError, TypeError) as error:
            frames = traceback.extract_tb(error.__traceback__)
            checks = any("sklearn" in frame.filename and "check" in frame.name for frame in frames)
            if not checks and "sklearn" not in frames[-1].filename and "keyword argument" not in str(error):
                raise
    return Call(code, sink.getvalue(), "", tuple(broken))


# ---------------------------------------------------------------- what calls start from


def make_base(base: Path) -> Path:
    """Data, a finished run, an interrupted one, a sweep, an app."""
    base.mkdir(parents=True, exist_ok=True)
    people().to_csv(base / "people.csv", index=False)
    short = "rounds = 1\nepochs = 1\n"
    (base / "sweep.toml").write_text(
        f'data = "synthetic:rows=300"\n{short}seeds = 2\nclients = [3, 4]\nstrategy = ["fedavg"]\n'
    )
    (base / "stopped.toml").write_text(
        'data = "synthetic:rows=300"\nrounds = 2\nepochs = 1\nseeds = 2\nclients = 4\njobs = 1\n'
        'strategy = ["fedavg", "fedmom"]\n'
    )
    several = ["--strategy", "fedavg", "--strategy", "fair_fate", "--strategy", "fedavg+thresholds"]
    two = with_options(TINY, {"--seeds": "2", "--data": "synthetic:rows=300"})
    for words in (
        ["run", "--no-report", *two, *several, "--out", "run"],
        ["run", "--no-report", "--data", "people.csv", *OWN, *TINY, "--clients", "3", "--out", "own"],
        ["sweep", "sweep.toml", "--out", "sweep", "--jobs", "1"],
        ["flower", "init", "app"],
        ["flower", "schema", "app", "--out", "schema.json"],
    ):
        outcome = command(words, base)
        if outcome.code != 0:
            raise RuntimeError(f"{words}: {outcome.err}")
    _interrupt_run(base)
    return base


def _interrupt_run(base: Path) -> None:
    """A run that is stopped in its second seed, with a checkpoint and a live record."""
    from fairfate.engine.checkpoint import Checkpoint
    from fairfate.experiments import execute

    plain, load, writer = Checkpoint.__init__, execute.run_seed, execute.Writer
    finished: list[int] = []

    def eager(self: Any, path: Any, identity: Any, seconds: float = 30.0) -> None:
        plain(self, path, identity, 0.0)

    def stopping(task: Any, table: Any, report: Any) -> Any:
        def stop(amount: float) -> None:
            report(amount)
            if finished:
                raise RuntimeError("stopped")

        result = load(task, table, stop)
        finished.append(task.job.seed)
        return result

    Checkpoint.__init__ = eager  # type: ignore[method-assign]
    execute.run_seed = stopping
    execute.Writer = partial(writer, seconds=0.0)  # type: ignore[misc,assignment]
    try:
        command(["run", "--no-report", "--config", "stopped.toml", "--out", "stopped"], base)
    finally:
        Checkpoint.__init__ = plain  # type: ignore[method-assign]
        execute.run_seed = load
        execute.Writer = writer  # type: ignore[misc]
    for pattern in ("checkpoints/*.safetensors", "live/*.jsonl"):
        if not list((base / "stopped").glob(pattern)):
            raise RuntimeError(f"no {pattern}")


def forget_plugins() -> None:
    """Take out the strategies of plugins."""
    from fairfate.strategies import plugins, registry

    for name in [name for name, entry in registry._ENTRIES.items() if "_plugin_" in entry.build.__module__]:
        del registry._ENTRIES[name]
    plugins._LOADED.clear()

"""Bad input without end: calls made from a seed, by families, and what must hold of every call.

``python tests/generated_input.py FAMILY SEED CALLS`` makes some calls and prints what broke.
"""
# ruff: noqa: E501

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

Rng = np.random.Generator
MOST_SECONDS = 20
"""Of the processor's time for a call: on a busy machine, the clock tells nothing of hangs."""
LONGEST = 6 * MOST_SECONDS
"""By the clock, for a call that waits for something."""
TINY = ["--rounds", "1", "--epochs", "1", "--seeds", "1", "--jobs", "1"]
DATA = ["--data", "synthetic:rows=200"]
OWN = ["--target", "hired", "--favourable", "yes", "--sensitive", "sex"]

# ---------------------------------------------------------------- values

TEXTS = [
    *("", " ", "0", "1", "-1", "2", "nan", "inf", "-inf", "1e400", "0.5", "1e-320", "true", "none", "None"),
    *("=", ":", ",", ",,", "a=b", "a:b=c", ":=", "+", "|", "-", "--", "..", "/", "\\", ".", "~", "*", "%s"),
    *("{}", "{0}", "[red]x[/red]", ":smile:", "\x1b[31mred\x1b[0m", "\x07", "\x7f", "\x85", "\u202egnp"),
    *("\ufeff", "a\nb", "a\tb", "a\rb", "é", "日本", "😀", "\udcff", "\ud800", "٣", "½", "'", '"', "x" * 300),
    *("9" * 5000, "1_000", "0x10", "1e3", "+5", " 7 ", "3,5", "5,", "1,1", "0,0", "4294967296", str(10**30)),
    *("sp", "eqo", "0.5*sp+0.5*eo", "1*", "*sp", "sp+", "((((", "sp" * 200, "-1*sp", "0*sp", "nan*sp"),
    *("fedavg", "fair_fate", "fedavg+average", "fedavg+thresholds", "fedmom:beta=0.9", "fedmom:beta=9"),
    *("fedmom:beta=", "fedmom:=0.9", "fedmom:beta=0.9,beta=0.8", "fedavg+median", "fedavg+krum:f=99", "a+b"),
    *("random", "dirichlet:0.5", "dirichlet:0", "dirichlet:nan", "dirichlet:-1", "dirichlet:1e-300"),
    *("dirichlet:1e308", "column:x", "column:", "dirichlet:", "random:1", "column:sex", "column:(file)"),
    *("server", "server:rows=5", "server:rows=0", "clients", "clients:mode=secure"),
    *("clients:mode=x", "clients:share=0", "clients:share=2", "clients:min-cell=-1", "clients:"),
    *("accept_all", "scale:factor=1e300", "scale:clients=0", "scale:clients=99", "lie_n:clients=1", "pf:x"),
    *("sign_flip:clients=1.5", "label_flip", "scale:", "biased_rows:clients=2", "lie_counts", "none"),
    *("synthetic", "synthetic:rows=0", "synthetic:rows=-5", "synthetic:rows=x", "synthetic:seed=-1"),
    *(
        "synthetic:rows=200,rows=300",
        "synthetic:",
        "synthetic:rows=1e3",
        "adultt",
        "/dev/null",
        "/dev/null/x",
    ),  # which nobody can make, not even root
    *("synthetic:rows=" + "9" * 40, "synthetic:seed=" + "9" * 5000, "people.csv", ".", "people.csv:1"),
    *("hired", "sex", "age", "age:25,40", "age:", "age:x", "age:1,1", "age:40,25", "age:nan", "sex:1", "yes"),
    *("sex=male", "male", "hired=yes", "=", "paper", "published", "auto", "onehot", "ordinal", "32,16"),
    *("10,0", "-3", "1,2,3,4,5,6,7,8,9", "1e9", ";", "tab", "\\t", "utf-8", "rot13", "utf-16", "idna", "zip"),
    *("x.py:f", "x.py", ":f", "x.py:", "keep", "drop", "refuse", "onnx", "json", "skops", "\x00", "a\x00b"),
]
NUMBERS = ["1", "2", "0", "-1", "nan", "1.5", "", "x", "9" * 5000, "1e2", "inf", str(2**63), "٣", " 3", "0x1"]
FLOATS = ["0.1", "0", "-1", "nan", "inf", "1e400", "-0.0", "1e-320", "", "x", "9" * 5000, "1,5", "0.8", "1"]


def pick(rng: Rng, several: Any) -> Any:
    """One of several."""
    return several[int(rng.integers(len(several)))]


def chance(rng: Rng, share: float) -> bool:
    return bool(rng.random() < share)


WORDS = {  # options with a word, for run
    *("--target", "--favourable", "--sensitive", "--privileged", "--client-column", "--drop"),
    *(
        "--categorical",
        "--keep",
        "--missing-group",
        "--missing",
        "--encode",
        "--sep",
        "--decimal",
        "--encoding",
    ),
    *("--strategy", "--metric", "--plugin", "--partition", "--attack", "--validation-from", "--hidden"),
    *("--model", "--seeds", "--protocol", "--data-dir", "--config", "--out", "--validation", "--test"),
    *("--schema", "--data", "--mlflow"),
}
WHOLES = {
    *("--min-group", "--clients", "--min-cell", "--per-round", "--batch-size", "--jobs", "--epochs"),
    "--rounds",
}
REALS = {"--learning-rate", "--fair-from"}
RUN_OPTIONS = sorted(WORDS | WHOLES | REALS)
DESCRIBE_OPTIONS = sorted(
    {
        *("--target", "--favourable", "--sensitive", "--privileged", "--client-column", "--drop", "--keep"),
        *("--categorical", "--min-group", "--missing-group", "--encode", "--sep", "--decimal", "--encoding"),
        *("--missing", "--partition", "--clients", "--protocol", "--data-dir"),
    }
)


def option_value(rng: Rng, name: str) -> str:
    """A value for an option, most often one that another option would take."""
    if name in WHOLES and chance(rng, 0.8):
        return str(pick(rng, NUMBERS))
    if name in REALS and chance(rng, 0.8):
        return str(pick(rng, FLOATS))
    return str(pick(rng, TEXTS))


def without_repeats(words: list[str], given: list[str]) -> list[str]:
    """The words but for the options that are given anew."""
    found = list(words)
    for name in given[::2]:
        while name in found:
            place = found.index(name)
            del found[place : place + 2]
    return found + given


# ---------------------------------------------------------------- families: each fills a folder, gives words


def options(rng: Rng, base: Path, folder: Path) -> list[str]:
    """Any command with odd options."""
    shutil.copy(base / "people.csv", folder)
    kind = pick(
        rng,
        ["run"] * 6
        + ["describe"] * 3
        + ["show", "plot", "report", "predict", "evaluate", "export", "strategies", "list", "fetch"]
        + ["reproduce", "benchmark", "sweep", "nonsense"],
    )
    names = [str(pick(rng, RUN_OPTIONS)) for _ in range(int(rng.integers(1, 4)))]
    odd = [word for name in dict.fromkeys(names) for word in (name, option_value(rng, name))]
    if kind == "run":
        own = [*DATA] if chance(rng, 0.5) else ["--data", "people.csv", *OWN]
        own += [*TINY, "--out", "out"]
        odd = odd if chance(rng, 0.9) else [*odd, odd[0], odd[1]]
        return ["run", "--no-report", *without_repeats(own, odd)]
    if kind == "describe":
        names = [str(pick(rng, DESCRIBE_OPTIONS)) for _ in range(int(rng.integers(0, 4)))]
        odd = [word for name in dict.fromkeys(names) for word in (name, option_value(rng, name))]
        data = pick(rng, ["people.csv", "people.csv", "synthetic:rows=200", ".", str(pick(rng, TEXTS))])
        return ["data", "describe", data, *without_repeats(OWN if chance(rng, 0.5) else [], odd)]
    run = str(pick(rng, [str(base / "run"), str(base / "sweep"), str(base / "run/models/best.safetensors")]))
    run = run if chance(rng, 0.6) else str(pick(rng, TEXTS))
    text = str(pick(rng, TEXTS))
    number = str(pick(rng, NUMBERS))
    new = str(folder / "people.csv") if chance(rng, 0.6) else text
    some: dict[str, list[list[str]]] = {
        "show": [[run], [run, run], [run, "--clients"], [run, "--clients", "--seed", number], []],
        "plot": [[run, "--metric", text, "--out", "x.png"], [run, "--kind", text], [run, "--out", text]],
        "report": [
            [run, "--out", text],
            [run, "--fair-from", str(pick(rng, FLOATS)), "--out", "r.html"],
            [run, "--card", "--out", text],
            [run, run, "--out", "r.html"],
        ],
        "predict": [
            [run, "--data", new, "--out", pick(rng, ["p.csv", "p.parquet", text])],
            [run, "--data", new, "--out", "p.csv", "--strategy", text],
            [run, "--data", new, "--out", "p.csv", "--seed", number, "--strict"],
            [run, "--data", new, "--out", "p.csv", "--model", text],
            [run, "--data", new, "--out", "p.csv", "--sep", text],
        ],
        "evaluate": [[run, "--data", new, "--strategy", text], [run, "--data", new, "--encoding", text]],
        "export": [
            [run, "--format", text, "--out", "m"],
            [run, "--format", "json", "--out", text],
            [run, "--format", "json", "--seed", number, "--out", "m.json"],
            [run, "--format", "json", "--strategy", text, "--out", "m.json"],
        ],
        "strategies": [["--plugin", text], [text]],
        "list": [["--data-dir", text]],
        "fetch": [[text, "--to", "there"]] if text not in ("adult", "compas", "law", "dutch") else [["x"]],
        "reproduce": [
            [name, text, "--out", "rep", "--data-dir", "/nowhere"]
            for name in ("--datasets", "--sigmas", "--protocols", "--seeds", "--tolerance", "--reference")
        ],
        "benchmark": [
            [name, text, "--out", "bench", "--rounds", "1", "--data-dir", "/nowhere"]
            for name in ("--methods", "--plugin", "--data", "--partition", "--encode", "--seeds", "--jobs")
        ],
        "sweep": [[text], [text, "--out", text], [text, "--jobs", number]],
        "nonsense": [[text], [text, text], []],
    }
    words = list(pick(rng, some[kind]))
    if kind in ("list", "fetch"):
        return ["data", kind, *words]
    return words if kind == "nonsense" else [kind, *words]


def toml_text(rng: Rng, text: str) -> str:
    """A text for TOML, sometimes as no TOML has it."""
    if chance(rng, 0.05):
        return f'"{text}"'
    shown = json.dumps(text, ensure_ascii=True)
    return '"\\ud800"' if "\\ud" in shown else shown.replace("\x7f", "\\u007f")


def toml_value(rng: Rng, depth: int = 0) -> str:
    """A value of any type."""
    kind = int(rng.integers(14 if depth < 3 else 8))
    inner = [toml_value(rng, depth + 1) for _ in range(int(rng.integers(0, 3)))] if kind > 9 else []
    simple = [
        "true",
        "false",
        str(pick(rng, ["0", "1", "-1", "2", "3", "9223372036854775808", "0x10", "1_0", "9" * 5000])),
        str(pick(rng, ["0.5", "nan", "inf", "-inf", "1e400", "-0.0", "1e-320"])),
        toml_text(rng, str(pick(rng, TEXTS))),
        toml_text(rng, str(pick(rng, TEXTS))),
        str(pick(rng, ["1979-05-27", "07:32:00", "1979-05-27T07:32:00Z", "1979-05-27T07:32:00"])),
        str(pick(rng, ["'''a'''", '"""a\nb"""', "''", '""'])),
    ]
    if kind < 8:
        return simple[kind]
    if kind == 8:
        return "[" * int(depth_of(rng)) + "]" * 10
    if kind == 9:
        many = depth_of(rng)
        return "[" * many + "]" * many
    if kind in (10, 11):
        return "[" + ", ".join(inner) + "]"
    return "{" + ", ".join(f"k{n} = {value}" for n, value in enumerate(inner)) + "}"


def depth_of(rng: Rng) -> int:
    return int(pick(rng, [1, 2, 10, 200, 2000]))


KEYS = [
    *(name.removeprefix("--") for name in RUN_OPTIONS if name not in ("--config", "--mlflow", "--fair-from")),
    *("strategies", "plugins", "force", "provenance", "seed", "data_dir", "per_round", "Data", "x"),
    *('""', '"a b"', '"\\u001b[31m"', '":smile:"', "a.b", "data.x", "provenance.x", "provenance.data-notes"),
    *("provenance.data-checksum", "provenance.server-sites", "no-report", "live", "groups"),
]
SMALL_CONFIG = {
    "data": '"synthetic:rows=200"',
    "rounds": "1",
    "epochs": "1",
    "seeds": "1",
    "jobs": "1",
    "strategy": '["fedavg"]',
    "clients": "4",
}


def config_lines(rng: Rng) -> bytes:
    """A config of a run with some keys made odd."""
    pairs = dict(SMALL_CONFIG)
    for _ in range(int(pick(rng, [1, 1, 1, 2, 3]))):
        key = str(pick(rng, KEYS))
        pairs[key] = toml_value(rng)
    for key in ("rounds", "epochs"):  # a thousand million rounds are no error
        if pairs.get(key, "1") not in ("0", "-1", "1", "2", "3") and pairs[key].isdigit():
            pairs[key] = "1"
    lines = [f"{key} = {value}" for key, value in pairs.items()]
    if chance(rng, 0.15):
        lines.append(
            pick(rng, ["[provenance]", "[run]", "[[data]]", "[a.b.c]", "[provenance", "=", "a", "\x00"])
        )
    if chance(rng, 0.1):
        lines.append("[" + ".".join(["a"] * depth_of(rng)) + "]")
    if chance(rng, 0.05):
        lines.append(pick(rng, lines))
    content = "\n".join(lines).encode("utf-8", "surrogatepass")
    if chance(rng, 0.05):
        content = damaged(rng, content)
    return content


def toml(rng: Rng, base: Path, folder: Path) -> list[str]:
    """``run --config`` with odd files."""
    shutil.copy(base / "people.csv", folder)
    (folder / "c.toml").write_bytes(config_lines(rng))
    out = ["--out", "out"] if chance(rng, 0.6) else []
    return ["run", "--no-report", "--config", "c.toml", *out]


def sweeps(rng: Rng, base: Path, folder: Path) -> list[str]:
    """``sweep`` with odd files."""
    shutil.copy(base / "people.csv", folder)
    content = config_lines(rng)
    if chance(rng, 0.9):
        content = b"\n".join(line for line in content.split(b"\n") if not line.startswith(b"jobs"))
    if chance(rng, 0.4):
        item = pick(
            rng,
            [
                'strategy = [{name = "fedmom", beta = [0.8, 0.9]}]',
                "strategy = [{name = 0}]",
                "strategy = [{}]",
                'strategy = [{name = "fedmom", beta = []}]',
                'strategy = [{name = "fedmom", beta = {a = 1}}]',
                'strategy = [{name = "fedmom", beta = [[0.9]]}]',
                'strategy = [{name = "fedmom+average", x = 1}]',
                'strategy = {name = "fedavg"}',
                'strategy = [["fedavg"]]',
                f"strategy = [{{name = {toml_value(rng)}, beta = {toml_value(rng)}}}]",
                'partition = ["random", "random"]',
                f"partition = [{toml_value(rng)}]",
            ],
        )
        key = item.split(" = ")[0].encode()
        kept = [line for line in content.split(b"\n") if not line.startswith(key)]
        content = b"\n".join([item.encode("utf-8", "surrogatepass"), *kept])
    (folder / "s.toml").write_bytes(content)
    return ["sweep", "s.toml", "--out", "out", "--jobs", "1"]


def damaged(rng: Rng, content: bytes) -> bytes:
    """Bytes that are cut, changed, doubled or others."""
    kind = int(rng.integers(8))
    if kind == 0 or not content:
        return b""
    place = int(rng.integers(len(content)))
    if kind == 1:
        return content[:place]
    if kind == 2:
        return content + content[:place]
    if kind == 3:
        return bytes(rng.integers(0, 256, int(rng.integers(1, 200)), dtype=np.uint8))
    if kind == 4:
        return content[:place] + bytes([int(rng.integers(256))]) + content[place + 1 :]
    if kind == 5:
        return content[place:]
    if kind == 6:
        return bytes(pick(rng, [b"\x00", b"{}", b"[]", b"null", b"PAR1PAR1", b"\xff\xfe", b"a,b\n1,2\n"]))
    return content[:place] + bytes(rng.integers(0, 256, 8, dtype=np.uint8)) + content[place + 8 :]


def people(rows: int = 120) -> pd.DataFrame:
    """Rows as users have them."""
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": rng.integers(18, 70, rows).astype(float),
            "income": rng.normal(30, 8, rows).round(2),
            "school": rng.choice(["north", "south", "west"], rows),
            "sex": rng.choice(["male", "female"], rows),
            "site": rng.choice(["A", "B", "C"], rows),
            "hired": rng.choice(["yes", "no"], rows),
        }
    )


def odd_cell(rng: Rng) -> str:
    return str(pick(rng, TEXTS)).encode("utf-8", "ignore").decode()


def csv_bytes(rng: Rng) -> bytes:
    """A CSV file with something odd."""
    frame = people()
    text = frame.to_csv(index=False)
    lines = text.split("\n")
    for _ in range(int(rng.integers(1, 4))):
        kind = int(rng.integers(10))
        row = int(rng.integers(max(1, len(lines) - 1)))
        cells = lines[row].split(",")
        if kind == 0:
            cells[int(rng.integers(len(cells)))] = odd_cell(rng)
        elif kind == 1:
            cells.append(odd_cell(rng))
        elif kind == 2:
            cells = cells[: int(rng.integers(len(cells) + 1))]
        elif kind == 3:
            cells = ["" for _ in cells]
        elif kind == 4:
            row, cells = (
                0,
                [*lines[0].split(",")[:-1], str(pick(rng, ["hired", "age", "", "\x7f", "a\x1b[0m"]))],
            )
        elif kind == 5:
            column = int(rng.integers(6))
            value = odd_cell(rng).replace("\n", " ")
            lines = [
                lines[0],
                *(
                    ",".join([*(c := line.split(","))[:column], value, *c[column + 1 :]])
                    for line in lines[1:-1]
                ),
                "",
            ]
            continue
        elif kind == 6:
            lines = [*lines[: int(rng.integers(len(lines)))], ""]
            continue
        elif kind == 7:
            cells[0] = '"' + cells[0]
        elif kind == 8:
            lines = [line + "," * int(rng.integers(1, 3)) for line in lines[:-1]] + [""]
            continue
        else:
            cells = [
                str(pick(rng, ["9" * 400, str(2**64), "1e999", "-0", "0.1.2", "1.234,5", "€ 5"])),
                *cells[1:],
            ]
        if row < len(lines):
            lines[row] = ",".join(cells)
    text = pick(rng, ["\n", "\n", "\r\n", "\r"]).join(lines)
    content = text.encode(
        str(pick(rng, ["utf-8"] * 5 + ["utf-16", "utf-8-sig", "latin-1", "utf-32"])), "replace"
    )
    return damaged(rng, content) if chance(rng, 0.15) else content


def odd_column(rng: Rng, rows: int) -> pa.Array:
    """A column of any of Arrow's types."""
    kinds: list[Callable[[], pa.Array]] = [
        lambda: pa.array([[1, 2]] * rows),
        lambda: pa.array([{"a": 1}] * rows),
        lambda: pa.array(["a", "b"] * (rows // 2)).dictionary_encode(),
        lambda: pa.array([2**63 - 1, -(2**63)] * (rows // 2)),
        lambda: pa.array([2**64 - 1, 0] * (rows // 2), pa.uint64()),
        lambda: pa.nulls(rows),
        lambda: pa.array([b"\xff\x00"] * rows),
        lambda: pa.array([10**15, -(10**15)] * (rows // 2), pa.timestamp("s")),
        lambda: pa.array([2**62, 0] * (rows // 2), pa.timestamp("ns", "Europe/Lisbon")),
        lambda: pa.array([1, 2] * (rows // 2), pa.duration("ns")),
        lambda: pa.array([1, 2] * (rows // 2), pa.date32()),
        lambda: pa.array([1, 2] * (rows // 2), pa.time64("us")),
        lambda: pa.array([1, 2] * (rows // 2)).cast(pa.decimal128(38, 2)),
        lambda: pa.array([True, None] * (rows // 2)),
        lambda: pa.array([np.nan, np.inf] * (rows // 2)),
        lambda: (
            pa.array([1, 2] * (rows // 2), pa.float16()) if False else pa.array(np.ones(rows, np.float16))
        ),
        lambda: pa.array([[("k", 1)]] * rows, pa.map_(pa.string(), pa.int64())),
        lambda: pa.array([odd_cell(rng) for _ in range(rows)]),
        lambda: pa.array([[[["x"]]]] * rows),
        lambda: pa.array(["x"] * rows, pa.large_string()),
        lambda: pa.array([b"abcd"] * rows, pa.binary(4)),
        lambda: pa.array([None, "yes"] * (rows // 2)),
    ]
    return pick(rng, kinds)()


def pandas_metadata(rng: Rng, table: pa.Table) -> pa.Table:
    """The same with odd notes of pandas."""
    known: dict[str, Any] = {}
    with suppress(ValueError):  # of a header that was made odd before
        found = json.loads((table.schema.metadata or {}).get(b"pandas", b"{}"))
        known = found if isinstance(found, dict) else {}
    changes: list[Any] = [
        *("", "x", "{", "null", "[]", "0", '{"columns": 5}', '{"index_columns": "x"}', "\xff"),
        {**known, "index_columns": ["age"]},
        {**known, "index_columns": ["nowhere"]},
        {**known, "index_columns": [{"kind": "range", "name": None, "start": 0, "stop": 5, "step": 1}]},
        {**known, "index_columns": [{"kind": "range", "name": None, "start": 0, "stop": 120, "step": 0}]},
        {**known, "index_columns": [{"kind": "range"}]},
        {**known, "index_columns": [5]},
        {**known, "index_columns": [["a"]]},
        {**known, "column_indexes": 3},
        {**known, "column_indexes": [{}]},
        {
            **known,
            "column_indexes": [{"name": "x", "pandas_type": "datetime", "numpy_type": "datetime64[ns]"}],
        },
        {**known, "columns": []},
        {**known, "columns": [{}]},
        {**known, "columns": [{"name": "age", "pandas_type": "x", "numpy_type": "y", "metadata": 4}]},
        {
            **known,
            "columns": [
                {
                    "name": "sex",
                    "field_name": "sex",
                    "pandas_type": "categorical",
                    "numpy_type": "nonsense",
                    "metadata": None,
                }
            ],
        },
        {
            **known,
            "columns": [
                {
                    "name": "age",
                    "field_name": "age",
                    "pandas_type": "datetimetz",
                    "numpy_type": "datetime64[ns]",
                    "metadata": {"timezone": "Mars/Base"},
                }
            ],
        },
        {
            **known,
            "columns": [
                {
                    "name": None,
                    "field_name": "age",
                    "pandas_type": "float64",
                    "numpy_type": "period[Q]",
                    "metadata": None,
                }
            ],
        },
        {**known, "columns": None, "index_columns": None},
        {"index_columns": ["sex", "age"], "columns": known.get("columns", []), "column_indexes": []},
    ]
    chosen = pick(rng, changes)
    content = chosen.encode("latin-1") if isinstance(chosen, str) else json.dumps(chosen).encode()
    return table.replace_schema_metadata({b"pandas": content})


def parquet_bytes(rng: Rng) -> bytes:
    """A Parquet file with something odd."""
    frame = people()
    table = pa.Table.from_pandas(frame)
    kind = int(rng.integers(7))
    if kind < 2:
        table = pandas_metadata(rng, table)
    if kind in (1, 2, 3):
        place = int(rng.integers(6))
        table = table.set_column(place, table.column_names[place], odd_column(rng, len(frame)))
    if kind == 4:
        names = list(table.column_names)
        names[int(rng.integers(len(names)))] = odd_cell(rng) if chance(rng, 0.6) else "sex"
        table = table.rename_columns(names)
    if kind == 5:
        table = table.slice(0, int(rng.integers(4))) if chance(rng, 0.5) else table.select([])
    sink = io.BytesIO()
    pq.write_table(table, sink, compression=str(pick(rng, ["none", "snappy", "zstd"])))
    return damaged(rng, sink.getvalue()) if kind == 6 else sink.getvalue()


def json_bytes(rng: Rng) -> bytes:
    """JSON with something odd."""
    records: list[Any] = json.loads(people(40).to_json(orient="records"))
    odd: list[Any] = [None, [], {}, [1], {"a": {"b": 1}}, 10**400, 1.5, True, "", odd_cell(rng), float("nan")]
    kind = int(rng.integers(5))
    if kind == 0:
        records[int(rng.integers(len(records)))] = pick(rng, odd)
    elif kind == 1:
        records[int(rng.integers(len(records)))][str(pick(rng, ["age", "sex", "hired", "new"]))] = pick(
            rng, odd
        )
    elif kind == 2:
        value = pick(rng, odd)
        records = [{**record, str(pick(rng, ["age", "sex", "hired"])): value} for record in records]
    text = json.dumps(records) if chance(rng, 0.5) else "\n".join(map(json.dumps, records))
    if kind == 3:
        text = str(
            pick(rng, ["[" * 5000, "{", "[{}]", "[]", "{}", "null", '{"a":1}\n{"a":', '[{"a":1,"a":2}]'])
        )
    content = text.encode()
    return damaged(rng, content) if kind == 4 else content


_BOOK: list[bytes] = []


def excel_bytes(rng: Rng) -> bytes:
    """A damaged workbook, or something else under its name."""
    if not _BOOK:
        sink = io.BytesIO()
        people(40).to_excel(sink, index=False)
        _BOOK.append(sink.getvalue())
    return damaged(rng, _BOOK[0]) if chance(rng, 0.9) else csv_bytes(rng)


FORMATS: dict[str, Callable[[Rng], bytes]] = {
    "csv": csv_bytes,
    "parquet": parquet_bytes,
    "json": json_bytes,
    "jsonl": json_bytes,
    "xlsx": excel_bytes,
}


def files(rng: Rng, base: Path, folder: Path) -> list[str]:
    """Odd data in every place that takes a file."""
    ending = str(pick(rng, ["csv"] * 4 + ["parquet"] * 5 + ["json", "jsonl", "xlsx"]))
    content = FORMATS[ending](rng)
    if chance(rng, 0.05):
        import gzip

        ending, content = f"{ending}.gz", gzip.compress(content) if chance(rng, 0.5) else content
    name = f"odd.{ending}"
    (folder / name).write_bytes(content)
    kind = int(rng.integers(9))
    if kind < 2:
        return ["data", "describe", name]
    if kind < 4:
        return ["data", "describe", name, *OWN, *(["--client-column", "site"] if chance(rng, 0.3) else [])]
    if kind < 6:
        return ["run", "--no-report", "--data", name, *OWN, *TINY, "--out", "out", "--clients", "3"]
    if kind == 6:
        return ["predict", str(base / "own"), "--data", name, "--out", pick(rng, ["p.csv", "p.parquet"])]
    if kind == 7:
        return ["evaluate", str(base / "own"), "--data", name]
    shutil.copy(base / "people.csv", folder)
    own = ["run", "--no-report", "--data", "people.csv", *OWN, *TINY, "--out", "out", "--clients", "3"]
    if chance(rng, 0.3):
        (folder / "site").mkdir()
        shutil.move(folder / name, folder / "site" / name)
        shutil.copy(base / "people.csv", folder / "site")
        return ["run", "--no-report", "--data", "site", *OWN, *TINY, "--out", "out"]
    return [*own, "--validation", name]


def _odd_frame(rng: Rng, content: bytes) -> bytes:
    """A Parquet file of ours with other columns or another header."""
    try:
        table = pq.read_table(io.BytesIO(content))
    except (pa.ArrowInvalid, OSError):
        return b""
    kind = int(rng.integers(8))
    place = int(rng.integers(max(1, table.num_columns)))
    name = table.column_names[place]
    rows = table.num_rows
    if kind == 0:
        table = table.drop_columns([name])
    elif kind == 1:
        filler = pick(
            rng, [[None] * rows, ["x"] * rows, [5] * rows, [[1]] * rows, [np.nan] * rows, [2**62] * rows]
        )
        table = table.set_column(place, name, pa.array(filler))
    elif kind == 2:
        table = table.slice(0, int(rng.integers(3)))
    elif kind == 3:
        about = [
            b"",
            b"{",
            b"[]",
            b"null",
            b"5",
            b'{"members": 5}',
            b'{"members": [], "values": [], "attributes": []}',
        ]
        about += [b'{"members": [[0]], "values": [["a"]], "attributes": ["x"]}', b'{"format": 99}', b"\xff"]
        about += [
            b'{"members": [["a"]], "values": [["a"]], "attributes": ["x"]}',
            b'{"members": [1], "values": 2}',
        ]
        about += [
            b'{"cell": 5}',
            b'{"cell": {}, "code": 5, "specs": 4, "saved": 3}',
            b'{"cell": {"seed": "x"}}',
        ]
        table = table.replace_schema_metadata({b"fairfate": pick(rng, about)})
    elif kind == 4:
        table = table.replace_schema_metadata(None)
    elif kind == 5:
        table = pandas_metadata(rng, table)
    elif kind == 6:
        table = table.append_column(str(pick(rng, ["x", name, "n_9_0_0"])), pa.array([1] * rows))
    elif rows:
        values = table.column(place).to_pylist()
        old = values[0]
        odd: list[Any] = (
            [*TEXTS[:20], '{"a": 1}', "[1]", "x\x1b[31m"] if isinstance(old, str) else [0, -1, 2**40, None]
        )
        value = pick(rng, odd)
        values[int(rng.integers(rows))] = (
            value.encode("utf-8", "ignore").decode() if isinstance(value, str) else value
        )
        with suppress(pa.ArrowInvalid, pa.ArrowTypeError):
            table = table.set_column(place, name, pa.array(values, table.schema.types[place]))
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def damage_folder(rng: Rng, place: Path) -> None:
    """Damage some files of a run or a sweep."""
    for _ in range(int(rng.integers(1, 3))):
        every = sorted(path for path in place.rglob("*") if path.is_file())
        if not every:
            return
        path = every[int(rng.integers(len(every)))]
        if chance(rng, 0.3):
            path = next((one for one in every if one.name in ("rounds.parquet", "config.toml")), path)
        kind = int(rng.integers(10))
        if kind == 0:
            path.unlink()
        elif kind == 1:
            path.unlink()
            path.mkdir()
        elif kind < 5 and path.suffix == ".parquet":
            content = _odd_frame(rng, path.read_bytes())
            path.write_bytes(content)
            if path.parent.name == "cells":  # with the right checksum
                import hashlib

                digest = hashlib.sha256(content).hexdigest()[:32]
                path.rename(path.with_name(f"{path.stem.rpartition('_')[0]}_{digest}.parquet"))
        elif kind < 5 and path.suffix == ".toml":
            path.write_bytes(config_lines(rng))
        elif kind < 5 and path.suffix == ".safetensors":
            path.write_bytes(_odd_model(rng, path))
        elif kind == 5:
            path.write_bytes(pick(rng, every).read_bytes() if every[0].is_file() else b"")
        elif kind == 6 and path.suffix == ".toml":
            lines = path.read_text(errors="replace").split("\n")  # it may have been damaged before
            lines[int(rng.integers(len(lines)))] = f"{pick(rng, KEYS)} = {toml_value(rng)}"
            path.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
        else:
            path.write_bytes(damaged(rng, path.read_bytes()))


def folders(rng: Rng, base: Path, folder: Path) -> list[str]:
    """Run folders whose files are damaged, missing or foreign."""
    kind = str(pick(rng, ["run", "run", "run", "sweep", "stopped", "own"]))
    place = folder / "there"
    shutil.copytree(base / kind, place)
    damage_folder(rng, place)
    new = str(base / "people.csv")
    commands = [
        ["show", "there"],
        ["show", "there", "--groups"],
        ["show", "there", str(base / "run")],
        ["show", "there", "--clients"],
        ["report", "there", "--card", "--out", "card.md"],
        ["predict", "there", "--data", new, "--out", "p.csv"],
        ["evaluate", "there", "--data", new, "--strategy", "fedavg"],
        ["export", "there", "--format", "json"],
        ["show", "there/rounds.parquet"],
    ]
    if chance(rng, 0.06):
        return list(
            pick(rng, [["plot", "there"], ["plot", "there", "--kind", "tradeoff"], ["report", "there"]])
        )
    if kind == "stopped" and chance(rng, 0.7):
        return ["run", "--no-report", "--config", str(base / "stopped.toml"), "--out", "there"]
    if kind == "sweep" and chance(rng, 0.5):
        return ["sweep", str(base / "sweep.toml"), "--out", "there", "--jobs", "1"]
    if chance(rng, 0.15):
        return [
            "run",
            "--no-report",
            *DATA,
            *TINY,
            "--out",
            "there",
            *(["--force"] if chance(rng, 0.5) else []),
        ]
    return list(pick(rng, commands))


def _odd_json(rng: Rng, value: Any) -> Any:
    """A JSON value with something in it changed."""
    odd = [None, 0, -1, 1.5, "", "x", [], {}, [1], {"a": 1}, True, 10**30, "\x1b[31m", [[]], float("nan")]
    if isinstance(value, dict) and value and chance(rng, 0.8):
        key = pick(rng, sorted(value))
        if chance(rng, 0.2):
            return {name: of for name, of in value.items() if name != key}
        return {**value, key: _odd_json(rng, value[key])}
    if isinstance(value, list) and value and chance(rng, 0.7):
        place = int(rng.integers(len(value)))
        changed = list(value)
        changed[place] = _odd_json(rng, value[place])
        return changed if chance(rng, 0.8) else changed[:place]
    return pick(rng, odd)


def _odd_model(rng: Rng, path: Path) -> bytes:
    """A model or a checkpoint that is whole but wrong."""
    from fairfate.storage import read_arrays, write_arrays

    content = path.read_bytes()
    try:
        arrays, about = read_arrays(path)
    except ValueError:
        return damaged(rng, content)
    kind = int(rng.integers(4))
    if kind == 0 and arrays:
        name = pick(rng, sorted(arrays))
        array = arrays[name]
        arrays[name] = pick(
            rng,
            [
                array[:-1],
                array.astype(np.float64),
                np.nan_to_num(array, posinf=9.0, neginf=-9.0).astype(np.int64),
                np.zeros(0, np.float32),
                np.full_like(array, np.nan) if array.dtype.kind == "f" else array[None],
                array[..., None],
                np.full(array.shape, 1e38, np.float32),
            ],
        )
    elif kind == 1:
        about = _odd_json(rng, about)
    elif kind == 2 and "schema" in about:
        about = {**about, "schema": _odd_json(rng, about["schema"])}
    else:
        arrays.pop(pick(rng, sorted(arrays)), None) if arrays else None
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        new = Path(scratch) / "m.safetensors"
        write_arrays(new, arrays, about if isinstance(about, dict) else {"x": about})
        return new.read_bytes()


def models(rng: Rng, base: Path, folder: Path) -> list[str]:
    """Model files that are damaged, or whole and wrong."""
    source = pick(rng, [base / "run/models/best.safetensors", base / "own/models/best.safetensors"])
    source = pick(rng, sorted((source.parent).glob("*.safetensors")))
    shutil.copy(source, folder / "m.safetensors")
    shutil.copy(base / "people.csv", folder)
    path = folder / "m.safetensors"
    kind = int(rng.integers(10))
    if kind < 3:
        path.write_bytes(damaged(rng, path.read_bytes()))
    elif kind < 8:
        path.write_bytes(_odd_model(rng, path))
    elif kind == 8:
        import struct

        header = pick(rng, ["{}", "[]", "x", '{"__metadata__": {"fairfate": "{}"}}', '{"__metadata__": 5}', "[" * 5000,
                            '{"__metadata__": {"fairfate": "[]"}}', '{"__metadata__": {"fairfate": "' + "[" * 5000 + '"}}'])  # fmt: skip
        path.write_bytes(struct.pack("<Q", len(header)) + header.encode())
    else:
        from safetensors.numpy import save

        name = pick(rng, ["w1", "thresholds", "x"])
        path.write_bytes(save({name: np.zeros(3, np.float16)}, metadata=pick(rng, [None, {"a": "b"}])))
    return list(
        pick(
            rng,
            [
                ["predict", "m.safetensors", "--data", "people.csv", "--out", "p.csv"],
                ["predict", "m.safetensors", "--data", "people.csv", "--out", "p.parquet", "--strict"],
                ["evaluate", "m.safetensors", "--data", "people.csv"],
                ["export", "m.safetensors", "--format", "json"],
                ["export", "m.safetensors", "--format", "json", "--out", "x.json"],
            ],
        )
    )


RAISING = [
    *(
        "raise ValueError('no')",
        "raise KeyError('a')",
        "1 / 0",
        "raise SystemExit(0)",
        "raise SystemExit('x')",
    ),
    *("import sys; sys.exit(3)", "import nowhere", "[][1]", "None.x", "raise StopIteration", "assert False"),
    *("raise Exception", "raise BaseException('x')", "raise GeneratorExit", "raise OSError(5, 'io', 'f')"),
    *("raise RecursionError", "raise NotImplementedError", "raise UnicodeDecodeError('a', b'b', 0, 1, 'c')"),
    *("raise ExceptionGroup('g', [ValueError('x')])", "raise Odd", "raise Exception('\\x1b[31m:smile:[b]')"),
    *("raise BrokenPipeError", "raise EOFError", "raise Warning('w')", "raise FileNotFoundError"),
]
ODD_VALUES = [
    *("None", "5", "'x'", "[]", "{}", "object()", "np.nan", "np.full(3, np.nan)", "np.zeros((2, 2))"),
    *(
        "np.array(['a'])",
        "np.array([None])",
        "(1, 2)",
        "lambda: 0",
        "np.zeros(0)",
        "1j",
        "b'x'",
        "float('inf')",
    ),
    *(
        "np.zeros(3, dtype=complex)",
        "np.array(1.0)",
        "{'a': object()}",
        "{1: 2}",
        "{'lam': 'x'}",
        "{'fair': 'x'}",
    ),
    *(
        "{'fair': [1]}",
        "{'x': np.zeros((2, 2))}",
        "{'beta': None}",
        "{'x': 1j}",
        "{'a' * 300: 1.0}",
        "{'x': {}}",
    ),
    *(
        "{'x': np.nan}",
        "{'lam': [1, 2]}",
        "{'\\x1b[31m': 1}",
        "{'x': 'text'}",
        "{'x': True}",
        "{'x': 10**400}",
    ),
    *("{'fair': np.zeros((3, 3))}", "{'x': [1.0, None]}", "{'x': np.array('t')}", "{'notes': 1, 'round': 2}"),
]
PLUGIN = """\
import numpy as np
from typing import NamedTuple
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
        return {told}

    def local_loss(told, rows, local):
        {loss}
        return {terms}

    def release(state):
        {release}
        return {released}

    return Strategy(init=init, aggregate=aggregate{more})
"""


def plugins(rng: Rng, base: Path, folder: Path) -> list[str]:
    """A strategy of the user's that fails somewhere."""
    parts = {
        **dict.fromkeys(["module", "build", "init", "aggregate", "broadcast", "loss", "release"], "pass"),
        "name": "'made_up'",
        "summary": "'mine'",
        "arguments": "",
        "params": "state.params + cohort.mean(cohort.num_examples)",
        "notes": "{'x': 1.0}",
        "told": "np.ones(4)",
        "terms": "LossTerms(np.ones(rows.shape))",
        "released": "state.params",
        "more": "",
    }
    optional = {
        "broadcast": "broadcast=broadcast",
        "loss": "local_loss=local_loss",
        "release": "release=release",
    }
    used = {key for key in optional if chance(rng, 0.3)}
    kind = int(rng.integers(12))
    if kind < 4:
        where = pick(rng, ["module", "build", "init", "aggregate", "broadcast", "loss", "release"])
        used |= {where} & set(optional)
        parts[where] = pick(rng, RAISING)
    elif kind < 10:
        where = pick(rng, ["params", "notes", "notes", "told", "terms", "released", "name", "summary"])
        used |= {"told": {"broadcast"}, "terms": {"loss"}, "released": {"release"}}.get(where, set())
        parts[where] = pick(rng, ODD_VALUES)
        if where == "terms" and chance(rng, 0.7):
            parts["terms"] = f"LossTerms({pick(rng, ODD_VALUES)})"
            if chance(rng, 0.4):
                parts["terms"] = f"LossTerms(np.ones(rows.shape), {pick(rng, ODD_VALUES)})"
            elif chance(rng, 0.3):
                field = pick(rng, ["prox", "prejudice"])
                parts["terms"] = f"LossTerms(np.ones(rows.shape), {field}={pick(rng, ODD_VALUES)})"
        if where == "params" and chance(rng, 0.4):
            parts["params"] = pick(
                rng, ["state.params * np.nan", "state.params[:-1]", "state.params.astype(str)"]
            )
    elif kind == 10:
        arguments = [
            ", x",
            ", x=None",
            ", x='a'",
            ", **k",
            ", x: 'Unknown' = 1",
            ", *, metric=[]",
            ", x=object()",
        ]
        parts["arguments"] = pick(rng, arguments)
    else:
        parts["build"] = f"return {pick(rng, ODD_VALUES)}"
    odd_more = [
        ", needs=5",
        ", needs=None",
        ", refresh='x'",
        ", refresh=0",
        ", broadcast=5",
        ", scale=5",
        ", release=3",
    ]
    parts["more"] = "".join(f", {optional[key]}" for key in sorted(used))
    if chance(rng, 0.1):
        parts["more"] = str(pick(rng, odd_more))
    if chance(rng, 0.3) and "needs" not in parts["more"]:
        parts["more"] += pick(
            rng, [f", needs={{Need.{need}}}" for need in ("SCORES", "REPORTS", "ROWS", "TRIALS")]
        )
    text = PLUGIN.format(**parts)
    content = text.encode()
    if chance(rng, 0.05):
        content = damaged(rng, content)
    (folder / "mine.py").write_bytes(content)
    step = str(pick(rng, ["", "", "", "+average", "+thresholds", "+median"]))
    words = ["--plugin", "mine.py", "--strategy", f"made_up{step}"]
    if chance(rng, 0.1):
        return ["strategies", "--plugin", "mine.py"]
    if chance(rng, 0.15):
        (folder / "s.toml").write_text(
            'data = "synthetic:rows=200"\nrounds = 1\nepochs = 1\nseeds = 1\nclients = 4\nplugin = "mine.py"\n'
            f'strategy = ["made_up{step}"]\n'
        )
        return ["sweep", "s.toml", "--out", "out", "--jobs", "1"]
    return ["run", "--no-report", *DATA, *TINY, "--out", "out", "--clients", "4", *words]


API = [
    *("data", "target", "sensitive", "rounds", "seeds", "strategies", "strategy", "metric", "clients", "out"),
    *("jobs", "hidden", "learning_rate", "partition", "plugins", "encode", "force", "favourable", "nonsense"),
    *("validation", "attack", "validation_from", "per_round", "batch_size", "drop", "min_group", "model"),
    *("min_cell", "missing", "favorable"),
]


def api_value(rng: Rng) -> Any:
    """Any Python value."""
    return pick(
        rng,
        [
            *(None, True, 0, -1, 1, 1.5, float("nan"), 10**30, "", b"x", [], {}, (), set(), object(), [None]),
            *(
                {"a": 1},
                {1, 2},
                {1, "a"},
                range(3),
                range(0),
                np.array([1, 2]),
                np.array([[1]]),
                np.float32(1),
            ),
            *(
                np.array(["a"]),
                np.nan,
                1j,
                pd.Series([1, 2]),
                people(20),
                Path("x"),
                Path("."),
                lambda: 0,
                type,
            ),
            *(
                [[1], [2]],
                [[[]]],
                iter([1]),
                np.array([], dtype=object),
                pd.DataFrame(),
                ["a", 1],
                {"a": [1]},
            ),
            *TEXTS[:40],
        ],
    )


def call_api(rng: Rng, base: Path, folder: Path) -> None:
    """``fairfate.run`` and the estimator with odd arguments; they raise what is documented, or work."""
    import fairfate

    if chance(rng, 0.5):
        given: dict[str, Any] = {
            "data": "synthetic:rows=200",
            "rounds": 1,
            "epochs": 1,
            "seeds": (1,),
            "jobs": 1,
        }
        given |= {"strategies": ["fedavg"]}
        for _ in range(int(rng.integers(1, 3))):
            given[str(pick(rng, API))] = api_value(rng)
        if not isinstance(given["rounds"], int) or given["rounds"] < 100:
            fairfate.run(**given)
        return
    from fairfate import FairFederatedClassifier

    frame = people(80)
    settings: dict[str, Any] = {"max_iter": 1, "epochs": 1, "strategy": "fedavg"}
    known = sorted(FairFederatedClassifier().get_params())
    if chance(rng, 0.7):
        name = str(pick(rng, known))
        settings[name] = api_value(rng)
    x: Any = frame[["age", "income"]]
    y: Any = frame["hired"]
    sensitive: Any = frame["sex"]
    which = int(rng.integers(5))
    if which == 0:
        x = api_value(rng)
    elif which == 1:
        y = api_value(rng)
    elif which == 2:
        sensitive = api_value(rng)
    if any(isinstance(settings[key], int) and settings[key] > 100 for key in ("max_iter", "epochs")):
        return
    FairFederatedClassifier(**settings).fit(x, y, sensitive_features=sensitive)


def flower(rng: Rng, base: Path, folder: Path) -> list[str]:
    """The commands for a federation: odd apps, schemas, node-configs, tables and words."""
    kind = str(pick(rng, ["check"] * 5 + ["schema"] * 4 + ["checksum"] * 2 + ["init"] * 2 + ["words"]))
    if kind == "check":
        return ["flower", "check", *_odd_site(rng, base, folder)]
    if kind == "init":
        place = str(pick(rng, [*TEXTS, "new", "new/deeper", "taken"]))
        (folder / "taken").mkdir()
        (folder / "taken" / "file").write_text("mine")
        return ["flower", "init", place]
    if kind == "words":
        names = ["init", "checksum", "schema", "check", str(pick(rng, TEXTS))]
        words = [str(pick(rng, [*TEXTS, "--out", "--schema", "--node", "--data", "app", "schema.json"]))]
        return ["flower", str(pick(rng, names)), *words, *(words if chance(rng, 0.3) else [])]
    shutil.copytree(base / "app", folder / "app")
    if chance(rng, 0.9):
        _odd_app(rng, folder / "app")
    if kind == "checksum":
        return ["flower", "checksum", "app" if chance(rng, 0.9) else "app/pyproject.toml"]
    out = ["--out", str(pick(rng, ["s.json", "s.json", "app", "app/pyproject.toml", *TEXTS]))]
    return ["flower", "schema", "app", *(out if chance(rng, 0.6) else [])]


def _odd_site(rng: Rng, base: Path, folder: Path) -> list[str]:
    """A schema, and a site's settings or its file; some of them odd."""
    schema: Any = json.loads((base / "schema.json").read_text())
    odd = str(pick(rng, ["schema", "schema", "node", "node", "data", "data", "none"]))
    content = json.dumps(_odd_json(rng, schema) if odd == "schema" else schema).encode()
    if odd == "schema" and chance(rng, 0.2):
        content = damaged(rng, content)
    (folder / "schema.json").write_bytes(content)
    ending = str(pick(rng, ["csv", "parquet", "jsonl"])) if odd == "data" else "csv"
    name = f"rows.{ending}"
    rows = (base / "app" / "data" / "sites" / "north.csv").read_bytes()
    rows = damaged(rng, rows) if odd == "data" and chance(rng, 0.4) else rows
    (folder / name).write_bytes(FORMATS[ending](rng) if odd == "data" and chance(rng, 0.6) else rows)
    if chance(rng, 0.3):
        return ["--schema", "schema.json", "--data", name]
    lines = {"data": json.dumps(name), "name": '"north"'}
    if odd == "node":
        for _ in range(int(rng.integers(1, 3))):
            key = str(pick(rng, ["data", "name", "sep", "decimal", "encoding", "rename", "target", "x"]))
            lines[key] = toml_value(rng)
    node = "\n".join(f"{key} = {value}" for key, value in lines.items()).encode("utf-8", "surrogatepass")
    (folder / "site.toml").write_bytes(damaged(rng, node) if odd == "node" and chance(rng, 0.2) else node)
    return ["--schema", "schema.json", "--node", "site.toml"]


def _odd_app(rng: Rng, app: Path) -> None:
    """An app whose config or files are not as they were written."""
    file = app / "pyproject.toml"
    lines = file.read_text().splitlines()
    kind = int(rng.integers(6))
    if kind == 0:
        file.write_bytes(damaged(rng, file.read_bytes()))
        return
    if kind == 1:
        other = pick(rng, sorted(path for path in app.rglob("*") if path.is_file()))
        other.unlink() if chance(rng, 0.5) else other.write_bytes(damaged(rng, other.read_bytes()))
        return
    if kind == 2:
        (app / "link").symlink_to(pick(rng, ["pyproject.toml", "/nowhere", ".", "data"]))
        return
    keys = [place for place, line in enumerate(lines) if " = " in line and not line.startswith(("#", "["))]
    for place in rng.choice(keys, int(rng.integers(1, 3)), replace=False):
        lines[place] = f"{lines[place].partition(' = ')[0]} = {toml_value(rng)}"
    file.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))


Family = Callable[[Rng, Path, Path], list[str]]
FAMILIES: dict[str, Family] = {
    "options": options,
    "toml": toml,
    "sweeps": sweeps,
    "files": files,
    "folders": folders,
    "models": models,
    "plugins": plugins,
    "flower": flower,
}

# ---------------------------------------------------------------- calls, and what must hold of them


class HangError(BaseException):
    """A call took too long."""


class Call(NamedTuple):
    """What came of one call."""

    words: list[str]
    code: int | None
    out: str
    err: str
    seconds: float
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


def command(words: list[str], folder: Path) -> Call:
    """Run the command in this process, in a folder, and look at what it has done."""
    from fairfate.cli.main import run_command

    before = {path.relative_to(folder) for path in folder.rglob("*")}
    out, err = io.StringIO(), io.StringIO()
    argv, cwd = sys.argv, Path.cwd()
    broken: list[str] = []
    code: int | None = None
    words = [word.replace("\0", "") for word in words]  # which no system hands on
    sys.argv = ["fairfate", *words]
    began = time.process_time()
    os.chdir(folder)
    try:
        with redirect_stdout(out), redirect_stderr(err), limited(LONGEST), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = run_command()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        broken.append(f"traceback: {''.join(traceback.format_exception(error))}")
    finally:
        sys.argv = argv
        os.chdir(cwd)
    seconds = time.process_time() - began
    said, told = out.getvalue(), err.getvalue()
    if seconds > MOST_SECONDS:
        broken.append(f"{seconds:.0f} s")
    if "Traceback" in said + told:
        broken.append("a traceback is printed")
    if code not in (None, 0, 2):
        broken.append(f"exit code {code}")
    if code == 2 and not told.strip():
        broken.append("exit code 2 without a word")
    if raw := sorted({hex(ord(letter)) for letter in said + told if letter in RAW}):
        broken.append(f"raw characters are printed: {raw}")
    left = {path.relative_to(folder) for path in folder.rglob("*")} - before
    half = [path for path in left if path.name.endswith(".unfinished") or path.name == ".lock"]
    if half:
        broken.append(f"half-written: {half}")
    if code == 2 and [path for path in left if "there" not in path.parts[:1]]:
        broken.append(f"left by a failed call: {sorted(map(str, left))}")
    return Call(words, code, said, told, seconds, tuple(broken))


def make_base(base: Path) -> Path:
    """What calls start from: data, a finished run, an interrupted one, a sweep."""
    base.mkdir(parents=True, exist_ok=True)
    people().to_csv(base / "people.csv", index=False)
    two = [*TINY[:4], "--seeds", "2", "--jobs", "1"]
    several = ["--strategy", "fedavg", "--strategy", "fair_fate", "--strategy", "fedavg+thresholds"]
    data = ["--data", "synthetic:rows=300"]
    made = [
        ["run", "--no-report", *data, *two, *several, "--out", "run"],
        ["run", "--no-report", "--data", "people.csv", *OWN, *TINY, "--clients", "3", "--out", "own"],
    ]
    (base / "sweep.toml").write_text(
        'data = "synthetic:rows=300"\nrounds = 1\nepochs = 1\nseeds = 2\nclients = [3, 4]\nstrategy = ["fedavg"]\n'
    )
    made.append(["sweep", "sweep.toml", "--out", "sweep", "--jobs", "1"])
    made += [["flower", "init", "app"], ["flower", "schema", "app", "--out", "schema.json"]]
    (base / "stopped.toml").write_text(
        'data = "synthetic:rows=300"\nrounds = 2\nepochs = 1\nseeds = 2\nclients = 4\njobs = 1\n'
        'strategy = ["fedavg", "fedmom"]\n'
    )
    for words in made:
        done = command(words, base)
        if done.code != 0:
            raise RuntimeError(f"{words}: {done.err}")
    _interrupted(base)
    return base


def _interrupted(base: Path) -> None:
    """A run that is stopped in its second seed, with a checkpoint and with what those who watch read."""
    from fairfate.engine.checkpoint import Checkpoint
    from fairfate.experiments import execute

    plain, load, writer = Checkpoint.__init__, execute.run_seed, execute.Writer
    done: list[int] = []

    def eager(self: Any, path: Any, identity: Any, seconds: float = 30.0) -> None:
        plain(self, path, identity, 0.0)

    def stopping(task: Any, table: Any, report: Any) -> Any:
        def told(amount: float) -> None:
            report(amount)
            if done:
                raise RuntimeError("stopped")

        result = load(task, table, told)
        done.append(task.job.seed)
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
    for left in ("checkpoints/*.safetensors", "live/*.jsonl"):
        if not list((base / "stopped").glob(left)):
            raise RuntimeError(f"no {left}")


def forget_plugins() -> None:
    """Strategies of plugins are gone again."""
    from fairfate.strategies import plugins, registry

    for name in [name for name, entry in registry._ENTRIES.items() if "_plugin_" in entry.build.__module__]:
        del registry._ENTRIES[name]
    plugins._LOADED.clear()


def calls(family: str, seed: int, number: int, base: Path, scratch: Path) -> Iterator[Call]:
    """So many calls of a family; the same for the same seed, one by one."""
    for n in range(number):
        rng = np.random.default_rng([seed, n])
        folder = scratch / f"{family}-{n}"
        folder.mkdir(parents=True)
        if family == "api":
            yield _api(rng, base, folder, n)
        else:
            done = command(FAMILIES[family](rng, base, folder), folder)
            yield done._replace(words=[f"(call {n})", *done.words])
            forget_plugins()
        shutil.rmtree(folder, ignore_errors=True)


def _api(rng: Rng, base: Path, folder: Path, n: int) -> Call:
    broken: list[str] = []
    code = 0
    began = time.process_time()
    cwd = Path.cwd()
    os.chdir(folder)
    sink = io.StringIO()
    try:
        with redirect_stdout(sink), redirect_stderr(sink), limited(LONGEST), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call_api(rng, base, folder)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        code = 2
        sink.write(f"{type(error).__name__}: {error}"[:300])
        from fairfate.errors import InputError

        foreign = isinstance(error, TypeError) and "keyword argument" in str(error)
        last = traceback.extract_tb(error.__traceback__)[-1].filename
        foreign |= isinstance(error, ValueError | TypeError) and ("sklearn" in last or _is_checking(error))
        if not isinstance(error, InputError | OSError) and not foreign:
            broken.append(f"traceback: {''.join(traceback.format_exception(error))}")
    finally:
        os.chdir(cwd)
    return Call([f"(api call {n})"], code, sink.getvalue(), "", time.process_time() - began, tuple(broken))


def _is_checking(error: BaseException) -> bool:
    """Whether scikit-learn was looking at X and y, as it does for every estimator."""
    frames = traceback.extract_tb(error.__traceback__)
    return any("sklearn" in frame.filename and "check" in frame.name for frame in frames)


def main() -> None:
    family, seed, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    scratch = Path(tempfile.mkdtemp(dir=os.environ.get("FUZZ_SCRATCH")))
    base = make_base(scratch / "base")
    write = sys.stdout.write
    kinds: dict[str, list[Call]] = {}
    codes: dict[int | None, int] = {}
    slow = 0.0
    began = time.monotonic()
    for call in calls(family, seed, number, base, scratch / "calls"):
        if "-e" in sys.argv:
            write(f"{call.code} {(call.err or call.out).strip()[:200]}\n")
        codes[call.code] = codes.get(call.code, 0) + 1
        slow = max(slow, call.seconds)
        for what in call.broken:
            lines = what.strip().splitlines()
            ours = [line.strip() for line in lines if "/fairfate/" in line]
            kinds.setdefault(f"{lines[-1][:200]} @ {ours[-1] if ours else ''}", []).append(call)
    for kind, found in sorted(kinds.items(), key=lambda item: -len(item[1])):
        write(f"{len(found):4} {kind}\n        {' '.join(found[0].words)[:300]!r}\n")
        if "-v" in sys.argv:
            write("\n".join(found[0].broken) + "\n" + found[0].err + "\n")
    broken = sum(len(found) for found in kinds.values())
    write(f"{family}: {number} calls, {broken} broken, exit codes {codes}, slowest {slow:.1f} s,")
    write(f" {time.monotonic() - began:.0f} s\n")
    shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()

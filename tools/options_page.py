"""docs/options.md: every option of a run, from the table in fairfate/options.py."""

from __future__ import annotations

import re
from typing import Any

from fairfate.flower.app.settings import Settings
from fairfate.options import SECTIONS, Execution, Option, Options, options_of

HEAD = """\
# Options

Generated from `fairfate/options.py`. An option has one name everywhere: `--per-round 3` on the [command line](cli.md), `per-round = 3` in
a config file (`--config`) and in the run config of the ready [Flower app](flower.md), `per_round=3` in [`fairfate.run`](api.md). An option
that takes *texts* is repeated on the command line and a list in files and Python, where `strategy` and `plugin` are called `strategies`
and `plugins`. *Sweep* marks options that may be lists in a [sweep file](sweeps.md) (as may strategies and seeds), *Flower* those that the
Flower app takes.
"""
_REFUSED = ("early_stopping", "model")
"""Keys that the Flower app knows in order to say why it does not take them."""
_TYPES = {int: "whole number", float: "number", str: "text", bool: "yes or no"}


def page() -> str:
    """The whole page."""
    options = [*options_of(Options).values(), *options_of(Execution).values()]
    parts = [
        _table(section.capitalize(), [item for item in options if item.section == section], shared=True)
        for section in SECTIONS
    ]
    own = _table("Only on Flower", list(options_of(Settings).values()), shared=False)
    return "\n".join([HEAD, *parts, own])


def _table(title: str, options: list[Option], *, shared: bool) -> str:
    marks = " sweep | Flower |" if shared else ""
    rule = " --- | --- |" if shared else ""
    rows = "".join(_row(item, shared=shared) for item in options)
    return f"## {title}\n\n| option | values | default |{marks} |\n| --- | --- | --- |{rule} --- |\n{rows}"


def _row(item: Option, *, shared: bool) -> str:
    names = ", ".join(f"`{key}`" for key in (item.key, *item.spellings))
    on_flower = (
        item.on_flower and item.name not in (*options_of(Execution), *_REFUSED)
    ) or item.name == "out"
    marks = [_yes(item.is_axis), _yes(on_flower)]
    cells = [names, _values(item), _default(item), *(marks if shared else []), item.help]
    return f"| {' | '.join([cells[0], *map(_escape, cells[1:])])} |\n"


def _values(item: Option) -> str:
    if item.choices:
        return ", ".join(item.choices)
    kind = "texts" if item.is_repeatable else "whole numbers" if item.name == "seeds" else _TYPES[item.type]
    if item.low is None:
        return kind
    low = f"{'>' if item.is_above else '>='} {item.low:g}"
    return f"{kind} {low}" if item.high is None else f"{kind} from {item.low:g} to {item.high:,}"


def _default(item: Option) -> str:
    if item.default_text:
        return item.default_text
    value: Any = item.default
    return "" if value in (None, ()) and value != 0 else "no" if value is False else str(value)


def _yes(mark: bool) -> str:
    return "yes" if mark else ""


def _escape(text: str) -> str:
    """Signs that Markdown would read."""
    return re.sub(r"([|*_<>\[\]])", r"\\\1", text)

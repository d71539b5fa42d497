"""The report as one HTML file that needs nothing else: no network, no other file."""

from __future__ import annotations

import hashlib
import json
import platform
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import BytecodeCache, Environment, FunctionLoader, StrictUndefined, Template
from jinja2.bccache import Bucket
from markupsafe import Markup

from fairfate._version import __version__
from fairfate.report.audit import FOUR_FIFTHS
from fairfate.report.contents import contents
from fairfate.report.material import Material
from fairfate.report.packed import pack
from fairfate.report.picture import group_rates, tradeoff
from fairfate.storage import private_folder, read_private, write_private


def render(folders: Sequence[Path], *, live: int = 0, line: float = FOUR_FIFTHS) -> str:
    """The page of some runs or sweeps.

    Parameters
    ----------
    folders : their folders
    live : the version of a page that is served and asks for later ones; 0 for a page on its own
    line : the ratio that groups' rates should reach
    """
    material = Material.read(folders)
    return page(material, [contents(found, line) for found in material], live=live)


def page(material: Sequence[Material], told: Sequence[dict[str, Any]], *, live: int = 0) -> str:
    """The page of what was gathered, and of what is said about it."""
    parts = [
        {
            "number": number,
            "data": json_script(pack(found, said["line"])),
            "pictures": _pictures(said),
            **said,
        }
        for number, (found, said) in enumerate(zip(material, told, strict=True))
    ]
    assets = {name: asset(file) for name, file in ASSETS.items()}
    return _template().render(parts=parts, version=__version__, live=live, **assets)


def _pictures(report: Mapping[str, Any]) -> list[tuple[str, Markup]]:
    """The pictures of the first screen, and what they show."""
    shown, audit = report["answer"]["shown"], report["audit"]
    flawed = any(row["flaw"] for row in (*report["strategies"], *report["baselines"]))
    text = "Accuracy against fairness, means over seeds on the test rows"
    pictures = [(f"{text}; collapsed models are left out" if flawed else text, tradeoff(report))]
    if audit:
        model, attribute = f"{shown['strategy']}, seed {shown['seed']}", audit[0]["attribute"]
        text = f"{model}: rates by {attribute}, with 95 % intervals over test rows"
        pictures.append((text, group_rates(audit[0], shown["strategy"])))
    return [(text, picture) for text, picture in pictures if picture]


ASSETS = {"plot": "plot.min.js", "script": "report.js", "style": "report.css"}


@cache
def asset(name: str) -> str:
    """A file of the page, as text."""
    return (files("fairfate.report") / "html" / name).read_text("utf-8")


class _Compiled(BytecodeCache):
    """Keeps the compiled template, which takes longer to make than the page; Jinja checks that it fits."""

    def load_bytecode(self, bucket: Bucket) -> None:
        """Give it to Jinja, if it is there."""
        file = self._file(bucket)
        content = None if file is None else read_private(file)
        if content is not None:
            bucket.bytecode_from_string(content)

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep it."""
        file = self._file(bucket)
        if file is not None:
            write_private(file, bucket.bytecode_to_string())

    def _file(self, bucket: Bucket) -> Path | None:
        folder = private_folder()
        versions = f"{platform.python_version()} {jinja2.__version__} {__version__}"
        key = hashlib.sha256(f"{versions} {bucket.key} {bucket.checksum}".encode()).hexdigest()[:32]
        return None if folder is None else folder / f"template-{key}"


@cache
def _template() -> Template:
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(asset),
        bytecode_cache=_Compiled(),
    )
    environment.filters |= {
        "number": _number,
        "chance": _chance,
        "range": _range,
        "share": _share,
        "count": _count,
        "plainly": _plainly,
        "quoted": shlex.quote,
    }
    return environment.get_template("report.html.j2")


def json_script(data: Any) -> str:
    """JSON that nothing in it can end: a group may be called ``</script>``."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return re.sub("[<>&\u2028\u2029]", lambda found: f"\\u{ord(found[0]):04x}", text)


def _number(value: float | None, digits: int = 3) -> str:
    return "undefined" if value is None else f"{value:.{digits}f}"


def _chance(value: float) -> str:
    """A p-value."""
    return "below 0.001" if value < 0.001 else f"{value:.3f}"


def _range(of: dict[str, Any], digits: int = 3) -> str:
    """The ends of an interval, in brackets; nothing where there is none."""
    if of["low"] is None and of["high"] is None:
        return ""
    ends = (
        "0" if of["low"] is None else f"{of['low']:.{digits}f}",
        "∞" if of["high"] is None else f"{of['high']:.{digits}f}",
    )
    return f"({ends[0]} to {ends[1]})"


def _share(value: float | None) -> str:
    return "undefined" if value is None else f"{100 * value:.1f}\u00a0%"


def _count(value: int | str) -> str:
    return value if isinstance(value, str) else f"{value:,}"


def _plainly(value: Any) -> str:
    """A setting as people write it."""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)

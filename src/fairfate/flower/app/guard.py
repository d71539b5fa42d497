"""Flower's ``flwr-clientapp`` for a site that runs only the apps it trusts.

A Flower app brings its own code to every site. Flower can check signatures (``--trusted-entities``), but
only of apps from its hub: one that comes straight from a SuperLink carries none. So a site keeps a list of
checksums of apps that somebody there has looked through, and every other app is refused before it is
unpacked.
"""

from __future__ import annotations

import hashlib
import importlib
import re
import sys
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any

from fairfate.errors import InputError, reason_of


def app_checksum(app: str | Path) -> str:
    """The SHA-256 of an app as Flower packs and sends it."""
    from flwr.cli.build import build_fab_from_disk

    folder = Path(app)
    if not (folder / "pyproject.toml").is_file():
        raise InputError(f"app must be the folder of a Flower app, got '{folder}' (no pyproject.toml)")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Flower's, of a library that it uses
            return hashlib.sha256(build_fab_from_disk(folder)).hexdigest()
    except (ValueError, OSError, LookupError, TypeError, AttributeError, RecursionError) as error:
        reason = reason_of(error)  # Flower looks into the config as if it were right
        raise InputError(f"app must be a Flower app that can be packed, got '{folder}' ({reason})") from None


def read_trusted(path: str | Path) -> frozenset[str]:
    """The checksums in a file: the first word of each line; what follows # is a comment."""
    found = set()
    for number, line in enumerate(Path(path).read_text("utf-8").splitlines(), start=1):
        words = line.partition("#")[0].split()
        if words and not re.fullmatch(r"[0-9a-f]{64}", words[0]):
            raise InputError(f"'{path}' must hold SHA-256 sums, got '{words[0]}' in line {number}")
        found.update(words[:1])
    return frozenset(found)


class UntrustedAppError(RuntimeError):
    """An app that the site does not run; the server hears of it in these words."""


def check_app(content: bytes, trusted: Collection[str]) -> None:
    """Refuse an app that is not among the trusted ones."""
    checksum = hashlib.sha256(content).hexdigest()
    if checksum not in trusted:
        raise UntrustedAppError(f"this site does not run the app with the checksum {checksum}")


def main() -> None:
    """Run ``flwr-clientapp`` with the arguments after the file of checksums."""
    from flwr.supernode.cli.flwr_clientapp import flwr_clientapp

    runtime: Any = importlib.import_module("flwr.supernode.runtime.run_clientapp")
    file = sys.argv.pop(1)
    install = runtime.install_from_fab  # the one way by which code comes in; if it is renamed, nothing runs

    def install_if_trusted(content: Any, *args: Any, **options: Any) -> Any:
        check_app(content, read_trusted(file))
        return install(content, *args, **options)

    runtime.install_from_fab = install_if_trusted
    flwr_clientapp()


if __name__ == "__main__":
    main()

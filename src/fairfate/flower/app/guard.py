"""Flower's ``flwr-clientapp`` for a site that runs one app: that of its study.

A Flower app brings its own code to every site. Flower can check signatures (``--trusted-entities``), but
only of apps from its hub: one that comes straight from a SuperLink carries none. So a study has the checksum
of the app's files, every other app is refused before it is unpacked, and what is loaded is what was checked.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import secrets
import shutil
import sys
import tomllib
import warnings
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from fairfate.errors import InputError, reason_of
from fairfate.flower.app.gate import check_versions, read_study
from fairfate.flower.app.site_state import SiteFolder

CHECK, PASSED = "--check-guard", "fairfate guards this site"
"""What the launcher asks the guard, and what it must hear."""
_INFO = ".info"
_LARGEST = 10 << 20
"""Bytes of an app's files."""
_MESSAGE = 256 << 20
"""Bytes of a message, once Flower has put it together."""


class UntrustedAppError(RuntimeError):
    """An app that the site does not run; the server hears of it in these words."""


def app_checksum(app: str | Path) -> str:
    """The checksum of an app's files as Flower packs and sends them."""
    from flwr.cli.build import build_fab_from_disk

    folder = Path(app)
    if not (folder / "pyproject.toml").is_file():
        raise InputError(f"app must be the folder of a Flower app, got '{folder}' (no pyproject.toml)")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Flower's, of a library that it uses
            return checksum_of(unpack(build_fab_from_disk(folder)))
    except (ValueError, OSError, LookupError, TypeError, AttributeError, RecursionError) as error:
        reason = reason_of(error)  # Flower looks into the config as if it were right
        raise InputError(f"app must be a Flower app that can be packed, got '{folder}' ({reason})") from None


def unpack(content: bytes) -> dict[str, bytes]:
    """The files of a packed app, in memory; UntrustedAppError for names that point elsewhere, or too much."""
    files: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if sum(member.file_size for member in archive.infolist()) > _LARGEST:
                raise UntrustedAppError("an app that is too large")
            for member in archive.infolist():
                path = PurePosixPath(member.filename)
                plain = path.parts and not path.is_absolute() and ".." not in path.parts
                if (
                    not plain
                    or str(path) != member.filename
                    or str(path) in files
                    or not _is_plain(member.filename)
                ):
                    raise UntrustedAppError("an app with file names that point outside its folder")
                if path.parts[0] != _INFO:
                    files[str(path)] = archive.read(member)
    except (zipfile.BadZipFile, OSError, RuntimeError, NotImplementedError) as error:
        if isinstance(error, UntrustedAppError):
            raise
        raise UntrustedAppError("an app that cannot be unpacked") from None
    return files


def _is_plain(name: str) -> bool:
    return name.isprintable() and "\\" not in name


def checksum_of(files: Mapping[str, bytes]) -> str:
    """The SHA-256 of files' names and contents, however they are packed."""
    lines = [f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in sorted(files)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def install(content: bytes, trusted: str, apps: Path) -> Path:
    """Unpack an app into a folder of its checksum's name, whole or not at all; returns the folder.

    Parameters
    ----------
    content : the app as it came
    trusted : the checksum that it must have
    apps : where apps go; a folder there is used again only if every file in it is right
    """
    files = unpack(content)
    checksum = checksum_of(files)
    if checksum != trusted:
        raise UntrustedAppError(f"this site does not run the app with the checksum {checksum}")
    folder = apps / checksum
    if folder.is_dir() and _read(folder) == files:
        return folder
    building = apps / f".{checksum[:16]}.{secrets.token_hex(8)}"
    try:
        for name, text in files.items():
            file = building / name
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file.write_bytes(text)
        shutil.rmtree(folder, ignore_errors=True)
        building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return folder


def _read(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if not path.is_dir()
    }


def main() -> None:
    """Run ``flwr-clientapp``; first come the study, its checksum and the folder for apps."""
    study, pinned, apps = sys.argv[1:4]
    del sys.argv[1:4]
    known = read_study({"study": study, "study-sha256": pinned})
    check_versions(known)
    if CHECK in sys.argv:
        sys.stdout.write(PASSED)
        return
    sys.dont_write_bytecode = True
    from flwr.clientapp.client_app import ClientApp, LoadClientAppError
    from flwr.supercore.object_ref import load_app
    from flwr.supernode.cli.flwr_clientapp import flwr_clientapp

    from fairfate.flower.messages import within

    # The ways by which code and messages come in; if one of them is renamed, nothing runs.
    runtime: Any = importlib.import_module("flwr.supernode.runtime.run_clientapp")
    for name in ("install_from_fab", "get_project_dir", "get_load_client_app_fn", "install_app_dependencies"):
        getattr(runtime, name)
    installed: list[Path] = []

    def install_if_trusted(content: Any, *args: Any, **options: Any) -> Path:
        try:
            installed.append(install(content, known.app, Path(apps)))
        except UntrustedAppError as error:
            with suppress(InputError, OSError):
                SiteFolder(Path(apps).parent).refuse(known.checksum, kind="app", reason=str(error))
            raise
        return installed[0]

    def load(*args: Any, **options: Any) -> Any:
        (folder,) = installed
        config = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))
        reference = config["tool"]["flwr"]["app"]["components"]["clientapp"]
        app = load_app(reference, LoadClientAppError, folder)
        if not isinstance(app, ClientApp):
            raise LoadClientAppError(f"'{reference}' is not a ClientApp")
        return app

    def install_nothing(*args: Any, **options: Any) -> Any:
        raise UntrustedAppError("this site installs no packages for an app")

    runtime.install_from_fab = install_if_trusted
    runtime.get_project_dir = lambda *args: installed[0]
    runtime.get_load_client_app_fn = lambda *args, **options: load
    runtime.install_app_dependencies = install_nothing
    with within(_MESSAGE, "flwr.supercore.inflatable.inflatable_utils"):
        flwr_clientapp()


if __name__ == "__main__":
    main()

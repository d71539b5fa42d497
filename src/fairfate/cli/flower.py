"""``fairfate flower``: write an app and its study, make keys, check a site's file, start it, read its log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fairfate.cli.parameters import Command, Force, flag, option
from fairfate.cli.screen import console
from fairfate.errors import InputError

app = typer.Typer(help="Federations on Flower.", no_args_is_help=True)


@app.command(cls=Command)
def init(
    folder: Annotated[Path, typer.Argument(help="new folder; its name becomes the app's")],
    secure_sums: Annotated[
        bool, flag("--secure-sums", "the server sees sums over sites only; five sites in place of three")
    ] = False,
) -> None:
    """Write a small Flower app that trains the built-in model, with invented data to try it on."""
    _need_flower()
    from fairfate.flower.app.init import init as write

    written = write(folder, secure_sums=secure_sums)
    screen = console(soft_wrap=True)
    screen.print(f"Wrote {written}. Its README.md says what each file is; next:")
    screen.print(f"    python {folder}/deploy_here.py")


@app.command(cls=Command)
def checksum(
    app: Annotated[Path, typer.Argument(help="folder of a Flower app that you have looked through")],
) -> None:
    """Print the checksum of an app's files as Flower sends them, to compare with that of the study."""
    _need_flower()
    from fairfate.flower.app.guard import app_checksum

    console(soft_wrap=True).print(f"{app_checksum(app)}  # {app.resolve().name}")


@app.command(cls=Command)
def key(
    name: Annotated[str | None, typer.Argument(help="server, where no --node is given")] = None,
    node: Annotated[Path | None, option("a site's node-config: its name, and roughly its rows")] = None,
    out: Annotated[Path, option("folder for the two files")] = Path(),
    rotate: Annotated[bool, flag("--rotate", "make a new key beside the one that is in use")] = False,
) -> None:
    """Make the keys of the server or a site: NAME-study.key stays there, NAME-study.pub goes around."""
    _need_flower()
    from fairfate.flower.app.make_study import make_key, site_name

    if name is None and node is None:
        raise InputError("name must be given, or --node")
    party = site_name(node) if name is None and node is not None else str(name)
    private, public = make_key(party, out, node, rotate=rotate)
    screen = console(soft_wrap=True)
    screen.print(f"Wrote {private}, which must stay here, and {public}, which goes into the study.")


@app.command(cls=Command)
def study(
    app: Annotated[Path, typer.Argument(help="folder of an app that fairfate flower init has written")],
    party: Annotated[list[Path], option("a .pub file: the server's and every site's")] = [],  # noqa: B006
    out: Annotated[Path, option("file to write (default: study.toml)")] = Path("study.toml"),
    run_config: Annotated[
        str, typer.Option("--run-config", "-c", help="changes to the run config, as for a run")
    ] = "",
    strategy: Annotated[list[str], option("one more strategy that may be run")] = [],  # noqa: B006
    seed: Annotated[list[int], option("one more seed that may be run")] = [],  # noqa: B006
    runs: Annotated[int | None, option("how many runs the questions suffice for (default: 5)")] = None,
    min_cell: Annotated[int | None, option("no count of fewer people leaves a site (default: 10)")] = None,
    min_rows: Annotated[int | None, option("a site with fewer rows does not train (default: 50)")] = None,
    max_weight: Annotated[
        float | None, option("largest weight of a model that is sent to a site (default: 10)")
    ] = None,
    amend: Annotated[
        Path | None, option("the study that this one amends; what is not given anew is as there")
    ] = None,
    without: Annotated[list[str], option("a site of that study which takes part no longer")] = [],  # noqa: B006
    force: Force = False,
) -> None:
    """Write the study file that every site reads, signs off and pins; it answers nothing else."""
    _need_flower()
    from fairfate.flower.app.make_study import (
        changes_from,
        list_parties,
        make_study,
        parse_changes,
        read_party,
    )
    from fairfate.flower.study import Study
    from fairfate.storage import check_output, write_bytes

    if amend is None or out.resolve() != amend.resolve():  # a study may take the place of the one it amends
        check_output(out, app / "pyproject.toml", *party, force=force)
    before = None if amend is None else Study.read(amend)
    made = make_study(
        app,
        [read_party(file) for file in party],
        changes=parse_changes(run_config),
        strategies=strategy,
        seeds=seed,
        runs=runs,
        min_cell=min_cell,
        min_rows=min_rows,
        max_weight=max_weight,
        amends=before,
        without=without,
    )
    write_bytes(out, made.text().encode())
    screen = console(soft_wrap=True)
    changes = [] if before is None else changes_from(before, made)
    for line in [*changes, *list_parties(made)]:
        screen.print(line, markup=False, highlight=False)
    screen.print(f"Saved {out}, version {made.version} of the study. Each site reads it, and pins it:")
    screen.print(f'    study-sha256 = "{made.checksum}"', markup=False, highlight=False)


@app.command(cls=Command)
def pin(
    study: Annotated[Path, typer.Argument(help="the study file, which somebody here has read through")],
    node: Annotated[Path, option("the site's node-config, a .toml file")],
    key: Annotated[Path | None, option("the site's private key (default: the one it has)")] = None,
    app: Annotated[Path | None, option("an app that you have looked through; it must be the study's")] = None,
    sign_off: Annotated[
        bool, flag("--sign-off", "write study, study-sha256 and key into the node-config")
    ] = False,
) -> None:
    """Show what a study changes at a site and, with --sign-off, have the site answer its questions."""
    _need_flower()
    from fairfate.flower.app.join import pin as write
    from fairfate.flower.app.join import read_changes
    from fairfate.flower.study import Study

    content = Study.read(study)
    changes = read_changes(node, content)
    lines = content.text().splitlines() if changes is None else changes
    screen = console(soft_wrap=True)
    for line in lines:
        screen.print(line, markup=False, highlight=False)
    if not sign_off:
        screen.print(
            f"\nVersion {content.version} of {content.name}; nothing was changed: --sign-off pins it."
        )
        return
    name = write(node, study, content, key, app)
    screen.print(f"\nPinned version {content.version} of {content.name} in {node}, as site {name}:")
    screen.print(f"    {content.checksum}", markup=False, highlight=False)


@app.command(cls=Command, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def site(
    context: typer.Context,
    node: Annotated[Path, typer.Argument(help="the site's node-config, a .toml file")],
) -> None:
    """Start a site: flower-supernode with the arguments that follow, running the study's app and no other."""
    _need_flower()
    from fairfate.flower.app.join import launch

    raise typer.Exit(launch(node, list(context.args)))


@app.command(cls=Command)
def log(
    node: Annotated[Path, typer.Argument(help="the site's node-config, a .toml file")],
    refused: Annotated[bool, flag("--refused", "only what was refused")] = False,
    json_lines: Annotated[bool, typer.Option("--json", help="the lines as they are kept")] = False,
) -> None:
    """Print what a site was asked, by whom, and what left it."""
    _need_flower()
    import json

    from fairfate.flower.app.gate import state_folder
    from fairfate.flower.app.node import read_node
    from fairfate.flower.app.site_state import REFUSED, SiteFolder

    folder = SiteFolder(state_folder(read_node(node)))
    lines, unlisted = folder.read_log(), folder.count_unlisted()
    lines = [line for line in lines if line.get("verdict") == REFUSED or not refused]
    screen = console(soft_wrap=True)
    for line in lines:
        shown = json.dumps(line) if json_lines else " ".join(_log_line(line).split())
        screen.print(shown, markup=False, highlight=False)
    if not json_lines:
        screen.print(f"{len(lines)} messages.")
    if unlisted and not json_lines:
        screen.print(f"{unlisted} more were refused and only counted.")


def _log_line(line: dict[str, Any]) -> str:
    """A line of a site's log, for a person."""
    time = f"{str(line.get('time', ''))[:19].replace('T', ' ')} UTC"
    signed = f"signed {line['signed']}" if line.get("signed") else "not signed"
    question = f"{line.get('kind') or line.get('type') or ''} {line.get('server-round', '')}".strip()
    sent = "; ".join(
        f"{name}: {what if isinstance(what, str) else ', '.join(what)}"
        for name, what in dict(line.get("sent", {})).items()
    )
    return (
        f"{time} {line.get('verdict')} {question} from {line.get('claims')} ({signed}),"
        f" run {line.get('run')}, {line.get('bytes', 0)} bytes: {line.get('reason') or sent}"
    )


@app.command(cls=Command)
def schema(
    app: Annotated[Path, typer.Argument(help="folder of an app that fairfate flower init has written")],
    out: Annotated[Path, option("file to write (default: schema.json)")] = Path("schema.json"),
    force: Force = False,
) -> None:
    """Write the schema that the server will send, for sites to check their files against."""
    from fairfate.flower.app.settings import schema_of, settings_of
    from fairfate.storage import check_output

    settings = settings_of(app)
    read = (settings.config.schema, settings.config.validation, settings.config.test)
    check_output(out, app / "pyproject.toml", *filter(None, read), force=force)
    columns, complete = schema_of(settings)
    columns.write(out)
    screen = console(soft_wrap=True)
    screen.print(f"Saved {out}. It has names and ranges of columns, and no rows; a site can use it:")
    screen.print(f"    fairfate flower check --schema {out.name} --node site.toml")
    if not complete:
        screen.print(
            'With schema = "sites", a simulation adds what the sites tell; a study needs a fixed one.'
        )


@app.command(cls=Command)
def check(
    schema: Annotated[Path, option("schema.json of the server's")],
    node: Annotated[Path | None, option("the site's node-config, a .toml file")] = None,
    data: Annotated[Path | None, option("the site's table, where there is no node-config")] = None,
) -> None:
    """Check a site's file, on its own machine, as the site's app will read it; says all that does not fit."""
    from fairfate.flower.app.node import check_site

    checked = check_site(schema, node, data)
    screen = console(soft_wrap=True)
    for line in checked.problems or checked.summary:
        screen.print(line)
    if checked.problems:
        count = len(checked.problems)
        raise InputError(
            f"data must fit the schema, got {count} problem{'s' * (count > 1)} in '{checked.file}'"
        )


def _need_flower() -> None:
    from fairfate.flower import need_flower

    try:
        need_flower()
    except ImportError as error:
        raise InputError(str(error)) from None

"""``fairfate predict``, ``evaluate`` and ``export``: a run's models on new rows, and for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fairfate.cli.parameters import Decimal, Encoding, Force, Sep, Whole, Word, complete, flag, option, whole
from fairfate.cli.screen import console, say

RunOrModel = Annotated[Path, typer.Argument(help="folder of a run, or a model's file")]
Which = Annotated[Word, option("whose model (default: the recommended one, models/best.safetensors)")]
Own = Annotated[Word, option("your own network, FILE.py:FUNCTION, as for the run")]
Seed = Annotated[Whole, option("of which seed (default: the first, with --strategy)", whole)]


def predict(
    run: RunOrModel,
    data: Annotated[Path, option("file with new rows; the label is not needed")],
    out: Annotated[Path, option("CSV or Parquet file for the rows with a probability and a prediction")],
    strategy: Which = None,
    seed: Seed = None,
    model: Own = None,
    strict: Annotated[
        bool, flag("--strict", "refuse unknown texts, and numbers far from the mean or outside the range")
    ] = False,
    force: Force = False,
    sep: Sep = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
) -> None:
    """Let a run's model decide on the rows of a file."""
    from fairfate.data import Reading
    from fairfate.experiments.predict import find_model, predict_file

    fitted, file = find_model(run, strategy, seed, model)
    reading = Reading(sep, decimal, encoding)
    scored, notes = predict_file(fitted, data, out, strict=strict, reading=reading, force=force)
    for note in notes:
        say(f"Note: {note}")
    selected = int(scored.decision.sum())
    rows = len(scored.decision)
    screen = console(soft_wrap=True)
    screen.print(f"{fitted.about.get('strategy', '')} ({file})", highlight=False)
    share = f"{selected / rows:.1%}" if rows else "none"
    screen.print(f"{rows:,} rows, '{fitted.labels[1]}' for {selected:,} of them ({share}). Saved {out}")


def evaluate(
    run: RunOrModel,
    data: Annotated[Path, option("file with labelled rows that the run has never seen")],
    strategy: Which = None,
    seed: Seed = None,
    model: Own = None,
    sep: Sep = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
) -> None:
    """Measure a run's model on labelled rows, with 95 % intervals."""
    from fairfate.data import Reading
    from fairfate.experiments.predict import evaluate_file, find_model
    from fairfate.report.terminal import show_evaluation

    fitted, file = find_model(run, strategy, seed, model)
    measured = evaluate_file(fitted, data, Reading(sep, decimal, encoding))
    for note in measured.notes:
        say(f"Note: {note}")
    title = f"{fitted.about.get('strategy', '')} ({file})"
    show_evaluation(console(), title, fitted.schema.grouping, measured)


def export(
    run: RunOrModel,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            help="onnx|skops|json",
            show_default=False,
            autocompletion=complete("onnx", "skops", "json"),
        ),
    ],
    strategy: Which = None,
    seed: Seed = None,
    out: Annotated[Path | None, option("file (default: model.onnx etc. in the run's folder)")] = None,
    force: Force = False,
) -> None:
    """Write a run's model for other programs: ONNX, a scikit-learn classifier for skops, or JSON."""
    from fairfate.experiments.predict import find_model
    from fairfate.export import export as write
    from fairfate.export.write import check_form
    from fairfate.storage import check_output

    check_form(form)  # it becomes a part of a file's name
    model, file = find_model(run, strategy, seed)
    usual = run / f"model.{form}" if run.is_dir() else file.with_suffix(f".{form}")
    path = usual if out is None else out
    check_output(path, file, force=force)
    written = write(model, path, form, force=force)
    screen = console(soft_wrap=True)
    screen.print(f"{model.about.get('strategy', '')} ({file})", highlight=False)
    for note in written.notes:
        screen.print(note)
    screen.print(f"Saved {written.path} ({written.bytes:,} bytes)")

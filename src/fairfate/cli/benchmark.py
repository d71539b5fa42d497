"""``benchmark``: every method under the same rules."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fairfate.cli.completion import STRATEGIES
from fairfate.cli.options import DataDir, Plugin, Whole, Word, Words, app, option, whole
from fairfate.cli.screen import console, watching
from fairfate.errors import listing


@app.command()
def benchmark(
    methods: Annotated[
        Words,
        option(
            "NAME or NAME:key=a|b+STEP to run against the kept results (repeatable; default: run all)",
            words=STRATEGIES,
        ),
    ] = None,
    plugin: Plugin = None,
    data: Annotated[Word, option("comma-separated (default: compas,adult,law,dutch)")] = None,
    partition: Annotated[Word, option("comma-separated (default: dirichlet:0.5,dirichlet:1,random)")] = None,
    encode: Annotated[Word, option("comma-separated, of ordinal,onehot (default: ordinal)")] = None,
    seeds: Annotated[str, option("N for the seeds 1..N, or a list (default: 10)")] = "10",
    rounds: Annotated[Whole, option("other than usual, to try something out", whole)] = None,
    jobs: Annotated[
        Whole, option("processes (default: all cores); results do not depend on it", whole)
    ] = None,
    data_dir: DataDir = None,
    out: Annotated[Path, option("folder (default: runs/benchmark); goes on where it was")] = Path(
        "runs/benchmark"
    ),
) -> None:
    """Tune and compare all methods of the field by one rule, or one of your own with them."""
    from fairfate.studies.benchmark.findings import DATASETS, PARTITIONS, duration
    from fairfate.studies.benchmark.run import benchmark
    from fairfate.studies.benchmark.terminal import show
    from fairfate.studies.benchmark.write import write_all

    def listed(text: str | None, default: tuple[str, ...]) -> tuple[str, ...]:
        return default if text is None else tuple(part.strip() for part in text.split(","))

    with watching(out) as (progress, on_plan):
        done = benchmark(
            out,
            methods=methods or (),
            plugins=plugin or (),
            data=listed(data, DATASETS),
            partitions=listed(partition, PARTITIONS),
            encode=listed(encode, ("ordinal",)),
            seeds=seeds,
            rounds=rounds,
            data_dir=data_dir,
            jobs=jobs,
            progress=progress,
            on_plan=on_plan,
        )
    found = done.findings
    show(console(), found)
    opened = write_all(out, found)
    screen = console(soft_wrap=True)
    if done.new:
        number = f"{len(done.new)} method{'s' if len(done.new) > 1 else ''}"
        screen.print(f"Run now: {number} ({listing(map(found.label, done.new))}), {done.jobs} jobs.")
    own = len(found.rows) - done.kept
    shares = f"{own:,} results in {duration(done.minutes)}"
    screen.print(f"{shares}, {done.kept:,} come with the package. Open {opened}")

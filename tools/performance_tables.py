"""The tables of docs/performance.md, from what the scripts in benchmarks/ have measured and kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

KEPT = Path(__file__).parent.parent / "docs" / "measurements" / "performance"
STACKS = (1, 16, 122)
TORCH = 4
"""How many times as fast as a PyTorch loop wide models should be."""


def kept(name: str) -> Any:
    """What a benchmark has kept."""
    return json.loads((KEPT / f"{name}.json").read_text())


def table(header: str, rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown; all columns but the first are numbers."""
    names = [name.strip() for name in header.split("|")]
    lines = [names, ["---", *["---:"] * (len(names) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def limit() -> str:
    """The engine against the machine's limit."""
    rows = []
    for name, value in kept("engine")["kernels"].items():
        for shape, steps in value["steps"].items():
            shares = [
                f"{steps[f'ns_{n}']:.0f} ns, {steps['limit_ns'] / steps[f'ns_{n}']:.0%}" for n in STACKS
            ]
            rows.append([f"{name}: a client-step, {shape}", f"{steps['limit_ns']:.0f} ns", *shares])
        score = f"{value['score_ns']:.1f} ns, {value['score_limit_ns'] / value['score_ns']:.0%}"
        rows.append([f"{name}: a row scored", f"{value['score_limit_ns']:.1f} ns", score, "", ""])
    return table("what | limit | one model | 16 stacked | 122 stacked", rows)


def sweep() -> str:
    """The paper's grid."""
    kept_models = kept("sweep")
    rows = [
        [f"{name}, 120 runs of 100 rounds", f"{cell['seconds']:.1f} CPU s"]
        for name, cell in kept_models["cells"].items()
    ]
    rows.append(
        [f"{kept_models['runs']} runs by two processes, all included", f"{kept_models['cpu']:.1f} CPU s"]
    )
    rows.append(
        ["14,400 runs, one protocol of the paper, on two free cores", f"{kept_models['minutes']:.1f} minutes"]
    )
    rows.append(["memory of a process", f"{kept_models['peak']:.2f} GiB"])
    return table("what | measured", rows)


def peers() -> str:
    """Other libraries at the same job."""
    package = {"fairfate-16": "fairfate", "flower": "flwr", "flower-idle": "flwr", "fluke": "fluke-fl"}
    package["declearn-fairfed"] = "declearn"
    rows = []
    for name, value in kept("peers")["peers"].items():
        version = value["versions"].get(package.get(name, name), "")
        accuracy = "" if value.get("accuracy") is None else f"{value['accuracy']:.3f}"
        rows.append(
            [
                value["label"],
                version,
                f"{value['cpu_ms']:,.1f} ms",
                f"{value['times_fairfate']:,.1f} x",
                accuracy,
            ]
        )
    return table("who | version | CPU a round | of ours | accuracy", rows)


def wide() -> str:
    """Wide and deep models against PyTorch, and what the machine's limit would allow where that is near."""
    batches = (32, 64, 128, 256)
    results = {(_shape(of), of["batch"]): of for of in kept("wide")["against_torch"]}
    shapes = dict.fromkeys(shape for shape, _ in results)

    def shown(of: dict[str, Any]) -> str:
        text = f"{of['ratio']:.1f} x"
        return text if of["ratio"] >= TORCH else f"{text} (limit {_most(of):.1f} x)"

    rows = [[shape, *(shown(results[shape, batch]) for batch in batches)] for shape in shapes]
    return table("network | batch 32 | 64 | 128 | 256", rows)


def _most(values: dict[str, Any]) -> float:
    """How many times as fast as PyTorch the machine's limit is."""
    return float(values["ratio"] * values["microseconds"] / values["limit_microseconds"])


SHOWN = (
    "14-10-1",
    "14-32-1",
    "200-10-1",
    "200-32-1",
    "14-64-1",
    "14-512-1",
    "200-512-1",
    "14-64-32-1",
    "14-1",
    "200-1",
)
"""Of the networks in the table of stacked settings; the kept file has all."""


def stacked() -> str:
    """Sixteen settings at once against one after another."""
    batches = (10, 32, 256)
    results = {(_shape(value), value["batch"]): value["ratio"] for value in kept("wide")["stacked"]}
    shapes = dict.fromkeys(shape for shape, _ in results)
    rows = [
        [shape, *(f"{results[shape, batch]:.2f} x" for batch in batches)]
        for shape in shapes
        if shape in SHOWN
    ]
    return table("network | batch 10 | 32 | 256", rows)


def _shape(values: dict[str, Any]) -> str:
    return "-".join(map(str, [values["inputs"], *values["hidden"], 1]))


def growth() -> str:
    """How cost grows."""
    rows = []
    for name, value in kept("scale")["growth"].items():
        seconds = [f"{case['rounds']:.2f}" for case in value["cases"]]
        sizes = ", ".join(f"{size:,}" for size in value["sizes"])
        rows.append([name, sizes, ", ".join(seconds), f"{value['slope']:.2f}", f"{value['build_slope']:.2f}"])
    return table("what grows | sizes | CPU s | power | power of building", rows)


def flower() -> str:
    """Our strategies in Flower against Flower's own."""
    kept_models = kept("flower")
    names = [key.removesuffix("_round_ms") for key in kept_models if key.endswith("_round_ms")]
    rows = [
        [
            f"`{name}`",
            f"{kept_models[f'{name}_round_ms']:.0f} ms",
            f"{kept_models[f'{name}_ratio']:.2f} x",
            f"{kept_models[f'{name}_predictions_ms']:.0f} ms",
            f"{kept_models[f'{name}_models_a_client']:.2f}",
            f"{kept_models[f'{name}_beside_mb']:.0f} MB",
        ]
        for name in names
    ]
    return table(
        "strategy | CPU a round | of Flower's FedAvg | predictions beside it | models of memory a client"
        " | memory beside them",
        rows,
    )


def targets() -> str:
    """What was aimed at, and what was not reached."""
    engine, scale, seconds = kept("engine"), kept("scale"), kept("commands")
    shares = [
        steps["limit_ns"] / steps[f"ns_{n}"]
        for value in engine["kernels"].values()
        for steps in value["steps"].values()
        for n in STACKS[1:]
    ]
    against_torch = kept("wide")["against_torch"]
    slow = [value for value in against_torch if value["ratio"] < TORCH]
    beyond = sum(_most(value) < TORCH for value in slow)
    stacks = [value["ratio"] for value in kept("wide")["stacked"] if max(value["hidden"], default=0) >= 64]
    flwr = kept("flower")
    fair = "fairfate"
    aims: list[tuple[str, str, bool]] = [
        (
            "960 runs of the paper's sweep in 75 CPU s",
            f"{kept('sweep')['cpu']:.1f}",
            kept("sweep")["cpu"] <= 75,
        ),
        (
            "one protocol of the paper in 10 minutes",
            f"{kept('sweep')['minutes']:.1f}",
            kept("sweep")["minutes"] <= 10,
        ),
        (
            "stacked training at 80 % of the limit",
            f"{min(shares):.0%} to {max(shares):.0%}",
            min(shares) >= 0.8,
        ),
        (
            f"batches of 32 to 256 at {TORCH} x PyTorch",
            f"in {len(against_torch) - len(slow)} of {len(against_torch)} cases; in {beyond} of the others"
            " beyond the machine's limit",
            not slow,
        ),
        ("16 wide models no slower than one by one", f"{min(stacks):.2f} at least", min(stacks) >= 0.97),
        (
            "3,000 clients at 3 x their training",
            f"{scale['many_clients']['ratio']:.2f}",
            scale["many_clients"]["ratio"] <= 3,
        ),
        (
            "a client of a million rows at 1.5 x a small one",
            f"{scale['large_client']['ratio_1']:.2f}",
            scale["large_client"]["ratio_1"] <= 1.5,
        ),
        (
            "ten million rows in 2.5 GB",
            f"{scale['ten_million']['gigabytes']:.2f}",
            scale["ten_million"]["gigabytes"] < 2.5,
        ),
        ("a short run in 0.8 CPU s", f"{seconds['run']:.2f}", seconds["run"] <= 0.8),
        *(
            (f"`fairfate {name}` in 0.4 CPU s", f"{seconds[name]:.2f}", seconds[name] <= 0.4)
            for name in ("show", "strategies", "data list")
        ),
        (
            "on Flower, FAIR-FATE at 1.15 x FedAvg",
            f"{flwr[f'{fair}_ratio']:.2f}",
            flwr[f"{fair}_ratio"] <= 1.15,
        ),
        (
            "on Flower, two models of memory a client",
            f"{flwr[f'{fair}_models_a_client']:.2f}",
            flwr[f"{fair}_models_a_client"] <= 2.05,
        ),
    ]
    return table(
        "aim | measured | ", [[aim, result, "" if met else "**missed**"] for aim, result, met in aims]
    )


TABLES: dict[str, Callable[[], str]] = {
    name.__name__: name for name in (limit, sweep, peers, wide, stacked, growth, flower, targets)
}

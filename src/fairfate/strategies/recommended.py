"""The strategies that a run compares unless others are named: what the benchmark recommends to begin with."""

from __future__ import annotations

RECOMMENDED = (
    "fedavg",  # what everything else is compared with
    "fair_fate",  # the paper's method, guarded against collapsed models
    "fedavg_lr+average",  # reweighing: most of the gain, and no group is needed at decisions
    "fedavg+average+thresholds:from=clients",  # the largest gain, and the group is needed at every decision
)
"""docs/choosing.md and docs/benchmark.md have the measurements."""
PUBLISHED = ("fedavg", "fair_fate")
"""The same under the protocol of the published runs."""

"""Attacks on rows that succeed without differential privacy and fail with it, with the page's numbers."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def attacks() -> ModuleType:
    path = ROOT / "benchmarks" / "privacy_attacks.py"
    spec = importlib.util.spec_from_file_location("benchmarks_privacy_attacks", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kind", ["released model", "sum of updates", "single update"])
def test_members_are_known_without_noise_and_not_with_it(attacks: ModuleType, kind: str) -> None:
    name = f"membership: {kind}"
    kept = json.loads((ROOT / "docs" / "measurements" / "privacy-attacks.json").read_text())
    plain, private = (attacks.membership(epsilon, 4)[kind] for epsilon in (None, 1.0))
    assert plain > 0.65
    assert private < 0.55
    assert plain == pytest.approx(kept["none"][name], abs=0.06)
    assert private == pytest.approx(kept["epsilon=1"][name], abs=0.06)


def test_rows_are_read_from_an_update_without_noise_and_not_with_it(attacks: ModuleType) -> None:
    assert attacks.inversion(None, seeds=8) > 4  # of ten
    assert attacks.inversion(8.0, seeds=8) == 0
    assert attacks.inversion(1.0, seeds=8) == 0
    # Under secure sums of five clients' updates some of the rows are still read: masks are no noise
    assert 0.5 < attacks.inversion(None, 5, seeds=16) < 3


def test_counts_of_two_rounds_tell_a_label_without_noise_and_not_with_it(attacks: ModuleType) -> None:
    assert attacks.differencing(None, 500) == 1
    assert attacks.differencing(8.0, 1000) < 0.6  # half is chance
    assert attacks.differencing(1.0, 1000) < 0.56

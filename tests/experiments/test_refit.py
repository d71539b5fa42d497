"""A refit trains the recommended strategy on all rows and says that nothing tests it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fairfate
from fairfate import InputError
from fairfate.federation.partition import parse_partition
from fairfate.federation.seeds import Streams
from fairfate.federation.split import assign_all
from fairfate.report.data import ReportData
from fairfate.report.recommendation import recommend

SHORT = {"data": "synthetic:rows=400", "strategies": "fedavg", "rounds": 30, "seeds": 2, "jobs": 1}


def test_refit_is_the_recommended_model_and_is_called_untested(tmp_path: Path) -> None:
    plain = fairfate.run(**SHORT)
    finished = fairfate.run(**SHORT, out=tmp_path / "o", refit=True)
    assert finished.best == plain.best
    assert finished.rounds.equals(plain.rounds)
    again = fairfate.load_run(tmp_path / "o")
    saved = fairfate.FairModel.load(tmp_path / "o" / "models" / "best.safetensors")
    for model in (finished.model(), again.model(), saved):
        assert model.about["refit"]
        assert model.about["test"] is None
        assert any(
            not np.array_equal(model.arrays[name], plain.model().arrays[name]) for name in model.arrays
        )
    assert "refit" not in again.model("fedavg", seed=1).about
    answer = recommend(ReportData.from_runs([again]))
    assert "No rows are left to test it" in answer.caveats[0]
    assert "saved model (seed" not in answer.fairness


def test_refit_trains_on_every_row() -> None:
    table = fairfate.synthetic(rows=100)
    rows = assign_all(table, parse_partition("random"), 5, Streams(1), np.arange(10))
    assert sorted(rows.train) == list(range(100))
    assert len(rows.test) == 0
    assert len(rows.client) == 100


def test_refit_is_refused_where_it_would_break_a_promise() -> None:
    with pytest.raises(InputError, match="refit must be left out with validation-from clients"):
        fairfate.run(**SHORT, validation_from="clients", refit=True)
    with pytest.raises(InputError, match="refit must be left out with privacy"):
        fairfate.run(**SHORT, privacy="epsilon=3", refit=True)

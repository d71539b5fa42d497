"""A site's ledger: what it counts, at which delta, and what stops it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairfate.errors import InputError
from fairfate.privacy.ledger import Account, Entry, Posting, SpentError, spent

pytest.importorskip("dp_accounting")

RELEASE = Entry("north", 1000, "update", 0.1, 4.0, 100)


def account(folder: Path, most: float = 3.0, delta: float = 1e-5) -> Account:
    data = folder / "north.csv"
    if not data.exists():
        data.write_text("a\n1\n")
    return Account(folder / "north.csv.ledger", most, delta, data, folder / "marker.json")


def spend(ledger: Account, delta: float, times: int = 1000) -> int:
    """As often as it allows."""
    for number in range(times):
        try:
            ledger.spend([Posting(f"study {delta}", "fedavg", RELEASE)], delta)
        except SpentError:
            return number
    return times


def test_larger_delta_of_another_study_buys_nothing(tmp_path: Path) -> None:
    """The cap is an epsilon at one delta: at 0.4 a hundred times as much would have fitted."""
    ledger = account(tmp_path)
    assert spend(ledger, 1e-5) > 1
    assert spend(ledger, 0.4) == 0
    assert spent([line.entry for line in ledger.read().postings], 1e-5) <= 3
    assert ledger.read().delta == 1e-5


def test_smallest_delta_stays(tmp_path: Path) -> None:
    first = account(tmp_path)
    first.spend([Posting("study", "fedavg", RELEASE)], 1e-8)
    later = account(tmp_path, delta=1e-3)
    epsilon, delta = later.spent(later.read())
    assert delta == 1e-8
    assert epsilon == spent([RELEASE], 1e-8)


def test_site_counts_at_its_own_delta(tmp_path: Path) -> None:
    strict, usual = tmp_path / "strict", tmp_path / "usual"
    strict.mkdir()
    usual.mkdir()
    assert spend(account(strict, delta=1e-9), 1e-5) < spend(account(usual), 1e-5)


def test_what_the_rest_of_a_run_costs_must_be_left(tmp_path: Path) -> None:
    ledger, rest = account(tmp_path), [Posting("study", "fedavg", RELEASE._replace(times=5000))]
    with pytest.raises(SpentError, match="with the rest of the run"):
        ledger.spend([Posting("study", "fedavg", RELEASE)], 1e-5, rest)
    assert not ledger.file.exists()
    ledger.spend([Posting("study", "fedavg", RELEASE)], 1e-5)
    assert ledger.read().releases == RELEASE.times  # of which the rest is no part


def test_ledger_knows_its_file_and_how_much_is_in_it(tmp_path: Path) -> None:
    ledger = account(tmp_path)
    ledger.spend([Posting("study", "fedavg", RELEASE)], 1e-5)
    about = ledger.data.stat()
    assert json.loads(ledger.file.read_text())["rows"][:2] == [about.st_dev, about.st_ino]
    ledger.data.write_text("a\n2\n")  # rows are corrected: what was released stays
    assert ledger.read().releases == RELEASE.times
    text = ledger.file.read_text()
    ledger.file.unlink()
    with pytest.raises(InputError, match="must have the 100 releases that this site has made, got 0"):
        ledger.read()
    ledger.file.write_text(text)
    moved = Account(tmp_path / "new.ledger", 3.0, 1e-5, ledger.data, ledger.marker)
    with pytest.raises(InputError, match="must be the one that the same rows have"):
        moved.spend([Posting("study", "fedavg", RELEASE)], 1e-5)


@pytest.mark.parametrize("damage", ["", "[]", "7", '{"delta": 2.0, "rows": [1, 2, "a"], "releases": []}'])
def test_damaged_ledger_is_no_empty_one(tmp_path: Path, damage: str) -> None:
    ledger = account(tmp_path)
    ledger.file.write_text(damage)
    with pytest.raises(InputError, match="ledger must be one that a site has written"):
        ledger.read()

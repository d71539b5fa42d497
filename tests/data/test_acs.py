"""ACSIncome, on files of the census bureau's form that the tests make: no row is anybody's."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import requests

from fairfate.data import Columns, acs, datasets, fetch_dataset, load
from fairfate.data.acs import INPUTS, RACES, STATES, prepare_state, read_checksums
from fairfate.errors import InputError

KEPT = {"AGEP": 30, "PINCP": 60_000, "WKHP": 40, "PWGTP": 1}
DROPPED = ({"AGEP": 16}, {"PINCP": 100}, {"PINCP": None}, {"WKHP": 0}, {"WKHP": None}, {"PWGTP": 0})


def people(state: str, rows: int = 60, seed: int = 0) -> pd.DataFrame:
    """Made-up rows that the filter keeps, with some of the columns that are not needed."""
    rng = np.random.default_rng([seed, STATES[state]])
    return pd.DataFrame(
        {
            "RT": "P",
            "SERIALNO": [f"2018GQ{number:07}" for number in range(rows)],
            "ST": STATES[state],
            "PWGTP": rng.integers(1, 200, rows),
            "AGEP": rng.integers(17, 90, rows),
            "COW": rng.integers(1, 10, rows),
            "SCHL": rng.integers(1, 25, rows),
            "MAR": rng.integers(1, 6, rows),
            "OCCP": rng.choice([10, 20, 350, 4720, 9130], rows),
            "POBP": rng.choice([6, 36, 303], rows, p=[0.5, 0.4, 0.1]),
            "RELP": rng.integers(0, 18, rows),
            "WKHP": rng.integers(1, 99, rows),
            "SEX": rng.integers(1, 3, rows),
            "RAC1P": rng.choice([1, 2, 6, 9], rows),
            "PINCP": rng.choice([4_000, 50_000, 50_001, 120_000], rows),
            "NAICSP": "722Z",
        }
    )


def zipped(frame: pd.DataFrame, state: str, year: int = 2018, name: str | None = None) -> bytes:
    """As the bureau packs it: the CSV, and a PDF that says what it is."""
    own = f"psam_p{STATES[state]:02d}.csv" if year > 2016 else f"ss{year % 100}p{state.lower()}.csv"
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name or own, frame.to_csv(index=False))
        archive.writestr(f"ACS{year}_PUMS_README.pdf", b"%PDF-1.5")
    return content.getvalue()


@pytest.fixture
def census(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The bureau's site as a folder: what is put into it can be fetched."""
    site, asked = tmp_path / "site", []

    def get(address: str, **_):
        asked.append(address.removeprefix(acs.CENSUS))
        file = site / asked[-1].strip("/")
        response = requests.Response()
        response.status_code = 200 if file.is_file() else 404
        response.raw = io.BytesIO(file.read_bytes() if file.is_file() else b"")
        response.reason, response.url = "Not Found", address
        return response

    monkeypatch.setattr(requests, "get", get)
    monkeypatch.setattr(requests.Session, "get", lambda self, address, **_: get(address))
    monkeypatch.delenv("FAIRFATE_DATA", raising=False)
    monkeypatch.setattr(datasets, "cache_folder", lambda: tmp_path / "cache")

    def put(state: str, content: bytes, year: int = 2018) -> None:
        file = site / f"{year}/1-Year/csv_p{state.lower()}.zip"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)

    put.asked = asked
    return put


def test_rows_are_those_of_folktables(tmp_path: Path) -> None:
    frame = people("CA", 4 + len(DROPPED)).astype(object)
    frame.loc[:, list(KEPT)] = list(KEPT.values())
    for row, change in enumerate(DROPPED):
        frame.loc[row + 4, list(change)] = list(change.values())
    frame.loc[:3, "AGEP"] = [17, 30, 40, 94]
    frame.loc[:3, "PINCP"] = [101, 50_000, 50_001, 700_000]
    frame.loc[:3, "SEX"], frame.loc[:3, "RAC1P"] = [1, 2, 2, 1], [1, 2, 5, 9]
    frame.loc[0, "COW"] = None
    (tmp_path / "ca.zip").write_bytes(zipped(frame, "CA"))
    rows = prepare_state(tmp_path / "ca.zip", "CA", 2018)
    assert list(rows) == [*INPUTS, "state", "income"]
    assert rows["AGEP"].tolist() == [17, 30, 40, 94]
    assert rows["income"].tolist() == ["<=50K", "<=50K", ">50K", ">50K"]
    assert rows["SEX"].tolist() == ["male", "female", "female", "male"]
    assert rows["RAC1P"].tolist() == [RACES[1], RACES[2], RACES[5], RACES[9]]
    assert rows["COW"].isna().tolist() == [True, False, False, False]
    for column in ("SCHL", "MAR", "OCCP", "POBP", "RELP", "WKHP"):
        assert rows[column].tolist() == frame[column][:4].tolist()


def test_older_files_have_their_own_names_and_blanks(tmp_path: Path) -> None:
    frame = people("NY").astype(str).map(lambda text: f" {text}").rename(columns=lambda name: f" {name}")
    (tmp_path / "ny.zip").write_bytes(zipped(frame, "NY", 2014))
    assert len(prepare_state(tmp_path / "ny.zip", "NY", 2014)) == 60
    with pytest.raises(InputError, match=r"must contain psam_p36\.csv, got ss14pny\.csv, ACS2014"):
        prepare_state(tmp_path / "ny.zip", "NY", 2018)


def test_fetched_states_are_clients(census) -> None:
    for state in ("CA", "TX", "WY"):
        census(state, zipped(people(state), state))
    path = fetch_dataset("acs_income", states="tx,CA")
    assert census.asked == ["/2018/1-Year/csv_pca.zip", "/2018/1-Year/csv_ptx.zip"]
    table = load("acs_income", columns=Columns("", (), client="state"))
    assert table.client_names == ("CA", "TX")
    assert np.bincount(table.client).tolist() == [60, 60]
    assert table.feature_names == INPUTS  # neither the state nor the income in dollars
    assert table.group_names == ("female", "male")
    assert table.label_names == ("<=50K", ">50K")
    assert set(table.categories) == {"COW", "MAR", "OCCP", "POBP", "RELP", "RAC1P"}
    assert table.notes == ()
    incomes = pd.concat([people("CA"), people("TX")])["PINCP"]
    assert table.label.tolist() == (incomes > 50_000).astype(int).tolist()
    assert path.name == "acs_income.csv"
    by_race = load("acs_income", columns=Columns("", ("RAC1P",), categorical=("SCHL",)))
    assert by_race.client is None
    assert by_race.feature_names == INPUTS
    assert by_race.group_names == tuple(sorted(RACES[code] for code in (1, 2, 6, 9)))
    assert {"SCHL", "OCCP"} < set(by_race.categories)


def test_rare_codes_are_put_together_with_onehot(census) -> None:
    frame = people("CA", 600)
    frame.loc[:599, "OCCP"] = [10] * 300 + [4720] * 275 + list(range(9000, 9025))
    census("CA", zipped(frame, "CA"))
    fetch_dataset("acs_income", states="CA")
    assert load("acs_income", encode="onehot").categories["OCCP"] == ("10", "4720", "(others)")
    assert len(load("acs_income").categories["OCCP"]) == 27


def test_runs_take_states_as_clients(census, fairfate) -> None:
    for state in ("CA", "TX", "WY"):
        census(state, zipped(people(state), state))
    code, out, _ = fairfate("data", "fetch", "acs_income", "--states", "CA,TX,WY", "--year", "2018")
    assert code == 0
    digest = hashlib.sha256(zipped(people("WY"), "WY")).hexdigest()
    assert f"{digest}  raw/acs_income-2018-WY.zip" in out
    assert "No checksums of these files are published" in out
    own = ("acs_income", "--partition", "column:state")
    code, out, _ = fairfate("data", "describe", *own)
    assert code == 0
    assert [line.split()[0] for line in out.splitlines() if line[:2] in STATES] == ["CA", "TX", "WY"]
    short = ("--rounds", "1", "--seeds", "1", "--jobs", "1", "--no-baselines", "--out", "o")
    assert fairfate("run", "--data", *own, "--strategy", "fedavg", *short).code == 0


def test_a_later_download_that_differs_is_refused(census, tmp_path: Path) -> None:
    census("CA", zipped(people("CA"), "CA"))
    path = fetch_dataset("acs_income", states="CA")
    raw, kept = tmp_path / "cache/raw/acs_income-2018-CA.zip", read_checksums(path)
    assert kept == {
        name: hashlib.sha256((tmp_path / "cache" / name).read_bytes()).hexdigest()
        for name in ("acs_income.csv", "raw/acs_income-2018-CA.zip")
    }
    prepared = path.read_bytes()
    census("CA", zipped(people("CA", seed=1), "CA"))
    assert fetch_dataset("acs_income", states="CA").read_bytes() == prepared  # the file is here
    raw.unlink()
    with pytest.raises(InputError, match=r"csv_pca\.zip' must be downloadable, got 'SHA256 hash"):
        fetch_dataset("acs_income", states="CA")
    assert (path.read_bytes(), read_checksums(path)) == (prepared, kept)
    assert not raw.exists()


def test_a_prepared_file_is_compared_with_its_checksum(census) -> None:
    census("CA", zipped(people("CA"), "CA"))
    path = fetch_dataset("acs_income", states="CA")
    assert load("acs_income").notes == ()
    path.write_bytes(path.read_bytes().replace(b"female", b"male", 1))
    assert load("acs_income").notes == (f"{path} is not the fetched file (checksum)",)
    path.with_suffix(".sha256").unlink()
    assert "has no checksum beside it" in load("acs_income").notes[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<html>Service unavailable</html>", r"-CA\.zip' must be a zip file, got something else"),
        (zipped(people("CA"), "CA")[:900], r"-CA\.zip' must be a zip file, got something else"),
        (zipped(people("CA"), "CA", name="psam_h06.csv"), r"must contain psam_p06\.csv, got psam_h06\.csv"),
        (
            zipped(people("CA").rename(columns={"RELP": "RELSHIPP"}), "CA"),
            r"psam_p06\.csv in '.*-CA\.zip' must have the columns AGEP, .* ST, got no RELP",
        ),
        (zipped(people("CA").assign(ST=36), "CA"), r"must hold rows of CA \(ST 6\), got ST 36"),
        (zipped(people("CA").assign(SEX=3), "CA"), r"column SEX of '.*' must be from 1 to 2, got 3"),
        (
            zipped(people("CA").assign(RAC1P=None), "CA"),
            r"column RAC1P of '.*' must be from 1 to 9, got <NA>",
        ),
        (zipped(people("CA").assign(MAR="wed"), "CA"), "must be a CSV of numbers, got 'could not convert"),
        (zipped(people("CA").assign(MAR=1.5), "CA"), r"must hold whole numbers, got 1\.5"),
        (
            zipped(people("CA").assign(WKHP=0), "CA"),
            "must have a row of somebody who works and earns, got none",
        ),
        (zipped(people("CA")[:0], "CA"), "must have a row of somebody who works and earns, got none"),
        (zipped(pd.DataFrame(), "CA"), "must have the columns|must be a CSV of numbers"),
    ],
)
def test_a_file_of_another_form_is_refused_and_not_kept(census, tmp_path, content, message) -> None:
    census("CA", content)
    with pytest.raises(InputError, match=message):
        fetch_dataset("acs_income", states="CA")
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    census("CA", zipped(people("CA"), "CA"))
    assert fetch_dataset("acs_income", states="CA").is_file()


def test_a_file_that_was_there_before_is_not_removed(census, tmp_path: Path) -> None:
    file = tmp_path / "cache/raw/acs_income-2018-CA.zip"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"mine")
    with pytest.raises(InputError, match="must be a zip file"):
        fetch_dataset("acs_income", states="CA")
    assert file.read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("acs_income", {"states": "CA,XX"}, "unknown state 'XX'"),
        ("acs_income", {"states": "DC"}, "unknown state 'DC'"),
        ("acs_income", {"states": ""}, "unknown state ''"),
        ("acs_income", {"states": "CA,ca"}, "states must name each state once, got CA,ca"),
        ("acs_income", {"year": 2019}, "year must be from 2014 to 2018, got 2019"),
        ("acs_income", {"states": "CA"}, r"csv_pca\.zip' must be downloadable, got '404"),
        ("adult", {"states": "CA"}, "states must be left out for 'adult', which has none, got 'CA'"),
        ("law", {"year": 2018}, "year must be left out for 'law', which is of one year, got 2018"),
    ],
)
def test_states_and_years_that_are_not_there_are_named(census, tmp_path, name, given, message) -> None:
    with pytest.raises(InputError, match=message):
        fetch_dataset(name, **given)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]

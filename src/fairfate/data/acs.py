"""ACSIncome by state: the US census bureau's person files, filtered and labelled as folktables does.

Ding et al., Retiring Adult: New Datasets for Fair Machine Learning, NeurIPS 2021.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from fairfate.data.columns import Columns
from fairfate.errors import InputError, check, listing, unknown
from fairfate.storage import sha256_of, write_bytes

ACS_INCOME = "acs_income"
CENSUS = "https://www2.census.gov/programs-surveys/acs/data/pums"
YEAR, YEARS = 2018, range(2014, 2019)
"""From 2019 on, the files have RELSHIPP in place of RELP; before 2014, other occupations and schools."""
_POSTAL = """
AL AK AZ AR CA CO CT DE FL GA HI ID IL IN IA KS KY LA ME MD MA MI MN MS MO MT
NE NV NH NJ NM NY NC ND OH OK OR PA RI SC SD TN TX UT VT VA WA WV WI WY PR
"""
_NO_STATES = (3, 7, 11, 14, 43, 52)
STATES = dict(zip(_POSTAL.split(), [*(n for n in range(1, 57) if n not in _NO_STATES), 72], strict=True))
"""The census bureau's number of each state and of Puerto Rico; without the District, as in folktables."""
INPUTS = ("AGEP", "COW", "SCHL", "MAR", "OCCP", "POBP", "RELP", "WKHP", "SEX", "RAC1P")
_NEEDED = [*INPUTS, "PINCP", "PWGTP", "ST"]
STATE, INCOME = "state", "income"
ABOVE, BELOW = ">50K", "<=50K"
SEXES = {1: "male", 2: "female"}
RACES = {
    1: "White",
    2: "Black",
    3: "American Indian",
    4: "Alaska Native",
    5: "American Indian and Alaska Native",
    6: "Asian",
    7: "Pacific Islander",
    8: "another race",
    9: "two or more races",
}
COLUMNS = Columns(
    target=INCOME,
    favourable=ABOVE,
    sensitive=("SEX",),
    privileged=(("SEX", "male"),),
    drop=(STATE,),
    categorical=("COW", "MAR", "OCCP", "POBP", "RELP"),
)
"""Codes are categories, except those of schooling (SCHL), which are in order."""


def read_states(text: str | None) -> tuple[str, ...]:
    """States that a user typed; all if none.

    >>> read_states("tx,CA"), len(read_states(None))
    (('CA', 'TX'), 51)
    """
    if text is None:
        return tuple(STATES)
    named = [part.strip().upper() for part in text.split(",")]
    for name in named:
        if name not in STATES:
            raise unknown("state", name, STATES)
    check(len(set(named)) == len(named), "states must name each state once", text)
    return tuple(state for state in STATES if state in named)


def read_year(year: int | None) -> int:
    """The year of the survey; `YEAR` if none is given."""
    year = YEAR if year is None else year
    check(year in YEARS, f"year must be from {YEARS[0]} to {YEARS[-1]}", year)
    return year


def prepare_state(file: Path, state: str, year: int) -> pd.DataFrame:
    """The rows of one state's zip file: people above 16 who worked and had an income above $100."""
    raw = _read_zip(file, state, year)
    number = STATES[state]
    others = raw.loc[raw["ST"] != number, "ST"]
    check(len(others) == 0, f"'{file}' must hold rows of {state} (ST {number})", f"ST {others.max():g}")
    kept = raw[(raw["AGEP"] > 16) & (raw["PINCP"] > 100) & (raw["WKHP"] > 0) & (raw["PWGTP"] >= 1)]
    check(len(kept) > 0, f"'{file}' must have a row of somebody who works and earns", f"none of {len(raw)}")
    frame = kept[list(INPUTS)].astype("Int64")
    for column, names in {"SEX": SEXES, "RAC1P": RACES}.items():
        texts = frame[column].map(names)
        odd = frame.loc[texts.isna(), column]
        rule = f"column {column} of '{file}' must be from 1 to {len(names)}"
        check(len(odd) == 0, rule, str(odd.iloc[0]) if len(odd) else "")
        frame[column] = texts
    frame[STATE] = state
    frame[INCOME] = np.where(kept["PINCP"] > 50_000, ABOVE, BELOW)
    return frame


def _read_zip(file: Path, state: str, year: int) -> pd.DataFrame:
    """The columns that are needed, as numbers."""
    own = f"psam_p{STATES[state]:02d}.csv" if year >= 2017 else f"ss{year % 100}p{state.lower()}.csv"
    try:
        with zipfile.ZipFile(file) as archive:
            if own not in archive.namelist():
                raise InputError(
                    f"'{file}' must contain {own}, got {listing(archive.namelist()) or 'nothing'}"
                )
            content = archive.read(own)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise InputError(
            f"'{file}' must be a zip file, got something else or a damaged one ({error})"
        ) from None
    try:
        header = pd.read_csv(io.BytesIO(content), nrows=0, skipinitialspace=True).columns
        missing = [column for column in _NEEDED if column not in header]
        rule = f"{own} in '{file}' must have the columns {listing(_NEEDED, len(_NEEDED))}"
        check(not missing, rule, f"no {listing(missing)}")
        rows = pd.read_csv(io.BytesIO(content), usecols=_NEEDED, dtype=np.float64, skipinitialspace=True)
    except InputError:
        raise
    except ValueError as error:  # as all of pandas' are
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"{own} in '{file}' must be a CSV of numbers, got '{reason}'") from None
    values = rows.to_numpy()
    broken = values[~np.isnan(values) & ~(np.isfinite(values) & (np.trunc(values) == values))]
    check(len(broken) == 0, f"{own} in '{file}' must hold whole numbers", f"{broken[:1].sum():g}")
    return rows


# -- Checksums of what was fetched -------------------------------------------------------------------------


def checksum_file(prepared: Path) -> Path:
    """Where the checksums of a prepared file and of its raw files are, in the form of ``sha256sum``."""
    return prepared.with_suffix(".sha256")


def read_checksums(prepared: Path) -> dict[str, str]:
    """SHA-256 by path, relative to the prepared file's folder; empty where none were kept."""
    file = checksum_file(prepared)
    lines = file.read_text("utf-8").splitlines() if file.is_file() else []
    pairs = [line.split("  ", 1) for line in lines if "  " in line]
    return {name: digest for digest, name in pairs}


def keep_checksum(prepared: Path, file: Path) -> None:
    """Add a file's checksum to those kept beside the prepared file."""
    name = file.relative_to(prepared.parent).as_posix()
    kept = read_checksums(prepared) | {name: sha256_of(file)}
    text = "".join(f"{digest}  {name}\n" for name, digest in sorted(kept.items(), key=lambda pair: pair[0]))
    write_bytes(checksum_file(prepared), text.encode())


def fetch_acs_income(folder: Path, states: Sequence[str], year: int, *, progress: bool = False) -> Path:
    """Download some states' files and write the prepared file.

    The bureau publishes no checksums, so a file's first download is trusted as it comes. Its SHA-256 is kept
    beside the data, and a later download that differs is refused.
    """
    prepared = folder / f"{ACS_INCOME}.csv"
    rows = pd.concat([_fetch_state(prepared, state, year, progress) for state in states])
    write_bytes(prepared, rows.to_csv(index=False, lineterminator="\n").encode())
    keep_checksum(prepared, prepared)
    return prepared


def _fetch_state(prepared: Path, state: str, year: int, progress: bool) -> pd.DataFrame:
    """The rows of a state, whose file is kept; a new file that is not what it should be is removed."""
    import pooch

    file = prepared.parent / "raw" / f"{ACS_INCOME}-{year}-{state}.zip"
    digest = read_checksums(prepared).get(f"raw/{file.name}")
    known = None if digest is None else f"sha256:{digest}"
    address = f"{CENSUS}/{year}/1-Year/csv_p{state.lower()}.zip"
    is_new = not file.exists()
    try:
        pooch.retrieve(address, known, fname=file.name, path=file.parent, progressbar=progress)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"'{address}' must be downloadable, got '{reason}'") from None
    try:
        rows = prepare_state(file, state, year)
    except InputError:
        if is_new:
            file.unlink()
        raise
    keep_checksum(prepared, file)
    return rows

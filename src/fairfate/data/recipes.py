"""From the raw public files to the form that this project (and the paper) uses, byte for byte."""

from __future__ import annotations

import io

import pandas as pd

ADULT_COLUMNS = (
    "age,workclass,fnlwgt,education,educational-num,marital-status,occupation,relationship,race,"
    "gender,capital-gain,capital-loss,hours-per-week,native-country,income"
)
COMPAS_COLUMNS = [
    "sex",
    "age",
    "age_cat",
    "race",
    "juv_fel_count",
    "juv_misd_count",
    "juv_other_count",
    "priors_count",
    "c_charge_degree",
    "c_charge_desc",
    "decile_score",
    "score_text",
    "two_year_recid",
]


def adult(test: bytes, train: bytes) -> bytes:
    """UCI's two files: the test rows first, without spaces after commas and dots after labels."""
    rows = [
        line.replace(", ", ",").rstrip(".")
        for raw in (test, train)
        for line in raw.decode().splitlines()
        if line and not line.startswith("|")
    ]
    return "\r\n".join([ADULT_COLUMNS, *rows]).encode()


def compas(raw: bytes) -> bytes:
    """ProPublica's two-year file: its own filter, thirteen columns, complete rows, and sex-race."""
    frame = pd.read_csv(io.BytesIO(raw))
    kept = frame[
        frame["days_b_screening_arrest"].between(-30, 30)
        & (frame["is_recid"] != -1)
        & (frame["c_charge_degree"] != "O")
        & frame["score_text"].notna()
    ]
    kept = kept[COMPAS_COLUMNS].dropna()
    kept = kept.assign(**{"sex-race": kept["sex"] + "-" + kept["race"]})
    return kept.to_csv(index=False, lineterminator="\n").rstrip("\n").encode()


def law(raw: bytes) -> bytes:
    """Le Quy et al.'s cleaned file, as it is, without its final newline."""
    return raw.rstrip(b"\n")


def dutch(raw: bytes) -> bytes:
    """The census extract in ARFF: names for sex, 1 for the high-level occupations."""
    lines = raw.decode().splitlines()
    names = [line.split()[1] for line in lines if line.startswith("@attribute")]
    start = lines.index("@data") + 1
    sexes, levels = {"1": "male", "2": "female"}, {"2_1": "1", "5_4_9": "0"}
    rows = [line.split(",") for line in lines[start:] if line]
    body = [",".join([sexes[row[0]], *row[1:-1], levels[row[-1]]]) for row in rows]
    return "\n".join([",".join(names), *body]).encode()

"""Files of the kind that users have, made up: mixed types, rare texts, missing values, several groups."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

JOBS = ["admin", "blue-collar", "technician", "services", "management", "retired", "student", "self-employed"]
RARE = [f"rare {number}" for number in range(40)]
ORIGINS = ["A", "B", "C", "D", "E", "F"]


def _texts(rng: np.random.Generator, names: list[str], rows: int, rare: float = 0.1) -> np.ndarray:
    """Texts of which some are common and a tenth is rare."""
    common = rng.choice(names, rows, p=_falling(len(names)))
    return np.where(rng.random(rows) < rare, rng.choice(RARE, rows), common).astype(object)


def _falling(count: int) -> np.ndarray:
    weights = 1 / np.arange(1, count + 1)
    return weights / weights.sum()


def _labels(rng: np.random.Generator, score: np.ndarray, share: float, noise: float = 0.7) -> np.ndarray:
    """Noisy labels of which a share is positive."""
    noisy = score / score.std() + rng.logistic(scale=noise, size=len(score))
    return noisy > np.quantile(noisy, 1 - share)


def bank(rows: int = 4000, seed: int = 1) -> pd.DataFrame:
    """A campaign: 6 % say yes; an identifier, dates, money, six origins of which some are small."""
    rng = np.random.default_rng(seed)
    effect = dict(zip(JOBS + RARE, rng.normal(0, 1, len(JOBS + RARE)), strict=True))
    job, month = _texts(rng, JOBS, rows), rng.choice(["jan", "mar", "may", "jul", "aug", "nov"], rows)
    age = rng.integers(18, 80, rows)
    balance = rng.lognormal(7, 1.2, rows).round(2)
    contacts = rng.poisson(2, rows)
    day = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, rows), unit="D")
    origin = rng.choice(ORIGINS, rows, p=[0.45, 0.3, 0.15, 0.07, 0.02, 0.01])
    score = (
        np.array([effect[name] for name in job])
        + 0.8 * np.isin(month, ["mar", "nov"])
        + 0.02 * np.abs(age - 45)
        + 0.4 * np.log(balance)
        - 0.3 * contacts
        - 0.5 * np.isin(origin, ["B", "D", "F"])
    )
    frame = pd.DataFrame(
        {
            "iban": [f"DE{rng.integers(10**17, 10**18)}" for _ in range(rows)],
            "customer": rng.permutation(rows) + 100_000,
            "age": age.astype(float),
            "job": job,
            "month": month,
            "balance": balance,
            "contacts": contacts,
            "last call": day.strftime("%d.%m.%Y"),
            "country": "DE",
            "origin": origin,
            "subscribed": np.where(_labels(rng, score, 0.06, 0.3), "yes", "no"),
        }
    )
    frame.loc[rng.random(rows) < 0.08, "balance"] = np.nan
    frame.loc[rng.random(rows) < 0.05, "job"] = None
    frame.loc[rng.random(rows) < 0.01, "origin"] = None
    return frame


def census(rows: int = 8000, seed: int = 2) -> pd.DataFrame:
    """Incomes: many categories, interactions of none, 24 % rich, sex and five-valued race."""
    rng = np.random.default_rng(seed)
    columns: dict[str, object] = {"Unnamed: 0": np.arange(rows)}
    score = np.zeros(rows)
    for number in range(8):
        names = [f"c{number}v{value}" for value in range(4 + 4 * number)]
        effect = dict(zip(names + RARE, rng.normal(0, 0.7, len(names) + len(RARE)), strict=True))
        columns[f"code {number}"] = _texts(rng, names, rows)
        score += np.array([effect[name] for name in columns[f"code {number}"]])
    for number in range(4):
        values = rng.gamma(2, 10 ** (number + 1), rows).round(1)
        columns[f"amount {number}"] = values
        score += 0.4 * (values - values.mean()) / values.std()
    sex, race = rng.choice(["female", "male"], rows, p=[0.4, 0.6]), rng.choice(5, rows, p=_falling(5))
    score += 0.7 * (sex == "male") - 0.2 * race
    columns |= {"age": rng.integers(17, 90, rows), "sex": sex, "race": [f"race {value}" for value in race]}
    return pd.DataFrame({**columns, "rich": _labels(rng, score, 0.24).astype(int)})


def credit(rows: int = 1000, seed: int = 3) -> pd.DataFrame:
    """A small file: thirty per cent are bad risks, ages as the group."""
    rng = np.random.default_rng(seed)
    purpose, house = (
        _texts(rng, ["car", "tv", "furniture", "repairs"], rows, 0.05),
        rng.choice(["own", "rent"], rows),
    )
    amount, months = rng.lognormal(8, 0.7, rows).round(), rng.choice([6, 12, 18, 24, 36, 48], rows)
    age = rng.integers(19, 75, rows)
    score = (
        -0.5 * np.log(amount) - 0.03 * months + 0.02 * age + 0.6 * (house == "own") + 0.5 * (purpose == "car")
    )
    frame = pd.DataFrame(
        {
            "purpose": purpose,
            "house": house,
            "amount": amount,
            "months": months,
            "age": age,
            "risk": np.where(_labels(rng, score, 0.7), "good", "bad"),
        }
    )
    frame.loc[rng.random(rows) < 0.1, "amount"] = np.nan
    return frame


def hospital(rows: int = 3000, seed: int = 4) -> pd.DataFrame:
    """Readmissions: diagnoses, stays, wards, a group with missing values."""
    rng = np.random.default_rng(seed)
    diagnosis, ward = _texts(rng, [f"D{n}" for n in range(20)], rows), rng.choice(["w1", "w2", "w3"], rows)
    effect = dict(zip([f"D{n}" for n in range(20)] + RARE, rng.normal(0, 1, 60), strict=True))
    stay, earlier = rng.poisson(5, rows) + 1, rng.poisson(1, rows)
    group = rng.choice(["north", "south", "east"], rows, p=[0.6, 0.3, 0.1]).astype(object)
    score = (
        np.array([effect[name] for name in diagnosis]) + 0.1 * stay + 0.5 * earlier - 0.4 * (group == "south")
    )
    frame = pd.DataFrame(
        {
            "admitted": (
                pd.Timestamp("2021-01-01") + pd.to_timedelta(rng.integers(0, 700, rows), unit="D")
            ).strftime("%Y-%m-%d"),
            "diagnosis": diagnosis,
            "ward": ward,
            "stay": stay,
            "earlier": earlier,
            "share": (rng.random(rows) * 100).round(1),
            "region": group,
            "readmitted": np.where(_labels(rng, score, 0.2), "yes", "no"),
        }
    )
    frame.loc[rng.random(rows) < 0.06, "region"] = None
    return frame


def european(frame: pd.DataFrame) -> pd.DataFrame:
    """Numbers as they are written in much of Europe: 1.234,56."""

    def spell(value: float) -> str:
        if np.isnan(value):
            return ""
        return f"{value:,.2f}".replace(",", "_").replace(".", ",").replace("_", ".")

    decimals = frame.select_dtypes("float").columns
    return frame.assign(**{name: frame[name].map(spell) for name in decimals})


def write(frame: pd.DataFrame, path: Path, **options: object) -> Path:
    """As CSV."""
    frame.to_csv(path, index=False, **options)
    return path

"""Public datasets, where each comes from and how it is prepared, and an invented one."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import platformdirs

from fairfate.data import acs
from fairfate.data.acs import ACS_INCOME
from fairfate.data.columns import Columns
from fairfate.data.groups import Groups
from fairfate.data.table import Table
from fairfate.errors import InputError, check
from fairfate.storage import sha256_of, write_bytes

ADULT_COLUMNS = (
    "age,workclass,fnlwgt,education,educational-num,marital-status,occupation,relationship,race,"
    "gender,capital-gain,capital-loss,hours-per-week,native-country,income"
)
COMPAS_COLUMNS = (
    "sex,age,age_cat,race,juv_fel_count,juv_misd_count,juv_other_count,priors_count,c_charge_degree,"
    "c_charge_desc,decile_score,score_text,two_year_recid"
)
VARIABLE = "FAIRFATE_DATA"
_PROPUBLICA = "https://raw.githubusercontent.com/propublica/compas-analysis/master"
_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases"
_FAIRNESS_DATASET = "https://raw.githubusercontent.com/tailequy/fairness_dataset/main"


def prepare_adult(test: bytes, train: bytes) -> bytes:
    """UCI's two files: the test rows first, without spaces after commas and dots after labels."""
    rows = [
        line.replace(", ", ",").rstrip(".")
        for raw in (test, train)
        for line in raw.decode().splitlines()
        if line and not line.startswith("|")
    ]
    return "\r\n".join([ADULT_COLUMNS, *rows]).encode()


def prepare_compas(raw: bytes) -> bytes:
    """ProPublica's two-year file: its own filter, thirteen columns, complete rows, and sex-race."""
    frame = pd.read_csv(io.BytesIO(raw))
    kept = frame[
        frame["days_b_screening_arrest"].between(-30, 30)
        & (frame["is_recid"] != -1)
        & (frame["c_charge_degree"] != "O")
        & frame["score_text"].notna()
    ]
    kept = kept[COMPAS_COLUMNS.split(",")].dropna()
    kept = kept.assign(**{"sex-race": kept["sex"] + "-" + kept["race"]})
    return kept.to_csv(index=False, lineterminator="\n").rstrip("\n").encode()


def prepare_law(raw: bytes) -> bytes:
    """Le Quy et al.'s cleaned file, as it is, without its final newline."""
    return raw.rstrip(b"\n")


def prepare_dutch(raw: bytes) -> bytes:
    """The census extract in ARFF: names for sex, 1 for the high-level occupations."""
    lines = raw.decode().splitlines()
    names = [line.split()[1] for line in lines if line.startswith("@attribute")]
    start = lines.index("@data") + 1
    sexes, levels = {"1": "male", "2": "female"}, {"2_1": "1", "5_4_9": "0"}
    rows = [line.split(",") for line in lines[start:] if line]
    body = [",".join([sexes[row[0]], *row[1:-1], levels[row[-1]]]) for row in rows]
    return "\n".join([",".join(names), *body]).encode()


@dataclass(frozen=True)
class Source:
    """A public dataset."""

    name: str
    title: str
    columns: Columns
    clients: int
    per_round: int
    rows: int
    licence: str
    sha256: str | None = None
    """Of the prepared file; None where it depends on what is fetched, and is kept beside it."""
    raw: tuple[tuple[str, str], ...] = ()
    """Address and SHA-256 of each raw file, in the order the recipe takes them."""
    recipe: Callable[..., bytes] | None = None
    """Makes the prepared file; None where `fetch_dataset` has a way of its own."""
    scaled_in_published_runs: bool = True


SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source(
            name="compas",
            title="COMPAS two-year recidivism (ProPublica 2016)",
            columns=Columns(
                target="two_year_recid",
                favourable="0",
                sensitive=("race",),
                privileged=(("race", "Caucasian"),),
                drop=("sex-race", "age_cat", "score_text"),
            ),
            clients=10,
            per_round=3,
            rows=6167,
            sha256="a17a649dd1769b9fd691f31a81b6f7c4d7079e4a691c6f4c96f1bd0e72b74661",
            raw=(
                (
                    f"{_PROPUBLICA}/compas-scores-two-years.csv",
                    "c451db85908b2f7fef1d83203bedf6b71ecda0d5af468d82ae62178f91d0cc7d",
                ),
            ),
            recipe=prepare_compas,
            licence="none stated; public records published by ProPublica",
        ),
        Source(
            name="adult",
            title="Adult census income (Kohavi and Becker 1996, UCI)",
            columns=Columns(
                target="income", favourable=">50K", sensitive=("gender",), privileged=(("gender", "Male"),)
            ),
            clients=15,
            per_round=5,
            rows=48842,
            sha256="1f13ee2bf9d7c66098429281ab91fa1b51cbabd3b805cc365b3c6b44491ea2c0",
            raw=(
                (
                    f"{_UCI}/adult/adult.test",
                    "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
                ),
                (
                    f"{_UCI}/adult/adult.data",
                    "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
                ),
            ),
            recipe=prepare_adult,
            licence="CC BY 4.0",
        ),
        Source(
            name="law",
            title="LSAC law school bar passage (Wightman 1998; cleaned by Le Quy et al. 2022)",
            columns=Columns(
                target="pass_bar", favourable="1", sensitive=("race",), privileged=(("race", "White"),)
            ),
            clients=12,
            per_round=4,
            rows=20798,
            sha256="961234bea8efc6e5845dac8188ad71d5007d5984b8841804a2e1ded926d8ebff",
            raw=(
                (
                    f"{_FAIRNESS_DATASET}/experiments/data/law_school_clean.csv",
                    "23c1b173f3480beb7afc4957b107a9917dfc4a8dc9d87ea6034ec35222152452",
                ),
            ),
            recipe=prepare_law,
            licence="none stated",
            scaled_in_published_runs=False,
        ),
        Source(
            name="dutch",
            title="Dutch census 2001 (Statistics Netherlands; Zliobaite et al. 2011)",
            columns=Columns(
                target="occupation", favourable="1", sensitive=("sex",), privileged=(("sex", "male"),)
            ),
            clients=20,
            per_round=6,
            rows=60420,
            sha256="6b1627c90c45760e0c90984cd630a7381cfa0f1c2b57a14fc12ad717a5b671fc",
            raw=(
                (
                    f"{_FAIRNESS_DATASET}/Dutch_census/dutch_census_2001.arff",
                    "0e7e3f32668919c239db820f625815e1ea834c71402cdea595e03ef08c8616ef",
                ),
            ),
            recipe=prepare_dutch,
            licence="none stated; IPUMS terms limit redistribution, research use",
        ),
        Source(
            name=ACS_INCOME,
            title="ACSIncome, American Community Survey by state (US Census Bureau; Ding et al. 2021)",
            columns=acs.COLUMNS,
            clients=51,
            per_round=17,
            rows=1_664_500,
            licence="the Census Bureau's terms of service",
        ),
    )
}


def cache_folder() -> Path:
    """Where fetched datasets are kept."""
    return platformdirs.user_cache_path("fairfate") / "datasets"


def dataset_folders(data_dir: str | Path | None = None) -> list[Path]:
    """Where datasets are looked for, in this order."""
    if data_dir is not None and (str(data_dir) == "" or not Path(data_dir).is_dir()):
        raise InputError(f"data-dir must be a folder, got '{data_dir}' (no such folder)")
    named = [data_dir, os.environ.get(VARIABLE)]
    return [Path(folder) for folder in named if folder] + [cache_folder()]


def find_dataset(name: str, data_dir: str | Path | None = None) -> Path:
    """The prepared file of a dataset, or an InputError that tells the three ways to get it."""
    for folder in dataset_folders(data_dir):
        if (folder / f"{name}.csv").is_file():
            return folder / f"{name}.csv"
    searched = ", ".join(f"'{folder}'" for folder in dataset_folders(data_dir))
    raise InputError(
        f"dataset '{name}' must be available as {name}.csv, got none in {searched}. Three ways to get it:\n"
        f"  1. fairfate data fetch {name}        (downloads it into the cache)\n"
        f"  2. --data-dir FOLDER              (a folder that contains {name}.csv)\n"
        f"  3. export {VARIABLE}=FOLDER    (the same, for every command)"
    )


def note_checksum(source: Source, file: Path) -> tuple[str, ...]:
    """A note where a prepared file is not the documented one or, where there is none, not the fetched one."""
    expected = source.sha256 or acs.read_checksums(file).get(file.name)
    if expected is None:
        return (f"{file} has no checksum beside it, so nothing says that it is as it was fetched",)
    if sha256_of(file) == expected:
        return ()
    return (f"{file} is not the {'fetched' if source.sha256 is None else 'documented'} file (checksum)",)


def fetch_dataset(
    name: str,
    folder: str | Path | None = None,
    *,
    states: str | None = None,
    year: int | None = None,
    progress: bool = False,
) -> Path:
    """Download a dataset's raw files, check them, and write the prepared file.

    Parameters
    ----------
    name : adult, compas, law, dutch or acs_income
    folder : where to; the cache if None
    states : of acs_income, such as CA,TX; all if None
    year : of acs_income, from 2014 to 2018; 2018 if None
    progress : whether to show a bar

    Returns
    -------
    The prepared file.
    """
    source = SOURCES[name]
    target = Path(folder) if folder is not None else cache_folder()
    if source.recipe is None:
        return acs.fetch_acs_income(target, acs.read_states(states), acs.read_year(year), progress=progress)
    check(states is None, f"states must be left out for '{name}', which has none", f"'{states}'")
    check(year is None, f"year must be left out for '{name}', which is of one year", year)
    import pooch

    raw = []
    for address, digest in source.raw:
        try:
            file = pooch.retrieve(address, f"sha256:{digest}", path=target / "raw", progressbar=progress)
        except (OSError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise InputError(f"dataset '{name}' must be downloadable, got '{reason}'") from None
        raw.append(Path(file).read_bytes())
    prepared = source.recipe(*raw)
    digest = hashlib.sha256(prepared).hexdigest()
    if digest != source.sha256:
        raise InputError(f"dataset '{name}' must have SHA-256 {source.sha256}, got {digest}")
    write_bytes(target / f"{name}.csv", prepared)
    return target / f"{name}.csv"


FEATURES = ("experience", "test_score", "referral", "commute", "field", "sex")


def synthetic(rows: int = 6000, seed: int = 0) -> Table:
    """Generate applicants and whether they were hired in the past.

    The mechanism, for each applicant:

    - ``sex`` is female (group 0) or male (group 1, privileged), half each;
    - ability is N(0, 1) in both groups; ``experience`` and ``test_score`` measure it with noise N(0, 1) and
      N(0, 0.7), and women's experience is 0.5 lower (career breaks);
    - ``referral`` is a yes/no proxy: 20 % of the women and 55 % of the men know an insider;
    - ``field`` is one of four, with other shares in the two groups, and of no use for the job;
    - ``commute`` is noise;
    - past decisions hired when ``ability + 0.9 referral + 0.5 male + N(0, 0.5) > 0.8``.

    So labels are unequal (about 31 % of the women and 57 % of the men were hired) for reasons that are only
    partly about ability. A Dirichlet partition gives some clients hardly any hired women, and averaging
    their models by size carries that into the global model.

    Parameters
    ----------
    rows : number of applicants
    seed : the generator's seed

    Returns
    -------
    The table.

    Examples
    --------
    >>> table = synthetic(rows=100)
    >>> len(table), table.feature_names[:3], table.label_names
    (100, ('experience', 'test_score', 'referral'), ('not hired', 'hired'))
    """
    check(20 <= rows <= 100_000_000, "synthetic rows must be >= 20 and <= 100,000,000", rows)
    check(seed >= 0, "synthetic seed must be >= 0", seed)
    rng = np.random.default_rng(seed)
    male = rng.integers(0, 2, rows)
    ability = rng.normal(size=rows)
    experience = ability - 0.5 * (1 - male) + rng.normal(size=rows)
    test_score = ability + rng.normal(scale=0.7, size=rows)
    referral = rng.random(rows) < np.where(male == 1, 0.55, 0.20)
    commute = rng.gamma(2.0, 15.0, rows)
    shares = np.array([[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]]).cumsum(axis=1)
    studied = (rng.random(rows)[:, None] > shares[male]).sum(axis=1).clip(max=3)
    hired = ability + 0.9 * referral + 0.5 * male + rng.normal(scale=0.5, size=rows) > 0.8
    return Table(
        name="synthetic",
        embedded=True,
        features=np.stack([experience, test_score, referral, commute, studied, male], axis=1).astype(
            np.float64
        ),
        label=hired.astype(np.int8),
        group=male.astype(np.int16),
        feature_names=FEATURES,
        label_names=("not hired", "hired"),
        grouping=Groups.single("sex", ("female", "male")),
        categories={"field": ("arts", "business", "engineering", "science")},
        target="hired",
    )

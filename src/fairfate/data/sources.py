"""The paper's four datasets: where each comes from, what its columns mean, and the paper's settings."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from fairfate.data import recipes
from fairfate.data.columns import Columns
from fairfate.errors import InputError
from fairfate.storage import write_bytes

VARIABLE = "FAIRFATE_DATA"


@dataclass(frozen=True)
class Source:
    """A public dataset."""

    name: str
    title: str
    columns: Columns
    clients: int
    per_round: int
    rows: int
    sha256: str
    raw: tuple[tuple[str, str], ...]
    """Address and SHA-256 of each raw file, in the order the recipe takes them."""
    recipe: Callable[..., bytes]
    licence: str
    scaled_in_published_runs: bool = True


_FAIRNESS_DATASET = "https://raw.githubusercontent.com/tailequy/fairness_dataset"

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
                    "https://raw.githubusercontent.com/propublica/compas-analysis/master/"
                    "compas-scores-two-years.csv",
                    "c451db85908b2f7fef1d83203bedf6b71ecda0d5af468d82ae62178f91d0cc7d",
                ),
            ),
            recipe=recipes.compas,
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
                    "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/adult.test",
                    "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
                ),
                (
                    "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/adult.data",
                    "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
                ),
            ),
            recipe=recipes.adult,
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
                    f"{_FAIRNESS_DATASET}/main/experiments/data/law_school_clean.csv",
                    "23c1b173f3480beb7afc4957b107a9917dfc4a8dc9d87ea6034ec35222152452",
                ),
            ),
            recipe=recipes.law,
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
                    f"{_FAIRNESS_DATASET}/main/Dutch_census/dutch_census_2001.arff",
                    "0e7e3f32668919c239db820f625815e1ea834c71402cdea595e03ef08c8616ef",
                ),
            ),
            recipe=recipes.dutch,
            licence="none stated; IPUMS terms limit redistribution, research use",
        ),
    )
}


def cache_folder() -> Path:
    """Where fetched datasets are kept."""
    return platformdirs.user_cache_path("fairfate") / "datasets"


def folders(data_dir: str | Path | None = None) -> list[Path]:
    """Where datasets are looked for, in this order."""
    if data_dir is not None and (str(data_dir) == "" or not Path(data_dir).is_dir()):
        raise InputError(f"data-dir must be a folder, got '{data_dir}' (no such folder)")
    named = [data_dir, os.environ.get(VARIABLE)]
    return [Path(folder) for folder in named if folder] + [cache_folder()]


def find(name: str, data_dir: str | Path | None = None) -> Path:
    """The prepared file of a dataset, or an InputError that tells the three ways to get it."""
    for folder in folders(data_dir):
        if (folder / f"{name}.csv").is_file():
            return folder / f"{name}.csv"
    looked = ", ".join(f"'{folder}'" for folder in folders(data_dir))
    raise InputError(
        f"dataset '{name}' must be available as {name}.csv, got none in {looked}. Three ways to get it:\n"
        f"  1. fairfate data fetch {name}        (downloads it into the cache)\n"
        f"  2. --data-dir FOLDER              (a folder of yours that holds {name}.csv)\n"
        f"  3. export {VARIABLE}=FOLDER    (the same, for every command)"
    )


def fetch(name: str, folder: str | Path | None = None, *, progress: bool = False) -> Path:
    """Download a dataset's raw files, check them, and write the prepared file."""
    import pooch

    source = SOURCES[name]
    target = Path(folder) if folder is not None else cache_folder()
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

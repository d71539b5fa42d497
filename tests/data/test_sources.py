from __future__ import annotations

import functools
import hashlib
import http.server
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fairfate.data import SOURCES, datasets, fetch_dataset, find_dataset, load
from fairfate.errors import InputError

RAW = {
    "adult": ("adult.test", "adult.data"),
    "compas": ("compas-scores-two-years.deidentified.csv",),
    "dutch": ("dutch_census_2001.arff",),
}
# rows by (group, label) as the paper's authors code them: S=0/Y=0, S=0/Y=1, S=1/Y=0, S=1/Y=1
CELLS = {
    "adult": [14423, 1769, 22732, 9918],
    "compas": [1987, 2080, 822, 1278],
    "law": [916, 2391, 1377, 16114],
    "dutch": [20370, 9903, 11287, 18860],
}
INPUTS = {"adult": 14, "compas": 10, "law": 11, "dutch": 11}


@pytest.mark.data
@pytest.mark.parametrize("name", RAW)
def test_the_recipe_turns_the_raw_file_into_the_prepared_one(name: str, data_folder: Path) -> None:
    raw = [(data_folder / "raw" / file).read_bytes() for file in RAW[name]]
    assert SOURCES[name].recipe(*raw) == (data_folder / f"{name}.csv").read_bytes()


@pytest.mark.data
def test_laws_public_file_is_the_prepared_one_and_a_newline(data_folder: Path) -> None:
    prepared = (data_folder / "law.csv").read_bytes()
    public = prepared + b"\n"
    assert hashlib.sha256(public).hexdigest() == SOURCES["law"].raw[0][1]
    assert datasets.prepare_law(public) == prepared


@pytest.mark.data
@pytest.mark.parametrize("name", CELLS)
def test_the_datasets_have_the_papers_groups_labels_and_inputs(name: str, data_folder: Path) -> None:
    table = load(name, data_dir=data_folder)
    assert np.bincount(table.cell).tolist() == CELLS[name]
    assert table.features.shape == (SOURCES[name].rows, INPUTS[name])
    assert table.notes == ()
    assert not np.isnan(table.features).any()


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No dataset anywhere."""
    monkeypatch.delenv("FAIRFATE_DATA", raising=False)
    monkeypatch.setattr(datasets, "cache_folder", lambda: tmp_path / "cache")
    return tmp_path


def test_error_for_an_absent_dataset_names_three_ways_to_get_it(nowhere: Path) -> None:
    with pytest.raises(InputError) as error:
        load("adult")
    for way in ("fairfate data fetch adult", "--data-dir FOLDER", "export FAIRFATE_DATA=FOLDER"):
        assert way in str(error.value)


def test_folders_are_searched_in_order(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mine", "variable", "cache"):
        (nowhere / name).mkdir()
        (nowhere / name / "law.csv").write_text(name)
    assert find_dataset("law").read_text() == "cache"
    monkeypatch.setenv("FAIRFATE_DATA", str(nowhere / "variable"))
    assert find_dataset("law").read_text() == "variable"
    assert find_dataset("law", nowhere / "mine").read_text() == "mine"


def test_file_with_another_checksum_is_used_and_noted(nowhere: Path) -> None:
    text = "race,pass_bar,lsat\nWhite,1.0,3\nNon-White,0.0,4\nWhite,1.0,5\n"
    (nowhere / "law.csv").write_text(text)
    assert "is not the documented file" in load("law", data_dir=nowhere).notes[0]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def server(tmp_path: Path):
    """A web server on loopback that serves a folder."""
    folder = tmp_path / "www"
    folder.mkdir()
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{web.server_port}"
        web.shutdown()


ARFF = b"""@attribute sex {2,1}
@attribute age {1}
@attribute occupation {5_4_9,2_1}
@data
1,6,2_1
2,7,5_4_9
"""
CSV = b"sex,age,occupation\nmale,6,1\nfemale,7,0"


def serve_dutch(monkeypatch, server, raw: bytes = ARFF, prepared: bytes = CSV) -> None:
    folder, address = server
    (folder / "dutch.arff").write_bytes(raw)
    digest = hashlib.sha256(ARFF).hexdigest()
    source = replace(
        SOURCES["dutch"],
        raw=((f"{address}/dutch.arff", digest),),
        sha256=hashlib.sha256(prepared).hexdigest(),
    )
    monkeypatch.setitem(SOURCES, "dutch", source)


def test_fetch_downloads_checks_and_prepares(nowhere: Path, monkeypatch, server) -> None:
    serve_dutch(monkeypatch, server)
    path = fetch_dataset("dutch")
    assert path == nowhere / "cache" / "dutch.csv"
    assert path.read_bytes() == CSV
    assert load("dutch").label.tolist() == [1, 0]


def test_a_download_with_another_checksum_is_refused(nowhere: Path, monkeypatch, server) -> None:
    serve_dutch(monkeypatch, server, raw=ARFF + b"1,6,2_1\n")
    with pytest.raises(InputError, match="dataset 'dutch' must be downloadable, got 'SHA256 hash"):
        fetch_dataset("dutch")
    assert not (nowhere / "cache" / "dutch.csv").exists()


def test_a_recipe_that_gives_something_else_is_refused(nowhere: Path, monkeypatch, server) -> None:
    serve_dutch(monkeypatch, server, prepared=b"other")
    with pytest.raises(InputError, match="dataset 'dutch' must have SHA-256"):
        fetch_dataset("dutch")
    assert not (nowhere / "cache" / "dutch.csv").exists()


def test_an_address_that_does_not_answer_is_an_input_error(nowhere: Path, monkeypatch) -> None:
    source = replace(SOURCES["law"], raw=(("http://127.0.0.1:9/law.csv", "0" * 64),))
    monkeypatch.setitem(SOURCES, "law", source)
    with pytest.raises(InputError, match="dataset 'law' must be downloadable"):
        fetch_dataset("law")

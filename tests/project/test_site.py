"""The documentation as a site: it builds without a warning, and loads nothing from elsewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from documented import ROOT
from fairfate.strategies import STEPS, entries
from fairfate.studies.benchmark.methods import every

DOCS = ROOT / "docs"
LYCHEE = ["--offline", "--include-fragments", "--no-progress"]


def program(name: str) -> str:
    """Where a program is; the test is skipped without it."""
    result = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if result is None:
        pytest.skip(f'{name} is not installed: pip install -e ".[docs]"')
    return result


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site, of a copy in which links out of the docs lead nowhere."""
    builder = program("zensical")
    folder = tmp_path_factory.mktemp("site")
    for name in ("docs", "src", "tools"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "mkdocs.yml", folder)
    process = subprocess.run(
        [builder, "build", "--strict", "--clean"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert "Warning" not in process.stdout + process.stderr
    assert "No issues found" in process.stdout + process.stderr
    return folder / "site"


FETCHING = {"script", "img", "source", "iframe", "video", "audio", "embed", "link", "object", "image", "use"}


class Loaded(HTMLParser):
    """What a page makes a browser fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "link" and given.get("rel") in ("canonical", "prev", "next", "alternate"):
            return
        if tag in FETCHING:
            self.found += [
                value for key in ("src", "srcset", "href", "data", "xlink:href") if (value := given.get(key))
            ]


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    pages = [*site.glob("**/*.html")]
    assert len(pages) > len([*DOCS.glob("*.md")])
    for page in pages:
        loaded = Loaded()
        loaded.feed(page.read_text())
        assert loaded.found
        outside = [index for index in loaded.found if re.match(r"(https?:)?//", index)]
        assert not outside, f"{page.name} loads {outside}"
    for sheet in [*site.glob("**/*.css"), *site.glob("**/*.svg")]:
        assert not re.findall(r"url\(['\"]?(?:https?:)?//[^)]*|@import[^;]*//", sheet.read_text()), sheet.name


def test_no_page_needs_a_script_that_is_fetched(site: Path) -> None:
    """The theme fetches these when a page uses them."""
    for page in site.glob("**/*.html"):
        assert 'class="mermaid"' not in page.read_text(), page.name
        assert 'class="arithmatex"' not in page.read_text(), page.name


@pytest.mark.parametrize("what", ["sources", "site"])
def test_links_and_their_anchors_lead_somewhere(what: str, request: pytest.FixtureRequest) -> None:
    lychee = program("lychee")
    if what == "sources":
        where = [str(page) for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.glob("*.md"))]
    else:
        site: Path = request.getfixturevalue("site")
        where = ["--root-dir", str(site), *map(str, site.glob("*.html"))]
    process = subprocess.run([lychee, *LYCHEE, *where], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    assert "0 Errors" in process.stdout


def test_every_page_is_in_the_navigation() -> None:
    config = (ROOT / "mkdocs.yml").read_text()
    named = re.findall(r"^ +- [^:\n]+: ([\w/-]+\.md)$", config.partition("\nnav:")[2], flags=re.M)
    assert sorted(named) == sorted(str(page.relative_to(DOCS)) for page in DOCS.glob("**/*.md"))


def test_generated_pages_are_current() -> None:
    command = [sys.executable, str(ROOT / "tools" / "pages.py"), "--check"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr


OURS = [entry.name for entry in entries() if entry.build.__module__.startswith("fairfate.")]


@pytest.mark.parametrize("name", [*OURS, *STEPS])
def test_a_method_is_documented_with_every_setting_and_its_default(name: str) -> None:
    page = (DOCS / "methods.md").read_text()
    heading = f"## +{name}\n" if name in STEPS else f"## {name}\n"
    section = page.partition(heading)[2].partition("\n## ")[0]
    assert section, f"{name} is not on the page"
    assert "\n- " in section.partition("Hyperparameters")[0], "its rules"
    assert re.search(r"\*\*.+\.\*\* .*(19|20)\d\d", section), "a reference with its year"
    hyperparameters = section.partition("Hyperparameters")[2]
    shown = dict(re.findall(r"^- `(\w+)`(?: = (`[^`]*`|[^,]*), .+: .|$)", hyperparameters, flags=re.M))
    wanted = {**{entry.name: entry for entry in entries()}, **STEPS}[name].settings
    assert list(shown) == list(wanted)
    for key, setting in wanted.items():
        if setting.default is None:
            assert "--metric" in shown[key] or (key, shown[key]) == ("metric", "")  # said above all of them
        elif isinstance(setting.default, float):
            assert float(shown[key].strip("`")) == setting.default
        else:
            assert shown[key].strip("`") == setting.default


@pytest.mark.parametrize("name", OURS)
def test_strategy_is_in_the_benchmark_and_on_the_page_of_messages(name: str) -> None:
    assert name in {method.specs[0].name for method in every()}, "add it to benchmark/methods.py"
    needs = (
        (DOCS / "privacy.md")
        .read_text()
        .partition("<!-- generated: needs -->")[2]
        .partition("<!-- end -->")[0]
    )
    assert f"`{name}`" in needs, "python tools/pages.py"
    assert f"\n| `{name}` |" in (DOCS / "benchmark.md").read_text(), "run the benchmark"

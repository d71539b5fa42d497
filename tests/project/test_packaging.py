"""What is around the code: versions, package data, distributions, workflows and templates."""

from __future__ import annotations

import ast
import fnmatch
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import fairfate

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PYTHONS = [
    found[1]
    for line in PROJECT["project"]["classifiers"]
    if (found := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", line))
]


def read_yaml(location: str | Path) -> Any:
    return yaml.safe_load((ROOT / location).read_text())


def test_the_version_is_the_same_everywhere() -> None:
    assert read_yaml("CITATION.cff")["version"] == fairfate.__version__
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)
    released = [name for name in headings if name != "Unreleased"]
    assert headings[0] == "Unreleased" or headings[0] == fairfate.__version__
    assert not released or released[0] == fairfate.__version__


def test_every_file_of_the_package_that_is_not_code_is_in_the_wheel() -> None:
    package = ROOT / "src" / "fairfate"
    globs = PROJECT["tool"]["setuptools"]["package-data"]["fairfate"]
    packed = {path for glob in globs for path in package.glob(glob)}
    others = {path for path in package.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert others <= packed
    for glob in globs:
        assert list(package.glob(glob)) or not (package / glob).parent.exists(), glob


def test_every_package_has_an_init_so_that_the_wheel_has_it() -> None:
    for file in (ROOT / "src").rglob("*.py"):
        if "template" not in file.parts:
            assert (file.parent / "__init__.py").exists(), file


def test_the_source_distribution_holds_what_the_repository_holds() -> None:
    try:
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    lines = [line.split() for line in (ROOT / "MANIFEST.in").read_text().splitlines() if line]
    grafted = tuple(f"{words[1]}/" for words in lines if words[0] == "graft")
    patterns = [pattern for words in lines if words[0] == "include" for pattern in words[1:]]
    patterns += ["pyproject.toml", "setup.py", "LICENSE", "MANIFEST.in"]  # by themselves
    for path in listed.stdout.splitlines():
        named = any(
            fnmatch.fnmatch(path, pattern) and path.count("/") == pattern.count("/") for pattern in patterns
        )
        assert named or path.startswith(grafted), f"MANIFEST.in: {path}"


def test_the_index_page_leads_into_the_repository() -> None:
    spec = importlib.util.spec_from_file_location("fairfate_setup", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    source = PROJECT["project"]["urls"]["Source"]
    page = module.page()
    links = re.findall(r"(!?)\[[^\]]*\]\(([^)]+)\)", page)
    assert len(links) > 10
    for image, link in links:
        assert re.match("https?://|#", link), link
        if link.startswith(source):
            kind, version, index = link.removeprefix(f"{source}/").split("/", 2)
            assert kind == ("raw" if image else "blob")
            assert version == f"v{fairfate.__version__}"
            assert (ROOT / index.partition("#")[0]).exists(), link
    added = re.compile(rf"{re.escape(source)}/(raw|blob)/v[^/]+/")
    assert added.sub("", page) == added.sub("", (ROOT / "README.md").read_text())


def test_all_pythons_are_tested() -> None:
    assert PROJECT["project"]["requires-python"] == f">={PYTHONS[0]}"
    matrix = read_yaml(".github/workflows/test.yml")["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["python"] == PYTHONS
    looked_for = re.search(r"^for version in (.*); do$", (ROOT / ".ci" / "run").read_text(), flags=re.M)
    assert looked_for is not None
    assert looked_for[1].split() == PYTHONS
    lowest = read_yaml(".github/workflows/min-deps.yml")["jobs"]["lowest"]["steps"]
    versions = [step["with"]["python-version"] for step in lowest if "python-version" in step.get("with", {})]
    assert versions == PYTHONS[:1]


def test_the_lowest_versions_are_tried_with_tests_that_there_are() -> None:
    text = (ROOT / ".github" / "workflows" / "min-deps.yml").read_text()
    assert "--resolution lowest-direct" in text
    named = re.findall(r"tests/[\w/]+\.py", text)
    assert len(named) > 5
    for index in named:
        assert (ROOT / index).exists(), index
    for line in PROJECT["project"]["dependencies"]:
        assert ">=" in line, "a bound that can be tried"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_do_little_and_ends(path: Path) -> None:
    workflow = read_yaml(path)
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert job["timeout-minutes"] <= 60
        assert set(job.get("permissions", {})) <= {"id-token", "pages"}, name
        for step in job["steps"]:
            used = step.get("uses", "")
            assert not used or re.fullmatch(r"[\w/-]+@(release/)?v\d+", used), used
            if used.startswith("actions/checkout"):
                assert step["with"] == {"persist-credentials": False}
    assert "secrets." not in path.read_text()
    assert "//" not in re.sub(r"^\s*#.*", "", path.read_text(), flags=re.M), "an address"


def test_pytest_alone_leaves_out_slow_files_and_the_gate_runs_them() -> None:
    quick = "tests/strategies/test_texts.py"
    slow = "tests/integration/test_docker.py", "tests/golden/test_golden_cpus.py"

    def collected(*words: str) -> set[str]:
        command = [sys.executable, "-m", "pytest", "--collect-only", "-n", "0", "-p", "no:cacheprovider"]
        process = subprocess.run(
            [*command, *words, quick, *slow], cwd=ROOT, capture_output=True, text=True, check=True
        )
        return {
            name for line in process.stdout.splitlines() if (name := line.partition(":")[0]) in (quick, *slow)
        }

    assert collected() == {quick}
    assert collected("-m", "slow or deployment") == set(slow)
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert 'pytest -m "slow or deployment"' in lines


def test_click_is_not_imported_since_newer_versions_of_typer_do_not_bring_it() -> None:
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert "click" not in names, path


def test_files_of_the_slow_tiers_exist() -> None:
    from conftest import TIERS

    names = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    assert {file for files in TIERS.values() for file in files} <= names

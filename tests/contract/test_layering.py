"""Data flows one way: a file imports only from packages before its own."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fairfate

SOURCE = Path(fairfate.__file__).parent
PACKAGES = [
    "_version",
    "errors",
    "options",
    "sums",
    "storage",
    "data",
    "fairness",
    "models",
    "export",
    "strategies",
    "federation",
    "privacy",
    "engine",
    "results",
    "experiments",
    "estimator",
    "report",
    "studies",
    "flower",
    "cli",
    "__main__",
]
FILES = sorted(SOURCE.rglob("*.py"))
FOR_USERS = {("runs.py", f"fairfate.report.{name}") for name in ("canvas", "data", "figures", "page")}
FOR_USERS |= {("estimator.py", "fairfate.report.canvas")}
"""What users look for beyond the order of packages: `Run.plot`, `Run.report` and the estimator's figure."""


def package_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_upstream_only(path: Path) -> None:
    if path == SOURCE / "__init__.py":
        return
    own = PACKAGES.index(package_of(path))
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("fairfate"):
            names = [node.module] if node.module != "fairfate" else [f"fairfate.{a.name}" for a in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith("fairfate")]
        for name in names:
            imported = name.split(".")[1]
            if (path.name, name) in FOR_USERS:
                continue
            assert PACKAGES.index(imported) <= own, f"{path.name} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_no_pickle_no_global_seed_no_print(path: Path) -> None:
    text = path.read_text()
    for word in ("import pickle", "np.random.seed", "random.seed(", "    print("):
        assert word not in text


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = ["numba", "pandas", "matplotlib", "sklearn", "scipy", "pyarrow", "typer", "flwr"]
    code = f"import fairfate, sys; sys.exit(sum(m in sys.modules for m in {heavy}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


QUICK = "--data synthetic:rows=100 --rounds 1 --seeds 1 --jobs 1 --no-baselines"
LARGE = ["numba", "scipy", "sklearn", "matplotlib", "pyarrow.dataset", "flwr", "mlflow", "torch", "pooch"]
"""What short commands do without, once the loops are compiled."""
COMPILING = ["numba.np.linalg", "scipy.linalg"]
"""What Numba loads to compile, not to run what it has kept. It imports scipy itself for its version."""


@pytest.fixture(scope="module")
def after_a_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run; the loops are compiled."""
    folder = tmp_path_factory.mktemp("short")
    words = f"run {QUICK} --out first".split()
    subprocess.run([sys.executable, "-m", "fairfate", *words], cwd=folder, capture_output=True, check=True)
    return folder


@pytest.mark.parametrize(
    ("command", "without"),
    [
        (f"run {QUICK} --out again", [*(set(LARGE) - {"numba", "scipy"}), *COMPILING, "scipy.special"]),
        ("show first", [*LARGE, "jinja2", "llvmlite"]),
        ("strategies", [*LARGE, "jinja2", "llvmlite"]),
        ("data list", [*LARGE, "jinja2", "llvmlite"]),
        ("--help", [*LARGE, "jinja2", "pandas", "pyarrow", "llvmlite", "numpy"]),
    ],
    ids=lambda value: value.partition(" -")[0] if isinstance(value, str) else "",
)
def test_a_short_command_loads_only_what_it_needs(
    command: str, without: list[str], after_a_run: Path
) -> None:
    code = (
        "import sys; from fairfate.__main__ import main\n"
        f"sys.argv = ['fairfate', *{command.split()}]\n"
        "try: main()\n"
        f"finally: print('loaded:', *sorted(set({without}) & set(sys.modules)))"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=after_a_run, capture_output=True, text=True, check=True
    )
    assert process.stdout.splitlines()[-1] == "loaded:"


def test_every_public_name_can_be_had() -> None:
    for name in fairfate.__all__:
        assert getattr(fairfate, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        fairfate.nonsense  # noqa: B018


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_flower_is_imported_in_its_own_package_only(path: Path) -> None:
    if package_of(path) != "flower":
        assert "flwr" not in path.read_text()


def test_without_flower_the_command_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['flwr'] = None; sys.argv = ['fairfate', 'flower', 'init', 'fed'];"
        "from fairfate.__main__ import main; main()"
    )
    process = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert process.returncode == 2
    assert process.stderr == 'Error: fairfate.flower needs Flower: pip install "fairfate[flower]"\n'


def test_no_sum_goes_through_blas() -> None:
    """Its order of sums depends on the CPU; `fairfate.sums` has what does not."""
    names = {"dot", "vdot", "vecdot", "matvec", "vecmat", "inner", "matmul", "tensordot", "einsum", "linalg"}
    names |= {"cov", "corrcoef", "convolve", "correlate", "polyfit"}  # these call it
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            is_product = isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.MatMult)
            is_call = isinstance(node, ast.Attribute) and node.attr in names
            is_sum = is_product or is_call or bool(_imported(node) & names)
            assert not is_sum, f"{path.relative_to(SOURCE)}:{getattr(node, 'lineno', 0)}"


def _imported(node: ast.AST) -> set[str]:
    """What an import brings in from NumPy or SciPy, the modules that it comes from included."""
    if isinstance(node, ast.Import):
        parts = [alias.name.split(".") for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        parts = [[*(node.module or "").split("."), alias.name] for alias in node.names]
    else:
        return set()
    return {name for first, *rest in parts for name in rest if first in ("numpy", "scipy")}

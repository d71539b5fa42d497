"""The notebook in examples/ runs, and prints what it shows."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parents[2] / "examples" / "tour.ipynb"


def test_the_tour_runs_and_prints_what_it_shows() -> None:
    names: dict[str, Any] = {}
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert len(code) >= 5
    for cell in code:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("".join(cell["source"]), str(NOTEBOOK), "exec"), names)
        shown = [out for out in cell["outputs"] if out["output_type"] == "stream"]
        assert printed.getvalue() == "".join(text for out in shown for text in out["text"])
    assert repr(names["run"]) == "".join(code[0]["outputs"][0]["data"]["text/plain"])

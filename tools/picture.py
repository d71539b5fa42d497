"""Draw docs/images/report.png: the top of the report that `fairfate run` ends with.

Needs playwright and Chromium; run it by hand when the page changes: python tools/picture.py
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

import fairfate

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "report.png"
WIDTH, HEIGHT = 1100, 760


def main() -> None:
    """Run, report, and take the picture: the answer above, the charts below."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page = fairfate.run(out=f"{folder}/run").report()
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        tab = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        tab.goto(page.as_uri())
        tab.wait_for_selector("html[data-drawn]")
        tab.screenshot(path=PICTURE)
        browser.close()


if __name__ == "__main__":
    main()

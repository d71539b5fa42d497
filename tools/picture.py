"""Draw docs/images/report.png: the report that `fairfate run` ends with, its answer and its charts.

Needs playwright, Pillow and Chromium; run it by hand when the page changes: python tools/picture.py
"""

from __future__ import annotations

import io
import shutil
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

import fairfate

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "report.png"
WIDTH, HEIGHT, SCALE = 1000, 1150, 0.7


def main() -> None:
    """Run, report, and take the picture: the answer on the left, the charts on the right."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page = fairfate.run(out=f"{folder}/run", baselines=True).report()
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        tab = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        tab.goto(page.as_uri())
        tab.wait_for_selector("html[data-drawn]")
        charts = tab.locator("[id$=-charts-h]").bounding_box()
        assert charts is not None
        halves = [_part(tab, 0), _part(tab, charts["y"] - 20)]
        browser.close()
    whole = Image.new("RGB", (2 * WIDTH + 20, HEIGHT), "#d5dae0")
    for number, half in enumerate(halves):
        whole.paste(half, (number * (WIDTH + 20), 0))
    size = round(whole.width * SCALE), round(whole.height * SCALE)
    whole.resize(size, Image.Resampling.LANCZOS).quantize(128).save(PICTURE, optimize=True)


def _part(tab: Page, top: float) -> Image.Image:
    clip = {"x": 0, "y": top, "width": WIDTH, "height": HEIGHT}
    return Image.open(io.BytesIO(tab.screenshot(clip=clip, full_page=True)))


if __name__ == "__main__":
    main()

"""Pages in a headless browser, with all that they say and ask for."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Locator

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--renderer-process-limit=1")


def program() -> str | None:
    """Chromium, where it is installed."""
    return os.environ.get("FAIRFATE_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


def lacking() -> str:
    """Why there can be no browser; empty if there can."""
    if find_spec("playwright") is None:
        return "playwright is not installed (pip install playwright)"
    if program() is None:
        return f"there is no Chromium ({', '.join(NAMES)}; FAIRFATE_CHROMIUM names another)"
    return ""


@contextmanager
def started() -> Iterator[Browser]:
    """The browser, closed at the end."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program(), args=list(FLAGS))
        yield browser
        browser.close()
        _context.cache_clear()


@cache
def _context(browser: Browser, **options: Any) -> BrowserContext:
    """Pages of one kind share a context, which takes longer to open than they do."""
    return browser.new_context(**options)


class Visit:
    """A page that is open."""

    def __init__(self, browser: Browser, width: int = 1000, **options: Any) -> None:
        self.page = _context(browser, **options).new_page()
        self.page.set_viewport_size({"width": width, "height": 900})
        self.said: list[str] = []
        """Console messages, errors and dialogs."""
        self.asked: list[str] = []
        """Addresses of everything that was loaded."""
        self.page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        self.page.on("dialog", self._dismiss)
        self.page.on("request", lambda request: self.asked.append(request.url))

    def _dismiss(self, dialog: Any) -> None:
        self.said.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def open(self, file: Path) -> Visit:
        """Load a file."""
        self.page.goto(file.resolve().as_uri())
        return self

    def check(self) -> None:
        """It has said nothing, and loaded nothing but itself."""
        assert self.said == []
        assert set(self.asked) <= {self.page.url.partition("#")[0]}

    # --- what is on the page

    def chart(self, name: str, part: int = 0) -> Locator:
        return self.page.locator(f"#p{part} [data-chart={name}]")

    def hint(self, name: str, part: int = 0) -> str:
        return str(self.chart(name, part).locator(".hint").first.inner_text())

    def table(self, name: str, part: int = 0) -> tuple[list[str], list[list[str]], str]:
        """The numbers of a chart: columns, rows and caption."""
        columns, rows, caption = (
            self.chart(name, part)
            .locator("details")
            .evaluate(
                """async (node) => {
              const closed = !node.open;
              if (closed) {
                node.open = true;
                await new Promise((done) => node.addEventListener("toggle", done, {once: true}));
              }
              const texts = (of) => [...of].map((cell) => cell.textContent);
              const found = [texts(node.querySelectorAll("thead th")),
                [...node.querySelectorAll("tbody tr")].map((row) => texts(row.children)),
                node.querySelector("caption").textContent];
              node.open = !closed;
              return found;
            }"""
            )
        )
        assert all(len(row) == len(columns) for row in rows)
        return columns, [[text.replace("\u00a0", " ") for text in row] for row in rows], caption

    def choose(self, key: str, label: str, part: int = 0) -> None:
        """In one of the lists above the charts."""
        chosen = self.page.locator(f"#p{part} select[data-key={key}] option:checked").text_content()
        if chosen != label:
            self.page.select_option(f"#p{part} select[data-key={key}]", label=label)

    def slide(self, selector: str, value: float) -> None:
        """Move a slider, as the keyboard and the mouse do."""
        self.page.locator(selector).fill(str(value))

    def focused(self) -> str:
        """What has the focus, in short."""
        result: str = self.page.evaluate(
            """() => {
              const node = document.activeElement, chart = node.closest("[data-chart]")?.dataset.chart;
              return [node.tagName.toLowerCase(), node.type, node.dataset.key ?? node.className, chart]
                .filter(Boolean).join(" ");
            }"""
        )
        return result

    def close(self) -> None:
        """Close it."""
        self.page.close()

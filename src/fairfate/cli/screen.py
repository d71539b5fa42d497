"""What users see: a console that takes their words as they are, messages, and a progress bar."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment

from fairfate.errors import Stopped, shown


class UserConsole(Console):
    """A console that takes users' words as they are: no markup, and nothing in them steers the terminal."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def print(self, *objects: Any, **options: Any) -> None:
        """As Rich's, which would leave some control characters out in silence."""
        super().print(*(shown(item) if isinstance(item, str) else item for item in objects), **options)

    def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
        """As Rich's, with what tables and other texts hold shown likewise."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else shown(text), style, control)

    def on_broken_pipe(self) -> None:
        """Nobody reads on, as with ``| head``: that is for the caller to notice."""
        raise BrokenPipeError


def console(**options: bool) -> Console:
    """A console for users."""
    return UserConsole(**options)


def say(message: str) -> None:
    """A message that is not a result."""
    console(stderr=True, soft_wrap=True).print(message)


class Bar(Progress):
    """A progress bar with the time left.

    It is drawn when progress is reported, and not by a thread of its own: a signal that comes while such a
    thread holds a lock could leave both waiting for ever.
    """

    def __init__(self, what: str, total: float | None, *, counts: bool = True) -> None:
        err = Console(stderr=True)
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn() if counts else TaskProgressColumn(),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=err,
            transient=True,
            auto_refresh=False,
            disable=not err.is_terminal,
        )
        self.what, self.task, self.drawn = what, self.add_task("starting", total=total), 0.0

    def stop(self) -> None:
        """Leave no trace of a bar that was never drawn: Rich before 14.3 ends it with an empty line."""
        if not self.disable:
            super().stop()

    def progress(self, amount: float) -> None:
        """So much work is done in all."""
        self.update(self.task, completed=amount, description=self.what)
        if time.monotonic() - self.drawn > 0.1:
            self.refresh()
            self.drawn = time.monotonic()

    def plan(self, total: float) -> None:
        """So much work there is."""
        self.update(self.task, total=total, refresh=True)


@contextmanager
def watching(folder: Path) -> Iterator[tuple[Callable[[float], None], Callable[[float], None]]]:
    """A progress bar with the time left; Ctrl-C keeps what is finished."""
    try:
        with Bar("running", None, counts=False) as bar:
            yield bar.progress, bar.plan
    except Stopped as stopped:
        stopped.advice = f"Finished jobs are kept in {folder}; the same command continues."
        raise

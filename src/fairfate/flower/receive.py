"""Sends messages and waits for their replies, one by one: a reply that cannot be read costs only itself."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from flwr.app import Error, Message
from flwr.serverapp import Grid

PAUSE = 0.5
"""Seconds between two looks for replies."""
UNREADABLE = 1000
"""The code of an error that stands for a reply which could not be read; Flower's own are below."""
ANSWER = 8 << 20
"""Bytes of a reply to a question that asks for no model."""
MOST_OBJECTS = 10_000
"""Parts of a reply."""
_GRID = "flwr.superlink.grid.http_grid"


class TooLargeError(ValueError):
    """A reply of more bytes than its question can have asked for."""


def receive(grid: Grid, messages: Sequence[Message], timeout: float, largest: int = ANSWER) -> list[Message]:
    """Send messages; returns the replies that come in time, in any order.

    Parameters
    ----------
    grid : Flower's way to the nodes
    messages : the questions
    timeout : seconds to wait for their replies
    largest : bytes that a reply may have; one that cannot be read, or has more, is an error in its place
    """
    end = time.monotonic() + timeout
    waiting = {
        identity: message
        for identity, message in zip(grid.push_messages(messages), messages, strict=True)
        if identity is not None
    }
    replies: list[Message] = []
    while waiting:
        for identity in list(waiting):
            found = _pull(grid, identity, waiting[identity], largest)
            if found:
                replies += found
                del waiting[identity]
        left = end - time.monotonic()
        if not waiting or left <= 0:
            break
        time.sleep(min(PAUSE, left))
    return replies


def _pull(grid: Grid, identity: str, question: Message, largest: int) -> list[Message]:
    """The reply to one message, if it has come."""
    try:
        with within(largest, _GRID):
            return list(grid.pull_messages([identity]))
    except (ConnectionError, TimeoutError):
        raise
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RuntimeError,
        ArithmeticError,
        MemoryError,
    ) as error:
        reason = f"a reply that cannot be read ({type(error).__name__}: {error})"
        return [Message(Error(UNREADABLE, reason), reply_to=question)]


@contextmanager
def within(largest: int, module_name: str) -> Iterator[None]:
    """Have one of Flower's modules give up a message before more than so many bytes of it are held."""
    module: Any = sys.modules.get(module_name)
    if module is None:
        yield
        return
    pull, inflate = module.pull_objects, module.inflate_object_from_contents

    def pull_within(object_ids: Iterable[str], pull_object_fn: Callable[[str], bytes], **options: Any) -> Any:
        names = list(object_ids)
        if len(set(names)) > MOST_OBJECTS or len(names) > MOST_OBJECTS:
            raise TooLargeError(f"more than {MOST_OBJECTS} parts")
        taken, lock = [0], threading.Lock()

        def pull_counted(name: str) -> bytes:
            content = pull_object_fn(name)
            with lock:
                taken[0] += len(content)
            if taken[0] > largest:
                raise TooLargeError(f"more than {largest} bytes")
            return content

        return pull(names, pull_counted, **options)

    def inflate_within(name: str, contents: dict[str, bytes], **options: Any) -> Any:
        if options.get("objects") is None:  # the message itself, and not a part of it
            size = inflated_size(contents)
            if size > largest:
                raise TooLargeError(f"{size} bytes, more than {largest}")
        return inflate(name, contents, **options)

    module.pull_objects, module.inflate_object_from_contents = pull_within, inflate_within
    try:
        yield
    finally:
        module.pull_objects, module.inflate_object_from_contents = pull, inflate


def inflated_size(contents: Mapping[str, bytes]) -> int:
    """The bytes that Flower's objects take once arrays have been put together from their chunks.

    An array may name one chunk many times.
    """
    from flwr.app.message.array import Array
    from flwr.supercore.inflatable.inflatable_object import (
        get_object_body,
        get_object_head_values_from_object_content,
    )

    total = 0
    for content in contents.values():
        kind, children, _ = get_object_head_values_from_object_content(content)
        total += len(content)
        if kind == Array.__qualname__:
            indices = json.loads(bytes(get_object_body(content, Array)))["arraychunk_ids"]
            total += sum(len(contents[children[index]]) for index in indices)
    return total

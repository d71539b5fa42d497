"""Texts of a column that people take for the same value."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from fairfate.data.columns import is_number, words
from fairfate.errors import listing

_INVISIBLE = {0x034F, *range(0xFE00, 0xFE10)}
"""Characters without a look of their own, beside those that Unicode calls format characters."""


def lookalikes(frame: pd.DataFrame, names: Iterable[str]) -> list[str]:
    """A note for each of some columns that holds texts which hardly differ; nothing is done to them."""
    notes = []
    for name in dict.fromkeys(names):
        if name not in frame.columns or is_number(frame[name]):
            continue
        found = words(frame[name])
        alike: dict[str, list[int]] = {}
        for index, text in enumerate(found.names):
            alike.setdefault(fold(text), []).append(index)
        rows = found.rows
        several = [indices for indices in alike.values() if len(indices) > 1]
        several.sort(key=lambda indices: -int(rows[indices].sum()))
        if several:
            told = listing((_listed([found.names[i] for i in of], rows[of]) for of in several), limit=3)
            notes.append(
                f"{name}: kept apart, though they differ only in capital letters, blanks, invisible"
                f" characters or the encoding of accents: {told}"
            )
    return notes


def fold(text: str) -> str:
    r"""A text without what people overlook.

    >>> fold(" Yes\u200b") == fold("yes"), fold("Z\u00fcrich") == fold("Zu\u0308rich")
    (True, True)
    """
    visible = "".join(character for character in text if not _is_invisible(character))
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", " ".join(visible.split())).casefold())


def _is_invisible(character: str) -> bool:
    return unicodedata.category(character) == "Cf" or ord(character) in _INVISIBLE


def _listed(texts: list[str], rows: np.ndarray[Any, Any]) -> str:
    """Texts with their rows; escaped where they would look the same."""
    seen = {unicodedata.normalize("NFC", "".join(c for c in text if not _is_invisible(c))) for text in texts}
    spelled = texts if len(seen) == len(texts) else [ascii(text)[1:-1] for text in texts]
    parts = [f"'{text}' ({count:,})" for text, count in zip(spelled, rows.tolist(), strict=True)]
    return " and ".join(parts)

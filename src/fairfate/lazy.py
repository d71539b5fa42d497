"""pandas, imported when it is first used: a fifth of a second that short commands need not wait for.

>>> from fairfate.lazy import pandas as pd
>>> pd.Series([1, 2]).sum().item()
3
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any


class _Lazy:
    """Stands for a module until one of its names is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


if TYPE_CHECKING:
    import pandas as pandas
else:
    pandas = _Lazy("pandas")

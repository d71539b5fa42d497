"""The page that package indexes show: the README, with links that lead into the repository from there too.

Everything else about the package is in pyproject.toml.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

HERE = Path(__file__).parent


def page() -> str:
    """The README as a reader sees it away from the repository."""
    source = tomllib.loads((HERE / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Source"]
    words = (HERE / "src" / "fairfate" / "_version.py").read_text("utf-8")
    tag = "v" + words.partition('__version__ = "')[2].partition('"')[0]
    text = (HERE / "README.md").read_text("utf-8")
    elsewhere = r"(?!\w+:|#)"
    text = re.sub(rf"(!\[[^\]]*\]\(|src=\"){elsewhere}", rf"\g<1>{source}/raw/{tag}/", text)
    return re.sub(rf"(\]\(|href=\"){elsewhere}", rf"\g<1>{source}/blob/{tag}/", text)


if __name__ == "__main__":
    from setuptools import setup

    setup(long_description=page(), long_description_content_type="text/markdown")

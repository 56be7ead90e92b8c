"""The one part of the metadata that is computed: the long description, README.md as a page that
stands alone. All else is in pyproject.toml."""

import re
from pathlib import Path

from setuptools import setup  # type: ignore[import-untyped]


def long_description(readme: str) -> str:
    """Return the README without pictures and links that lead to files of the checkout: a package
    index has none of those files. Pure."""
    alone = re.sub(r"!\[[^]]*\]\((?!https?:)[^)]*\)\n*", "", readme)
    return re.sub(r"\[([^]]*)\]\((?!https?:)[^)]*\)", r"\1", alone)


if __name__ == "__main__":
    setup(
        long_description=long_description(Path("README.md").read_text(encoding="utf-8")),
        long_description_content_type="text/markdown",
    )

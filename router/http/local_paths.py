"""Leaves the paths of this machine out of texts that clients get. Pure."""

import re
from collections.abc import Iterable
from typing import Final

_ROUTES: Final = (
    r"(?:v[0-9]|api|admin|docs|engines|health|metrics|tokenize|detokenize|rerank|score|status)\b"
)
"""The beginnings of lmx's own routes, which errors name as what to use."""

_WORD: Final = r"[^\s'\"`()\[\]{}<>,;:]"
_NAME: Final = r"[^\s'\"`()\[\]{}<>,;:/]"

_PATH: Final = re.compile(
    # It begins a word: addresses, fractions and places in JSON (#/a/b) are no paths.
    rf"(?<![\w./:#$)\]}}-])(?:~[\w.-]*)?/(?!{_ROUTES})"
    # Between quotes it goes up to their end; else a space is part of it only where more follows.
    rf"(?:(?<=['\"`]/)[^'\"`\n]+|{_WORD}+(?:[ ]+{_NAME}+/{_WORD}+)*)"
)

_HIDDEN: Final = "[path]"


def without_paths(text: str, sources: Iterable[str] = ()) -> str:
    """Return a text with ``[path]`` in the place of each absolute path. ``sources`` are those of
    models that it may be about: folders among them are known whatever their names are. Of any other
    path with a space in its last name, the end stays, unless the path is between quotes."""
    for source in sources:
        if source.startswith(("/", "~")):
            text = text.replace(source, _HIDDEN)
    return _PATH.sub(_HIDDEN, text)

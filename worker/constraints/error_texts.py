"""Explains why an answer can't be held to a form, in lmx's words instead of llguidance's. Pure.

llguidance names its own options and limits, which a client can't set.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

TOO_COMPLEX: Final = (
    "it is too complex: it needs fewer alternatives, or repetitions and lengths that are smaller "
    "or not combined"
)
UNSPELLABLE: Final = "it asks for a character that this model has no tokens for"
LONE_SURROGATE: Final = "it has half of a character, a lone surrogate"
_NOTHING_FITS: Final = "nothing that this model can write fits it"
_NOT_ENFORCED: Final = "it has something that can't be enforced"

_MAX_CHARS: Final = 200

# The first pattern that matches decides. {0} is the pattern's group.
_WORDS: Final[Sequence[tuple[str, str]]] = (
    (r"recursion|nested|nesting", "it is nested too deeply"),
    (
        r"too many expressions|too (?:many|complex|big|large)|items; max|TooComplex|fuel|limit",
        TOO_COMPLEX,
    ),
    (r"NoExtension", _NOTHING_FITS),
    (r"intersection stack level", "its schemas are combined too deeply"),
    (
        r"circular references",
        "a schema leads back to itself where it is combined with others, which can't be enforced",
    ),
    (r"forced bytes|doesn't satisfy the grammar", UNSPELLABLE),
    (r"oneOf constraints", "a oneOf of schemas that may hold at once can't be enforced: use anyOf"),
    (r"Unsatisfiable schema", "nothing satisfies it"),
    (r"decimal literal invalid", "a length or a repetition in it is too large"),
    (r"lookarounds not supported", "its regular expression has a boundary or an anchor inside"),
    (r"(?s)regex parse error.*error: (.*)", "its regular expression can't be enforced: {0}"),
    (r"Pointer '(.*)' does not exist", 'its "$ref" leads nowhere: {0}'),
    (r"Resource '(.*)' is not present", 'its "$ref" leads to {0}, and nothing is fetched'),
    (r'unknown special token: "(<[^>]*>)"', "it names a token that this model doesn't have: {0}"),
    (r"unknown grammar (@\S*)", "it refers to another grammar, {0}"),
    (r"lone (?:leading|trailing) surrogate|hex escape", LONE_SURROGATE),
)
_OF_LARK: Final[Sequence[tuple[str, str]]] = (
    (r"^(?:at )?(\d+)\((\d+)\): lexer error", "line {0}, column {1} is not Lark"),
    (r"^(?:at )?(\d+)\((\d+)\): (.*)", "line {0}, column {1}: {2}"),
)
_UNKNOWN_KEYS: Final = re.compile(r"Unimplemented keys: (\[.*?\])")
# A message with such words is not shown: they name an option, or how llguidance works.
_INTERNAL: Final = re.compile(r"option|[a-z]+_[a-z]+|lexeme|llguidance|avoid|serde|panic", re.I)


def explain_error(error: str, *, lark: bool = False) -> str:
    """Return the meaning of an llguidance error for the client that sent the form. If the client
    wrote it in ``lark``, llguidance's message about its lines is kept."""
    error = error.replace("<non-verbose/>", "").strip()
    if keys := unenforced_keys(error):
        return f"{' and '.join(f'`{key}`' for key in keys)} can't be enforced"
    for pattern, words in (*_WORDS, *_OF_LARK) if lark else _WORDS:
        if found := re.search(pattern, error):
            text = words.format(*(group.splitlines()[0] for group in found.groups()))
            return text[:_MAX_CHARS]
    first = error.partition("\n")[0][:_MAX_CHARS]
    return first if lark and first and not _INTERNAL.search(first) else _NOT_ENFORCED


def unenforced_keys(error: str) -> list[str]:
    """Return the keywords of a JSON schema that, by an error, can't be enforced."""
    found = _UNKNOWN_KEYS.search(error)
    keys: list[str] = json.loads(found[1]) if found else []
    return keys


def has_lone_surrogate(text: str) -> bool:
    """Return whether a text has half of a surrogate pair, which UTF-8 can't express."""
    return any("\ud800" <= char <= "\udfff" for char in text)


def parts(schema: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every object in a schema that may be a schema, and the path that leads to it."""
    left: list[tuple[str, Any]] = [("", schema)]
    while left:
        path, found = left.pop(0)
        if isinstance(found, dict):
            yield path, found
            left += [(f"{path}.{key}", one) for key, one in found.items()]
        elif isinstance(found, list):
            left += [(f"{path}[{index}]", one) for index, one in enumerate(found)]

"""Tool calls that mlx-vlm's own parsers read: each is passed to them when its end marker has come.

The parsers are loaded without the rest of mlx-vlm.
"""

import functools
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from lmx.worker.formats.forms.json import json_text, object_of
from lmx.worker.text.feed import PartSink, Steps, TextFeed

_PREFIX: Final = "lmx_mlx_vlm_tools_"


@functools.cache
def family_registry() -> ModuleType:
    """Return the table that recognises a family by its chat template."""
    return _load("registry")


@functools.cache
def family_parser(name: str) -> ModuleType:
    """Return the parser of one family, by its name in the registry."""
    return _load(f"parsers/{name}")


def _parse_call(name: str, text: str, tools: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return the calls in ``text``, the text between the family's two markers.

    Their form is the parser's. Raises ``ValueError`` if the parser finds no call in the text.
    """
    try:
        parsed = family_parser(name).parse_tool_call(text, tools)
    except Exception as error:
        # The parsers are written for whole, well-formed calls, and raise anything for others.
        raise ValueError(f"not a call: {error}") from error
    return parsed if isinstance(parsed, list) else [parsed]


def _load(path: str) -> ModuleType:
    """Load one file of the package. Importing the package itself takes 1.8 s and brings mlx,
    transformers and a web framework; each of these files needs nothing of it."""
    package = importlib.util.find_spec("mlx_vlm")
    assert package is not None
    assert package.submodule_search_locations is not None
    file = Path(package.submodule_search_locations[0], "tools", f"{path}.py")
    name = _PREFIX + path.replace("/", "_")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # This is needed because dataclasses look their own module up.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def read_block(
    feed: TextFeed, sink: PartSink, parser: str, end: str, prefix: str = ""
) -> Steps[bool]:
    """Read up to and including ``end``, and parse the text with ``prefix`` before it.

    Returns False if it is no call, or a call of an unknown tool. A block without its end is no
    call: some of the parsers would take the cut text for the whole.
    """
    text: list[str] = []
    if not (yield from feed.until((end,), text.append)):
        return False
    try:
        parsed = _parse_call(parser, prefix + "".join(text).strip(), sink.tools)
        calls = [_checked(call) for call in parsed]
    except (ValueError, TypeError, KeyError, AttributeError):
        return False
    if not calls or any(name not in sink.names for name, _ in calls):
        return False
    for name, arguments in calls:
        sink.begin_call(name)
        sink.arguments(arguments)
    return True


def _checked(call: Any) -> tuple[str, str]:
    arguments = call["arguments"]
    if isinstance(arguments, str):
        arguments = object_of(arguments)
    if not isinstance(arguments, dict):
        raise TypeError("arguments are no object")
    return call["name"].strip(), json_text(arguments)

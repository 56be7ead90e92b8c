"""The fallback for families that mlx-vlm knows and lmx does not: a later release of the library may
add one."""

from __future__ import annotations

from functools import partial

from lmx.worker.formats.family import CallForm, Family
from lmx.worker.formats.forms.block import read_block
from lmx.worker.formats.registry import family_parser


def library_family(name: str) -> Family:
    """Return a family whose calls are read by mlx-vlm's parser of that name, each when it is
    complete.

    lmx has no grammar of it, so enforced calls are JSON. If the library has no such parser, or one
    that doesn't say how its calls begin and end, only JSON is read.
    """
    try:
        parser = family_parser(name)
        start, end = parser.tool_call_start, parser.tool_call_end
        if not start or not callable(parser.parse_tool_call):
            raise AttributeError("it says not how calls begin")
    except (ImportError, OSError, AttributeError) as error:
        return Family(
            name,
            remark=f"The model calls tools in the form {name!r}, which lmx does not know and the "
            f"engine's library has no parser for ({error}): only calls in JSON are read.",
        )
    # To the library, a call without an end mark ends with its line.
    form = CallForm(start, end, partial(read_block, parser=name, end=end or "\n"))
    return Family(
        name,
        calls=(form,),
        remark=f"The model calls tools in the form {name!r}, which lmx does not know: calls are "
        "read by the engine's library, and not enforced in that form; where a call must be made, "
        "it is held to JSON.",
    )

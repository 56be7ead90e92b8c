"""JSON in ``<tool_call>``, as Hermes introduced it: Qwen, EXAONE, SmolLM3 and most others.

Grammars use this form for every call that a family's own form can't express, and for models whose
template knows no tools.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from lmx.worker.formats.family import CallForm, CallGrammar, Family
from lmx.worker.formats.forms.bare import read_bare_calls
from lmx.worker.formats.forms.json import json_call, read_json_calls

_END: Final = "</tool_call>"

JSON_CALLS: Final = CallGrammar(
    json_call('<tool_call>\n{"name": $json_name, "arguments": ', "}\n</tool_call>"), between="\n"
)

JSON_TOOLS: Final = Family(
    name="json_tools",
    calls=(
        CallForm("<tool_call>", _END, partial(read_json_calls, end=_END)),
        # Models write the plural now and then.
        CallForm("<tool_calls>", "</tool_calls>", partial(read_json_calls, end="</tool_calls>")),
    ),
    grammar=JSON_CALLS,
    read_bare=read_bare_calls,
)

"""Llama 3.1 to 3.3: an answer is one call as a JSON object, without a mark. Source: their chat
templates, which ask for this form, and refuse a second call in a message.
"""

from __future__ import annotations

from typing import Final

from lmx.worker.formats.families.json.json_tools import JSON_TOOLS
from lmx.worker.formats.families.tags.qwen3_coder import QWEN3_CODER
from lmx.worker.formats.family import CallGrammar, Family, UnmarkedForm
from lmx.worker.formats.forms.bare import read_bare_calls
from lmx.worker.formats.forms.json import json_call

LLAMA3: Final = Family(
    name="llama3_json",
    # The second is the form that Llama 3.1's documentation gives for tools of one's own.
    calls=(*JSON_TOOLS.calls, *QWEN3_CODER.calls[1:]),
    grammar=CallGrammar(json_call('{"name": $json_name, "parameters": ', "}"), several=False),
    read_bare=read_bare_calls,
    unmarked=UnmarkedForm(
        # The models now and then write OpenAI's ``type`` before the name.
        before=r'\s*\{{\s*("type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"{}"\s*,'
        r'\s*"(parameters|arguments)"\s*:\s*',
        after=r"\s*\}",
        enforced='{"name": "...", "parameters": {...}}',
    ),
    template_marks=(("<|python_tag|>",), ("dictionary of argument name and its value",)),
)

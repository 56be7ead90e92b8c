"""Phi-4-mini: an array of calls between two tokens. Source: its tokenizer and model card."""

from __future__ import annotations

from typing import Final

from lmx.worker.formats.family import Family
from lmx.worker.formats.forms.bare import read_bare_calls
from lmx.worker.formats.forms.json import json_array

_FORM, _GRAMMAR = json_array("<|tool_call|>", "<|/tool_call|>")
# What the model writes without its tokens.
_WORD, _ = json_array("functools", "")

PHI4: Final = Family(
    name="phi4",
    calls=(_FORM, _WORD),
    grammar=_GRAMMAR,
    read_bare=read_bare_calls,
    template_marks=(("<|tool|>", "<|/tool|>"),),
)

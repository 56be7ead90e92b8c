"""Granite 3: an array of calls behind a token. Source: its chat template. Granite 4 writes JSON."""

from __future__ import annotations

from typing import Final

from lmx.worker.formats.family import Family
from lmx.worker.formats.forms.bare import read_bare_calls
from lmx.worker.formats.forms.json import json_array

_FORM, _GRAMMAR = json_array("<|tool_call|>", "")

GRANITE: Final = Family(
    name="granite",
    calls=(_FORM,),
    grammar=_GRAMMAR,
    read_bare=read_bare_calls,
    template_marks=(("<|tool_call|>",),),
)

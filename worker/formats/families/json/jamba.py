"""Jamba and Hunyuan A13B: an array of calls in ``<tool_calls>``. Source: their chat templates."""

from __future__ import annotations

from typing import Final

from lmx.worker.formats.families.json.hunyuan import HUNYUAN
from lmx.worker.formats.family import Family
from lmx.worker.formats.forms.bare import read_bare_calls
from lmx.worker.formats.forms.json import json_array

_, _GRAMMAR = json_array("<tool_calls>", "</tool_calls>")

JAMBA: Final = Family(
    name="jamba",
    # Hunyuan's models read each other's form, and templates don't always show which one it is.
    calls=HUNYUAN.calls,
    grammar=_GRAMMAR,
    read_bare=read_bare_calls,
    template_marks=(("<tool_calls>",),),
)

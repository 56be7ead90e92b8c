"""Nemotron (Nano v2, Super v1.5): an array of calls in ``<TOOLCALL>``. Source: their templates."""

from __future__ import annotations

from typing import Final

from lmx.worker.formats.family import Family
from lmx.worker.formats.forms.bare import read_bare_calls
from lmx.worker.formats.forms.json import json_array

_FORM, _GRAMMAR = json_array("<TOOLCALL>", "</TOOLCALL>")

NEMOTRON: Final = Family(
    name="nemotron",
    calls=(_FORM,),
    grammar=_GRAMMAR,
    read_bare=read_bare_calls,
    template_marks=(("<TOOLCALL>",),),
)

"""Gemma 4."""

from __future__ import annotations

from functools import partial
from typing import Final

from lmx.worker.formats.family import CallForm, CallGrammar, Family
from lmx.worker.formats.forms.braces import BraceForm, brace_call, read_brace_call

_FORM: Final = BraceForm(start="<|tool_call>", end="<tool_call|>", quote='<|"|>')

GEMMA4: Final = Family(
    name="gemma4",
    calls=(CallForm(_FORM.start, _FORM.end, partial(read_brace_call, form=_FORM), (_FORM.quote,)),),
    grammar=CallGrammar(brace_call(_FORM)),
)

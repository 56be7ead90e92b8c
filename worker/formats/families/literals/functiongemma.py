"""FunctionGemma: Gemma 4's form with marks of its own. Source: Google's documentation of its
formatting.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from lmx.worker.formats.family import CallForm, CallGrammar, Family
from lmx.worker.formats.forms.bare import read_bare_calls
from lmx.worker.formats.forms.braces import BraceForm, brace_call, read_brace_call

_FORM: Final = BraceForm(start="<start_function_call>", end="<end_function_call>", quote="<escape>")

FUNCTIONGEMMA: Final = Family(
    name="functiongemma",
    calls=(CallForm(_FORM.start, _FORM.end, partial(read_brace_call, form=_FORM), (_FORM.quote,)),),
    grammar=CallGrammar(brace_call(_FORM)),
    read_bare=read_bare_calls,
    template_marks=((_FORM.start,),),
)

"""Olmo 3: Python calls on lines of their own, with JSON's words for true, false and null. Source:
its chat template, and the parsers that servers have for it.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from lmx.worker.formats.family import CallForm, CallGrammar, Family
from lmx.worker.formats.forms.bare import read_bare_calls
from lmx.worker.formats.forms.python import python_call, read_python_calls

_START: Final = "<function_calls>"
_END: Final = "</function_calls>"

OLMO3: Final = Family(
    name="olmo3",
    calls=(CallForm(_START, _END, partial(read_python_calls, end=_END)),),
    grammar=CallGrammar(python_call, open=f"{_START}\n", between="\n", close=f"\n{_END}"),
    read_bare=read_bare_calls,
    template_marks=((_START,),),
)

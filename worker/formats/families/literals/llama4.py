"""Llama 4: a list of Python calls, between two tokens or bare; JSON is read too, as with Llama 3.
Source: Meta's prompt format of Llama 4, and its chat template.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from lmx.worker.formats.family import CallForm, CallGrammar, Family
from lmx.worker.formats.forms.bare import read_bare_calls
from lmx.worker.formats.forms.python import python_call, read_python_calls

_START: Final = "<|python_start|>"
_END: Final = "<|python_end|>"


LLAMA4: Final = Family(
    name="llama4",
    calls=(CallForm(_START, _END, partial(read_python_calls, end=_END)),),
    grammar=CallGrammar(python_call, open=f"{_START}[", between=", ", close=f"]{_END}"),
    read_bare=read_bare_calls,
    template_marks=((_START,),),
)

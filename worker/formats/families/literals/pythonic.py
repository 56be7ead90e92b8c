"""LFM2: a list of Python calls between two tokens."""

from __future__ import annotations

from functools import partial
from typing import Final

from lmx.worker.formats.family import CallForm, CallGrammar, Family
from lmx.worker.formats.forms.bare import read_bare_calls
from lmx.worker.formats.forms.python import python_call, read_python_calls

_START: Final = "<|tool_call_start|>"
_END: Final = "<|tool_call_end|>"

PYTHONIC: Final = Family(
    name="pythonic",
    calls=(CallForm(_START, _END, partial(read_python_calls, end=_END)),),
    grammar=CallGrammar(python_call, open=f"{_START}[", between=", ", close=f"]{_END}"),
    read_bare=read_bare_calls,
)

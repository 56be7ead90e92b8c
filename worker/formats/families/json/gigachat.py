"""GigaChat 3: a message of the role ``function call`` with one call as JSON. Source: its chat
template.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from lmx.worker.formats.family import CallForm, CallGrammar, Family
from lmx.worker.formats.forms.bare import read_bare_calls
from lmx.worker.formats.forms.json import json_call, read_json_calls

_START: Final = "function call<|role_sep|>"

GIGACHAT: Final = Family(
    name="gigachat",
    calls=(CallForm(_START, "", partial(read_json_calls, end="")),),
    grammar=CallGrammar(
        json_call(f'{_START}\n{{"name": $json_name, "arguments": ', "}"), several=False
    ),
    read_bare=read_bare_calls,
    template_marks=(("function call", "<|role_sep|>"),),
)

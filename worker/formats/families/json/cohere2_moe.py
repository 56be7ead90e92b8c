"""Cohere's Command models: an array of calls between two tokens."""

from __future__ import annotations

import json
from functools import partial
from typing import Final

from lmx.worker.formats.family import (
    CallForm,
    CallGrammar,
    Family,
    Rules,
    SpecialTokens,
    Tool,
)
from lmx.worker.formats.forms.json import CallKeys, json_arguments, read_json_calls

_END: Final = "<|END_ACTION|>"
_KEYS: Final = CallKeys(("tool_name", "name"), ("parameters",))


def _call(rules: Rules, tool: Tool, special: SpecialTokens) -> str:
    opening = special.lark('{"tool_call_id": "')
    middle = special.lark(f'", "tool_name": {json.dumps(tool.name)}, "parameters": ')
    return f'{opening} /[0-9]{{1,3}}/ {middle} {json_arguments(tool)} "}}"'


COHERE2_MOE: Final = Family(
    name="cohere2_moe",
    calls=(CallForm("<|START_ACTION|>", _END, partial(read_json_calls, end=_END, keys=_KEYS)),),
    grammar=CallGrammar(
        _call, open="<|START_ACTION|>[\n    ", between=",\n    ", close=f"\n]{_END}"
    ),
)

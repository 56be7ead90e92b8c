"""MiniMax M3: a tag of its own for each argument and each member, at any depth."""

from __future__ import annotations

from functools import partial
from typing import Final

from lmx.worker.formats.family import CallForm, Family
from lmx.worker.formats.forms.block import read_block

_START: Final = "]<]minimax[>[<tool_call>"
_END: Final = "]<]minimax[>[</tool_call>"

MINIMAX_M3: Final = Family(
    name="minimax_m3",
    calls=(CallForm(_START, _END, partial(read_block, parser="minimax_m3", end=_END)),),
)

"""Muse ("ATEM"): ``<atem:invoke>`` with a tag for each argument."""

from __future__ import annotations

from functools import partial
from typing import Final

from lmx.worker.formats.family import CallForm, Family
from lmx.worker.formats.forms.block import read_block

_END: Final = "</atem:function_calls>"

ATEM: Final = Family(
    name="atem",
    calls=(CallForm("<atem:function_calls>", _END, partial(read_block, parser="atem", end=_END)),),
)

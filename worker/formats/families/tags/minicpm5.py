"""MiniCPM 5: ``<function name=...><param name=...>``, text in it escaped as in XML."""

from __future__ import annotations

from functools import partial
from typing import Final

from lmx.worker.formats.family import CallForm, Family
from lmx.worker.formats.forms.block import read_block

_END: Final = "</function>"
_READ: Final = partial(read_block, parser="minicpm5", end=_END, prefix="name=")

MINICPM5: Final = Family(
    name="minicpm5",
    calls=(CallForm("<function name=", _END, _READ, ("<param", "</param>")),),
)

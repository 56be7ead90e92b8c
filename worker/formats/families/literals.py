"""Families whose arguments are literals: Python's, or those of Gemma's own."""

from dataclasses import replace
from functools import partial
from typing import Final

from lmx.worker.formats.family import CallForm, CallGrammar, Family
from lmx.worker.formats.forms.braces import BraceForm, brace_call, read_brace_call
from lmx.worker.formats.forms.python import python_call, read_bare_calls, read_python_calls

# Gemma 4 and FunctionGemma: the same form with different markers. Source: Google's documentation of
# FunctionGemma's formatting.


def _brace_calls(form: BraceForm) -> tuple[CallForm, ...]:
    return (CallForm(form.start, form.end, partial(read_brace_call, form=form), (form.quote,)),)


_FUNCTIONGEMMA_FORM: Final = BraceForm(
    start="<start_function_call>", end="<end_function_call>", quote="<escape>"
)
_FUNCTIONGEMMA: Final = Family(
    name="functiongemma",
    calls=_brace_calls(_FUNCTIONGEMMA_FORM),
    grammar=CallGrammar(brace_call(_FUNCTIONGEMMA_FORM)),
    read_bare=read_bare_calls,
    template_markers=(("<start_function_call>",),),
)

_GEMMA4_FORM: Final = BraceForm(start="<|tool_call>", end="<tool_call|>", quote='<|"|>')
_GEMMA4: Final = Family(
    name="gemma4", calls=_brace_calls(_GEMMA4_FORM), grammar=CallGrammar(brace_call(_GEMMA4_FORM))
)

# Calls in Python. Llama 4 writes a list of them, between two tokens or bare (source: Meta's
# prompt format, and its chat template); LFM2 a list between two tokens ("pythonic" to mlx-vlm);
# Olmo 3 each on a line of its own, with JSON's words for true, false and null (source: its chat
# template, and the parsers that servers have for it).


def _python(name: str, start: str, end: str, between: str = ", ", is_list: bool = True) -> Family:
    opening, closing = ("[", "]") if is_list else (between, between)
    return Family(
        name=name,
        calls=(CallForm(start, end, partial(read_python_calls, end=end)),),
        grammar=CallGrammar(
            python_call, open=start + opening, between=between, close=closing + end
        ),
        read_bare=read_bare_calls,
        template_markers=((start,),),
    )


_LLAMA4: Final = _python("llama4", "<|python_start|>", "<|python_end|>")
_PYTHONIC: Final = replace(
    _python("pythonic", "<|tool_call_start|>", "<|tool_call_end|>"), template_markers=()
)
_OLMO3: Final = _python("olmo3", "<function_calls>", "</function_calls>", "\n", is_list=False)

LITERAL_FAMILIES: Final = (_FUNCTIONGEMMA, _GEMMA4, _LLAMA4, _OLMO3, _PYTHONIC)
"""Of several that a chat template shows, the first counts."""

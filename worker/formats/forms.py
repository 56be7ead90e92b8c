"""The forms in which models call tools: which one a model has, and how it is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from lmx.worker.engine import ReasoningMarkers
from lmx.worker.formats import harmony
from lmx.worker.formats.gemma import GEMMA_END, GEMMA_QUOTE, read_gemma_call
from lmx.worker.formats.json import (
    COHERE_KEYS,
    JSON_END,
    JSON_START,
    read_block,
    read_json_calls,
    read_kimi_calls,
    read_mistral_calls,
)
from lmx.worker.formats.registry import family_registry
from lmx.worker.formats.xml import GLM, LONGCAT, MINIMAX_M2, QWEN3_CODER, read_xml_calls
from lmx.worker.text.feed import PartSink, Steps, TextFeed

Reader = Callable[[TextFeed, PartSink], Steps[bool]]

JSON_TOOLS: Final = "json_tools"
HARMONY: Final = "harmony"

# An added token " " or "name" is a part of some mark, and is none.
_MARK_BEGINS: Final = ("<", "[", "]", "◁")


class CallForm(NamedTuple):
    """``start`` begins a call, ``read`` reads on from there, up to and including ``end``.

    ``end`` "": the call ends by itself. ``tokens`` are special tokens in between.
    """

    start: str
    end: str
    read: Reader
    tokens: tuple[str, ...] = ()


def _block(parser: str, start: str, end: str, prefix: str = "", tokens: Any = ()) -> CallForm:
    return CallForm(start, end, partial(read_block, parser=parser, end=end, prefix=prefix), tokens)


_JSON_FORM: Final = CallForm(JSON_START, JSON_END, partial(read_json_calls, end=JSON_END))
_FORMS: Final[Mapping[str, CallForm]] = {
    JSON_TOOLS: _JSON_FORM,
    "qwen3_coder": CallForm(
        "<tool_call>", QWEN3_CODER.end, partial(read_xml_calls, form=QWEN3_CODER)
    ),
    "glm47": CallForm(
        "<tool_call>",
        GLM.end,
        partial(read_xml_calls, form=GLM),
        ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ),
    "longcat": CallForm(
        "<longcat_tool_call>",
        LONGCAT.end,
        partial(read_xml_calls, form=LONGCAT),
        (
            "<longcat_arg_key>",
            "</longcat_arg_key>",
            "<longcat_arg_value>",
            "</longcat_arg_value>",
        ),
    ),
    "minimax_m2": CallForm(
        "<minimax:tool_call>", MINIMAX_M2.end, partial(read_xml_calls, form=MINIMAX_M2)
    ),
    "cohere2_moe": CallForm(
        "<|START_ACTION|>",
        "<|END_ACTION|>",
        partial(read_json_calls, end="<|END_ACTION|>", keys=COHERE_KEYS),
    ),
    "mistral": CallForm("[TOOL_CALLS]", "", read_mistral_calls, ("[ARGS]", "[CALL_ID]")),
    "kimi_k2": CallForm(
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        read_kimi_calls,
        ("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    ),
    "gemma4": CallForm("<|tool_call>", GEMMA_END, read_gemma_call, (GEMMA_QUOTE,)),
    "minimax_m3": _block("minimax_m3", "]<]minimax[>[<tool_call>", "]<]minimax[>[</tool_call>"),
    "minicpm5": _block(
        "minicpm5", "<function name=", "</function>", "name=", ("<param", "</param>")
    ),
    "pythonic": _block("pythonic", "<|tool_call_start|>", "<|tool_call_end|>"),
    "atem": _block("atem", "<atem:function_calls>", "</atem:function_calls>"),
}


def parser_for(chat_template: Any, override: str | None) -> str | None:
    """Return the name of the form that a chat template shows, or ``override``.

    None when it shows none of them. Names and marks are those of mlx-vlm's registry. Raises
    ``ValueError`` for an unknown ``override``.
    """
    specs = family_registry().SPECS
    if override is not None:
        names = sorted(spec.name for spec in specs)
        if override not in names:
            raise ValueError(f"{override!r} is no tool parser: use one of {', '.join(names)}")
        return override
    text = _template_text(chat_template)
    matching = [spec for spec in specs if spec.matches(text)]
    return str(max(matching, key=lambda spec: spec.priority).name) if matching else None


def call_forms(tool_parser: str | None) -> tuple[CallForm, ...]:
    """Return the forms to look for. The one in JSON is always among them: it is the one that
    grammars fall back to. Not for ``HARMONY``, which is no form of calls alone."""
    form = _FORMS[tool_parser or JSON_TOOLS]
    return (form,) if form.start == _JSON_FORM.start else (form, _JSON_FORM)


def marker_ids(
    tokenizer: Any, tool_parser: str | None, reasoning: ReasoningMarkers | None
) -> frozenset[int]:
    """Return the special tokens that must stay text, for an answer to be parsed by them.

    Marks that are no token of their own may be made of several, so parts of marks count.
    """
    texts: list[str] = []
    if tool_parser == HARMONY:
        texts += harmony.TOKENS
    else:
        for form in call_forms(tool_parser):
            texts += (form.start, form.end, *form.tokens)
    if reasoning is not None:
        texts += (reasoning.start, reasoning.end)
        if reasoning.start == harmony.THINKING:
            texts += harmony.TOKENS
    return frozenset(
        number
        for token, number in tokenizer.get_added_vocab().items()
        if token[:1] in _MARK_BEGINS and len(token) > 2 and any(token in text for text in texts)
    )


def _template_text(chat_template: Any) -> str:
    """Return the template that is used with tools, of a tokenizer that may have several."""
    if isinstance(chat_template, dict):
        chat_template = chat_template.get("tool_use") or chat_template.get("default")
    return chat_template if isinstance(chat_template, str) else ""

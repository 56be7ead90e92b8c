"""The marks with which families of models enclose their thinking."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from lmx.worker.engine import ReasoningMarkers
from lmx.worker.formats.families import harmony


class _Form(NamedTuple):
    """The marks of a family."""

    start: str
    end: str
    token: str | None = None
    """The special token with which ``start`` begins. None: it is all of ``start``."""


_FORMS: Final = (
    # gpt-oss
    _Form(harmony.THINKING, harmony.END, harmony.CHANNEL),
    # Gemma 4
    _Form("<|channel>thought", "<channel|>", "<|channel>"),
    # Command A, Command R
    _Form("<|START_THINKING|>", "<|END_THINKING|>"),
    # Magistral, Ministral
    _Form("[THINK]", "[/THINK]"),
    # Seed-OSS
    _Form("<seed:think>", "</seed:think>"),
    # MiniMax M3
    _Form("<mm:think>", "</mm:think>"),
    # LongCat
    _Form("<longcat_think>", "</longcat_think>"),
    # Kimi-VL
    _Form("◁think▷", "◁/think▷"),
    # EXAONE 3.5 and 4
    _Form("<thought>", "</thought>"),
    # Qwen3, DeepSeek, GLM, MiniMax M2, Kimi K2, SmolLM3 and most others
    _Form("<think>", "</think>"),
)


def find_markers(tokenizer: Any) -> ReasoningMarkers | None:
    """Return the marks of the model's thinking; None if it doesn't think.

    Both marks are single tokens that occur in the chat template or were added to the vocabulary on
    purpose. For gpt-oss and Gemma 4 ``start`` is longer than its token, and after gpt-oss's ``end``
    comes the header of another message, not the answer.
    """
    vocabulary = tokenizer.get_vocab()
    added = tokenizer.get_added_vocab()
    template = str(tokenizer.chat_template or "")
    for form in _FORMS:
        token = form.token or form.start
        if token not in vocabulary or form.end not in vocabulary:
            continue
        if form.start in template or form.end in template or {token, form.end} <= added.keys():
            if form.token == harmony.CHANNEL and "analysis" not in template:
                continue
            return ReasoningMarkers(form.start, form.end, vocabulary[token], vocabulary[form.end])
    return None

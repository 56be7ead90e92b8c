"""The markers with which families of models enclose their thinking."""

from collections.abc import Collection
from typing import Any, Final, NamedTuple

from lmx.worker.engine.values import ReasoningMarkers
from lmx.worker.formats.families import harmony
from lmx.worker.formats.families.tags import MUSE_MESSAGES


class ThinkingForm(NamedTuple):
    """The markers of a family."""

    start: str
    end: str
    token: str | None = None
    """The special token in ``start``, if it is not all of ``start``. Models whose
    vocabulary has no such token don't have this form."""
    only_first: bool = False
    """Whether the markers are words, which may also stand in any answer."""


FORMS: Final = (
    ThinkingForm(harmony.THINKING, harmony.END, harmony.CHANNEL),  # gpt-oss
    ThinkingForm(
        MUSE_MESSAGES.thinking.start, MUSE_MESSAGES.thinking.end, MUSE_MESSAGES.body
    ),  # Muse
    ThinkingForm("<|channel>thought", "<channel|>", "<|channel>"),  # Gemma 4
    ThinkingForm("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A, Command R
    ThinkingForm("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
    ThinkingForm("[THINK]", "[/THINK]"),  # Magistral, Ministral
    ThinkingForm("<seed:think>", "</seed:think>"),  # Seed-OSS
    ThinkingForm("<mm:think>", "</mm:think>"),  # MiniMax M3
    ThinkingForm("<longcat_think>", "</longcat_think>"),  # LongCat
    ThinkingForm("◁think▷", "◁/think▷"),  # Kimi-VL
    ThinkingForm("<|think:start|>", "<|think:end|>"),  # known to mlx-lm
    ThinkingForm("<|begin_of_thought|>", "<|end_of_thought|>"),  # OpenThinker, Sky-T1
    ThinkingForm("<thought>", "</thought>"),  # EXAONE 3.5 and 4
    # Qwen3, DeepSeek, GLM, MiniMax M2, Kimi K2, SmolLM3 and most others; as ordinary text Nemotron,
    # Olmo 3, Hunyuan A13B, Granite 3.3 and the earlier Magistral
    ThinkingForm("<think>", "</think>"),
    # Granite 3.2
    ThinkingForm("Here is my thought process:", "Here is my response:", only_first=True),
    # Apriel
    ThinkingForm("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]", only_first=True),
)

_THINK: Final = {"<think>", "</think>"}

# The markers around an answer that follows the thinking: Hunyuan and GLM-4.1V; Granite 3.3 and
# ERNIE; OpenThinker; Command R7B; Command A.
_ANSWERS: Final = (
    ("<answer>", "</answer>"),
    ("<response>", "</response>"),
    ("<|begin_of_solution|>", "<|end_of_solution|>"),
    ("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ("<|START_TEXT|>", "<|END_TEXT|>"),
)


def find_markers(tokenizer: Any) -> ReasoningMarkers | None:
    """Return the markers of the model's thinking; None if it doesn't think.

    Both markers are tokens that occur in the chat template or were added to the vocabulary on
    purpose; or else they are ordinary text, of any number of tokens, and the template has one of
    them, or both if they are words. For gpt-oss and Gemma 4 ``start`` is longer than its token, and
    after gpt-oss's ``end`` comes the header of another message, not the answer.
    """
    vocabulary = tokenizer.get_vocab()
    added = tokenizer.get_added_vocab()
    template = str(tokenizer.chat_template or "")
    for form in FORMS:
        tokens = {form.token or form.start, form.end}
        shown = [marker in template for marker in (form.start, form.end)]
        if tokens <= vocabulary.keys():
            found = any(shown) or tokens <= added.keys()
        elif form.only_first:
            found = all(shown)
        else:
            found = form.token is None and any(shown)
        if found and _is_meant(form, template, added):
            return ReasoningMarkers(form.start, form.end, form.only_first, _answer_marks(template))
    return None


def _is_meant(form: ThinkingForm, template: str, added: Collection[str]) -> bool:
    """Return whether tokens that other models have too are the markers of this form."""
    if form.token == harmony.CHANNEL:
        return "analysis" in template
    if form.token == MUSE_MESSAGES.body:
        return "to=self" in template or not _THINK.issubset(added)
    return True


def _answer_marks(template: str) -> tuple[str, str]:
    found = (pair for pair in _ANSWERS if all(marker in template for marker in pair))
    return next(found, ("", ""))

"""The table of all families, and the choice of a model's family."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from typing import Any, Final

import structlog

from lmx.worker.engine import ReasoningMarkers
from lmx.worker.formats.families.harmony import HARMONY, THINKING
from lmx.worker.formats.families.json.apertus import APERTUS
from lmx.worker.formats.families.json.cohere2_moe import COHERE2_MOE
from lmx.worker.formats.families.json.deepseek_v3 import DEEPSEEK_V3, DEEPSEEK_V31
from lmx.worker.formats.families.json.gigachat import GIGACHAT
from lmx.worker.formats.families.json.glm4 import GLM4
from lmx.worker.formats.families.json.granite import GRANITE
from lmx.worker.formats.families.json.hunyuan import HUNYUAN
from lmx.worker.formats.families.json.internlm import INTERNLM
from lmx.worker.formats.families.json.jamba import JAMBA
from lmx.worker.formats.families.json.json_tools import JSON_TOOLS
from lmx.worker.formats.families.json.kimi_k2 import KIMI_K2
from lmx.worker.formats.families.json.llama3 import LLAMA3
from lmx.worker.formats.families.json.mistral import MISTRAL
from lmx.worker.formats.families.json.nemotron import NEMOTRON
from lmx.worker.formats.families.json.phi4 import PHI4
from lmx.worker.formats.families.library import library_family
from lmx.worker.formats.families.literals.functiongemma import FUNCTIONGEMMA
from lmx.worker.formats.families.literals.gemma4 import GEMMA4
from lmx.worker.formats.families.literals.llama4 import LLAMA4
from lmx.worker.formats.families.literals.olmo3 import OLMO3
from lmx.worker.formats.families.literals.pythonic import PYTHONIC
from lmx.worker.formats.families.tags.atem import ATEM
from lmx.worker.formats.families.tags.deepseek_v32 import DEEPSEEK_V4, DEEPSEEK_V32
from lmx.worker.formats.families.tags.glm47 import GLM47
from lmx.worker.formats.families.tags.longcat import LONGCAT
from lmx.worker.formats.families.tags.minicpm5 import MINICPM5
from lmx.worker.formats.families.tags.minimax_m2 import MINIMAX_M2
from lmx.worker.formats.families.tags.minimax_m3 import MINIMAX_M3
from lmx.worker.formats.families.tags.qwen3_coder import QWEN3_CODER
from lmx.worker.formats.families.tags.seed_oss import SEED_OSS
from lmx.worker.formats.families.tags.step3 import STEP3
from lmx.worker.formats.family import CallForm, Family
from lmx.worker.formats.registry import family_registry

log = structlog.get_logger()

# Of the families that lmx recognises by the template, the first match counts: particular ones
# stand before the general ones.
FAMILIES: Final[Mapping[str, Family]] = {
    family.name: family
    for family in (
        JSON_TOOLS,
        APERTUS,
        ATEM,
        COHERE2_MOE,
        DEEPSEEK_V3,
        DEEPSEEK_V31,
        DEEPSEEK_V4,
        DEEPSEEK_V32,
        FUNCTIONGEMMA,
        GEMMA4,
        GIGACHAT,
        GLM4,
        GLM47,
        HARMONY,
        HUNYUAN,
        INTERNLM,
        JAMBA,
        KIMI_K2,
        LLAMA3,
        LLAMA4,
        LONGCAT,
        MINICPM5,
        MINIMAX_M2,
        MINIMAX_M3,
        MISTRAL,
        NEMOTRON,
        OLMO3,
        PHI4,
        GRANITE,
        PYTHONIC,
        QWEN3_CODER,
        SEED_OSS,
        STEP3,
    )
}

# An added token " " or "name" is a part of some mark, but no mark itself.
_MARK_BEGINS: Final = ("<", "[", "]", "◁", "｜")


def parser_for(
    chat_template: Any, override: str | None, added_tokens: Collection[str] = ()
) -> str | None:
    """Return the name of the family that a chat template shows, or ``override``.

    Returns None if nothing shows a family. The families that mlx-vlm's registry recognises come
    first; then those that lmx recognises; then the registry's general one in JSON; and last those
    whose marks the vocabulary has, because not every template has them. Raises ``ValueError`` for
    an unknown ``override``.
    """
    specs = family_registry().SPECS
    if override is not None:
        names = sorted({spec.name for spec in specs} | FAMILIES.keys())
        if override not in names:
            raise ValueError(f"{override!r} is no tool parser: use one of {', '.join(names)}")
        return override
    text = _template_text(chat_template)
    matching = [spec for spec in specs if spec.matches(text)]
    best = max(matching, key=lambda spec: spec.priority, default=None)
    if best is not None and best.name != JSON_TOOLS.name:
        return str(best.name)
    for family in FAMILIES.values():
        if any(all(mark in text for mark in group) for group in family.template_marks):
            return family.name
    if best is not None:
        return str(best.name)
    for family in FAMILIES.values():
        marks = {mark for form in family.calls[:1] for mark in (form.start, form.end) if mark}
        if family is not JSON_TOOLS and marks and marks.issubset(added_tokens):
            return family.name
    return None


def family_of(tool_parser: str | None, reasoning: ReasoningMarkers | None = None) -> Family:
    """Return the family of a model; the JSON family for a model whose template knows no tools.

    A name that is not in the table is one of mlx-vlm's registry: see
    :func:`~lmx.worker.formats.families.library.library_family`.
    """
    if reasoning is not None and reasoning.start == THINKING:
        return HARMONY
    return FAMILIES.get(tool_parser or JSON_TOOLS.name) or _unknown(str(tool_parser))


def call_forms(family: Family) -> tuple[CallForm, ...]:
    """Return the forms to look for in an answer. The JSON form is always among them, because
    grammars fall back to it. Not for a family that has a form for whole answers."""
    own = {form.start for form in family.calls}
    return (*family.calls, *(form for form in JSON_TOOLS.calls if form.start not in own))


def marker_ids(
    tokenizer: Any, tool_parser: str | None, reasoning: ReasoningMarkers | None
) -> frozenset[int]:
    """Return the special tokens that must stay text, so that an answer can be parsed.

    A mark that is not one token may consist of several, so parts of marks count too.
    """
    family = family_of(tool_parser, reasoning)
    texts: list[str] = []
    if family.answer is not None:
        texts += family.answer.tokens
    else:
        for form in call_forms(family):
            texts += (form.start, form.end, *form.tokens)
    if reasoning is not None:
        texts += (reasoning.start, reasoning.end)
    return frozenset(
        number
        for token, number in tokenizer.get_added_vocab().items()
        if token[:1] in _MARK_BEGINS and len(token) > 2 and any(token in text for text in texts)
    )


@functools.cache
def _unknown(name: str) -> Family:
    family = library_family(name)
    log.warning("tool_calls.family_unknown", family=name, remark=family.remark)
    return family


def _template_text(chat_template: Any) -> str:
    """Return the template that is used with tools; a tokenizer may have several."""
    if isinstance(chat_template, dict):
        chat_template = chat_template.get("tool_use") or chat_template.get("default")
    return chat_template if isinstance(chat_template, str) else ""

"""The table of all families, and the choice of a model's family."""

import functools
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, Final

import structlog

from lmx.worker.engine.values import ReasoningMarkers
from lmx.worker.formats.families.harmony import HARMONY, THINKING
from lmx.worker.formats.families.json import JSON_FAMILIES, JSON_TOOLS
from lmx.worker.formats.families.literals import LITERAL_FAMILIES
from lmx.worker.formats.families.tags import TAG_FAMILIES
from lmx.worker.formats.family import CallForm, Family
from lmx.worker.formats.forms.library import family_parser, family_registry, read_block

log = structlog.get_logger()

# Of those that a chat template shows, the first counts.
FAMILIES: Final[Mapping[str, Family]] = {
    family.name: family for family in (*JSON_FAMILIES, *TAG_FAMILIES, *LITERAL_FAMILIES, HARMONY)
}

# The families whose thoughts are messages, by what begins these.
_OF_THINKING: Final = {THINKING: HARMONY} | {
    family.messages.thinking.start: family for family in FAMILIES.values() if family.messages
}

_GENERAL: Final = {JSON_TOOLS.calls[0].start, JSON_TOOLS.calls[0].end}
# An added token " " or "name" is a part of some marker, but no marker itself.
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
        if any(all(marker in text for marker in group) for group in family.template_markers):
            return family.name
    if best is not None:
        return str(best.name)
    for family in FAMILIES.values():
        markers = {
            marker for form in family.calls[:1] for marker in (form.start, form.end) if marker
        }
        # The general markers show no family in particular.
        if markers and markers != _GENERAL and markers.issubset(added_tokens):
            return family.name
    return None


def family_of(tool_parser: str | None, reasoning: ReasoningMarkers | None = None) -> Family:
    """Return the family of a model; the JSON family for a model whose template knows no tools.

    For a name of mlx-vlm's registry that is not in the table (a later release of the library may
    add one), the library's parser reads calls, each when it is complete. lmx has no grammar of it,
    so enforced calls are JSON. If the library has no such parser, or one without the markers of its
    calls, only JSON is read.
    """
    if reasoning is not None and reasoning.start in _OF_THINKING:
        return _OF_THINKING[reasoning.start]
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

    A marker that is not one token may consist of several, so parts of markers count too.
    """
    family = family_of(tool_parser, reasoning)
    texts: list[str] = []
    if family.answer is not None:
        texts += family.answer.tokens
    else:
        for form in call_forms(family):
            texts += (form.start, form.end, *form.tokens)
    if family.messages is not None:
        texts += (family.messages.start, family.messages.body, *family.messages.ends)
    if reasoning is not None:
        texts += (reasoning.start, reasoning.end)
    return frozenset(
        number
        for token, number in tokenizer.get_added_vocab().items()
        if token[:1] in _MARK_BEGINS and len(token) > 2 and any(token in text for text in texts)
    )


@functools.cache
def _unknown(name: str) -> Family:
    unknown = f"The model calls tools in the form {name!r}, which lmx does not know"
    try:
        parser = family_parser(name)
        start, end = parser.tool_call_start, parser.tool_call_end
        if not start or not callable(parser.parse_tool_call):
            raise AttributeError("the parser does not define how calls begin")
    except (ImportError, OSError, AttributeError) as error:
        remark = (
            f"{unknown} and the engine's library has no parser for ({error}): only calls in JSON "
            "are read."
        )
        family = Family(name, remark=remark)
    else:
        remark = (
            f"{unknown}: calls are read by the engine's library, and not enforced in that form; "
            "where a call must be made, it is held to JSON."
        )
        # To the library, a call without an end marker ends with its line.
        form = CallForm(start, end, partial(read_block, parser=name, end=end or "\n"))
        family = Family(name, calls=(form,), remark=remark)
    log.warning("tool_calls.family_unknown", family=name, remark=remark)
    return family


def _template_text(chat_template: Any) -> str:
    """Return the template that is used with tools; a tokenizer may have several."""
    if isinstance(chat_template, dict):
        chat_template = chat_template.get("tool_use") or chat_template.get("default")
    return chat_template if isinstance(chat_template, str) else ""

"""What a chat template takes, found out by rendering it once for each question, at the load.

A template is code: what it makes of a tool or of an effort can be tried, and not read in it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from lmx.protocol.messages.data import Thinking
from lmx.protocol.messages.template import TemplateFacts
from lmx.worker.templates.chat_template import ChatTemplate
from lmx.worker.templates.fitting import Fitting, probe
from lmx.worker.templates.history import Message
from lmx.worker.templates.renderer import (
    RenderingEndedError,
    TemplateRefusedError,
    TextTooLongError,
)
from lmx.worker.templates.thinking import EFFORTS, thinking_variables

_TALK: Final = ({"role": "user", "content": "-"},)


@dataclass(frozen=True, slots=True)
class TemplateCapabilities:
    """What a template takes. A field's default is what is assumed where nothing is known."""

    fitting: Fitting
    """How conversations are fitted to it."""
    efforts: tuple[str, ...] = EFFORTS
    """The words for a reasoning effort that it does not refuse, the least first."""
    distinguishes_efforts: bool = False
    """Whether it distinguishes efforts: it writes something else for one, or refuses it."""

    @property
    def facts(self) -> TemplateFacts:
        """What others should know of it."""
        return TemplateFacts(
            self.efforts if self.distinguishes_efforts else (),
            tuple(sorted(self.fitting.remedies)),
            tuple(sorted(self.fitting.refused)),
        )


def probe_capabilities(
    template: ChatTemplate, *, mentions_tools: bool, efforts: tuple[str, ...] | None
) -> TemplateCapabilities:
    """Return what ``template`` takes.

    ``mentions_tools`` is believed of a template that can't be tried with a tool. ``efforts`` are
    the words that the template is known to know; None: they are found out. Raises ``OSError`` if
    no process can be started to render it.
    """
    try:
        found = TemplateCapabilities(
            probe(partial(_shown, template), mentions_tools=mentions_tools)
        )
        if efforts is not None:
            return replace(found, efforts=efforts, distinguishes_efforts=True)
        return _with_efforts(found, template)
    except RenderingEndedError:
        # Each further try would take as long, and end in the same way.
        return TemplateCapabilities(Fitting(tools_as_text=not mentions_tools))


def _shown(
    template: ChatTemplate, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
) -> str | None:
    try:
        return template.apply(messages, tools, {})
    except (TemplateRefusedError, TextTooLongError):
        return None


def _with_efforts(found: TemplateCapabilities, template: ChatTemplate) -> TemplateCapabilities:
    if _text(template, {}) is None:
        return found  # It refuses so short a conversation, whatever the effort.
    texts = {
        effort: _text(template, thinking_variables(Thinking(effort, effort != "none")))
        for effort in EFFORTS
    }
    taken = tuple(effort for effort, text in texts.items() if text is not None)
    # "none" also switches the thinking off: its text may differ for that alone.
    heeds = len({text for effort, text in texts.items() if effort != "none"}) > 1
    return replace(found, efforts=taken, distinguishes_efforts=heeds)


def _text(template: ChatTemplate, variables: Mapping[str, Any]) -> str | None:
    """Return what the template makes of a short conversation; None if it refuses it."""
    try:
        return template.apply(_TALK, (), variables)
    except TemplateRefusedError:
        return None
    except TextTooLongError as error:
        return str(error)

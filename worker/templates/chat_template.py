"""A model's chat template: which one, and its variables, as transformers has them."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from lmx.worker.templates.renderer import Renderer, TemplateRefusedError

# The first is the standard one; gpt-oss's template reads the second.
_REASONING_NAMES: Final = ("reasoning_content", "thinking", "reasoning")


class ChatTemplate:
    """One tokenizer's template. ``renderer`` renders it, and must be used on the caller's thread.

    It replaces ``tokenizer.apply_chat_template``; ``tests/engine/model/test_chat_template.py``
    compares the two.
    """

    def __init__(self, tokenizer: Any, renderer: Renderer, max_bytes: int) -> None:
        """``max_bytes`` is the limit for the text in UTF-8: a longer text is refused."""
        self._tokenizer = tokenizer
        self._renderer = renderer
        self._max_bytes = max_bytes
        self._special_tokens = {
            name: str(token) for name, token in tokenizer.special_tokens_map.items()
        }

    def apply(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        kwargs: Mapping[str, Any],
    ) -> str:
        """Return the prompt's text.

        ``kwargs`` are the template's own variables; ``add_generation_prompt`` is True if it is not
        among them. An empty list of tools is passed as none, because templates test it in different
        ways. Raises what :meth:`Renderer.render` raises.
        """
        if not messages:
            raise TemplateRefusedError("there are no messages")
        shown = list(tools) or None
        variables = {
            "add_generation_prompt": True,
            **self._special_tokens,
            **kwargs,
            "messages": [_as_shown(message) for message in messages],
            "tools": shown,
            "documents": None,
        }
        return self._renderer.render(self._source(shown), variables, self._max_bytes)

    def _source(self, tools: Sequence[Any] | None) -> str:
        """Return the template's source; a model may have a template for tools only."""
        templates = self._tokenizer.chat_template
        if not isinstance(templates, Mapping):
            return str(templates)
        if tools is not None and "tool_use" in templates:
            return str(templates["tool_use"])
        if "default" in templates:
            return str(templates["default"])
        names = ", ".join(sorted(map(str, templates)))
        raise TemplateRefusedError(f"the model has several, none of them called default: {names}")


def _as_shown(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message without nulls, its reasoning under the names that templates know."""
    shown = {key: value for key, value in message.items() if value is not None}
    reasoning = next((shown[name] for name in _REASONING_NAMES if name in shown), None)
    if reasoning is not None:
        return {"thinking": reasoning, **shown, "reasoning_content": reasoning}
    return shown

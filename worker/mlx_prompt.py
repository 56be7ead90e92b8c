"""From messages to prompt tokens by the model's own chat template. Prompt thread only."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Final

import jinja2

from lmx.protocol.errors import ErrorCode, RequestError

# Arguments of apply_chat_template that are the request's; every other name of its signature
# is ours to set. (A template from a request would be code to run.)
_ALLOWED_ARGUMENTS: Final = frozenset({"tools", "documents"})


class PromptEncoder:
    """Renders and tokenizes. Has the tokenizer to itself: a tokenizer serves one thread."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        signature = inspect.signature(tokenizer.apply_chat_template)
        self._reserved = frozenset(signature.parameters) - _ALLOWED_ARGUMENTS

    def encode(
        self, messages: Sequence[Mapping[str, Any]], template_kwargs: Mapping[str, Any]
    ) -> list[int]:
        """Return the tokens of the conversation, up to where the answer begins.

        Raises :class:`RequestError` when the model has no template, when the template refuses
        the messages (its own words are the message), or for content that isn't text.
        """
        if not self._tokenizer.chat_template:
            raise RequestError(
                ErrorCode.UNSUPPORTED_VALUE,
                "This model has no chat template: it can't answer messages.",
                param="messages",
            )
        if clash := self._reserved.intersection(template_kwargs):
            raise RequestError(
                ErrorCode.INVALID_VALUE,
                f"{', '.join(sorted(clash))} can't be set for a chat template: remove it.",
                param="chat_template_kwargs",
            )
        conversation = [
            _as_text(message, f"messages[{index}]") for index, message in enumerate(messages)
        ]
        try:
            text = self._tokenizer.apply_chat_template(
                conversation, tokenize=False, add_generation_prompt=True, **template_kwargs
            )
        except (jinja2.TemplateError, TypeError) as error:
            # TypeError: what a template makes of a value that it didn't expect.
            raise RequestError(
                ErrorCode.INVALID_VALUE,
                f"The model's chat template refuses these messages: {error}",
                param="messages",
            ) from error
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        if not tokens:
            raise RequestError(
                ErrorCode.INVALID_VALUE,
                "The model's chat template makes an empty prompt of these messages.",
                param="messages",
            )
        return tokens


def _as_text(message: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return the message with its content as one string: what a text model's template takes."""
    content = message.get("content")
    if not isinstance(content, list):
        return dict(message)
    texts = []
    for index, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") != "text":
            raise RequestError(
                ErrorCode.UNSUPPORTED_VALUE,
                "This model takes text only.",
                param=f"{path}.content[{index}].type",
            )
        texts.append(str(part.get("text", "")))
    return {**message, "content": "\n".join(texts)}

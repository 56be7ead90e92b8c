"""From messages to prompt tokens by the model's own chat template. Prompt thread only."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lmx.protocol.errors import ErrorCode, RequestError

# What the template itself is called with. The names of apply_chat_template's own parameters are
# reserved too: a template from a request would be code to run.
_OWN_NAMES: Final = frozenset(
    {"self", "messages", "conversations", "tools", "documents", "add_generation_prompt"}
)


class PromptEncoder:
    """Renders and tokenizes. Has the tokenizer to itself: a tokenizer serves one thread."""

    def __init__(self, tokenizer: Any, context_tokens: int) -> None:
        self._tokenizer = tokenizer
        signature = inspect.signature(tokenizer.apply_chat_template)
        self._reserved = frozenset(signature.parameters) | _OWN_NAMES
        self._longest_token_bytes = max(len(token.encode()) for token in tokenizer.get_vocab())
        self._context_tokens = context_tokens

    def encode(
        self, messages: Sequence[Mapping[str, Any]], template_kwargs: Mapping[str, Any]
    ) -> list[int]:
        """Return the tokens of the conversation, up to where the answer begins.

        ``messages`` have text as content. Raises :class:`RequestError` when the model has no
        template, when the template refuses the messages (its own words are the message), or
        when they can't fit into the context.
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
        try:
            text = self._tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True, **template_kwargs
            )
        except Exception as error:
            # A template is code of the model's, fed with a stranger's values: it may raise
            # anything, and what it raises is about the request.
            raise RequestError(
                ErrorCode.INVALID_VALUE,
                f"The model's chat template refuses this request: {error}",
                param="chat_template_kwargs" if template_kwargs else "messages",
            ) from error
        self._refuse_if_hopeless(text)
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        if not tokens:
            raise RequestError(
                ErrorCode.INVALID_VALUE,
                "The model's chat template makes an empty prompt of these messages.",
                param="messages",
            )
        return tokens

    def _refuse_if_hopeless(self, text: str) -> None:
        """Refuse what can't fit whatever its tokens are: tokenizing 15 MB takes 17 s, in which
        everybody else's prompt waits."""
        at_least = len(text.encode(errors="replace")) // self._longest_token_bytes
        if at_least > self._context_tokens:
            raise RequestError(
                ErrorCode.CONTEXT_LENGTH_EXCEEDED,
                f"The prompt has at least {at_least} tokens, and the model's context is "
                f"{self._context_tokens}: shorten the messages.",
                param="messages",
            )

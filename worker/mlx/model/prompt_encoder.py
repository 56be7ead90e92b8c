"""Turns messages, text or tokens into a prompt. Prompt thread only."""

import functools
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.data import Infill, Thinking
from lmx.worker.engine.values import EncodedPrompt, ModelFacts, PromptSource
from lmx.worker.formats.families.table import family_of
from lmx.worker.mlx.media.media_prompt import MediaPrompts
from lmx.worker.templates.capabilities import TemplateCapabilities, probe_capabilities
from lmx.worker.templates.chat_template import ChatTemplate
from lmx.worker.templates.fitting import Fitting, fit
from lmx.worker.templates.history import for_template, joined
from lmx.worker.templates.infill import InfillEncoder, infill_encoder
from lmx.worker.templates.renderer import (
    Renderer,
    RenderingEndedError,
    TemplateRefusedError,
    TextTooLongError,
)
from lmx.worker.templates.thinking import (
    earlier_thinking,
    nearest_effort,
    thinking_variables,
)

# What the template itself is called with. The names of apply_chat_template's own parameters are
# reserved too: a template from a request would be code to run.
_OWN_NAMES: Final = frozenset(
    {"self", "messages", "conversations", "tools", "documents", "add_generation_prompt"}
)

_CUT: Final = "lmx_cut_the_prompt_here"
"""Behind a message that the answer continues: what the template writes after it is left out."""


class PromptEncoder:
    """Lets another process render prompts, and tokenizes them here.

    It has the tokenizer to itself, because a tokenizer serves one thread. Tokenizing stays in this
    process because a second copy of a vocabulary of 150,000 takes 100 MB and half a second to load,
    and because it releases the GIL.
    """

    def __init__(
        self,
        tokenizer: Any,
        facts: ModelFacts,
        renderer: Renderer,
        media: MediaPrompts | None = None,
    ) -> None:
        """``media``: None for a model of text alone."""
        self._tokenizer = tokenizer
        self._facts = facts
        self._media = media
        self._family = family_of(facts.tool_parser)
        signature = inspect.signature(tokenizer.apply_chat_template)
        self._reserved = frozenset(signature.parameters) | _OWN_NAMES
        self._longest_token_bytes = max(len(token.encode()) for token in tokenizer.get_vocab())
        most_bytes = (facts.context_tokens + 1) * self._longest_token_bytes - 1
        self._template = ChatTemplate(tokenizer, renderer, most_bytes)

    def encode(self, source: PromptSource) -> EncodedPrompt:
        """Return the prompt's tokens; of a conversation, up to where the answer begins.

        Messages have text as content, or none. A text gets the special tokens that the tokenizer
        adds by itself; tokens are used as they are. Raises :class:`RequestError` if the model has
        no template, or no tokens for a gap; if the template refuses the messages (its own words are
        the message), or takes too long or too much memory for them; if a text can't fit into the
        context; if there is no prompt; and for tokens that the model doesn't have. The caller finds
        out whether a prompt is too long by a little.
        """
        if source.messages is not None:
            thinking = self._possible(source.thinking)
            encoded = self._encode_messages(replace(source, thinking=thinking), source.messages)
            if thinking.effort is None and source.thinking.effort is not None:
                return replace(encoded, ignored=(source.thinking.param,))
            return encoded
        if source.tokens is not None:
            return EncodedPrompt(self._checked(source.tokens))
        if source.infill is not None:
            return self._encode_infill(source.text or "", source.infill)
        return EncodedPrompt(self._encode_text(source.text or ""))

    def _encode_messages(
        self, source: PromptSource, messages: Sequence[Mapping[str, Any]]
    ) -> EncodedPrompt:
        if source.continue_final_message:
            text = self._render_continued(source, messages)
        else:
            text = self._render(source, messages)
        tokens: list[int]
        media = None
        if source.media:
            tokens, media = self._needed_media().expand(text, source.media, source.media_params)
        else:
            tokens = self._tokenizer.encode(text, add_special_tokens=False)
        if not tokens:
            raise RequestError(
                ErrorCode.INVALID_VALUE,
                "The model's chat template makes an empty prompt of these messages.",
                param="messages",
            )
        reasoning = self._facts.reasoning
        if reasoning is None:
            return EncodedPrompt(tokens, media=media)
        if source.continue_final_message:
            begun = str(messages[-1]["content"])
            start, end = begun.rfind(reasoning.start), begun.rfind(reasoning.end)
            return EncodedPrompt(tokens, start > end, end > start, media)
        is_open, is_closed = map(text.rstrip().endswith, (reasoning.start, reasoning.end))
        return EncodedPrompt(tokens, is_open, is_closed, media)

    def _needed_media(self) -> MediaPrompts:
        if self._media is None:
            raise RequestError(
                ErrorCode.UNSUPPORTED_VALUE,
                "This model takes text only: leave the images, sounds and videos out, or name "
                "another model.",
                param="messages",
            )
        return self._media

    def _render_continued(self, source: PromptSource, messages: Sequence[Mapping[str, Any]]) -> str:
        last = {**messages[-1], "content": joined(messages[-1]["content"], _CUT)}
        text = self._render(source, [*messages[:-1], last])
        kept, cut, _ = text.rpartition(_CUT)
        if not cut:
            raise RequestError(
                ErrorCode.INVALID_VALUE,
                "The model's chat template does not show the last message: the answer can't "
                "continue it.",
                param="continue_final_message",
            )
        return kept

    def _encode_text(self, text: str) -> list[int]:
        self._refuse_if_hopeless(text, "prompt")
        tokens: list[int] = self._tokenizer.encode(text)
        if not tokens and (start := self._tokenizer.bos_token_id) is not None:
            return [start]
        if not tokens:
            raise RequestError(
                ErrorCode.INVALID_VALUE,
                "The prompt is empty, and this model has no token to begin a text with.",
                param="prompt",
            )
        return tokens

    def _encode_infill(self, before: str, infill: Infill) -> EncodedPrompt:
        if self._infills is None:
            raise RequestError(
                ErrorCode.UNSUPPORTED_VALUE,
                f"`{infill.param}` is not supported by this model, whose tokenizer has no tokens "
                "for a gap in a text: leave it out, or name a model that has `infill` among its "
                "`capabilities` in GET /v1/models.",
                param=infill.param,
            )
        texts = [before, infill.suffix, infill.begun, *(one.text for one in infill.files)]
        self._refuse_if_hopeless("".join(texts), "prompt")
        return EncodedPrompt(self._infills.encode(before, infill), end_ids=self._infills.end_ids)

    @functools.cached_property
    def _infills(self) -> InfillEncoder | None:
        return infill_encoder(self._tokenizer)

    def _checked(self, tokens: Sequence[int]) -> Sequence[int]:
        size = self._facts.vocabulary_size
        wrong = next((token for token in tokens if not 0 <= token < size), None)
        if wrong is not None:
            raise RequestError(
                ErrorCode.INVALID_VALUE,
                f"The prompt has token {wrong}, and this model's go from 0 to {size - 1}.",
                param="prompt",
            )
        if not tokens:
            raise RequestError(
                ErrorCode.INVALID_VALUE, "The prompt has no tokens: give one.", param="prompt"
            )
        return tokens

    def _render(self, source: PromptSource, messages: Sequence[Mapping[str, Any]]) -> str:
        if not self._tokenizer.chat_template:
            raise RequestError(
                ErrorCode.UNSUPPORTED_VALUE,
                "This model has no chat template: it can't answer messages.",
                param="messages",
            )
        if clash := self._reserved.intersection(source.template_kwargs):
            raise RequestError(
                ErrorCode.INVALID_VALUE,
                f"{', '.join(sorted(clash))} can't be set for a chat template: remove it.",
                param="chat_template_kwargs",
            )
        # Those that may not be called now are not shown; where one is named, the others are: the
        # grammar sees to that, and a prompt that stays the same stays cached.
        known: Sequence[Mapping[str, Any]] = source.tool_use.known if source.tool_use else ()
        kwargs = {
            **earlier_thinking(messages, has_tools=bool(known)),
            **source.template_kwargs,
            **thinking_variables(source.thinking),
            "add_generation_prompt": source.add_generation_prompt,
        }
        conversation, tools = fit(
            for_template(messages, self._family.history), known, self.abilities.fitting
        )
        param = "chat_template_kwargs" if source.template_kwargs else "messages"
        try:
            if self._media is not None:
                conversation = self._media.in_template_form(
                    conversation, lambda shown: self._template.apply(shown, (), {})
                )
            return self._template.apply(conversation, tools, kwargs)
        except TemplateRefusedError as error:
            raise RequestError(
                ErrorCode.INVALID_VALUE,
                f"The model's chat template refuses this request: {error}",
                param=param,
            ) from error
        except RenderingEndedError as error:
            raise RequestError(
                ErrorCode.CHAT_TEMPLATE_FAILED,
                f"The model's chat template {error}. It is the model's own, in its "
                "tokenizer_config.json or chat_template.jinja: send other messages or "
                "chat_template_kwargs, or have the model's template fixed.",
                param=param,
            ) from error
        except TextTooLongError as error:
            raise self._hopeless(error.text_bytes, "messages") from error

    @functools.cached_property
    def abilities(self) -> TemplateCapabilities:
        """What the template takes. The first look finds it out; raises ``OSError`` as
        :meth:`Renderer.render` does."""
        source = self._tokenizer.chat_template
        if not source:
            return TemplateCapabilities(Fitting(tools_as_text=True))
        return probe_capabilities(
            self._template, mentions_tools="tools" in str(source), efforts=self._family.efforts
        )

    def _possible(self, thinking: Thinking) -> Thinking:
        """Return what is asked of the thinking with an effort that the template takes, or with
        none."""
        if thinking.effort is None:
            return thinking
        effort = nearest_effort(thinking.effort, self.abilities.efforts)
        # An effort means that the model thinks, even if its template takes no effort.
        enabled = True if thinking.enabled is None else thinking.enabled
        return replace(thinking, effort=effort, enabled=enabled)

    def _refuse_if_hopeless(self, text: str, param: str) -> None:
        """Refuse a text that can't fit whatever its tokens are: tokenizing 15 MB takes 17 s, in
        which all other prompts wait."""
        text_bytes = len(text.encode(errors="replace"))
        if text_bytes // self._longest_token_bytes > self._facts.context_tokens:
            raise self._hopeless(text_bytes, param)

    def _hopeless(self, text_bytes: int, param: str) -> RequestError:
        return RequestError(
            ErrorCode.CONTEXT_LENGTH_EXCEEDED,
            f"The prompt has at least {text_bytes // self._longest_token_bytes} tokens, and the "
            f"model's context is {self._facts.context_tokens}: shorten the {param}"
            f"{self._facts.longer_context}.",
            param=param,
        )

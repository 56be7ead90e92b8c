"""The form of a choice of a text completion, in chunks and whole. Pure."""

from collections.abc import Sequence
from typing import Any, Final, Literal, NotRequired

from lmx.protocol.messages.data import ChoiceEnded, Delta, TokenLogprob
from lmx.router.rendering.accumulator import AccumulatedChoice
from lmx.router.rendering.envelope import AnswerChoice, Chunk, Form, WholeAnswer, end_object
from lmx.router.rendering.logprobs import PromptToken, TextLogprobLists, TextLogprobs, text_lists


class TextChunkChoice(AnswerChoice):
    """What a chunk has of one choice. Its last one has the finish reason."""

    text: str
    """More of the text."""
    logprobs: TextLogprobLists | None
    """The tokens with their logprobs, where they were requested."""
    finish_reason: Literal["stop", "length"] | None
    """Why the answer ended; null before its end."""
    stop_reason: NotRequired[str | int | None]
    """The stop string, or the stop token, that ended the answer. Null for the model's own end."""
    prompt_token_ids: NotRequired[list[int] | None]
    """The tokens of its prompt, where they were requested."""


class TextChoice(AnswerChoice):
    """One of the answers. Answer `j` to prompt `i` has the index `i * n + j`."""

    text: str
    """The text."""
    logprobs: TextLogprobLists | None
    """The tokens with their logprobs, where they were requested."""
    finish_reason: Literal["stop", "length"]
    """Why the answer ended."""
    stop_reason: str | int | None
    """The stop string, or the stop token, that ended the answer. Null for the model's own end."""
    prompt_token_ids: NotRequired[list[int] | None]
    """The tokens of its prompt, where they were requested."""
    prompt_logprobs: NotRequired[list[dict[str, PromptToken] | None] | None]
    """The tokens of its prompt with their logprobs, where they were requested: each with its
    alternatives, by their ids. The first token has null."""


class TextCompletion(WholeAnswer):
    """What comes after the prompts."""

    object: Literal["text_completion"]
    choices: list[TextChoice]
    """The answers."""


class TextCompletionChunk(Chunk):
    """The data of one event. The last one has the timings, and the usage where it is requested;
    after it comes ``[DONE]``."""

    object: Literal["text_completion"]
    choices: list[TextChunkChoice]
    """What is new of the answers. There are none in the chunk with the usage."""


class TextShape:
    """See :class:`lmx.router.rendering.openai.ChoiceShape`. One object serves one answer."""

    chunk_object: Final = "text_completion"
    complete_object: Final = "text_completion"
    text_key: Final = "text"
    prompts_in_choices: Final = True

    def __init__(self, form: Form) -> None:
        self._form = form
        self._logprobs = [TextLogprobs() for _ in range(form.choices)]

    def first(self, index: int) -> dict[str, Any] | None:
        """Return nothing: a text has no role."""
        return None

    def plain(self, index: int) -> dict[str, Any]:
        return _choice(index, "")

    def entries(self, index: int, tokens: Sequence[TokenLogprob]) -> Sequence[Any]:
        return self._logprobs[index].entries(tokens)

    def rich(self, delta: Delta) -> dict[str, Any]:
        """Return the choice for text with logprobs."""
        choice = _choice(delta.index, delta.text)
        if delta.logprobs:
            choice["logprobs"] = text_lists(self.entries(delta.index, delta.logprobs))
        if self._form.token_ids:
            choice["token_ids"] = delta.token_ids
        return choice

    def end(self, fact: ChoiceEnded) -> dict[str, Any]:
        return _choice(fact.index, "") | end_object(fact, self._form)

    def complete_choice(self, fact: ChoiceEnded, gathered: AccumulatedChoice) -> dict[str, Any]:
        choice = _choice(fact.index, "".join(gathered.content)) | end_object(fact, self._form)
        if self._form.logprobs:
            choice["logprobs"] = text_lists(gathered.logprobs)
        if self._form.token_ids:
            choice["token_ids"] = gathered.token_ids
        return choice


def _choice(index: int, text: str) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": None}

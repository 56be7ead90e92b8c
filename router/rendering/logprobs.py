"""Logprobs in the forms of the APIs. Pure."""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import orjson

from lmx.protocol.messages.data import TokenLogprob, TopLogprob
from lmx.router.http.responses import Answer

_LEAST: Final = -9999.0
"""OpenAI's number for "impossible": JSON has no infinity."""


class AlternativeToken(Answer):
    """A token that could have been."""

    token: str
    """The token's text."""
    logprob: float
    """The natural logarithm of its probability; -9999 for impossible."""
    bytes: list[int]
    """Its bytes in UTF-8; a token may be a part of a character."""


class TokenLogprobs(AlternativeToken):
    """A token of the answer, with the likeliest ones in its place."""

    top_logprobs: list[AlternativeToken]
    """The likeliest tokens in its place, the likeliest first."""


class ChatLogprobs(Answer):
    """The tokens of the content, one by one."""

    content: Sequence[TokenLogprobs]
    """The tokens."""
    refusal: None
    """Always null."""


class PromptToken(Answer):
    """A token of a prompt, or one that could have been in its place."""

    logprob: float
    """The natural logarithm of its probability; -9999 for impossible."""
    rank: int
    """Its place among all tokens, the likeliest being 1."""
    decoded_token: str
    """The token's text."""


class TextLogprobLists(Answer):
    """Tokens in lists, as it was before chat. A prompt's first token has null for both."""

    tokens: list[str]
    """The tokens' texts."""
    token_logprobs: list[float | None]
    """Their logprobs."""
    top_logprobs: list[dict[str, float] | None]
    """The likeliest tokens in the place of each, with their logprobs."""
    text_offset: list[int]
    """Where each token begins, in characters."""


def chat_entries(tokens: Iterable[TokenLogprob]) -> list[Any]:
    """Return the entries of tokens in a chat completion, for ``orjson.dumps``. A token that is a
    part of a character has U+FFFD in its text; its ``bytes`` show the part."""
    return [
        _written(_entry(token) | {"top_logprobs": [_entry(other) for other in token.top]})
        for token in tokens
    ]


def chat_logprobs(entries: Sequence[Any]) -> ChatLogprobs:
    """Return the ``logprobs`` of a choice with these entries."""
    return {"content": entries, "refusal": None}


def _written(entry: dict[str, Any]) -> orjson.Fragment:
    # JSON at once: a hundred thousand dictionaries that live until the answer is written out cost
    # the collector of garbage more time than all the rest.
    return orjson.Fragment(orjson.dumps(entry))


def ollama_logprobs(tokens: Iterable[TokenLogprob]) -> list[Any]:
    """Return the logprobs of a text in Ollama's form, for ``orjson.dumps``: alternatives are there
    only where they were requested."""
    return [_written(_ollama_entry(token)) for token in tokens]


def _ollama_entry(token: TokenLogprob) -> dict[str, Any]:
    entry = _entry(token)
    return entry | {"top_logprobs": [_entry(other) for other in token.top]} if token.top else entry


def event_entries(tokens: Iterable[TokenLogprob]) -> list[Any]:
    """Return the entries of tokens in the events of OpenAI's responses: those of a chat completion,
    which whole responses have too, without the tokens' bytes."""
    return [
        _written(
            _named_entry(token) | {"top_logprobs": [_named_entry(other) for other in token.top]}
        )
        for token in tokens
    ]


def prompt_logprobs(tokens: Iterable[TokenLogprob]) -> list[Any]:
    """Return a prompt's logprobs in vLLM's form, for ``orjson.dumps``: for each token a map by
    token ids, which begins with the token itself and has the alternatives then; null for the first
    token. A token that is a part of a character has U+FFFD in its text."""
    return [
        None if token.logprob is None else _written(_by_id(token, token.logprob))
        for token in tokens
    ]


def _by_id(token: TokenLogprob, logprob: float) -> dict[str, Any]:
    shown = {str(token.token_id): _ranked(token.token, logprob, token.rank)}
    for rank, other in enumerate(token.top, 1):
        # The token itself, where it is one of these, is shown once, and comes first.
        shown[str(other.token_id)] = _ranked(other.token, other.logprob, rank)
    return shown


def _ranked(token: bytes, logprob: float, rank: int | None) -> dict[str, Any]:
    return {
        "logprob": _shown(logprob),
        "rank": rank,
        "decoded_token": token.decode(errors="replace"),
    }


class TextEntry(NamedTuple):
    """What the lists of a text completion's choice have of one token, for ``orjson.dumps``."""

    token: str
    logprob: float | None
    top_logprobs: orjson.Fragment | None
    offset: int


def text_lists(entries: Iterable[TextEntry]) -> dict[str, Any]:
    """Return the four lists of a text completion's choice."""
    columns = zip(*entries, strict=True)
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    return {name: next(columns, ()) for name in names}


class TextLogprobs:
    """Makes the entries of a text completion's choice, piece by piece. It counts characters from
    one piece to the next, for ``text_offset``."""

    def __init__(self) -> None:
        self._begun_chars = 0

    def entries(self, tokens: Iterable[TokenLogprob]) -> list[TextEntry]:
        """Return what the lists have of each of the next tokens.

        The chosen token is always among its ``top_logprobs``. The first token of a prompt has null
        for both, because no token came before it.
        """
        return [self._entry_of(token) for token in tokens]

    def _entry_of(self, token: TokenLogprob) -> TextEntry:
        text, offset = _named(token.token), self._offset_of(token.token)
        if token.logprob is None:
            return TextEntry(text, None, None, offset)
        logprob = _shown(token.logprob)
        top: dict[str, float] = {}
        for other in token.top:
            top.setdefault(_named(other.token), _shown(other.logprob))
        top.setdefault(text, logprob)
        return TextEntry(text, logprob, _written(top), offset)

    def _offset_of(self, token: bytes) -> int:
        # A character is counted with its first byte; a token that continues a character begins
        # where that character does.
        offset = self._begun_chars
        if token and offset and _is_continuation(token[0]):
            offset -= 1
        self._begun_chars += sum(not _is_continuation(byte) for byte in token)
        return offset


def _named_entry(token: TokenLogprob | TopLogprob) -> dict[str, Any]:
    return {
        "token": token.token.decode(errors="replace"),
        "logprob": _LEAST if token.logprob is None else _shown(token.logprob),
    }


def _entry(token: TokenLogprob | TopLogprob) -> dict[str, Any]:
    return {**_named_entry(token), "bytes": list(token.token)}


def _named(token: bytes) -> str:
    # OpenAI's own way for a part of a character: the text is a key, so it must distinguish tokens.
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)


def _shown(logprob: float) -> float:
    return max(logprob, _LEAST)


def _is_continuation(byte: int) -> bool:
    return byte & 0xC0 == 0x80

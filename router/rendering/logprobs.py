"""Logprobs in two forms: the entries of chat completions, and the lists of text completions.
Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import orjson

from lmx.protocol.messages.data import TokenLogprob, TopLogprob

_LEAST: Final = -9999.0
"""OpenAI's number for "impossible": JSON has no infinity."""


def chat_logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Return a choice's ``logprobs``, for ``orjson.dumps``. A token that is a part of a character
    has U+FFFD in its text; its ``bytes`` show the part."""
    return {
        "content": [
            # This makes JSON at once: 80,000 dictionaries that live until the answer is written out
            # cost
            # the collector of garbage more time than all the rest.
            orjson.Fragment(
                orjson.dumps(
                    _entry(token) | {"top_logprobs": [_entry(other) for other in token.top]}
                )
            )
            for token in tokens
        ],
        "refusal": None,
    }


def ollama_logprobs(tokens: Iterable[TokenLogprob]) -> list[Any]:
    """Return the logprobs of a text in Ollama's form, for ``orjson.dumps``: alternatives are there
    only where they were asked for."""
    return [orjson.Fragment(orjson.dumps(_ollama_entry(token))) for token in tokens]


def _ollama_entry(token: TokenLogprob) -> dict[str, Any]:
    entry = _entry(token)
    return entry | {"top_logprobs": [_entry(other) for other in token.top]} if token.top else entry


def text_logprobs(tokens: Iterable[TokenLogprob], *, whole: bool) -> list[dict[str, Any]]:
    """Return the logprobs of a text in the form of OpenAI's responses. Those of ``whole`` texts
    have the tokens' bytes; those of a stream's events have not."""
    kept = ("token", "logprob", "bytes") if whole else ("token", "logprob")
    return [
        _some(_entry(token), kept)
        | {"top_logprobs": [_some(_entry(other), kept) for other in token.top]}
        for token in tokens
    ]


def _some(entry: dict[str, Any], kept: Iterable[str]) -> dict[str, Any]:
    return {name: entry[name] for name in kept}


def prompt_logprobs(tokens: Iterable[TokenLogprob]) -> list[Any]:
    """Return a prompt's logprobs in vLLM's form, for ``orjson.dumps``: for each token a map by
    token ids, which begins with the token itself and has the alternatives then; null for the first
    token. A token that is a part of a character has U+FFFD in its text."""
    return [
        None
        if token.logprob is None
        else orjson.Fragment(orjson.dumps(_by_id(token, token.logprob)))
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


class TextLogprobs:
    """Makes the four lists of a text completion's choice, piece by piece.

    It counts characters from one piece to the next, for ``text_offset``. The joined lists of the
    pieces are those of the whole.
    """

    def __init__(self) -> None:
        self._begun_chars = 0

    def lists(self, tokens: Iterable[TokenLogprob]) -> dict[str, Any]:
        """Return the lists for the next tokens.

        The chosen token is always among its ``top_logprobs``. The first token of a prompt has null
        for both, because no token came before it.
        """
        texts: list[str] = []
        logprobs: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        offsets: list[int] = []
        for token in tokens:
            text = _named(token.token)
            texts.append(text)
            offsets.append(self._offset_of(token.token))
            if token.logprob is None:
                logprobs.append(None)
                tops.append(None)
                continue
            logprobs.append(_shown(token.logprob))
            top: dict[str, float] = {}
            for other in token.top:
                top.setdefault(_named(other.token), _shown(other.logprob))
            top.setdefault(text, _shown(token.logprob))
            tops.append(top)
        return {
            "tokens": texts,
            "token_logprobs": logprobs,
            "top_logprobs": tops,
            "text_offset": offsets,
        }

    def _offset_of(self, token: bytes) -> int:
        # A character is counted with its first byte; a token that goes on with a character
        # begins where that character does.
        offset = self._begun_chars
        if token and offset and _is_continuation(token[0]):
            offset -= 1
        self._begun_chars += sum(not _is_continuation(byte) for byte in token)
        return offset


def _entry(token: TokenLogprob | TopLogprob) -> dict[str, Any]:
    return {
        "token": token.token.decode(errors="replace"),
        "logprob": _LEAST if token.logprob is None else _shown(token.logprob),
        "bytes": list(token.token),
    }


def _named(token: bytes) -> str:
    # OpenAI's own way for a part of a character: the text is a key, so it must tell tokens apart.
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)


def _shown(logprob: float) -> float:
    return max(logprob, _LEAST)


def _is_continuation(byte: int) -> bool:
    return byte & 0xC0 == 0x80

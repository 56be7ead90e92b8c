"""The text and the bytes of a model's tokens, on the engine thread; and the tasks about tokens
(Tokenize, Detokenize and DescribeTokenizer), on the prompt thread, for any model that has a
tokenizer."""

import copy
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tokenizers.decoders import ByteLevel

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.data import Thinking
from lmx.protocol.messages.tasks import (
    DescribeTokenizer,
    Detokenize,
    Detokenized,
    TaskReply,
    Tokenize,
    Tokenized,
    TokenizerDescribed,
)
from lmx.worker.engine.interfaces import Detokenizer
from lmx.worker.engine.values import EncodedPrompt, PromptSource
from lmx.worker.media.values import Media
from lmx.worker.text.detokenize import ByteDetokenizer, Decode, IncrementalDetokenizer

_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_METASPACE: Final = "\N{LOWER ONE EIGHTH BLOCK}"


class TokenText:
    """Works on a copy of the tokenizer, because a tokenizer serves one thread.

    ``end_ids`` end an answer; ``marker_ids`` are those special tokens that separate tool calls and
    reasoning from content.
    """

    def __init__(self, tokenizer: Any, end_ids: frozenset[int], marker_ids: frozenset[int]) -> None:
        self._tokenizer = copy.deepcopy(tokenizer)
        self._decode = _decode_by(self._tokenizer)
        self._special = _special_ids(tokenizer) | end_ids
        self._markers = marker_ids - end_ids
        self._byte_level = _is_byte_level(tokenizer)
        self._bytes = _TextBytes(self._tokenizer) if _joins_bytes(tokenizer) else None

    def detokenizer(
        self, markers: bool, after: Sequence[int], *, special: bool = False
    ) -> Detokenizer:
        """See ``Generator.detokenizer``."""
        if special:
            skip = frozenset[int]()
        else:
            skip = self._special - self._markers if markers else self._special | self._markers
        if self._bytes is not None:
            return ByteDetokenizer(self._bytes, skip, after)
        return IncrementalDetokenizer(self._decode, skip, after)

    def token_bytes(self, token: int) -> bytes:
        """Return a token's bytes, which may be a part of a character; the name of a special token;
        nothing for an id that the tokenizer doesn't have."""
        name = self._tokenizer.convert_ids_to_tokens(token)
        if name is None:
            return b""
        if token in self._special or token in self._markers:
            return str(name).encode()
        if self._byte_level:
            return _bytes_of_name(name)
        if match := _BYTE_TOKEN.fullmatch(name):
            return bytes([int(match[1], 16)])
        return str(name).replace(_METASPACE, " ").encode()


class _TextBytes(dict[int, bytes]):
    """What each token adds to a text of the tokenizers for which :func:`_joins_bytes` is true. Each
    token is looked up once."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        self._name_of = tokenizer.backend_tokenizer.id_to_token

    def __missing__(self, token: int) -> bytes:
        text = self[token] = _bytes_of_name(self._name_of(token) or "")
        return text


def _decode_by(tokenizer: Any) -> Decode:
    """Return a decode function.

    It uses the Rust tokenizer if there is one, which is ten times faster than transformers. It does
    not skip special tokens; the detokenizer has left them out already.
    """
    rust = getattr(tokenizer, "backend_tokenizer", None)
    if rust is not None:
        return lambda ids: str(rust.decode(ids, skip_special_tokens=False))
    return lambda ids: str(tokenizer.decode(ids, clean_up_tokenization_spaces=False))


def _special_ids(tokenizer: Any) -> frozenset[int]:
    """Return the tokens that are never text. ``all_special_ids`` has only those with a role of
    their own; a tokenizer marks more of them."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    marked = {token_id for token_id, token in added.items() if token.special}
    return frozenset(tokenizer.all_special_ids) | marked


def _is_byte_level(tokenizer: Any) -> bool:
    """Return whether tokens are written in GPT-2's alphabet, with a character for each byte."""
    rust = getattr(tokenizer, "backend_tokenizer", None)
    return rust is not None and "ByteLevel" in str(rust.decoder)


def _joins_bytes(tokenizer: Any) -> bool:
    """Return whether the text of several tokens is that of their bytes, one after the other,
    without any other step."""
    rust = getattr(tokenizer, "backend_tokenizer", None)
    return rust is not None and type(rust.decoder) is ByteLevel


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's alphabet: printable Latin-1 stands for itself, the rest is moved up."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {
        chr(256 + index): byte for index, byte in enumerate(moved)
    }


_BYTE_OF: Final = _byte_alphabet()


def _bytes_of_name(name: str) -> bytes:
    """Return the bytes of a token of a byte-level tokenizer. A name with a character that is not in
    the alphabet was added to the vocabulary, and is written as it is."""
    try:
        return bytes([_BYTE_OF[char] for char in name])
    except KeyError:
        return name.encode()


MAX_CHARACTERS = 4 * 1024 * 1024
"""The longest text that is tokenized: seconds of work."""

MAX_REPLY_BYTES = 32 * 1024 * 1024
"""A reply that doesn't fit into a message would cost the connection, and every stream on it."""


TokenTask = Tokenize | Detokenize | DescribeTokenizer


class TokenTasks:
    """Answers with the model's own tokenizer, which it shares with ``encode``."""

    def __init__(
        self,
        tokenizer: Any,
        vocabulary_size: int,
        context_tokens: int,
        encode: Callable[[PromptSource], EncodedPrompt] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """``encode``: None for a model without a chat template. ``template_kwargs`` are the values
        for the template that the configuration sets."""
        self._tokenizer = tokenizer
        self._vocabulary_size = vocabulary_size
        self._context_tokens = context_tokens
        self._encode = encode
        self._template_kwargs = template_kwargs or {}

    def reply(self, task: TokenTask, media: Sequence[Media] = ()) -> TaskReply:
        """Return the answer to a task. ``media`` are those of its messages. Raises ``RequestError``
        for one that can't be met."""
        if isinstance(task, DescribeTokenizer):
            text = json.dumps(self._description())
            _check_reply(len(text), "model")
            return TokenizerDescribed(task.stream_id, text)
        if isinstance(task, Detokenize):
            check_tokens(task.tokens, self._vocabulary_size, "tokens")
            text = self._text(task.tokens)
            _check_reply(len(text.encode()), "tokens")
            return Detokenized(task.stream_id, text)
        tokens = self._tokens(task, media)
        names = self._tokenizer.convert_ids_to_tokens(tokens) if task.pieces else ()
        # This is a token for which an enlarged vocabulary has no name.
        pieces = [name or "" for name in names]
        size_bytes = 5 * len(tokens) + sum(3 + len(piece.encode()) for piece in pieces)
        _check_reply(size_bytes, "prompt" if task.messages is None else "messages")
        shown = json.dumps(pieces, ensure_ascii=False).encode() if task.pieces else b""
        return Tokenized(task.stream_id, tuple(tokens), self._context_tokens, shown)

    def _description(self) -> dict[str, Any]:
        """Return the tokenizer's settings, without the files of this machine."""
        given = dict(getattr(self._tokenizer, "init_kwargs", None) or {})
        settings = {
            key: value for key, value in given.items() if not key.endswith(("_file", "_or_path"))
        }
        settings["tokenizer_class"] = type(self._tokenizer).__name__
        if getattr(self._tokenizer, "chat_template", None):
            settings["chat_template"] = self._tokenizer.chat_template
        described: dict[str, Any] = _plain(settings)
        return described

    def _tokens(self, task: Tokenize, media: Sequence[Media]) -> list[int]:
        if task.text is not None:
            if len(task.text) > MAX_CHARACTERS:
                raise RequestError(
                    ErrorCode.INVALID_VALUE,
                    f"`prompt` has {len(task.text)} characters, and at most {MAX_CHARACTERS} "
                    "are tokenized at once: send less.",
                    param="prompt",
                )
            # The engine is not used: there a text must fit the context, here it is only counted.
            return list(
                self._tokenizer.encode(
                    task.text, add_special_tokens=task.add_special_tokens, verbose=False
                )
            )
        if self._encode is None:
            raise RequestError(
                ErrorCode.UNSUPPORTED_VALUE,
                "This model has no chat template: send `prompt` instead of `messages`.",
                param="messages",
            )
        source = PromptSource(
            messages=task.messages,
            template_kwargs={**self._template_kwargs, **(task.template_kwargs or {})},
            tool_use=task.tool_use,
            add_generation_prompt=task.add_generation_prompt,
            continue_final_message=task.continue_final_message,
            thinking=task.thinking or Thinking(),
            media=media,
        )
        return list(self._encode(source).tokens)

    def _text(self, tokens: tuple[int, ...]) -> str:
        return str(
            self._tokenizer.decode(
                list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )


def _plain(value: Any) -> Any:
    """Return a value in a form that JSON has; a token as its text."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case list() | tuple():
            return [_plain(one) for one in value]
        case dict():
            return {str(key): _plain(one) for key, one in value.items()}
    return str(value)


def _check_reply(size_bytes: int, param: str) -> None:
    if size_bytes > MAX_REPLY_BYTES:
        raise RequestError(
            ErrorCode.INVALID_VALUE,
            f"The answer to `{param}` would have {size_bytes} bytes, and at most "
            f"{MAX_REPLY_BYTES} are sent at once: send less.",
            param=param,
        )


def check_tokens(tokens: Sequence[int], vocabulary_size: int, param: str) -> None:
    """Raise ``RequestError`` for a token that the model doesn't have: a look-up outside of the
    table would return whatever lies in memory there."""
    for index, token in enumerate(tokens):
        if not 0 <= token < vocabulary_size:
            raise RequestError(
                ErrorCode.INVALID_VALUE,
                f"`{param}[{index}]` is {token}: this model's tokens go from 0 to "
                f"{vocabulary_size - 1}.",
                param=f"{param}[{index}]",
            )

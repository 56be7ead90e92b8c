"""Turns tokens into text, one at a time, in whole characters."""

import codecs
from collections.abc import Callable, Mapping, Sequence
from typing import Final

_Utf8 = codecs.getincrementaldecoder("utf-8")

Decode = Callable[[Sequence[int]], str]

_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"

# A character is at most four bytes, so at most four tokens. Text that still ends in U+FFFD
# after this many is not a character being completed; waiting on would decode an ever longer
# window at each token.
_MAX_WAIT_TOKENS: Final = 16


class ByteDetokenizer:
    """Decodes tokens whose bytes, one after the other, are the text.

    An incomplete character is held back; bytes that are not UTF-8 become U+FFFD, as when all are
    decoded at once. ``token_bytes`` are the bytes of each token. ``skip`` are the special tokens,
    which are no text. ``after`` are tokens that come before, and are no part of the text; a
    character that they begin is a part of it.
    """

    def __init__(
        self, token_bytes: Mapping[int, bytes], skip: frozenset[int], after: Sequence[int] = ()
    ) -> None:
        self._token_bytes = token_bytes
        self._skip = skip
        self._decode = _Utf8("replace").decode
        for token in after:
            self.add(token)

    def add(self, token: int) -> str:
        """Return the text that became final with this token, without bytes of half a character."""
        return "" if token in self._skip else self._decode(self._token_bytes[token])

    def flush(self) -> str:
        """Return U+FFFD if the last character is incomplete."""
        return self._decode(b"", True)


class IncrementalDetokenizer:
    """Decodes a window of the last tokens and returns the new part of the text.

    A tokenizer may join tokens differently at the start of a text (SentencePiece drops the first
    space), so new tokens are decoded together with the ones before them, whose text is then cut
    off. Text that ends in U+FFFD is an incomplete character and is held back.

    ``skip`` are the special tokens, which are no text. ``after`` are tokens that come before, and
    are no part of the text; a character that they begin is a part of it.
    """

    def __init__(self, decode: Decode, skip: frozenset[int], after: Sequence[int] = ()) -> None:
        self._decode = decode
        self._skip = skip
        self._context = [token for token in after if token not in skip]
        self._context_text = decode(self._context) if self._context else ""
        self._new: list[int] = []

    def add(self, token: int) -> str:
        """Return the text that became final with this token, often none."""
        if token in self._skip:
            return ""
        self._new.append(token)
        text = self._decode(self._context + self._new)
        if text.endswith(_REPLACEMENT) and len(self._new) < _MAX_WAIT_TOKENS:
            return ""
        return self._emit(text)

    def flush(self) -> str:
        """Return the text that is held back, with U+FFFD if the last character is incomplete."""
        return self._emit(self._decode(self._context + self._new)) if self._new else ""

    def _emit(self, text: str) -> str:
        before, context = self._context_text, self._new
        if before.endswith(_REPLACEMENT) and not text.startswith(before):
            # The tokens before end inside of a character, which is complete now. A U+FFFD before
            # it may be a character of the text.
            while not text.startswith(before):
                before = before[:-1]
            context = self._context + self._new
        piece = text[len(before) :]
        self._context, self._new = context, []
        self._context_text = self._decode(self._context)
        return piece

"""The prompts of fill-in-the-middle: what stands before and after a gap, and the model writes what
belongs in it. Pure, but for the tokenizer, which serves one thread.

A model that was trained for it has tokens of its own for this, which are found in its tokenizer. A
tokenizer that is shared by a whole series (Qwen's, Mistral's) has them also where a model of the
series was not trained with them.

Sources: the tokenizers and model cards of Qwen2.5-Coder, CodeGemma, StarCoder 2, Granite,
DeepSeek-Coder, CodeLlama, Codestral and Seed-Coder; the form of further files is that of
llama.cpp's ``/infill``.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from lmx.protocol.messages.data import Infill
from lmx.protocol.models.infill import InfillForm, infill_form

_REPOSITORY: Final = "myproject"
_FILE: Final = "filename"
"""The names that stand for those which a request does not give."""

_LINE: Final = "\n"


class InfillEncoder:
    """Writes prompts in the form of one tokenizer's family. Prompt thread only."""

    def __init__(self, tokenizer: Any, form: InfillForm, tokens: Mapping[str, int]) -> None:
        """``tokens``: those of the tokenizer's vocabulary that were added to it."""
        self._tokenizer = tokenizer
        self._form = form
        self._tokens = tokens
        self.end_ids: frozenset[int] = frozenset(tokens[one] for one in form.ends if one in tokens)
        """The tokens that end an answer besides the model's own."""
        control = {*form.needed, *form.ends, *tokenizer.all_special_tokens}
        control.update(
            entry.content for entry in tokenizer.added_tokens_decoder.values() if entry.special
        )
        self._control = re.compile(_any_of({one for one in control if len(one) > 1}))
        opening = tokenizer.encode("")
        bos = tokenizer.bos_token_id
        self._start = [bos] if bos is not None and opening[:1] == [bos] else []
        pieces = tokenizer.convert_ids_to_tokens(self._plain("a"))
        self._pads = bool(pieces) and pieces[0].startswith("▁")
        self._line = self._plain(_LINE)

    def encode(self, before: str, infill: Infill) -> list[int]:
        """Return the prompt's tokens. No text of the request becomes a special token."""
        form = self._form
        tokens = [*self._start, *self._files(infill)]
        prefix = [self._tokens[form.prefix], *self._text(before)]
        suffix = [self._tokens[form.suffix], *self._inner(infill.suffix)]
        tokens += [*suffix, *prefix] if form.suffix_first else [*prefix, *suffix]
        if form.middle is not None:
            tokens.append(self._tokens[form.middle])
        return [*tokens, *self._inner(infill.begun)]

    def _files(self, infill: Infill) -> list[int]:
        if not infill.files:
            return []
        form = self._form
        if form.repository is None or form.file is None:
            whole = "".join(f"{one.name}\n{one.text}\n\n" for one in infill.files)
            return self._text(whole)
        tokens = [self._tokens[form.repository], *self._inner(f"{_REPOSITORY}\n")]
        for one in infill.files:
            text = f"{one.name}\n{one.text}\n"
            tokens += [self._tokens[form.file], *self._inner(text)]
        return [*tokens, self._tokens[form.file], *self._inner(f"{_FILE}\n")]

    def _text(self, text: str, *, first: bool = True) -> list[int]:
        """Tokenize a text in pieces, none of which has the whole name of a special token. ``first``
        is whether it may begin with the space that the tokenizer writes before a text."""
        tokens: list[int] = []
        begin = 0
        for found in self._control.finditer(text):
            tokens += self._piece(text[begin : found.start() + 1], first=first and begin == 0)
            begin = found.start() + 1
        return [*tokens, *self._piece(text[begin:], first=first and begin == 0)]

    def _inner(self, text: str) -> list[int]:
        return self._text(text, first=False)

    def _piece(self, text: str, *, first: bool) -> list[int]:
        """Tokenize a piece. A tokenizer in the manner of SentencePiece writes a space before a
        text, which only the first one has."""
        if first or not self._pads or not text:
            return self._plain(text)
        padded = self._plain(_LINE + text)
        line = self._line
        return padded[len(line) :] if padded[: len(line)] == line else self._plain(text)

    def _plain(self, text: str) -> list[int]:
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False) if text else []
        return tokens


def infill_encoder(tokenizer: Any) -> InfillEncoder | None:
    """Return what writes prompts for a tokenizer; None if it has no tokens for that."""
    added: Mapping[str, int] = tokenizer.get_added_vocab()
    form = infill_form(added)
    return None if form is None else InfillEncoder(tokenizer, form, added)


def _any_of(names: Collection[str]) -> str:
    """Return a pattern that finds where one of the names begins. What names have in common is
    looked at once: a tokenizer has hundreds, and a text may be full of their first characters."""
    tree: dict[str, Any] = {}
    for name in names:
        node = tree
        for char in name:
            node = node.setdefault(char, {})
        node[""] = {}
    return _pattern(tree)


def _pattern(tree: Mapping[str, Any]) -> str:
    if "" in tree:
        return ""
    return "(?:" + "|".join(re.escape(char) + _pattern(rest) for char, rest in tree.items()) + ")"

"""Whisper's tokens: those of text, and those that say what is to be done with the sound."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from mlx_audio.stt.models.whisper.tokenizer import LANGUAGES, TO_LANGUAGE_CODE

from lmx.protocol.errors import ErrorCode, OperationError

ENGLISH: Final = "en"

_SYMBOLS: Final = (
    *'"#()*+/:;<=>@[\\]^_`{|}~「」『』',
    *("<<", ">>", "<<<", ">>>", "--", "---", "-(", "-[", "('", '("', "((", "))", "(((", ")))"),
    *("[[", "]]", "{{", "}}", "♪♪", "♪♪♪"),
)
_NOTES: Final = "♩♪♫♬♭♮♯"
_DASHES: Final = (" -", " '")


class SpeechVocabulary:
    """The tokens of one model. ``tokens`` in its methods are those of text. Any one thread at a
    time."""

    def __init__(self, tokenizer: Any, size: int, *, multilingual: bool) -> None:
        """Raise :class:`OperationError` if the tokenizer is not Whisper's."""
        self._tokenizer = tokenizer
        self._ids: Mapping[str, int] = tokenizer.get_vocab()
        self.end = self._id("<|endoftext|>")
        """It ends a transcript. All tokens of text are below it."""
        self.start = self._id("<|startoftranscript|>")
        self.previous = self._id("<|startofprev|>")
        """The text before the window follows it."""
        self.no_stamps = self._id("<|notimestamps|>")
        self.stamp_begin = self.no_stamps + 1
        """The first stamp. All tokens from here on are stamps."""
        self.no_speech = self._ids.get("<|nospeech|>", self._ids.get("<|nocaptions|>"))
        """Its probability is that of silence. None for a model without it."""
        self.stamps = size - self.stamp_begin
        """How many stamps there are: one for each 20 ms of a window, and one for its end."""
        if not self.end < self.start < self.stamp_begin < size:
            raise OperationError(
                ErrorCode.MODEL_SOURCE_INVALID,
                "The tokens of this folder's tokenizer are not in Whisper's order: fetch it again.",
            )
        # A model of English only has the tokens of languages too.
        self.languages: Mapping[str, int] = (
            {code: self._ids[name] for code in LANGUAGES if (name := f"<|{code}|>") in self._ids}
            if multilingual
            else {}
        )
        """The token of each language that the model distinguishes. Empty: it knows English only."""

    def begin(self, language: str, *, translate: bool) -> tuple[int, ...]:
        """Return the tokens with which a transcript begins."""
        if not self.languages:
            return (self.start,)
        task = self._id("<|translate|>" if translate else "<|transcribe|>")
        return (self.start, self.languages[language], task)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False, verbose=False)
        return [token for token in ids if token < self.end]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens; stamps have none."""
        text = [token for token in tokens if token < self.end]
        return str(self._tokenizer.backend_tokenizer.decode(text, skip_special_tokens=False))

    def never(self) -> frozenset[int]:
        """Return the tokens that are never written: those between the end and the stamps, and
        those of text that nobody speaks, as music notes and brackets."""
        silent = {self.encode(dash)[0] for dash in _DASHES}
        for symbol in (*_SYMBOLS, *_NOTES):
            for tokens in (self.encode(symbol), self.encode(" " + symbol)):
                if len(tokens) == 1 or (tokens and symbol in _NOTES):
                    silent.add(tokens[0])
        return frozenset(silent) | frozenset(range(self.end + 1, self.stamp_begin))

    def _id(self, name: str) -> int:
        found = self._ids.get(name)
        if found is None:
            raise OperationError(
                ErrorCode.MODEL_SOURCE_INVALID,
                f"This folder's tokenizer has no {name}: it is not Whisper's. Take a folder with "
                "Whisper's own tokenizer.json.",
            )
        return found


def language_code(name: str) -> str | None:
    """Return Whisper's code for a language that is named by its code or in English; None if
    Whisper knows no such language. A region is left out: ``pt-BR`` is ``pt``."""
    lowered = name.strip().lower()
    code = TO_LANGUAGE_CODE.get(lowered, lowered.replace("_", "-").split("-", 1)[0])
    return code if code in LANGUAGES else None


def language_name(code: str) -> str:
    """Return the English name of a language, in lower case."""
    return str(LANGUAGES[code])

# ruff: noqa: RUF001  Phonemes and marks look like other letters.
"""Texts as the phonemes that Kokoro was trained with, by the program espeak-ng.

It runs as a process of its own for each request, because it reads what strangers wrote.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Final

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.worker.text.sentences import NUMBERED, TITLES

_PROGRAM: Final = "espeak-ng"
_FURTHER_PATHS: Final = ("/opt/homebrew/bin", "/usr/local/bin")
"""A service of launchd has a short PATH."""

_TIMEOUT_S: Final = 20.0

_MARK: Final = re.compile(r"[—…\"“”()]|[;:,.!?]+(?=[\"”)\s]|$)")
"""Punctuation that Kokoro reads as a pause or a melody, and espeak-ng does not return."""

_TITLE: Final = re.compile(
    rf"\b(?:({'|'.join(sorted(map(re.escape, TITLES), reverse=True))})\.(?=\s)"
    rf"|({'|'.join(sorted(NUMBERED))})\.(?=\s\d))"
)
_LANGUAGE: Final = re.compile(r"\([^)]*\)")
"""How espeak-ng marks that it changes the language within a clause, as for an English word in a
French text."""

_SOUNDS: Final = (
    ("a^ɪ", "I"), ("a^ʊ", "W"), ("e^ɪ", "A"), ("ɔ^ɪ", "Y"), ("o^ʊ", "O"), ("ə^ʊ", "Q"),
    ("d^ʒ", "ʤ"), ("t^ʃ", "ʧ"), ("d^z", "ʣ"), ("t^s", "ʦ"),
)  # fmt: skip
"""Kokoro has one symbol for each of these."""

_ENGLISH: Final = (
    ("ʔˌn\u0329", "tn"), ("ʔn\u0329", "tn"), ("ʔn", "tn"), ("ʔ", "t"), ("ə^l", "ᵊl"),
    ("n\u0329", "ᵊn"), ("l\u0329", "ᵊl"), ("ʲo", "jo"), ("ʲə", "jə"), ("ʲ", ""), ("ɚ", "əɹ"),
    ("r", "ɹ"), ("x", "k"), ("ç", "k"), ("ɐ", "ə"), ("ɬ", "l"), ("\u0303", ""), ("e", "A"),
)  # fmt: skip
_BRITISH: Final = (("e^ə", "ɛː"), ("iə", "ɪə"))
_AMERICAN: Final = (("ɜːɹ", "ɜɹ"), ("ɜː", "ɜɹ"), ("ɪə", "iə"), ("ː", ""))


def require_espeak() -> str:
    """Return the path of espeak-ng. Raises :class:`OperationError` if it is not installed."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), *_FURTHER_PATHS))
    found = shutil.which(_PROGRAM, path=path)
    if found is None:
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID,
            "Kokoro reads phonemes, which the program espeak-ng makes of a text, and it is not "
            "installed: `brew install espeak-ng` (on Debian `apt install espeak-ng`), and load the "
            "model again.",
        )
    return found


def phonemes(
    espeak: str, sentences: Sequence[str], language: str, symbols: Mapping[str, int]
) -> list[str]:
    """Return the phonemes of each sentence, with its punctuation; "" for one that has nothing to
    say. Only ``symbols`` are in them. ``espeak`` is the program, ``language`` as it names it.
    Raises ``subprocess.SubprocessError``."""
    cut = [_chunks(_TITLE.sub(r"\1\2", sentence)) for sentence in sentences]
    spoken = [text for chunks in cut for text, _ in chunks if _is_said(text)]
    said = _run(espeak, "\n\n".join(spoken), language)
    if len(said) != len(spoken) and len(sentences) > 1:
        return [phonemes(espeak, [sentence], language, symbols)[0] for sentence in sentences]
    if len(said) != len(spoken):
        # It found more clauses, or fewer, than there are: only the mark at the end has its place.
        end = next((mark for chunks in cut for text, mark in reversed(chunks) if text), "")
        return [_written(" ".join(said) + end, language, symbols)]
    lines = iter(said)
    return [
        _written(
            "".join((f" {next(lines)}" if _is_said(text) else "") + mark for text, mark in chunks),
            language,
            symbols,
        )
        for chunks in cut
    ]


def _chunks(sentence: str) -> list[tuple[str, str]]:
    """Return the texts between the marks of a sentence, each with the mark behind it. To espeak-ng
    a control character is a command, or the end of all."""
    sentence = re.sub(r"[\x00-\x1f\x7f]", " ", sentence)
    sentence = sentence.replace(" – ", " — ").replace("।", ".")
    found: list[tuple[str, str]] = []
    start = 0
    for mark in _MARK.finditer(sentence):
        before = " " if sentence[mark.start() - 1 : mark.start()].isspace() else ""
        after = " " if sentence[mark.end() : mark.end() + 1].isspace() else ""
        found.append((sentence[start : mark.start()].strip(), f"{before}{mark.group()}{after}"))
        start = mark.end()
    return [*found, (sentence[start:].strip(), "")]


def _is_said(text: str) -> bool:
    return any(map(str.isalnum, text))


def _run(espeak: str, text: str, language: str) -> list[str]:
    """Return the lines that espeak-ng makes of a text. What is between double brackets would be
    phonemes to it, so there are none."""
    options = ("-q", "-b", "1", "--ipa", "--tie=^", "-v", language, "--stdin")
    done = subprocess.run(
        (espeak, *options),
        input=re.sub(r"\[+", "[", text).encode("utf-8", "replace"),
        capture_output=True,
        timeout=_TIMEOUT_S,
        check=True,
    )
    return [
        line.strip()
        for line in _LANGUAGE.sub("", done.stdout.decode("utf-8", "replace")).splitlines()
        if line.strip()
    ]


def _written(ipa: str, language: str, symbols: Mapping[str, int]) -> str:
    table: tuple[tuple[str, str], ...] = _SOUNDS
    if language.startswith("en-"):
        table += (_BRITISH if language == "en-gb" else ()) + _ENGLISH
        table += () if language == "en-gb" else _AMERICAN
    for sound, symbol in table:
        ipa = ipa.replace(sound, symbol)
    kept = "".join(symbol for symbol in ipa.replace("^", "") if symbol in symbols)
    return re.sub(r"(?<=[(“]) ", "", " ".join(kept.split()))

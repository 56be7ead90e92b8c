# ruff: noqa: RUF001
"""Texts become the phonemes that Kokoro knows, with the punctuation that it reads."""

import shutil
from pathlib import Path

import pytest

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.worker.mlx.voices import phonemes as module
from lmx.worker.mlx.voices.phonemes import phonemes, require_espeak

SYMBOLS = dict.fromkeys(';:,.!?—…"()“” ɹɑɐæəɛɜɪɔʊʌaAIOWYQbdfhijklmnopstuvwzðθŋɡʃʒʤʧᵊˈˌː', 1)

needs_espeak = pytest.mark.skipif(
    shutil.which("espeak-ng") is None, reason="espeak-ng is not installed"
)


@needs_espeak
def test_english() -> None:
    said = phonemes(
        require_espeak(),
        ["Hello, world!", "Dr. Smith (my aunt) found 2 eggs...", "?!", "[[hello]] 1,000.5 — yes"],
        "en-us",
        SYMBOLS,
    )
    assert said[0] == "həlˈO, wˈɜɹld!"
    assert said[1].startswith("dˈɑktəɹ smˈɪθ (mI ˈænt) fˈWnd tˈu ˈɛɡz..."), said[1]
    assert said[2] == "?!"
    assert "—" in said[3] and "pYnt" in said[3]


@needs_espeak
def test_other_languages_keep_their_long_sounds() -> None:
    (british,) = phonemes(require_espeak(), ["No cars."], "en-gb", SYMBOLS)
    assert british == "nˈQ kˈɑːz."
    (italian,) = phonemes(require_espeak(), ["Buongiorno."], "it", SYMBOLS)
    assert italian.endswith(".") and "ʤ" in italian


@needs_espeak
def test_a_sentence_that_is_cut_otherwise_costs_no_other_its_marks() -> None:
    said = phonemes(
        require_espeak(),
        ["Hello, world!", "Wait...what, now?", "?!", "He went – on his own."],
        "en-us",
        SYMBOLS,
    )
    assert said[0] == "həlˈO, wˈɜɹld!" and said[2] == "?!"
    assert said[1].startswith("wˈAt wˈʌt") and said[1].endswith("?"), said[1]
    assert " — " in said[3] and said[3].endswith(".")


@needs_espeak
def test_a_word_of_another_language_is_said_without_the_mark_of_its_language() -> None:
    said = phonemes(require_espeak(), ["Un meeting (sur l'email)."], "fr-fr", SYMBOLS)
    assert said[0].count("(") == said[0].count(")") == 1 and "mˈiːtɪŋ (" in said[0], said[0]


@needs_espeak
def test_what_is_said_behind_a_control_character_and_behind_no() -> None:
    said = phonemes(require_espeak(), ["Hello\0world", "I say no. It is No. 5."], "en-us", SYMBOLS)
    assert said[0] == "həlˈO wˈɜɹld"
    assert "nˈO. " in said[1] and said[1].endswith("nˈO fˈIv."), said[1]


def test_no_text_is_taken_for_phonemes(tmp_path: Path) -> None:
    repeats = tmp_path / "espeak"
    repeats.write_text("#!/bin/sh\ncat\n")
    repeats.chmod(0o700)
    for text in ("[[h]]", "[[[h]]", "[[[[h]]]]"):
        (said,) = module._run(str(repeats), text, "en")
        assert said.startswith("[h")


def test_without_the_program_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(OperationError, match="brew install espeak-ng") as caught:
        require_espeak()
    assert caught.value.code is ErrorCode.MODEL_SOURCE_INVALID

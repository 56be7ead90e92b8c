"""Speech that a program says, and how much of it was understood."""

import hashlib
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")


def espeak(text: str, voice: str = "en-us", words_per_minute: int = 140) -> Path:
    """Return a WAV file in which espeak-ng says a text. Skips the test where it is not installed
    (Debian: ``apt-get install espeak-ng``; Homebrew: ``brew install espeak-ng``)."""
    program = shutil.which("espeak-ng")
    if program is None:
        pytest.skip("espeak-ng is not installed, so there is nobody to say the text")
    name = hashlib.sha256(f"{voice} {words_per_minute} {text}".encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / "lmx-speech"
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.wav"
    if not path.exists():
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".part", delete=False) as part:
            subprocess.run(
                [program, "-v", voice, "-s", str(words_per_minute), "--stdout", text],
                stdout=part,
                check=True,
                timeout=60,
            )
        Path(part.name).replace(path)
    return path


def word_errors(heard: str, said: str) -> float:
    """Return how many words are wrong, missing or too many, for each word that was said (the word
    error rate). Case and punctuation don't count."""
    got, wanted = (_WORD.findall(text.lower()) for text in (heard, said))
    row = list(range(len(got) + 1))
    for index, word in enumerate(wanted, start=1):
        before, row[0] = row[0], index
        for column, other in enumerate(got, start=1):
            kept = before + (word != other)
            before, row[column] = row[column], min(kept, row[column] + 1, row[column - 1] + 1)
    return row[-1] / len(wanted)

"""Which voices a model that reads texts aloud has. It reads the names of files alone."""

import re
from itertools import islice
from pathlib import Path
from typing import Final

VOICE_FOLDERS: Final = ("voices", "embeddings")
"""Where a model's folder has its voices, each a file."""

MOST_VOICES: Final = 1000
VOICE_NAME: Final = re.compile(r"[\w.-]{1,64}")

KOKORO_LANGUAGES: Final = {
    "a": "en-us",
    "b": "en-gb",
    "e": "es",
    "f": "fr-fr",
    "h": "hi",
    "i": "it",
    "p": "pt-br",
}
"""The languages of Kokoro's voices by the first letters of their names. Japanese and Chinese are
left out: espeak-ng knows none of the phonemes with which those voices were trained."""


def voice_files(folder: Path, family: str) -> dict[str, Path]:
    """Return the files of a model's voices by name, sorted; none for a folder that has none or
    can't be read. Other names than ``VOICE_NAME`` are left out."""
    found: dict[str, Path] = {}
    for name in VOICE_FOLDERS:
        try:
            files = islice((folder / name).glob("*.safetensors"), MOST_VOICES)
            found |= {file.stem: file for file in files if VOICE_NAME.fullmatch(file.stem)}
        except OSError:
            continue
    if family == "kokoro":
        found = {name: file for name, file in found.items() if name[0] in KOKORO_LANGUAGES}
    return dict(sorted(found.items())[:MOST_VOICES])

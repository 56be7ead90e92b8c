# ruff: noqa: RUF001  Marks of other scripts look like those of Latin.
"""Cuts a text into sentences, which are read aloud one after the other. Pure."""

import re
from typing import Final

TITLES: Final = frozenset({
    "Mr", "Mrs", "Ms", "Dr", "Prof", "St", "Mt", "Gen", "Col", "Capt", "Lt", "Sgt", "Rev",
    "Hon", "Fr", "Hr", "Sen", "Rep", "Gov", "Pres", "vs", "e.g", "i.e", "cf", "viz",
    "approx", "Fig", "pp", "Vol", "Nr", "bzw", "z.B", "d.h",
})  # fmt: skip
"""Abbreviations behind which a sentence continues, whatever follows."""

NUMBERED: Final = frozenset({"No", "no", "fig"})
"""Words that are abbreviations before a number only."""

_ABBREVIATIONS: Final = frozenset({
    "Inc", "Ltd", "Co", "Corp", "Jr", "Sr", "etc", "a.m", "p.m", "U.S", "U.K", "dept",
    "est", "al", "usw",
})  # fmt: skip
"""Abbreviations behind which a sentence ends if a capital letter follows."""

_PARAGRAPH: Final = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*•]|\d+[.)])\s)")
_END: Final = re.compile(r"[.!?…]+[\"'”’»)\]]*(?=\s)|[。！？｡।]+[\"'”’」』）)]*")
_PAUSES: Final = (re.compile(r"[;:—–；：]\s*"), re.compile(r",\s+|[，、]"), re.compile(r"\s+"))
"""Where a long sentence is cut, the best place first."""

_LEAST_BYTES: Final = 20
"""A shorter sentence is read with the next one: a model says single words badly. A character of
Chinese has three bytes, and is as long as three letters."""


def sentences(text: str, most_chars: int) -> list[str]:
    """Return the sentences of a text in order, of at most ``most_chars`` characters each. White
    space at their ends and within them is made one space; nothing else is lost."""
    found: list[str] = []
    for paragraph in _PARAGRAPH.split(text):
        words = " ".join(paragraph.split())
        start = 0
        for end in _END.finditer(words):
            if _ends(words[start : end.end()], words[end.end() :].lstrip()[:1]):
                found += _cut(words[start : end.end()].strip(), most_chars)
                start = end.end()
        found += _cut(words[start:].strip(), most_chars)
    return _joined(found, most_chars)


def _ends(sentence: str, following: str) -> bool:
    """Return whether a sentence ends with its last mark, before the character that follows."""
    if not sentence.endswith("."):
        return not (sentence.endswith("…") and following.islower())
    word = sentence[:-1].rpartition(" ")[2].lstrip("\"'“‘«([")
    if following.islower() or word in TITLES or (word in NUMBERED and following.isdigit()):
        return False
    if word in _ABBREVIATIONS:
        return following.isupper()
    if len(word) == 1 and word.isupper():
        return word == "I"  # Others are initials: J. S. Bach.
    return not (sentence[:-1].isdigit() and len(sentence) < 5)  # The number of an item.


def _cut(sentence: str, most_chars: int) -> list[str]:
    parts: list[str] = []
    while len(sentence) > most_chars:
        head = sentence[: most_chars + 1]
        places = (
            max(
                (mark.end() for mark in pause.finditer(head) if mark.end() <= most_chars), default=0
            )
            for pause in _PAUSES
        )
        # A place near the beginning would make many short parts.
        at = next((place for place in places if place > most_chars // 4), most_chars)
        parts.append(sentence[:at].strip())
        sentence = sentence[at:].strip()
    return [*parts, sentence] if sentence else parts


def _joined(found: list[str], most_chars: int) -> list[str]:
    joined: list[str] = []
    for sentence in found:
        if (
            joined
            and len(joined[-1].encode()) < _LEAST_BYTES
            and len(joined[-1]) + len(sentence) < most_chars
        ):
            joined[-1] += f" {sentence}"
        else:
            joined.append(sentence)
    return joined

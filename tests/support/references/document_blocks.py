"""The blocks of code in the documents: all of them with their lines, the commands of those that a
shell reads, and those in ``docs/clients.md`` by the bold name that each follows."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parents[3]
DOCUMENTS: Final = sorted(
    path
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "protocol/**/*.md",
        "router/**/*.md",
        "supervisor/**/*.md",
        "worker/**/*.md",
    )
    for path in _ROOT.glob(pattern)
)
_DOCUMENT: Final = _ROOT / "docs" / "clients.md"
_PARTS: Final = re.compile(
    r"^\*\*(?P<name>.+?)\*\*|^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.M | re.S
)


def block(name: str, language: str, place: int = 0) -> str:
    """Return the text of the block behind this name in this language; the first, unless ``place``
    says another."""
    found, before = [], ""
    for part in _PARTS.finditer(_DOCUMENT.read_text()):
        before = part["name"] or before
        if before == name and part["kind"] == language:
            found.append(part["text"])
    return found[place]


@dataclass(frozen=True)
class Block:
    """A block between fences. ``line`` is that of its first line in the document, from 1."""

    language: str
    line: int
    text: str


_FENCED: Final = re.compile(r"^( *)```(\w+)[^\n]*\n(.*?)^ *```$", re.M | re.S)


def blocks(text: str) -> Iterator[Block]:
    """Yield the blocks of a document that name a language."""
    for found in _FENCED.finditer(text):
        inner = re.sub(f"^{found[1]}", "", found[3], flags=re.M)
        yield Block(found[2], text.count("\n", 0, found.start(3)) + 1, inner)


_BEFORE_A_COMMAND: Final = frozenset({"do", "exec", "if", "nice", "nohup", "sudo", "then", "time"})
_VARIABLE: Final = re.compile(r"[A-Za-z_]\w*=.*", re.S)


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each simple command of a shell's lines. What stands in front of it
    (``sudo``, variables), redirections, comments and here-documents are left out, and nothing is
    expanded."""
    lines = iter(text.splitlines())
    for line in lines:
        whole = line
        while (words := _words(whole)) is None:
            whole = whole.removesuffix("\\") + "\n" + next(lines)
        if "<<" in words:
            end = words[words.index("<<") + 1]
            while next(lines).strip() != end:
                pass
        yield from _simple(words)


def _words(line: str) -> list[str] | None:
    """Return the words of a line; None: it continues on the next one."""
    if line.endswith("\\"):
        return None
    reader = shlex.shlex(line, posix=True, punctuation_chars=True)
    reader.wordchars += "@:+%,[]{}$^!"
    try:
        return list(reader)
    except ValueError:
        return None


def _simple(words: list[str]) -> Iterator[list[str]]:
    command: list[str] = []
    rest = iter([*words, ";"])
    for word in rest:
        if set(word) <= set("();|&"):
            if command:
                yield command
            command = []
        elif set(word) <= set("<>&"):
            next(rest)
            if command and command[-1].isdigit():
                command.pop()
        elif command or not (word in _BEFORE_A_COMMAND or _VARIABLE.fullmatch(word)):
            command.append(word)

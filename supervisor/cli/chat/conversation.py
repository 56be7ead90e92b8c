"""A conversation as it is sent to a model. Values only: nothing is read, printed or sent."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lmx.protocol.errors import ErrorCode, OperationError

COMMANDS: Final = {
    "/model": ("NAME", "continue with another model"),
    "/system": ("TEXT", "say how the model is to answer; without TEXT: nothing more"),
    "/set": ("NAME VALUE", "set a parameter, such as temperature; /set lists them"),
    "/image": ("FILE", "send an image with the next message"),
    "/audio": ("FILE", "send a sound with the next message"),
    "/drop": ("", "forget the images and sounds for the next message"),
    "/clear": ("", "forget the conversation"),
    "/save": ("FILE", "write the conversation to FILE, as Markdown or .json"),
    "/help": ("", "this list"),
    "/bye": ("", "leave, as Ctrl-D does"),
}
"""The commands of a conversation: their argument, and what they do."""


PARAMETERS: Final[Mapping[str, type]] = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "max_tokens": int,
    "seed": int,
    "frequency_penalty": float,
    "presence_penalty": float,
    "repetition_penalty": float,
    "reasoning_effort": str,
}
"""The parameters of requests that people set, and the type of their values."""


def parameter(name: str, text: str) -> Any:
    """Return the value of a parameter as it is sent. Raises :class:`OperationError`
    (invalid_value)."""
    kind = PARAMETERS.get(name)
    if kind is None:
        raise OperationError(
            ErrorCode.INVALID_VALUE,
            f"there is no parameter {name!r}; known are {', '.join(PARAMETERS)}, stats",
        )
    try:
        return kind(text)
    except ValueError as error:
        wanted = "a whole number" if kind is int else "a number"
        raise OperationError(
            ErrorCode.INVALID_VALUE, f"{name} takes {wanted}, not {text!r}"
        ) from error


@dataclass(slots=True)
class Conversation:
    """What was said so far, and what will be sent with the next message."""

    model: str
    system: str | None = None
    turns: list[dict[str, Any]] = field(default_factory=list)
    attached: list[dict[str, Any]] = field(default_factory=list)
    """The parts of images and sounds for the next message."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """Those of each request besides the messages."""
    stats: bool = False
    """Whether tokens and speed are shown after each answer."""

    def ask(self, text: str) -> list[dict[str, Any]]:
        """Add a message of the person, with what was attached. Returns what is to be sent."""
        parts = [*self.attached, {"type": "text", "text": text}]
        self.turns.append({"role": "user", "content": parts if self.attached else text})
        self.attached = []
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, *self.turns]

    def answered(self, text: str) -> None:
        """Add what the model said to the last message. Nothing: the message is taken back, and what
        was attached to it goes with the next one."""
        if text:
            self.turns.append({"role": "assistant", "content": text})
            return
        content = self.turns.pop()["content"]
        if isinstance(content, list):
            self.attached = [*content[:-1], *self.attached]

    def clear(self) -> None:
        """Forget all but the model and how it is to answer."""
        self.turns.clear()
        self.attached.clear()


def saved_text(conversation: Conversation, *, as_json: bool) -> str:
    """Return a conversation as a file has it: as the body of a request, or as Markdown."""
    system = conversation.system
    turns = conversation.turns
    if as_json:
        first = [] if system is None else [{"role": "system", "content": system}]
        body = {
            "model": conversation.model, "messages": [*first, *turns], **conversation.parameters
        }  # fmt: skip
        return json.dumps(body, indent=2, ensure_ascii=False) + "\n"
    parts = [f"# {conversation.model}"]
    if system is not None:
        parts.append(f"> {system}".replace("\n", "\n> "))
    for turn in turns:
        parts += [f"## {turn['role']}", "\n\n".join(_texts(turn["content"]))]
    return "\n\n".join(parts) + "\n"


def _texts(content: str | Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if isinstance(content, str):
        yield content
        return
    for part in content:
        yield part["text"] if part["type"] == "text" else f"*({part['type'].replace('_', ' ')})*"


def typed_text(text: str | bytes) -> str:
    """Return a text as it was typed, where Python has taken bytes of UTF-8 for another encoding, or
    the text that bytes are. Raises :class:`OperationError` (invalid_value) if it is no UTF-8."""
    try:
        if isinstance(text, str) and text.isascii():
            return text
        return os.fsencode(text).decode("utf-8")
    except UnicodeError as error:
        raise OperationError(
            ErrorCode.INVALID_VALUE,
            "the text is not UTF-8: the terminal, or the pipe, has another encoding (see `locale`; "
            "LC_ALL=C.UTF-8 sets it)",
        ) from error


def command_of(line: str) -> tuple[str, str] | None:
    """Return the command of a line and its argument, None if it is a message. A line that begins as
    a path does, with more than one slash, is a message."""
    name, _, argument = line.strip().partition(" ")
    if not name.startswith("/") or "/" in name[1:]:
        return None
    return name, argument.strip()


@dataclass(slots=True)
class Lines:
    """Puts a message of several lines together: between two lines with three quotes, or with a
    backslash at the end of each line but the last."""

    _open: list[str] = field(default_factory=list)
    _quoted: bool = False

    @property
    def begun(self) -> bool:
        """Whether a message was begun and more lines belong to it."""
        return bool(self._open) or self._quoted

    def add(self, line: str) -> str | None:
        """Take a line. Returns the message if it is whole."""
        if self._quoted:
            before, quotes, _ = line.partition('"""')
            self._open.append(before)
            return self._whole() if quotes else None
        if not self._open and line.lstrip().startswith('"""'):
            rest = line.lstrip().removeprefix('"""')
            before, quotes, _ = rest.partition('"""')
            if quotes:
                return before
            self._quoted = True
            self._open = [rest] if rest else []
            return None
        if line.endswith("\\"):
            self._open.append(line[:-1])
            return None
        self._open.append(line)
        return self._whole()

    def drop(self) -> None:
        """Forget the lines of a message that is not whole."""
        self._open, self._quoted = [], False

    def _whole(self) -> str:
        message = "\n".join(self._open)
        self.drop()
        return message


def shown(text: str) -> str:
    """Return a model's text as it may be written to a terminal: without control characters, which
    could change what the terminal shows or does."""
    return "".join(
        letter if letter in "\n\t" or not (ord(letter) < 32 or 127 <= ord(letter) < 160) else "�"
        for letter in text
    )

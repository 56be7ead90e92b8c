"""A conversation as it is sent to a model. Values only: nothing is read, printed or sent."""

from dataclasses import dataclass, field
from typing import Any, Final

COMMANDS: Final = {
    "/model": ("NAME", "continue with another model"),
    "/system": ("TEXT", "say how the model is to answer; without TEXT: nothing more"),
    "/image": ("FILE", "send an image with the next message"),
    "/audio": ("FILE", "send a sound with the next message"),
    "/drop": ("", "forget the images and sounds for the next message"),
    "/clear": ("", "forget the conversation"),
    "/help": ("", "this list"),
    "/bye": ("", "leave, as Ctrl-D does"),
}
"""The commands of a conversation: their argument, and what they do."""


@dataclass(slots=True)
class Conversation:
    """What was said so far, and what will be sent with the next message."""

    model: str
    system: str | None = None
    turns: list[dict[str, Any]] = field(default_factory=list)
    attached: list[dict[str, Any]] = field(default_factory=list)
    """The parts of images and sounds for the next message."""

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

"""How an answer is shown on a terminal: as Markdown that grows, and before it what it waits for."""

import contextlib
import sys
import termios
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Final

import click
from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment

from lmx.supervisor.cli.chat.client import Piece, PieceKind
from lmx.supervisor.cli.chat.conversation import shown

_REFRESH_S: Final = 0.1
_FENCES: Final = ("```", "~~~")


def finished_length(text: str) -> int:
    """Return how much of a Markdown text consists of blocks that nothing can be added to. A block
    ends at an empty line outside of a block of code, if the line after it is not indented. Pure."""
    place = end = 0
    fence: str | None = None
    empty = False
    for line in text.splitlines(keepends=True):
        bare = line.strip()
        if fence is None and empty and bare and not line[0].isspace():
            end = place
        if bare[:3] in _FENCES:
            if fence is None:
                fence = bare[:3]
            elif bare.startswith(fence) and not bare.strip(fence[0]):
                fence = None
        empty = not bare
        place += len(line)
    return end


class _Tail:
    """The end of a text in Markdown, as many lines as the terminal has: what has left its top can't
    be changed any more."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(markdown(self._text), options, pad=False)
        for line in lines[-max(1, console.height - 2) :]:
            yield from line
            yield Segment.line()


def markdown(text: str) -> Markdown:
    """Return a text as rich shows it. HTML is shown as it stands, and links with their address."""
    made = Markdown("", hyperlinks=False)
    parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
    made.markup, made.parsed = text, parser.parse(text)
    return made


class AnswerView:
    """Shows one answer as it comes, as a context manager. On a terminal blocks of Markdown are
    printed when they are finished, and the last one is drawn again and again below them; elsewhere
    the text is written as it comes."""

    def __init__(self) -> None:
        # A terminal that can't move its cursor can't draw again.
        console = Console(highlight=False)
        self._console = console if console.is_terminal and not console.is_dumb_terminal else None
        self._live: Live | None = None
        self._drawn_s = 0.0
        self._open = ""
        """The text after the blocks that were printed."""
        self._last: PieceKind | None = None
        self._waiting = False
        self.text = ""
        """What the model has said so far."""

    def __enter__(self) -> "AnswerView":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end_waiting()
        self._end_text()
        if self._console is None and kind is None and not self.text.endswith("\n"):
            sys.stdout.write("\n")
        sys.stdout.flush()

    def show(self, piece: Piece, *, reasoning: bool) -> None:
        """Show what has come. With ``reasoning`` also what the model says to itself."""
        match piece.kind:
            case PieceKind.WAITING:
                self._wait(shown(piece.text))
                return
            case PieceKind.REASONING if reasoning:
                self._end_waiting()
                click.secho(shown(piece.text), dim=True, nl=False)
            case PieceKind.TEXT:
                self._end_waiting()
                if self._last is PieceKind.REASONING and reasoning:
                    click.echo("\n")
                self.text += piece.text
                self._write(piece.text)
            case _:
                return
        self._last = piece.kind

    def _write(self, text: str) -> None:
        if self._console is None:
            sys.stdout.write(shown(text) if sys.stdout.isatty() else text)
            sys.stdout.flush()
            return
        self._open += shown(text)
        if length := finished_length(self._open):
            self._print(self._open[:length])
            self._open = self._open[length:]
        now_s = time.monotonic()
        if now_s - self._drawn_s < _REFRESH_S:
            return
        if self._live is None:
            self._live = Live(
                console=self._console, auto_refresh=False, transient=True,
                redirect_stdout=False, redirect_stderr=False, vertical_overflow="visible",
            )  # fmt: skip
            self._live.start()
        self._live.update(_Tail(self._open), refresh=True)
        self._drawn_s = time.monotonic()

    def _print(self, text: str) -> None:
        assert self._console is not None
        self._stop_live()
        self._console.print(markdown(text))

    def _stop_live(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _end_text(self) -> None:
        self._stop_live()
        if self._console is not None and self._open.strip():
            self._console.print(markdown(self._open))
        elif self._last is PieceKind.REASONING:
            click.echo()
        self._open = ""

    def _wait(self, text: str) -> None:
        """Say on the terminal, on a line that goes again, what is waited for."""
        if sys.stderr.isatty():
            click.echo(f"\r\x1b[K{click.style(f'({text})', dim=True)}", nl=False, err=True)
            self._waiting = True

    def _end_waiting(self) -> None:
        if self._waiting:
            click.echo("\r\x1b[K", nl=False, err=True)
            self._waiting = False


def stats_text(usage: dict[str, Any], timings: dict[str, Any]) -> str:
    """Return tokens and speed of an answer as one line. Pure."""
    cached = usage.get("cached_tokens")
    prompt = f"{usage.get('prompt_tokens', 0)} tokens asked"
    prompt += f" ({cached} cached)" if cached else ""
    parts = [prompt, f"{usage.get('completion_tokens', 0)} answered"]
    if rate := timings.get("tokens_per_s"):
        parts.append(f"{rate:.1f} tokens/s")
    if (first_s := timings.get("first_token_s")) is not None:
        parts.append(f"first token after {first_s:.2f} s")
    if load_s := timings.get("load_s"):
        parts.append(f"{load_s:.1f} s of that to load")
    return ", ".join(parts)


@contextlib.contextmanager
def typing_off() -> Iterator[None]:
    """Neither show nor keep what is typed while the block runs; Ctrl-C works as ever."""
    if not sys.stdin.isatty():
        yield
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    silent = termios.tcgetattr(terminal)
    silent[3] &= ~termios.ECHO
    termios.tcsetattr(terminal, termios.TCSANOW, silent)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSAFLUSH, before)

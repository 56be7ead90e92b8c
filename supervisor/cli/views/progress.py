"""What a person sees on the terminal while lmx comes up: progress bars, the welcome lines.

rich takes a tenth of a second to import. A service needs none of it: its lines go where there is no
terminal.
"""

from __future__ import annotations

import json
import os
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from lmx.protocol.messages.status import ModelStatus, SystemStatus
from lmx.protocol.states import ModelKind, ModelState
from lmx.supervisor.cli.views.words import SETTLED, doing
from lmx.supervisor.decisions.ledger import format_bytes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

_PLAIN_WIDTH: Final = 160
_TERMINAL_VARIABLES: Final = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
"""With these rich may take any output for a terminal."""


class PlainConsole:
    """Prints lines on stdout where there is no terminal, as :func:`make_console` would. It falls
    silent when nobody reads any more."""

    is_terminal: Final = False

    def __init__(self) -> None:
        self._quiet = False

    def print(self, text: str = "", *, markup: bool = False) -> None:
        """Print a text without any markup. Raises ``OSError``."""
        assert not markup
        if self._quiet:
            return
        try:
            print(text, flush=True)
        except BrokenPipeError:
            self._quiet = True


def make_console() -> Console:
    """Return a console on stdout; wide enough not to cut lines where there is no terminal."""
    from rich.console import Console

    class LastingConsole(Console):
        """Falls silent when nobody reads any more; rich would end the process."""

        def on_broken_pipe(self) -> None:
            self.quiet = True

    return LastingConsole(
        highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else _PLAIN_WIDTH
    )


def make_line_console() -> PlainConsole | Console:
    """Return a console on stdout for lines, and for bars if that is a terminal."""
    terminal = sys.stdout.isatty() or any(name in os.environ for name in _TERMINAL_VARIABLES)
    return make_console() if terminal else PlainConsole()


def _print(console: PlainConsole | Console, *parts: str | tuple[str, str]) -> None:
    """Print a line of parts; those that are pairs have a style before their text."""
    if isinstance(console, PlainConsole):
        console.print("".join(part if isinstance(part, str) else part[1] for part in parts))
        return
    from rich.markup import escape

    marked = (
        escape(part) if isinstance(part, str) else f"[{part[0]}]{escape(part[1])}[/]"
        for part in parts
    )
    console.print("".join(marked))


class LoadProgress:
    """Progress of models on their way up: bars on a terminal, a line a change elsewhere.

    A context manager; feed it each status with :meth:`show`.
    """

    def __init__(self, console: PlainConsole | Console) -> None:
        self._console = console
        self._bars = None if isinstance(console, PlainConsole) else _bars(console)
        self._tasks: dict[str, Any] = {}
        self._started_s: dict[str, float] = {}
        self._printed: dict[str, tuple[str | tuple[str, str], ...]] = {}
        self._ready_pids: dict[str, int | None] = {}

    def __enter__(self) -> LoadProgress:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def show(self, model: ModelStatus) -> None:
        """Show one model's part of the status."""
        name = model.model
        self._started_s.setdefault(name, time.monotonic())
        if model.state in SETTLED:
            self._settle(model)
            return
        what = doing(model)
        if self._bars is not None:
            self._show_bar(self._bars, model, what)
        if model.state is ModelState.BACKOFF and model.problem:
            self._once(name, ("yellow", "failed"), f"  {name}: {model.problem}")
        elif not self._console.is_terminal:
            self._once(name, f"{name}: {what}")

    def _show_bar(self, bars: Progress, model: ModelStatus, what: str) -> None:
        name, fraction = model.model, model.fraction
        if name not in self._tasks:
            self._tasks[name] = bars.add_task(name, total=None, percent="")
        bars.update(
            self._tasks[name],
            description=f"{name}  {what}",
            total=None if fraction is None else 1.0,
            completed=fraction or 0.0,
            percent="" if fraction is None else f"{fraction:.0%}",
        )

    def _settle(self, model: ModelStatus) -> None:
        name = model.model
        if self._bars is not None and name in self._tasks:
            self._bars.remove_task(self._tasks.pop(name))
        if model.state is ModelState.READY:
            # Once: its time and its memory change with each status, while others still load.
            if self._ready_pids.get(name) == model.pid:
                return
            self._ready_pids[name] = model.pid
            took_s = time.monotonic() - self._started_s[name]
            memory = format_bytes(model.figures.memory_bytes)
            line = f"  {name}  {memory}, pid {model.pid}, {took_s:.1f} s"
            self._once(name, ("green", "ready"), line)
        elif model.problem:
            self._once(name, ("red", str(model.state)), f"  {name}: {model.problem}")

    def _once(self, model: str, *parts: str | tuple[str, str]) -> None:
        if self._printed.get(model) != parts:
            self._printed[model] = parts
            _print(self._console, *parts)


def _bars(console: Console) -> Progress:
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[percent]:>5}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def print_started(console: Console, status: SystemStatus) -> None:
    """Print where an lmx in the background serves, how its models are, and what to do next."""
    router = status.router
    url, *others = router.urls or ("(the router is being restarted)",)
    console.print(f"lmx is running (pid {status.supervisor.pid}) at {url}", markup=False)
    if others:
        console.print(f"also at {', '.join(others)}", markup=False)
    for model in status.workers:
        problem = f": {model.problem}" if model.problem else ""
        state = doing(model) if model.state is ModelState.QUEUED else model.state
        console.print(f"{model.model}  {state}{problem}", markup=False)
    if not status.workers:
        console.print(_NO_MODELS)
    elif router.urls:
        talk = f"talk with `lmx chat`, or in a browser: {url.removesuffix('v1')}"
        console.print(talk, markup=False)
    console.print("`lmx status` shows how it is, `lmx stop` ends it")


_NO_MODELS: Final = "no models yet: `lmx pull qwen3-8b` downloads one and serves it"


def print_welcome(console: PlainConsole | Console, status: SystemStatus) -> None:
    """Print the base URL, the models, where the API is described, and a request to paste."""
    router, models = status.router, status.workers
    ready = [model for model in models if model.state is ModelState.READY]
    shown = ready or [model for model in models if model.state is not ModelState.FAILED]
    url = router.url or "(the router is being restarted)"
    version = status.supervisor.version
    _print(console, "\n", ("bold", f"lmx {version}"), " serves at ", ("bold", url))
    others = router.urls[1:]
    if others:
        console.print(f"and at  {', '.join(others)}", markup=False)
    names = ", ".join(model.model for model in shown)
    if models and not shown:
        names = "none can be loaded"
    _print(console, f"models: {names}" if names else _NO_MODELS)
    if router.url is not None:
        _print(console, f"page:   {url.removesuffix('v1')} (chat, models, requests, logs)")
        _print(console, f"docs:   {url.removesuffix('/v1')}/docs")
    if any(model.kind in (None, ModelKind.CHAT) for model in shown):
        _print(console, "talk:   `lmx chat` in another terminal")
    if shown and router.url is not None:
        # The first that chats; a kind that is not known yet most likely does.
        chats = [model for model in shown if model.kind in (None, ModelKind.CHAT)]
        _print(console, "\ntry it:\n")
        console.print(f"  curl {url}/{_example((chats or shown)[0])}\n", markup=False)


def _example(model: ModelStatus) -> str:
    """Return the path and the options of a request that a model of its kind can answer."""
    if model.kind is ModelKind.TRANSCRIPTION:
        return f"audio/transcriptions \\\n    -F model={model.model} -F file=@speech.wav"
    path, body = _json_example(model)
    return f"{path} -H 'Content-Type: application/json' \\\n    -d '{body}'"


def _json_example(model: ModelStatus) -> tuple[str, str]:
    body: dict[str, Any] = {"model": model.model}
    if model.kind is ModelKind.SPEECH:
        return "audio/speech -o speech.mp3", json.dumps(body | {"input": "Good morning."})
    if model.kind is ModelKind.EMBEDDING:
        return "embeddings", json.dumps(body | {"input": "The capital of France is Paris."})
    if model.kind is ModelKind.RERANK:
        documents = ["Paris is the capital.", "Bread is good."]
        return "rerank", json.dumps(body | {"query": "France", "documents": documents})
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    return "chat/completions -N", json.dumps(body | {"stream": True, "messages": messages})

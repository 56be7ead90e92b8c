"""What a person sees on the terminal while lmx comes up: progress bars, the welcome lines."""

from __future__ import annotations

import json
import sys
import time
from types import TracebackType
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from lmx.supervisor.cli.views.words import doing
from lmx.supervisor.decisions.ledger import format_bytes

_SETTLED: Final = frozenset({"ready", "cold", "quarantined", "held"})
_PLAIN_WIDTH: Final = 160


class _LastingConsole(Console):
    """Falls silent when nobody reads any more; rich would end the process."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


def make_console() -> Console:
    """Return a console on stdout; wide enough not to cut lines where there is no terminal."""
    return _LastingConsole(
        highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else _PLAIN_WIDTH
    )


class LoadProgress:
    """Progress of models on their way up: bars on a terminal, a line a change elsewhere.

    A context manager; feed it each status with :meth:`show`.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[percent]:>5}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._tasks: dict[str, Any] = {}
        self._started_s: dict[str, float] = {}
        self._said: dict[str, str] = {}
        self._ready_pids: dict[str, int] = {}

    def __enter__(self) -> LoadProgress:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def show(self, worker: dict[str, Any]) -> None:
        """Show one model's line of the status."""
        model, state = worker["model"], worker["state"]
        self._started_s.setdefault(model, time.monotonic())
        if state in _SETTLED:
            self._settle(model, worker)
            return
        what = doing(worker)
        if model not in self._tasks:
            self._tasks[model] = self._bars.add_task(model, total=None, percent="")
        fraction = worker["fraction"]
        self._bars.update(
            self._tasks[model],
            description=f"{model}  {what}",
            total=None if fraction is None else 1.0,
            completed=fraction or 0.0,
            percent="" if fraction is None else f"{fraction:.0%}",
        )
        if state == "backoff" and worker["problem"]:
            self._once(model, f"[yellow]failed[/]  {model}: {escape(worker['problem'])}")
        elif not self._console.is_terminal:
            self._once(model, f"{model}: {what}")

    def _settle(self, model: str, worker: dict[str, Any]) -> None:
        if model in self._tasks:
            self._bars.remove_task(self._tasks.pop(model))
        if worker["state"] == "ready":
            # Once: its time and its memory change with each status, while others still load.
            if self._ready_pids.get(model) == worker["pid"]:
                return
            self._ready_pids[model] = worker["pid"]
            took_s = time.monotonic() - self._started_s[model]
            line = (
                f"[green]ready[/]  {model}  {format_bytes(worker['memory_bytes'])}, "
                f"pid {worker['pid']}, {took_s:.1f} s"
            )
        elif worker["problem"]:
            line = f"[red]{worker['state']}[/]  {model}: {escape(worker['problem'])}"
        else:
            return
        self._once(model, line)

    def _once(self, model: str, line: str) -> None:
        if self._said.get(model) != line:
            self._said[model] = line
            self._console.print(line)


def print_welcome(console: Console, status: dict[str, Any]) -> None:
    """Print the base URL, the models, where the API is described, and a request to paste."""
    url = status["router"].get("url", "(the router is being restarted)")
    workers = status["workers"]
    shown = [worker for worker in workers if worker["state"] == "ready"] or workers
    console.print(f"\n[bold]lmx {status['supervisor']['version']}[/] serves at [bold]{url}[/]")
    others = status["router"].get("urls", [])[1:]
    if others:
        console.print(f"and at  {', '.join(others)}", markup=False)
    names = ", ".join(worker["model"] for worker in shown)
    console.print(f"models: {names or 'none; add some to lmx.yaml'}")
    if "url" in status["router"]:
        console.print(f"docs:   {url.removesuffix('/v1')}/docs")
    if shown:
        # The first that chats; a kind that is not known yet most likely does.
        chats = [worker for worker in shown if worker["kind"] in (None, "chat")]
        path, body = _example((chats or shown)[0])
        console.print("\ntry it:\n")
        console.print(
            f"  curl {url}/{path} -H 'Content-Type: application/json' \\\n    -d '{body}'\n",
            markup=False,
        )


def _example(worker: dict[str, Any]) -> tuple[str, str]:
    """Return the path and the body of a request that a model of its kind can answer."""
    body: dict[str, Any] = {"model": worker["model"]}
    if worker["kind"] == "embedding":
        return "embeddings", json.dumps(body | {"input": "The capital of France is Paris."})
    if worker["kind"] == "rerank":
        documents = ["Paris is the capital.", "Bread is good."]
        return "rerank", json.dumps(body | {"query": "France", "documents": documents})
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    return "chat/completions -N", json.dumps(body | {"stream": True, "messages": messages})

"""What a person sees on the terminal: progress bars, the status table, the welcome lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from lmx.supervisor.budget import format_bytes

_SETTLED: Final = frozenset({"ready", "cold", "quarantined"})
_COLOURS: Final = {
    "ready": "green",
    "cold": "dim",
    "quarantined": "red",
    "backoff": "yellow",
    "stopping": "yellow",
    "draining": "yellow",
}
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
        what = worker["phase"] or state
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
        self._say(model, f"{model}: {what}")

    def _settle(self, model: str, worker: dict[str, Any]) -> None:
        if model in self._tasks:
            self._bars.remove_task(self._tasks.pop(model))
        if worker["state"] == "ready":
            took_s = time.monotonic() - self._started_s[model]
            line = (
                f"[green]ready[/]  {model}  {format_bytes(worker['memory_bytes'])}, "
                f"pid {worker['pid']}, {took_s:.1f} s"
            )
        elif worker["problem"]:
            line = f"[red]{worker['state']}[/]  {model}: {escape(worker['problem'])}"
        else:
            return
        if self._said.get(model) != line:
            self._said[model] = line
            self._console.print(line)

    def _say(self, model: str, line: str) -> None:
        if not self._console.is_terminal and self._said.get(model) != line:
            self._said[model] = line
            self._console.print(line)


def print_welcome(console: Console, status: dict[str, Any]) -> None:
    """Print the base URL, the models, and a request to paste."""
    url = status["router"].get("url", "(the router is being restarted)")
    ready = [worker["model"] for worker in status["workers"] if worker["state"] == "ready"]
    named = [worker["model"] for worker in status["workers"]]
    console.print(f"\n[bold]lmx {status['supervisor']['version']}[/] serves at [bold]{url}[/]")
    console.print(f"models: {', '.join(ready or named) or 'none; add some to lmx.yaml'}")
    if named:
        body = (
            f'{{"model": "{(ready or named)[0]}", "stream": true, "messages": '
            '[{"role": "user", "content": "What is the capital of France?"}]}'
        )
        console.print("\ntry it:\n")
        console.print(
            f"  curl -N {url}/chat/completions -H 'Content-Type: application/json' \\\n"
            f"    -d '{body}'\n",
            markup=False,
        )


def print_status(console: Console, status: dict[str, Any]) -> None:
    """Print the supervisor, the router and a table of models."""
    supervisor, router = status["supervisor"], status["router"]
    console.print(
        f"supervisor  {supervisor['state']}  pid {supervisor['pid']}  "
        f"lmx {supervisor['version']}  up {_duration(supervisor['uptime_s'])}  "
        f"memory {format_bytes(supervisor['reserved_bytes'])} of "
        f"{format_bytes(supervisor['budget_bytes'])} reserved"
    )
    console.print(
        f"router      {router['state']}  pid {router['pid']}  {router.get('url', '')}  "
        f"{router['streams']} open, {router['requests_total']} served"
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("MODEL", "STATE", "PID", "MEMORY", "ACTIVE", "QUEUED", "SERVED", "NOTE"):
        right = heading in ("PID", "MEMORY", "ACTIVE", "QUEUED", "SERVED")
        table.add_column(heading, justify="right" if right else "left", overflow="fold")
    for worker in status["workers"]:
        state = worker["state"]
        colour = _COLOURS.get(state, "cyan")
        table.add_row(
            worker["model"], f"[{colour}]{state}[/]", str(worker["pid"] or "-"),
            format_bytes(worker["memory_bytes"]) if worker["memory_bytes"] else "-",
            str(worker["requests_active"]), str(worker["requests_queued"]),
            str(worker["requests_total"]), escape(_note(worker)),
        )  # fmt: skip
    console.print()
    console.print(table)


def wait_for(
    read: Callable[[], dict[str, Any]],
    model: str,
    until: Callable[[dict[str, Any]], bool],
    progress: LoadProgress,
) -> dict[str, Any]:
    """Poll the status until a model's line satisfies ``until``; returns that line.

    Has no deadline of its own: the supervisor's deadlines end every state in which a model
    is on its way, so ``until`` has to be satisfied by those in which it is not.
    """
    while True:
        line: dict[str, Any] = next(
            entry for entry in read()["workers"] if model in (entry["model"], *entry["aliases"])
        )
        progress.show(line)
        if until(line):
            return line
        time.sleep(0.1)


def _note(worker: dict[str, Any]) -> str:
    if worker["phase"]:
        fraction = worker["fraction"]
        return f"{worker['phase']}{'' if fraction is None else f' {fraction:.0%}'}"
    if worker["retry_in_s"] is not None:
        return f"again in {worker['retry_in_s']:.1f} s: {worker['problem']}"
    return str(worker["problem"] or "")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"

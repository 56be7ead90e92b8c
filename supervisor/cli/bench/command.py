"""The command `lmx bench`."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lmx.supervisor.cli.bench.scenarios import (
    QUICK,
    SCENARIOS,
    Phase,
    Sizes,
    phases_of,
)
from lmx.supervisor.cli.command import Number, command, given_remote, place

if TYPE_CHECKING:
    from lmx.supervisor.cli.bench.rounds import Measured
    from lmx.supervisor.cli.bench.traffic import Target
    from lmx.supervisor.sockets.http_client import Remote


class _Numbers(click.ParamType[tuple[int, ...]]):
    """Positive numbers with commas between them."""

    name = "N,N..."

    def __init__(self, most: int) -> None:
        self._most = most

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            numbers = tuple(int(each) for each in value.split(","))
        except ValueError:
            numbers = ()
        if not numbers or not all(1 <= each <= self._most for each in numbers):
            self.fail(f"{value!r} is not a list of numbers from 1 to {self._most:,}", param, ctx)
        return tuple(dict.fromkeys(numbers))


@click.command(
    epilog="\b\nScenarios:\n"
    + "\n".join(f"  {name:<12} {words}" for name, words in SCENARIOS.items())
)
@click.argument("servers", metavar="[[NAME=]URL]...", nargs=-1)
@click.option(
    "--scenario", "scenarios", multiple=True, type=click.Choice([*SCENARIOS, "all"]),
    metavar="NAME", help=f"What is measured; may be repeated (default: {', '.join(QUICK)}).",
)  # fmt: skip
@click.option(
    "--model", "models", multiple=True, metavar="MODEL",
    help="Ask this model: once for all servers, or once for each in their order (default: the only "
    "one that a server lists).",
)  # fmt: skip
@click.option(
    "--seconds", type=Number(1, 86_400), default=120, show_default=True,
    help="About how long it takes for each server.",
)  # fmt: skip
@click.option("--rounds", type=click.IntRange(1, 100), default=3, show_default=True,
              help="How often everything is measured.")  # fmt: skip
@click.option("--clients", type=_Numbers(1024), default="1,4,16", show_default=True,
              help="Clients at once, for the scenario concurrency.")  # fmt: skip
@click.option("--prompts", type=_Numbers(1_000_000), default="256,1024", show_default=True,
              help="Tokens, for the scenario prompts.")  # fmt: skip
@click.option("--tokens", type=click.IntRange(4, 100_000), default=64, show_default=True,
              help="Tokens of an answer, at most.")  # fmt: skip
@click.option("--timeout", "limit_s", type=Number(1, 86_400), default=120,
              show_default=True, help="Seconds that a request may take.")  # fmt: skip
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path),
              metavar="FILE", help="Write all figures there, to send or to compare.")  # fmt: skip
@click.option("--svg", "svg_file", type=click.Path(dir_okay=False, path_type=Path),
              metavar="FILE", help="Draw them there.")  # fmt: skip
@command
def bench(
    servers: tuple[str, ...],
    scenarios: tuple[str, ...],
    models: tuple[str, ...],
    seconds: float,
    rounds: int,
    clients: tuple[int, ...],
    prompts: tuple[int, ...],
    tokens: int,
    limit_s: float,
    json_file: Path | None,
    svg_file: Path | None,
) -> None:
    """Measure a server of the OpenAI API, or compare several.

    URL is an address such as http://studio:8000, with or without /v1, of any program that has
    /v1/chat/completions; without one it is this machine's lmx. Several are measured in turns, in
    another order in each round, and stand in the results as A, B, ... or by their NAMEs. The key of
    `lmx --key` or LMX_API_KEY is sent to all of them. No two prompts begin alike, except in prefix,
    agent and mixed. Ctrl-C ends it, and prints what was measured. The file of --json names the
    machine's processor and the programs' versions, but no names, addresses or texts.

    \b
    Examples:
      lmx bench
      lmx bench lmx=http://127.0.0.1:8000 other=http://127.0.0.1:8080 --svg compared.svg
      lmx bench http://studio:8000 --scenario mixed --scenario agent --seconds 600
    """
    from lmx.supervisor.cli.bench import plot, report
    from lmx.supervisor.cli.views.json_output import json_text
    from lmx.supervisor.cli.views.progress import make_console

    chosen = tuple(SCENARIOS) if "all" in scenarios else scenarios or QUICK
    phases = phases_of(chosen, Sizes(clients, prompts, tokens), seconds, rounds)
    remotes = _remotes(servers)
    if len(models) not in (0, 1, len(remotes)):
        raise click.UsageError(
            f"--model is given {len(models)} times for {len(remotes)} servers: give it once, or "
            "once for each"
        )
    for file in (json_file, svg_file):
        if file is not None and not file.absolute().parent.is_dir():
            raise click.UsageError(f"{file}: there is no folder {file.absolute().parent}")
    click.echo(_plan_words(phases, rounds, len(remotes), seconds), err=True)
    measured, targets = asyncio.run(_measure(remotes, models or (None,), phases, rounds, limit_s))
    report.print_tables(make_console(), measured, targets)
    if json_file is not None:
        content = report.file_content(measured, targets, seconds, rounds)
        json_file.write_text(json_text(content) + "\n")
    if svg_file is not None:
        named = [(phase.name, found) for phase, found in report.figures_by_phase(measured).items()]
        svg_file.write_text(plot.svg(plot.panels_of(named), "lmx bench"))
    if measured.is_interrupted:
        raise KeyboardInterrupt
    if measured.given_up:
        raise click.exceptions.Exit(1)


def _remotes(servers: Sequence[str]) -> list[tuple[str, Remote]]:
    """Return the servers by their labels. Raises :class:`click.UsageError`, and
    :class:`OperationError` if this machine's is meant and can't be asked."""
    if not servers:
        from lmx.supervisor.cli.chat.session import connect

        return [("A", connect(place()).remote)]
    found: list[tuple[str, Remote]] = []
    for number, text in enumerate(servers):
        before, equals, after = text.partition("=")
        is_named = bool(equals) and "/" not in before
        label = before if is_named else _letters(number)
        if not label or label in dict(found):
            raise click.UsageError(f"the name in {text!r} is empty, or another server has it")
        found.append((label, given_remote(after if is_named else text)))
    return found


def _letters(number: int) -> str:
    return chr(ord("A") + number) if number < 26 else f"S{number + 1}"


def _plan_words(phases: Sequence[Phase], rounds: int, servers: int, seconds: float) -> str:
    requests = rounds * sum(phase.most_requests for phase in phases)
    tokens = rounds * sum(phase.most_prompt_tokens for phase in phases)
    return (
        f"{rounds} rounds of {len(phases)} phases, about {servers * seconds:,.0f} s: at most "
        f"{requests:,} requests with some {tokens:,} tokens in their prompts"
        f"{' for each server' if servers > 1 else ''}, and a few to warm up"
    )


async def _measure(
    remotes: Sequence[tuple[str, Remote]],
    models: Sequence[str | None],
    phases: Sequence[Phase],
    rounds: int,
    limit_s: float,
) -> tuple[Measured, list[Target]]:
    from lmx.supervisor.cli.bench.rounds import measure
    from lmx.supervisor.cli.bench.traffic import find_target, session, warm_up

    seed = secrets.token_hex(8)
    most = max(len(phase.clients) for phase in phases)
    async with session() as http:
        targets = [
            await find_target(http, label, remote, models[place % len(models)])
            for place, (label, remote) in enumerate(remotes)
        ]
        for place, target in enumerate(targets):
            click.echo(f"{target.label} is {target.remote.url}, model {target.model}", err=True)
            await warm_up(http, target, f"{seed} warm-up {place}", most)
        progress = lambda line: click.echo(line, err=True)  # noqa: E731
        measured = await measure(
            http, targets, phases, rounds, seed=seed, limit_s=limit_s, progress=progress
        )
    return measured, targets

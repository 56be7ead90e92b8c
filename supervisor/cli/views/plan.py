"""What another machine's lmx says about a load: what it would need, and what would follow."""

import dataclasses
from collections.abc import Iterator

import click

from lmx.protocol.messages.control import LoadPlan, PlanLoad
from lmx.supervisor.cli.views.json_output import json_text
from lmx.supervisor.decisions.ledger import format_bytes
from lmx.supervisor.sockets.client import LONG_ANSWER_S, open_client
from lmx.supervisor.sockets.http_client import Remote


def print_plan(remote: Remote, model: str, as_json: bool) -> None:
    """Ask another machine's lmx what a load of a model would need there, and print it. Raises
    :class:`OperationError`."""
    with open_client(remote, LONG_ANSWER_S) as client:
        plan: LoadPlan = client.ask(PlanLoad(model))
    if as_json:
        click.echo(json_text(dataclasses.asdict(plan)))
        return
    for line in plan_lines(plan):
        click.echo(line)


def plan_lines(plan: LoadPlan) -> Iterator[str]:
    """Yield the lines for people. Pure."""
    yield plan.detail
    if plan.download_bytes:
        yield f"{format_bytes(plan.download_bytes)} of its files are to be downloaded"
    for part in plan.lines:
        reason = f"  {part.reason}" if part.reason else ""
        yield f"  {part.name:<22} {format_bytes(part.size_bytes):>10}{reason}"
    free = f"{format_bytes(plan.free_bytes)} of {format_bytes(plan.budget_bytes)} are free"
    yield f"  {'all':<22} {format_bytes(plan.need_bytes):>10}  {free}"
    if plan.evicts:
        yield f"evicted for it: {', '.join(plan.evicts)}"
    if plan.context_length is not None:
        yield f"context: {plan.context_length} tokens"
    if plan.longest_context is not None:
        now = plan.longest_context_now
        alone = "" if now is None else f", {now} without an eviction"
        yield f"longest context that fits: {plan.longest_context} tokens{alone}"

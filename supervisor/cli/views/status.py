"""What `lmx status` prints: the processes, the memory, a table of models."""

import time
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from lmx.protocol.messages.status import ModelStatus, SystemStatus
from lmx.supervisor.cli.views.table import Column, model_columns, model_table
from lmx.supervisor.cli.views.words import (
    duration,
    memory_words,
    note_text,
    power_words,
    remarks,
    router_words,
)
from lmx.supervisor.decisions.ledger import format_bytes


def print_status(console: Console, status: SystemStatus) -> None:
    """Print all of a status. What is wrong with a model has a line of its own below the table,
    and so have remarks that don't fit into it."""
    supervisor, router, workers = status.supervisor, status.router, status.workers
    console.print(
        f"supervisor  {supervisor.state}  pid {supervisor.pid}  "
        f"lmx {supervisor.version}  up {duration(supervisor.uptime_s)}"
    )
    console.print(
        f"router      {router.state}  pid {router.pid}  {escape(router.url or '')}  "
        f"{router_words(router)}"
    )
    if router.batches:
        console.print(f"batches     {router.batches} under way, {router.batch_lines:,} lines left")
    if router.announced_url is not None:
        console.print(f"announced   {escape(router.announced_url)}")
    console.print(
        f"memory      {format_bytes(supervisor.reserved_bytes)} of "
        f"{format_bytes(supervisor.budget_bytes)} reserved"
    )
    for rank in supervisor.lent:
        console.print(
            f"lent        rank {rank.rank} of {rank.count} of {escape(rank.model)}, for the key "
            f"{escape(rank.owner)}  pid {rank.pid}  {format_bytes(rank.reserved_bytes)}"
        )
    if power := power_words(supervisor):
        console.print(f"power       {power}")
    if machine := memory_words(supervisor):
        console.print(f"[yellow]{machine}[/]")
    if supervisor.drained:
        console.print("[yellow]this machine is drained: `lmx undrain --machine` ends that[/]")
    for notice in supervisor.notices:
        console.print(f"[yellow]{escape(notice)}[/]")
    if not workers:
        console.print("\nno models: `lmx pull qwen3-8b` downloads one, `lmx add` takes a folder")
        return
    columns = list(model_columns(workers).values())
    notes = [remarks(worker) for worker in workers]
    note = Column("NOTE", tuple(notes), right=False)
    if sum(column.width for column in (*columns, note)) <= console.width:
        columns.append(note)
        notes = [""] * len(workers)
    console.print()
    console.print(model_table(columns, console.width))
    now_s = time.time()
    lines = [
        f"[bold]{worker.model}[/]  {escape(words)}"
        for worker, remark in zip(workers, notes, strict=True)
        if (words := note_text(worker, remark, now_s))
    ]
    lines += [
        f"[bold]{worker.model}[/]  {escape(remark)}"
        for worker in workers
        for remark in worker.remarks
    ]
    lines += [
        f"[bold]{adapter.id}[/]  {escape(adapter.problem)}"
        for worker in workers
        for adapter in worker.adapters
        if adapter.problem is not None
    ]
    if lines:
        console.print()
        console.print("\n".join(lines))


def print_loaded(console: Console, workers: Sequence[ModelStatus]) -> None:
    """Print the table of the models that have a worker."""
    loaded = [worker for worker in workers if worker.pid is not None]
    if not loaded:
        console.print("no model is loaded; `lmx list` shows those there are")
        return
    console.print(model_table(list(model_columns(loaded).values()), console.width))

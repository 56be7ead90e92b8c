"""``lmx estimate``: a model's memory line by line, before it is loaded or downloaded."""

import dataclasses
from typing import Any

import click
from pydantic import ValidationError
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.supervisor.cli.views.json_output import json_text
from lmx.supervisor.cli.views.progress import make_console
from lmx.supervisor.cli.views.prospect import Judgement, hints, load_lines, prospect, size_lines
from lmx.supervisor.config.known_models import meant_instead, repository_of
from lmx.supervisor.config.schema import Config, ModelConfig
from lmx.supervisor.config.sources import HubSource, SourceError, folder_path, parse_source
from lmx.supervisor.decisions.ledger import format_bytes
from lmx.supervisor.memory.estimate_lines import lines_of
from lmx.supervisor.memory.plan import Estimate, MemoryPlan
from lmx.supervisor.state.home import Home


def print_estimate(
    config: Config, home: Home, name: str, as_json: bool, filename: str | None = None
) -> None:
    """Print what a model would take: one of the configuration, by id or alias, a folder, a .gguf
    file, a short name or a repository of the hub, or one file of a repository.

    Loads nothing, and downloads only the heads of files. Names the adapters that were not fetched
    yet and whose size the hub does not say, instead of counting them. Raises
    :class:`OperationError` for a model that isn't known or can't be read.
    """
    model = named_model(config, name)
    if filename is not None and not isinstance(parse_source(model.source), HubSource):
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID,
            f"{model.source} is no repository of the hub, so --file names nothing in it",
        )
    seen = prospect(config, home, model, filename)
    found, look, judged = seen.found, seen.look, seen.judged
    if isinstance(judged, OperationError):
        raise judged
    budget = judged.load.budget_bytes
    if as_json:
        media = [each.value for each in found.facts.media or ()]
        kind = None if found.kind is None else found.kind.value
        path = found.path if look is None else None
        answer: dict[str, Any] = {"model": model.id, "path": path, "kind": kind, "media": media}
        answer |= as_dict(model, judged.estimate, judged.plan, budget)
        answer |= _load_as_dict(judged)
        answer["look"] = None if look is None else dataclasses.asdict(look)
        answer["adapters_not_fetched"] = list(judged.unfetched)
        click.echo(json_text(answer))
        return
    console = make_console()
    if look is not None:
        for line in size_lines(f"{model.source}{f' {filename}' if filename else ''}", look):
            console.print(escape(line))
        console.print()
    show(console, model, judged.estimate, judged.plan, budget)
    for line in load_lines(judged):
        console.print(escape(line))
    if judged.unfetched:
        console.print(
            "not counted, because they were not fetched yet, and the hub does not say how large "
            f"they are: the adapters {escape(', '.join(judged.unfetched))}"
        )


def _load_as_dict(judged: Judgement) -> dict[str, Any]:
    load = judged.load
    return {
        "longest_context": load.longest_context,
        "longest_context_now": load.longest_context_now if judged.running else None,
        "outcome": load.outcome.value if judged.running else None,
        "evicts": list(load.evicts),
    }


def as_dict(
    model: ModelConfig, estimate: Estimate, plan: MemoryPlan, budget: int
) -> dict[str, Any]:
    """Return the figures for ``--json``, in bytes and tokens."""
    return {
        "weights_bytes": estimate.weights_bytes,
        "draft_bytes": estimate.draft_bytes,
        "adapters_bytes": estimate.adapters_bytes,
        "process_bytes": estimate.process_bytes,
        "kv_cache_bytes": estimate.kv_cache_bytes,
        "kv_bits": estimate.kv_bits,
        "prefix_cache_bytes": estimate.prefix_cache_bytes,
        "activation_bytes": estimate.activation_bytes,
        "media_bytes": estimate.media_bytes,
        "media_weights_bytes": estimate.media.weights_bytes if estimate.media else 0,
        "image_tokens": estimate.media.image_tokens if estimate.media else None,
        "decoder_bytes": estimate.decoder_bytes,
        "buffers_bytes": estimate.buffers_bytes,
        "estimated_bytes": estimate.total_bytes,
        "ranks": estimate.ranks,
        "rank_bytes": estimate.rank_bytes,
        "hosts": list(model.hosts),
        "measured_static_bytes": plan.static_bytes if _was_measured(estimate, plan) else None,
        "measured_peak_bytes": plan.peak_bytes or None,
        "set_bytes": plan.set_bytes,
        "reserve_bytes": plan.reserve_bytes,
        "context_tokens": estimate.context_tokens,
        "budget_bytes": budget,
        "fits": plan.reserve_bytes <= budget,
    }


def show(
    console: Console, model: ModelConfig, estimate: Estimate, plan: MemoryPlan, budget: int
) -> None:
    """Print the lines, the sum, and what follows for the budget."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    for line in lines_of(model, estimate):
        table.add_row(line.name, format_bytes(line.size_bytes), escape(line.reason))
    table.add_section()
    ranks = ""
    if model.hosts:
        ranks = f"one of {model.ranks} ranks; as much on each of {escape(', '.join(model.hosts))}"
    elif estimate.ranks > 1:
        ranks = f"{estimate.ranks} ranks, {format_bytes(estimate.rank_bytes)} each"
    table.add_row("estimated", format_bytes(estimate.total_bytes), ranks)
    if _was_measured(estimate, plan):
        table.add_row(
            "measured when loaded",
            format_bytes(plan.static_bytes),
            "in place of weights, draft model, adapters and process",
        )
    if plan.peak_bytes:
        table.add_row("measured peak", format_bytes(plan.peak_bytes), "at least so much is kept")
    if plan.set_bytes is not None:
        table.add_row("memory_bytes", format_bytes(plan.set_bytes), "set by hand: takes precedence")
    table.add_row("[bold]reserved", f"[bold]{format_bytes(plan.reserve_bytes)}", model.id)
    console.print(table)
    console.print()
    if plan.reserve_bytes <= budget:
        left = format_bytes(budget - plan.reserve_bytes)
        console.print(f"[green]fits[/] the budget of {format_bytes(budget)}; {left} are left")
        return
    over = format_bytes(plan.reserve_bytes - budget)
    console.print(f"[red]does not fit[/] the budget of {format_bytes(budget)}: {over} too much")
    for hint in hints(model, estimate, plan, budget):
        console.print(f"  {escape(hint)}")


def named_model(config: Config, name: str) -> ModelConfig:
    """Return the model that a person means: one of the configuration, by id or alias, a folder, a
    .gguf file, a short name or a repository of the hub. Raises :class:`OperationError`."""
    for model in config.models:
        if name in model.names:
            return model
    if not name.strip():
        raise OperationError(ErrorCode.MODEL_NOT_FOUND, "give the name of a model, or a folder")
    try:
        file = folder_path(name)
    except RuntimeError as error:  # the home of a user whom nobody knows
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID, f"there is no {name}: check the path"
        ) from error
    if file.is_dir() or (file.suffix.lower() == ".gguf" and file.is_file()):
        model_id, source = "model", str(file)
    else:
        model_id = source = repository_of(name)
    for model in config.models:
        if model.source == source:
            return model
    try:
        is_here = not isinstance(parse_source(source), HubSource)
        if is_here and not file.exists():
            raise SourceError(f"there is no {name}: check the path")
        return ModelConfig(id=model_id, source=source)
    except (SourceError, ValidationError) as error:
        if "/" in source:
            raise OperationError(ErrorCode.MODEL_SOURCE_INVALID, str(error)) from error
    known = ", ".join(model.id for model in config.models) or "none is configured"
    raise OperationError(
        ErrorCode.MODEL_NOT_FOUND,
        f"no model is named {name!r}{meant_instead(name)}, and no such folder is there; known: "
        f"{known}, and the short names of `lmx pull -h`; models of the hub are org/name",
    )


def _was_measured(estimate: Estimate, plan: MemoryPlan) -> bool:
    return plan.static_bytes != estimate.static_bytes

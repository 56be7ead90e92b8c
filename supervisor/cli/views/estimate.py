"""``lmx estimate``: a model's memory line by line, before it is loaded."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.states import ModelKind
from lmx.supervisor.cli.views.json_output import json_text
from lmx.supervisor.cli.views.progress import make_console
from lmx.supervisor.config.schema import Config, ModelConfig
from lmx.supervisor.config.sources import folder_path
from lmx.supervisor.core.inspect_files import question_of
from lmx.supervisor.decisions.ledger import budget_bytes, format_bytes
from lmx.supervisor.memory.estimate_lines import lines_of
from lmx.supervisor.memory.fetched import not_fetched
from lmx.supervisor.memory.inspection import Inspection
from lmx.supervisor.memory.measured import Measured
from lmx.supervisor.memory.plan import Estimate, MemoryPlan, estimate_memory, plan_of
from lmx.supervisor.memory.system import read_memory
from lmx.supervisor.memory.working_set import read_working_set
from lmx.supervisor.processes.fetching import look_now
from lmx.supervisor.processes.inspector import inspect_now
from lmx.supervisor.state.home import Home

_LOOKS_AT_ONCE: Final = 4


def print_estimate(config: Config, home: Home, model: str, as_json: bool) -> None:
    """Print what a model would take: one of the configuration, by id or alias, or a folder.

    Asks no supervisor and loads nothing. Asks the hub for the size of adapters that were not
    fetched yet, and names those for which it doesn't answer, instead of counting them. Raises
    :class:`OperationError` for a model that isn't known, isn't fetched yet or can't be read.
    """
    chosen = _find(config, model)
    (found,) = inspect_now(home, [question_of(chosen)])
    path, kind, files, draft = found.path, found.kind, found.files, found.draft_files
    if path is None:
        raise not_fetched(chosen.source)
    if found.problem is not None or files is None or kind is None:
        problem = found.problem or f"{path} is not whole: {found.missing} is missing"
        raise OperationError(ErrorCode.MODEL_SOURCE_INVALID, problem)
    hub_bytes = _hub_bytes(home, chosen, found)
    known_bytes = sum(size for size in hub_bytes.values() if size is not None)
    files = replace(files, adapters_bytes=files.adapters_bytes + known_bytes)
    budget = budget_bytes(config.memory, read_memory().total_bytes, read_working_set())
    decoder_bytes = config.media.decode_limits(chosen.media).process_bytes
    estimate = estimate_memory(
        chosen, kind, files, draft, budget, config.memory.kv_bits, decoder_bytes, len(config.models)
    )
    if not estimate.weights_bytes:
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID,
            f"no weights found in {path}: a model's folder has *.safetensors next to config.json",
        )
    plan = plan_of(chosen, kind, files, draft, estimate, Measured.peek(home.measured))
    unfetched = [adapter for adapter, size in hub_bytes.items() if size is None]
    if as_json:
        media = [each.value for each in found.facts.media or ()]
        answer = {"model": chosen.id, "path": path, "kind": kind.value, "media": media}
        answer |= as_dict(estimate, plan, budget)
        click.echo(json_text(answer | {"adapters_not_fetched": unfetched}))
        return
    console = make_console()
    show(console, chosen, estimate, plan, budget)
    if unfetched:
        console.print(
            "not counted, because they were not fetched yet, and the hub does not say how large "
            f"they are: the adapters {', '.join(unfetched)}"
        )


def _hub_bytes(home: Home, model: ModelConfig, found: Inspection) -> dict[str, int | None]:
    """Return how large those of a model's adapters are that were not fetched yet; None: the hub
    does not say it."""
    if found.kind is not ModelKind.CHAT:
        return {}
    there = zip(model.adapters, found.adapter_paths, strict=False)
    unfetched = [adapter for adapter, folder in there if folder is None]
    if not unfetched:
        return {}
    with ThreadPoolExecutor(_LOOKS_AT_ONCE) as pool:
        sources = [model.adapters[adapter] for adapter in unfetched]
        looks = pool.map(lambda source: look_now(home, source, ("--adapter",)), sources)
        sizes = [None if look is None else look.total_bytes for look in looks]
    return dict(zip(unfetched, sizes, strict=True))


def as_dict(estimate: Estimate, plan: MemoryPlan, budget: int) -> dict[str, Any]:
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
        table.add_row(line.name, format_bytes(line.size_bytes), line.reason)
    table.add_section()
    table.add_row("estimated", format_bytes(estimate.total_bytes), "")
    if _was_measured(estimate, plan):
        table.add_row(
            "measured when loaded",
            format_bytes(plan.static_bytes),
            "in place of weights, draft model, adapters and process",
        )
    if plan.peak_bytes:
        table.add_row("measured peak", format_bytes(plan.peak_bytes), "at least so much is kept")
    if plan.set_bytes is not None:
        table.add_row("memory_bytes", format_bytes(plan.set_bytes), "set by hand: goes before it")
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
        console.print(f"  {hint}")


def hints(model: ModelConfig, estimate: Estimate, plan: MemoryPlan, budget: int) -> list[str]:
    """Return what would help, the cheapest first."""
    over_bytes = plan.reserve_bytes - budget
    found = []
    if plan.set_bytes is not None and plan.set_bytes > plan.static_bytes:
        found.append("lower memory_bytes, or leave it out")
    if model.prefix_cache.enabled and estimate.prefix_cache_bytes:
        saved = format_bytes(estimate.prefix_cache_bytes)
        found.append(f"a smaller prefix_cache.memory_bytes saves up to {saved}")
    if model.kept_rows > 1 and estimate.kv_cache_bytes:
        fewer = "1" if model.kept_rows == 2 else f"{model.kept_rows - 1} or less"
        found.append(f"concurrency {fewer} saves KV cache")
    if estimate.kv_bits is None and estimate.kv_cache_bytes:
        found.append("kv_bits 8 saves about half of the KV cache")
    if model.context_length is not None and estimate.kv_cache_bytes:
        found.append(f"a context_length below {model.context_length} saves KV cache")
    if estimate.decoder_bytes:
        found.append("a smaller media.decode_memory_bytes saves as much")
    if plan.static_bytes > budget or not found or over_bytes > plan.working_bytes:
        found.append("a smaller or more strongly quantized model")
    found.append("raise memory.budget_bytes or memory.budget_fraction")
    return found


def _find(config: Config, name: str) -> ModelConfig:
    for model in config.models:
        if name in model.names:
            return model
    if not name.strip():
        raise OperationError(ErrorCode.MODEL_NOT_FOUND, "give the name of a model, or a folder")
    file = Path(name).expanduser()
    if file.suffix.lower() == ".gguf" and file.is_file():
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID,
            f"{name} is imported before it is loaded, and what was made of it counts: give the "
            "name of a configured model that has it as its source, or the imported folder",
        )
    if not file.is_dir():
        known = ", ".join(model.id for model in config.models) or "none is configured"
        raise OperationError(
            ErrorCode.MODEL_NOT_FOUND,
            f"no model is named {name!r}, and no such folder is there; known: {known}",
        )
    path = folder_path(name)
    try:
        return ModelConfig(id="model", source=str(path))
    except ValidationError as error:
        raise OperationError(ErrorCode.MODEL_SOURCE_INVALID, f"{path}: {error}") from error


def _was_measured(estimate: Estimate, plan: MemoryPlan) -> bool:
    return plan.static_bytes != estimate.static_bytes

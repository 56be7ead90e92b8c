"""``lmx fit``: the settings with which several models stay loaded at a time."""

from itertools import chain, count
from typing import Any

import click
import yaml
from rich.markup import escape
from rich.table import Table

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.supervisor.cli.views.estimate import named_model
from lmx.supervisor.cli.views.json_output import json_text
from lmx.supervisor.cli.views.progress import make_console
from lmx.supervisor.cli.views.prospect import Judgement, budget_of, prospect
from lmx.supervisor.config.known_models import repository_of
from lmx.supervisor.config.model import AddedModelConfig
from lmx.supervisor.config.schema import Config, ModelConfig
from lmx.supervisor.config.sources import default_model_id, parse_source
from lmx.supervisor.decisions.ledger import format_bytes
from lmx.supervisor.memory.fit import Ladder, Rung, Share, fit, ladder
from lmx.supervisor.memory.inspection import Inspection
from lmx.supervisor.memory.measured import Measured
from lmx.supervisor.memory.plan import estimate_memory, plan_of
from lmx.supervisor.state.home import Home


def print_fit(config: Config, home: Home, names: tuple[str, ...], as_json: bool) -> None:
    """Print the settings of the models, and what they reserve. Nothing is loaded or changed. Raises
    :class:`OperationError` for a model that isn't known or can't be read, and if they do not fit
    together with any settings."""
    models = {name: named_model(config, name) for name in names}
    if len({(model.id, model.source) for model in models.values()}) < len(names):
        raise OperationError(ErrorCode.INVALID_VALUE, "a model is named twice")
    budget = budget_of(config)
    ladders = {
        name: _ladder(config, home, model, budget, len(models)) for name, model in models.items()
    }
    found = fit(ladders, budget)
    if found is None:
        least = sum(rungs[-1].reserve_bytes for rungs in ladders.values())
        raise OperationError(
            ErrorCode.INVALID_VALUE,
            f"they do not fit together: at the least they reserve {format_bytes(least)}, and "
            f"the budget is {format_bytes(budget)}. Take a smaller or more strongly quantized "
            "model, a smaller prefix_cache.memory_bytes, or raise memory.budget_bytes",
        )
    changes = {name: _changes(ladders[name][0].share, rung.share) for name, rung in found.items()}
    if as_json:
        click.echo(json_text(_as_dict(found, changes, budget)))
        return
    _show(found, budget)
    taken = {name for model in config.models for name in model.names}
    changed = []
    for name, keys in changes.items():
        if not keys:
            continue
        entry = _entry(config, name, models[name], ladders[name][0].share)
        if models[name] not in config.models:
            entry["id"] = _free(entry["id"], taken)
            taken.add(entry["id"])
        changed.append({**entry, **keys})
    if not changed:
        click.echo("They fit as they are.")
        return
    click.echo("In lmx.yaml:\n")
    click.echo(yaml.safe_dump({"models": changed}, sort_keys=False).rstrip())


def _entry(config: Config, name: str, model: ModelConfig, own: Share) -> dict[str, Any]:
    """Return how a model stands in lmx.yaml, or would."""
    if model not in config.models:
        is_short = repository_of(name) != name
        named = name.lower() if is_short else default_model_id(parse_source(model.source))
        return {"id": named, "source": model.source}
    if not isinstance(model, AddedModelConfig):
        return {"id": model.id}
    # lmx.yaml goes before what was added, also with its context.
    context = {} if model.context_length is None else {"context_length": own.context_tokens}
    return {"id": model.id, "source": model.source, **context}


def _free(model_id: str, taken: set[str]) -> str:
    """Return a model's id, with a number if it is taken, as by a folder of the same name."""
    numbered = (f"{model_id}-{number}" for number in count(2))
    return next(each for each in chain([model_id], numbered) if each not in taken)


def _ladder(config: Config, home: Home, model: ModelConfig, budget: int, models: int) -> Ladder:
    seen = prospect(config, home, model)
    if isinstance(seen.judged, OperationError):
        raise seen.judged
    estimate = seen.judged.estimate
    measured = Measured.peek(home.measured)
    own = Share(
        estimate.context_tokens if estimate.kv_layers else None,
        4 if estimate.kv_bits == 4 else 8 if estimate.kv_bits == 8 else None,
        model.kept_rows,
    )

    def reserved(share: Share) -> int | None:
        if share == own:
            assert isinstance(seen.judged, Judgement)
            return seen.judged.plan.reserve_bytes
        return _reserved(config, model, share, seen.found, budget, measured, models)

    return ladder(own, reserved)


def _reserved(
    config: Config,
    model: ModelConfig,
    share: Share,
    found: Inspection,
    budget: int,
    measured: Measured,
    models: int,
) -> int | None:
    changed = model.model_copy(
        update={
            "concurrency": share.concurrency,
            **({} if share.context_tokens is None else {"context_length": share.context_tokens}),
            **({} if share.kv_bits is None else {"kv_bits": share.kv_bits}),
        }
    )
    assert found.kind is not None
    assert found.files is not None
    media_bytes = config.media.decode_limits(model.media).process_bytes
    try:
        estimate = estimate_memory(
            changed, found.kind, found.files, found.draft_files, budget, config.memory.kv_bits,
            media_bytes, models,
        )  # fmt: skip
        plan = plan_of(changed, found.kind, found.files, found.draft_files, estimate, measured)
    except OperationError:  # its layers keep a window, say, which can't have fewer bits
        return None
    return plan.reserve_bytes


def _changes(own: Share, share: Share) -> dict[str, Any]:
    keys = {
        "context_length": (own.context_tokens, share.context_tokens),
        "kv_bits": (own.kv_bits, share.kv_bits),
        "concurrency": (own.concurrency, share.concurrency),
    }
    return {key: new for key, (old, new) in keys.items() if new != old}


def _show(found: dict[str, Rung], budget: int) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for place, head in enumerate(("MODEL", "CONTEXT", "KV BITS", "CONCURRENCY", "RESERVED")):
        table.add_column(head, justify="right" if place else "left")
    for name, rung in found.items():
        share = rung.share
        context = "-" if share.context_tokens is None else str(share.context_tokens)
        bits = "-" if share.kv_bits is None else str(share.kv_bits)
        size = format_bytes(rung.reserve_bytes)
        table.add_row(escape(name), context, bits, str(share.concurrency), size)
    console = make_console()
    console.print(table)
    taken = sum(rung.reserve_bytes for rung in found.values())
    console.print(
        f"\ntogether {format_bytes(taken)} of the budget of {format_bytes(budget)}; "
        f"{format_bytes(budget - taken)} are left"
    )


def _as_dict(
    found: dict[str, Rung], changes: dict[str, dict[str, Any]], budget: int
) -> dict[str, Any]:
    return {
        "budget_bytes": budget,
        "models": [
            {
                "model": name,
                "context_length": rung.share.context_tokens,
                "kv_bits": rung.share.kv_bits,
                "concurrency": rung.share.concurrency,
                "reserve_bytes": rung.reserve_bytes,
                "changes": changes[name],
            }
            for name, rung in found.items()
        ],
    }

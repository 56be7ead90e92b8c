"""What is known of a model before it is loaded, and before it is downloaded: how large it is,
whether it fits, with which context, and which models would be evicted for it. ``lmx estimate`` and
``lmx pull`` say it."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.messages.control import LoadPlan, PlanLoad
from lmx.protocol.states import LoadOutcome, ModelKind
from lmx.supervisor.config.schema import Config, ModelConfig
from lmx.supervisor.control.planning import load_plan
from lmx.supervisor.core.inspect_files import question_of
from lmx.supervisor.decisions.ledger import budget_bytes, format_bytes
from lmx.supervisor.decisions.placement_view import PlacementView
from lmx.supervisor.memory.inspection import Inspection
from lmx.supervisor.memory.measured import Measured
from lmx.supervisor.memory.plan import Estimate, MemoryPlan, estimate_memory, plan_of
from lmx.supervisor.memory.system import read_memory
from lmx.supervisor.memory.working_set import read_working_set
from lmx.supervisor.processes.inspector import inspect_now
from lmx.supervisor.processes.preview import Look, look_now, previewed
from lmx.supervisor.sockets.client import ControlClient, supervisor_runs
from lmx.supervisor.state.home import Home

_LOOKS_AT_ONCE: Final = 4
_PLAN_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a model would take of the memory, and what would follow from a load."""

    estimate: Estimate
    plan: MemoryPlan
    load: LoadPlan
    running: bool
    """Whether ``load`` is by the models of the lmx that runs; else nothing is loaded."""
    unfetched: tuple[str, ...]
    """The adapters that are not counted, because nobody says how large they are."""


@dataclass(frozen=True, slots=True)
class Prospect:
    """What is known of a model."""

    model: ModelConfig
    found: Inspection
    look: Look | None
    """How large it is on the hub. None: its files are here, in the form in which it is loaded."""
    judged: Judgement | OperationError
    """Or why its files do not say it."""


def prospect(
    config: Config,
    home: Home,
    model: ModelConfig,
    filename: str | None = None,
    *,
    on_hub: bool = False,
) -> Prospect:
    """Look at a model, or at one file of its repository. Asks the hub about what is not on this
    machine, or in any case with ``on_hub``, and the lmx that runs, if there is one, about its
    models. Raises :class:`OperationError`."""
    question = question_of(model)
    if filename is None and not on_hub:
        (found,) = inspect_now(home, [question])
        if found.whole:
            return Prospect(model, found, None, _judged(config, home, model, found, 0))
    with previewed(home, question, filename) as preview:
        judged = _judged(config, home, model, preview.found, preview.look.missing_bytes)
        return Prospect(model, preview.found, preview.look, judged)


def budget_of(config: Config) -> int:
    """Return how much of this machine's memory all models may take."""
    return budget_bytes(config.memory, read_memory().total_bytes, read_working_set())


def _judged(
    config: Config, home: Home, model: ModelConfig, found: Inspection, download_bytes: int
) -> Judgement | OperationError:
    kind, files = found.kind, found.files
    if found.problem is not None or files is None or kind is None:
        problem = found.problem or f"{found.path} is not whole: {found.missing} is missing"
        return OperationError(ErrorCode.MODEL_SOURCE_INVALID, problem)
    if not files.memory.weights_bytes:
        return OperationError(
            ErrorCode.MODEL_SOURCE_INVALID,
            f"no weights found in {found.path}: a model's folder has *.safetensors next to "
            "config.json",
        )
    hub_bytes = _hub_bytes(home, model, found)
    known_bytes = sum(size for size in hub_bytes.values() if size is not None)
    files = replace(files, adapters_bytes=files.adapters_bytes + known_bytes)
    found = replace(found, files=files)
    budget = budget_of(config)
    measured = Measured.peek(home.measured)
    models = len({*(each.id for each in config.models), model.id})

    def estimating(model: ModelConfig, found: Inspection) -> tuple[Estimate, MemoryPlan]:
        assert found.files is not None
        estimate = estimate_memory(
            model, kind, found.files, found.draft_files, budget, config.memory.kv_bits,
            config.media.decode_limits(model.media).process_bytes, models,
        )  # fmt: skip
        plan = plan_of(model, kind, found.files, found.draft_files, estimate, measured)
        return estimate, plan

    try:
        estimate, plan = estimating(model, found)
        load = _of_running(home, model, found, download_bytes)
        running = load is not None
        if load is None:
            nothing = PlacementView((), (), budget, budget)
            load = load_plan(model, found, estimating, nothing, 0.0, download_bytes=download_bytes)
    except OperationError as error:
        return error
    unfetched = tuple(adapter for adapter, size in hub_bytes.items() if size is None)
    return Judgement(estimate, plan, load, running, unfetched)


def _of_running(
    home: Home, model: ModelConfig, found: Inspection, download_bytes: int
) -> LoadPlan | None:
    """Return the plan of the lmx that runs, None if there is none."""
    if not supervisor_runs(home):
        return None
    with ControlClient(home, _PLAN_S) as client:
        answer: LoadPlan = client.ask(PlanLoad(model.id, None, found.path, download_bytes))
        return answer


def _hub_bytes(home: Home, model: ModelConfig, found: Inspection) -> dict[str, int | None]:
    """Return how large those of a model's adapters are that were not fetched yet; None: the hub
    does not say it."""
    if found.kind is not ModelKind.CHAT:
        return {}
    there = zip(model.adapters, found.adapter_paths, strict=False)
    unfetched = [adapter for adapter, folder in there if folder is None]
    if not unfetched:
        return {}

    def size_bytes(adapter: str) -> int | None:
        try:
            return look_now(home, model.adapters[adapter], ("--adapter",)).total_bytes
        except OperationError:
            return None

    with ThreadPoolExecutor(_LOOKS_AT_ONCE) as pool:
        return dict(zip(unfetched, pool.map(size_bytes, unfetched), strict=True))


def size_lines(name: str, look: Look) -> list[str]:
    """Return how large a model is that is not here, and whether the disk has room for it. Pure."""
    size = f"{name}: {format_bytes(look.total_bytes)}"
    if look.missing_bytes:
        size += f"; {format_bytes(look.missing_bytes)} to download"
    elif not look.made_bytes:
        size += ", and all of it is on this machine"
    lines = [f"{size}, {format_bytes(look.free_bytes)} free in {look.folder}"]
    if look.made_bytes:
        lines.append(f"it is converted before it is loaded: {made_words(look)}")
    for folder, lacking_bytes in look.lacking_bytes.items():
        disk = "the disk" if look.made_folder is None else f"the disk of {folder}"
        lines.append(f"{disk} lacks {format_bytes(lacking_bytes)}")
    return lines


def made_words(look: Look) -> str:
    """Return how much more is on the disk once it was made of a model, and which disk that is if it
    is another one. Pure."""
    words = f"{format_bytes(look.made_bytes)} more on the disk"
    if look.made_folder is None:
        return words
    return f"{words} of {look.made_folder}, which has {format_bytes(look.made_free_bytes)} free"


def load_lines(judged: Judgement) -> list[str]:
    """Return the contexts with which a model can be loaded, and what follows in the lmx that runs.
    Pure."""
    load, lines = judged.load, []
    if load.longest_context is not None and load.context_length is not None:
        words = f"context: {load.context_length} tokens; the longest that fits: "
        words += str(load.longest_context)
        now = load.longest_context_now
        if judged.running and now != load.longest_context:
            words += f", and {now or 'none'} without evicting a model"
        lines.append(words)
    if judged.running and load.outcome is not LoadOutcome.IMPOSSIBLE:
        lines.append(load.detail)
    return lines


def hints(model: ModelConfig, estimate: Estimate, plan: MemoryPlan, budget: int) -> list[str]:
    """Return what would help a model that does not fit, the cheapest first."""
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

"""What `GET /admin/models/plan` is answered with."""

import asyncio
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lmx.protocol.errors import ErrorCode, LmxError, OperationError, UnavailableError
from lmx.protocol.messages.control import PinModel, PlanLoad
from lmx.protocol.states import LoadOutcome, ModelKind
from lmx.supervisor.config.schema import ModelConfig
from lmx.supervisor.control import planning as planning_module
from lmx.supervisor.control.planning import Planning, Previews
from lmx.supervisor.memory.inspect_main import inspect
from lmx.supervisor.memory.inspection import Inspection, Question
from lmx.supervisor.memory.plan import Estimate, MemoryPlan, plan_memory
from lmx.supervisor.state.home import Home
from tests.support.models.model_folders import PLAIN, write_model
from tests.support.rigs.core_rig import CoreRig

MIB = 1024**2
BUDGET = 2048 * MIB
NATIVE = 40_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(
        tmp_path / "m", max_position_embeddings=NATIVE, head_dim=128, num_hidden_layers=16
    )


def planning(rig: CoreRig, heads: Path | None = None) -> tuple[Planning, list[str]]:
    """``heads`` is what the hub has of every repository; None: it has none."""
    asked: list[str] = []

    async def read(question: Question) -> Inspection:
        return inspect(question, Home(Path("/nowhere")))

    async def preview(question: Question) -> tuple[int, Inspection]:
        asked.append(question.source)
        if heads is None:
            raise OperationError(ErrorCode.MODEL_SOURCE_INVALID, "the hub has no repository")
        return BUDGET, await read(replace(question, path=str(heads)))

    def estimate(model: ModelConfig, found: Inspection) -> tuple[Estimate, MemoryPlan]:
        assert found.files is not None
        return plan_memory(model, ModelKind.CHAT, found.files, None, BUDGET, None)

    return Planning(rig.core, read, preview, estimate, lambda: rig.now_s), asked


def rig_with(folder: Path, **other: int) -> CoreRig:
    models: dict[str, dict[str, Any]] = {"m": {"source": str(folder)}}
    return CoreRig({"m": 1, **other}, BUDGET, models)


async def test_the_hub_is_asked_by_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may look at plans may name any repository, as often as they like."""
    go_on, running, most = asyncio.Event(), 0, 0

    async def slow(_question: Question) -> tuple[int, Inspection]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await go_on.wait()
        running -= 1
        raise OperationError(ErrorCode.DOWNLOAD_FAILED, "the hub does not answer")

    rig = CoreRig({}, BUDGET, {})
    work, _ = planning(rig)
    work._preview = Previews(slow)

    async def plan(number: int) -> ErrorCode:
        with pytest.raises(LmxError) as caught:
            await work.plan(PlanLoad(f"org/model-{number}"))
        assert caught.value.retry_after_s == (5.0 if caught.value.code is full else None)
        return caught.value.code

    full = ErrorCode.QUEUE_FULL
    flood = [asyncio.create_task(plan(number)) for number in range(20)]
    done, _ = await asyncio.wait(flood, return_when=asyncio.FIRST_COMPLETED, timeout=90)
    assert {task.result() for task in done} == {full}
    go_on.set()
    codes = await asyncio.gather(*flood)
    assert (codes.count(full), most) == (14, 2)
    assert codes.count(ErrorCode.MODEL_NOT_FOUND) == 6, "as for a hub that does not answer"
    monkeypatch.setattr(planning_module, "_PATIENCE_S", 0.01)
    go_on.clear()
    held = [asyncio.create_task(plan(number)) for number in range(3)]
    done, _ = await asyncio.wait(held, return_when=asyncio.FIRST_COMPLETED, timeout=90)
    assert [task.result() for task in done] == [full], "it has waited long enough"
    go_on.set()
    await asyncio.gather(*held)
    assert await plan(0) is ErrorCode.MODEL_NOT_FOUND, "and every turn was given back"


async def test_the_lines_are_those_of_the_estimate_and_nothing_changes(folder: Path) -> None:
    rig = rig_with(folder)
    work, asked = planning(rig)
    before = dict(rig.core.slots)
    plan = await work.plan(PlanLoad("m", 4096))
    assert {"weights", "process", "KV cache", "activations"} <= {one.name for one in plan.lines}
    assert sum(one.size_bytes for one in plan.lines) == plan.need_bytes
    assert (plan.outcome, plan.evicts, plan.context_length) == (LoadOutcome.STARTS, (), 4096)
    assert (plan.budget_bytes, plan.free_bytes) == (BUDGET, BUDGET)
    assert dict(rig.core.slots) == before
    assert not asked, "its files are here"


async def test_the_longest_context_is_the_last_that_fits(folder: Path) -> None:
    rig = rig_with(folder, other=BUDGET // 2)
    work, _ = planning(rig)
    rig.up("other")
    rig.now_s += 1000
    plan = await work.plan(PlanLoad("m"))
    assert plan.longest_context is not None
    assert plan.longest_context_now is not None
    assert 256 <= plan.longest_context_now < plan.longest_context <= NATIVE
    for longest, fits in (
        (plan.longest_context_now, {LoadOutcome.STARTS}),
        (plan.longest_context, {LoadOutcome.STARTS, LoadOutcome.EVICTS}),
    ):
        assert (await work.plan(PlanLoad("m", longest))).outcome in fits
        if longest < NATIVE:
            assert (await work.plan(PlanLoad("m", longest + 256))).outcome not in fits
    evicting = await work.plan(PlanLoad("m", plan.longest_context))
    assert (evicting.outcome, evicting.evicts) == (LoadOutcome.EVICTS, ("other",))
    rig.operate(PinModel("other", True))
    refused = await work.plan(PlanLoad("m", plan.longest_context))
    assert refused.outcome is LoadOutcome.IMPOSSIBLE
    assert "lmx unpin other" in refused.detail


async def test_the_hub_is_not_asked_for_files_that_can_not_be_read_now(folder: Path) -> None:
    work, asked = planning(rig_with(folder))

    async def busy(question: Question) -> Inspection:
        return Inspection(question, problem=f"{question.source} can't be read: busy", by_host=True)

    work._inspect = busy
    for model in ("m", "org/name"):
        with pytest.raises(UnavailableError, match="can't be read: busy"):
            await work.plan(PlanLoad(model))
    assert not asked


async def test_no_list_is_made_of_the_lengths_of_a_context(tmp_path: Path) -> None:
    """A model may say that it has one of two billion tokens."""
    folder = write_model(tmp_path / "m", max_position_embeddings=2**31 - 1)
    work, _ = planning(rig_with(folder))
    tracemalloc.start()
    try:
        plan = await work.plan(PlanLoad("m"))
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert plan.longest_context is not None
    assert 10**6 < plan.longest_context < 2**31 - 1
    assert most_bytes < 64 * MIB
    # Caches of that length would have more bytes than make sense.
    deep = write_model(
        tmp_path / "deep", max_position_embeddings=2**31 - 1, num_hidden_layers=64,
        num_attention_heads=64, num_key_value_heads=64, head_dim=64,
    )  # fmt: skip
    assert (await planning(rig_with(deep))[0].plan(PlanLoad("m"))).need_bytes
    small = await planning(rig_with(write_model(tmp_path / "small")))[0].plan(PlanLoad("m"))
    assert small.longest_context == PLAIN["max_position_embeddings"]


async def test_a_model_that_is_loaded_so_is_said_to_be(folder: Path) -> None:
    rig = rig_with(folder)
    work, _ = planning(rig)
    rig.up("m")
    assert (await work.plan(PlanLoad("m"))).outcome is LoadOutcome.LOADED
    assert (await work.plan(PlanLoad("m", 2048))).outcome is LoadOutcome.LOADED
    assert (await work.plan(PlanLoad("m", 4096))).outcome is LoadOutcome.STARTS


@pytest.mark.parametrize("name", ["qwen3-8b", "mlx-community/Qwen3-8B-4bit"])
async def test_a_repository_that_is_not_here_is_planned_as_if_it_were(
    folder: Path, name: str
) -> None:
    rig = rig_with(folder)
    here = await planning(rig)[0].plan(PlanLoad("m"))
    work, asked = planning(rig, folder)
    plan = await work.plan(PlanLoad(name))
    assert asked == ["mlx-community/Qwen3-8B-4bit"]
    assert (plan.model_id, plan.download_bytes) == ("mlx-community/Qwen3-8B-4bit", BUDGET)
    assert replace(plan, model_id="m", download_bytes=0, detail=here.detail) == here
    # Whoever has its heads already names their folder.
    work, asked = planning(rig)
    named = PlanLoad(name, folder=str(folder), download_bytes=BUDGET)
    assert (await work.plan(named), asked) == (plan, [])
    elsewhere = PlanLoad("another", folder=str(folder))
    assert (await work.plan(elsewhere)).need_bytes == plan.need_bytes
    work, _ = planning(rig)
    with pytest.raises(LmxError) as unknown:
        await work.plan(PlanLoad(name))
    assert (unknown.value.code, unknown.value.param) == (ErrorCode.MODEL_NOT_FOUND, "model")


@pytest.mark.parametrize(
    ("question", "code", "param"),
    [
        *(
            (PlanLoad(name), ErrorCode.MODEL_NOT_FOUND, "model")
            for name in ("nobody", "/etc", "./m", "~/m", "../m")
        ),
        (PlanLoad("m", 1), ErrorCode.INVALID_VALUE, "context_length"),
        (PlanLoad("m", NATIVE + 1), ErrorCode.INVALID_VALUE, "context_length"),
    ],
)
async def test_what_can_not_be_names_its_field_and_no_name_reaches_the_disk_or_the_hub(
    folder: Path, question: PlanLoad, code: ErrorCode, param: str
) -> None:
    work, asked = planning(rig_with(folder))
    with pytest.raises(LmxError) as refused:
        await work.plan(question)
    assert (refused.value.code, refused.value.param) == (code, param)
    assert not asked

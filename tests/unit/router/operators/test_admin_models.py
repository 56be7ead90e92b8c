"""POST /admin/models/load and /unload, DELETE /admin/models/{id}."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from lmx.protocol.errors import ErrorCode
from lmx.protocol.messages.control import (
    Acquire,
    Acquired,
    Denied,
    Done,
    DrainModel,
    LoadModel,
    LoadPlan,
    PinModel,
    PlanLine,
    PlanLoad,
    ResetModel,
    RestartModel,
    UnloadModel,
    Withdraw,
)
from lmx.protocol.messages.inventory import Deleted, DeleteModel
from lmx.protocol.messages.status import GetStatus, Status
from lmx.protocol.states import LoadOutcome, SlotState
from lmx.router.http.endpoint import Access
from lmx.router.server.routes import ROUTES
from lmx.router.supervisor import queries
from tests.support.fakes.admin_lines import GIB, last_exit, reported_status, status_line
from tests.support.fakes.fake_peers import cold, ready, until
from tests.support.rigs.router_rig import Rig, router_rig

LOAD, UNLOAD = "/admin/models/load", "/admin/models/unload"
TINY = "org/tiny"


@asynccontextmanager
async def admin_rig(**fields: Any) -> AsyncIterator[Rig]:
    """One cold model, ``org/tiny``."""
    async with router_rig(**fields) as rig:
        rig.supervisor.replies = {
            LoadModel: Done("loading"),
            UnloadModel: Done("unloading", 4711),
            GetStatus: Status(
                reported_status(
                    status_line(TINY, memory_bytes=4 * GIB, last_exit=last_exit(4711, 3 * GIB))
                )
            ),
        }
        await rig.publish(cold(TINY, aliases=("t",)))
        yield rig


async def becomes_ready(rig: Rig, model_id: str = TINY, **fields: Any) -> None:
    """What a supervisor does once it has loaded a model."""
    await until(lambda: rig.supervisor.acquires)
    await rig.supervisor.publish(ready(model_id, "0000000b", **fields))
    await rig.supervisor.reply(0, Acquired(model_id, "0000000b"))


# What begins, and is answered then.

COMMANDS: dict[str, tuple[dict[str, Any], Any]] = {
    "restart": ({}, RestartModel(TINY)),
    "reset": ({}, ResetModel(TINY)),
    "drain": ({}, DrainModel(TINY)),
    "pin": ({"pinned": False}, PinModel(TINY, False)),
}


@pytest.mark.parametrize("name", COMMANDS)
async def test_a_command_says_what_follows_and_its_errors_name_the_field(name: str) -> None:
    fields, question = COMMANDS[name]
    kind, path = type(question), f"/admin/models/{name}"
    async with admin_rig() as rig:
        rig.supervisor.replies[kind] = Done("so it is", 4711)
        answer = await rig.admin("POST", path, model="t", **fields)
        assert answer == (
            200,
            {"success": True, "model": TINY, "pid": 4711, "message": "so it is"},
        )
        assert rig.asked(kind) == [question]
        status, body = await rig.admin("POST", path, model="nobody", **fields)
        assert (status, body["error"]["code"]) == (404, "model_not_found")
        assert body["error"]["param"] == "model"
        for missing in ("model", *fields):
            bad = {key: value for key, value in fields.items() if key != missing}
            bad |= {"model": 1} if missing == "model" else {"model": TINY}
            status, body = await rig.admin("POST", path, **bad)
            assert (status, body["error"]["param"]) == (400, missing)
        rig.supervisor.replies[kind] = Denied(ErrorCode.MODEL_SOURCE_INVALID, "gone", "source")
        status, body = await rig.admin("POST", path, model=TINY, **fields)
        assert (status, body["error"]["param"]) == (400, "model")


async def test_a_plan_is_what_the_supervisor_says_of_a_load() -> None:
    async with admin_rig() as rig:
        lines = (PlanLine("weights", 900, "headers"),)
        found = LoadPlan(TINY, lines, 1000, LoadOutcome.EVICTS, "b would be", 2000, 500, ("b",))
        rig.supervisor.replies[PlanLoad] = found
        status, body = await rig.admin("GET", "/admin/models/plan?model=t&context_length=4096")
        assert (status, body["fits"], body["evicts"], body["message"]) == (
            200, True, ["b"], "b would be",
        )  # fmt: skip
        assert body["lines"] == [{"name": "weights", "size_bytes": 900, "reason": "headers"}]
        await rig.admin("GET", "/admin/models/plan?model=qwen3-8b")
        assert rig.asked(PlanLoad) == [PlanLoad(TINY, 4096), PlanLoad("qwen3-8b")]
        for query, param in (("", "model"), ("?model=t&context_length=many", "context_length")):
            status, body = await rig.admin("GET", f"/admin/models/plan{query}")
            assert (status, body["error"]["param"]) == (400, param)


async def test_no_page_of_another_origin_gets_to_a_route_that_changes_something() -> None:
    changing = [each for each in ROUTES if each.method != "GET" and each.access is Access.ADMIN]
    assert len(changing) > 12
    async with admin_rig() as rig:
        seen = len(rig.supervisor.seen)
        for each in changing:
            # What a page can send without asking before: a simple request, and the key by chance.
            headers = {
                "Origin": "https://evil.example",
                "Content-Type": "text/plain",
                "X-Admin-Key": rig.spec.admin_key,
            }
            path = re.sub(r"{[^}]*}", "x", each.path)
            async with rig.http.request(
                each.method, f"{rig.url}{path}", headers=headers, data=b'{"model": "t"}'
            ) as response:
                code = (await response.json())["error"]["code"]
            assert (response.status, code) == (403, "origin_not_allowed"), each.path
        asked = {type(each).__name__ for each in rig.supervisor.seen[seen:]}
    assert asked <= {"RouterBeat", "ReportCounts", "GetCounts"}, asked


# Load.


@pytest.mark.parametrize("name", [TINY, "t", f"owner/{TINY}"])
async def test_a_load_answers_once_the_model_is_ready(name: str) -> None:
    async with admin_rig() as rig:
        loading = asyncio.create_task(
            rig.admin("POST", LOAD, model_id=name, max_context_length=2048, gpu_layers=-1)
        )
        await until(lambda: rig.supervisor.count(Acquire))
        assert not loading.done()
        await becomes_ready(rig, context_length=2048)
        status, body = await loading
        assert rig.asked(LoadModel) == [LoadModel(TINY, 2048)]
    assert status == 200
    took_ms = body.pop("time_to_load_ms")
    assert took_ms > 0
    assert body == {
        "success": True,
        "model_id": TINY,
        "memory_after_load_gb": 64.0,
        "context_length": 2048,
        "gpu_layers": -1,
    }


async def test_a_repository_that_nobody_served_is_loaded_under_its_own_name() -> None:
    async with admin_rig() as rig:
        loading = asyncio.create_task(rig.admin("POST", LOAD, model_id="org/new"))
        await until(lambda: rig.supervisor.count(LoadModel))
        assert rig.asked(LoadModel) == [LoadModel("org/new", None)]
        await rig.supervisor.publish(cold(TINY), cold("org/new", source="org/new"))
        await becomes_ready(rig, "org/new")
        status, body = await loading
    assert (status, body["model_id"], body["gpu_layers"]) == (200, "org/new", None)


async def test_a_short_name_is_loaded_under_the_id_that_the_supervisor_chose() -> None:
    async with admin_rig() as rig:
        rig.supervisor.replies[LoadModel] = Done("loading org/new", model_id="org/new")
        await rig.publish(cold(TINY), cold("org/new"))
        status, body = await rig.admin("POST", LOAD, model_id="new", wait=False)
        assert (status, body["model"]) == (200, "org/new")
        loading = asyncio.create_task(rig.admin("POST", LOAD, model_id="new"))
        await until(lambda: rig.supervisor.count(Acquire))
        assert [acquire.model_id for acquire in rig.asked(Acquire)] == ["org/new"]
        await becomes_ready(rig, "org/new")
        status, body = await loading
    assert (status, body["model_id"]) == (200, "org/new")


@pytest.mark.parametrize(
    ("denied", "status", "param"),
    [
        (Denied(ErrorCode.MODEL_NOT_FOUND, "no", "model"), 404, "model_id"),
        (Denied(ErrorCode.INVALID_VALUE, "no", "context_length"), 400, "max_context_length"),
        (Denied(ErrorCode.INSUFFICIENT_MEMORY, "no"), 507, None),
        (Denied(ErrorCode.INSUFFICIENT_DISK, "no"), 507, None),
        (Denied(ErrorCode.MODEL_SOURCE_INVALID, "no"), 400, "model_id"),
        (Denied(ErrorCode.MODEL_LOAD_FAILED, "no", retry_after_s=7.0), 503, None),
    ],
)
@pytest.mark.parametrize("at", ["at once", "while it loads"])
async def test_what_the_supervisor_denies_is_reported(
    denied: Denied, status: int, param: str | None, at: str
) -> None:
    async with admin_rig() as rig:
        if at == "at once":
            rig.supervisor.replies[LoadModel] = denied
        else:
            rig.supervisor.acquire_reply = lambda _: denied
        got, body = await rig.admin("POST", LOAD, model_id=TINY, max_context_length=64)
    error = body["error"]
    assert (got, error["code"], error["param"]) == (status, denied.code.value, param)
    if status == 400:
        assert error["type"] == "invalid_request_error"


async def test_too_little_memory_is_503_to_who_only_asks_and_507_to_operators() -> None:
    async with admin_rig() as rig:
        rig.supervisor.acquire_reply = lambda _: Denied(ErrorCode.INSUFFICIENT_MEMORY, "no")
        assert (await rig.chat_json(model=TINY))[0] == 503
        assert (await rig.admin("POST", LOAD, model_id=TINY))[0] == 507


async def test_a_load_that_takes_too_long_is_503_and_continues() -> None:
    async with admin_rig(load_wait_s=0.3) as rig:
        status, body = await rig.admin("POST", LOAD, model_id=TINY)
        assert (status, body["error"]["code"]) == (503, "model_loading")
        assert not rig.supervisor.count(UnloadModel)


async def test_who_leaves_does_not_stop_the_load() -> None:
    async with admin_rig() as rig:
        loading = asyncio.create_task(rig.admin("POST", LOAD, model_id=TINY))
        await until(lambda: rig.supervisor.count(Acquire))
        loading.cancel()
        # The supervisor keeps what an operator ordered: LoadModel is not taken back.
        await until(lambda: rig.supervisor.count(Withdraw))
        assert not rig.supervisor.count(UnloadModel)
        assert rig.router.queues.all_waiting == 0


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"max_context_length": 5}, "missing_required_parameter", "model_id"),
        ({"model_id": "a", "max_context_length": 0}, "invalid_value", "max_context_length"),
        ({"model_id": "a", "gpu_layers": -2}, "invalid_value", "gpu_layers"),
    ],
)
async def test_a_wrong_field_is_named(body: dict[str, Any], code: str, param: str) -> None:
    async with admin_rig() as rig:
        status, answer = await rig.admin("POST", LOAD, **body)
        assert not rig.supervisor.count(LoadModel)
    assert (status, answer["error"]["code"], answer["error"]["param"]) == (400, code, param)


# Unload.


async def test_an_unload_answers_once_the_worker_is_gone() -> None:
    async with admin_rig() as rig:
        await rig.publish(ready(TINY, "0000000b"))
        unloading = asyncio.create_task(rig.admin("POST", UNLOAD, model_id=TINY))
        await until(lambda: rig.supervisor.count(UnloadModel))
        await asyncio.sleep(0)
        assert not unloading.done()
        await rig.supervisor.publish(cold(TINY))
        status, body = await unloading
    assert (status, body) == (
        200,
        {
            "success": True,
            "model_id": TINY,
            "memory_freed_gb": 3.0,
            "memory": last_exit(4711, 3 * GIB)["memory"],
        },
    )


async def test_an_unload_whose_memory_is_not_measured_in_time_says_what_was_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queries, "_MEMORY_S", 0.3)
    async with admin_rig() as rig:
        line = status_line(TINY, memory_bytes=4 * GIB, last_exit=last_exit(1, GIB))
        rig.supervisor.replies[GetStatus] = Status(reported_status(line))
        await rig.publish(ready(TINY, "0000000b"))
        unloading = asyncio.create_task(rig.admin("POST", UNLOAD, model_id=TINY))
        await until(lambda: rig.supervisor.count(UnloadModel))
        await rig.supervisor.publish(cold(TINY))
        status, body = await unloading
    assert (status, body["memory_freed_gb"], body["memory"]) == (200, 4.0, None)


async def test_one_that_is_loaded_again_at_once_was_unloaded() -> None:
    async with admin_rig() as rig:
        await rig.publish(ready(TINY, "0000000b"))
        unloading = asyncio.create_task(rig.admin("POST", UNLOAD, model_id=TINY))
        await until(lambda: rig.supervisor.count(UnloadModel))
        await rig.supervisor.publish(ready(TINY, "0000000c"))
        assert (await unloading)[0] == 200


@pytest.mark.parametrize("slot", [SlotState.COLD, SlotState.HELD, SlotState.QUARANTINED])
async def test_what_is_not_loaded_is_409(slot: SlotState) -> None:
    async with admin_rig() as rig:
        await rig.publish(cold(TINY, slot))
        status, body = await rig.admin("POST", UNLOAD, model_id=TINY)
        assert not rig.supervisor.count(UnloadModel)
    assert (status, body["error"]["code"]) == (409, "model_not_loaded")
    assert body["error"]["param"] == "model_id"


async def test_an_unknown_model_is_404_and_a_slow_end_504() -> None:
    async with admin_rig(load_wait_s=0.2) as rig:
        status, body = await rig.admin("POST", UNLOAD, model_id="nope")
        assert (status, body["error"]["code"]) == (404, "model_not_found")
        assert body["error"]["param"] == "model_id"
        await rig.publish(ready(TINY, "0000000b"))
        status, body = await rig.admin("POST", UNLOAD, model_id=TINY)
    assert (status, body["error"]["code"]) == (504, "deadline_exceeded")


# Delete.


@pytest.mark.parametrize(
    ("path", "question"),
    [
        ("org/tiny", DeleteModel("org/tiny", False)),
        ("org%2Ftiny", DeleteModel("org/tiny", False)),
        ("tiny?force=true", DeleteModel("tiny", True)),
        ("tiny?force=0", DeleteModel("tiny", False)),
        ("a/b:c@d", DeleteModel("a/b:c@d", False)),
        ("download%2Ftiny", DeleteModel("download/tiny", False)),
    ],
)
async def test_a_model_is_deleted(path: str, question: DeleteModel) -> None:
    async with admin_rig() as rig:
        rig.supervisor.replies[DeleteModel] = lambda one: Deleted(one.model_id, 7, ("q4", "q8"))
        status, body = await rig.admin("DELETE", f"/admin/models/{path}")
        assert rig.asked(DeleteModel) == [question]
    assert (status, body) == (
        200,
        {
            "success": True,
            "model_id": question.model_id,
            "freed_bytes": 7,
            "forgotten": ["q4", "q8"],
        },
    )


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ErrorCode.MODEL_LOADED, 409),
        (ErrorCode.NOT_DELETABLE, 409),
        (ErrorCode.MODEL_NOT_FOUND, 404),
    ],
)
async def test_a_delete_that_is_denied(code: ErrorCode, status: int) -> None:
    async with admin_rig() as rig:
        rig.supervisor.replies[DeleteModel] = Denied(code, "no", "model")
        got, body = await rig.admin("DELETE", "/admin/models/tiny")
    assert (got, body["error"]["code"], body["error"]["param"]) == (status, code.value, "model_id")


async def test_force_is_a_boolean() -> None:
    async with admin_rig() as rig:
        status, body = await rig.admin("DELETE", "/admin/models/tiny?force=perhaps")
        assert not rig.supervisor.count(DeleteModel)
    assert (status, body["error"]["param"]) == (400, "force")

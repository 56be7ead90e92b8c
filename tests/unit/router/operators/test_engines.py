"""Kolosal's /engines."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from lmx.protocol.errors import ErrorCode
from lmx.protocol.messages.control import Acquire, Acquired, Denied, Done, LoadModel
from lmx.protocol.messages.data import Timings
from lmx.protocol.messages.inventory import AddModel, RemoveModel
from lmx.protocol.messages.status import GetStatus, Status
from lmx.protocol.states import SlotState, WorkerState
from lmx.router.supervisor import queries
from tests.support.fakes.admin_lines import cold_line, reported_status, status_line
from tests.support.fakes.fake_peers import cold, ends, plays, ready, until
from tests.support.rigs.router_rig import INSTANCE, MODEL, Rig, router_rig

GIVEN = {
    "engine_id": "llama-7b",
    "model_path": "/models/llama-7b-q4.gguf",
    "n_ctx": 2048,
    "n_gpu_layers": 32,
}
PARAMETERS = {"n_ctx": 2048, "n_gpu_layers": 32, "main_gpu_id": 0}


@asynccontextmanager
async def engine_rig(**fields: Any) -> AsyncIterator[Rig]:
    """A supervisor that adds what it is told to, and loads nothing by itself."""
    async with router_rig(**fields) as rig:
        rig.supervisor.replies = {
            AddModel: Done("added"),
            LoadModel: Done("loading"),
            RemoveModel: Done("removed"),
            GetStatus: Status(reported_status(status_line(MODEL))),
        }
        yield rig


async def added(rig: Rig, **fields: Any) -> None:
    """What the supervisor tells of it."""
    await until(lambda: rig.supervisor.count(LoadModel))
    await rig.supervisor.publish(
        ready(MODEL, INSTANCE), cold("llama-7b", added=True, context_length=2048, **fields)
    )


async def test_an_engine_is_added_and_loaded() -> None:
    async with engine_rig() as rig:
        adding = asyncio.create_task(rig.admin("POST", "/engines", **GIVEN))
        await added(rig)
        await until(lambda: rig.supervisor.acquires)
        assert not adding.done()
        await rig.supervisor.publish(
            ready(MODEL, INSTANCE), ready("llama-7b", "0000000b", context_length=2048)
        )
        await rig.supervisor.reply(0, Acquired("llama-7b", "0000000b"))
        status, body = await adding
        assert rig.asked(AddModel) == [
            AddModel("llama-7b", "/models/llama-7b-q4.gguf", 2048, PARAMETERS)
        ]
        assert rig.asked(LoadModel) == [LoadModel("llama-7b", None)]
        assert not rig.supervisor.count(RemoveModel)
    assert status == 201
    assert body == {
        "engine_id": "llama-7b",
        "status": "loaded",
        "model_path": "/models/llama-7b-q4.gguf",
        "parameters": PARAMETERS,
    }


async def test_what_is_only_added_is_there_when_the_answer_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queries, "_SNAPSHOT_S", 90.0)
    async with engine_rig() as rig:
        body = GIVEN | {"load_immediately": False}
        adding = asyncio.create_task(rig.admin("POST", "/engines", **body))
        await until(lambda: rig.supervisor.count(AddModel))
        await rig.publish(ready(MODEL, INSTANCE))
        assert not adding.done()
        await rig.publish(ready(MODEL, INSTANCE), cold("llama-7b", added=True))
        assert (await adding)[0] == 201
        removing = asyncio.create_task(rig.admin("DELETE", "/engines/llama-7b"))
        await until(lambda: rig.supervisor.count(RemoveModel))
        await rig.publish(ready(MODEL, INSTANCE))
        assert (await removing)[0] == 200


async def test_the_same_again_is_the_same() -> None:
    async with engine_rig() as rig:
        rig.supervisor.acquire_reply = lambda one: Acquired(one.model_id, INSTANCE)
        body = {"engine_id": MODEL, "model_path": "/m"}
        assert (await rig.admin("POST", "/engines", **body))[0] == 201
        assert rig.asked(AddModel)[0].parameters == {
            "n_ctx": 4096,
            "n_gpu_layers": 100,
            "main_gpu_id": 0,
        }


@pytest.mark.parametrize("given", [{}, {"n_ctx": 4096}])
async def test_a_context_that_was_not_chosen_may_be_the_models_own(given: dict[str, int]) -> None:
    async with engine_rig() as rig:
        await rig.publish(ready(MODEL, INSTANCE, context_length=2048))
        rig.supervisor.acquire_reply = lambda one: Acquired(one.model_id, INSTANCE)
        status, body = await rig.admin(
            "POST", "/engines", engine_id=MODEL, model_path="/m", **given
        )
        assert rig.asked(AddModel)[0].context_length == 4096
        assert rig.asked(AddModel)[0].context_at_most is not bool(given)
    assert (status, body["parameters"]["n_ctx"]) == (201, 2048), "what it runs with"


@pytest.mark.parametrize(
    ("denied", "status", "param"),
    [
        (Denied(ErrorCode.MODEL_EXISTS, "no", "model_id"), 409, "engine_id"),
        (Denied(ErrorCode.MODEL_SOURCE_INVALID, "no", "source"), 400, "model_path"),
        (Denied(ErrorCode.INVALID_VALUE, "no", "context_length"), 400, "n_ctx"),
        (Denied(ErrorCode.MODEL_SOURCE_INVALID, "no", "context_length"), 400, "n_ctx"),
        (Denied(ErrorCode.MODEL_SOURCE_INVALID, "no repository"), 400, "model_path"),
    ],
)
async def test_what_cannot_be_added_is_reported(denied: Denied, status: int, param: str) -> None:
    async with engine_rig() as rig:
        rig.supervisor.replies[AddModel] = denied
        got, body = await rig.admin("POST", "/engines", **GIVEN)
        assert not rig.supervisor.count(LoadModel)
        assert not rig.supervisor.count(RemoveModel)
    assert (got, body["error"]["code"], body["error"]["param"]) == (
        status,
        denied.code.value,
        param,
    )


async def test_what_cannot_be_loaded_is_removed_again() -> None:
    async with engine_rig() as rig:
        rig.supervisor.acquire_reply = lambda _: Denied(ErrorCode.INSUFFICIENT_MEMORY, "too big")
        adding = asyncio.create_task(rig.admin("POST", "/engines", **GIVEN))
        await added(rig)
        await until(lambda: rig.supervisor.count(RemoveModel))
        await asyncio.sleep(0.05)
        assert not adding.done(), "a list of the engines would still have it"
        await rig.supervisor.publish(ready(MODEL, INSTANCE))
        status, body = await adding
        assert rig.asked(RemoveModel) == [RemoveModel("llama-7b")]
    assert (status, body["error"]["message"]) == (507, "too big")


async def test_a_quarantine_shows_what_led_to_it() -> None:
    async with engine_rig() as rig:
        exit_ = {"cause": "load_failed", "detail": "ValueError: no such layer", "at_s": 1.0}
        rig.supervisor.replies[GetStatus] = Status(
            reported_status(cold_line("llama-7b", last_exit=exit_))
        )
        rig.supervisor.acquire_reply = lambda _: Denied(
            ErrorCode.MODEL_QUARANTINED, "llama-7b is quarantined: run restart"
        )
        adding = asyncio.create_task(rig.admin("POST", "/engines", **GIVEN))
        await added(rig)
        status, body = await adding
        assert rig.supervisor.count(RemoveModel) == 1
    assert (status, body["error"]["code"]) == (503, "model_load_failed")
    assert body["error"]["message"].endswith("ValueError: no such layer")


@pytest.mark.parametrize("was_there", [False, True])
async def test_a_slow_load_and_a_model_that_was_there_stay(was_there: bool) -> None:
    async with engine_rig(load_wait_s=0.3) as rig:
        if was_there:
            await rig.publish(cold("llama-7b"))
            rig.supervisor.acquire_reply = lambda _: Denied(ErrorCode.MODEL_LOAD_FAILED, "no")
        adding = asyncio.create_task(rig.admin("POST", "/engines", **GIVEN))
        await added(rig)
        status, body = await adding
        assert not rig.supervisor.count(RemoveModel)
    code = "model_load_failed" if was_there else "model_loading"
    assert (status, body["error"]["code"]) == (503, code)


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"engine_id": None}, "invalid_type", "engine_id"),
        ({"n_ctx": 127}, "invalid_value", "n_ctx"),
    ],
)
async def test_a_wrong_field_is_named(fields: dict[str, Any], code: str, param: str) -> None:
    async with engine_rig() as rig:
        status, body = await rig.admin("POST", "/engines", **{**GIVEN, **fields})
        assert not rig.supervisor.count(AddModel)
    assert (status, body["error"]["code"], body["error"]["param"]) == (400, code, param)


async def test_engines_are_listed() -> None:
    async with engine_rig() as rig:
        await rig.publish(
            ready("a", "0000000a", source="/models/a"),
            cold("org/b", source="org/b"),
            cold("c", SlotState.QUEUED),
            cold("d", SlotState.OCCUPIED, worker=WorkerState.LOADING, instance="0000000d"),
            cold("e", SlotState.QUARANTINED),
        )
        status, body = await rig.admin("GET", "/engines")
    assert status == 200
    assert body["engines"][:2] == [
        {"engine_id": "a", "status": "loaded", "model_path": "/models/a"},
        {"engine_id": "org/b", "status": "unloaded", "model_path": "org/b"},
    ]
    assert [one["status"] for one in body["engines"][2:]] == ["loading", "loading", "unloaded"]


quick = plays(ends("a", tokens=22, timings=Timings(queue_s=0, prefill_s=0, decode_s=0.5)))


@pytest.mark.parametrize("path", ["org/tiny-model", "org%2Ftiny-model"])
async def test_the_status_of_an_engine(path: str) -> None:
    async with engine_rig(script=quick) as rig:
        line = status_line(MODEL, parameters={**PARAMETERS, "n_gpu_layers": 7})
        rig.supervisor.replies[GetStatus] = Status(reported_status(line))
        await rig.publish(ready(MODEL, INSTANCE, context_length=2048))
        status, body = await rig.admin("GET", f"/engines/{path}/status")
        assert status == 200
        assert body["performance"] == {"last_inference_tps": 0.0, "total_requests": 42}
        assert (await rig.chat_json())[0] == 200
        status, body = await rig.admin("GET", f"/engines/{path}/status")
    assert body["performance"]["last_inference_tps"] == 42.0
    assert body == {
        "engine_id": MODEL,
        "status": "loaded",
        "model_path": f"owner/{MODEL}",
        "parameters": {"n_ctx": 2048, "n_gpu_layers": 7, "main_gpu_id": 0},
        "memory_usage": {"model_size_mb": 1536, "context_size_mb": 129},
        "performance": {"last_inference_tps": 42.0, "total_requests": 42},
        "problem": None,
    }


async def test_the_status_of_what_was_never_loaded() -> None:
    async with engine_rig() as rig:
        line = cold_line("b", weights_bytes=None, context_bytes=None, problem="no folder")
        rig.supervisor.replies[GetStatus] = Status(reported_status(line))
        await rig.publish(cold("b"))
        status, body = await rig.admin("GET", "/engines/b/status")
    assert (status, body["status"], body["problem"]) == (200, "unloaded", "no folder")
    assert body["parameters"] == {"n_ctx": None, "n_gpu_layers": 100, "main_gpu_id": 0}
    assert body["memory_usage"] == {"model_size_mb": 0, "context_size_mb": 0}


@pytest.mark.parametrize("path", ["org/tiny-model", "org%2Ftiny-model"])
async def test_an_engine_is_removed(path: str) -> None:
    async with engine_rig() as rig:
        removing = asyncio.create_task(rig.admin("DELETE", f"/engines/{path}"))
        await until(lambda: rig.supervisor.count(RemoveModel))
        await rig.supervisor.publish()
        # It is in no snapshot any more; its process still ends a request.
        await until(lambda: rig.supervisor.count(GetStatus) >= 2)
        assert not removing.done()
        rig.supervisor.replies[GetStatus] = Status(reported_status())
        assert await removing == (200, {"engine_id": MODEL, "status": "removed"})


async def test_an_engine_that_is_removed_is_in_no_list_after_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also one that was not loaded: the snapshot comes on another socket than the reply."""
    monkeypatch.setattr(queries, "_SNAPSHOT_S", 3600.0)
    async with engine_rig() as rig:
        await rig.publish(cold("b"))
        removing = asyncio.create_task(rig.admin("DELETE", "/engines/b"))
        await until(lambda: rig.supervisor.count(RemoveModel))
        assert not (await asyncio.wait({removing}, timeout=0.3))[0]
        await rig.supervisor.publish()
        assert await removing == (200, {"engine_id": "b", "status": "removed"})


async def test_what_cannot_be_removed() -> None:
    async with engine_rig() as rig:
        rig.supervisor.replies[RemoveModel] = Denied(ErrorCode.MODEL_CONFIGURED, "no", "model_id")
        status, body = await rig.admin("DELETE", f"/engines/{MODEL}")
        assert (status, body["error"]["code"]) == (409, "model_configured")
        assert body["error"]["param"] == "engine_id"
        for method, path in [("DELETE", "/engines/no/such"), ("GET", "/engines/no/such/status")]:
            status, body = await rig.admin(method, path)
            assert (status, body["error"]["code"]) == (404, "model_not_found")
            assert body["error"]["param"] == "engine_id"
        assert rig.supervisor.count(RemoveModel) == 1
        assert not rig.supervisor.count(Acquire)

"""GET /admin/status, /admin/models, /admin/memory, /admin/health; what a reload says."""

import time
from typing import Any

import pytest

from lmx.protocol.errors import ErrorCode
from lmx.protocol.messages.control import Denied, ReloadConfig, Reloaded
from lmx.protocol.messages.status import GetStatus, ModelStatus, Status
from lmx.protocol.states import SlotState
from tests.support.fakes.admin_lines import GIB, cold_line, reported_status, status_line
from tests.support.fakes.fake_peers import cold, ready, until
from tests.support.rigs.router_rig import INSTANCE, MODEL, Rig


def tell(rig: Rig, *models: ModelStatus, **supervisor: Any) -> None:
    rig.supervisor.replies[GetStatus] = Status(reported_status(*models, **supervisor))


async def test_the_status_has_the_fields_of_the_document_and_some_more(rig: Rig) -> None:
    busy = status_line("org/big", requests_active=2, requests_queued=1)
    tell(rig, status_line("small"), busy, cold_line("cold"))
    since_s = rig.supervisor.since_s
    status, body = await rig.admin("GET", "/admin/status")
    assert status == 200
    assert 0 < body.pop("uptime_seconds") <= time.time() - since_s
    assert body == {
        "version": "1.2.3",
        "loaded_models": 2,
        "models": ["small", "org/big"],
        "memory": {
            "total_gb": 128.0,
            "used_gb": 64.0,
            "available_gb": 64.0,
            "usage_percent": 50.0,
            "threshold_percent": 90,
            "pressure": "none",
            "budget_gb": 96.0,
            "reserved_gb": 8.0,
        },
        "state": "running",
        "requests_active": 2,
        "requests_waiting": 1,
    }


async def test_models_are_loaded_or_available(rig: Rig) -> None:
    tell(
        rig,
        status_line("org/a", "draining"),
        status_line("new", requests_total=0, idle_s=1.0),
        status_line("busy", idle_s=None, requests_active=1, max_rows=1),
        status_line("half", "loading", fraction=0.4, loaded_at_s=None),
        cold_line("cold", problem="no config.json"),
    )
    before_s = time.time()
    status, body = await rig.admin("GET", "/admin/models")
    after_s = time.time()
    assert status == 200
    used = body["loaded"][0].pop("last_used_at")
    assert before_s - 12.6 <= used <= after_s - 12.4
    assert body["loaded"][0] == {
        "id": "org/a",
        "loaded": True,
        "state": "draining",
        "source": "owner/org/a",
        "aliases": ["short"],
        "kind": "chat",
        "context_length": 4096,
        "pinned": False,
        "problem": None,
        "memory_gb": 2.0,
        "loaded_at": 1708012345.0,
        "use_batching": True,
        "request_count": 42,
        "requests_active": 0,
        "requests_queued": 0,
        "expires_in_s": None,
    }
    assert body["loaded"][1]["last_used_at"] is None
    assert body["loaded"][2]["use_batching"] is False
    assert before_s - 0.01 <= body["loaded"][2]["last_used_at"] <= after_s + 0.01
    assert body["count"] == 3
    assert [(each["id"], each["loaded"]) for each in body["available"]] == [
        ("half", False),
        ("cold", False),
    ]
    assert [each["progress"] for each in body["available"]] == [0.4, None]
    assert body["available"][1]["problem"] == "no config.json"


async def test_memory_by_model(rig: Rig) -> None:
    tell(rig, status_line("org/a", memory_bytes=GIB * 17 // 4), cold_line("cold"))
    status, body = await rig.admin("GET", "/admin/memory")
    assert status == 200
    assert body == {
        "total_unified_memory_gb": 128.0,
        "used_gb": 64.0,
        "available_gb": 64.0,
        "threshold_percent": 90,
        "budget_gb": 96.0,
        "reserved_gb": 8.0,
        "models": {
            "org/a": {"memory_gb": 4.25, "loaded": True, "peak_gb": 3.0, "reserved_gb": 4.0},
            "cold": {"memory_gb": 0.0, "loaded": False, "peak_gb": 0.0, "reserved_gb": 0.0},
        },
    }


@pytest.mark.parametrize("path", ["/admin/status", "/admin/models", "/admin/memory"])
async def test_without_a_supervisor_there_are_no_figures(rig: Rig, path: str) -> None:
    await rig.supervisor.stop()
    status, body = await rig.admin("GET", path)
    assert (status, body["error"]["code"]) == (503, "supervisor_unavailable")


# The health: no key.


async def health(rig: Rig) -> tuple[int, Any]:
    async with rig.http.get(f"{rig.url}/admin/health") as response:
        assert (response.status == 503) == ("Retry-After" in response.headers)
        return response.status, await response.json()


async def test_all_is_well(rig: Rig) -> None:
    tell(rig, status_line(MODEL))
    assert await health(rig) == (200, {"status": "ok", "version": "1.2.3"})


async def test_short_memory_is_degraded_and_serves(rig: Rig) -> None:
    tell(rig, status_line(MODEL), memory_pressure="soft", machine_used_bytes=120 * GIB)
    status, body = await health(rig)
    assert (status, body["status"], body["version"]) == (200, "degraded", "1.2.3")
    assert body["reason"].startswith("Memory usage at 93.8%, the line is 90%")


async def test_a_model_that_cannot_serve_and_a_missing_supervisor_are_503(rig: Rig) -> None:
    tell(rig, cold_line(MODEL))
    await rig.publish(cold(MODEL, SlotState.QUARANTINED, problem="broken"))
    status, body = await health(rig)
    assert (status, body["status"]) == (503, "degraded")
    assert "broken" in body["reason"]
    await rig.supervisor.publish(ready(MODEL, INSTANCE))
    await rig.supervisor.stop()
    await until(lambda: not rig.router.supervisor.alive)
    status, body = await health(rig)
    assert (status, body["status"]) == (503, "degraded")
    assert "supervisor" in body["reason"]


async def test_kolosals_health_has_its_fields(rig: Rig) -> None:
    await rig.publish(ready("a", INSTANCE, memory_bytes=1 << 30), cold("b", SlotState.FETCHING))
    for path in ("/v1/health", "/health", "/status"):
        status, body = await rig.json("GET", path)
        assert status == 200
        system = body.pop("system")
        assert abs(body.pop("timestamp") - time.time()) < 60
        assert body == {
            "status": "healthy",
            "reason": None,
            "version": "1.2.3",
            "engines": {"loaded": 1, "unloaded": 1, "total": 2},
            "engines_summary": [
                {"engine_id": "a", "status": "loaded", "state": "ready"},
                {"engine_id": "b", "status": "unloaded", "state": "fetching"},
            ],
        }
        assert system["memory_usage_mb"] > 1024
        assert isinstance(system["uptime_seconds"], int)
        assert 0 <= system["cpu_usage_percent"] <= 100


# The reload.


async def test_sections_have_the_names_of_the_document(rig: Rig) -> None:
    rig.supervisor.replies[ReloadConfig] = Reloaded(("routing", "logs", "models"), ("b added",))
    status, body = await rig.admin("POST", "/admin/config/reload")
    assert (status, body) == (
        200,
        {"success": True, "updated": ["routing", "logging", "models"], "changes": ["b added"]},
    )
    rig.supervisor.replies[ReloadConfig] = Denied(ErrorCode.CONFIG_INVALID, "a: no\nb: no")
    status, body = await rig.admin("POST", "/admin/config/reload")
    assert (status, body["error"]["message"]) == (400, "a: no\nb: no")

"""Batches as operators see them: of all keys, in the console's stream, in metrics, as events."""

import asyncio
import json
from typing import Any

import pytest

from lmx.protocol.messages.control import BatchChanged
from lmx.router.operators import batches
from lmx.router.operators.batches import BatchesShown
from lmx.router.operators.live.batches import LiveBatches
from tests.support.clients.answer_check import check_shape
from tests.support.fakes.fake_peers import FakeStream, plays, until
from tests.support.rigs.router_rig import MODEL, Rig, answer, router_rig
from tests.unit.router.batches.test_batches import KEYS, ONE, OTHER, begun, ended, jsonl, line, sdk


async def live(rig: Rig) -> list[Any]:
    """The batches that a console is sent first."""
    url, headers = f"{rig.url}/admin/live", {"X-Admin-Key": rig.spec.admin_key}
    async with asyncio.timeout(90), rig.http.get(url, headers=headers) as response:
        while await response.content.readline() != b"event: batches\n":
            pass
        event = json.loads((await response.content.readline()).removeprefix(b"data: "))
    check_shape(LiveBatches, event)
    return list(event["batches"])


async def samples(rig: Rig) -> dict[str, float]:
    headers = {"X-Admin-Key": rig.spec.admin_key}
    async with rig.http.get(f"{rig.url}/admin/metrics", headers=headers) as response:
        lines = (await response.text()).splitlines()
    found = (one.rsplit(" ", 1) for one in lines if one.startswith("lmx_batch"))
    return {name: float(value) for name, value in found}


def reported(rig: Rig) -> list[tuple[str, str, int, int]]:
    """What the supervisor was notified of."""
    changes = [one for one in rig.supervisor.seen if isinstance(one, BatchChanged)]
    return [(one.batch_id, one.status, one.completed, one.failed) for one in changes]


async def test_the_batches_of_all_keys() -> None:
    go = asyncio.Event()

    async def held(stream: FakeStream) -> None:
        await go.wait()
        await answer(stream)

    async with (
        router_rig(held, api_keys=KEYS) as rig, sdk(rig) as client,
        sdk(rig, OTHER) as stranger,
    ):  # fmt: skip
        assert await samples(rig) == {
            **{f'lmx_batches{{status="{one}"}}': 0.0
               for one in ("validating", "in_progress", "finalizing", "cancelling")},
            "lmx_batch_lines_waiting": 0.0,
            'lmx_batch_lines_total{outcome="completed"}': 0.0,
            'lmx_batch_lines_total{outcome="failed"}': 0.0,
        }  # fmt: skip
        wrong = await begun(client, b"no json\n")
        await ended(client, wrong)
        first = await begun(client, jsonl(line("a"), line("b", text=7)))
        second = await begun(stranger, jsonl(line("c")))
        status, shown = await rig.admin("GET", "/admin/batches")
        check_shape(BatchesShown, shown)
        assert status == 200
        assert [one["id"] for one in shown["data"]] == [second.id, first.id, wrong.id]
        assert [one["key"] for one in shown["data"]] == ["other", "one", "one"]
        await until(lambda: len(rig.worker.streams) > 0)
        await until(lambda: {(first.id, "in_progress", 0, 0), (second.id, "in_progress", 0, 0)}
                    <= set(reported(rig)))  # fmt: skip
        assert [one["id"] for one in await live(rig)] == [second.id, first.id, wrong.id]
        found = await samples(rig)
        assert found['lmx_batches{status="in_progress"}'] == 2
        assert 1 <= found["lmx_batch_lines_waiting"] <= 3

        # With the admin key, and with no other.
        assert (await rig.admin("POST", f"/admin/batches/{second.id}/cancel"))[0] == 200
        url = f"{rig.url}/admin/batches/{first.id}/cancel"
        async with rig.http.post(url, headers={"Authorization": f"Bearer {ONE}"}) as response:
            assert response.status in (401, 403)
        assert (await ended(stranger, second)).status == "cancelled"
        for batch_id, status, code in (
            (second.id, 409, "batch_ended"), ("batch_" + "0" * 24, 404, "not_found_error"),
            ("..%2Fetc", 404, "not_found_error"),
        ):  # fmt: skip
            got, refused = await rig.admin("POST", f"/admin/batches/{batch_id}/cancel")
            assert (got, refused["error"]["code"]) == (status, code), refused
        go.set()
        assert (await ended(client, first)).status == "completed"
        found = await samples(rig)
        assert found['lmx_batch_lines_total{outcome="completed"}'] == 1
        assert found['lmx_batch_lines_total{outcome="failed"}'] == 1
        assert found["lmx_batch_lines_waiting"] == 0
        [last] = [one for one in await live(rig) if one["id"] == first.id]
        assert (last["status"], last["total"], last["completed"]) == ("completed", 2, 1)
        await until(lambda: (first.id, "completed", 1, 1) in reported(rig))
        assert (wrong.id, "failed", 0, 0) in reported(rig)
        await until(lambda: (second.id, "cancelled", 0, 1) in reported(rig))
        assert [one for one in reported(rig) if one[0] == second.id] == [
            (second.id, "in_progress", 0, 0), (second.id, "cancelled", 0, 1)
        ]  # fmt: skip


async def test_those_under_way_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "MOST_SHOWN", 3)
    async with router_rig(plays(asyncio.Event())) as rig, sdk(rig) as client:
        old = await begun(client, jsonl(line("a")))
        await until(lambda: (old.id, "in_progress", 0, 0) in reported(rig))
        made = [await ended(client, await begun(client, b"no json\n")) for _ in range(3)]
        _, shown = await rig.admin("GET", "/admin/batches")
        assert [one["id"] for one in shown["data"]] == [old.id, made[2].id, made[1].id]
        assert [one["model"] for one in shown["data"]] == [MODEL, None, None]

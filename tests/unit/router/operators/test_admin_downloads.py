"""Downloads over HTTP: begin, list, look at, follow, cancel; and what is on the disk."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from lmx.protocol.errors import ErrorCode
from lmx.protocol.messages.control import Denied
from lmx.protocol.messages.inventory import (
    Available,
    AvailableModel,
    CancelDownload,
    Downloads,
    DownloadView,
    GetAvailable,
    GetDownloads,
    StartDownload,
)
from lmx.protocol.states import DownloadStatus, QuantizedBits
from tests.support.fakes.fake_peers import until
from tests.support.rigs.router_rig import Rig, data_lines, router_rig

PATH = "/admin/models/download"
REPO = "mlx-community/Llama-3.2-8B-Instruct-4bit"
KEY = {"X-Admin-Key": "test-admin-key"}
RUNS = DownloadView(
    download_id="dl_abc123xyz",
    repo_id=REPO,
    revision=None,
    filename=None,
    status=DownloadStatus.DOWNLOADING,
    total_bytes=8_589_934_592,
    downloaded_bytes=2_147_483_648,
    speed_bytes_per_s=5_650_000.0,
    started_s=1_708_012_345.0,
)
COMPLETED = replace(
    RUNS,
    status=DownloadStatus.COMPLETED,
    downloaded_bytes=8_589_934_592,
    speed_bytes_per_s=0.0,
    ended_s=1_708_012_445.0,
    model_id="llama-3.2-8b",
)
FAILED = replace(
    RUNS,
    status=DownloadStatus.FAILED,
    ended_s=1_708_012_400.0,
    error_code=ErrorCode.DOWNLOAD_FAILED,
    error="the connection was lost",
)


def tells(rig: Rig, *views: DownloadView) -> None:
    """Each question gets the next view, and the last one again and again."""
    left = list(views)

    def answer(question: GetDownloads) -> Downloads | Denied:
        if question.download_id not in (None, RUNS.download_id):
            return Denied(ErrorCode.NOT_FOUND, "there is no such download")
        return Downloads((left.pop(0) if len(left) > 1 else left[0],))

    rig.supervisor.replies[GetDownloads] = answer


async def test_a_download_that_is_quantized_says_how_far_it_is(rig: Rig) -> None:
    rig.supervisor.replies[StartDownload] = replace(RUNS, bits=QuantizedBits.FOUR, note="half")
    for given, bits in ((4, "4"), (8, "8"), ("mixed", "mixed")):
        status, body = await rig.admin("POST", PATH, repo_id=REPO, bits=given)
        assert (status, body["bits"], body["note"]) == (200, "4", "half")
        assert rig.asked(StartDownload)[-1] == StartDownload(REPO, bits=QuantizedBits(bits))
    status, body = await rig.admin("POST", PATH, repo_id=REPO, bits=5)
    assert (status, body["error"]["param"]) == (400, "bits")


async def test_a_download_begins(rig: Rig) -> None:
    rig.supervisor.replies[StartDownload] = replace(
        RUNS, status=DownloadStatus.STARTING, downloaded_bytes=0
    )
    status, body = await rig.admin("POST", PATH, repo_id=REPO)
    assert rig.asked(StartDownload) == [StartDownload(REPO, None, None)]
    assert status == 200
    assert body == {
        "download_id": "dl_abc123xyz",
        "repo_id": REPO,
        "revision": "main",
        "filename": None,
        "estimated_size_bytes": 8589934592,
        "status": "downloading",
        "progress_percent": 0.0,
        "downloaded_bytes": 0,
        "speed_mbps": 45.2,
        "started_at": 1708012345.0,
        "ended_at": None,
        "model_id": None,
        "error": None,
    }
    wanted = {"repo_id": REPO, "filename": "a/b.gguf", "revision": "v2"}
    await rig.admin("POST", PATH, **wanted)
    assert rig.asked(StartDownload)[1] == StartDownload(REPO, "v2", "a/b.gguf")
    for revision in ("main", None):
        await rig.admin("POST", PATH, repo_id=REPO, filename=None, revision=revision)
        assert rig.asked(StartDownload)[-1] == StartDownload(REPO, None, None)


@pytest.mark.parametrize("param", ["repo_id", "revision", "filename", None])
async def test_a_source_that_turns_out_bad_has_one_error_wherever_it_is_reported(
    rig: Rig, param: str | None
) -> None:
    view = replace(FAILED, error_code=ErrorCode.MODEL_SOURCE_INVALID, error="why", param=param)
    rig.supervisor.replies[StartDownload] = view
    rig.supervisor.replies[GetDownloads] = Downloads((view,))
    _, begun = await rig.admin("POST", PATH, repo_id=REPO)
    _, later = await rig.admin("GET", f"{PATH}/{view.download_id}")
    assert later["error"] == begun["error"]
    assert begun["error"]["type"] == "not_found_error"
    assert begun["error"]["param"] == (param or "repo_id")


async def test_who_begins_one_learns_when_the_hub_takes_requests_again(rig: Rig) -> None:
    rig.supervisor.replies[StartDownload] = replace(FAILED, retry_after_s=900.0)
    async with rig.http.post(
        f"{rig.url}{PATH}", json={"repo_id": REPO}, headers={"X-Admin-Key": rig.spec.admin_key}
    ) as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "900")


@pytest.mark.parametrize(
    ("code", "status", "shown", "param"),
    [
        (ErrorCode.MODEL_SOURCE_INVALID, 404, "not_found_error", "repo_id"),
        (ErrorCode.INSUFFICIENT_DISK, 507, "insufficient_disk", None),
        (ErrorCode.DOWNLOAD_FAILED, 503, "download_failed", None),
    ],
)
async def test_one_that_fails_at_once_is_an_error(
    rig: Rig, code: ErrorCode, status: int, shown: str, param: str | None
) -> None:
    rig.supervisor.replies[StartDownload] = replace(FAILED, error_code=code, error="why")
    got, body = await rig.admin("POST", PATH, repo_id=REPO)
    error = body["error"]
    assert (got, error["code"], error["param"], error["message"]) == (status, shown, param, "why")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"filename": "x"}, "repo_id"),
        ({"repo_id": "a/b", "revision": ""}, "revision"),
    ],
)
async def test_a_wrong_field_is_named(rig: Rig, body: dict[str, Any], param: str) -> None:
    status, answer = await rig.admin("POST", PATH, **body)
    assert not rig.supervisor.count(StartDownload)
    assert (status, answer["error"]["param"]) == (400, param)


async def test_downloads_are_listed_shown_and_cancelled(rig: Rig) -> None:
    rig.supervisor.replies[GetDownloads] = Downloads((RUNS, FAILED))
    status, body = await rig.admin("GET", PATH)
    assert (status, body["count"]) == (200, 2)
    assert [each["status"] for each in body["downloads"]] == ["downloading", "failed"]
    assert body["downloads"][1]["error"] == {
        "message": "the connection was lost",
        "type": "server_error",
        "param": None,
        "code": "download_failed",
    }
    tells(rig, COMPLETED)
    status, body = await rig.admin("GET", f"{PATH}/dl_abc123xyz")
    assert (status, body["model_id"], body["progress_percent"]) == (200, "llama-3.2-8b", 100)
    assert rig.asked(GetDownloads)[-1] == GetDownloads("dl_abc123xyz")
    for method, path in [("GET", f"{PATH}/nope"), ("GET", f"{PATH}/nope/progress")]:
        status, body = await rig.admin(method, path)
        assert (status, body["error"]["code"]) == (404, "not_found_error")
    rig.supervisor.replies[CancelDownload] = replace(RUNS, status=DownloadStatus.CANCELLED)
    status, body = await rig.admin("DELETE", f"{PATH}/dl_abc123xyz")
    assert (status, body["status"]) == (200, "cancelled")
    assert rig.asked(CancelDownload) == [CancelDownload("dl_abc123xyz")]


# Progress.


async def follow(rig: Rig) -> list[dict[str, Any]]:
    url = f"{rig.url}{PATH}/dl_abc123xyz/progress"
    async with rig.http.get(url, headers=KEY) as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        return [json.loads(line) for line in data_lines(await response.read())]


async def test_progress_is_followed_to_the_end_by_several() -> None:
    half = replace(RUNS, downloaded_bytes=4_294_967_296, speed_bytes_per_s=5_262_500.0)
    first = {
        "download_id": "dl_abc123xyz",
        "status": "downloading",
        "progress_percent": 25.0,
        "downloaded_bytes": 2147483648,
        "speed_mbps": 45.2,
    }
    last = {
        "download_id": "dl_abc123xyz",
        "status": "completed",
        "progress_percent": 100,
        "model_id": "llama-3.2-8b",
    }
    async with router_rig() as rig:
        tells(rig, RUNS, RUNS, half, COMPLETED)
        events = await follow(rig)
        tells(rig, RUNS)
        followers = [asyncio.create_task(follow(rig)) for _ in range(3)]
        await until(lambda: rig.supervisor.count(GetDownloads) >= 7)
        tells(rig, COMPLETED)
        assert [await one for one in followers] == [[first, last]] * 3
    second = {**first, "progress_percent": 50.0, "downloaded_bytes": 4294967296, "speed_mbps": 42.1}
    assert events == [first, second, last]
    assert isinstance(events[2]["progress_percent"], int)


@pytest.mark.parametrize(
    ("view", "status"),
    [
        (FAILED, "failed"),
        (replace(FAILED, status=DownloadStatus.INTERRUPTED), "interrupted"),
    ],
)
async def test_a_bad_end_has_its_error(rig: Rig, view: DownloadView, status: str) -> None:
    tells(rig, view)
    events = await follow(rig)
    assert events == [
        {
            "download_id": "dl_abc123xyz",
            "status": status,
            "progress_percent": 25.0,
            "downloaded_bytes": 2147483648,
            "error": {
                "message": "the connection was lost",
                "type": "server_error",
                "param": None,
                "code": "download_failed",
            },
        }
    ]


async def test_while_nothing_comes_there_are_comments_and_the_size_may_be_unknown() -> None:
    async with router_rig(ping_interval_s=0.2) as rig:
        tells(rig, replace(RUNS, total_bytes=None, status=DownloadStatus.STARTING))
        url = f"{rig.url}{PATH}/dl_abc123xyz/progress"
        async with rig.http.get(url, headers=KEY) as response:
            event = json.loads((await response.content.readline()).removeprefix(b"data: "))
            assert (event["status"], event["progress_percent"]) == ("downloading", 0.0)
            await response.content.readline()
            assert (await response.content.readline()).startswith(b":")


async def test_progress_outlives_a_supervisor_that_is_replaced(rig: Rig) -> None:
    tells(rig, RUNS)
    following = asyncio.create_task(follow(rig))
    await until(lambda: rig.supervisor.count(GetDownloads))
    rig.supervisor.replies[GetDownloads] = lambda _: None
    before = rig.supervisor.count(GetDownloads)
    await until(lambda: rig.supervisor.count(GetDownloads) > before)
    # Its successor has not heard the question that is in flight: it is asked again.
    tells(rig, COMPLETED)
    rig.supervisor.epoch = "another"
    events = await following
    assert [event["status"] for event in events] == ["downloading", "completed"]


async def test_progress_ends_with_an_error_when_the_supervisor_is_gone(rig: Rig) -> None:
    tells(rig, RUNS)
    following = asyncio.create_task(follow(rig))
    await until(lambda: rig.supervisor.count(GetDownloads))
    await rig.supervisor.stop()
    events = await following
    assert events[-1]["error"]["code"] == "supervisor_unavailable"


async def test_a_router_that_ends_says_so(rig: Rig) -> None:
    tells(rig, RUNS)
    following = asyncio.create_task(follow(rig))
    await until(lambda: rig.supervisor.count(GetDownloads))
    rig.router.traffic.close()
    events = await following
    assert events[-1]["error"]["code"] == "shutting_down"


async def test_a_follower_that_leaves_is_forgotten(rig: Rig) -> None:
    tells(rig, RUNS)
    url = f"{rig.url}{PATH}/dl_abc123xyz/progress"
    tasks = len(asyncio.all_tasks())
    async with aiohttp.ClientSession() as session, session.get(url, headers=KEY) as response:
        await response.content.readline()
        assert len(asyncio.all_tasks()) > tasks
    await until(lambda: len(asyncio.all_tasks()) <= tasks)


# The disk.


async def test_what_is_on_disk_is_an_array() -> None:
    models = (AvailableModel(REPO, "/cache/models--x", 8_589_934_592, 1_771_151_400.7),)
    async with router_rig() as rig:
        rig.supervisor.replies[GetAvailable] = Available(models)
        status, body = await rig.admin("GET", "/admin/models/available")
    assert status == 200
    assert body == [
        {
            "repo_id": REPO,
            "local_path": "/cache/models--x",
            "size_bytes": 8589934592,
            "downloaded_at": "2026-02-15T10:30:00",
            "model_id": None,
        }
    ]

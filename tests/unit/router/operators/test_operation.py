"""lmx's own routes for operators: workers and their kill, logs and events as streams."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.host.log_files import process_log, rotated, slug, worker_log
from lmx.protocol.messages.control import (
    Denied,
    Done,
    EarlierEvents,
    Event,
    EventList,
    GetEvents,
    KillModel,
)
from lmx.protocol.messages.snapshot import Snapshot
from lmx.protocol.messages.status import GetStatus, Status
from lmx.router.operators.events import EventLine
from lmx.router.operators.logs import CHUNK_BYTES, LogLine, Place, last_lines, log_path, more_lines
from lmx.router.operators.workers import WorkersAnswer
from lmx.router.supervisor import event_feed
from lmx.router.supervisor.directory import Directory
from tests.support.clients.answer_check import check_shape
from tests.support.fakes.admin_lines import last_exit, reported_status, status_line
from tests.support.fakes.fake_peers import cold, ready, until
from tests.support.fakes.fake_supervisor import model_line, status
from tests.support.rigs.router_rig import INSTANCE, MODEL, Rig, router_rig

KEY = {"X-Admin-Key": "test-admin-key"}


async def answer(rig: Rig, method: str, path: str) -> tuple[int, Any]:
    return await rig.json(method, path, headers=KEY)


class Reader:
    """The events of one stream, read as they come."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self.ids: list[str] = []
        self.data: list[Any] = []
        self.comments = 0
        self.ended = False
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for line in self.response.content:
            text = line.decode().rstrip("\n")
            if text.startswith("id: "):
                self.ids.append(text[4:])
            elif text.startswith("data: "):
                self.data.append(json.loads(text[6:]))
            elif text.startswith(":"):
                self.comments += 1
            else:
                assert text == ""
        self.ended = True

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@asynccontextmanager
async def reading(rig: Rig, path: str, **headers: str) -> AsyncIterator[Reader]:
    async with rig.http.get(f"{rig.url}{path}", headers=KEY | headers) as response:
        assert response.status == 200, await response.text()
        assert response.content_type == "text/event-stream"
        reader = Reader(response)
        try:
            yield reader
        finally:
            await reader.close()


# Workers.


async def test_workers_are_those_of_the_status() -> None:
    exited = {"cause": "crash", "detail": "signal 11", "at_s": 1700000000.5}
    lines = (
        model_line("a", requests_active=2, stalled_s=1.5, exits={"crash": 1}, last_exit=exited),
        model_line("b", "cold", stalled_s=0.0),
    )
    async with router_rig() as rig:
        rig.supervisor.replies[GetStatus] = Status(status(*lines))
        code, body = await answer(rig, "GET", "/admin/workers")
    assert code == 200
    check_shape(WorkersAnswer, body)
    first, second = body["workers"]
    assert (first["model"], first["pid"], first["instance"]) == ("a", 4711, "a-1")
    assert (first["requests_running"], first["stalled_s"]) == (2, 1.5)
    assert first["last_exit"] == {**exited, "pid": None, "memory": None}
    assert [second[name] for name in ("model", "state", "pid", "last_exit")] == [
        "b", "cold", None, None,
    ]  # fmt: skip


@pytest.mark.parametrize("name", [MODEL, "al/ias", INSTANCE, "4711", "owner/tiny"])
async def test_a_kill_takes_any_name_of_a_worker(rig: Rig, name: str) -> None:
    rig.supervisor.replies[KillModel] = Done("killed it; it is being started again", 4711)
    reported = reported_status(status_line(MODEL, last_exit=last_exit()))
    rig.supervisor.replies[GetStatus] = Status(reported)
    tiny = ready(MODEL, INSTANCE, aliases=("al/ias",), pid=4711, source="owner/tiny")
    await rig.publish(cold("other"), tiny)
    code, body = await answer(rig, "POST", f"/admin/workers/{name}/kill")
    asked = [seen for seen in rig.supervisor.seen if isinstance(seen, KillModel)]
    assert (code, asked) == (200, [KillModel(MODEL)])
    assert body == {
        "success": True,
        "model": MODEL,
        "pid": 4711,
        "message": "killed it; it is being started again; 2.0 GiB came back in 0.4 s",
        "memory": last_exit()["memory"],
    }


async def test_a_model_s_id_comes_before_another_one_s_pid(rig: Rig) -> None:
    rig.supervisor.replies[KillModel] = Done("killed", 1)
    await rig.publish(ready(MODEL, INSTANCE, pid=4711), ready("4711", "0000000b"))
    assert (await answer(rig, "POST", "/admin/workers/4711/kill"))[1]["model"] == "4711"


async def test_a_kill_of_nothing_is_404_and_of_what_has_no_process_409(rig: Rig) -> None:
    code, body = await answer(rig, "POST", "/admin/workers/nobody/kill")
    assert (code, body["error"]["code"], body["error"]["param"]) == (404, "model_not_found", "id")
    assert not rig.supervisor.count(KillModel)
    rig.supervisor.replies[KillModel] = Denied(
        ErrorCode.MODEL_NOT_LOADED, "it has no worker", "model"
    )
    code, body = await answer(rig, "POST", f"/admin/workers/{MODEL}/kill")
    assert (code, body["error"]["code"], body["error"]["param"]) == (409, "model_not_loaded", "id")


# Logs.


def write(path: Path, *lines: str) -> None:
    with path.open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


async def test_a_log_s_last_lines_and_then_what_is_added_over_a_rotation() -> None:
    async with router_rig(ping_interval_s=0.1) as rig:
        path = worker_log(Path(rig.spec.logs_dir), MODEL)
        write(path, *(f"line {number}" for number in range(10)))
        async with reading(rig, f"/admin/logs/{MODEL}?lines=3") as reader:
            await until(lambda: len(reader.data) == 3)
            assert reader.data == [{"line": f"line {number}"} for number in (7, 8, 9)]
            check_shape(LogLine, reader.data[0])
            write(path, '{"event": "wörker"}')
            with path.open("a") as file:
                file.write("half")
            await until(lambda: len(reader.data) == 4)
            assert reader.data[3] == {"line": '{"event": "wörker"}'}
            with path.open("a") as file:
                file.write(" and half\n")
            path.replace(rotated(path, 1))
            write(path, "in the new file")
            await until(lambda: len(reader.data) == 6)
            assert [found["line"] for found in reader.data[4:]] == [
                "half and half",
                "in the new file",
            ]
            await until(lambda: reader.comments > 0)
            assert not reader.ended
            assert rig.router.traffic.under_way == 0, "it holds up no router's end"
        async with reading(rig, f"/admin/logs/{MODEL}?follow=false&lines=2") as reader:
            await until(lambda: reader.ended)
            assert [found["line"] for found in reader.data] == ["half and half", "in the new file"]


async def test_a_log_that_is_not_there_yet_is_waited_for(rig: Rig) -> None:
    path = worker_log(Path(rig.spec.logs_dir), MODEL)
    assert not path.exists()
    async with reading(rig, f"/admin/logs/{MODEL}?follow=false") as reader:
        await until(lambda: reader.ended)
        assert reader.data == []
    async with reading(rig, f"/admin/logs/{MODEL}") as reader:
        write(path, "first")
        await until(lambda: reader.data == [{"line": "first"}])


async def test_streams_end_with_the_router_and_leave_no_task(rig: Rig) -> None:
    rig.supervisor.replies[GetEvents] = EventList("e1", 0, ())
    before = len(asyncio.all_tasks())
    async with reading(rig, f"/admin/logs/{MODEL}") as log, reading(rig, "/admin/events") as events:
        assert len(asyncio.all_tasks()) > before
    await until(lambda: len(asyncio.all_tasks()) <= before)
    asked = rig.supervisor.count(GetEvents)
    await asyncio.sleep(0.8)
    assert rig.supervisor.count(GetEvents) == asked, "nobody listens"
    async with reading(rig, f"/admin/logs/{MODEL}") as log, reading(rig, "/admin/events") as events:
        rig.router.traffic.close()
        await until(lambda: log.ended and events.ended)


@pytest.mark.parametrize(
    ("path", "param", "code"),
    [
        ("/admin/logs/x?lines=-1", "lines", 400),
        ("/admin/logs/x?lines=10001", "lines", 400),
        ("/admin/logs/x?lines=many", "lines", 400),
        ("/admin/logs/x?follow=perhaps", "follow", 400),
        ("/admin/events?last=2001", "last", 400),
        ("/admin/events?model=nobody", "model", 404),
        ("/admin/logs/nobody", "model", 404),
        ("/admin/logs/../../etc/passwd", "model", 404),
        ("/admin/logs/%2e%2e%2f%2e%2e%2fetc%2fpasswd", "model", 404),
    ],
)
async def test_what_can_not_be_shown_says_why(rig: Rig, path: str, param: str, code: int) -> None:
    status_code, body = await answer(rig, "GET", path)
    assert status_code == code
    assert body["error"]["param"] in (param, None)


def directory(*names: str) -> Directory:
    return Directory.of(Snapshot("e", 1, None, tuple(cold(name) for name in names)))


def test_models_come_before_processes_of_the_same_name() -> None:
    folder = Path("/logs")
    plain, named = directory("a"), directory("router", "a")
    assert log_path(plain, folder, "router") == process_log(folder, "router")
    assert log_path(plain, folder, "supervisor") == process_log(folder, "supervisor")
    assert log_path(named, folder, "router") == worker_log(folder, "router")
    assert log_path(plain, folder, "owner/a") == worker_log(folder, "a")
    with pytest.raises(RequestError):
        log_path(plain, folder, "../router")


def test_every_model_has_a_file_of_its_own() -> None:
    names = ("a", "A", "a/b", "a_b", "x" * 200, "x" * 199)
    assert len({slug(name) for name in names}) == len(names)
    assert all("/" not in slug(name) and len(slug(name)) < 100 for name in names)


def all_after(path: Path, place: Place) -> tuple[list[str], Place]:
    """Everything that a follower gets, and where it is then."""
    found: list[str] = []
    for _ in range(20):
        lines, place = more_lines(path, place)
        found += lines
    return found, place


def test_lines_are_missed_in_no_rotation(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    assert last_lines(path, 5) == ([], Place(None, 0))
    write(path, "1", "2", "3")
    lines, place = last_lines(path, 2)
    assert lines == ["2", "3"]
    write(path, "4")
    path.replace(rotated(path, 1))
    write(path, "5")
    rotated(path, 1).replace(rotated(path, 2))
    path.replace(rotated(path, 1))
    write(path, "6, the longest")
    found, place = all_after(path, place)
    assert found == ["4", "5", "6, the longest"]
    # Fewer than are wanted: the file before has the others.
    assert last_lines(path, 2)[0] == ["5", "6, the longest"]
    assert last_lines(path, 0)[0] == []
    # Emptied, then removed and made anew.
    path.write_text("")
    write(path, "7")
    found, place = all_after(path, place)
    assert found == ["7"]
    kept = path.rename(tmp_path / "kept")
    found, place = all_after(path, place)
    assert (found, kept.exists()) == ([], True)
    write(path, "8")
    assert all_after(path, place)[0][-1] == "8"


def test_a_line_without_an_end_takes_no_more_than_a_piece(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"x" * (CHUNK_BYTES + 10))
    lines, place = more_lines(path, Place(None, 0))
    lines, place = more_lines(path, place)
    assert [len(line) for line in lines] == [CHUNK_BYTES]
    assert more_lines(path, place) == ([], place)
    with path.open("ab") as file:
        file.write(b"\n\xff\xfe\n")
    lines, place = more_lines(path, place)
    assert lines == ["x" * 10, "��"]


# Events.


def event(seq: int, name: str = "worker.ready", model: str | None = MODEL) -> Event:
    return Event(seq, 1700000000.0 + seq, name, model, f"number {seq}", {"n": seq})


def noted(rig: Rig, epoch: str, *events: Event) -> None:
    rig.supervisor.replies[GetEvents] = EventList(epoch, events[-1].seq if events else 0, events)


async def test_events_come_as_they_happen_with_ids_to_continue_from() -> None:
    async with router_rig(ping_interval_s=0.3) as rig:
        noted(rig, "aa", *(event(number) for number in range(1, 5)))
        began_s = time.monotonic()
        async with (
            reading(rig, "/admin/events?last=2") as first,
            reading(rig, "/admin/events", **{"Last-Event-ID": "aa-1"}) as resumed,
            reading(rig, "/admin/events?last=0", **{"Last-Event-ID": "no id"}) as fresh,
        ):
            await until(lambda: (len(first.data), len(resumed.data)) == (2, 3))
            assert first.ids == ["aa-3", "aa-4"]
            check_shape(EventLine, first.data[0])
            assert first.data[0] == {
                "epoch": "aa", "seq": 3, "at_s": 1700000003.0, "name": "worker.ready",
                "model": MODEL, "detail": "number 3", "data": {"n": 3},
            }  # fmt: skip
            noted(rig, "aa", event(4), event(5))
            await until(lambda: fresh.ids == ["aa-5"])
            # Another supervisor counts anew.
            noted(rig, "bb", event(1))
            await until(lambda: first.ids[2:] == ["aa-5", "bb-1"])
            await until(lambda: resumed.ids[3:] == ["aa-5", "bb-1"])
            await until(lambda: first.comments > 0)
        asked = rig.supervisor.count(GetEvents)
        passed_s = time.monotonic() - began_s
        assert asked < 5 + 2.5 * passed_s, "one asks for all of them, twice a second"
        async with reading(rig, "/admin/events?follow=false", **{"Last-Event-ID": "aa-5"}) as late:
            await until(lambda: late.ended)
            assert late.ids == ["bb-1"]


async def test_events_of_supervisors_before_come_first_and_are_gone_on_from(rig: Rig) -> None:
    lives = (EarlierEvents("aa", (event(1), event(7))), EarlierEvents("bb", (event(1),)))
    rig.supervisor.replies[GetEvents] = EventList("cc", 2, (event(1), event(2)), lives)
    wanted = {
        None: ["aa-1", "aa-7", "bb-1", "cc-1", "cc-2"],
        "aa-1": ["aa-7", "bb-1", "cc-1", "cc-2"],
        "aa-9": ["bb-1", "cc-1", "cc-2"],
        "cc-1": ["cc-2"],
        "unknown-1": ["aa-1", "aa-7", "bb-1", "cc-1", "cc-2"],
    }
    for last, ids in wanted.items():
        headers = {} if last is None else {"Last-Event-ID": last}
        async with reading(rig, "/admin/events?follow=false", **headers) as reader:
            await until(lambda: reader.ended)
            assert reader.ids == ids, last


async def test_events_of_one_model_and_of_one_kind() -> None:
    events = (
        event(1), event(2, "worker.exited"), event(3, "workers.odd"),
        event(4, "router.started", None), event(5, "worker", "other"),
    )  # fmt: skip
    wanted = {
        "": [1, 2, 3, 4, 5],
        "&name=worker": [1, 2, 5],
        "&name=worker.exited": [2],
        "&model=al/ias": [1, 2, 3],
        "&model=al/ias&name=worker.ready": [1],
    }
    async with router_rig() as rig:
        noted(rig, "aa", *events)
        await rig.publish(ready(MODEL, INSTANCE, aliases=("al/ias",)))
        for query, numbers in wanted.items():
            async with reading(rig, f"/admin/events?follow=false{query}") as reader:
                await until(lambda: reader.ended)
                assert [found["seq"] for found in reader.data] == numbers, query


async def test_without_a_supervisor_there_is_a_503_and_a_stream_continues_after_its_restart(
    rig: Rig,
) -> None:
    noted(rig, "aa", event(1))
    async with reading(rig, "/admin/events") as reader:
        await until(lambda: reader.ids == ["aa-1"])
        rig.supervisor.answers_beats = False
        await until(lambda: not rig.router.supervisor.alive)
        rig.supervisor.answers_beats = True
        noted(rig, "bb", event(1))
        await until(lambda: reader.ids == ["aa-1", "bb-1"])
    rig.supervisor.answers_beats = False
    await until(lambda: not rig.router.supervisor.alive)
    code, body = await answer(rig, "GET", "/admin/events")
    assert (code, body["error"]["code"]) == (503, "supervisor_unavailable")


async def test_a_reader_who_takes_nothing_is_dropped() -> None:
    async with router_rig(stall_timeout_s=0.2) as rig:
        write(worker_log(Path(rig.spec.logs_dir), MODEL), *(["x" * 1000] * 8000))
        before = len(asyncio.all_tasks())
        _, writer = await asyncio.open_connection("127.0.0.1", rig.spec.port, limit=1)
        writer.write(
            f"GET /admin/logs/{MODEL}?lines=10000 HTTP/1.1\r\nHost: localhost\r\n"
            "X-Admin-Key: test-admin-key\r\n\r\n".encode()
        )
        await until(lambda: len(asyncio.all_tasks()) > before)
        await until(lambda: len(asyncio.all_tasks()) <= before)
        writer.close()


async def test_a_stream_has_no_head(rig: Rig) -> None:
    for path in (f"/admin/logs/{MODEL}", "/admin/events"):
        async with rig.http.head(f"{rig.url}{path}", headers=KEY) as response:
            assert (response.status, response.headers["Allow"]) == (405, "GET")
    async with rig.http.head(f"{rig.url}/admin/metrics", headers=KEY) as response:
        assert response.status == 200


async def test_the_last_events_of_a_supervisor_that_ended_are_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def happened(*numbers: int) -> tuple[Event, ...]:
        return tuple(Event(one, 0.0, f"event.{one}", None, "", {}) for one in numbers)

    answers = {
        False: EventList("two", 1, happened(1)),
        True: EventList("one", 2, happened(1, 2)),
    }

    async def answered(_link: Any, question: GetEvents, *_: Any) -> EventList:
        found = answers[question.earlier]
        newer = tuple(event for event in found.events if event.seq > question.after_seq)
        return replace(found, events=newer)

    monkeypatch.setattr(event_feed, "ask", answered)
    supervisor: Any = None
    feed = event_feed.EventFeed(supervisor)
    async with feed.listen():
        answers[True] = EventList(
            "two", 1, happened(1),
            (EarlierEvents("zero", happened(1)), EarlierEvents("one", happened(1, 2, 3))),
        )  # fmt: skip
        await feed._ask()
        assert [(one.epoch, one.event.seq) for one in feed.after(0)] == [
            ("one", 1), ("one", 2), ("one", 3), ("two", 1)
        ]  # fmt: skip

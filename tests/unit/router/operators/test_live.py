"""GET /admin/live: what is sent to a console, and how often."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from lmx.protocol.host.log_files import worker_log
from lmx.protocol.messages.control import Event, EventList, GetEvents
from lmx.protocol.messages.status import GetStatus, Status, SystemStatus
from lmx.protocol.token_rates import TokenRates
from lmx.router.metrics.requests import Ended
from lmx.router.operators.events import EventLine
from lmx.router.operators.live import feed, status, stream
from lmx.router.operators.live.feed import LiveFeed, Topic, event_text
from lmx.router.operators.live.figures import LiveFigures, live_figures
from lmx.router.operators.live.requests import LiveRequestsShown
from lmx.router.operators.live.status import LiveStatus, StatusChanges
from lmx.router.operators.live.stream import LIVE
from lmx.router.operators.logs import LogLine
from tests.support.clients.answer_check import check_shape
from tests.support.fakes.admin_lines import GIB, cold_line, reported_status, status_line
from tests.support.fakes.fake_peers import cold, ends, plays, until
from tests.support.rigs.router_rig import MODEL, Rig, router_rig

# What has changed.


def names(message: LiveStatus | None) -> list[str]:
    return [] if message is None else [model["model"] for model in message["models"]]


def test_the_first_status_is_whole_and_one_that_says_the_same_is_not_sent() -> None:
    changes = StatusChanges()
    lines = (status_line("a", idle_s=5.0, expires_in_s=60.0), cold_line("b"))
    first = changes.take(reported_status(*lines, uptime_s=10.0), 100.0)
    assert first is not None
    assert (first["whole"], first["order"], names(first)) == (True, ["a", "b"], ["a", "b"])
    assert first["system"] is not None
    assert set(first["system"]) == {"supervisor", "router"}
    check_shape(LiveStatus, first)
    for passed_s in range(1, 50):
        # A poll is late by up to a second; time passes for what is idle.
        late_s = 0.9 * (passed_s % 2)
        a = replace(lines[0], idle_s=5.0 + passed_s, expires_in_s=60.0 - passed_s + late_s)
        status = reported_status(a, lines[1], uptime_s=10.0 + passed_s)
        assert changes.take(status, 100.0 + passed_s) is None, passed_s
    whole = changes.whole()
    assert whole is not None
    assert (whole["whole"], names(whole), whole["at_s"]) == (True, ["a", "b"], 149.0)
    assert whole["models"][0]["idle_s"] == 54.0, "a new reader gets the latest values"


CHANGES: dict[str, dict[str, Any]] = {
    "state": {"state": "draining"},
    "a request ends its idleness": {"idle_s": None, "requests_active": 1},
    "another request begins it anew": {"idle_s": 0.5},
    "its time is longer": {"expires_in_s": 3600.0},
    "it never expires now": {"expires_in_s": None},
    "it hangs": {"stalled_s": 8.0},
    "its memory grows": {"memory_bytes": 2 * GIB + 2**25},
    "tokens": {"tokens_total": 1001},
    "last exit": {"restarts": 1, "exits": {"killed": 1}},
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_has_changed_is_sent_alone(change: str) -> None:
    usual: dict[str, Any] = {"idle_s": 5.0, "expires_in_s": 60.0}
    after_1_s: dict[str, Any] = {"idle_s": 6.0, "expires_in_s": 59.0}
    changes = StatusChanges()
    changes.take(reported_status(status_line("a", **usual), status_line("b", **usual)), 100.0)
    a = status_line("a", **{**after_1_s, **CHANGES[change]})
    message = changes.take(reported_status(a, status_line("b", **after_1_s)), 101.0)
    assert message is not None
    assert (names(message), message["whole"], message["order"]) == (["a"], False, None)


def test_a_stall_is_sent_when_it_becomes_one_and_when_it_is_over() -> None:
    """In between it grows by itself."""
    changes = StatusChanges()

    def sent(stalled_s: float, at_s: float) -> bool:
        line = status_line("a", stalled_s=stalled_s)
        return names(changes.take(reported_status(line), at_s)) == ["a"]

    assert sent(0.5, 100.0)
    times = [at_s for at_s in range(101, 107) if sent(at_s - 99.5, float(at_s))]
    assert times == [105]
    assert sent(4.9, 106.5)


def test_small_steps_of_memory_count_from_what_was_sent() -> None:
    changes = StatusChanges()

    def status(extra_bytes: int) -> SystemStatus:
        return reported_status(
            status_line("a", memory_bytes=GIB + extra_bytes),
            machine_used_bytes=GIB + 8 * extra_bytes,
        )

    changes.take(status(0), 0.0)
    sent = [step for step in range(1, 33) if changes.take(status(step * 2**20), float(step))]
    assert sent == [8, 16, 24, 32], "the machine's 64 MiB; the model's 16 come with them"


def test_a_model_that_comes_or_goes_changes_the_order() -> None:
    changes = StatusChanges()
    changes.take(reported_status(cold_line("a"), cold_line("b")), 0.0)
    gone = changes.take(reported_status(cold_line("b")), 1.0)
    assert gone is not None
    assert (names(gone), gone["order"]) == ([], ["b"])
    back = changes.take(reported_status(cold_line("b"), cold_line("a")), 2.0)
    assert back is not None
    assert (names(back), back["order"]) == (["a"], ["b", "a"])


def test_a_silent_supervisor_is_said_once_and_its_return_too() -> None:
    changes = StatusChanges()
    assert changes.whole() is None
    first = changes.failed("it does not answer", 1.0)
    assert first is not None
    assert (first["problem"], first["system"]) == ("it does not answer", None)
    assert changes.failed("it does not answer", 2.0) is None
    assert changes.whole() == first, "a second reader is told too"
    back = changes.take(reported_status(cold_line("a")), 3.0)
    assert back is not None
    assert (back["problem"], back["whole"]) == (None, True)
    changes.failed("again", 4.0)
    whole = changes.whole()
    assert whole is not None
    assert whole["problem"] == "again", "a reader who comes then gets the last values"
    back = changes.take(reported_status(cold_line("a")), 5.0)
    assert back is not None
    assert (back["problem"], names(back)) == (None, [])


# Figures.


def test_figures_are_made_of_what_is_counted_already() -> None:
    ended = [
        Ended(100.0, 99.0, 1000, 1000),  # too long ago
        Ended(400.0, 0.2, 100, 75),
        Ended(401.0, 0.4, 100, 0),
        Ended(402.0, 9.0, 0, 0),
        Ended(403.0, None, 0, 0),  # no answer
    ]
    lines = [
        status_line("a", instance="1", requests_active=3, requests_queued=1),
        status_line("new", instance="2"),
        cold_line("wanted"),
        cold_line("cold"),
    ]
    rates = TokenRates()
    for now_s in (0.0, 100.0):
        rates.take(
            [status_line("a", instance="1", tokens_total=round(12.34 * now_s)), *lines[1:]], now_s
        )
    latest = {"a": ended}
    waiting = {"a": 1, "wanted": 2}
    found = live_figures(
        lines, rates, lambda name: latest.get(name, []), lambda name: waiting.get(name, 0),
        500.0,
    )  # fmt: skip
    check_shape(LiveFigures, found)
    empty = {"tokens_per_s": 0.0, "ttft_s": None, "prefix_hit_share": None, "running": 0}
    assert found == {
        "at_s": 500.0, "tokens_per_s": 12.3, "running": 3, "waiting": 4,
        "models": {
            "a": {"tokens_per_s": 12.3, "ttft_s": 0.4, "prefix_hit_share": 0.375, "running": 3,
                "waiting": 2},
            "new": {**empty, "waiting": 0},
            "wanted": {**empty, "waiting": 2},
        },
    }  # fmt: skip


# Who gets it.


class Numbers(Topic):
    """A topic with the number of its looks."""

    def __init__(self) -> None:
        self.looks = 0
        self.encoded = 0
        self.closed = False

    async def look(self) -> bytes:
        self.looks += 1
        return b"%d " % self.looks

    def whole(self) -> bytes:
        self.encoded += 1
        return b"all(%d) " % self.looks

    async def close(self) -> None:
        self.closed = True


async def test_one_task_works_for_all_while_somebody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "_INTERVAL_S", 0.005)
    made: list[Numbers] = []

    def make() -> list[Numbers]:
        made.append(Numbers())
        return made[-1:]

    live = LiveFeed(make)
    assert not made, "nobody reads"
    with live.reading() as first:
        assert await first.next_events(90) == b"all(1) "
        assert await first.next_events(90) == b"2 "
        with live.reading() as slow, live.reading() as second:
            encoded = made[0].encoded
            for reader in (slow, second):
                assert (await reader.next_events(0)).startswith(b"all(")
            assert made[0].encoded == encoded + 1, "it is made once for both"
            seen = await second.next_events(90)
            await until(lambda: made[0].looks > 100)
            for reader in (second, slow):
                assert (await reader.next_events(0)).startswith(b"all("), "it is too far behind"
                assert not (await reader.next_events(90)).startswith(b"all(")
            assert seen != b""
        assert len(made) == 1
    await until(lambda: made[0].closed)
    looks = made[0].looks
    with live.reading() as again:
        assert await again.next_events(90) == b"all(1) "
        assert await again.next_events(90) == b"2 "
    assert (made[0].looks, len(made)) == (looks, 2)
    await until(lambda: made[1].closed)


async def test_the_first_values_are_waited_for() -> None:
    """As by who does not follow, and would get nothing else."""
    answers = asyncio.Event()

    class Slow(Numbers):
        async def look(self) -> bytes:
            await answers.wait()
            return await super().look()

    slow = Slow()
    live = LiveFeed(lambda: [slow])
    for _ in range(2):  # Those of the readers before are not the first ones of the next.
        with live.reading() as late:
            before = await late.next_events(0)
            first = asyncio.create_task(reads(live))
            await asyncio.sleep(0)
            assert not first.done()
            answers.set()
            assert await first not in (before, b"")
        answers.clear()
        await until(lambda: slow.closed)


async def reads(live: LiveFeed) -> bytes:
    with live.reading() as reader:
        return await reader.next_events(90)


async def test_a_topic_that_fails_holds_up_no_other_and_is_logged_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feed, "_INTERVAL_S", 0.005)

    class Fails(Numbers):
        async def look(self) -> bytes:
            await super().look()
            if self.looks > 20:
                return b"well "
            raise ValueError("a figure that can't be")

    fails, numbers = Fails(), Numbers()
    live = LiveFeed(lambda: [fails, numbers])
    with capture_logs() as logged, live.reading() as reader:
        seen = b""
        async with asyncio.timeout(90):
            while b"well" not in seen or numbers.looks < 30:
                seen += await reader.next_events(90)
    assert [line["event"] for line in logged] == ["live.topic_failed"]
    await until(lambda: fails.closed and numbers.closed)


async def test_what_is_kept_for_slow_readers_is_limited_by_its_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (("_INTERVAL_S", 0.005), ("_KEPT", 10**6), ("_KEPT_BYTES", 20)):
        monkeypatch.setattr(feed, name, value)
    numbers = Numbers()
    live = LiveFeed(lambda: [numbers])
    with live.reading() as slow:
        assert (await slow.next_events(0)).startswith(b"all(")
        await until(lambda: numbers.looks > 30)
        assert (await slow.next_events(0)).startswith(b"all("), "it is too far behind"
    await until(lambda: numbers.closed)


# The route.


class Live:
    """The stream's events as they come."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []
        self.comments = 0

    def of(self, name: str) -> list[Any]:
        return [value for kind, value in self.events if kind == name]

    async def has(self, name: str, count: int = 1) -> list[Any]:
        """Wait until so many events of a name have come, and return them."""
        await until(lambda: len(self.of(name)) >= count)
        return self.of(name)

    async def read(self, lines: aiohttp.StreamReader) -> None:
        name = ""
        async for line in lines:
            kind, _, value = line.decode().rstrip("\n").partition(": ")
            if kind == "event":
                name = value
            elif kind == "data":
                self.events.append((name, json.loads(value)))
            elif line.startswith(b":"):
                self.comments += 1


@asynccontextmanager
async def watching(rig: Rig, query: str = "") -> AsyncIterator[Live]:
    headers = {"X-Admin-Key": rig.spec.admin_key}
    async with rig.http.get(f"{rig.url}/admin/live{query}", headers=headers) as response:
        assert response.status == 200, await response.text()
        assert response.content_type == "text/event-stream"
        live = Live()
        task = asyncio.create_task(live.read(response.content))
        try:
            yield live
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def happened(number: int) -> Event:
    return Event(number, 1700000000.0, "worker.ready", MODEL, "", {})


async def test_all_readers_share_the_questions_and_get_what_is_new() -> None:
    async with router_rig(ping_interval_s=0.3) as rig:
        rig.supervisor.replies |= {
            GetStatus: Status(reported_status(status_line(MODEL), cold_line("b"))),
            GetEvents: EventList("aa", 1, (happened(1),)),
        }
        log = worker_log(Path(rig.spec.logs_dir), MODEL)
        log.write_text("first\n")
        async with watching(rig) as one, watching(rig, f"?logs={MODEL}") as two:
            for each in (one, two):
                check_shape(LiveStatus, (await each.has("status"))[0])
                check_shape(EventLine, (await each.has("event"))[0])
                assert len(each.of("status")[0]["models"]) == 2
            with log.open("a") as file:
                file.write('{"event": "<b>"}\n')
            check_shape(LogLine, (await two.has("log", 2))[0])
            assert [line["line"] for line in two.of("log")] == ["first", '{"event": "<b>"}']
            rig.supervisor.replies |= {
                GetStatus: Status(reported_status(status_line(MODEL, "draining"), cold_line("b"))),
                GetEvents: EventList("aa", 2, (happened(1), happened(2))),
            }
            for each in (one, two):
                await each.has("event", 2)
                assert names((await each.has("status", 2))[1]) == [MODEL]
            await until(lambda: one.comments > 0)
            assert not one.of("log")
            figures = one.of("figures")
            assert len(figures) == 1, "nothing has changed"
            check_shape(LiveFigures, figures[0])
            async with rig.chat() as response:
                assert response.status == 200
            (_, after) = await one.has("figures", 2)
            assert after["models"][MODEL]["ttft_s"] > 0
            assert await two.has("figures", 2) == one.of("figures")
            asked = len(rig.asked(GetStatus))
            async with watching(rig) as late:
                await late.has("event")
                assert [each["seq"] for each in late.of("event")] == [1, 2]
                assert late.of("status")[0]["whole"]
                assert rig.router._runner.app[LIVE]._readers == 3
            assert len(rig.asked(GetStatus)) < asked + 90
        live = rig.router._runner.app[LIVE]
        await until(lambda: live._task is None)


async def test_a_request_is_sent_when_it_changes_and_when_it_ends() -> None:
    goes_on = asyncio.Event()
    async with router_rig(plays("a", goes_on, ends("b"))) as rig, watching(rig) as live:
        first = (await live.has("requests"))[0]
        check_shape(LiveRequestsShown, first)
        assert first | {"at_s": 0} == {"at_s": 0, "whole": True, "live": [], "ended": []}
        request = asyncio.create_task(rig.chat_json())
        await until(lambda: [each for each in live.of("requests")[-1]["live"] if each["tokens"]])
        assert not live.of("requests")[-1]["whole"]
        goes_on.set()
        assert (await request)[0] == 200
        await until(lambda: live.of("requests")[-1]["ended"])
        last = live.of("requests")[-1]
        check_shape(LiveRequestsShown, last)
        assert (last["live"], [each["http_status"] for each in last["ended"]]) == ([], [200])
        async with watching(rig) as late:
            assert (await late.has("requests"))[0]["ended"] == last["ended"]


async def test_of_many_models_the_status_is_asked_for_less_often_unless_something_happens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(status, "_MODELS_A_SECOND", 0.0001)
    monkeypatch.setattr(feed, "_INTERVAL_S", 0.01)
    async with router_rig() as rig:
        rig.supervisor.replies |= {
            GetStatus: Status(reported_status(status_line(MODEL))),
            GetEvents: EventList("aa", 1, (happened(1),)),
        }
        async with watching(rig) as live:
            await live.has("status")
            await live.has("figures")
            asked = len(rig.asked(GetStatus))
            async with rig.chat() as response:
                assert response.status == 200
            await live.has("figures", 2)  # It has looked since.
            assert len(rig.asked(GetStatus)) == asked
            rig.supervisor.replies[GetStatus] = Status(
                reported_status(status_line(MODEL, "draining"))
            )
            await rig.publish(cold(MODEL))
            assert names((await live.has("status", 2))[1]) == [MODEL]


async def test_who_does_not_follow_gets_the_first_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_FIRST_S", 90.0)
    async with router_rig() as rig:
        rig.supervisor.replies |= {
            GetStatus: Status(reported_status(status_line(MODEL))),
            GetEvents: EventList("aa", 1, (happened(1),)),
        }
        headers = {"X-Admin-Key": rig.spec.admin_key}
        url = f"{rig.url}/admin/live?follow=false"
        async with rig.http.get(url, headers=headers) as response:
            text = await response.text()
        for topic in ("status", "figures", "requests"):
            assert f"event: {topic}\n" in text


async def test_it_needs_the_admin_key_and_a_log_that_there_is(rig: Rig) -> None:
    async with rig.http.get(f"{rig.url}/admin/live") as response:
        assert response.status == 401
    code, body = await rig.admin("GET", "/admin/live?logs=nobody")
    assert (code, body["error"]["code"]) == (404, "model_not_found")


async def test_a_silent_supervisor_is_said_and_the_stream_stays(rig: Rig) -> None:
    rig.supervisor.replies |= {
        GetStatus: Status(reported_status(status_line(MODEL))),
        GetEvents: EventList("aa", 1, (happened(1),)),
    }
    rig.supervisor.answers_beats = False
    await until(lambda: not rig.router.supervisor.alive)
    async with watching(rig) as live:
        assert (await live.has("status"))[0]["problem"]
        rig.supervisor.answers_beats = True
        await live.has("event")
        assert live.of("status")[-1]["problem"] is None
        assert names(live.of("status")[-1]) == [MODEL]


def test_an_event_is_one_line_of_data_whatever_a_stranger_wrote() -> None:
    text = event_text("log", {"line": "a\n\ndata: x\r"})
    assert text.count(b"\n") == 3
    assert text.startswith(b"event: log\ndata: {")

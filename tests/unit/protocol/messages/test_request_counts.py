"""What routers have counted: added up, kept by the supervisor, and taken over."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.protocol.messages.counts import CountsKept, KeyUsage, ReportCounts, Tally, added, greatest
from lmx.protocol.messages.keys import RateLimits
from lmx.router.http.endpoint import Access, Endpoint
from lmx.router.http.outcome import Outcome
from lmx.router.http.rate_limits import RateLimiter
from lmx.router.metrics import shared_counts
from lmx.router.metrics.requests import RequestMetrics, reading_of
from lmx.router.metrics.shared_counts import SharedCounts
from lmx.supervisor.router.counts import RouterCounts
from tests.support.fakes.fake_peers import until
from tests.support.rigs.router_rig import MODEL, router_rig

TALLIES = st.lists(
    st.builds(
        lambda name, values, used: Tally(name, tuple(values), tuple(values.values()), used),
        st.sampled_from(["", "a", "b"]),
        st.dictionaries(st.sampled_from("xyz"), st.integers(0, 1000).map(float)),
        st.none() | st.floats(0, 100),
    ),
    max_size=4,
)


def plain(tallies: Any) -> dict[tuple[str, str], float]:
    return {(tally.name, name): n for tally in tallies for name, n in tally.by_name().items()}


@given(TALLIES, TALLIES)
def test_sums_and_greatest(one: list[Tally], other: list[Tally]) -> None:
    total, most = plain(added(one, other)), plain(greatest(one, other))
    for key, value in plain(added(one)).items():
        assert total[key] == value + plain(added(other)).get(key, 0.0)
    for key in total:
        assert most[key] == max(plain([tally]).get(key, 0.0) for tally in (*one, *other))
    assert greatest(added(one), greatest(added(one), other)) == greatest(added(one), other)


def test_all_that_is_counted_comes_back_as_it_was() -> None:
    metrics = RequestMetrics(lambda: ("big:1b", "other"))
    chat = Endpoint("POST", "/v1/models/{id:.+}", None, Access.INFERENCE, "t", "s", BaseModel)  # type: ignore[arg-type]
    for number in range(5):
        outcome = Outcome(
            model="big:1b", stream=True, prompt_tokens=9000, completion_tokens=20, decode_s=0.5,
            tokens_per_s=40.0, ttft_s=0.3, gaps_s=[0.01, 99.0], finish_reason="stop",
        )  # fmt: skip
        metrics.request_ended(outcome, chat, 200, float(number))
    refused = Outcome(model="big:1b", error="queue_full")
    metrics.request_ended(refused, chat, 429, 0.0)
    metrics.request_ended(Outcome(), None, 404, 0.0)
    metrics.rate_limited("key", "tokens")
    metrics.forwarded("studio:2", "idle")
    own = metrics.read()
    after = RequestMetrics(lambda: ("big:1b", "other"))
    after.begin_with(added(metrics.tallies()))
    assert same(after.read(), own)
    assert after.used("big:1b") == metrics.used("big:1b")
    assert after.last_tokens_per_s("big:1b") == 40.0
    for ended in ("idle", "lost"):
        after.forwarded("studio:2", ended)
    assert after.forwarded_to("studio:2") == {"idle": 2, "lost": 1}
    assert after.forwarded_to("studio") == {}
    # And adds up with what is counted from then on.
    after.request_ended(refused, chat, 429, 0.0)
    assert after.read().models["big:1b"].errors["queue_full"] == 2
    assert after.read().totals.requests == own.totals.requests + 1
    assert plain(after.tallies())["", "requests"] == 1, "each router tells its own alone"
    assert reading_of([Tally("", ("http:GET:/a:b:2xx", "of tomorrow:1"), (1.0, 2.0))]).http == {
        ("GET", "/a:b", "2xx"): 1
    }


def same(one: Any, other: Any) -> bool:
    def shown(reading: Any) -> Any:
        return (
            reading.totals,
            reading.http,
            reading.limited,
            {
                name: (tally.reasons, tally.errors, tally.prompt_tokens, tally.used_at_s, {
                    measure: (histogram.buckets(), histogram.total)
                    for measure, histogram in tally.histograms.items()
                })
                for name, tally in reading.models.items()
            },
        )  # fmt: skip

    return bool(shown(one) == shown(other))


# The supervisor's side.


class Kept:
    """A supervisor's counts, with three routers of its own."""

    def __init__(self) -> None:
        self.pids = {1, 2, 3}
        self.counts = RouterCounts(100.0, lambda: self.pids)

    def report(self, pid: int, requests: float, now_s: float = 0.0, **fields: Any) -> Any:
        tallies = (Tally("", ("requests",), (requests,)),)
        fields.setdefault("usage", ())
        report = ReportCounts(pid, tallies, **fields)
        return self.counts.take_report(report, now_s)


def test_a_routers_counts_are_the_others_until_it_ends_and_then_everybodys() -> None:
    kept = Kept()
    assert kept.report(1, 5) == CountsKept(1, 100.0, ended=(), others_run=True)
    assert plain(kept.report(2, 1).others) == {("", "requests"): 5}
    assert plain(kept.report(1, 7).others) == {("", "requests"): 1}
    kept.counts.router_ended(1)
    reply = kept.report(2, 2, seen=1)
    assert (reply.revision, plain(reply.ended), reply.others) == (2, {("", "requests"): 7}, ())
    assert kept.report(2, 3, seen=2).ended is None, "it has seen it"
    kept.counts.router_ended(2)
    assert plain(kept.report(3, 0).ended) == {("", "requests"): 10}
    with pytest.raises(LmxError, match="no router"):
        kept.report(4, 9)


def test_a_new_supervisor_gets_what_its_predecessor_knew() -> None:
    kept = Kept()
    ended = (Tally("", ("requests",), (40.0,)),)
    reply = kept.report(1, 2, seen=0, ended=ended, since_s=50.0)
    assert (reply.since_s, plain(reply.ended)) == (50.0, {("", "requests"): 40})
    # Two routers tell the same story: it counts once.
    reply = kept.report(2, 1, seen=0, ended=ended, since_s=50.0)
    assert plain(reply.ended) == {("", "requests"): 40}


def test_a_router_learns_of_others_that_have_not_reported_yet() -> None:
    kept = Kept()
    kept.pids = {1, 2}
    reply = kept.report(2, 0, fresh=True)
    assert (reply.ended, reply.others, reply.others_run) == ((), (), True)
    kept.report(1, 4)
    kept.pids = {2}
    kept.counts.router_ended(1)
    reply = kept.report(2, 0, seen=1)
    assert (plain(reply.ended), reply.others_run) == ({("", "requests"): 4}, False)


def test_the_next_router_inherits_what_was_used_once() -> None:
    kept = Kept()
    kept.report(1, 0, 10.0, usage=(KeyUsage("a", 3.0, 50.0, 2),), fresh=True)
    reply = kept.report(2, 0, 14.0, fresh=True)
    assert reply.inherited == (KeyUsage("a", 3.0, 50.0, 0, 4.0),)
    assert reply.elsewhere == (KeyUsage("a", running=2),)
    kept.report(2, 0, 15.0, usage=(KeyUsage("a", 4.0, 60.0, 0),))
    kept.counts.router_ended(1)
    kept.counts.router_ended(2)  # killed: nobody is left
    reply = kept.report(3, 0, 16.0, fresh=True)
    assert reply.inherited == (KeyUsage("a", 4.0, 60.0, 0, 1.0),), "2 had inherited from 1"
    assert reply.elsewhere == ()


def test_what_a_router_took_over_and_never_used_continues_to_the_next() -> None:
    kept = Kept()
    kept.report(1, 0, 10.0, usage=(KeyUsage("a", 3.0, 50.0, 2),), fresh=True)
    kept.report(2, 0, 14.0, usage=(KeyUsage("a", 1.0),), fresh=True)
    kept.counts.router_ended(1)
    kept.counts.router_ended(2)  # nobody asked it for anything after its first report
    assert kept.report(3, 0, 16.0, fresh=True).inherited == (
        KeyUsage("a", 3.0, 50.0, 0, 6.0),
        KeyUsage("a", 1.0, 0.0, 0, 2.0),
    )


# The router's side.


async def test_a_router_asks_again_while_another_one_may_still_report() -> None:
    """It has no news of its own, and the first reply came before the other router's report."""
    async with router_rig() as rig:
        kept: list[ReportCounts] = []
        late = (Tally("", ("requests",), (4.0,)),)

        def answer(report: ReportCounts) -> CountsKept:
            kept.append(report)
            if len(kept) == 1:
                return CountsKept(1, 1000.0, ended=(), others_run=True)
            return CountsKept(2, 1000.0, ended=late)

        rig.supervisor.replies[ReportCounts] = answer
        rig.supervisor.epoch = "another"
        await until(lambda: rig.router.metrics.read().totals.requests == 4)
        assert (kept[0].tallies, kept[1].seen) == (kept[1].tallies, 1)


async def test_a_reply_before_the_epoch_is_known_loses_nothing_that_has_ended() -> None:
    """A supervisor that has just replaced another one may get a report before it has answered a
    beat, and has heard of no router yet."""
    ended = (Tally("", ("requests",), (8.0,)),)
    replies = [CountsKept(2, 50.0, ended=ended), CountsKept(1, 99.0, ended=()), CountsKept(2, 50.0)]
    reports: list[ReportCounts] = []

    async def ask(report: ReportCounts, _deadline_s: float) -> CountsKept:
        reports.append(report)
        return replies[len(reports) - 1]

    supervisor: Any = SimpleNamespace(ask=ask, epoch="first", alive=True)
    counts = shared(supervisor)
    await counts.report()
    await counts.report()
    supervisor.epoch = "second"
    await counts.report()
    assert (reports[-1].seen, reports[-1].ended, reports[-1].since_s) == (0, ended, 50.0)


async def test_the_last_report_says_everything_to_whoever_takes_it() -> None:
    """The supervisor may be another one than the router knows: nothing is new for the former."""
    ended = (Tally("", ("requests",), (8.0,)),)
    reports: list[ReportCounts] = []

    async def ask(report: ReportCounts, _deadline_s: float) -> CountsKept:
        reports.append(report)
        return CountsKept(2, 50.0, ended=ended)

    counts = shared(SimpleNamespace(ask=ask, epoch="first", alive=True))
    await counts.report()
    await counts.report_last()
    assert len(reports) == 2
    assert (reports[-1].seen, reports[-1].ended, reports[-1].since_s) == (0, ended, 50.0)


def shared(supervisor: Any) -> SharedCounts:
    metrics = RequestMetrics(lambda: (MODEL,))
    limiter = RateLimiter(RateLimits(), (), RateLimits(), metrics.rate_limited)
    return SharedCounts(supervisor, metrics, limiter)


async def test_a_router_sleeps_until_there_is_something_to_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_counts, "_INTERVAL_S", 0.0)
    monkeypatch.setattr(shared_counts, "_REST_S", 3600.0)
    reports: list[ReportCounts] = []
    looks = 0

    async def ask(report: ReportCounts, _deadline_s: float) -> CountsKept:
        reports.append(report)
        if len(reports) in (2, 3):
            raise LmxError(ErrorCode.SUPERVISOR_UNAVAILABLE, "it is busy")
        return CountsKept(1, 50.0, ended=())

    class Supervisor:
        alive = True

        def __init__(self) -> None:
            self._epoch: str | None = None

        @property
        def epoch(self) -> str | None:
            nonlocal looks
            looks += 1
            return self._epoch

    supervisor: Any = Supervisor()
    supervisor.ask = ask
    metrics = RequestMetrics(lambda: (MODEL,))
    limits = RateLimits(requests_per_minute=9)
    limiter = RateLimiter(limits, (), RateLimits(), metrics.rate_limited)
    counts = SharedCounts(supervisor, metrics, limiter)
    task = asyncio.create_task(counts.run())

    async def reported(number: int) -> None:
        await until(lambda: len(reports) == number)
        for _ in range(9):  # It comes to rest,
            await asyncio.sleep(0)
        before = looks
        for _ in range(99):  # and looks no more, however often the loop turns.
            await asyncio.sleep(0)
        assert (len(reports), looks) == (number, before)

    try:
        await reported(1)
        metrics.rate_limited("key", "tokens")
        await reported(4)  # what was not taken is reported again
        limiter.open("a", 0.0)
        await reported(5)
        supervisor._epoch = "another"
        supervisor.on_new_epoch()
        await reported(6)
    finally:
        task.cancel()


async def test_a_router_reports_what_it_counts_and_shows_what_it_receives() -> None:
    async with router_rig() as rig:
        kept: list[ReportCounts] = []

        def answer(report: ReportCounts) -> CountsKept:
            kept.append(report)
            earlier = (Tally("", ("requests",), (100.0,)), Tally(MODEL, ("reason:stop",), (99.0,)))
            return CountsKept(2, 1000.0, ended=earlier)

        rig.supervisor.replies[ReportCounts] = answer
        assert (await rig.chat_json())[0] == 200
        await until(lambda: kept and plain(kept[-1].tallies).get(("", "requests")))
        await until(lambda: rig.router.metrics.read().totals.requests == 101)
        status, answer_json = await rig.admin("GET", "/admin/metrics/json")
        assert (status, answer_json["total_requests"]) == (200, 101)
        assert answer_json["per_model"][MODEL]["requests"] == 100
        assert answer_json["uptime_seconds"] > 10**9
        seen = len(kept)
        # A supervisor that has heard of nothing hears all of it, and nothing falls back.

        def answer_anew(report: ReportCounts) -> CountsKept:
            kept.append(report)
            return CountsKept(1, 5000.0, ended=())

        rig.supervisor.replies[ReportCounts] = answer_anew
        rig.supervisor.epoch = "another"
        await until(lambda: len(kept) > seen)
        assert (kept[-1].seen, plain(kept[-1].ended)["", "requests"]) == (0, 100)
        assert kept[-1].since_s == 1000.0
        assert (await rig.admin("GET", "/admin/metrics/json"))[1]["total_requests"] == 101

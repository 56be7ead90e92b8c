"""Fetching from servers that mean no good, or no address that may be asked."""

import asyncio
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

import pytest

from lmx.protocol.errors import ErrorCode, LmxError, RequestError, UnavailableError
from lmx.protocol.messages.specs import MediaLimits
from lmx.router.byte_budget import ByteBudget
from lmx.router.media.fetch import MOST_REDIRECTS, Fetcher
from lmx.router.media.resolver import Lookup, SystemLookup, interface_networks
from tests.support.fakes.fake_peers import until
from tests.support.faults.hostile_answers import (
    NOT_PUBLIC,
    NOT_TO_BE_ASKED,
    OTHER_SPELLINGS,
    bad_answers,
    chunked,
    silence,
    trickle,
)
from tests.support.faults.hostile_server import answer, hostile_server, redirect

LIMITS = MediaLimits(
    allowed_networks=("127.0.0.1",),
    max_item_bytes=1000,
    connect_timeout_s=30.0,
    read_timeout_s=30.0,
    total_timeout_s=60.0,
)
BODY = b"some bytes"

NOT_FETCHED = ErrorCode.MEDIA_NOT_FETCHED


@asynccontextmanager
async def fetcher(
    limits: MediaLimits = LIMITS, lookup: Lookup | None = None
) -> AsyncIterator[Fetcher]:
    made = Fetcher(limits, "lmx/test", lookup)
    try:
        yield made
    finally:
        await made.close()


async def fetch(
    url: str,
    limits: MediaLimits = LIMITS,
    lookup: Lookup | None = None,
    budget: ByteBudget | None = None,
) -> bytes:
    async with fetcher(limits, lookup) as made:
        with (budget or ByteBudget(1_000_000, "media")).share() as share:
            return await made.fetch(url, "p", share)


async def refusal(url: str, limits: MediaLimits = LIMITS, lookup: Lookup | None = None) -> LmxError:
    with pytest.raises(LmxError) as caught:
        await fetch(url, limits, lookup)
    assert caught.value.param == "p"
    assert len(caught.value.message) < 400
    return caught.value


async def test_what_a_url_leads_to_is_fetched_and_little_is_reported() -> None:
    async with hostile_server() as server:
        server.answers["/a?b=1"] = answer(BODY)
        assert await fetch(f"{server.url}/a?b=1#part") == BODY
        head = server.requests[0].decode().lower()
        names = {line.split(":")[0] for line in head.split("\r\n")[1:] if line}
        assert names == {"host", "accept", "accept-encoding", "connection", "user-agent"}
        assert "accept-encoding: identity" in head
        assert "user-agent: lmx/test" in head


async def test_redirects_are_followed_a_few_times() -> None:
    async with hostile_server() as server:
        last = MOST_REDIRECTS
        for step in range(last):
            server.answers[f"/{step}"] = redirect(
                f"/{step + 1}" if step % 2 else f"{server.url}/{step + 1}"
            )
        server.answers[f"/{last}"] = answer(BODY)
        assert await fetch(f"{server.url}/0") == BODY
        server.answers["/first"] = redirect("/0")
        error = await refusal(f"{server.url}/first")
        assert (error.code, "redirects more than" in error.message) == (NOT_FETCHED, True)
        server.answers["/loop"] = redirect("/loop")
        assert (await refusal(f"{server.url}/loop")).code is NOT_FETCHED


@pytest.mark.parametrize("url", NOT_PUBLIC)
async def test_a_redirect_to_an_address_that_is_not_public_is_not_followed(url: str) -> None:
    async with hostile_server() as server:
        server.answers["/"] = redirect(url)
        error = await refusal(f"{server.url}/")
        assert (error.code, "may be asked" in error.message) == (NOT_FETCHED, True), error
        error = await refusal(url)
        assert (error.code, "may be asked" in error.message) == (NOT_FETCHED, True), error


@pytest.mark.parametrize("url", [*OTHER_SPELLINGS, "http://localhost./"])
async def test_other_ways_to_write_an_address_are_no_way_around(url: str) -> None:
    # Nothing is allowed here, not even what the system makes of such a host.
    assert (await refusal(url, replace(LIMITS, allowed_networks=()))).code is NOT_FETCHED


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0", "0177.0.0.1", "①②⑦.①", "127.0.1"])
async def test_aiohttp_is_not_relied_on_to_refuse_such_hosts(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As before 3.14.1.
    monkeypatch.setattr("aiohttp.connector.is_canonical_ipv4_address", lambda _: True)
    async with hostile_server() as server:
        server.answers["/"] = answer(BODY)
        server.answers["/on"] = redirect(f"http://{host}:{server.port}/")
        for url in (f"http://{host}:{server.port}/", f"{server.url}/on"):
            assert (await refusal(url)).code is NOT_FETCHED
        assert set(server.paths()) <= {"/on"}


@pytest.mark.parametrize("location", [*NOT_TO_BE_ASKED, ""])
async def test_a_redirect_to_what_may_not_be_asked_is_not_followed(location: str) -> None:
    async with hostile_server() as server:
        server.answers["/"] = redirect(location)
        if location == "":
            server.answers["/"] = answer(b"", status="302 Found")
        error = await refusal(f"{server.url}/")
        assert error.code is NOT_FETCHED, error
        assert set(server.paths()) == {"/"}


async def test_no_user_name_and_no_password_are_sent() -> None:
    async with hostile_server() as server:
        server.answers["/"] = answer(BODY)
        error = await refusal(f"http://user:secret@127.0.0.1:{server.port}/")
        assert (error.code, server.requests) == (NOT_FETCHED, [])
        assert "secret" not in error.message


async def test_no_proxy_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hostile_server() as proxy, hostile_server() as server:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        server.answers["/"] = answer(BODY)
        assert await fetch(f"{server.url}/") == BODY
        assert proxy.requests == []


class ChangingLookup:
    """A name service that gives another answer each time."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[tuple[socket.AddressFamily, str]]:
        self.asked.append(host)
        found = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "no such host")
        return [(socket.AF_INET6 if ":" in text else socket.AF_INET, text) for text in found]


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has one loopback address")
async def test_a_name_that_changes_its_address_reaches_none_that_was_not_checked() -> None:
    async with hostile_server() as good, hostile_server("127.0.0.2") as bad:
        good.answers["/"] = answer(BODY)
        good.answers["/again"] = redirect(f"http://rebind.example:{bad.port}/")
        bad.answers["/"] = answer(b"secret")
        # Looked up once for each request: the answer that was checked is the one that is used.
        lookup = ChangingLookup(["127.0.0.1"], ["127.0.0.2"])
        assert await fetch(f"http://rebind.example:{good.port}/", lookup=lookup) == BODY
        assert lookup.asked == ["rebind.example"]
        # The second hop gets the second answer, which is refused.
        lookup = ChangingLookup(["127.0.0.1"], ["127.0.0.2"])
        error = await refusal(f"http://rebind.example:{good.port}/again", lookup=lookup)
        assert (error.code, bad.requests) == (NOT_FETCHED, [])
        assert lookup.asked == ["rebind.example"] * 2


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has one loopback address")
async def test_of_many_addresses_only_those_that_may_be_asked_are() -> None:
    async with hostile_server() as good, hostile_server("127.0.0.2") as bad:
        good.answers["/"] = bad.answers["/"] = answer(BODY)
        lookup = ChangingLookup(["127.0.0.2", "::1", "127.0.0.1"])
        assert await fetch(f"http://two.example:{good.port}/", lookup=lookup) == BODY
        error = await refusal(
            f"http://two.example:{good.port}/", lookup=ChangingLookup(["127.0.0.2", "fe80::1%lo"])
        )
        assert (error.code, bad.requests) == (NOT_FETCHED, [])


async def test_a_host_without_an_address() -> None:
    error = await refusal("http://nobody.example/", lookup=ChangingLookup([]))
    assert (error.code, "no address" in error.message) == (NOT_FETCHED, True)


async def test_a_look_up_that_never_ends_is_not_waited_for() -> None:
    async def never(host: str, port: int) -> Sequence[tuple[socket.AddressFamily, str]]:
        await asyncio.Event().wait()
        return []

    limits = replace(LIMITS, connect_timeout_s=0.1)
    error = await refusal("http://slow.example/", limits, never)
    assert (error.code, "connected" in error.message) == (ErrorCode.MEDIA_TIMEOUT, True)


async def test_names_that_are_looked_up_for_ever_hold_up_their_client_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    silent, asked = threading.Event(), []
    daemons: list[bool] = []

    def look(host: str, *_: Any, **__: Any) -> list[Any]:
        asked.append(host)
        # A router that ends does not wait for this thread.
        daemons.append(threading.current_thread().daemon)
        if host.startswith("silent"):
            silent.wait(120)
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 80))]

    monkeypatch.setattr(socket, "getaddrinfo", look)
    limits = replace(LIMITS, connect_timeout_s=0.05)
    async with hostile_server() as server:
        server.answers["/"] = answer(BODY)
        try:
            async with fetcher(limits) as made:
                with ByteBudget(1_000_000, "media").share() as share:
                    many = [
                        made.fetch(f"http://silent{number}.example/", "p", share, "one")
                        for number in range(60)
                    ]
                    ended = await asyncio.gather(*many, return_exceptions=True)
                    assert {getattr(one, "code", one) for one in ended} == {ErrorCode.MEDIA_TIMEOUT}
                    # Look-ups that nobody waits for any more keep their client's turns.
                    assert 4 < len(asked) < 30
                    assert all(daemons)
                    url = f"http://good.example:{server.port}/"
                    made._limits = LIMITS
                    assert await made.fetch(url, "p", share, "other") == BODY
        finally:
            silent.set()


async def test_the_system_knows_addresses_and_its_own_networks() -> None:
    lookup = SystemLookup()
    assert await lookup("127.0.0.1", 80) == [(socket.AF_INET, "127.0.0.1")]
    assert any(str(network).startswith("127.0.0.") for network in interface_networks())


BAD_ANSWERS: Final = bad_answers(LIMITS.max_item_bytes)


@pytest.mark.parametrize("name", BAD_ANSWERS)
async def test_a_bad_answer_is_refused_in_time_and_the_connection_is_closed(name: str) -> None:
    said, code = BAD_ANSWERS[name]
    # Short only where that is what the refusal is for: a busy machine may stand still for a second.
    in_time = code is not ErrorCode.MEDIA_TIMEOUT
    limits = replace(
        LIMITS, read_timeout_s=30.0 if in_time else 0.8, total_timeout_s=60.0 if in_time else 2.0
    )
    async with hostile_server() as server:
        server.answers["/"] = said
        budget = ByteBudget(1_000_000, "media")
        began_s = time.monotonic()
        async with fetcher(limits) as made:
            with pytest.raises(RequestError) as caught, budget.share() as share:
                await made.fetch(f"{server.url}/", "p", share)
            assert (caught.value.code, caught.value.param) == (code, "p"), caught.value
            await until(lambda: server.open_connections == 0)
        assert time.monotonic() - began_s < 180
        assert budget.held_bytes == 0


async def test_a_body_as_long_as_allowed_is_taken_whole() -> None:
    async with hostile_server() as server:
        server.answers["/"] = answer(bytes(1000))
        server.answers["/chunks"] = chunked(*[bytes(100)] * 10)
        server.answers["/close"] = b"HTTP/1.1 200 OK\r\n\r\n" + BODY
        assert await fetch(f"{server.url}/") == bytes(1000)
        assert await fetch(f"{server.url}/chunks") == bytes(1000)
        assert await fetch(f"{server.url}/close") == BODY


async def test_a_server_that_is_not_there() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    error = await refusal(f"http://127.0.0.1:{port}/")
    assert (error.code, "can't be reached" in error.message) == (NOT_FETCHED, True)


async def test_a_server_that_speaks_no_tls() -> None:
    limits = replace(LIMITS, connect_timeout_s=0.2)
    async with hostile_server() as server:
        error = await refusal(f"https://127.0.0.1:{server.port}/", limits)
        assert error.code is ErrorCode.MEDIA_TIMEOUT


async def test_only_a_few_are_fetched_at_a_time() -> None:
    busy = most = 0

    async def slowly(writer: asyncio.StreamWriter) -> None:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        await asyncio.sleep(0.02)
        busy -= 1
        writer.write(answer(BODY))

    async with hostile_server() as server, fetcher(replace(LIMITS, max_fetches=2)) as made:
        server.answers["/"] = slowly
        with ByteBudget(1000, "media").share() as share:
            fetches = [made.fetch(f"{server.url}/", "p", share, str(of)) for of in range(6)]
            assert await asyncio.gather(*fetches) == [BODY] * 6
    assert most == 2


async def test_one_client_takes_half_of_the_turns_and_no_more() -> None:
    async with hostile_server() as server, fetcher(replace(LIMITS, max_fetches=4)) as made:
        server.answers["/slow"] = silence
        server.answers["/"] = answer(BODY)
        with ByteBudget(1000, "media").share() as share:
            slow = [
                asyncio.create_task(made.fetch(f"{server.url}/slow", "p", share, "a"))
                for _ in range(6)
            ]
            await until(lambda: server.open_connections == 2)
            assert await made.fetch(f"{server.url}/", "p", share, "b") == BODY
            assert server.paths() == ["/slow", "/slow", "/"]
            for task in slow:
                task.cancel()
            await asyncio.gather(*slow, return_exceptions=True)
            assert await made.fetch(f"{server.url}/", "p", share, "a") == BODY
            assert made._slots._owners == {}


async def test_waiting_for_a_turn_takes_of_the_time() -> None:
    limits = replace(LIMITS, max_fetches=1, total_timeout_s=0.3)
    async with hostile_server() as server, fetcher(limits) as made:
        server.answers["/"] = silence
        with ByteBudget(1000, "media").share() as share:
            fetches = [made.fetch(f"{server.url}/", "p", share) for _ in range(5)]
            done = await asyncio.gather(*fetches, return_exceptions=True)
        codes = [error.code for error in done if isinstance(error, RequestError)]
        assert codes == [ErrorCode.MEDIA_TIMEOUT] * 5


async def test_what_all_requests_hold_is_bounded() -> None:
    async with hostile_server() as server:
        server.answers["/"] = answer(bytes(600))
        budget = ByteBudget(1000, "media")
        with budget.share() as share:
            share.grow(500)
            with pytest.raises(UnavailableError) as caught:
                await fetch(f"{server.url}/", budget=budget)
            assert caught.value.code is ErrorCode.QUEUE_FULL
            assert budget.held_bytes == 500
        assert await fetch(f"{server.url}/", budget=budget) == bytes(600)
        assert budget.held_bytes == 0


async def test_a_fetch_that_is_not_wanted_any_more_ends() -> None:
    async with hostile_server() as server, fetcher() as made:
        server.answers["/"] = trickle
        with ByteBudget(1000, "media").share() as share:
            task = asyncio.create_task(made.fetch(f"{server.url}/", "p", share))
            await until(lambda: len(server.requests) == 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await until(lambda: server.open_connections == 0)

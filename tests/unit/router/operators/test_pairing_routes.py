"""The routes of pairing, which anybody may ask: what reaches the supervisor of it."""

import base64

import pytest

from lmx.protocol.errors import ErrorCode, RequestError, UnavailableError
from lmx.protocol.messages.control import Denied
from lmx.protocol.messages.pairing import PairHello, PairWelcome
from lmx.router.operators.pairing import PairingPace
from lmx.router.operators.ranks import check_endpoint
from tests.support.rigs.router_rig import router_rig


def text(value: bytes) -> str:
    return base64.b64encode(value).decode()


async def test_few_requests_without_a_key_reach_the_supervisor() -> None:
    body = {"public": text(b"p" * 32), "nonce": text(b"n" * 16)}
    async with router_rig() as rig:
        rig.supervisor.replies[PairHello] = PairWelcome("00ff", "studio", b"q" * 32, b"m" * 16)
        statuses = []
        for _ in range(25):
            async with rig.http.post(f"{rig.url}/pair/hello", json=body) as response:
                statuses.append(response.status)
                answer = await response.json()
        assert statuses == [200] * 20 + [429] * 5
        assert answer["error"]["code"] == "rate_limit_exceeded"
        assert 1 <= int(response.headers["Retry-After"]) <= 10
        assert rig.supervisor.count(PairHello) == 20


async def test_what_the_supervisor_refuses_is_passed_on() -> None:
    body = {"public": text(b"p" * 32), "nonce": text(b"n" * 16)}
    async with router_rig() as rig:
        rig.supervisor.replies[PairHello] = Denied(ErrorCode.NOT_FOUND, "no code is shown here")
        async with rig.http.post(f"{rig.url}/pair/hello", json=body) as response:
            assert response.status == 404
        async with rig.http.post(f"{rig.url}/pair/hello", json={**body, "nonce": "é"}) as response:
            assert response.status == 400
        assert rig.supervisor.count(PairHello) == 1


def test_a_pause_is_enough() -> None:
    pace = PairingPace(2, 10.0)
    pace.take(0.0)
    pace.take(5.0)
    with pytest.raises(UnavailableError) as caught:
        pace.take(9.0)
    assert caught.value.retry_after_s == 1.0
    pace.take(10.0)
    with pytest.raises(UnavailableError):
        pace.take(14.9)


def test_rank_0_is_where_the_request_comes_from() -> None:
    check_endpoint("tcp://192.0.2.1:5000", "192.0.2.1")
    check_endpoint("tcp://192.0.2.1:5000", "::ffff:192.0.2.1")
    for remote, says in (("192.0.2.10", "without a proxy"), ("2001:db8::1", "by an IPv4 address")):
        with pytest.raises(RequestError, match=says):
            check_endpoint("tcp://192.0.2.1:5000", remote)

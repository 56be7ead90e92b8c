"""The routes by which another machine is paired with this one, and by which it leaves again."""

import base64
import time
from collections import deque
from typing import Final, TypeVar

from aiohttp import web
from pydantic import BaseModel

from lmx.protocol.errors import ErrorCode, RequestError, UnavailableError
from lmx.protocol.messages.control import Done
from lmx.protocol.messages.keys import ApiKey, KeyScope
from lmx.protocol.messages.pairing import (
    ForgetPeer,
    PairAccepted,
    PairHello,
    PairProof,
    PairWelcome,
)
from lmx.protocol.web_origins import is_loopback
from lmx.router.http.access import opening_key
from lmx.router.http.bodies.json_body import arriving_in_time, read_object
from lmx.router.http.endpoint import Access
from lmx.router.http.responses import Answer, json_value, succeeded
from lmx.router.schema.requests.pairing import PairHelloRequest, PairProofRequest
from lmx.router.schema.validation import validated
from lmx.router.services import SERVICES
from lmx.router.supervisor.queries import COMMAND_DEADLINE_S, ask, command

PAIR_ERRORS: Final = (ErrorCode.NOT_FOUND, ErrorCode.RATE_LIMIT_EXCEEDED)
"""What both steps of pairing may return."""

_BODY_BYTES: Final = 8 * 1024
_BODY_DEADLINE_S: Final = 5.0
"""The time for a body, so that only as many requests as the pace lets through in this time wait for
theirs: they count as under way, and need no key."""

_Said = TypeVar("_Said", bound=BaseModel)


class PairingPace:
    """How many requests about pairing are read, and may reach the supervisor: without a key anybody
    may send them, and people pair two machines once."""

    def __init__(self, most: int = 20, within_s: float = 10.0) -> None:
        self._taken: deque[float] = deque(maxlen=most)
        self._within_s = within_s

    def take(self, now_s: float) -> None:
        """Count a request. Raises :class:`UnavailableError` (rate_limit_exceeded)."""
        if len(self._taken) == self._taken.maxlen and now_s - self._taken[0] < self._within_s:
            raise UnavailableError(
                ErrorCode.RATE_LIMIT_EXCEEDED,
                "There were too many requests about pairing just now: try again in a moment.",
                retry_after_s=self._within_s - (now_s - self._taken[0]),
            )
        self._taken.append(now_s)


PAIRING: Final = web.AppKey("pairing", PairingPace)


class PairWelcomeAnswer(Answer):
    """The answer of POST /pair/hello. Bytes are in base64."""

    exchange_id: str
    machine: str
    """What this machine is called."""
    public: str
    nonce: str


class PairAcceptedAnswer(Answer):
    """The answer of POST /pair/proof. Bytes are in base64."""

    proof: str
    sealed: str
    """The key for the other machine, which only that one can read."""


async def pair_hello(request: web.Request) -> web.Response:
    """Begin an exchange, while a code is shown on this machine."""
    wanted = await _said(request, PairHelloRequest)
    question = PairHello(_bytes(wanted.public, "public"), _bytes(wanted.nonce, "nonce"))
    supervisor = request.app[SERVICES].supervisor
    found = await ask(supervisor, question, PairWelcome, COMMAND_DEADLINE_S)
    return json_value(
        PairWelcomeAnswer(
            exchange_id=found.exchange_id,
            machine=found.machine,
            public=_text(found.public),
            nonce=_text(found.nonce),
        )
    )


async def pair_proof(request: web.Request) -> web.Response:
    """Pair, if the other machine has proved that it knows the code. Five wrong ones void it."""
    wanted = await _said(request, PairProofRequest)
    question = PairProof(
        wanted.exchange_id,
        _bytes(wanted.proof, "proof"),
        _bytes(wanted.sealed, "sealed"),
        request.remote or "",
    )
    supervisor = request.app[SERVICES].supervisor
    found = await ask(supervisor, question, PairAccepted, COMMAND_DEADLINE_S)
    return json_value(PairAcceptedAnswer(proof=_text(found.proof), sealed=_text(found.sealed)))


async def forget_peer(request: web.Request) -> web.Response:
    """End the pairing with the machine whose key this is: the key opens nothing any more, and
    nothing is sent there."""
    key = peer_key(request, "Only a peer's own key ends its pairing.")
    done: Done = await command(request.app[SERVICES].supervisor, ForgetPeer(key.name))
    return succeeded(done.message)


def peer_key(request: web.Request, refusal: str) -> ApiKey:
    """Return the key of the paired machine that asks. Raises :class:`RequestError` with the
    sentence ``refusal`` if the request has another key, or none."""
    key = key_of_peer_route(request)
    if key is None or KeyScope.PEER not in key.scopes:
        raise RequestError(ErrorCode.PERMISSION_DENIED, refusal)
    return key


def key_of_peer_route(request: web.Request) -> ApiKey | None:
    """Return the key with which a route of peers was opened; None if it needed none."""
    services = request.app[SERVICES]
    local = is_loopback(services.spec.host)
    return opening_key(request, Access.PEER, None, services.keys.ring, local=local)


async def _said(request: web.Request, schema: type[_Said]) -> _Said:
    request.app[PAIRING].take(time.monotonic())
    async with arriving_in_time(_BODY_DEADLINE_S):
        return validated(schema, await read_object(request, _BODY_BYTES))


def _bytes(text: str, param: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise RequestError(
            ErrorCode.INVALID_VALUE, f"{param} is not base64", param=param
        ) from error


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()

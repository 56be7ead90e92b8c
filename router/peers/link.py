"""One peer: what it said last, whether it answers, and what is under way there."""

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import aiohttp
import structlog

from lmx.protocol.messages.peers import Peer, PeerKind
from lmx.router.event_loop import ends_in_time
from lmx.router.peers.forwarded import FORWARDED_HEADER
from lmx.router.peers.machine import (
    MOST_BYTES,
    PEER_STATE_PATH,
    MachineState,
    OfferedModel,
    openai_state,
    read_machine,
)
from lmx.router.peers.prefixes import PrefixBook

POLL_S: Final = 1.0
"""The time between two questions to a peer. Its answer is also its heartbeat."""

_ANSWER_S: Final = 0.9
"""How long a peer may take to answer: with the time between two questions less than two seconds,
after which a peer that has stopped gets nothing any more."""

_OPENAI_POLL_S: Final = 5.0
_OPENAI_ANSWER_S: Final = 4.0

_SENT_S: Final = 10.0
"""How long what was sent to a peer counts as computed there, though it does not say so yet."""

FIRST_ANSWER_S: Final = 5.0
"""How long somebody waits for a peer's first answer: longer than it may take for it."""

_log = structlog.get_logger()


class PeerLink:
    """Asks a peer every second how it is, from :meth:`run` on. Used from one event loop only."""

    def __init__(self, peer: Peer, own_name: str, session: aiohttp.ClientSession) -> None:
        self.peer = peer
        self.session = session
        self.ssl: aiohttp.Fingerprint | bool = True
        """The certificate with which it is believed; True: one of an authority. One object, by
        which connections that are kept are found."""
        if peer.certificate:
            self.ssl = aiohttp.Fingerprint(bytes.fromhex(peer.certificate))
        self.state: MachineState | None = None
        """What it said last."""
        self.problem: str | None = "it has not answered yet"
        """Why it gets no requests, for people; None while it does."""
        self.seen_at_s: float | None = None
        """When it answered last, in Unix time."""
        self.lost = asyncio.Event()
        """Set while it does not answer."""
        self.lost.set()
        self.asked = asyncio.Event()
        """Set once it has answered, or is known not to: before that nobody knows what it has."""
        self._own_name = own_name
        self._running: Counter[str] = Counter()
        self._running_then: Counter[str] = Counter()
        """How many ran when the peer was asked for its state."""
        self._sent: dict[str, PrefixBook] = {}

    @property
    def name(self) -> str:
        """The peer's name here."""
        return self.peer.name

    @property
    def answers(self) -> bool:
        """Whether it may get requests."""
        return self.state is not None and not self.lost.is_set()

    @property
    def running(self) -> int:
        """How many requests were forwarded there and have not ended."""
        return self._running.total()

    def headers(self) -> dict[str, str]:
        """Return the headers of every request to it: the peer's key, and no client's."""
        found = {FORWARDED_HEADER: self._own_name, "Accept-Encoding": "identity"}
        if self.peer.key:
            found["Authorization"] = f"Bearer {self.peer.key}"
        return found

    def running_of(self, model: OfferedModel) -> int:
        """Return how many requests for a model are under way there: as it said, and those that were
        sent since, less those that have ended since."""
        name = model.model_id
        if self.peer.kind is PeerKind.OPENAI:
            return self._running[name]
        since = self._running[name] - self._running_then[name]
        return max(model.running + since, self._running[name], 0)

    def held_by(self, model: OfferedModel) -> Collection[int]:
        """Return what the model's prefix cache holds: as it said, and what was sent since."""
        book = self._sent.get(model.model_id)
        if book is None:
            return model.held
        if self.peer.kind is PeerKind.OPENAI:
            return book.held
        recent = book.since(time.monotonic() - _SENT_S)
        return model.held | recent if recent else model.held

    @contextmanager
    def carrying(self, model_id: str, hashes: tuple[int, ...]) -> Iterator[None]:
        """Count a request as under way there for the duration of the block, and its prefix as
        computed there if the block ends well."""
        self._running[model_id] += 1
        try:
            yield
            if len(self._sent) > _MOST_BOOKS:
                self._sent.clear()
            self._sent.setdefault(model_id, PrefixBook()).add(hashes, time.monotonic())
        finally:
            self._running[model_id] -= 1

    async def run(self) -> None:
        """Ask until cancelled."""
        is_lmx = self.peer.kind is PeerKind.LMX
        pause_s = POLL_S if is_lmx else _OPENAI_POLL_S
        while True:
            began_s = time.monotonic()
            running = self._running.copy()
            try:
                async with asyncio.timeout(_ANSWER_S if is_lmx else _OPENAI_ANSWER_S):
                    state = await self._asked()
            except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
                # Another server may answer nobody while it computes for this machine.
                if is_lmx or not self.running or type(error) is not TimeoutError:
                    self.lose(_in_words(error))
            except Exception:
                self.lose("what it said could not be understood")
                raise
            else:
                self._running_then = running
                self._found(state)
            await asyncio.sleep(max(0.05, began_s + pause_s - time.monotonic()))

    def lose(self, problem: str) -> None:
        """Take the peer as one that does not answer, until it does again."""
        if not self.lost.is_set():
            _log.warning("peer.lost", peer=self.name, reason=problem)
        self.problem = problem
        self.lost.set()
        self.asked.set()

    def _found(self, state: MachineState) -> None:
        if self.lost.is_set():
            _log.info("peer.answers", peer=self.name, models=len(state.models))
        self._drop_books(state)
        self.state, self.problem, self.seen_at_s = state, None, time.time()
        self.lost.clear()
        self.asked.set()

    def _drop_books(self, state: MachineState) -> None:
        """Forget what was sent to models that are not loaded any more."""
        for name in list(self._sent):
            model = state.model(name)
            if model is None or not model.loaded:
                del self._sent[name]

    async def _asked(self) -> MachineState:
        if self.peer.kind is PeerKind.OPENAI:
            return openai_state(self.name, await self._get("/v1/models", {}))
        before = self.state
        known = {} if before is None else {"known": before.digest}
        return read_machine(await self._get(PEER_STATE_PATH, known), before)

    async def _get(self, path: str, query: dict[str, Any]) -> bytes:
        async with self.session.get(
            f"{self.peer.url}{path}",
            params=query,
            headers=self.headers(),
            allow_redirects=False,
            ssl=self.ssl,
        ) as response:
            if response.status != 200:
                raise _RefusedError(_status_words(response.status))
            payload = b""
            async for piece in response.content.iter_any():
                payload += piece
                if len(payload) > MOST_BYTES:
                    response.close()
                    raise _RefusedError("its answer is too long: is it lmx that answers there?")
            return payload


async def first_answers(links: Iterable[PeerLink]) -> None:
    """Wait for the peers that were not asked yet, as just after the start of this router: before
    that nobody knows which models they have."""
    unasked = [link for link in links if not link.asked.is_set()]
    if unasked:
        await ends_in_time(asyncio.gather(*(link.asked.wait() for link in unasked)), FIRST_ANSWER_S)


_MOST_BOOKS: Final = 500

OTHER_CERTIFICATE: Final = (
    "its certificate is not the one with which it was paired: somebody is between the machines, or "
    "it lost its own; `lmx pair` pairs them again"
)


class _RefusedError(ValueError):
    """The peer answers, but not with its state. The text says why."""


def _status_words(status: int) -> str:
    match status:
        case 401 | 403:
            return "it refuses this machine's key: make one there with the scope peer"
        case 404:
            return "it has no such route: is it an lmx of this version?"
        case _ if 300 <= status < 400:
            return "it sends elsewhere, which is not followed: give the address that it names"
        case _:
            return f"it answers with the status {status}"


def _in_words(error: Exception) -> str:
    match error:
        case TimeoutError():
            return "it does not answer in time"
        case _RefusedError():
            return str(error)
        case aiohttp.ServerFingerprintMismatch():
            return OTHER_CERTIFICATE
        case aiohttp.ClientConnectorCertificateError():
            return "its certificate is not valid"
        case aiohttp.ClientSSLError():
            return "what answers at its address does not speak TLS as it does"
        case aiohttp.ClientConnectorDNSError():
            return "its host has no address"
        case aiohttp.ClientConnectorError():
            return "it can't be reached"
        case aiohttp.ClientError() | OSError():
            return "it broke off"
        case _:
            return f"its answer can't be read ({str(error)[:100]})"

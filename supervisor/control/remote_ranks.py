"""Asks paired machines to start the ranks of this machine's models, and to end them."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final

import structlog

from lmx.protocol.errors import ErrorCode, LmxError, OperationError
from lmx.protocol.host.lasting import begin, in_daemon_thread
from lmx.protocol.messages.peers import Peer, PeerKind, PeerList
from lmx.protocol.messages.ranks import (
    FollowersRefused,
    FollowersStarted,
    Meeting,
    RemoteFollower,
    WantFollowers,
)
from lmx.protocol.models.ranks import Parallel
from lmx.protocol.wire.codec import to_map
from lmx.supervisor.config.settings import Settings
from lmx.supervisor.core.core import Core
from lmx.supervisor.core.slot import Slot
from lmx.supervisor.sockets.http_client import UNREADABLE, HttpClient, Remote

log = structlog.get_logger()

_PATH: Final = "/admin/ranks"
_START_S: Final = 70.0
_END_S: Final = 5.0


class RemoteRanks:
    """Knows on which machines it has started ranks, until their worker has ended. ``send`` sends a
    worker a message. Event loop only; what blocks is done in threads, with deadlines."""

    def __init__(
        self,
        core: Core,
        settings: Settings,
        peers: Callable[[], PeerList],
        send: Callable[[bytes, Any], None],
    ) -> None:
        self._core = core
        self._settings = settings
        self._peers = peers
        self._send = send
        self._started: dict[str, list[Peer]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def want(self, wish: WantFollowers) -> None:
        """Start the followers of a worker, and tell it."""
        if self._core.has_worker(wish.instance) and wish.instance not in self._started:
            asked = self._started[wish.instance] = []
            self._begin(self._start(wish, asked), "the start of ranks")

    def worker_exited(self, instance: str) -> None:
        """End what was started for a worker. Its followers end without it as well, when their
        connection does; this is for one that is stopped."""
        self._end_all(instance, self._started.pop(instance, ()))

    def _end_all(self, instance: str, peers: Iterable[Peer]) -> None:
        for peer in peers:
            self._begin(self._end(peer, instance), "the end of ranks")

    def _begin(self, work: Any, what: str) -> None:
        task = begin(work, what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(self, wish: WantFollowers, asked: list[Peer]) -> None:
        """Ask all machines, and note in ``asked`` which were."""
        answer: FollowersStarted | FollowersRefused
        try:
            slot = self._slot(wish.instance)
            hosts = slot.model.hosts
            if len(hosts) != len(wish.meetings):
                raise OperationError(ErrorCode.MODEL_LOAD_FAILED, "hosts has changed meanwhile")
            asking = [
                self._ask(name, wish, meeting, slot, rank, asked)
                for rank, (name, meeting) in enumerate(zip(hosts, wish.meetings, strict=True), 1)
            ]
            found = await asyncio.gather(*asking, return_exceptions=True)
            followers = []
            for one in found:
                if isinstance(one, BaseException):
                    raise one
                followers.append(one)
            answer = FollowersStarted(tuple(followers))
        except LmxError as error:
            # That there is no memory is of the ordinary; everything else is for people to read.
            short = error.code is ErrorCode.INSUFFICIENT_MEMORY
            code = error.code if short else ErrorCode.MODEL_LOAD_FAILED
            answer = FollowersRefused(code, error.message)
        if isinstance(answer, FollowersRefused) or not self._core.has_worker(wish.instance):
            # Also those that :meth:`worker_exited` has ended: that may have come before the start.
            self._started.pop(wish.instance, None)
            self._end_all(wish.instance, asked)
        self._send(f"w:{wish.instance}".encode(), answer)

    def _slot(self, instance: str) -> Slot:
        for slot in self._core.slots.values():
            if slot.worker is not None and slot.worker.instance == instance:
                return slot
        raise OperationError(ErrorCode.MODEL_LOAD_FAILED, "the worker has ended")

    async def _ask(
        self,
        name: str,
        wish: WantFollowers,
        meeting: Meeting,
        slot: Slot,
        rank: int,
        asked: list[Peer],
    ) -> RemoteFollower:
        peer = next((one for one in self._peers().peers if one.name == name), None)
        if peer is None or peer.kind is not PeerKind.LMX:
            raise OperationError(
                ErrorCode.MODEL_LOAD_FAILED,
                f"hosts: {name!r} is no lmx that is paired with this machine: `lmx pair`",
            )
        model, plan = slot.model, slot.plan
        if plan is None:
            raise OperationError(ErrorCode.MODEL_LOAD_FAILED, "the worker is an earlier one's")
        body = {
            "group": wish.instance,
            "model": model.id,
            "rank": rank,
            "count": model.ranks,
            "parallel": Parallel(model.parallel).value,
            "meeting": to_map(meeting),
            "digest": wish.digest,
            "versions": wish.versions,
            "reserve_bytes": plan.reserve_bytes,
            "memory_limit_bytes": plan.worker_bytes,
            "prefix_cache_bytes": plan.prefix_cache_bytes,
            "context_length": plan.context_tokens or model.context_length,
            "kv_bits": plan.kv_bits,
            "max_decode_stall_s": model.max_decode_stall_s,
            "beat_interval_s": self._settings.current.timing.beat_interval_s,
            "silence_s": self._settings.current.timing.beat_timeout_s,
        }
        # Known before it is asked: the answer may be lost, and the rank run.
        asked.append(peer)
        try:
            found = await in_daemon_thread(_call, peer, "POST", _PATH, body, _START_S)
            return RemoteFollower(str(found["public_key"]), int(found["pid"]))
        except UNREADABLE as error:
            raise OperationError(
                ErrorCode.MODEL_LOAD_FAILED, f"{name} gave an answer that is invalid"
            ) from error
        except LmxError as error:
            raise OperationError(error.code, f"{name}: {error.message}") from error

    async def _end(self, peer: Peer, group: str) -> None:
        try:
            await in_daemon_thread(_call, peer, "DELETE", f"{_PATH}/{group}", None, _END_S)
        except LmxError as error:
            log.info("rank.not_ended", peer=peer.name, reason=error.message)


def _call(peer: Peer, method: str, path: str, body: Any, limit_s: float) -> Any:
    return HttpClient(Remote.of(peer), limit_s).call(method, path, body)

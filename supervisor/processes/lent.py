"""The ranks of other machines' models that this machine runs for them.

Each has memory of the ledger, and a lease: the follower sends a byte with each of its beats for as
long as rank 0 reaches it. Without one it is ended. So nothing that becomes of the other machine, or
of the way there, keeps this one's memory.
"""

import asyncio
import contextlib
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from ipaddress import AddressValueError, IPv4Address
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import structlog

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.host.lasting import in_daemon_thread
from lmx.protocol.host.same_model import digest, versions
from lmx.protocol.messages.control import Done
from lmx.protocol.messages.ranks import (
    EndRanks,
    FollowerLink,
    FollowerSpec,
    RankStarted,
    StartRank,
)
from lmx.protocol.messages.status import LentRank
from lmx.protocol.models.default_engine import MLX_ENGINE
from lmx.supervisor.config.settings import Settings
from lmx.supervisor.core.core import Core
from lmx.supervisor.core.slot import Slot
from lmx.supervisor.decisions.ledger import format_bytes
from lmx.supervisor.events import Events
from lmx.supervisor.processes.child import signal_group
from lmx.supervisor.processes.descendants import Descendants
from lmx.supervisor.processes.launcher import Launcher
from lmx.supervisor.processes.specs import lent_spec
from lmx.supervisor.state.home import Home

log = structlog.get_logger()

MOST_LENT: Final = 8
_BEGIN_S: Final = 30.0
"""How long a process has until it has sent its key."""

_LEAVE_S: Final = 20.0 if sys.platform == "darwin" else 3.0
"""How long one that is to end may take: on a Mac it gives memory of the GPU back."""

_CLOSE_S: Final = 5.0
"""How long all of them may take when the supervisor ends or is replaced: routers wait for it."""

_READ_S: Final = 20.0
_READ_BYTES: Final = 4096
_KEY_CHARACTERS: Final = 40


@dataclass(eq=False)
class _Lent:
    asked: StartRank
    instance: str
    pid: int
    lease: socket.socket
    key: asyncio.Future[str]
    """Its public key."""
    said: bytearray = field(default_factory=bytearray)
    timer: asyncio.TimerHandle | None = None
    leaving: str = ""
    """Why it ends; empty: it doesn't."""


@dataclass(eq=False)
class _Reading:
    """A rank that is started once the model's files were read."""

    asked: StartRank
    unwanted: bool = False
    """Whether rank 0 has ended since."""


class LentRanks:
    """Starts, watches and ends them. ``knows`` says whether a key of this name is still valid.
    Event loop only."""

    def __init__(
        self,
        core: Core,
        settings: Settings,
        home: Home,
        launcher: Launcher,
        descendants: Descendants,
        events: Events,
        knows: Callable[[str], bool],
    ) -> None:
        self._core = core
        self._settings = settings
        self._home = home
        self._launcher = launcher
        self._descendants = descendants
        self._events = events
        self._knows = knows
        self._reading: list[_Reading] = []
        self._lent: dict[str, _Lent] = {}
        self._all_gone = asyncio.Event()
        self.handlers: dict[type, Callable[[Any, float], Any]] = {
            StartRank: lambda asked, _now_s: self._start(asked),
            EndRanks: lambda asked, _now_s: self._end(asked),
        }

    @property
    def status(self) -> tuple[LentRank, ...]:
        """What runs."""
        return tuple(
            LentRank(
                model=one.asked.model_id,
                owner=one.asked.owner,
                rank=one.asked.rank,
                count=one.asked.count,
                pid=one.pid,
                reserved_bytes=one.asked.reserve_bytes,
            )
            for one in self._lent.values()
        )

    async def close(self) -> None:
        """End all of them: whoever comes after this supervisor knows nothing of them. As anywhere,
        they have time to give memory of the GPU back."""
        for one in self._lent.values():
            if not one.leaving:
                self._leave(one, "lmx ends here")
        self._all_gone.clear()
        if self._lent:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_gone.wait(), _CLOSE_S)
        for one in list(self._lent.values()):
            signal_group(one.pid, signal.SIGKILL)

    async def _start(self, asked: StartRank) -> RankStarted:
        """Start a rank. Raises :class:`OperationError` in a sentence."""
        self._refuse_impossible(asked)
        _, path = self._model(asked.model_id)
        reading = _Reading(asked)
        self._reading.append(reading)
        try:
            found = await asyncio.wait_for(in_daemon_thread(_identity, path), _READ_S)
        except (OSError, TimeoutError) as error:
            why = error or "it takes too long"
            raise _refused(f"the model's files can't be read here ({why})") from error
        finally:
            self._reading.remove(reading)
        if reading.unwanted:
            raise _refused("rank 0 has ended meanwhile")
        _compare(asked, *found)
        # What has changed meanwhile counts.
        self._refuse_impossible(asked)
        slot, path = self._model(asked.model_id)
        asked = replace(asked, reserve_bytes=max(asked.reserve_bytes, _least_bytes(asked, slot)))
        instance = f"lent-{secrets.token_hex(6)}"
        name = f"rank {asked.rank} of {slot.model.id}"
        self._core.ledger.reserve(instance, asked.reserve_bytes, name)
        try:
            one = self._launch(asked, slot, path, instance)
        except (OSError, TypeError, ValueError, OverflowError) as error:
            self._core.ledger.release(instance)
            reason = (isinstance(error, OSError) and error.strerror) or error
            raise _refused(f"the process can't be started ({reason})") from error
        self._core.flush(time.monotonic())
        return RankStarted(await one.key, one.pid)

    def _refuse_impossible(self, asked: StartRank) -> None:
        self._core.refuse_while_stopping()
        if self._core.drained:
            raise _refused("this machine is drained: `lmx undrain --machine`")
        if self._core.no_loads is not None:
            raise _refused(self._core.no_loads)
        if len(self._lent) + len(self._reading) >= MOST_LENT:
            raise _refused(f"this machine runs {MOST_LENT} ranks for others, as many as can be")
        if asked.name in {one.asked.name for one in self._lent.values()}:
            raise _refused("this rank runs already")
        if not 0 < asked.rank < asked.count:
            raise _refused(f"there is no rank {asked.rank} of {asked.count}")
        self._refuse_address(asked)

    def _refuse_address(self, asked: StartRank) -> None:
        place = urlsplit(asked.meeting.endpoint)
        try:
            IPv4Address(place.hostname or "")
            own = str(IPv4Address(asked.meeting.address))
            if place.scheme != "tcp" or not place.port:
                raise AddressValueError(asked.meeting.endpoint)
            with socket.socket() as probe:
                probe.bind((own, 0))
        except ValueError as error:
            raise _refused(f"{error}: ranks find each other by IPv4 addresses") from error
        except OSError as error:
            raise _refused(
                f"{asked.meeting.address}, by which the other machine reaches this one, is no "
                "address of this machine: ranks need a direct way, without a proxy in between"
            ) from error

    def _model(self, model_id: str) -> tuple[Slot, Path]:
        slot = self._core.slots.get(model_id)
        if slot is None or slot.life.removed:
            raise _refused(
                f"this machine has no model {model_id!r}: it must be in its lmx.yaml, under the "
                "same id"
            )
        if slot.life.held:
            raise _refused(f"{model_id} is drained here: `lmx undrain {model_id}`")
        if slot.life.files_leaving:
            raise _refused(f"the files of {model_id} are being deleted here")
        if slot.model.engine != MLX_ENGINE:
            raise _refused(f"{model_id} has an engine of its own here")
        found = slot.files.inspection
        path = slot.files.path
        if path is None and found is not None and found.whole and found.path is not None:
            path = Path(found.path)
        if path is None:
            raise _refused(f"the files of {model_id} are not here: `lmx pull {slot.model.source}`")
        return slot, path

    def _launch(self, asked: StartRank, slot: Slot, path: Path, instance: str) -> _Lent:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        meeting, model_id = asked.meeting, slot.model.id
        link = FollowerLink(meeting.endpoint, meeting.server_key, meeting.address, theirs.fileno())
        worker = lent_spec(self._settings.current, self._home, slot.model, path, asked, instance)
        with theirs:
            try:
                pid = self._launcher.start(
                    "lmx.worker.ranks.lent",
                    (model_id, f"rank {asked.rank} for {asked.owner}", instance),
                    FollowerSpec(worker, asked.rank, link),
                    self._home.worker_log(model_id),
                    lambda _pid, status: self._exited(instance, status),
                    (theirs.fileno(),),
                )
            except BaseException:
                ours.close()
                raise
        loop = asyncio.get_running_loop()
        one = self._lent[instance] = _Lent(asked, instance, pid, ours, loop.create_future())
        loop.add_reader(ours.fileno(), self._heard, one)
        self._extend(one, _BEGIN_S)
        self._events.note(
            "rank.lent",
            model_id,
            f"rank {asked.rank} of {asked.count} runs here for {asked.owner}, with "
            f"{format_bytes(asked.reserve_bytes)}",
            pid=pid,
        )
        return one

    def _heard(self, one: _Lent) -> None:
        try:
            part = one.lease.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        if not one.key.done():
            one.said += part[:_KEY_CHARACTERS]
            if len(one.said) >= _KEY_CHARACTERS:
                one.key.set_result(one.said[:_KEY_CHARACTERS].decode("ascii", "replace"))
        if not part:
            asyncio.get_running_loop().remove_reader(one.lease.fileno())
            self._extend(one, max(_LEAVE_S, one.asked.silence_s))  # It ends by itself.
        elif not one.leaving and not self._knows(one.asked.owner):
            self._leave(one, f"the key {one.asked.owner} was revoked")
        elif not one.leaving:
            self._extend(one, one.asked.silence_s)

    def _extend(self, one: _Lent, by_s: float) -> None:
        if one.timer is not None:
            one.timer.cancel()
        one.timer = asyncio.get_running_loop().call_later(by_s, self._expired, one)

    def _expired(self, one: _Lent) -> None:
        one.leaving = one.leaving or "it was silent for too long"
        log.warning("rank.lease_expired", model=one.asked.model_id, rank_pid=one.pid)
        signal_group(one.pid, signal.SIGKILL)

    def _leave(self, one: _Lent, why: str) -> None:
        one.leaving = why
        with contextlib.suppress(OSError):
            one.lease.shutdown(socket.SHUT_WR)
        self._extend(one, _LEAVE_S)

    def _end(self, asked: EndRanks) -> Done:
        for reading in self._reading:
            reading.unwanted |= _is_of(reading.asked, asked)
        for one in list(self._lent.values()):
            if _is_of(one.asked, asked) and not one.leaving:
                self._leave(one, "rank 0 has ended")
        return Done("the ranks of the group end")

    def _exited(self, instance: str, status: int | None) -> None:
        one = self._lent.pop(instance)
        if not self._lent:
            self._all_gone.set()
        if one.timer is not None:
            one.timer.cancel()
        asyncio.get_running_loop().remove_reader(one.lease.fileno())
        one.lease.close()
        why = one.leaving or f"its process ended (status {status})"
        if not one.key.done():
            one.key.set_exception(_refused(f"the rank could not begin: {why}"))
        model_id, now_s = one.asked.model_id, time.monotonic()
        self._core.ledger.exited(instance)
        self._core.memory_settled(instance, None, 0, now_s)
        self._descendants.end(instance, f"rank of {model_id}")
        for path in self._home.run.ring_files(instance):
            path.unlink(missing_ok=True)
        self._events.note(
            "rank.ended", model_id, f"rank {one.asked.rank} for {one.asked.owner}: {why}"
        )
        self._core.flush(now_s)


def _is_of(rank: StartRank, ended: EndRanks) -> bool:
    return (rank.owner, rank.group) == (ended.owner, ended.group)


def _least_bytes(asked: StartRank, slot: Slot) -> int:
    """Return what the process and its part of the weights take, as they are read here."""
    found = slot.files.inspection
    if found is None or found.files is None:
        return 0
    memory = found.files.memory
    elsewhere_bytes = memory.divided_bytes * (asked.count - 1) // asked.count
    return memory.process_bytes + memory.weights_bytes - elsewhere_bytes


def _identity(path: Path) -> tuple[str, dict[str, str]]:
    return digest(path), versions()


def _compare(asked: StartRank, own_digest: str, own_versions: dict[str, str]) -> None:
    """Raise :class:`OperationError` if this machine would compute something else."""
    for name, own in own_versions.items():
        theirs = asked.versions.get(name)
        if theirs != own:
            raise _refused(
                f"{name} is {own} here and {theirs} there: all machines of a model need the same"
            )
    if asked.digest != own_digest:
        raise _refused(
            f"the files of {asked.model_id} are others here: all machines need the same revision"
        )


def _refused(message: str) -> OperationError:
    return OperationError(ErrorCode.MODEL_LOAD_FAILED, message)

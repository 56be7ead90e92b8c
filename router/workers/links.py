"""All links to workers, by instance. A link is opened when it is first needed, and closed when its
worker is gone."""

import asyncio
from collections import deque
from typing import Final

import structlog
import zmq.asyncio

from lmx.protocol.errors import ErrorCode, GenerationError, LmxError, UnavailableError
from lmx.protocol.messages.control import WorkerExited
from lmx.protocol.states import ExitCause
from lmx.protocol.wire.endpoints import RunDirectory
from lmx.router.supervisor.directory import Directory
from lmx.router.workers.link import WorkerLink

_CODES: Final[dict[ExitCause, ErrorCode]] = {
    ExitCause.CRASH: ErrorCode.WORKER_CRASHED,
    ExitCause.SIGNAL: ErrorCode.WORKER_CRASHED,
    ExitCause.OUT_OF_MEMORY: ErrorCode.WORKER_OUT_OF_MEMORY,
    ExitCause.HANG: ErrorCode.WORKER_HUNG,
    ExitCause.LOAD_FAILED: ErrorCode.MODEL_LOAD_FAILED,
    ExitCause.HOST: ErrorCode.WORKER_CRASHED,
    ExitCause.KILLED: ErrorCode.WORKER_KILLED,
    ExitCause.UNLOADED: ErrorCode.MODEL_UNLOADED,
    ExitCause.EVICTED: ErrorCode.MODEL_UNLOADED,
    ExitCause.EXPIRED: ErrorCode.MODEL_UNLOADED,
    ExitCause.SHUTDOWN: ErrorCode.SHUTTING_DOWN,
}

_WANTED: Final = frozenset(
    {ExitCause.UNLOADED, ExitCause.EVICTED, ExitCause.EXPIRED, ExitCause.SHUTDOWN}
)

_EXIT_TEXTS: Final[dict[ExitCause, str]] = {
    ExitCause.CRASH: "crashed{why}. It is started again; this request may be the cause",
    ExitCause.SIGNAL: "crashed{why}. It is started again; this request may be the cause",
    ExitCause.OUT_OF_MEMORY: "ran out of memory{why}. Try again later, or with a shorter prompt "
    "and fewer tokens to generate",
    ExitCause.HANG: "made no progress and was ended{why}. It is started again; this request may "
    "be the cause",
    ExitCause.LOAD_FAILED: "could not load it{why}",
    ExitCause.HOST: "could not continue{why}. Try again: it is not the request's fault",
    ExitCause.KILLED: "was killed{why}. Try again: it is not the request's fault",
    ExitCause.UNLOADED: "was ended{why}. Try again, if the model is to be loaded again",
    ExitCause.EVICTED: "was evicted for another model{why}. Try again: it will be loaded again",
    ExitCause.EXPIRED: "was unloaded after it had been idle{why}. Try again: it will be loaded "
    "again",
    ExitCause.SHUTDOWN: "was ended{why}: lmx is shutting down. Try again later",
}
"""What clients learn about the end of a worker, and whether they should send the request again."""

_LAST_MESSAGES_S: Final = 0.2
"""The time between a worker's end, or the last message that came of it, and the end of its streams.
A message that is already in the socket needs a small part of it."""

_LOOKS: Final = 8
"""In so many looks within that time nothing may have come. A time alone would be over at once in a
router that stood still itself, before it has read what had come."""

_MOST_LOOKS: Final = 5 * _LOOKS
"""After so many the streams end, whatever still comes: what is in a socket was read by then."""

_MOST_EXITED: Final = 256
"""How many workers that have ended are remembered."""

_log = structlog.get_logger()


def exit_error(fact: WorkerExited) -> GenerationError:
    """Return the error for the clients of a worker that exited."""
    text = _EXIT_TEXTS[fact.cause].format(why=f" ({fact.detail})" if fact.detail else "")
    return GenerationError(_CODES[fact.cause], f"The worker of model {fact.model_id!r} {text}.")


class WorkerLinks:
    """Owns the links. It follows the supervisor's news (:class:`SupervisorEvents`)."""

    def __init__(
        self, context: zmq.asyncio.Context, run_dir: RunDirectory, silence_s: float
    ) -> None:
        self._context = context
        self._run_dir = run_dir
        self._silence_s = silence_s
        self._links: dict[str, WorkerLink] = {}
        self._leaving: dict[WorkerLink, asyncio.TimerHandle] = {}
        self._exited: deque[str] = deque(maxlen=_MOST_EXITED)

    @property
    def open_streams(self) -> int:
        """How many streams are under way on all links."""
        return sum(link.open_streams for link in (*self._links.values(), *self._leaving))

    @property
    def instances(self) -> frozenset[str]:
        """The workers to which there is a link."""
        return frozenset(self._links)

    def link_to(self, instance: str) -> WorkerLink:
        """Return the link to a worker; connect to the worker if there is none yet. Raises
        MODEL_UNLOADED for one that has ended: the news of it come before the snapshot that lacks
        it, and may overtake the supervisor's answer that names it."""
        if instance in self._exited:
            raise UnavailableError(
                ErrorCode.MODEL_UNLOADED,
                "The model's worker has just ended: it is being replaced.",
                retry_after_s=1.0,
            )
        link = self._links.get(instance)
        if link is not None and link.broken:
            link.close()
            link = None
        if link is None:
            link = self._links[instance] = WorkerLink(
                self._context, self._run_dir.worker(instance), instance, self._silence_s
            )
        return link

    def worker_exited(self, fact: WorkerExited) -> None:
        """Fail the worker's streams with the reason of its end, and close its link.

        This does not happen at once: the worker's last messages may still be on their way.
        """
        self._exited.append(fact.instance)
        link = self._links.pop(fact.instance, None)
        if link is not None:
            wanted = fact.cause in _WANTED and link.open_streams == 0
            note = _log.info if wanted else _log.warning
            note(
                "worker.exited",
                worker=fact.instance,
                model=fact.model_id,
                cause=fact.cause,
                streams=link.open_streams,
            )
            self._look_soon(link, exit_error(fact), 0, 0)

    def directory_changed(self, directory: Directory) -> None:
        """Close the links to workers that the snapshot no longer has.

        A link with open streams stays: the first snapshots of a supervisor that was just restarted
        lack the workers that it has not adopted yet, and those still serve. If such a worker is
        really gone, its silence ends the streams.
        """
        known = directory.instances()
        for instance in [name for name in self._links if name not in known]:
            if not self._links[instance].open_streams:
                self._links.pop(instance).close()

    def give_up_all(self, error: LmxError) -> None:
        """End every stream with ``error``, here and on the workers."""
        for link in (*self._links.values(), *self._leaving):
            link.give_up_all(error)

    def close(self) -> None:
        """Close every link. No stream may be open any more."""
        for timer in self._leaving.values():
            timer.cancel()
        for link in (*self._links.values(), *self._leaving):
            link.close()
        self._links.clear()
        self._leaving.clear()

    def _look_soon(self, link: WorkerLink, error: LmxError, looks: int, quiet: int) -> None:
        self._leaving[link] = asyncio.get_running_loop().call_later(
            _LAST_MESSAGES_S / _LOOKS,
            self._look,
            link,
            error,
            looks + 1,
            quiet,
            link.messages_total,
        )

    def _look(
        self, link: WorkerLink, error: LmxError, looks: int, quiet: int, seen_total: int
    ) -> None:
        """Close the link of a worker that has ended once nothing has come in the last ``quiet``
        looks, or there were enough of them."""
        quiet = quiet + 1 if link.messages_total == seen_total else 0
        if quiet < _LOOKS and looks < _MOST_LOOKS:
            self._look_soon(link, error, looks, quiet)
            return
        del self._leaving[link]
        link.fail_all(error)
        link.close()

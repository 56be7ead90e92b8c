"""One task as the router's end of the wire sees it: a link feeds it, a handler awaits it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from lmx.protocol.errors import ErrorCode, GenerationError, LmxError
from lmx.protocol.messages.speech import Spoken, Transcript
from lmx.protocol.messages.tasks import Scores, TaskFinished, TaskPart, TaskReply, Vectors
from lmx.router.workers.phased_timeout import PhasedTimeout

OrderedPart = Transcript | Spoken
"""The parts that come in order, and may be passed on at once."""
Last = TaskFinished | TaskReply


@dataclass(frozen=True, slots=True)
class TaskAnswer:
    """All that a worker answered."""

    parts: tuple[TaskPart, ...]
    """The parts of each input, in any order; those of a transcript or a sound in
    theirs. The bytes of a sound are left out: they were passed on."""
    last: Last
    """The last message."""


class WorkerTask:
    """Collects one task's answer. It makes sure that each of ``inputs`` comes exactly once, so it
    never holds more than was requested. ``on_part`` is called with each part of a transcript or a
    sound, at once. It knows nothing of sockets."""

    def __init__(
        self, stream_id: int, inputs: int, on_part: Callable[[OrderedPart], None] | None = None
    ) -> None:
        self.stream_id = stream_id
        self._missing = set(range(inputs))
        self._on_part = on_part
        self._parts: list[TaskPart] = []
        self._last: Last | None = None
        self._error: LmxError | None = None
        self._ended = asyncio.Event()
        self.timeout = PhasedTimeout()

    @property
    def ended(self) -> bool:
        """Whether the worker will send nothing more."""
        return self._ended.is_set()

    def feed(self, message: TaskPart | Last) -> None:
        """Take a message of the worker."""
        if isinstance(message, OrderedPart):
            kept = replace(message, data=b"") if isinstance(message, Spoken) else message
            self._parts.append(kept)
            if self._on_part is not None:
                self._on_part(message)
        elif isinstance(message, Vectors | Scores):
            indexes = set(message.indexes)
            if len(indexes) < len(message.indexes) or not indexes <= self._missing:
                self._fail_of_protocol("sent what was not requested")
            elif not _is_complete(message):
                self._fail_of_protocol("sent a part that is not whole")
            else:
                self._missing -= indexes
                self._parts.append(message)
        elif self._missing:
            self._fail_of_protocol(f"ended with {len(self._missing)} input(s) unanswered")
        else:
            self._last = message
            self._ended.set()

    def fail(self, error: LmxError) -> None:
        """Note that the task is lost, or was refused."""
        if not self.ended:
            self._error = error
            self._ended.set()

    async def answer(self, queue_s: float, deadline_s: float) -> TaskAnswer:
        """Wait for the whole answer: ``queue_s`` until the task's turn comes, and ``deadline_s``
        from then on. Raises the error of its refusal, or ``TimeoutError``."""
        async with self.timeout.within(queue_s, deadline_s):
            await self._ended.wait()
        if self._error is not None:
            raise self._error
        assert self._last is not None
        return TaskAnswer(tuple(self._parts), self._last)

    @property
    def relayed(self) -> bool:
        """Whether a part of the answer was passed on."""
        return self._on_part is not None and bool(self._parts)

    def _fail_of_protocol(self, what: str) -> None:
        self.fail(GenerationError(ErrorCode.PROTOCOL_ERROR, f"The worker {what}."))


def _is_complete(part: Vectors | Scores) -> bool:
    if isinstance(part, Scores):
        return len(part.scores) == len(part.indexes)
    return part.dimensions > 0 and len(part.data) == 4 * part.dimensions * len(part.indexes)

"""Answers the lines of batches, when nobody else wants the models.

One router at a time does: the one that holds the lock of the batches, which the system releases
when its process ends in whatever way. The state is in the records; what is here is lost with the
process, and found again in them.
"""

import asyncio
import fcntl
import os
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import orjson
import structlog

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.protocol.host.lasting import begin
from lmx.protocol.messages.control import BatchChanged, LoadPlan, PlanLoad
from lmx.protocol.messages.keys import LOCAL_OWNER, ApiKey, KeyFamily
from lmx.protocol.messages.snapshot import ModelView
from lmx.protocol.states import LoadOutcome, SlotState
from lmx.router.event_loop import ends_in_time
from lmx.router.files import batch_tables
from lmx.router.files.batch_tables import ENDED, BatchRow, BatchStatus, LineRow, Result
from lmx.router.files.store import input_name
from lmx.router.http.endpoint import Access
from lmx.router.http.keys import Verdict, judge
from lmx.router.inference.batches.attempts import PASSING, SUSPICIOUS
from lmx.router.inference.batches.lines import parse_line, request_of
from lmx.router.inference.batches.output import finish
from lmx.router.inference.batches.validation import validate
from lmx.router.services import Services
from lmx.router.supervisor.directory import Directory, can_serve, ready_instance
from lmx.router.supervisor.queries import COMMAND_DEADLINE_S, ask

_IDLE_S: Final = 15.0
"""How often the records are read while there is no batch: another router may have made one."""

_TICK_S: Final = 0.1
"""How often it is looked whether somebody uses a model."""

_RECORDS_S: Final = 1.0
"""How often the records are read while there is a batch."""

_LOCK_S: Final = 1.0
_AT_ONCE: Final = 4
"""The most lines of one model that are answered at a time. Whoever asks the model meanwhile waits
for one step of their rows, and for more if it has no place or no memory besides."""

_AHEAD: Final = 64
"""How many lines are known ahead, and how many results may wait to be written."""

_PERSONS_S: Final = 600.0
"""A model that somebody used so recently is not evicted for a batch."""

_PLAN_S: Final = 5.0
_PLANNED_LATER: Final = (ErrorCode.QUEUE_FULL, ErrorCode.SUPERVISOR_UNAVAILABLE)
"""Errors of a plan that say nothing of the model."""

_DELAY_S: Final = 5.0
"""The pause after a validation, or the writing of an output, that could not be done."""

_PAUSES_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
"""The pauses after errors that pass."""

_USAGE: Final = b'"usage":'
"""The last field of an answer with vectors."""

_log = structlog.get_logger()


class Answered(NamedTuple):
    """The answer to a line's request."""

    status: int
    request_id: str
    body: bytes
    code: ErrorCode | None
    """That of its error, if it is one."""
    record: Callable[[], None]
    """Counts an error that passes, which is not counted otherwise, where it is final."""


Answer = Callable[[str, bytes, ApiKey | None], Awaitable[Answered]]
"""Answers a request with a body, for the route with a path, as one of a key."""


@dataclass(slots=True, eq=False)
class _Batch:
    """A batch whose lines are being answered."""

    row: BatchRow
    input: int
    """The descriptor of its input."""
    cursor: LineRow | None = None
    """The line up to which lines were taken from the records."""
    is_exhausted: bool = False
    ready: deque[LineRow] = field(default_factory=deque)
    suspects: deque[LineRow] = field(default_factory=deque)
    """Those that may have ended their worker."""
    running: dict[asyncio.Task[None], LineRow] = field(default_factory=dict)
    not_before_s: float = 0.0
    failures: int = 0
    """How many attempts in a row met an error that passes."""
    passed_over: bool = False
    """Whether there are lines before the cursor that were passed over."""
    stuck_until_s: float = 0.0
    """Until when its lines are not read from the beginning again."""
    tried_alone: bool = False
    """Whether what runs is a suspect."""

    def pass_over(self) -> None:
        """Know the lines of other models next. Those that were known are found again in the records
        when all have been passed over: they have no results. The same holds for suspects, which
        come before them."""
        self.passed_over = True
        if self.suspects:
            self.suspects.clear()
            return
        assert self.cursor is not None, "lines were taken"
        if self.ready[-1].model == self.cursor.model:
            # The end of the model's lines: no name comes between the two.
            self.cursor = self.cursor._replace(model=f"{self.cursor.model}\0", order=b"", number=0)
        self.ready.clear()

    def interrupt(self) -> None:
        """Cancel what is being answered; it is answered later."""
        for task in self.running:
            task.cancel()


class BatchRunner:
    """The work on all batches. Used from one event loop only."""

    def __init__(self, services: Services, answer: Answer, lock_path: Path) -> None:
        self._services = services
        self._files = services.files
        self._answer = answer
        self._lock_path = lock_path
        self._batches: dict[str, _Batch] = {}
        self._housework: dict[str, asyncio.Task[None]] = {}
        """What validates or finishes each batch."""
        self._turn = 0
        self._is_stale = True
        """Whether the records are to be read again at once."""
        self._read_at_s = float("-inf")
        self._may_load: dict[str, tuple[float, bool]] = {}
        self._plans: dict[str, asyncio.Task[None]] = {}
        """What finds out whether a model may be loaded."""
        self._impossible: set[str] = set()
        """Models that could not be loaded whatever was evicted."""
        self._full: frozenset[str | None] = frozenset()
        """The owners who have no room for more results."""
        self.unfinished = 0
        """How many batches have not ended."""
        self.lines_left = 0
        """How many of their lines have no result."""

    async def run(self) -> None:
        """Answer lines until this is cancelled; what is being answered then is answered again
        later, by this router or another."""
        lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while not _locked(lock):  # noqa: ASYNC110  # another process holds it
                await asyncio.sleep(_LOCK_S)
            await self._forget_leftovers()
            await self._work()
        finally:
            tasks = [task for batch in self._batches.values() for task in batch.running]
            tasks += [*self._housework.values(), *self._plans.values()]
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
            for batch in self._batches.values():
                os.close(batch.input)
            self._batches.clear()
            self._housework.clear()
            self._plans.clear()
            self.unfinished = self.lines_left = 0
            os.close(lock)

    async def _forget_leftovers(self) -> None:
        for batch_id in await self._files.perform(batch_tables.with_leftover_lines):
            await self._files.forget_lines(batch_id)

    async def _work(self) -> None:
        while True:
            self._files.changed.clear()
            try:
                now_s = time.monotonic()
                is_due = now_s - self._read_at_s >= _RECORDS_S
                if self._is_stale or is_due or not self._batches:
                    self._is_stale, self._read_at_s = False, now_s
                    await self._read_records()
                await self._begin_lines()
            except LmxError as error:
                _log.warning("batches.paused", reason=error.message)
                await asyncio.sleep(_RECORDS_S)
            if self._is_stale:
                continue
            await ends_in_time(self._files.changed.wait(), self._pause_s)

    @property
    def _pause_s(self) -> float:
        return _TICK_S if self._batches else _RECORDS_S if self.unfinished else _IDLE_S

    # What the records say.

    async def _read_records(self) -> None:
        rows = await self._files.perform(batch_tables.under_way)
        owners = {row.owner for row in rows}
        self._full = await self._files.full(owners) if owners else frozenset()
        self.unfinished = len(rows)
        self.lines_left = sum(row.left for row in rows)
        for batch_id in self._batches.keys() - {row.id for row in rows}:
            self._drop(batch_id)
        for batch_id, task in list(self._housework.items()):
            if task.done():
                del self._housework[batch_id]
        for row in rows:
            await self._follow(row)

    async def _follow(self, row: BatchRow) -> None:
        """Do what the status of a batch needs, and change it where that is due."""
        if row.id in self._batches:
            self._batches[row.id].row = row
        status = BatchStatus(row.status)
        is_over = time.time() >= row.expires_s
        if status in (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS):
            if not self._key_of(row)[0]:
                await self._change(row, BatchStatus.CANCELLING, "cancelling_s", "cancelled")
                _log.warning("batches.key_revoked", batch=row.id)
                return
            if status is BatchStatus.IN_PROGRESS and (is_over or not row.left):
                end = "expired" if row.left else row.end
                await self._change(row, BatchStatus.FINALIZING, "finalizing_s", end)
                return
        match status:
            case BatchStatus.VALIDATING:
                self._begin(row, self._validate)
            case BatchStatus.CANCELLING if row.in_progress_s is None:
                # Its output has all its lines, of which not all are recorded yet.
                self._begin(row, self._validate)
            case BatchStatus.IN_PROGRESS:
                await self._open(row)
            case BatchStatus.CANCELLING:
                batch = self._batches.get(row.id)
                if batch is not None:
                    batch.interrupt()
                if row.id not in self._housework and (batch is None or not batch.running):
                    await self._change(row, BatchStatus.FINALIZING, "finalizing_s", row.end)
            case BatchStatus.FINALIZING:
                self._drop(row.id)
                self._begin(row, self._finish)

    async def _change(self, row: BatchRow, status: BatchStatus, time_of: str, end: str) -> None:
        values = {"status": status, time_of: int(time.time()), "end": end}
        await self._files.perform(
            lambda records: batch_tables.change(records, row.id, (row.status,), **values)
        )
        self._is_stale = True

    def _begin(self, row: BatchRow, work: Callable[[BatchRow], Awaitable[None]]) -> None:
        if row.id in self._housework:
            return

        async def do() -> None:
            try:
                await work(row)
            except (LmxError, OSError) as error:
                _log.warning("batches.delayed", batch=row.id, reason=str(error))
                await asyncio.sleep(_DELAY_S)
            except Exception:
                _log.exception("batches.failed", batch=row.id)
                await asyncio.sleep(_PAUSES_S[-1])
            finally:
                self._is_stale = True
                self._files.changed.set()

        self._housework[row.id] = asyncio.create_task(do(), name=f"batch {row.id}")

    async def _validate(self, row: BatchRow) -> None:
        directory = await self._services.supervisor.directory()
        directory = directory.limited_to(self._key_of(row)[1])
        try:
            await validate(self._files, row, directory, self._services.spec.body_limit_bytes)
        except LmxError:
            raise
        except Exception:
            # It is tried again, and does not put off the end for ever.
            if row.status == BatchStatus.CANCELLING:
                await self._change(row, BatchStatus.FINALIZING, "finalizing_s", row.end)
            elif time.time() >= row.expires_s:
                await self._change(row, BatchStatus.FINALIZING, "finalizing_s", "expired")
            raise
        _log.info("batches.validated", batch=row.id)
        await self._report(row)

    async def _finish(self, row: BatchRow) -> None:
        await finish(self._files, row)
        _log.info("batches.ended", batch=row.id, status=row.end, completed=row.completed,
                  failed=row.failed, total=row.total)  # fmt: skip
        await self._report(row)

    async def _report(self, row: BatchRow) -> None:
        """Let the supervisor note what became of a batch, for people."""
        now = await self._files.perform(
            lambda records: batch_tables.get(records, row.id, row.owner)
        )
        if now is None or (now.status not in ENDED and now.status != BatchStatus.IN_PROGRESS):
            return  # It was removed, or is being cancelled.
        self._services.supervisor.notify(
            BatchChanged(
                now.id, now.status, now.model, now.total, now.completed, now.failed + now.cut
            )
        )

    def _key_of(self, row: BatchRow) -> tuple[bool, ApiKey | None]:
        """Return whether the sender of a batch may send requests now, and by which key."""
        ring, now_s = self._services.keys.ring, time.time()
        key = next((one for one in ring.keys if one.owner == row.owner), None)
        if key is None and row.owner == LOCAL_OWNER:
            return True, None  # lmx was started again since.
        verdict = judge(
            Access.INFERENCE, KeyFamily(row.api), key,
            given=row.owner is not None, keyless=ring.keyless and row.owner is None, local=False,
            now_s=now_s,
        )  # fmt: skip
        return verdict is Verdict.ALLOWED, key

    async def _open(self, row: BatchRow) -> None:
        if row.id in self._batches:
            return
        path = self._files.folder / input_name(row.id)
        try:
            descriptor = await asyncio.to_thread(os.open, path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            _log.error("batches.input_lost", batch=row.id)
            await self._change(row, BatchStatus.CANCELLING, "cancelling_s", "cancelled")
            return
        except OSError as error:
            # It is opened again when the records are next read; the others are answered meanwhile.
            _log.warning("batches.delayed", batch=row.id, reason=str(error))
            return
        self._batches[row.id] = _Batch(row, descriptor)

    def _drop(self, batch_id: str) -> None:
        batch = self._batches.get(batch_id)
        if batch is None:
            return
        batch.interrupt()
        if not batch.running:
            os.close(batch.input)
            del self._batches[batch_id]

    # Which lines are answered now.

    async def _begin_lines(self) -> None:
        """Begin as many lines as may be answered now."""
        waiting_for = {
            self._base_id(live.model_id)
            for live in self._services.live.in_foreground
            if live.waits.loading_since_s is not None
        }
        if waiting_for:
            # Somebody waits for memory, which the models of other lines hold.
            for batch in self._batches.values():
                for task, line in batch.running.items():
                    if self._base_id(line.model) not in waiting_for:
                        task.cancel()
        while (found := await self._next_line()) is not None:
            self._start(*found)

    async def _next_line(self) -> tuple[_Batch, LineRow, bool] | None:
        """Return the line that begins next, and whether it runs alone."""
        if self._files.unwritten >= _AHEAD or self._is_paused:
            return None
        seen: set[str | None] = set()
        stuck: set[str | None] = set()
        for batch in self._in_turn():
            owner = batch.row.owner
            if owner in seen and owner not in stuck:
                continue
            seen.add(owner)
            stuck.discard(owner)
            if batch.stuck_until_s > time.monotonic():
                stuck.add(owner)
                continue
            of_owner = [one for one in self._batches.values() if one.row.owner == owner]
            if any(one.tried_alone for one in of_owner) or batch.not_before_s > time.monotonic():
                continue
            await self._fetch(batch)
            alone = bool(batch.suspects)
            lines = batch.suspects if alone else batch.ready
            if (
                batch.row.owner in self._full
                or not lines
                or (alone and any(one.running for one in of_owner))
            ):
                continue
            line = await self._free_line(lines)
            if line is None:
                if not batch.running and all(map(self._is_hopeless, lines)):
                    stuck.add(owner)
                    batch.pass_over()
                continue
            # Both may have changed while this waited.
            if self._is_paused:
                return None
            if line in lines:
                lines.remove(line)
                return batch, line, alone
        return None

    async def _free_line(self, lines: Collection[LineRow]) -> LineRow | None:
        """Return the first line if its model may begin one now, or the first one behind those whose
        models can't be had: a model that only waits for memory is not kept from it by others."""
        first: dict[str, LineRow] = {}
        for line in lines:
            first.setdefault(line.model, line)
        for line in first.values():
            if await self._is_free(line.model):
                return line
            if not self._is_hopeless(line):
                return None
        return None

    def _is_hopeless(self, line: LineRow) -> bool:
        """Return whether a line's model can't be had until somebody does something: it is drained
        or quarantined, or memory would not do."""
        directory = self._services.supervisor.latest
        model = None if directory is None else self._view(directory, line.model)
        if model is None:
            return False
        return not can_serve(model) or self._base_id(line.model) in self._impossible

    @property
    def _is_paused(self) -> bool:
        """Whether no line may begin: somebody is served, or an operator drained the machine."""
        directory = self._services.supervisor.latest
        if directory is not None and directory.snapshot.drained:
            return True
        return any(True for _ in self._services.live.in_foreground)

    def _in_turn(self) -> Iterator[_Batch]:
        """Yield the oldest batch of each owner, each time another one first; then the others."""
        oldest: dict[str | None, _Batch] = {}
        others: list[_Batch] = []
        for batch in self._batches.values():
            if batch.row.status != BatchStatus.IN_PROGRESS:
                continue
            if oldest.setdefault(batch.row.owner, batch) is not batch:
                others.append(batch)
        batches = list(oldest.values())
        self._turn += 1
        for number in range(len(batches)):
            yield batches[(self._turn + number) % len(batches)]
        yield from others

    async def _fetch(self, batch: _Batch) -> None:
        """Know lines ahead; read the records again if none is left."""
        if batch.ready or batch.suspects:
            return
        if not batch.is_exhausted:
            lines = await self._files.perform(
                lambda records: batch_tables.next_lines(records, batch.row.id, batch.cursor, _AHEAD)
            )
            batch.ready.extend(lines)
            batch.cursor = lines[-1] if lines else batch.cursor
            batch.is_exhausted = not lines
        if not batch.is_exhausted or batch.running:
            return
        # Every line was answered, unless a result was lost on its way to the disk.
        row = await self._files.perform(
            lambda records: batch_tables.get(records, batch.row.id, batch.row.owner)
        )
        if row is None or row.status != BatchStatus.IN_PROGRESS:
            return
        if row.left:
            batch.cursor, batch.is_exhausted = None, False
            if batch.passed_over:
                # A large batch is not read from its beginning all the time.
                batch.passed_over, batch.stuck_until_s = False, time.monotonic() + _PLAN_S
            return
        self._is_stale = True

    async def _is_free(self, model_id: str) -> bool:
        """Return whether a line for a model may begin now."""
        directory = await self._services.supervisor.directory()
        model = self._view(directory, model_id)
        if model is None:
            return True  # It was removed: the request's own error says so.
        base_id = model.base or model.model_id
        running = self._running()
        if ready_instance(model) is not None:
            return running[base_id] < max(1, min(_AT_ONCE, model.max_rows))
        if running[base_id] or not can_serve(model):
            return False
        if model.slot not in (SlotState.COLD, SlotState.BACKOFF):
            return False  # It is on its way, for somebody.
        return self._may_be_loaded(base_id)

    def _may_be_loaded(self, model_id: str) -> bool:
        """Return whether a model may be loaded for a batch: at once, and without evicting what
        somebody used a short while ago, or what other lines use. It may not until the supervisor
        has said what a load would need."""
        at_s, allowed = self._may_load.get(model_id, (float("-inf"), False))
        now_s = time.monotonic()
        if now_s - at_s < _PLAN_S:
            return allowed
        if model_id not in self._plans:
            self._may_load[model_id] = now_s, False
            self._plans[model_id] = begin(self._plan(model_id), f"the plan to load {model_id}")
        return False

    async def _plan(self, model_id: str) -> None:
        """Find out whether a model may be loaded. One whose load can't even be planned waits, as
        one that is too large does: its repository can't be reached, for example."""
        try:
            plan = await ask(
                self._services.supervisor, PlanLoad(model_id), LoadPlan, COMMAND_DEADLINE_S
            )
        except LmxError as error:
            possible, allowed, reason = error.code in _PLANNED_LATER, False, error.message
        else:
            now_s, since_s = time.monotonic(), self._services.live.last_used_s
            in_use = set(self._running())
            in_use |= {
                self._base_id(name) for name, at_s in since_s.items() if now_s - at_s < _PERSONS_S
            }
            possible = plan.outcome in (LoadOutcome.LOADED, LoadOutcome.STARTS, LoadOutcome.EVICTS)
            allowed, reason = possible and in_use.isdisjoint(plan.evicts), plan.detail
        finally:
            del self._plans[model_id]
            self._files.changed.set()
        (self._impossible.discard if possible else self._impossible.add)(model_id)
        if not allowed:
            _log.info("batches.model_waits", model=model_id, reason=reason)
        self._may_load[model_id] = (time.monotonic(), allowed)

    def _running(self) -> Counter[str]:
        """Return how many lines are being answered by each model with a worker of its own."""
        return Counter(
            self._base_id(line.model)
            for batch in self._batches.values()
            for line in batch.running.values()
        )

    def _base_id(self, model_id: str) -> str:
        directory = self._services.supervisor.latest
        model = None if directory is None else self._view(directory, model_id)
        return model_id if model is None else model.base or model.model_id

    @staticmethod
    def _view(directory: Directory, model_id: str) -> ModelView | None:
        return directory.resolve(model_id) if directory.knows(model_id) else None

    # One line.

    def _start(self, batch: _Batch, line: LineRow, alone: bool) -> None:
        batch.tried_alone = alone
        task = asyncio.create_task(
            self._answer_line(batch, line, alone), name=f"{batch.row.id}/{line.number}"
        )
        batch.running[task] = line
        task.add_done_callback(lambda done: self._ended(batch, done, alone))

    async def _answer_line(self, batch: _Batch, line: LineRow, alone: bool) -> None:
        row = batch.row
        raw = await asyncio.to_thread(os.pread, batch.input, line.size_bytes, line.offset)
        body = request_of(row.endpoint, parse_line(raw, row.endpoint).body)
        allowed, key = self._key_of(row)
        if not allowed:
            # Its batch is about to be cancelled.
            self._is_stale = True
            raise asyncio.CancelledError
        answered = await self._answer(row.endpoint, body, key)
        suspicious = answered.code in SUSPICIOUS or self._is_too_large(line, answered.code, alone)
        if answered.code in PASSING and not suspicious:
            batch.ready.appendleft(line)
            pause_s = _PAUSES_S[min(batch.failures, len(_PAUSES_S) - 1)]
            batch.failures += 1
            batch.not_before_s = time.monotonic() + pause_s
            return
        batch.failures = 0
        if suspicious and not alone:
            batch.suspects.append(line)
            return
        if answered.code in PASSING:
            answered.record()
        result = _result(row.endpoint, answered)
        self._files.put_result(row.id, line.number, result)
        self._services.metrics.batch_line_answered(ok=result.ok)
        self.lines_left = max(0, self.lines_left - 1)

    def _is_too_large(self, line: LineRow, code: ErrorCode | None, alone: bool) -> bool:
        """Return whether a line that found no memory may need too much of it itself: its model is
        loaded, memory is not short, and nobody else is served. If the line was tried ``alone``, its
        model must have answered no line of another owner meanwhile either."""
        directory = self._services.supervisor.latest
        if code is not ErrorCode.INSUFFICIENT_MEMORY or directory is None or self._is_paused:
            return False
        if alone and self._running()[self._base_id(line.model)] > 1:
            return False
        model = self._view(directory, line.model)
        is_loaded = model is not None and ready_instance(model) is not None
        return is_loaded and not directory.snapshot.no_loads

    def _ended(self, batch: _Batch, task: asyncio.Task[None], alone: bool) -> None:
        line = batch.running.pop(task)
        batch.tried_alone = False
        if task.cancelled():
            (batch.suspects if alone else batch.ready).appendleft(line)
        elif (error := task.exception()) is not None:
            _log.error("batches.line_failed", batch=batch.row.id, line=line.number, exc_info=error)
            batch.ready.appendleft(line)
            batch.not_before_s = time.monotonic() + _PAUSES_S[-1]
        self._files.changed.set()


def _result(endpoint: str, answered: Answered) -> Result:
    ok = answered.code is None and answered.status < 400
    tokens = tokens_of(endpoint, answered.body) if ok else (0, 0, 0, 0)
    return Result(ok, answered.status, answered.request_id, answered.body, *tokens)


def tokens_of(endpoint: str, body: bytes) -> tuple[int, int, int, int]:
    """Return the tokens of an answer: of the prompt, of these the cached ones, those of the answer,
    and of these the reasoning ones. Vectors, which may be 40 MB of numbers, are not parsed."""
    if endpoint == "/v1/embeddings":
        usage = orjson.loads(body[body.rindex(_USAGE) + len(_USAGE) : -1])
    else:
        usage = orjson.loads(body).get("usage") or {}
    cached = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    made = usage.get("completion_tokens_details") or usage.get("output_tokens_details") or {}
    return (
        usage.get("prompt_tokens", usage.get("input_tokens", 0)),
        cached.get("cached_tokens", usage.get("cache_read_input_tokens", 0)) or 0,
        usage.get("completion_tokens", usage.get("output_tokens", 0)) or 0,
        made.get("reasoning_tokens", 0) or 0,
    )


def _locked(lock: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False

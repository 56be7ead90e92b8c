"""Several prompts of one request as one generation: they begin together and fail together."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Final

from lmx.protocol.errors import LmxError
from lmx.protocol.messages.data import Finished, Generate, Timings, Usage
from lmx.protocol.messages.snapshot import ModelView
from lmx.router.workers.dispatch import Dispatcher, Generation
from lmx.router.workers.stream import NOTHING, Batch, Sink
from lmx.router.workers.waits import Waits

_WAIT_S: Final = 60.0
"""How long one wait for more output lasts; then the next begins."""


class PromptGroup:
    """The output of several generations, in one order. The answers are numbered throughout: those
    of a prompt follow those of the prompt before."""

    def __init__(self, prompts: int, answers_each: int) -> None:
        self.prompt_tokens = 0
        self.load_s = 0.0
        self.queued = 0
        self.remarks: tuple[str, ...] = ()
        self.ignored: tuple[str, ...] = ()
        self._prompt_ids: list[tuple[int, ...]] = [()] * prompts
        self._answers_each = answers_each
        self._waiting = prompts
        self._running = prompts
        self._finished: list[Finished] = []
        self._verdict = asyncio.get_running_loop().create_future()
        # One place for each prompt: a generation whose batch waits here gets no credit.
        self._batches: asyncio.Queue[Batch | Exception] = asyncio.Queue(maxsize=prompts)

    @property
    def prompt_ids(self) -> tuple[tuple[int, ...], ...]:
        """The tokens of each prompt, if they were requested."""
        return tuple(self._prompt_ids)

    async def accepted(self) -> None:
        """Wait until all prompts are accepted. Raises the error with which the first was
        refused."""
        await self._verdict

    async def next_batch(self, wait_s: float) -> Batch:
        """Return the output that one of the prompts has ready; raises if one is lost."""
        try:
            async with asyncio.timeout(wait_s):
                batch = await self._batches.get()
        except TimeoutError:
            return NOTHING
        if isinstance(batch, Exception):
            raise batch
        if batch.finished is None:
            return batch
        self._finished.append(batch.finished)
        self._running -= 1
        return replace(batch, finished=None if self._running else _sum(self._finished))

    def relay_to(self, sink: Sink) -> None:
        """Do nothing: what several generations give is brought into one order first, and taken."""

    async def follow(self, prompt: int, opening: AbstractAsyncContextManager[Generation]) -> None:
        """Pass on the output of one prompt's generation, until it ends or is lost."""
        try:
            async with opening as generation:
                self._prompt_ids[prompt] = generation.prompt_ids[0]
                self._accept(generation)
                while True:
                    batch = await generation.next_batch(_WAIT_S)
                    if batch.deltas or batch.ended or batch.finished:
                        await self._batches.put(_moved(batch, prompt * self._answers_each))
                    if batch.finished is not None:
                        return
        except Exception as error:  # It is raised where the whole is waited for.
            if isinstance(error, LmxError) and error.param in ("prompt", "prompt_tokens"):
                error.param = f"prompt[{prompt}]"
            if not self._verdict.done():
                self._verdict.set_exception(error)
            else:
                await self._batches.put(error)

    def _accept(self, generation: Generation) -> None:
        self.prompt_tokens += generation.prompt_tokens
        self.load_s = max(self.load_s, generation.load_s)
        self.queued = max(self.queued, generation.queued)
        self.remarks = tuple(dict.fromkeys((*self.remarks, *generation.remarks)))
        # All prompts have the same form.
        self.ignored = generation.ignored
        self._waiting -= 1
        if not self._waiting and not self._verdict.done():
            self._verdict.set_result(None)


@asynccontextmanager
async def generate_all(
    dispatcher: Dispatcher, model: ModelView, requests: Sequence[Generate], waits: Waits
) -> AsyncIterator[Generation | PromptGroup]:
    """Have all of ``requests`` accepted by a worker of ``model``; cancel them on the way out.

    Raises the error with which the first of them is refused; the others are cancelled then. A
    single request is not grouped. ``waits`` notes what the first of them waits for.
    """
    if len(requests) == 1:
        async with dispatcher.generate(model, requests[0], waits) as generation:
            yield generation
        return
    group = PromptGroup(len(requests), requests[0].search.n)
    followers = [
        asyncio.create_task(
            group.follow(prompt, dispatcher.generate(model, request, Waits() if prompt else waits))
        )
        for prompt, request in enumerate(requests)
    ]
    try:
        await group.accepted()
        yield group
    finally:
        for follower in followers:
            follower.cancel()
        await asyncio.gather(*followers, return_exceptions=True)


def _moved(batch: Batch, by: int) -> Batch:
    if not by:
        return batch
    return Batch(
        tuple(replace(delta, index=delta.index + by) for delta in batch.deltas),
        tuple(replace(fact, index=fact.index + by) for fact in batch.ended),
        batch.finished,
    )


def _sum(finished: Sequence[Finished]) -> Finished:
    """Return the ends of all prompts as one. Counts are added up. The times are those of one answer
    that is made of all: until the first token of any, and from there to the last token of all. The
    prompts came together; they ran side by side, or one after the other."""
    usages = [end.usage for end in finished]
    timings = [end.timings for end in finished]
    known = [one.energy_joules for one in timings if one.energy_joules is not None]
    first = min(timings, key=_first_token_s)
    last_s = max(_first_token_s(timing) + timing.decode_s for timing in timings)
    return Finished(
        finished[0].stream_id,
        Usage(
            prompt_tokens=sum(usage.prompt_tokens for usage in usages),
            completion_tokens=sum(usage.completion_tokens for usage in usages),
            cached_tokens=sum(usage.cached_tokens for usage in usages),
            reasoning_tokens=sum(usage.reasoning_tokens for usage in usages),
        ),
        Timings(
            queue_s=first.queue_s,
            prefill_s=first.prefill_s,
            decode_s=last_s - _first_token_s(first),
            drafted_tokens=sum(timing.drafted_tokens for timing in timings),
            accepted_tokens=sum(timing.accepted_tokens for timing in timings),
            energy_joules=sum(known) if len(known) == len(timings) else None,
        ),
        tuple(dict.fromkeys(remark for end in finished for remark in end.remarks)),
        next((end.reread for end in finished if end.reread is not None), None),
    )


def _first_token_s(timing: Timings) -> float:
    return timing.queue_s + timing.prefill_s

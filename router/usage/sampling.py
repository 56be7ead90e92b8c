"""Looks every few seconds at what is going on, for the history of the figures."""

import asyncio

import structlog

from lmx.protocol.errors import LmxError
from lmx.protocol.messages.status import ModelStatus, SystemStatus
from lmx.router.supervisor.link import SupervisorLink
from lmx.router.supervisor.queries import live_status
from lmx.router.usage.store import UsageStore
from lmx.router.usage.tables import SAMPLE_S, Minute

_log = structlog.get_logger()


async def sample(supervisor: SupervisorLink, store: UsageStore) -> None:
    """Put what the supervisor reports into the store, until cancelled. While it does not answer,
    there are no figures."""
    seen = TokensSeen()
    while True:
        try:
            await supervisor.directory()  # at the start there is no supervisor yet
            status = await live_status(supervisor)
        except LmxError as error:
            _log.debug("usage.sample_failed", error=error.message)
        else:
            store.sampled(figures_of(status, seen))
        await asyncio.sleep(SAMPLE_S)


class TokensSeen:
    """How many tokens the workers had generated when they were looked at last."""

    def __init__(self) -> None:
        self._seen: dict[str, int] | None = None

    def new(self, models: tuple[ModelStatus, ...]) -> dict[str, int]:
        """Return how many the worker of each model has generated since; a new worker counts from 0
        again, as another instance. What there was before the first look is not new."""
        before = self._seen
        # The figures of a worker that was just adopted are not known yet.
        self._seen = {
            one.instance: max(one.figures.tokens_total, (before or {}).get(one.instance, 0))
            for one in models
            if one.instance is not None
        }
        if before is None:
            return {}
        return {
            one.model: self._seen[one.instance] - before.get(one.instance, 0)
            for one in models
            if one.instance is not None
        }


def figures_of(status: SystemStatus, seen: TokensSeen) -> dict[str, Minute]:
    """Return the figures of each model that has a worker or a request, and of all."""
    new_tokens = seen.new(status.workers)
    whole = Minute()
    found = {"": whole}
    for model in status.workers:
        one = Minute(
            tokens=new_tokens.get(model.model, 0),
            waiting=model.waiting + model.requests_queued,
            running=model.requests_active,
            memory_bytes=model.figures.held_bytes,
        )
        if one == Minute():
            continue
        found[model.model] = one
        whole.tokens += one.tokens
        whole.waiting += one.waiting
        whole.running += one.running
        whole.memory_bytes += one.memory_bytes
    return found

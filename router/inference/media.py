"""A generation, whose prompt may have images, sounds or videos."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace

from aiohttp import web

from lmx.protocol.messages.data import Generate
from lmx.protocol.messages.snapshot import ModelView
from lmx.router.http.access import own_request
from lmx.router.http.outcome import CONTEXT
from lmx.router.jobs.job import Source
from lmx.router.media.source import MediaSource
from lmx.router.services import SERVICES, Services
from lmx.router.workers.waits import Waits


def generation(
    request: web.Request, generate: Generate, sources: Sequence[MediaSource] = ()
) -> Callable[[ModelView, Waits], AbstractAsyncContextManager[Source]]:
    """Return what begins the generation on a model, as the request's own: see
    :meth:`lmx.router.workers.dispatch.Dispatcher.generate`. Media are read first.

    Raises :class:`lmx.protocol.errors.RequestError` for faults of the media that show at once.
    """
    services = request.app[SERVICES]
    generate = own_request(generate, request[CONTEXT])
    if not sources:
        return lambda model, waits: services.dispatcher.generate(model, generate, waits)
    services.media.check(sources)
    left = list(sources)
    return lambda model, waits: _with_media(services, model, generate, waits, left)


@asynccontextmanager
async def _with_media(
    services: Services,
    model: ModelView,
    generate: Generate,
    waits: Waits,
    sources: list[MediaSource],
) -> AsyncIterator[Source]:
    async with services.media.read(sources, generate.owner) as held:
        asked = replace(generate, media=held.items)
        async with services.dispatcher.generate(model, asked, waits, held) as begun:
            # It was accepted, so that it is never sent again, and no other model is tried.
            sources.clear()
            yield begun

"""Which models may answer a request, and the model's name for the request's log line."""

from collections.abc import Sequence

from aiohttp import web

from lmx.protocol.messages.data import Infill
from lmx.protocol.messages.snapshot import ModelView
from lmx.protocol.states import MediaKind
from lmx.router.http.endpoint import kind_of_models
from lmx.router.http.outcome import Outcome, set_outcome
from lmx.router.media.source import MediaSource
from lmx.router.services import directory_for
from lmx.router.supervisor.directory import require_kind
from lmx.router.supervisor.routing import accepting_media, candidates, filling


async def models_for(
    request: web.Request,
    name: str | None,
    *,
    stream: bool | None = None,
    media: Sequence[MediaSource] = (),
) -> Sequence[ModelView]:
    """Return the models that ``name`` may mean, at least one, of any kind. The first is to be tried
    first. The kind of the route's models selects which default model is meant if there is no name.

    The request counts for the first one until another one answers. ``stream`` is whether the
    answer streams. Raises MODEL_NOT_FOUND and SUPERVISOR_UNAVAILABLE, and :class:`RequestError` if
    no model takes the ``media`` of the request.
    """
    models = candidates(await directory_for(request), name, kind_of_models(request))
    set_outcome(request, Outcome(model=models[0].model_id, stream=stream))
    return await _accepting(request, models, media, stream=stream)


async def models_of_kind(
    request: web.Request,
    name: str | None,
    *,
    stream: bool | None = None,
    media: Sequence[MediaSource] = (),
    infill: Infill | None = None,
) -> Sequence[ModelView]:
    """Return the same as :func:`models_for`, but raise also if the first model is of another kind,
    which could never answer, and if no model takes the ``media`` of the request or fills a gap
    that it has."""
    models = await models_for(request, name, stream=stream)
    kind = kind_of_models(request)
    if kind is not None:
        require_kind(models[0], kind)
    if infill is not None:
        models = filling(await directory_for(request), models, infill.param)
        set_outcome(request, Outcome(model=models[0].model_id, stream=stream))
    return await _accepting(request, models, media, stream=stream)


async def _accepting(
    request: web.Request,
    models: Sequence[ModelView],
    media: Sequence[MediaSource],
    *,
    stream: bool | None,
) -> Sequence[ModelView]:
    if not media:
        return models
    wanted: dict[MediaKind, str] = {}
    for source in media:
        wanted.setdefault(source.kind, source.param)
    fit = accepting_media(await directory_for(request), models, wanted)
    set_outcome(request, Outcome(model=fit[0].model_id, stream=stream))
    return fit

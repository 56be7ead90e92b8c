"""Which models may answer a request, and the first word of them for its log line."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from lmx.protocol.messages.snapshot import ModelView
from lmx.protocol.states import ModelKind
from lmx.router.http.outcome import Outcome, set_outcome
from lmx.router.services import SERVICES
from lmx.router.supervisor.directory import require_kind
from lmx.router.supervisor.routing import candidates


async def models_for(
    request: web.Request, name: str | None, kind: ModelKind | None, *, stream: bool | None = None
) -> Sequence[ModelView]:
    """Return the models that ``name`` may mean, the one to try first at the front; ``kind`` says
    which default model is meant where there is no name. At least one, of any kind.

    The request counts as the first one's until another one answers. ``stream``: whether the
    answer streams. Raises MODEL_NOT_FOUND and SUPERVISOR_UNAVAILABLE.
    """
    models = candidates(await request.app[SERVICES].supervisor.directory(), name, kind)
    set_outcome(request, Outcome(model=models[0].model_id, stream=stream))
    return models


async def models_of_kind(
    request: web.Request, name: str | None, kind: ModelKind, *, stream: bool | None = None
) -> Sequence[ModelView]:
    """Return the same as :func:`models_for`. Raises also when the first model is of another kind,
    which could never answer."""
    models = await models_for(request, name, kind, stream=stream)
    require_kind(models[0], kind)
    return models

"""GET /v1/models and /v1/models/{id}: what can be asked for, loaded or not."""

from __future__ import annotations

from typing import Any

import orjson
from aiohttp import web

from lmx.protocol.control import ModelView
from lmx.router.directory import shown_state
from lmx.router.services import SERVICES


async def list_models(request: web.Request) -> web.Response:
    """Return every configured model."""
    models = (await request.app[SERVICES].supervisor.directory()).models
    return _json({"object": "list", "data": [model_object(model) for model in models]})


async def get_model(request: web.Request) -> web.Response:
    """Return one model, by id, alias or source. Ids contain slashes."""
    directory = await request.app[SERVICES].supervisor.directory()
    return _json(model_object(directory.resolve(request.match_info["id"])))


def model_object(model: ModelView) -> dict[str, Any]:
    """Return a model as OpenAI shows it, with lmx's fields beside. Its kind is null until it is
    known: of a source that was never fetched there are no files to read it from."""
    return {
        "id": model.model_id,
        "object": "model",
        "created": model.created_s,
        "owned_by": _owner(model.source),
        "state": shown_state(model),
        "aliases": list(model.aliases),
        "context_length": model.context_length,
        "modalities": ["text"],
        "kind": None if model.kind is None else model.kind.value,
        "capabilities": list(model.capabilities),
    }


def _owner(source: str) -> str:
    # The owner of a hub repository. A path on this machine's disk is nobody's business.
    owner, slash, name = source.partition("/")
    is_repository = slash and owner and name and "/" not in name and owner[0] not in ".~"
    return owner if is_repository else "lmx"


def _json(value: dict[str, Any]) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type="application/json")

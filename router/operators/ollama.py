"""The models as clients of Ollama see them: /api/tags, /api/ps, /api/show and /api/version.

Clients of Ollama also want models fetched, made, copied and deleted. Here only operators may; each
of these routes says what an operator does instead.
"""

from __future__ import annotations

import hashlib
import time
from typing import Any, Final, Literal, NotRequired

import orjson
from aiohttp import web

from lmx.protocol.errors import ErrorCode, LmxError, RequestError
from lmx.protocol.messages.snapshot import ModelView
from lmx.protocol.states import MediaKind, ModelKind
from lmx.router.http.api_family import OLLAMA
from lmx.router.http.bodies.json_body import read_object
from lmx.router.http.responses import Answer, json_value
from lmx.router.operators.version import Version
from lmx.router.rendering.ollama import time_text
from lmx.router.schema.requests.ollama.common import parse_ollama_pull, parse_ollama_show
from lmx.router.services import SERVICES, directory_for, listed_for
from lmx.router.supervisor.link import SupervisorLink
from lmx.router.supervisor.queries import live_status
from lmx.router.supervisor.routing import candidates, tagged, untagged

SPOKEN_VERSION: Final = "0.12.11"
"""The version of Ollama whose API is followed. Clients refuse a server that is too old."""

_NEVER_S: Final = 10_000_000_000
"""When a model expires that stays loaded: in the year 2286, since clients want a time."""


_CAPABILITIES: Final[dict[str, Capability]] = {
    "tools": "tools",
    "reasoning": "thinking",
    "infill": "insert",
}
"""Ollama's names for what a chat model can do."""

_UNTIL_LOADED: Final = ("tools",)
"""What a chat model is taken to be capable of until it was loaded for the first time: with a chat
template any model takes functions."""

_SENSES: Final[dict[MediaKind, Capability]] = {MediaKind.IMAGE: "vision", MediaKind.AUDIO: "audio"}
"""Ollama's names for what a chat model takes besides text."""


class OllamaDetails(Answer):
    """What is known of a model's files."""

    parent_model: str
    """The model that an adapter belongs to; else empty."""
    format: Literal["mlx"]
    family: str
    """The name of its architecture; empty until its files are known."""
    families: list[str]
    parameter_size: str
    """It is not counted, and always empty."""
    quantization_level: str
    """It is not reported, and always empty."""


Capability = Literal["completion", "tools", "thinking", "insert", "vision", "audio", "embedding"]


class OllamaModel(Answer):
    """A model in a list."""

    name: str
    """Its id, with a tag."""
    model: str
    """The same."""
    modified_at: str
    """When its files were made."""
    size: int
    """How much its files take on the disk; 0 until they are known."""
    digest: str
    """It identifies the model; it is not a hash of the files."""
    details: OllamaDetails
    context_length: int
    """In tokens; 0 where it is not known."""
    capabilities: list[Capability]
    """What it can do, as in POST /api/show."""


class OllamaModels(Answer):
    """The answer of GET /api/tags: every model."""

    models: list[OllamaModel]


class OllamaLoadedModel(Answer):
    """A model that is loaded."""

    name: str
    model: str
    size: int
    """The memory that it takes."""
    size_vram: int
    """The same: memory is unified."""
    digest: str
    details: OllamaDetails
    context_length: int
    """In tokens; 0 where it is not known."""
    expires_at: NotRequired[str | None]
    """When it is unloaded if no request comes: in 2286 if it stays loaded. While it has a request,
    that is not known."""


class OllamaLoadedModels(Answer):
    """The answer of GET /api/ps: every loaded model."""

    models: list[OllamaLoadedModel]


class OllamaModelDetails(Answer):
    """The answer of POST /api/show."""

    modelfile: str
    """A comment: there is no such file."""
    parameters: str
    template: str
    license: str
    """All three are empty: they stand in the model's own files."""
    details: OllamaDetails
    model_info: dict[str, Any]
    """The architecture, and its `context_length`."""
    capabilities: list[Capability]
    """What it can do. Of a chat model that was never loaded, `tools` is taken for granted, and
    `thinking` is not known yet."""
    modified_at: str


class OllamaProgressLine(Answer):
    """The answer of POST /api/pull, and the only line of its stream."""

    status: Literal["success"]
    """The model is there."""


async def ollama_tags(request: web.Request) -> web.Response:
    """Return every model."""
    directory = await listed_for(request, openai=False)
    return json_value(OllamaModels(models=[_listed(model) for model in directory.models]))


async def ollama_ps(request: web.Request) -> web.Response:
    """Return every loaded model."""
    services = request.app[SERVICES]
    directory = await directory_for(request)
    loaded = [model for model in directory.bases if model.state.loaded]
    ends = await _ends(services.supervisor)
    return json_value(
        OllamaLoadedModels(models=[_loaded(model, ends.get(model.model_id)) for model in loaded])
    )


async def _ends(supervisor: SupervisorLink) -> dict[str, str]:
    """Return when each model that is idle is unloaded if no request comes; nothing while the
    supervisor does not answer."""
    try:
        status = await live_status(supervisor)
    except LmxError:
        return {}
    now_s = time.time()
    idle = [model for model in status.workers if model.idle_s is not None]
    return {
        model.model: time_text(
            _NEVER_S if model.expires_in_s is None else round(now_s + model.expires_in_s)
        )
        for model in idle
    }


async def ollama_show(request: web.Request) -> web.Response:
    """Return what is known of one model."""
    services = request.app[SERVICES]
    name = parse_ollama_show(await read_object(request, services.spec.body_limit_bytes))
    directory = await directory_for(request)
    model = candidates(directory, untagged(directory, name), None)[0]
    return json_value(
        OllamaModelDetails(
            modelfile=f"# {model.model_id} is served by lmx",
            parameters="",
            template="",
            license="",
            details=_details(model),
            model_info=_info(model),
            capabilities=capabilities_of(model),
            modified_at=time_text(model.created_s),
        )
    )


async def ollama_pull(request: web.Request) -> web.Response:
    """Report that a model that is served exists. Clients pull a model before they use it."""
    services = request.app[SERVICES]
    named, streams = parse_ollama_pull(await read_object(request, services.spec.body_limit_bytes))
    directory = await directory_for(request)
    name = untagged(directory, named)
    if not directory.knows(name):
        raise directory.no_such_model(
            name,
            " Models are not pulled here: on lmx's own machine run `lmx pull "
            "ORG/NAME`, with a repository in MLX form, or add the model to lmx.yaml.",
        )
    directory.resolve(name)
    done = OllamaProgressLine(status="success")
    if streams:
        line = orjson.dumps(done) + b"\n"
        return web.Response(body=line, content_type=OLLAMA.stream_type)
    return json_value(done)


async def ollama_create(_: web.Request) -> web.Response:
    """Refuse to make a model."""
    raise _refusal(
        "made",
        "add a model to lmx.yaml, with its aliases, sampling and chat template, and run "
        "`lmx reload`",
    )


async def ollama_copy(_: web.Request) -> web.Response:
    """Refuse to copy a model."""
    raise _refusal(
        "copied", "give the model a further name in lmx.yaml (`aliases`), and run `lmx reload`"
    )


async def ollama_delete(_: web.Request) -> web.Response:
    """Refuse to delete a model."""
    raise _refusal("deleted", "run `lmx rm MODEL`")


async def ollama_push(_: web.Request) -> web.Response:
    """Refuse to publish a model."""
    raise _refusal("published", "upload its folder with the hub's own tool, `hf upload`")


def _refusal(what: str, instead: str) -> RequestError:
    return RequestError(
        ErrorCode.UNSUPPORTED_VALUE,
        f"Models are not {what} over Ollama's API: on lmx's own machine {instead}.",
    )


async def ollama_version(request: web.Request) -> web.Response:
    """Return the version of Ollama whose API is followed. lmx's own is at /version."""
    return json_value(Version(version=SPOKEN_VERSION))


def _listed(model: ModelView) -> OllamaModel:
    name = tagged(model.model_id)
    return OllamaModel(
        name=name,
        model=name,
        modified_at=time_text(model.created_s),
        size=model.disk_bytes,
        digest=_digest(model),
        details=_details(model),
        context_length=model.context_length or 0,
        capabilities=capabilities_of(model),
    )


def _loaded(model: ModelView, ends_at: str | None) -> OllamaLoadedModel:
    name = tagged(model.model_id)
    loaded = OllamaLoadedModel(
        name=name,
        model=name,
        size=model.memory_bytes,
        size_vram=model.memory_bytes,
        digest=_digest(model),
        details=_details(model),
        context_length=model.context_length or 0,
    )
    if ends_at is not None:
        loaded["expires_at"] = ends_at
    return loaded


def _details(model: ModelView) -> OllamaDetails:
    family = model.family or ""
    return OllamaDetails(
        parent_model=model.base or "",
        format="mlx",
        family=family,
        families=[family] if family else [],
        parameter_size="",
        quantization_level="",
    )


def _info(model: ModelView) -> dict[str, Any]:
    family = model.family or "unknown"
    info: dict[str, Any] = {"general.architecture": family, "general.basename": model.model_id}
    if model.context_length is not None:
        info[f"{family}.context_length"] = model.context_length
    return info


def capabilities_of(model: ModelView) -> list[Capability]:
    """Return Ollama's names for what a model can do. Clients offer no more than is named here."""
    if model.kind is ModelKind.EMBEDDING:
        return ["embedding"]
    if model.kind not in (ModelKind.CHAT, None):
        return []
    known_words = model.capabilities or (*_UNTIL_LOADED, *(["infill"] if model.infills else ()))
    known = [_CAPABILITIES[one] for one in known_words if one in _CAPABILITIES]
    seen = [_SENSES[kind] for kind in model.media or () if kind in _SENSES]
    return ["completion", *known, *seen]


def _digest(model: ModelView) -> str:
    # Clients take names with the same digest for one model, and ask for any of them.
    return hashlib.sha256(f"{model.model_id}\0{model.source}".encode()).hexdigest()

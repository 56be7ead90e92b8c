"""Kolosal's /engines: models that are added, loaded, listed and removed while lmx runs.

Every model is an engine, also those of the configuration.
"""

from typing import Final, Literal

import structlog
from aiohttp import web

from lmx.protocol.errors import ErrorCode, LmxError, UnavailableError
from lmx.protocol.messages.control import Done
from lmx.protocol.messages.inventory import AddModel, RemoveModel
from lmx.protocol.messages.snapshot import ModelView
from lmx.protocol.messages.status import ModelStatus
from lmx.protocol.states import ModelState
from lmx.router.http.bodies.json_body import read_object
from lmx.router.http.outcome import Outcome, set_outcome
from lmx.router.http.responses import Answer, json_value, to_mb
from lmx.router.operators.models import gone, loaded
from lmx.router.schema.requests.operators import EngineRequest
from lmx.router.schema.validation import validated
from lmx.router.services import SERVICES, Services
from lmx.router.supervisor.link import unavailable
from lmx.router.supervisor.queries import (
    ask,
    command,
    live_status,
    params_named,
    seen_in_snapshot,
)

_ADD_DEADLINE_S: Final = 30.0
"""The supervisor looks into the model's folder first."""

_FIELDS: Final = {
    "model": "engine_id",
    "model_id": "engine_id",
    "source": "model_path",
    "context_length": "n_ctx",
}

_DEFAULTS: Final = EngineRequest(engine_id="any", model_path="any")
"""The parameters of models from the configuration, for which nobody has set any."""

_ON_ITS_WAY: Final = frozenset(
    {
        ModelState.QUEUED,
        ModelState.FETCHING,
        ModelState.BACKOFF,
        ModelState.STARTING,
        ModelState.LOADING,
    }
)

_NO_FAILURE: Final = frozenset(
    {
        ErrorCode.MODEL_LOADING,
        ErrorCode.QUEUE_FULL,
        ErrorCode.SUPERVISOR_UNAVAILABLE,
        ErrorCode.SHUTTING_DOWN,
    }
)
"""Errors of a load that may still end well: the engine stays, and the same request waits for it
again."""

_log = structlog.get_logger()


EngineState = Literal["loaded", "loading", "unloaded"]


class EngineParameters(Answer):
    """The parameters of an engine."""

    n_ctx: int | None
    """How many tokens its context has. Null until it is known."""
    n_gpu_layers: int
    """The value of the request. Memory is unified, so it has no effect."""
    main_gpu_id: int
    """The value of the request. There is one GPU, so it has no effect."""


class EngineLine(Answer):
    """One engine in a list."""

    engine_id: str
    status: EngineState
    model_path: str


class EnginesAnswer(Answer):
    """The answer of GET /engines: every model."""

    engines: list[EngineLine]


class EngineAnswer(EngineLine):
    """The answer of POST /engines."""

    parameters: EngineParameters


class EngineMemory(Answer):
    """The memory of an engine."""

    model_size_mb: int
    """What the weights take. 0 until it is known."""
    context_size_mb: int
    """What as many full contexts as `concurrency` allows take together. 0 until it is known."""


class EnginePerformance(Answer):
    """What an engine has done."""

    last_inference_tps: float
    """The tokens per second of the last answer; 0 before the first."""
    total_requests: int
    """Its requests since lmx was started, or since it was loaded if that number is higher."""


class EngineStatusAnswer(EngineAnswer):
    """The answer of GET /engines/{id}/status."""

    memory_usage: EngineMemory
    performance: EnginePerformance
    problem: str | None
    """Why it is not loaded, if something went wrong."""


class EngineRemoved(Answer):
    """The answer of DELETE /engines/{id}."""

    engine_id: str
    status: Literal["removed"]


async def list_engines(request: web.Request) -> web.Response:
    """Return every engine, loaded or not."""
    models = (await request.app[SERVICES].supervisor.directory()).bases
    return json_value(EnginesAnswer(engines=[_line(model) for model in models]))


async def add_engine(request: web.Request) -> web.Response:
    """Add a model and load it. An engine that exists with the same settings is loaded as it is.
    With ``load_immediately: false`` it is only added.

    An engine that can't be loaded is removed again. A client that leaves does not stop the load.
    """
    services = request.app[SERVICES]
    wanted = validated(EngineRequest, await read_object(request, services.spec.body_limit_bytes))
    parameters = _given(wanted)
    with params_named(_FIELDS):
        was_there = (await services.supervisor.directory()).model(wanted.engine_id) is not None
        question = AddModel(
            wanted.engine_id,
            wanted.model_path,
            wanted.n_ctx,
            dict(parameters),
            context_at_most="n_ctx" not in wanted.model_fields_set,
        )
        await ask(services.supervisor, question, Done, _ADD_DEADLINE_S)
        if not wanted.load_immediately:
            await seen_in_snapshot(
                services.supervisor, lambda now: now.model(wanted.engine_id) is not None
            )
            return json_value(_added(wanted, "unloaded", parameters), 201)
        try:
            model = await loaded(request, wanted.engine_id)
        except LmxError as error:
            if was_there or error.code in _NO_FAILURE:
                raise
            raise await _rolled_back(services, wanted.engine_id, error) from error
    shown: EngineParameters = {
        **parameters,
        "n_ctx": model.context_length or parameters["n_ctx"],
    }
    return json_value(_added(wanted, "loaded", shown), 201)


def _added(wanted: EngineRequest, status: EngineState, parameters: EngineParameters) -> Answer:
    return EngineAnswer(
        engine_id=wanted.engine_id,
        status=status,
        model_path=wanted.model_path,
        parameters=parameters,
    )


async def remove_engine(request: web.Request) -> web.Response:
    """Unload an engine that was added through this API, and forget it; its files stay."""
    services = request.app[SERVICES]
    with params_named(_FIELDS):
        model = await _find(request)
        await command(services.supervisor, RemoveModel(model.model_id))
        await gone(services, model)
        await seen_in_snapshot(services.supervisor, lambda now: now.model(model.model_id) is None)
    return json_value(EngineRemoved(engine_id=model.model_id, status="removed"))


async def engine_status(request: web.Request) -> web.Response:
    """Return one engine with its memory and its performance."""
    services = request.app[SERVICES]
    with params_named(_FIELDS):
        model = await _find(request)
    status = await live_status(services.supervisor)
    found = status.model(model.model_id)
    if found is None:
        raise unavailable(f"lmx's supervisor does not know {model.model_id!r}.")
    rate = services.metrics.last_tokens_per_s(model.model_id)
    return json_value(
        EngineStatusAnswer(
            **_line(model),
            parameters=_shown(found, model),
            memory_usage=EngineMemory(
                model_size_mb=to_mb(found.weights_bytes or 0),
                context_size_mb=to_mb(found.context_bytes or 0),
            ),
            performance=EnginePerformance(
                last_inference_tps=round(rate or 0.0, 2),
                total_requests=services.metrics.requests_of(found),
            ),
            problem=found.problem,
        )
    )


def engine_state(model: ModelView) -> EngineState:
    """Return Kolosal's name for the state of a model."""
    if model.state.loaded:
        return "loaded"
    return "loading" if model.state in _ON_ITS_WAY else "unloaded"


def _line(model: ModelView) -> EngineLine:
    return EngineLine(engine_id=model.model_id, status=engine_state(model), model_path=model.source)


def _given(wanted: EngineRequest) -> EngineParameters:
    return EngineParameters(
        n_ctx=wanted.n_ctx, n_gpu_layers=wanted.n_gpu_layers, main_gpu_id=wanted.main_gpu_id
    )


def _shown(status: ModelStatus, model: ModelView) -> EngineParameters:
    """Return the parameters of an engine; it may have been loaded with another context since."""
    given = status.parameters
    return EngineParameters(
        n_ctx=model.context_length,
        n_gpu_layers=given.get("n_gpu_layers", _DEFAULTS.n_gpu_layers),
        main_gpu_id=given.get("main_gpu_id", _DEFAULTS.main_gpu_id),
    )


async def _find(request: web.Request) -> ModelView:
    directory = await request.app[SERVICES].supervisor.directory()
    model = directory.base(directory.resolve(request.match_info["id"]))
    set_outcome(request, Outcome(model=model.model_id))
    return model


async def _rolled_back(services: Services, engine_id: str, error: LmxError) -> LmxError:
    """Remove an engine that can't be loaded, and return the error to report.

    The model's quarantine goes with it, so that the failure itself is reported.
    """
    reported = error
    try:
        if error.code is ErrorCode.MODEL_QUARANTINED:
            model = (await live_status(services.supervisor)).model(engine_id)
            last = None if model is None else model.last_exit
            reported = UnavailableError(
                ErrorCode.MODEL_LOAD_FAILED,
                f"{engine_id} could not be loaded, and was not added: "
                f"{(last.detail if last is not None else '') or error.message}",
            )
        await command(services.supervisor, RemoveModel(engine_id))
        await seen_in_snapshot(services.supervisor, lambda now: now.model(engine_id) is None)
    except LmxError as failure:
        _log.warning("engine.rollback_failed", model=engine_id, error=failure.message)
    return reported

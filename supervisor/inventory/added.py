"""The models that are served although the configuration does not name them, because somebody added
or downloaded them.

:func:`read_added` checks the values of a question for such a model.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pydantic import ValidationError

from lmx.protocol.errors import ErrorCode, LmxError, OperationError, RequestError
from lmx.protocol.messages.inventory import AddModel
from lmx.supervisor.config.model import AddedModelConfig, ModelConfig
from lmx.supervisor.config.schema import Config
from lmx.supervisor.config.settings import Settings
from lmx.supervisor.config.sources import HubSource, SourceError, folder_path, parse_source
from lmx.supervisor.core.inspect_files import question_of
from lmx.supervisor.events import Events
from lmx.supervisor.inventory.added_file import AddedFile
from lmx.supervisor.memory.inspection import Inspection, Question, refuse_unread
from lmx.supervisor.memory.plan import context_problem

if TYPE_CHECKING:
    # Commands import this module for its functions, and would wait for all of the core.
    from lmx.supervisor.core.core import Core

_PARAMETERS_LIMIT_CHARACTERS: Final = 16 * 1024

_PARAMS: Final = {"id": "model_id", "source": "source", "context_length": "context_length"}
"""The fields of the question by the keys of the configuration."""


def read_added(question: AddModel) -> AddedModelConfig:
    """Return the model that a question describes. Does not look whether its source exists. Raises
    :class:`RequestError` with the ``param`` that is wrong."""
    try:
        size = len(json.dumps(question.parameters, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(
            ErrorCode.INVALID_VALUE, f"parameters can't be kept: {error}", param="parameters"
        ) from error
    if size > _PARAMETERS_LIMIT_CHARACTERS:
        raise RequestError(
            ErrorCode.INVALID_VALUE,
            f"parameters take {size} characters as JSON: at most {_PARAMETERS_LIMIT_CHARACTERS}",
            param="parameters",
        )
    values = {
        "id": question.model_id,
        "source": _absolute(question.source),
        "context_length": question.context_length,
        "context_at_most": question.context_at_most,
        "parameters": question.parameters,
    }
    try:
        return AddedModelConfig.model_validate(values)
    except ValidationError as error:
        raise _refused(error, question.model_id) from error


def _refused(error: ValidationError, model_id: str) -> LmxError:
    detail = error.errors(include_url=False)[0]
    key = str(detail["loc"][0]) if detail["loc"] else "id"
    message = detail["msg"].removeprefix("Value error, ")
    if key == "source":
        return RequestError(ErrorCode.MODEL_SOURCE_INVALID, message, param="source")
    if key == "id":
        message = (
            f"{model_id[:80]!r} can't be a model's id: it has 1 to 200 characters, letters, digits "
            "and . _ : / @ + -, and begins with a letter or a digit"
        )
    return RequestError(ErrorCode.INVALID_VALUE, message, param=_PARAMS.get(key, key))


def _absolute(source: str) -> str:
    """Return a source so that it means the same wherever the supervisor is started from. A text
    that is not a source stays as it is: the validation says what is wrong with it."""
    try:
        parsed = parse_source(source)
        if not isinstance(parsed, HubSource):
            return str(folder_path(parsed.path))
    except (SourceError, RuntimeError, ValueError):
        return source
    return source.strip()


def plain_source(source: str) -> str:
    """Return a source in a form in which two ways to write the same source are equal."""
    return _absolute(source).removesuffix("@main")


def with_added(config: Config, added: Mapping[str, AddedModelConfig]) -> Config:
    """Return a configuration with the added models after its own. An added model is left out if the
    configuration has given its name to something else."""
    taken = _names(config)
    more = tuple(model for model in added.values() if model.id not in taken)
    return config.model_copy(update={"models": (*config.models, *more)})


def shadowed(config: Config, added: Mapping[str, AddedModelConfig]) -> tuple[str, ...]:
    """Return the added models that :func:`with_added` leaves out."""
    taken = _names(config)
    return tuple(model_id for model_id in added if model_id in taken)


@dataclass(eq=False, repr=False)
class AddedModels:
    """The owner of the added models, in memory and in their file. The settings have them next to
    the models of the configuration file.

    ``models`` are those of the file, which are in effect already. ``inspect`` reads a model's
    files. ``now_s`` is the core's clock.
    """

    _file: AddedFile
    _models: Mapping[str, AddedModelConfig]
    _core: Core
    _settings: Settings
    _inspect: Callable[[Question], Awaitable[Inspection]]
    _now_s: Callable[[], float]

    def join(self, config: Config) -> Config:
        """Return the configuration that is in effect when the file has ``config``."""
        return with_added(config, self._models)

    def report_shadowed(self, config: Config, events: Events) -> None:
        """Note which added models are not served, because the configuration file has given their
        names to something else. They come back when it no longer does."""
        for model_id in shadowed(config, self._models):
            detail = f"{_whose(model_id, config)} in the configuration, which takes precedence"
            events.note("model.shadowed", model_id, detail)

    async def add(self, question: AddModel) -> None:
        """Serve a model from now on, and after restarts. It is loaded when somebody asks for it.

        The model's files on this machine are read first, and the model is not added if they can't
        be read. If the model is known already with the same source and context, only its
        parameters change, and only if it was added. Raises :class:`LmxError`: MODEL_EXISTS,
        MODEL_SOURCE_INVALID, INVALID_VALUE with the ``param`` that it is about, SHUTTING_DOWN, and
        QUEUE_FULL where the files can't be read now.
        """
        await self._add(question, self._inspect)

    async def _add(
        self, question: AddModel, inspect: Callable[[Question], Awaitable[Inspection]]
    ) -> None:
        self._core.refuse_while_stopping()
        model = read_added(question)
        if known_model(self._settings.current, model) is None:
            refuse_unreadable(model, await inspect(question_of(model)))
            self._core.refuse_while_stopping()
        # Somebody may have added it meanwhile.
        known = known_model(self._settings.current, model)
        if isinstance(known, AddedModelConfig):
            model = known.model_copy(update={"parameters": model.parameters})
        elif known is not None:
            return
        self._apply({**self._models, model.id: model}, self._now_s())

    async def serve(
        self, question: AddModel, inspect: Callable[[Question], Awaitable[Inspection]]
    ) -> str:
        """Serve a model unless its source is served already, and return the id under which it is.
        ``inspect`` reads its files, as long as that takes where no client waits. Raises what
        :meth:`add` raises, for example when the name is taken."""
        known = served_as(self._settings.current, question.source)
        if known is None:
            await self._add(question, inspect)
        return known or question.model_id

    def remove(self, model_id: str, now_s: float) -> int | None:
        """Forget an added model. Its worker ends after its streams, and its files stay. Returns the
        worker's pid, None if there is no worker. Raises :class:`LmxError`: MODEL_CONFIGURED,
        MODEL_NOT_FOUND."""
        slot = self._core.slot(model_id)
        if not slot.added:
            raise OperationError(
                ErrorCode.MODEL_CONFIGURED,
                f"{slot.model.id} is a model of the configuration: remove it there and run "
                f"`lmx reload`; `lmx unload {slot.model.id}` frees its "
                "memory",
                param="model_id",
            )
        pid = slot.worker.pid if slot.worker else None
        left = {name: each for name, each in self._models.items() if name != slot.model.id}
        self._apply(left, now_s)
        return pid

    def _apply(self, models: Mapping[str, AddedModelConfig], now_s: float) -> None:
        old = self._settings.current
        written = tuple(m for m in old.models if not isinstance(m, AddedModelConfig))
        new = with_added(old.model_copy(update={"models": written}), models)
        if models != self._models:
            self._file.save(models)
        self._models = models
        self._settings.apply(new, now_s)


def served_as(config: Config, source: str) -> str | None:
    """Return the id under which a configuration serves a source; None if it does not."""
    wanted = plain_source(source)
    for model in config.models:
        if plain_source(model.source) == wanted:
            return model.id
    return None


def known_model(config: Config, model: AddedModelConfig) -> ModelConfig | None:
    """Return the model of that name if it is the same one, None if the name is free. Raises
    :class:`LmxError` (model_exists)."""
    if model.id not in _names(config):
        return None
    for known in config.models:
        same = plain_source(known.source) == plain_source(model.source)
        fits = model.context_at_most or known.context_length == model.context_length
        if known.id == model.id and same and fits:
            return known
    raise OperationError(
        ErrorCode.MODEL_EXISTS,
        f"{model.id!r} is taken: {_whose(model.id, config)}. Choose another id, or remove that "
        "model first",
        param="model_id",
    )


def refuse_unreadable(model: AddedModelConfig, found: Inspection) -> None:
    """Refuse a model whose files can't be served. About a repository that is not on this machine
    yet nothing is known here, and its load will say what is wrong."""
    refuse_unread(found)
    problem = found.source_problem or found.problem
    if problem is not None:
        raise RequestError(ErrorCode.MODEL_SOURCE_INVALID, problem, param="source")
    problem = context_problem(model, found.facts.context_tokens)
    if problem is not None:
        raise RequestError(ErrorCode.INVALID_VALUE, problem, param="context_length")


def _names(config: Config) -> set[str]:
    of_models = {name for model in config.models for name in model.names}
    return of_models | set(config.routing.routes)


def _whose(name: str, config: Config) -> str:
    for model in config.models:
        if name == model.id:
            return f"it is {model.source}{_context_words(model)}"
        if name in model.aliases:
            return f"it is an alias of {model.id}"
        if name in model.adapters:
            return f"it is an adapter of {model.id}"
    return "it is a name in routing"


def _context_words(model: ModelConfig) -> str:
    if model.context_length is None:
        return ""
    at_most = isinstance(model, AddedModelConfig) and model.context_at_most
    return f" with a context of {'at most ' if at_most else ''}{model.context_length}"

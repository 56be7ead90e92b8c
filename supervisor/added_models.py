"""Models that are served though the configuration doesn't name them: added, or downloaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lmx.protocol.errors import ErrorCode, OperationError, RequestError, UnavailableError
from lmx.protocol.inventory import AddModel
from lmx.supervisor.added_file import AddedFile
from lmx.supervisor.added_question import check_source, plain_source, read_added
from lmx.supervisor.config import Config
from lmx.supervisor.config_diff import compare
from lmx.supervisor.config_model import AddedModelConfig, ModelConfig
from lmx.supervisor.core import Core
from lmx.supervisor.model_facts import context_problem


def with_added(config: Config, added: Mapping[str, AddedModelConfig]) -> Config:
    """Return a configuration with added models after its own; one whose name the configuration
    has given to something else is left out."""
    taken = _names(config)
    more = tuple(model for model in added.values() if model.id not in taken)
    return config.model_copy(update={"models": (*config.models, *more)})


def shadowed(config: Config, added: Mapping[str, AddedModelConfig]) -> tuple[str, ...]:
    """Return the added models that :func:`with_added` leaves out."""
    taken = _names(config)
    return tuple(model_id for model_id in added if model_id in taken)


class AddedModels:
    """Owner of the added models, in memory and in their file. What is in force is the core's
    configuration, which has them beside those of the file that a person wrote."""

    def __init__(self, file: AddedFile) -> None:
        self._file = file
        self._models = file.load()
        self._core: Core | None = None

    def serve_with(self, core: Core) -> None:
        """Have a core serve what is added from here on; once, before anything is."""
        self._core = core

    def join(self, config: Config) -> Config:
        """Return the configuration that is in force where a person wrote ``config``."""
        return with_added(config, self._models)

    def tell_shadowed(self, config: Config, note: Callable[..., None]) -> None:
        """Note which added models are not served with what a person wrote: it has given their
        names to something else. They are back when it has not."""
        for model_id in shadowed(config, self._models):
            detail = f"{_whose(model_id, config)} in the configuration, which goes before it"
            note("model.shadowed", model_id, detail)

    def find(self, source: str) -> str | None:
        """Return the id under which a source is served, of the configuration or added, None if
        it is not."""
        wanted = plain_source(source)
        for model in self._in_force.models:
            if plain_source(model.source) == wanted:
                return model.id
        return None

    def add(self, question: AddModel, now_s: float) -> None:
        """Serve a model from now on, and after restarts; it is loaded when it is asked for.

        Known already with the same source and context: only its parameters change, if it was
        added. Raises :class:`LmxError`: MODEL_EXISTS, MODEL_SOURCE_INVALID, INVALID_VALUE with
        the ``param`` it is about, SHUTTING_DOWN.
        """
        if self._the_core.stopping:
            raise UnavailableError(ErrorCode.SHUTTING_DOWN, "lmx is shutting down")
        model = read_added(question)
        known = self._known(model)
        if known is None:
            check_source(model.source)
            self._refuse_longer_context(model)
        elif isinstance(known, AddedModelConfig):
            model = known.model_copy(update={"parameters": model.parameters})
        else:
            return
        self._put_in_force({**self._models, model.id: model}, now_s)

    def remove(self, model_id: str, now_s: float) -> int | None:
        """Forget an added model. Its worker, whose pid is returned, ends after its streams; files
        stay. Raises :class:`LmxError`: MODEL_CONFIGURED, MODEL_NOT_FOUND."""
        slot = self._the_core.slot(model_id)
        if not slot.added:
            raise OperationError(
                ErrorCode.MODEL_CONFIGURED,
                f"{slot.model.id} is a model of the configuration: remove it there and run "
                f"`lmx-supervisor reload`; `lmx-supervisor unload {slot.model.id}` frees its "
                "memory",
                param="model_id",
            )
        pid = slot.worker.pid if slot.worker else None
        left = {name: each for name, each in self._models.items() if name != slot.model.id}
        self._put_in_force(left, now_s)
        return pid

    def _refuse_longer_context(self, model: AddedModelConfig) -> None:
        """Of a repository that is not on this machine yet nothing is known: its load says so."""
        problem = context_problem(model, self._the_core.facts_of(model))
        if problem is not None:
            raise RequestError(ErrorCode.INVALID_VALUE, problem, param="context_length")

    @property
    def _the_core(self) -> Core:
        assert self._core is not None
        return self._core

    @property
    def _in_force(self) -> Config:
        return self._the_core.config

    def _known(self, model: AddedModelConfig) -> ModelConfig | None:
        """Return the model of that name if it is the same one, None if the name is free. Raises
        :class:`LmxError` (model_exists)."""
        if model.id not in _names(self._in_force):
            return None
        for known in self._in_force.models:
            same = plain_source(known.source) == plain_source(model.source)
            fits = model.context_at_most or known.context_length == model.context_length
            if known.id == model.id and same and fits:
                return known
        raise OperationError(
            ErrorCode.MODEL_EXISTS,
            f"{model.id!r} is taken: {_whose(model.id, self._in_force)}. Choose another id, or "
            "remove that model first",
            param="model_id",
        )

    def _put_in_force(self, models: dict[str, AddedModelConfig], now_s: float) -> None:
        core = self._the_core
        written = tuple(m for m in core.config.models if not isinstance(m, AddedModelConfig))
        new = with_added(core.config.model_copy(update={"models": written}), models)
        if models != self._models:
            self._file.save(models)
        self._models = models
        core.reconfigure(new, compare(core.config, new).models, now_s)


def _names(config: Config) -> set[str]:
    of_models = {name for model in config.models for name in (model.id, *model.aliases)}
    return of_models | set(config.routing)


def _whose(name: str, config: Config) -> str:
    for model in config.models:
        if name == model.id:
            return f"it is {model.source}{_context_words(model)}"
        if name in model.aliases:
            return f"it is an alias of {model.id}"
    return "it is a name in routing"


def _context_words(model: ModelConfig) -> str:
    if model.context_length is None:
        return ""
    at_most = isinstance(model, AddedModelConfig) and model.context_at_most
    return f" with a context of {'at most ' if at_most else ''}{model.context_length}"

"""The models that the router knows: a pure view of the supervisor's last snapshot.

It also checks whether a model can do what a route is for, and names the right route if it can't.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from lmx.protocol.errors import ErrorCode, RequestError, UnavailableError
from lmx.protocol.messages.keys import ApiKey
from lmx.protocol.messages.snapshot import ModelView, Snapshot
from lmx.protocol.states import ModelKind, SlotState, WorkerState
from lmx.router.http.access import key_refusal
from lmx.router.http.endpoint import Access
from lmx.router.http.keys import Verdict

_LISTED_IDS = 20
"""Model ids that a "no such model" error lists."""

_NO_MODEL: Final = (
    "No model is served yet: on lmx's machine, `lmx pull qwen3-8b` downloads one and serves it."
)

_PATH_STARTS: Final = ("/", ".", "~")
"""How a source begins that is a path; any other is `org/name` with an optional `@revision`."""


@dataclass(frozen=True, slots=True)
class Directory:
    """One snapshot, with its names indexed. It is replaced as a whole and never changed."""

    snapshot: Snapshot
    _by_name: dict[str, ModelView] = field(repr=False)
    _key: ApiKey | None = None

    @classmethod
    def of(cls, snapshot: Snapshot) -> Directory:
        """Index a snapshot. If names collide, an id wins over an alias, an alias over a source, a
        source over the repository of one with a revision, and an earlier model over a later
        one."""
        by_name: dict[str, ModelView] = {}
        for model in snapshot.models:
            by_name.setdefault(model.model_id, model)
        for model in snapshot.models:
            for alias in model.aliases:
                by_name.setdefault(alias, model)
        for model in snapshot.models:
            by_name.setdefault(model.source, model)
        for model in snapshot.models:
            if model.base is None and not model.source.startswith(_PATH_STARTS):
                by_name.setdefault(model.source.partition("@")[0], model)
        return cls(snapshot, by_name)

    def limited_to(self, key: ApiKey | None) -> Directory:
        """Return the directory as a request with this key sees it: other models are in no list and
        on no route, and to name one is refused. If the default is among them, the first model that
        the key allows takes its place. It is this one without a key, or with one for all models."""
        if key is None or not key.models:
            return self
        models = tuple(model for model in self.models if key.allows(model.model_id))
        default = self.default()
        if default not in models:
            default = next((model for model in models if model.base is None), None)
        name = None if default is None else default.model_id
        snapshot = replace(self.snapshot, models=models, default_model=name)
        return Directory(snapshot, self._by_name, key)

    @property
    def models(self) -> tuple[ModelView, ...]:
        """Every model that requests may name, in the supervisor's order: also the adapters."""
        return self.snapshot.models

    @property
    def bases(self) -> tuple[ModelView, ...]:
        """Every model with a worker of its own: all but the adapters."""
        return tuple(model for model in self.models if model.base is None)

    def base(self, model: ModelView) -> ModelView:
        """Return the model whose worker answers: for an adapter the one that it belongs to."""
        return model if model.base is None else self._by_name.get(model.base, model)

    def model(self, model_id: str) -> ModelView | None:
        """Return the model with an id; None if there is none."""
        found = self._by_name.get(model_id)
        if found is None or found.model_id != model_id or not self._allows(found):
            return None
        return found

    def knows(self, name: str) -> bool:
        """Return whether a name is a model's own: its id, alias or source, or the repository of its
        source."""
        return name in self._by_name

    def default(self) -> ModelView | None:
        """Return the default model; None if there is none."""
        return self._by_name.get(self.snapshot.default_model or "")

    def resolve(self, name: str | None) -> ModelView:
        """Return the model that has a name, as :meth:`knows` says; the default model for None. It
        does not follow routes: see :mod:`lmx.router.supervisor.routing`.

        Raises :class:`RequestError`: MODEL_NOT_FOUND with the ids there are, MISSING_PARAMETER if
        the request named none and there is no default, or PERMISSION_DENIED for a model that the
        request's key is not for.
        """
        if name is None:
            if self.snapshot.default_model is None:
                raise RequestError(
                    ErrorCode.MISSING_PARAMETER,
                    f"`model` is required: no default model is configured. {self.known_words()}",
                    param="model",
                )
            name = self.snapshot.default_model
        found = self._by_name.get(name)
        if found is None:
            raise self.no_such_model(name)
        if self._key is not None and not self._allows(found):
            raise key_refusal(Verdict.MODEL, self._key, Access.INFERENCE, model_id=found.model_id)
        return found

    def no_such_model(self, name: str, hint: str = "") -> RequestError:
        """Return the error for a name that no model has. ``hint`` goes after the names there
        are."""
        return RequestError(
            ErrorCode.MODEL_NOT_FOUND,
            f"The model {name[:200]!r} does not exist. {self.known_words()}{hint}",
            param="model",
        )

    def instances(self) -> frozenset[str]:
        """Return the worker instances that the snapshot knows."""
        return frozenset(model.instance for model in self.models if model.instance is not None)

    def _allows(self, model: ModelView) -> bool:
        return self._key is None or self._key.allows(model.model_id)

    def known_words(self) -> str:
        """Return the names of the models that there are, as a sentence."""
        ids = [model.model_id for model in self.models]
        if not ids:
            return _NO_MODEL if self._key is None else "The key is for none of them."
        more = f" and {len(ids) - _LISTED_IDS} more" if len(ids) > _LISTED_IDS else ""
        return f"Available: {', '.join(ids[:_LISTED_IDS])}{more}."


def advance(current: Directory | None, snapshot: Snapshot) -> Directory:
    """Return the directory after a snapshot has come: the newer of the two.

    Within an epoch the higher revision wins; another epoch replaces everything.
    """
    if (
        current is not None
        and current.snapshot.epoch == snapshot.epoch
        and current.snapshot.revision >= snapshot.revision
    ):
        return current
    return Directory.of(snapshot)


def is_behind(current: Directory | None, epoch: str, revision: int) -> bool:
    """Return whether the supervisor is ahead of the directory, so that a snapshot must be
    requested."""
    return (
        current is None or current.snapshot.epoch != epoch or current.snapshot.revision < revision
    )


def ready_instance(model: ModelView) -> str | None:
    """Return the worker that can take a request right now; None if there is none."""
    if model.slot is SlotState.OCCUPIED and model.worker is WorkerState.READY:
        return model.instance
    return None


def can_serve(model: ModelView) -> bool:
    """Return whether a request for the model has a chance: now, or after a load."""
    return model.slot not in (SlotState.QUARANTINED, SlotState.HELD)


_USES: Final[dict[ModelKind, tuple[str, str]]] = {
    ModelKind.CHAT: ("a language model", "/v1/chat/completions or /v1/completions"),
    ModelKind.EMBEDDING: ("an embedding model", "/v1/embeddings"),
    ModelKind.RERANK: ("a reranking model", "/v1/rerank"),
    ModelKind.TRANSCRIPTION: ("a transcription model", "/v1/audio/transcriptions"),
    ModelKind.SPEECH: ("a model that reads texts aloud", "/v1/audio/speech"),
}


def require_kind(model: ModelView, wanted: ModelKind) -> None:
    """Raise :class:`RequestError` for a model of another kind. A model whose kind is not known yet
    is let through: its worker knows its kind."""
    if model.kind is not None and model.kind is not wanted:
        what, route = _USES[model.kind]
        raise RequestError(
            ErrorCode.UNSUPPORTED_VALUE,
            f"The model {model.model_id!r} is {what}: use it with POST {route}, or name another "
            "model.",
            param="model",
        )


def refuse_drained(directory: Directory | None) -> None:
    """Raise :class:`UnavailableError` (model_drained) if an operator drained the machine."""
    if directory is not None and directory.snapshot.drained:
        raise UnavailableError(
            ErrorCode.MODEL_DRAINED,
            "This machine was drained by an operator, and no other machine can answer the request "
            "for it. `lmx undrain --machine` ends that.",
            retry_after_s=5.0,
        )

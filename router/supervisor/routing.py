"""Chooses which models may answer a request, the best first: by a name, or by a route's rule, and
by what it has besides text. Pure."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.snapshot import ROUTE_NAMES, ModelView
from lmx.protocol.states import MediaKind, ModelKind, WorkerState
from lmx.router.supervisor.directory import Directory, can_serve, ready_instance

_LOADS: Final = frozenset({WorkerState.STARTING, WorkerState.LOADING})


def candidates(
    directory: Directory, name: str | None, kind: ModelKind | None
) -> tuple[ModelView, ...]:
    """Return the models to try for a request that names ``name``, in this order; at least one.

    An id, alias or source stands for its model alone, whatever its kind, and wins over a route of
    the same name; both win over the patterns of names. From a route, the models of another kind
    than ``kind`` are left out (None: every kind will do). A request that names none gets the
    default model; if that is of another kind, it gets the models of this kind, if there are any.
    Raises :class:`RequestError` if there is none, as
    :meth:`lmx.router.supervisor.directory.Directory.resolve` does.
    """
    if name is None:
        name = directory.snapshot.default_model
        others = _instead_of_default(directory, name, kind)
        if others:
            return ranked(others, directory.snapshot.free_bytes)
    if name is None or directory.knows(name):
        return (directory.resolve(name),)
    listed = route_models(directory, name)
    if listed is None:
        return _by_pattern(directory, name, kind)
    fit = [model for model in listed if kind is None or model.kind in (kind, None)]
    if not fit:
        what = "model" if kind is None else f"{kind} model"
        hint = "Name another one, or list one for it under `routing` in the configuration."
        raise RequestError(
            ErrorCode.MODEL_NOT_FOUND,
            f"The route {name!r} leads to no {what}. "
            f"{hint if directory.models else directory.known_words()}",
            param="model",
        )
    return ranked(fit, directory.snapshot.free_bytes)


def _by_pattern(directory: Directory, name: str, kind: ModelKind | None) -> tuple[ModelView, ...]:
    """Return the models of the first pattern that matches a name which is no model's and no
    route's. A pattern never leads to another pattern."""
    for one in directory.snapshot.patterns:
        if not fnmatchcase(name, one.pattern):
            continue
        if directory.knows(one.name) or route_models(directory, one.name) is not None:
            return candidates(directory, one.name, kind)
        raise directory.no_such_model(
            name, f" `routing.patterns` sends it to {one.name!r}, which does not exist either."
        )
    raise directory.no_such_model(name, f" Or let lmx choose: {', '.join(ROUTE_NAMES)}.")


_LATEST: Final = ":latest"


def tagged(name: str) -> str:
    """Return a name as clients of Ollama know names: with a tag."""
    return name if ":" in name else name + _LATEST


def untagged(directory: Directory, name: str) -> str:
    """Return a name from a client of Ollama, where every name has a tag, as lmx knows it:
    ``:latest`` at its end changes nothing, unless it is part of a model's own name."""
    return name if directory.knows(name) else name.removesuffix(_LATEST)


def _instead_of_default(
    directory: Directory, default: str | None, kind: ModelKind | None
) -> list[ModelView]:
    """Return the models that answer a request of ``kind`` without a name if the default model
    can't. A model whose kind is not known yet is taken for a chat model."""
    if kind is None or default is None or not directory.knows(default):
        return []
    if (directory.resolve(default).kind or ModelKind.CHAT) is kind:
        return []
    return [model for model in directory.models if model.kind is kind]


def route_models(directory: Directory, name: str) -> tuple[ModelView, ...] | None:
    """Return the models that a route lists, in its order; None if there is no such route. A listed
    model that does not exist (any more) is left out."""
    for route in directory.snapshot.routes:
        if route.name == name:
            found = (directory.model(model_id) for model_id in route.model_ids)
            return tuple(model for model in found if model is not None)
    if name not in ROUTE_NAMES:
        return None
    # An adapter is for those who name it.
    chat = [model for model in directory.bases if model.kind in (ModelKind.CHAT, None)]
    default = directory.default()
    return tuple(sorted(chat, key=lambda model: model is not default))


def routes_by_leader(directory: Directory) -> Mapping[str, Sequence[str]]:
    """Return the names of the routes, by the id of the model that each stands for now. It looks at
    all models once for each route, so a list of models asks for it once."""
    routes = directory.snapshot.routes
    found: dict[str, list[str]] = {}
    for name in dict.fromkeys([*ROUTE_NAMES, *(route.name for route in routes)]):
        listed = () if directory.knows(name) else route_models(directory, name)
        if listed:
            leader = ranked(listed, directory.snapshot.free_bytes)[0]
            found.setdefault(leader.model_id, []).append(name)
    return found


def ranked(models: Sequence[ModelView], free_bytes: int) -> tuple[ModelView, ...]:
    """Return the models that can answer, in three groups: those that are ready, those that can be
    loaded within ``free_bytes``, and those for which others must be unloaded. Within a group they
    stay in the listed order. If none can answer, return only the first: its error is the one to
    report."""
    usable = [model for model in models if can_serve(model)]
    groups: tuple[list[ModelView], ...] = ([], [], [])
    for model in usable:
        groups[_group(model, free_bytes)].append(model)
    return tuple(model for group in groups for model in group) or tuple(models[:1])


_LISTED_MODELS: Final = 10

INFILL: Final = "infill"
"""The capability of models that fill a gap in a text."""


def accepting_media(
    directory: Directory, models: Sequence[ModelView], wanted: Mapping[MediaKind, str]
) -> tuple[ModelView, ...]:
    """Return those of ``models`` that take the media of a request, in their order; at least one.

    ``wanted`` has the path of the request's first part of each kind. A model of which it is not
    known yet what it takes stays. Raises :class:`RequestError` that names the part and the
    models that take it, if none of ``models`` does.
    """
    left = tuple(models)
    for kind, param in wanted.items():
        fit = tuple(model for model in left if model.media is None or kind in model.media)
        if not fit:
            raise _not_accepted(directory, left[0], kind, param)
        left = fit
    return left


def _not_accepted(
    directory: Directory, model: ModelView, kind: MediaKind, param: str
) -> RequestError:
    one, many = kind.one, f"{kind.noun}s"
    taken = ["text", *(f"{other.noun}s" for other in MediaKind if other in (model.media or ()))]
    only = f"{', '.join(taken[:-1])} and {taken[-1]}" if len(taken) > 1 else "text"
    others = [other.model_id for other in directory.models if kind in (other.media or ())]
    listed = _listed(others)
    advice = (
        f"leave it out, or name a model that takes {many}: {listed}"
        if others
        else f"leave it out, since no model that is configured here takes {many}"
    )
    return RequestError(
        ErrorCode.UNSUPPORTED_VALUE,
        f"`{param}` is {one}, and the model {model.model_id!r} takes {only} only: {advice}.",
        param=param,
    )


def filling(directory: Directory, models: Sequence[ModelView], param: str) -> tuple[ModelView, ...]:
    """Return those of ``models`` that fill a gap in a text, in their order; at least one.

    ``param`` is the field that asks for it. A model of which it is not known yet what it can do
    stays. Raises :class:`RequestError` that names the field and the models that are known to do it,
    if none of ``models`` does.
    """
    fit = tuple(one for one in models if fills(one) is not False)
    if fit:
        return fit
    others = [one.model_id for one in directory.models if fills(one)]
    advice = (
        f"leave it out, or name a model that has them: {_listed(others)}"
        if others
        else "leave it out, since no model that is known here has them"
    )
    raise RequestError(
        ErrorCode.UNSUPPORTED_VALUE,
        f"`{param}` is not supported by the model {models[0].model_id!r}, whose tokenizer has no "
        f"tokens for a gap in a text: {advice}.",
        param=param,
    )


def fills(model: ModelView) -> bool | None:
    """Return whether a model fills a gap in a text; None if that is not known yet."""
    return INFILL in model.capabilities if model.capabilities else model.infills


def _listed(models: Sequence[str]) -> str:
    return ", ".join(models[:_LISTED_MODELS]) + (", ..." if models[_LISTED_MODELS:] else "")


def _group(model: ModelView, free_bytes: int) -> int:
    if ready_instance(model) is not None:
        return 0
    # A model that is being loaded has its bytes already. One whose need is not known may fit.
    fits = model.worker in _LOADS or model.needed_bytes is None or model.needed_bytes <= free_bytes
    return 1 if fits else 2

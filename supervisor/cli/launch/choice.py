"""Chooses the model that a program is started with. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.states import ModelKind, ModelState
from lmx.supervisor.cli.launch.programs import Program

_TOOLS: Final = "tools"
_DOWN: Final = (ModelState.FAILED, ModelState.QUARANTINED, ModelState.DRAINED)
_UNKNOWN_TOKENS: Final = 32_768
"""The context that a program gets where that of a model is not known yet: that of most models."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A model for a program."""

    name: str
    context_tokens: int
    images: bool
    reasoning: bool
    warnings: tuple[str, ...] = ()
    """What it lacks, for people."""


LongestContext = Callable[[str], int | None]
"""Returns the longest context that a model could be loaded with, in tokens; None if it is not
known."""


def choose(
    program: Program,
    models: Sequence[Mapping[str, Any]],
    default: str | None,
    longest_context: LongestContext,
) -> Chosen:
    """Return the best of the models as ``GET /v1/models`` lists them: of those that chat, call
    tools and have enough context the default one, else one that is loaded, else the first; one
    that is down only if there is no other.

    Raises :class:`OperationError` (model_not_found) with what to do if there is none.
    """
    chats = [model for model in models if _chats(model)]
    if not chats:
        raise OperationError(
            ErrorCode.MODEL_NOT_FOUND,
            "no model that chats is served: `lmx pull qwen3-8b` downloads one and serves it",
        )
    able = [model for model in chats if _calls_tools(model)]
    if not able:
        names = ", ".join(str(model["id"]) for model in chats)
        raise OperationError(
            ErrorCode.MODEL_NOT_FOUND,
            f"{program.title} needs a model that calls tools, and none that is served does "
            f"({names}): `lmx pull qwen3-8b` downloads one that does, or name one with --model to "
            "try it all the same",
        )
    fit = [model for model in able if (_context(model) or 0) >= program.context_tokens]
    fit = fit or [model for model in able if _context(model) is None]
    if not fit:
        raise OperationError(ErrorCode.MODEL_NOT_FOUND, _too_short(program, able, longest_context))
    best = min(
        fit,
        key=lambda model: (
            model["state"] in _DOWN, model["id"] != default, model["state"] != ModelState.READY
        ),
    )  # fmt: skip
    return _chosen(str(best["id"]), best)


def named(
    program: Program, name: str, model: Mapping[str, Any], longest_context: LongestContext
) -> Chosen:
    """Return the model that the user named, with warnings about what it lacks. ``model`` is what
    ``GET /v1/models/NAME`` says of it. Raises :class:`OperationError` (unsupported_value) if it
    can't chat."""
    if not _chats(model):
        raise OperationError(
            ErrorCode.UNSUPPORTED_VALUE,
            f"{model['id']} is of the kind {model['kind']} and does not chat: name another model",
        )
    warnings = []
    if not _calls_tools(model):
        warnings.append(f"{name} is not known to call tools, which {program.title} needs")
    context = _context(model)
    if context is not None and context < program.context_tokens:
        warnings.append(_too_short(program, [model], longest_context))
    return _chosen(name, model, tuple(warnings))


def is_being_read(model: Mapping[str, Any]) -> bool:
    """Return whether the files of a model are being read, so that its context will be known."""
    return model["state"] == ModelState.FETCHING and _context(model) is None


def _chosen(name: str, model: Mapping[str, Any], warnings: tuple[str, ...] = ()) -> Chosen:
    return Chosen(
        name,
        _context(model) or _UNKNOWN_TOKENS,
        "image" in model["modalities"],
        "reasoning" in model["capabilities"],
        warnings,
    )


def _chats(model: Mapping[str, Any]) -> bool:
    return model["kind"] in (ModelKind.CHAT, None)


def _calls_tools(model: Mapping[str, Any]) -> bool:
    """A model of which nothing is known yet may: before its first load no more than that it fills
    gaps is."""
    return model["capabilities"] in ([], ["infill"]) or _TOOLS in model["capabilities"]


def _context(model: Mapping[str, Any]) -> int | None:
    found = model["context_length"]
    return found if isinstance(found, int) else None


def _too_short(
    program: Program, models: Sequence[Mapping[str, Any]], longest_context: LongestContext
) -> str:
    longest = max(models, key=lambda model: _context(model) or 0)
    name, has, needs = longest["id"], _context(longest) or 0, program.context_tokens
    most = f"{name} has {has:,}" if len(models) == 1 else f"{name} has the longest, {has:,}"
    intro = f"{program.title} needs a context of {needs:,} tokens or more, and {most}"
    possible = longest_context(str(name))
    if possible is not None and possible < needs:
        return (
            f"{intro}: it can have {possible:,} at most, by what it was made for and by the memory "
            f"(`lmx estimate {name}`). `lmx pull qwen3-8b` downloads one with a longer context"
        )
    return (
        f"{intro}: "
        f"`lmx load {name} --context-length {needs}` gives it one that long, and "
        f"`context_length: {needs}` in lmx.yaml keeps it so (`lmx estimate {name}` shows what it "
        "takes)"
    )

"""What may be added as a model: the values of a question, read and checked."""

from __future__ import annotations

import json
from typing import Final

from pydantic import ValidationError

from lmx.protocol.errors import ErrorCode, LmxError, RequestError
from lmx.protocol.inventory import AddModel
from lmx.supervisor.config_model import AddedModelConfig
from lmx.supervisor.sources import HubSource, SourceError, folder_path, parse_source

_PARAMETERS_LIMIT_CHARACTERS: Final = 16 * 1024

_PARAMS: Final = {"id": "model_id", "source": "source", "context_length": "context_length"}
"""Fields of the question by keys of the configuration."""


def read_added(question: AddModel) -> AddedModelConfig:
    """Return the model that a question describes. Raises :class:`RequestError` with the ``param``
    that is wrong; whether its source exists is not looked at."""
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
    """Return a source so that it means the same wherever the supervisor is started from. One
    that is none stays as it is: the validation says what is wrong with it."""
    try:
        parsed = parse_source(source)
        if not isinstance(parsed, HubSource):
            return str(folder_path(parsed.path))
    except (SourceError, RuntimeError, ValueError):
        return source
    return source.strip()


def plain_source(source: str) -> str:
    """Return a source so that two ways to write the same one are equal."""
    return _absolute(source).removesuffix("@main")

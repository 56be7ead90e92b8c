"""Asks a running lmx what its own description of the API says can be asked, and more, and holds
the answers against the description."""

import json
from typing import Any, Final

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from jsonschema import Draft202012Validator
from schemathesis import Case, GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from lmx.router.schema.openapi.document import describe_api
from lmx.router.server.routes import ROUTES
from tests.support.clients.api_operations import MODEL

DOCUMENT: Final[dict[str, Any]] = describe_api(ROUTES, "fuzz")
SCHEMA: Final = schemathesis.openapi.from_dict(DOCUMENT)

_CHECKS: Final = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
_ERROR: Final = "#/components/schemas/Error"
_NAMES: Final = ("model", "model_id", "engine_id")
_TIMEOUT_S: Final = 120.0


def fuzz(
    operation_id: str, mode: GenerationMode, url: str, headers: dict[str, str], examples: int
) -> None:
    """Ask ``examples`` times. Fails at an answer that the description does not have, at a 500,
    and at a wrong request that is taken for a good one. The same requests each time."""
    operation = SCHEMA.find_operation_by_id(operation_id)
    counted = 0

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def ask(case: Case[Any]) -> None:
        nonlocal counted
        counted += 1
        checks: list[Any] = list(_CHECKS)
        if mode is GenerationMode.POSITIVE and counted % 2:
            _make_sense(case)
        _end_streams(case)
        try:
            response = case.call(base_url=url, headers=headers, timeout=_TIMEOUT_S)
        except requests.exceptions.InvalidHeader:
            return  # The client can't send it.
        assert response.status_code != 500, f"{case.as_curl_command()}\n{response.text}"
        if (
            mode is GenerationMode.NEGATIVE
            and response.status_code < 300
            and "follow" not in _query_names(case)
        ):
            checks.append(negative_data_rejection)
        case.validate_response(response, checks=checks)
        if response.headers["content-type"][0].startswith("text/event-stream"):
            _check_events(response.text, case.operation)

    ask()


def _check_events(text: str, operation: Any) -> None:
    content = DOCUMENT["paths"][operation.path][operation.method.lower()]["responses"]["200"]
    shape = content["content"]["text/event-stream"]["x-event-data"]
    validator = Draft202012Validator(
        {"anyOf": [shape, {"$ref": _ERROR}], "components": DOCUMENT["components"]}
    )
    for line in text.split("\n"):
        if line.startswith("data: ") and line != "data: [DONE]":
            validator.validate(json.loads(line.removeprefix("data: ")))


def _query_names(case: Case[Any]) -> set[str]:
    return {parameter.name for parameter in case.operation.query}


def _make_sense(case: Case[Any]) -> None:
    body: Any = _with_integers(case.body)
    if isinstance(body, dict):
        body.update({name: MODEL for name in _NAMES if name in body})
        if "messages" in body:
            # Which role needs what is more than a schema says.
            body["messages"] = [{"role": "user", "content": "hi"}]
    case.body = body
    for name in ("id", "model"):
        if name in (case.path_parameters or {}):
            case.path_parameters[name] = MODEL


def _with_integers(value: Any) -> Any:
    # 12.0 is an integer to a schema; lmx, like OpenAI, wants 12.
    if isinstance(value, dict):
        return {key: _with_integers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_integers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _end_streams(case: Case[Any]) -> None:
    # Those of logs and events end when the client leaves, and not before.
    if "follow" in _query_names(case):
        case.query = {**(case.query or {}), "follow": "false"}

"""The description of the API: it is valid, whole, and true."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator
from pydantic import TypeAdapter

from lmx.protocol.errors import ErrorCode
from lmx.router.http.endpoint import Access
from lmx.router.http.errors import http_status
from lmx.router.rendering.chat import ChatCompletionChunk
from lmx.router.rendering.text import TextCompletionChunk
from lmx.router.schema.openapi.document import describe_api
from lmx.router.schema.openapi.texts import EXAMPLES, FURTHER_EXAMPLES
from lmx.router.schema.requests.chat import ChatRequest
from lmx.router.server.app import path_aliases
from lmx.router.server.routes import ROUTES
from tests.support.clients.documents import KIAPI, WHY_SKIPPED, documents_folder
from tests.support.rigs.router_rig import MODEL, Rig, router_rig

FOLDER = documents_folder()
needs_documents = pytest.mark.skipif(FOLDER is None, reason=WHY_SKIPPED)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return describe_api(ROUTES, "1.2.3")


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield method, path, operation


@pytest.mark.long
def test_it_is_valid(document: dict[str, Any]) -> None:
    OpenAPIV31SpecValidator(document).validate()
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    assert document["info"]["version"] == "1.2.3"


def test_every_reference_has_its_target(document: dict[str, Any]) -> None:
    text = json.dumps(document)
    for kind in ("schemas", "headers"):
        for name in document["components"][kind]:
            assert f'"#/components/{kind}/{name}"' in text, f"nobody refers to {name}"
    for part in text.split('"$ref": "')[1:]:
        _, _, kind, name = part.split('"', 1)[0].split("/")
        assert name in document["components"][kind]


async def test_it_has_every_route_and_no_other(rig: Rig, document: dict[str, Any]) -> None:
    served = {
        (route.method.lower(), route.resource.canonical)
        for route in rig.router._runner.app.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    described = {(method, path) for method, path, _ in operations(document)}
    others = {
        (endpoint.method.lower(), path)
        for endpoint in ROUTES
        if not endpoint.access.for_operators
        for path in path_aliases(endpoint.path)
    }
    assert served - others == described
    assert not described & others, "a spelling is not a path of its own"


def test_every_operation_has_a_name_of_its_own_and_a_group(document: dict[str, Any]) -> None:
    ids = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(set(ids)) == len(ids)
    known = {tag["name"] for tag in document["tags"]}
    for _, path, operation in operations(document):
        assert set(operation["tags"]) <= known, path
        assert operation["summary"]


def test_each_route_says_which_key_it_needs(document: dict[str, Any]) -> None:
    for endpoint in ROUTES:
        path = endpoint.path.replace(":.+", "")
        operation = document["paths"][path][endpoint.method.lower()]
        named = {name for one in operation["security"] for name in one}
        match endpoint.access:
            case Access.OPEN:
                assert named == set()
            case Access.INFERENCE:
                assert named == {"apiKey"}
            case Access.OPERATOR:
                assert named == {"operatorKey", "adminKey", "adminKeyAsBearer"}
            case Access.ADMIN:
                assert named == {"adminKey", "adminKeyAsBearer"}
            case Access.PEER:
                assert named == {"apiKey", "adminKey"}
            case Access.METRICS | Access.LOCAL:
                assert named == {"adminKey", "metricsKey"}
        assert ("401" in operation["responses"]) == bool(named)


def test_refusals_say_when_to_come_back(document: dict[str, Any]) -> None:
    for _, path, operation in operations(document):
        for status, response in operation["responses"].items():
            headers = set(response["headers"])
            assert "X-Request-Id" in headers
            assert ("Retry-After" in headers) == (status in ("429", "503")), (path, status)
    chat = document["paths"]["/v1/chat/completions"]["post"]["responses"]
    assert {"400", "401", "404", "413", "415", "429", "500", "503", "504"} <= set(chat)
    assert "X-Job-Id" in chat["504"]["headers"]
    assert http_status(ErrorCode.SYNC_TIMEOUT) == 504


def test_a_stream_is_beside_the_whole_answer(document: dict[str, Any]) -> None:
    content = document["paths"]["/v3/completions"]["post"]["responses"]["200"]["content"]
    assert set(content) == {"application/json", "text/event-stream"}
    assert content["text/event-stream"]["x-event-data"]["$ref"].endswith("/TextCompletionChunk")


def test_an_answer_of_a_dataclass_has_all_its_fields_and_may_gain_others(
    document: dict[str, Any],
) -> None:
    key = document["components"]["schemas"]["KeyView"]
    assert key["required"] == list(key["properties"])
    assert "additionalProperties" not in key


def test_every_field_of_a_request_is_explained(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    left: list[Any] = [
        operation["requestBody"] for _, _, operation in operations(document)
        if "requestBody" in operation
    ]  # fmt: skip
    seen: set[str] = set()
    unexplained = [
        f"{path}?{parameter['name']}"
        for _, path, operation in operations(document)
        for parameter in operation.get("parameters", ())
        if parameter["in"] == "query" and "description" not in parameter
    ]
    while left:
        part = left.pop()
        if isinstance(part, list):
            left.extend(part)
        elif isinstance(part, dict):
            name = str(part.get("$ref", "")).rpartition("/")[2]
            if name and name not in seen:
                seen.add(name)
                left.append(schemas[name])
                for field, its in schemas[name].get("properties", {}).items():
                    if "description" not in its:
                        unexplained.append(f"{name}.{field}")
            left.extend(part.values())
    assert "ChatRequest" in seen and "TextPart" in seen
    assert unexplained == []


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("stop", ["a", ["a", "b"], None], [1, ["a"] * 65, ["a", 1]]),
        ("keep_alive", [1, "5m", -1, "forever"], [True, []]),
        ("tool_choice", ["any", {"type": "function", "function": {"name": "f"}}], ["f", 1, []]),
        ("guided_json", ["{}", {"type": "object"}], [1, []]),
        ("logit_bias", [{}, {"5": -100, "6": 1.5}], [{"a": 1}, {"5": "1"}, {"5": 101}, []]),
        ("temperature", [0, 0.5, 2], [-1, 3, "1", True]),
        ("a_field_of_tomorrow", [1, "x", {}], []),
    ],
)
def test_schemas_say_what_is_accepted(
    document: dict[str, Any], field: str, good: list[Any], bad: list[Any]
) -> None:
    validator = Draft202012Validator(
        {"$ref": "#/components/schemas/ChatRequest", "components": document["components"]}
    )
    body = {"messages": [{"role": "user", "content": "hi"}]}
    for value in good:
        assert validator.is_valid({**body, field: value}), value
    for value in bad:
        assert not validator.is_valid({**body, field: value}), value


def test_every_body_has_an_example_that_is_accepted() -> None:
    requests = {endpoint.request for endpoint in ROUTES if endpoint.request is not None}
    assert {request.__name__ for request in requests} == set(EXAMPLES)
    for request in requests:
        name = request.__name__
        for example in (EXAMPLES[name], *FURTHER_EXAMPLES.get(name, {}).values()):
            assert set(example) <= set(request.model_fields)
            request.model_validate(example)
    assert set(FURTHER_EXAMPLES) <= set(EXAMPLES)


async def test_it_is_served_to_everybody() -> None:
    async with router_rig(api_keys=("secret-key",)) as rig:
        for _ in range(2):
            async with rig.http.get(f"{rig.url}/openapi.json") as response:
                assert response.status == 200
                assert response.content_type == "application/json"
                text = await response.text()
                assert json.loads(text) == describe_api(ROUTES, "1.2.3")
                assert "secret-key" not in text and rig.spec.admin_key not in text


@pytest.fixture
async def rig() -> Any:
    async with router_rig() as made:
        yield made


async def test_events_are_as_described(rig: Rig) -> None:
    for include_usage in (False, True):
        options = {"stream_options": {"include_usage": include_usage}}
        chat = await rig.chat_events(**options)
        text = await rig.post_events("/v1/completions", model=MODEL, prompt="hi", **options)
        assert chat.pop() == text.pop() == "[DONE]"
        for line in chat:
            TypeAdapter(ChatCompletionChunk).validate_json(line)
        for line in text:
            TypeAdapter(TextCompletionChunk).validate_json(line)


SAMPLES: dict[str, list[Any]] = {
    "null": [None],
    "boolean": [False, True],
    "integer": [1, 4096],
    "number": [1, 0.5],
    "string": ["qwen3-omni"],
    "object": [{"enable_thinking": False}],
}


def samples(schema: dict[str, Any]) -> list[Any]:
    """Values that a field of kiapi's takes, one or two of each of its types."""
    if "anyOf" in schema:
        return [value for one in schema["anyOf"] for value in samples(one)]
    return SAMPLES[schema["type"]] if "type" in schema else ["auto", "none"]


def kiapi_schemas() -> dict[str, Any]:
    """The schemas of kiapi's own document."""
    assert FOLDER is not None
    schemas: dict[str, Any] = json.loads((FOLDER / KIAPI).read_text())["components"]["schemas"]
    return schemas


@needs_documents
def test_what_kiapi_accepts_is_accepted(document: dict[str, Any]) -> None:
    theirs = kiapi_schemas()
    ours = {"$ref": "#/components/schemas/ChatRequest", "components": document["components"]}
    validator = Draft202012Validator(ours)
    plain: dict[str, Any] = {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    }
    tool: dict[str, Any] = {
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "object"}},
    }
    for field, schema in theirs["ChatRequest"]["properties"].items():
        match field:
            case "messages":
                given = [plain["messages"]]
            case "tools":
                given = [None, [], [tool]]
            case _:
                given = samples(schema)
        for value in given:
            body = {**plain, field: value}
            errors = [error.message for error in validator.iter_errors(body)]
            assert errors == [], (field, value)
            ChatRequest.model_validate(body)


@needs_documents
@pytest.mark.parametrize(
    ("their_name", "our_name"),
    [
        ("ChatCompletionResponse", "ChatCompletion"),
        ("_Choice", "ChatChoice"),
        ("_ResponseMessage", "AnswerMessage"),
        ("_ToolCall", "CalledTool"),
        ("_FunctionCall", "CalledFunction"),
        ("_Usage", "GenerationUsage"),
        ("_Timings", "Timings"),
        ("CapabilityModelSpec", "CapabilityModelSpec"),
        ("OpenAIModelSpec", "ModelObject"),
        ("ModelListResponse", "ModelList"),
    ],
)
def test_answers_have_all_that_kiapis_have(
    document: dict[str, Any], their_name: str, our_name: str
) -> None:
    theirs = kiapi_schemas()[their_name]
    ours = document["components"]["schemas"][our_name]
    assert set(theirs["properties"]) <= set(ours["properties"])
    assert set(theirs.get("required", ())) <= set(ours["required"])


async def test_an_answer_that_is_not_as_described_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lmx.router.rendering.text.TextShape.complete_object", "text")
    with pytest.raises(AssertionError, match="POST /v1/completions: 200"):
        async with router_rig() as rig:
            await rig.post_json("/v1/completions", prompt="hi")

"""Bad input of every kind that makes other servers hang, die or pretend: a 4xx that says what is
wrong, and a server that goes on."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.data import Generate
from lmx.protocol.wire.codec import decode, encode
from lmx.router.http.bodies.json_body import parse_object
from lmx.router.schema.openapi.texts import EXAMPLES
from lmx.router.schema.requests.anthropic.messages import (
    CountTokensRequest,
    MessagesRequest,
    parse_count,
    parse_messages,
)
from lmx.router.schema.requests.audio import SpeechRequest, parse_speech
from lmx.router.schema.requests.batches import BatchRequest, MessageBatchRequest
from lmx.router.schema.requests.chat import ChatRequest, parse_chat
from lmx.router.schema.requests.completions import CompletionRequest, parse_completion
from lmx.router.schema.requests.console import MarkdownRequest
from lmx.router.schema.requests.conversations import (
    ConversationItemsRequest,
    ConversationRequest,
    ConversationUpdate,
)
from lmx.router.schema.requests.infill import InfillRequest, parse_infill
from lmx.router.schema.requests.ollama.chat import OllamaChatRequest, parse_ollama_chat
from lmx.router.schema.requests.ollama.common import (
    OllamaPullRequest,
    OllamaShowRequest,
    parse_ollama_pull,
    parse_ollama_show,
)
from lmx.router.schema.requests.ollama.embed import (
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    parse_ollama_embed,
    parse_ollama_embeddings,
)
from lmx.router.schema.requests.ollama.generate import OllamaGenerateRequest, parse_ollama_generate
from lmx.router.schema.requests.responses.compaction import CompactRequest, summarizing
from lmx.router.schema.requests.responses.responses import (
    InputTokensRequest,
    ResponsesRequest,
    asked_of,
    generation_of,
    parse_input_tokens,
    parse_responses,
    tokenizing_of,
)
from lmx.router.schema.requests.tasks import (
    DetokenizeRequest,
    EmbeddingRequest,
    RerankRequest,
    ScoreRequest,
    TokenizeRequest,
    parse_detokenize,
    parse_embedding,
    parse_rerank,
    parse_score,
    parse_tokenize,
    reranking_of,
)
from lmx.router.schema.requests.unsupported import CHAT, COMPLETION
from lmx.router.schema.validation import validated
from lmx.router.server.routes import ROUTES
from tests.support.rigs.budgets import examples
from tests.support.rigs.router_rig import MODEL, Rig, chat_body, router_rig

CHAT_PATH = "/v1/chat/completions"


def part(**fields: Any) -> bytes:
    return body(messages=[{"role": "user", "content": [{"type": "text", "text": "a"}, fields]}])


def body(**fields: Any) -> bytes:
    return json.dumps(chat_body(**fields)).encode()


def completion(**fields: Any) -> bytes:
    return json.dumps({"model": MODEL, "prompt": "a"} | fields).encode()


NOT_BASE64 = "data:image/png;base64,@@@"
CONTENT = "messages[0].content[1]"
MIB = 2**20

# What is sent, the status, the code, the path. The faults of single fields are in the tests of the
# schemas.
TABLE: dict[str, tuple[bytes, int, str, str | None]] = {
    "no conversation": (
        b'{"model": "%b"}' % MODEL.encode(), 400, "missing_required_parameter", "messages"),
    "two penalties": (
        body(repeat_penalty=1.1, repetition_penalty=1.2), 400, "invalid_value", "repeat_penalty"),
    "two efforts": (
        body(think="low", reasoning={"effort": "high"}), 400, "invalid_value", "think"),
    "half an answer": (body(n=1.5), 400, "invalid_type", "n"),
    "an unknown model": (body(model="gpt-9"), 404, "model_not_found", "model"),
    "a path as a model": (body(model="../../etc/passwd"), 404, "model_not_found", "model"),
    "infinite": (
        body(temperature=0).replace(b": 0}", b": 1e999}"), 400, "invalid_value", "temperature"),
    "a bad image": (
        part(type="image_url", image_url={"url": NOT_BASE64}), 400, "invalid_media",
        f"{CONTENT}.image_url"),
    "a path as an image": (
        part(type="image_url", image_url="file:///etc/passwd"), 400, "invalid_value",
        f"{CONTENT}.image_url"),
    "audio": (
        part(type="input_audio", input_audio={"data": "@", "format": "wav"}),
        400, "invalid_media", f"{CONTENT}.input_audio"),
    "audio by address": (
        part(type="audio_url", audio_url={"url": "http://127.0.0.1/a.mp3"}), 400,
        "media_not_fetched", f"{CONTENT}.audio_url"),
    "plain audio": (
        part(type="audio", audio="http://[::1]"), 400, "media_not_fetched", f"{CONTENT}.audio"),
    "video by address": (
        part(type="video_url", video_url={"url": "x"}), 400, "invalid_media",
        f"{CONTENT}.video_url"),
    "plain video": (
        part(type="video", video="http://10.0.0.1"), 400, "media_not_fetched",
        f"{CONTENT}.video"),
    "inline video": (
        part(type="input_video", input_video={"data": "@", "format": "mp4"}),
        400, "invalid_media", f"{CONTENT}.input_video"),
    "a key twice": (
        body(temperature=0).replace(b': 0}', b': 0, "temperature": 1}'), 400, "invalid_json",
        None),
    "half a surrogate pair": (
        body(user="x").replace(b'"x"', b'"\\ud800"'), 400, "invalid_json", None),
    "a word": (b'"hi"', 400, "invalid_type", None),
    "null": (b"null", 400, "invalid_type", None),
    "a form": (b"model=x&prompt=y", 400, "invalid_json", None),
    "50 MB": (b'{"messages": "' + b"x" * 50 * MIB + b'"}', 413, "request_too_large", None),
}  # fmt: skip

COMPLETIONS: dict[str, tuple[bytes, int, str, str | None]] = {
    "a number": (completion(prompt=5), 400, "invalid_type", "prompt"),
    "a huge token": (completion(prompt=[10**30]), 400, "invalid_value", "prompt[0]"),
    "a suffix": (completion(suffix="x", echo=True), 400, "unsupported_value", "echo"),
}


async def post(rig: Rig, path: str, data: bytes) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json"}
    async with rig.http.post(f"{rig.url}{path}", data=data, headers=headers) as response:
        return response.status, await response.json()


@pytest.mark.parametrize(
    ("paths", "table"),
    [((CHAT_PATH, "/v3/chat/completions"), TABLE), (("/v1/completions",), COMPLETIONS)],
)
async def test_the_table(
    paths: tuple[str, ...], table: dict[str, tuple[bytes, int, str, str | None]]
) -> None:
    wrong: list[object] = []
    async with router_rig() as rig:
        for path in paths:
            for what, (data, *expected) in table.items():
                status, answer = await post(rig, path, data)
                error = answer.get("error", {})
                if [status, error.get("code"), error.get("param")] != expected:
                    wrong.append((path, what, status, answer))
                elif len(error["message"]) > 400 or error["type"] != "invalid_request_error":
                    wrong.append((path, what, "words", error))
        assert not wrong
        assert not rig.worker.streams
        assert (await rig.chat_json())[0] == 200


async def test_what_others_refuse_or_ignore_works(rig: Rig) -> None:
    status, answer = await rig.post_json("/v1/completions", model=MODEL, prompt=["a", "b"])
    assert (status, len(answer["choices"])) == (200, 2)
    status, _ = await rig.chat_json(user="\0", metadata={"\0": "é"}, stop=["\0"])
    assert status == 200


ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, 10**19, 10**300, float("inf"), "", "x", "\0", "9" * 5000, [],
    [[]], [None], [10**30], {}, {"": None}, {"a": {"b": [float("inf")]}}, {"type": "x"},
)  # fmt: skip


async def test_odd_values_in_every_field_over_http(rig: Rig) -> None:
    for path, known in (
        (CHAT_PATH, {*ChatRequest.model_fields, *CHAT}),
        (
            "/v1/completions",
            {"logprobs", *CompletionRequest.model_fields, *COMPLETION}
            - {*ChatRequest.model_fields, *CHAT},
        ),
    ):
        for name in sorted(known):
            for value in ODD:
                sent = chat_body(prompt="a") | {name: value}
                # As JSON has it: Python writes Infinity.
                data = json.dumps(sent).replace("Infinity", "1e999").encode()
                async with rig.http.post(
                    f"{rig.url}{path}", data=data, headers={"Content-Type": "application/json"}
                ) as response:
                    answer = await response.read()
                    said = (path, name, str(value)[:40], answer[:200])
                    assert response.status in (200, 400, 404), said
                    if response.status == 400:
                        assert json.loads(answer)["error"]["param"].startswith(name), said
    assert (await rig.chat_json())[0] == 200


def _score_of(body: dict[str, Any]) -> tuple[Any, Any]:
    wanted = parse_score(body)
    return wanted, reranking_of(wanted)


def _response_of(body: dict[str, Any]) -> tuple[Any, Any]:
    request = parse_responses(body)
    return request, generation_of(request, asked_of(request, request.items, b"key"))


def _summary_of(body: dict[str, Any]) -> tuple[Any, Any]:
    request, generate = _response_of(body)
    return request, summarizing(generate, [None], thinks=False)


def _tokens_of(body: dict[str, Any]) -> tuple[Any, Any]:
    request = parse_input_tokens(body)
    return request, tokenizing_of(request, asked_of(request, request.items, b"key"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**400), 10**400) | st.floats(allow_nan=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)  # fmt: skip

SCHEMAS: list[tuple[type[BaseModel], Callable[[dict[str, Any]], Any], dict[str, Any]]] = [
    (ChatRequest, parse_chat, chat_body()),
    (CompletionRequest, parse_completion, {"prompt": "a"}),
    (EmbeddingRequest, parse_embedding, {"input": "a"}),
    (RerankRequest, parse_rerank, {"query": "a", "documents": ["b"]}),
    (SpeechRequest, parse_speech, {"input": "a"}),
    (ScoreRequest, _score_of, {"text_1": "a", "text_2": ["b"]}),
    (TokenizeRequest, parse_tokenize, {"prompt": "a"}),
    (DetokenizeRequest, parse_detokenize, {"tokens": [1]}),
    (MessagesRequest, parse_messages, {**chat_body(), "max_tokens": 9}),
    (CountTokensRequest, parse_count, chat_body()),
    (OllamaChatRequest, parse_ollama_chat, chat_body()),
    (InfillRequest, parse_infill, {"input_prefix": "a", "input_suffix": "b"}),
    (OllamaGenerateRequest, parse_ollama_generate, {"model": MODEL, "prompt": "a"}),
    (OllamaEmbedRequest, parse_ollama_embed, {"model": MODEL, "input": "a"}),
    (OllamaEmbeddingsRequest, parse_ollama_embeddings, {"model": MODEL, "prompt": "a"}),
    (OllamaPullRequest, lambda body: (parse_ollama_pull(body), ()), {"model": MODEL}),
    (OllamaShowRequest, lambda body: (parse_ollama_show(body), ()), {"model": MODEL}),
    (MarkdownRequest, lambda body: (validated(MarkdownRequest, body), ()), {"blocks": ["a"]}),
    (ResponsesRequest, _response_of, {"input": "hi"}),
    (InputTokensRequest, _tokens_of, {"input": "hi"}),
    (CompactRequest, _summary_of, {"input": "hi"}),
    (BatchRequest, lambda body: (validated(BatchRequest, body), ()), EXAMPLES["BatchRequest"]),
    (
        MessageBatchRequest,
        lambda body: (validated(MessageBatchRequest, body), ()),
        EXAMPLES["MessageBatchRequest"],
    ),
    (ConversationRequest, lambda body: (validated(ConversationRequest, body), ()), {}),
    (
        ConversationUpdate,
        lambda body: (validated(ConversationUpdate, body), ()),
        EXAMPLES["ConversationUpdate"],
    ),
    (
        ConversationItemsRequest,
        lambda body: (validated(ConversationItemsRequest, body), ()),
        EXAMPLES["ConversationItemsRequest"],
    ),
]


WRONG: dict[str, tuple[str, *tuple[Any, ...]]] = {
    "string": ("a string", 5, []),
    "boolean": ("a boolean", 1, "yes"),
    "integer": ("an integer", 1.0, True, "5"),
    "number": ("a number", True, "1"),
    "array": ("an array", 5, "x"),
    "object": ("an object", [1], "x"),
}
OUTSIDE: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "minimum": ("at least {}", lambda bound: bound - 1),
    "exclusiveMinimum": ("greater than {}", lambda bound: bound),
    "maximum": ("at most {}", lambda bound: bound + 1),
    "minLength": ("must not be empty", lambda bound: ""),
    "maxLength": ("at most {} characters", lambda bound: "x" * (bound + 1)),
    "minItems": ("at least {}", lambda bound: []),
}


def declared_faults(schema: type[BaseModel]) -> Iterator[tuple[str, Any, ErrorCode, str]]:
    """Yield for each field of one form what is of another type, or just outside of its bounds."""
    for name, declared in schema.model_json_schema()["properties"].items():
        form, *others = [
            form for form in declared.get("anyOf", [declared]) if form != {"type": "null"}
        ]
        kind = "object" if "$ref" in form else form.get("type")
        if others or not isinstance(kind, str) or form.keys() & {"enum", "const"}:
            continue
        words, *values = WRONG[kind]
        for value in values:
            yield name, value, ErrorCode.INVALID_TYPE, words
        for bound in OUTSIDE.keys() & form.keys():
            words, outside = OUTSIDE[bound]
            limit = str(form[bound]).removesuffix(".0")
            yield name, outside(form[bound]), ErrorCode.INVALID_VALUE, words.format(limit)


OF_OPERATORS: list[tuple[type[BaseModel], Callable[[dict[str, Any]], Any], dict[str, Any]]] = [
    (schema, partial(validated, schema), EXAMPLES[schema.__name__])
    for schema in {endpoint.request: None for endpoint in ROUTES}
    if schema is not None and schema not in [known for known, _, _ in SCHEMAS]
]


@pytest.mark.parametrize(("schema", "parse", "valid"), SCHEMAS + OF_OPERATORS)
def test_each_field_is_of_its_type_and_within_its_bounds(
    schema: type[BaseModel], parse: Callable[[dict[str, Any]], Any], valid: dict[str, Any]
) -> None:
    """What the types and bounds are is in docs/parameters.md, which is made of them."""
    for name, value, code, words in declared_faults(schema):
        with pytest.raises(RequestError) as caught:
            parse(valid | {name: value})
        assert (caught.value.param, caught.value.code) == (name, code)
        assert words in caught.value.message
        assert len(caught.value.message) < 300
    for name in schema.model_json_schema().get("required", ()):
        with pytest.raises(RequestError) as caught:
            parse({other: valid[other] for other in valid if other != name})
        assert (caught.value.param, caught.value.code) == (name, ErrorCode.MISSING_PARAMETER)


def names_of(schema: type[BaseModel]) -> list[str]:
    return sorted({"messages", "tools", *schema.model_fields})


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_any_json_in_any_fields_can_be_sent_to_a_worker_or_is_refused(data: st.DataObject) -> None:
    schema, parse, valid = data.draw(st.sampled_from(SCHEMAS))
    given_fields = data.draw(st.dictionaries(st.sampled_from(names_of(schema)), JSON, max_size=3))
    try:
        _, work, *_ = parse(valid | given_fields)
    except RequestError as error:
        assert error.param
        assert len(error.message) < 400
        return
    for one in work if isinstance(work, tuple) else (work,):
        assert decode(encode(one, 1)).message == one


@given(JSON, JSON)
def test_what_a_worker_is_sent_of_free_objects_survives_the_wire(kwargs: Any, schema: Any) -> None:
    text = json.dumps(
        chat_body(
            chat_template_kwargs={"a": kwargs},
            tools=[{"type": "function", "function": {"name": "f", "parameters": {"p": schema}}}],
        )
    ).replace("Infinity", "1e999")
    try:
        _, generate, _ = parse_chat(parse_object(text.encode()))
    except RequestError as error:
        assert error.param is None or error.param.startswith(("chat_template_kwargs", "tools[0]"))
        return
    sent = decode(encode(generate, 1)).message
    assert isinstance(sent, Generate)
    assert sent.template_kwargs == {"a": kwargs}


def test_every_route_that_takes_a_body_is_known_here() -> None:
    ours = {schema for schema, _, _ in SCHEMAS}
    named = {endpoint.request for endpoint in ROUTES if endpoint.access == "inference"}
    assert {model for model in named if model is not None} <= ours

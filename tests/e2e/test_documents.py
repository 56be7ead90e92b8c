"""Every example of the five documents, against a live server.

The shapes matter here, not the words: a tiny model with random weights answers, on the real engine.

The documents are not in the repository. Their folder is ``API_DOCUMENTS``, else
``shared/seeds`` beside the checkout; where there is none, these tests are skipped.
"""

import contextlib
import io
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from openai import OpenAI

from tests.support.clients.document_decisions import (
    ANSWERED_BY_RULE,
    CALLING,
    CHAT,
    ERRORS,
    FRANCE,
    NOT_ALWAYS_THERE,
    PARAMETER_TABLES,
    PARAMETERS,
    PYTHON_MENDED,
    STREAMS,
    TOOL,
)
from tests.support.clients.document_requests import (
    Asked,
    as_json,
    curl_requests,
    events,
    json_lines,
    powershell_request,
    quoted_keys,
)
from tests.support.clients.document_shapes import differences
from tests.support.clients.document_tables import Row, table_rows
from tests.support.clients.documents import (
    KIAPI,
    KOLOSAL,
    MOONSHOT,
    OPTA,
    OVMS,
    WHY_SKIPPED,
    Example,
    Kind,
    documents_folder,
    examples,
)
from tests.support.clients.documents_server import REPO, Live, Reply, config
from tests.support.fakes.fake_hub import fake_hub
from tests.support.models.cut_models import cut_gguf
from tests.support.models.tiny_models import make_tiny_model
from tests.support.rigs.rig import rig

FOLDER = documents_folder()
ALL = examples(FOLDER) if FOLDER else []
ROWS = [
    row
    for document in (KOLOSAL, OPTA, OVMS)
    for row in (table_rows(document, (FOLDER / document).read_text()) if FOLDER else ())
]

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(
        FOLDER is None,
        reason=WHY_SKIPPED,
    ),
    pytest.mark.long,
]


def of(*kinds: Kind) -> pytest.MarkDecorator:
    """Parametrize a test with the examples of these kinds."""
    found = [example for example in ALL if example.kind in kinds]
    return pytest.mark.parametrize("example", found, ids=[example.name for example in found])


@pytest.fixture(scope="module")
def live(
    smollm2_gguf: Path, minilm_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Live]:
    tiny = make_tiny_model(tmp_path_factory.mktemp("hub") / "tiny", "llama", 8192)
    small = cut_gguf(smollm2_gguf, smollm2_gguf.parents[1] / "test-models" / "cut-1.gguf")
    with fake_hub() as hub, pytest.MonkeyPatch.context() as patch:
        hub.add_folder(REPO, tiny)
        patch.setenv("HF_ENDPOINT", hub.endpoint)
        with rig(config(tiny, minilm_dir)) as lmx:
            lmx.wait_state("small", "ready", deadline_s=300)
            lmx.wait_state("minilm", "ready", deadline_s=300)
            yield Live(lmx, hub, small, tiny)


def test_nothing_is_passed_over() -> None:
    assert FOLDER is not None
    kinds = Counter(example.kind for example in ALL)
    assert kinds[Kind.UNKNOWN] == 0
    for document in (KOLOSAL, OPTA, OVMS):
        fences = re.findall(r"(?m)^```", (FOLDER / document).read_text())
        assert len(fences) == 2 * sum(example.document == document for example in ALL)
    kiapi = json.loads((FOLDER / KIAPI).read_text())
    fences = re.findall(r"(?m)^```", kiapi["info"]["description"])
    of_schemas = sum(len(found) for found in _all_examples(kiapi["components"]))
    blocks = len(fences) // 2 + of_schemas
    assert blocks == sum(example.document == KIAPI for example in ALL)
    payloads = re.findall(r"(?m)^payload:(?! *$)|^payload:\n(?!type:|\$ref)", _moonshot())
    assert len(payloads) == sum(example.document == MOONSHOT for example in ALL)
    assert kinds.keys() <= set(Kind)
    assert len({example.name for example in ALL if example.kind is not Kind.VALUE}) == len(
        [example for example in ALL if example.kind is not Kind.VALUE]
    )


def _moonshot() -> str:
    assert FOLDER is not None
    return (FOLDER / MOONSHOT).read_text()


def _all_examples(value: Any) -> Iterator[list[Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key == "examples" and isinstance(item, list):
                yield item
            else:
                yield from _all_examples(item)
    elif isinstance(value, list):
        for item in value:
            yield from _all_examples(item)


def requests_of(example: Example) -> list[Asked]:
    """Return what an example sends; `string` stands for a model's name."""
    match example.kind:
        case Kind.CURL:
            return list(curl_requests(example.text))
        case Kind.POWERSHELL:
            return [powershell_request(example.text)]
        case _:
            body = as_json(example.text)
            if body.get("model") == "string":
                body["model"] = "my-model"
            assert example.route is not None
            return [Asked(*example.route, body=json.dumps(body))]


def first_media(asked: Asked) -> str | None:
    """Return the path of a request's first part that is not text."""
    with contextlib.suppress(ValueError, TypeError, KeyError):
        for place, message in enumerate(json.loads(asked.body or "{}").get("messages", [])):
            if isinstance(message["content"], list):
                for at, part in enumerate(message["content"]):
                    if part["type"] != "text":
                        return f"messages[{place}].content[{at}]"
    return None


def check_media_is_refused(reply: Reply, path: str) -> None:
    """The documents' media are no media (`iVBORw0...`, `https://example.com/clip.mp4`), and these
    models take text only: their forms are known, and the refusal names the part."""
    assert reply.status == 400, reply
    assert reply.json["error"]["code"] in (
        "invalid_media",
        "media_not_fetched",
        "unsupported_value",
    )
    # The form itself is accepted.
    assert not reply.json["error"]["param"].endswith(".type")
    assert reply.json["error"]["param"].startswith(path), reply.json


@of(Kind.CURL, Kind.BODY, Kind.POWERSHELL)
def test_a_request_is_answered(live: Live, example: Example) -> None:
    for asked in requests_of(example):
        reply = live.ask(asked)
        if example.name == "ovms-14-curl":
            # `stream` without quotes is no JSON.
            assert (reply.status, reply.json["error"]["code"]) == (400, "invalid_json")
            reply = live.ask(repaired(asked))
        if path := first_media(asked):
            check_media_is_refused(reply, path)
            continue
        assert reply.status == (201 if asked.path == "/engines" else 200), reply
        if (asked.body and '"stream": true' in asked.body) or asked.path.endswith("/progress"):
            assert all("error" not in event for event in reply.events)
        elif reply.headers["content-type"].startswith("application/json"):
            assert reply.json is not None


def repaired(asked: Asked) -> Asked:
    assert asked.body is not None
    return Asked(asked.method, asked.path, asked.headers, quoted_keys(asked.body))


@of(Kind.ANSWER)
def test_an_answer_has_the_examples_shape(live: Live, example: Example) -> None:
    assert example.route is not None
    asked = Asked(*example.route)
    if example.request is not None:
        (asked,) = requests_of(example.request)
    if example.name == "ovms-35-answer":
        asked = repaired(asked)
    if added := ANSWERED_BY_RULE.get(example.name):
        asked = Asked(asked.method, asked.path, asked.headers,
                      json.dumps(json.loads(asked.body or "{}") | added))  # fmt: skip
    reply = live.ask(asked)
    assert reply.status in (200, 201), reply
    expected = as_json(example.text)
    if isinstance(expected, dict):
        expected.pop(NOT_ALWAYS_THERE.get(example.name, ""), None)
    assert differences(served_names(expected), reply.json) == []


def served_names(example: Any) -> Any:
    """Return an example with the served models' ids for its keys."""
    names = {"llama-3.2-8b": "small", "qwen3-vl-2b": "stub"}
    if isinstance(example, dict):
        return {names.get(key, key): served_names(value) for key, value in example.items()}
    return [served_names(item) for item in example] if isinstance(example, list) else example


@of(Kind.PYTHON)
def test_python_runs(live: Live, example: Example) -> None:
    text = re.sub(r"http://localhost:\d+", live.root, example.text)
    if mended := PYTHON_MENDED.get(example.name):
        assert mended[0] in text
        text = text.replace(*mended)
    version = "v3" if example.document.startswith("ovms") else "v1"
    with (
        OpenAI(base_url=f"{live.root}/{version}", api_key="none") as client,
        contextlib.redirect_stdout(io.StringIO()) as printed,
    ):
        names: dict[str, Any] = {"client": client, "model": "llama3"}
        exec(compile(text, example.name, "exec"), names)
    if "print(" in text:
        assert printed.getvalue()
    if "response" in names and hasattr(names["response"], "choices"):
        assert isinstance(names["response"].choices[0].message.content, str)


@of(Kind.STREAM)
def test_a_stream_has_chunks_like_the_examples(live: Live, example: Example) -> None:
    assert example.route is not None
    reply = live.ask(STREAMS.get(example.route, Asked(*example.route)))
    assert reply.status == 200, reply
    assert reply.headers["cache-control"].startswith("no-cache")
    check_like(reply.events, events(example.text))


@pytest.fixture(scope="module")
def chunks(live: Live) -> list[Any]:
    """The events of Moonshot's request, with a usage; and those of one that calls a tool."""
    (request,) = [
        example for example in ALL if (example.document, example.kind) == (MOONSHOT, Kind.BODY)
    ]
    body = json.loads(request.text) | {"stream_options": {"include_usage": True}}
    calling = body | {"tools": [TOOL]} | CALLING
    found: list[Any] = []
    for asked in (body, calling):
        reply = live.ask(Asked(*CHAT, body=json.dumps(asked)))
        assert reply.status == 200, reply
        found += reply.events
    return found


@of(Kind.CHUNK)
def test_a_chunk_is_like_moonshots(chunks: list[Any], example: Example) -> None:
    check_like(chunks, [json.loads(example.text)])


def check_like(ours: list[Any], theirs: list[Any]) -> None:
    """Check that each of the example's events has one like it among ours."""
    if theirs[-1] == "[DONE]":
        assert ours[-1] == "[DONE]"
    for event in theirs:
        if event == "[DONE]":
            continue
        wanted = by_agreement(event)
        assert any(
            isinstance(chunk, dict) and differences(wanted, chunk, strict=True) == []
            for chunk in ours
        ), (wanted, ours[0], ours[-2:])


def by_agreement(event: Any) -> Any:
    """Return an example's chunk as API.md has it, where Kolosal differs from the others.

    Its last chunk has an empty content; with Opta and Moonshot the delta is empty. Its text
    chunks have the finish reason "" in place of null.
    """
    for choice in event.get("choices", []):
        if choice.get("finish_reason") == "":
            choice["finish_reason"] = None
        elif choice.get("finish_reason") and "delta" in choice:
            choice["delta"].pop("content", None)
    return event


@of(Kind.ERROR)
def test_an_error_has_the_examples_form(live: Live, example: Example) -> None:
    asked, status, fixed = ERRORS[example.name]
    reply = live.ask(asked)
    assert reply.status == status, reply
    error = reply.json["error"]
    assert set(as_json(example.text)["error"]) == set(error) == {"message", "type", "param", "code"}
    assert {key: error[key] for key in fixed} == fixed
    assert error["message"]


PARTS = {"Usage": "usage", "Message": "message", "Delta": "delta"}


@of(Kind.PART)
def test_a_part_has_the_examples_shape(live: Live, example: Example) -> None:
    streamed = live.ask(STREAMS[CHAT]).events
    whole = live.ask(Asked(*CHAT, body=f'{{"model": "my-model", "messages": {FRANCE}}}')).json
    part = next(part for word, part in PARTS.items() if word in example.label)
    ours = {
        "usage": whole["usage"],
        "message": whole["choices"][0]["message"] | {"role": "user"},
        "delta": streamed[0]["choices"][0]["delta"],
    }[part]
    assert differences(as_json(example.text), ours) == []


@of(Kind.ROUTE)
def test_a_route_is_there(live: Live, example: Example) -> None:
    assert example.route is not None
    method, path = example.route
    known = {"POST": "GET", "GET": "POST", "DELETE": "POST"}
    other = "PATCH" if path == "/engines" else known[method]
    reply = live.send(Asked(other, path.replace("{engine_id}", "none")))
    assert reply.status == 405, reply
    assert method in reply.headers["allow"]


@of(Kind.HEADERS)
def test_headers_are_as_in_the_examples(live: Live, example: Example) -> None:
    route = example.route if example.route in STREAMS else CHAT
    assert route is not None
    streamed = live.ask(STREAMS[route])
    plain = live.send(Asked("GET", "/v1/models"))
    for line in example.text.split("\n"):
        name, _, value = line.split("#")[0].partition(": ")
        if name == "Accept" or (name, value.strip()) == ("Content-Type", "application/json"):
            # What a client sends, or what is not a stream.
            assert plain.headers["content-type"].startswith("application/json")
        elif name == "Connection":
            # Kolosal keeps it open. Moonshot closes it after the end mark, and so does lmx.
            assert (value.strip(), streamed.headers["connection"]) == ("keep-alive", "close")
        else:
            assert streamed.headers[name.lower()].startswith(value.strip())


@of(Kind.MEDIA)
def test_media_parts_are_refused_by_name(live: Live, example: Example) -> None:
    for part in json_lines(example.text):
        content = [{"type": "text", "text": "What is it?"}, part]
        body = {"model": "my-model", "messages": [{"role": "user", "content": content}]}
        reply = live.ask(Asked(*CHAT, body=json.dumps(body)))
        check_media_is_refused(reply, "messages[0].content[1]")


@of(Kind.METRICS)
def test_metrics_are_prometheus_text(live: Live, example: Example) -> None:
    assert example.route is not None
    live.ask(Asked(*CHAT, body=f'{{"model": "my-model", "messages": {FRANCE}}}'))
    reply = live.ask(Asked(*example.route))
    assert reply.headers["content-type"].startswith("text/plain")
    kinds = dict(re.findall(r"(?m)^# TYPE (\S+) (\w+)$", reply.text))
    assert "counter" in kinds.values()
    assert "histogram" in kinds.values()
    assert re.search(r'(?m)^lmx_\w+_bucket\{.*model(?:_name)?="small"', reply.text)


def test_answers_are_valid_by_kiapis_schemas(live: Live) -> None:
    assert FOLDER is not None
    document = json.loads((FOLDER / KIAPI).read_text())
    for path, methods in document["paths"].items():
        (method,) = methods
        body = f'{{"messages": {FRANCE}}}' if method == "post" else None
        reply = live.ask(Asked(method.upper(), path, body=body))
        assert reply.status == 200, reply
        schema = methods[method]["responses"]["200"]["content"]["application/json"]["schema"]
        jsonschema.validate(reply.json, {**schema, "components": document["components"]})


def rows(*headings: str) -> pytest.MarkDecorator:
    found = [row for row in ROWS if row.heading in headings]
    return pytest.mark.parametrize("row", found, ids=lambda row: f"{row.document[:4]}-{row.line}")


@rows(*PARAMETER_TABLES)
def test_a_tables_parameter_is_accepted(live: Live, row: Row) -> None:
    base: dict[str, Any] = {"model": "my-model", "max_tokens": 1}
    version = "v3" if row.document == OVMS else "v1"
    if row.heading == "Completion Parameters":
        path, base = f"/{version}/completions", base | {"prompt": "One"}
    else:
        path, base = f"/{version}/chat/completions", base | {"messages": json.loads(FRANCE)}
    for values in PARAMETERS[row.parameter]:
        reply = live.ask(Asked("POST", path, body=json.dumps(base | values)))
        assert reply.status == 200, reply
        assert "error" not in reply.text


@rows("Response")
def test_an_answer_has_the_tables_field(live: Live, row: Row) -> None:
    body = {"model": "my-model", "messages": json.loads(FRANCE)}
    found: Any = live.ask(Asked("POST", "/v3/chat/completions", body=json.dumps(body))).json
    for name in row.parameter.split("."):
        found = found[0] if isinstance(found, list) else found
        assert name in found
        found = found[name]


@rows("Engine Loading Parameters")
def test_an_engine_shows_the_tables_parameter(live: Live, row: Row) -> None:
    shown = live.ask(Asked("GET", "/engines/{engine_id}/status")).json
    assert row.parameter in shown | shown["parameters"]


def test_no_table_is_passed_over() -> None:
    known = {*PARAMETER_TABLES, "Response", "Engine Loading Parameters"}
    assert {row.heading for row in ROWS} == known

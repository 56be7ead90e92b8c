"""The checks that the documents' examples are held against."""

from typing import Any

import pytest

from tests.support.clients.asyncapi_examples import asyncapi_examples
from tests.support.clients.document_requests import (
    as_json,
    curl_requests,
    powershell_request,
    quoted_keys,
)
from tests.support.clients.document_shapes import differences


@pytest.mark.parametrize(
    ("ours", "faults"),
    [
        ({"id": "b", "object": "list", "n": 2, "rows": [{"x": 0.5}, {"x": 1}], "more": 1}, 0),
        ({"object": "list", "n": 2, "rows": [{"x": 0.5}]}, 1),
        ({"id": 1, "object": "list", "n": 2, "rows": [{"x": 0.5}]}, 1),
        ({"id": "b", "object": "set", "n": 2, "rows": [{"x": 0.5}]}, 1),
        ({"id": "b", "object": "list", "n": 2.5, "rows": [{"x": 0.5}]}, 1),
        ({"id": "b", "object": "list", "n": True, "rows": [{"x": 0.5}]}, 1),
        ({"id": "b", "object": "list", "n": 2, "rows": []}, 1),
        ({"id": "b", "object": "list", "n": 2, "rows": [{"x": 0.5}, {"y": 1}]}, 1),
        ({"id": "b", "object": "list", "n": 2, "rows": {"x": 0.5}}, 1),
        ([], 1),
    ],
)
def test_what_an_answer_lacks_is_found(ours: Any, faults: int) -> None:
    example = {"id": "a", "object": "list", "n": 1, "rows": [{"x": 0.1}], "null": None}
    assert len(differences(example, ours)) == faults


def test_a_curl_command() -> None:
    (asked,) = curl_requests(
        "curl -X POST http://HOST:PORT/v1/x \\\n  -H 'A: b' \\\n  -d '{\n  stream: 1}'"
    )
    assert (asked.method, asked.path, asked.headers) == ("POST", "/v1/x", {"A": "b"})
    assert asked.body is not None
    assert quoted_keys(asked.body) == '{\n  "stream": 1}'
    with pytest.raises(ValueError, match="-Z"):
        list(curl_requests("curl -Z http://h/x"))


def test_a_hashtable_of_powershell() -> None:
    asked = powershell_request(
        '$b = @{\n a = "x"\n l = @(\n @{\n r = 1\n },\n @{\n r = 2.5\n }\n )\n} | ConvertTo-Json\n'
        'Invoke-RestMethod -Uri "http://h:1/p" `\n   -Method POST `\n   -Body $b'
    )
    assert (asked.method, asked.path) == ("POST", "/p")
    assert asked.body == '{"a": "x", "l": [{"r": 1}, {"r": 2.5}]}'


def test_json_with_what_is_left_out() -> None:
    text = '{"a": [...], "b": [1, ...], "r": "system | user", // why\n "t": "x" | "y"}'
    assert as_json(text) == {"a": None, "b": [1], "r": "user", "t": "x"}


def test_yaml_without_indentation() -> None:
    text = (
        "tags:\n- name: no-example\nexamples:\n- name: one\nsummary: s\npayload:\nid: a\n"
        "choices:\n- index: 0\ndelta:\ntool_calls:\n- index: 1\nfunction:\nname: f\n"
        "finish_reason: null\n- name: two\nsummary: s\npayload: '[DONE]'\nother:\n"
    )
    call = {"index": 1, "function": {"name": "f"}}
    choice = {"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}
    assert list(asyncapi_examples(text)) == [
        (4, "one", {"id": "a", "choices": [choice]}),
        (16, "two", "[DONE]"),
    ]

"""A tool's result whose call is not in the conversation: it is answered, shown to the model as what
it is, and named in a header, in every API and wherever tokens are counted."""

from typing import Any

import pytest

from lmx.protocol.messages.data import Generate
from lmx.protocol.messages.tasks import Tokenize, Tokenized
from lmx.router.schema.requests.conversation.turns import with_stray_results
from lmx.router.schema.requests.ollama.chat import parse_ollama_chat
from tests.support.rigs.router_rig import MODEL, router_rig

STRAY = "[The result of a call that is not in this conversation:]\n"
NAMED = "[The result of a call of the tool f that is not in this conversation:]\n"
HI = {"role": "user", "content": "hi"}


def said(role: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **fields}


def text_part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def called(*ids: str) -> dict[str, Any]:
    function = {"name": "f", "arguments": "{}"}
    calls = [{"id": one, "type": "function", "function": function} for one in ids]
    return said("assistant", "", tool_calls=calls)


def result(call_id: str, text: str, **fields: Any) -> dict[str, Any]:
    return said("tool", text, tool_call_id=call_id, **fields)


WHOLE = [HI, called("a", "b"), result("b", "2"), result("a", "1"), said("user", "x")]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (WHOLE, None),
        ([*WHOLE, result("a", "late")], None),
        ([result("a", "1")], [said("user", f"{STRAY}1")]),
        ([HI, result("a", "1", name="f")], [said("user", f"hi\n{NAMED}1")]),
        ([result("a", "1"), HI], [said("user", f"{STRAY}1\nhi")]),
        # The result comes before its call.
        ([HI, result("a", "1"), called("a")], [said("user", f"hi\n{STRAY}1"), called("a")]),
        (
            [HI, called("a"), result("x", "0"), result("a", "1"), HI],
            [HI, called("a"), result("a", "1"), said("user", f"{STRAY}0\nhi")],
        ),
        (
            [said("system", "s"), result("x", "0"), result("y", "1"), said("assistant", "so")],
            [said("system", "s"), said("user", f"{STRAY}0\n{STRAY}1"), said("assistant", "so")],
        ),
        (
            [said("tool", [{"type": "image", "media": 0}], tool_call_id="x")],
            [
                said(
                    "user", [{"type": "text", "text": STRAY.strip()}, {"type": "image", "media": 0}]
                )
            ],
        ),
    ],
)
def test_what_the_model_is_shown(
    given: list[dict[str, Any]], shown: list[dict[str, Any]] | None
) -> None:
    before = repr(given)
    assert with_stray_results(given) == shown
    assert repr(given) == before, "what is stored of a request stays as it was sent"


BLOCK = {"type": "tool_result", "tool_use_id": "gone", "content": "y"}
OUTPUT = {"type": "function_call_output", "call_id": "gone", "output": "y"}
CHAT = {"messages": [HI, {"role": "tool", "tool_call_id": "gone", "content": "y"}]}
MESSAGES = {"messages": [HI, {"role": "user", "content": [BLOCK]}]}
INPUT = {"input": [{**HI, "type": "message"}, OUTPUT]}
OLLAMA = {"messages": [HI, {"role": "tool", "content": "y"}]}
WAYS: dict[str, tuple[dict[str, Any], str]] = {
    "/v1/chat/completions": (CHAT, "messages.tool_call_id"),
    "/v1/messages": ({**MESSAGES, "max_tokens": 9}, "messages.content.tool_use_id"),
    "/v1/responses": (INPUT, "input.call_id"),
    "/api/chat": ({**OLLAMA, "stream": False}, "messages.tool_name"),
    "/tokenize": (CHAT, "messages.tool_call_id"),
    "/v1/messages/count_tokens": (MESSAGES, "messages.content.tool_use_id"),
    "/v1/responses/input_tokens": (INPUT, "input.call_id"),
}


@pytest.mark.parametrize("path", WAYS)
async def test_it_is_answered_and_named(path: str) -> None:
    body, name = WAYS[path]
    async with router_rig() as rig:
        rig.worker.task_script = lambda task: [Tokenized(task.stream_id, (1, 2), 256)]
        url = f"{rig.url}{path}"
        async with rig.http.post(url, json={"model": MODEL, **body}) as response:
            assert response.status == 200, await response.text()
            assert response.headers["X-Lmx-Ignored"] == name
        streams, tasks = rig.worker.streams, rig.worker.tasks
        asked = streams[-1].request if streams else tasks[-1]
        assert isinstance(asked, Generate | Tokenize)
        assert list(asked.messages or ()) == [said("user", f"hi\n{STRAY}y")]


def test_an_ollama_client_that_makes_ids_of_its_own_for_results() -> None:
    """LiteLLM leaves the ids of calls out, and sends those of results."""
    call = {"function": {"name": "f", "arguments": {}}}
    messages = [
        HI,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_77", "content": "1"},
    ]
    sent = parse_ollama_chat({"model": "m", "messages": messages})[1].messages
    assert sent is not None
    assert sent[2]["tool_call_id"] == sent[1]["tool_calls"][0]["id"]

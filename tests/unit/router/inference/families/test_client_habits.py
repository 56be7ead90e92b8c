"""Requests as known clients send them: each is answered, by name.

The fields are those that the clients' public sources and documents show; the texts are made here.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from yarl import URL

from lmx.router.http.outcome import IGNORED, note_ignored
from tests.support.fakes.fake_peers import FakeStream
from tests.support.rigs.router_rig import MODEL, TEXTS, router_rig

KEY = "an-api-key-for-tests"
HI = {"role": "user", "content": "hi"}
SCHEMA = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {"path": {"type": "string"}},
    "required": ["path"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {"name": "read", "description": "Reads.", "parameters": SCHEMA, "strict": False},
}
FLAT_TOOL = {"type": "function", "name": "read", "description": "Reads.", "parameters": SCHEMA}
FIM_STOPS = [
    "<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
    "<|repo_name|>", "<|file_sep|>", "<|im_start|>", "<|im_end|>",
    "/src/", "#- coding: utf-8", "```",
]  # fmt: skip
BILLING = "x-anthropic-billing-header: cc_version=2.0.1; cc_entrypoint=cli; cch=7f3a1;"
AGENT_TEXT = "You are a coding agent. Read before you write, and run the tests. " * 700
"""45 KB, as such system prompts are."""


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [HI], **fields}


def is_text(answer: Any) -> bool:
    """Whether an answer, in whatever form, has the text."""
    return json.dumps("".join(TEXTS))[1:-1] in json.dumps(answer)


@dataclass(frozen=True)
class Habit:
    """A request of a client."""

    path: str
    body: Mapping[str, Any] | None = None
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=lambda: {"Authorization": f"Bearer {KEY}"})
    check: Callable[[Any], bool] = is_text


ANTHROPIC = {
    "x-api-key": KEY,
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
}

HABITS: dict[str, Habit] = {
    "Open WebUI: models": Habit(
        "/v1//models", method="GET", check=lambda answer: answer["data"][0]["id"] == MODEL
    ),
    "Open WebUI: a chat": Habit(
        "/v1/chat/completions",
        chat(
            stream=True, stream_options={"include_usage": True}, reasoning={"effort": "low"},
            messages=[{"role": "user", "content": [
                {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]}],
        ),
        headers={"Authorization": f"Bearer {KEY}", "X-OpenWebUI-User-Name": "Ann"},
    ),
    "Open WebUI: a title": Habit(
        "/v1/chat/completions", chat(stream=False, max_completion_tokens=1000)
    ),
    "Continue: a chat": Habit(
        "/v1/chat/completions", chat(stream=True, max_tokens=4096),
        headers={"Authorization": f"Bearer {KEY}", "api-key": KEY},
    ),
    "Continue: autocompletion": Habit(
        "/v1/completions",
        {"model": MODEL, "prompt": "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>",
         "max_tokens": 4096, "temperature": 0.01, "stop": FIM_STOPS, "stream": True},
    ),
    "Cline": Habit(
        "/v1/chat/completions",
        chat(stream=True, tools=[TOOL], tool_choice="auto",
             stream_options={"include_usage": True}),
    ),
    "Zed": Habit(
        "/v1/chat/completions",
        chat(stream=True, max_completion_tokens=4096, parallel_tool_calls=False,
             prompt_cache_key="thread-1", tools=[TOOL],
             messages=[HI, {"role": "assistant", "content": "a", "reasoning_content": "b"}, HI]),
    ),
    "aider": Habit(
        "/v1/chat/completions", chat(stream=True, temperature=0, reasoning={"effort": "high"})
    ),
    "LM Studio's apps": Habit(
        "/v1/chat/completions", chat(temperature=0.7, max_tokens=-1, stream=True, ttl=300)
    ),
    "Zed, by LM Studio's API: models": Habit(
        "/api/v0/models", method="GET",
        check=lambda answer: answer["data"][0]["capabilities"] == ["tool_use"],
    ),
    "Zed, by LM Studio's API: a chat": Habit(
        "/api/v0/chat/completions",
        chat(stream=True, tools=[TOOL], tool_choice="auto", max_tokens=4096,
             messages=[
                 HI,
                 {"role": "assistant", "content": [], "tool_calls": [
                     {"id": "1", "type": "function",
                      "function": {"name": "read", "arguments": "{}"}}]},
                 {"role": "tool", "tool_call_id": "1",
                  "content": [{"type": "text", "text": "text"}]},
             ]),
    ),
    "llama.cpp's clients": Habit(
        "/chat/completions", chat(repeat_penalty=1.1, stop=[""], cache_prompt=True)
    ),
    "Home Assistant: models": Habit(
        "/api/tags", method="GET",
        check=lambda answer: answer["models"][0]["name"] == f"{MODEL}:latest",
    ),
    "Home Assistant: a chat": Habit(
        "/api/chat",
        {"model": f"{MODEL}:latest", "messages": [HI], "tools": [TOOL], "stream": True,
         "keep_alive": "-1s", "options": {"num_ctx": 8192}, "think": False},
        check=lambda answer: answer[-1]["done"],
    ),
    "Home Assistant: what came of a tool": Habit(
        "/api/chat",
        {"model": f"{MODEL}:latest", "stream": True, "tools": [TOOL], "keep_alive": -1,
         "options": {"num_ctx": 8192}, "think": None, "format": None,
         "messages": [
             {"role": "system", "content": "Be kind."},
             {"role": "user", "content": "hi", "images": None},
             {"role": "assistant", "content": None, "thinking": "Hm.", "tool_calls": [
                 {"function": {"name": "read", "arguments": {"path": "a"}}}]},
             {"role": "tool", "content": '{"data": {}, "error": null}'},
         ]},
        check=lambda answer: answer[-1]["done"],
    ),
    "Home Assistant: a task with a form": Habit(
        "/api/chat",
        {"model": MODEL, "messages": [HI], "stream": True, "keep_alive": "300s",
         "options": {"num_ctx": 8192}, "think": False, "format": SCHEMA},
        check=lambda answer: answer[-1]["done"],
    ),
    "Open WebUI, by Ollama's API: a chat": Habit(
        "/api/chat",
        {"model": f"{MODEL}:latest", "messages": [HI], "stream": True, "tools": [TOOL],
         "think": "high", "format": {"type": "object"}, "keep_alive": "5m",
         "options": {"num_ctx": 4096, "num_predict": 100, "temperature": 0.7, "top_k": 40,
                     "top_p": 0.9, "min_p": 0.05, "stop": ["x"], "seed": 1, "repeat_last_n": 64,
                     "repeat_penalty": 1.1, "mirostat": 0, "num_keep": 4, "use_mmap": True}},
        check=lambda answer: answer[-1]["done"],
    ),
    "Open WebUI, by Ollama's API: unload": Habit(
        "/api/generate", {"model": MODEL, "keep_alive": 0, "prompt": ""},
        check=lambda answer: answer[-1]["done_reason"] == "unload",
    ),
    "Open WebUI, by Ollama's API: version": Habit(
        "/api/version", method="GET", check=lambda answer: answer["version"] > "0.1.16"
    ),
    "Enchanted: models": Habit(
        "/api/tags", method="GET", check=lambda answer: "." in answer["models"][0]["modified_at"]
    ),
    "Enchanted: a chat": Habit(
        "/api/chat",
        {"model": f"{MODEL}:latest", "stream": True, "options": {"temperature": 0},
         "messages": [{"role": "system", "content": "Be kind."}, HI]},
        check=lambda answer: "." in answer[0]["created_at"],
    ),
    "Zed, by Ollama's API: a chat": Habit(
        "/api/chat",
        {"model": f"{MODEL}:latest", "stream": True, "keep_alive": -1, "think": None,
         "options": {"num_ctx": 16384, "num_predict": None, "stop": [], "temperature": 1.0,
                     "top_p": None},
         "tools": [TOOL],
         "messages": [
             HI,
             {"role": "assistant", "content": "", "thinking": None, "tool_calls": [
                 {"id": "c", "function": {"name": "read", "arguments": {"path": "a"}}}]},
             {"role": "tool", "tool_name": "read", "content": "text"},
         ]},
        check=lambda answer: answer[-1]["done"],
    ),
    "Continue, by Ollama's API: a completion": Habit(
        "/api/generate",
        {"model": MODEL, "prompt": "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>", "raw": True,
         "stream": True, "keep_alive": 1800, "options": {"num_predict": 256, "stop": FIM_STOPS}},
        check=lambda answer: answer[-1]["done"],
    ),
    "a script that pulls first": Habit(
        "/api/pull", {"model": MODEL, "stream": False},
        check=lambda answer: answer == {"status": "success"},
    ),
    "Raycast": Habit("/", method="HEAD", check=lambda answer: answer is None),
    "Cursor: flat tools": Habit(
        "/v1/chat/completions",
        chat(stream=True, tools=[FLAT_TOOL], tool_choice={"type": "function", "name": "read"}),
    ),
    "Cursor: a Responses body": Habit(
        "/v1/responses",
        {"model": MODEL, "stream": True, "tools": [FLAT_TOOL], "tool_choice": "auto",
         "store": False, "include": ["reasoning.encrypted_content"],
         "reasoning": {"effort": "medium", "summary": "auto"}, "user": "u",
         "prompt_cache_retention": "24h", "text": {"verbosity": "low"}, "metadata": {"c": "1"},
         "stream_options": {"include_usage": True},
         "input": [
             {"role": "system", "content": "You are a coding agent."},
             {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
             {"type": "function_call", "call_id": "c", "name": "read", "arguments": "{}"},
             {"type": "function_call_output", "call_id": "c", "output": "text"},
         ]},
    ),
    "LibreChat": Habit(
        "/v1/chat/completions",
        chat(stream=True, stream_options={"include_usage": True}, user="64b0f0c0", n=1,
             temperature=1, top_p=1, presence_penalty=0, frequency_penalty=0,
             messages=[
                 {"role": "system", "content": "Be kind."},
                 {"role": "user", "content": [{"type": "text", "text": "hi"}]},
             ]),
    ),
    "Claude Code": Habit(
        "/v1/messages?beta=true",
        {
            "model": MODEL,
            "max_tokens": 32000,
            "stream": True,
            "system": [
                {"type": "text", "text": BILLING},
                {"type": "text", "text": AGENT_TEXT, "cache_control": {"type": "ephemeral"}},
            ],
            "messages": [{"role": "user", "content": [
                {"type": "text", "text": "<system-reminder>Today.</system-reminder>"},
                {"type": "text", "text": "Mend it.", "cache_control": {"type": "ephemeral"}},
            ]}],
            "tools": [
                *({"name": f"Tool{number}", "description": "Does.", "input_schema": SCHEMA}
                  for number in range(11)),
                {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
                {"type": "custom", "name": "Edit", "input_schema": SCHEMA},
            ],
            "metadata": {"user_id": "user_1_account_2_session_3"},
            "thinking": {"type": "adaptive"},
            "output_config": {"effort": "high"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
        },
        headers={**ANTHROPIC, "x-app": "cli", "user-agent": "claude-cli/2.0.1"},
    ),
    "openai's library without /v1": Habit("//chat/completions/", chat()),
    "functions, as before tools": Habit(
        "/v1/chat/completions",
        chat(functions=[{"name": "read", "parameters": SCHEMA}], function_call="auto",
             messages=[
                 HI,
                 {"role": "assistant", "content": None,
                  "function_call": {"name": "read", "arguments": "{}"}},
                 {"role": "function", "name": "read", "content": "text"},
             ]),
    ),
    "a load balancer": Habit(
        "/ping", method="GET", headers={}, check=lambda answer: answer is None
    ),
}  # fmt: skip


def read(text: str, content_type: str) -> Any:
    """Return a JSON answer; of a stream the text and all lines."""
    if content_type == "application/json" and text:
        return json.loads(text)
    if content_type == "application/x-ndjson":
        return [json.loads(line) for line in text.splitlines()]
    if content_type != "text/event-stream":
        return None
    events = [
        json.loads(line.removeprefix("data: "))
        for line in text.splitlines()
        if line.startswith("data: {")
    ]
    deltas = [event.get("delta") or {} for event in events]
    deltas += [
        choice.get("delta") or choice for event in events for choice in event.get("choices", ())
    ]
    said = [
        delta if isinstance(delta, str) else delta.get("text") or delta.get("content") or ""
        for delta in deltas
    ]
    return {"text": "".join(said), "events": events}


@pytest.mark.parametrize("name", HABITS)
async def test_it_is_answered(name: str) -> None:
    habit = HABITS[name]
    async with router_rig(api_keys=(KEY,)) as rig:
        url = URL(f"{rig.url}{habit.path}", encoded=True)
        async with rig.http.request(
            habit.method, url, json=habit.body, headers=dict(habit.headers)
        ) as response:
            text = await response.text()
            assert response.status == 200, text
            assert habit.check(read(text, response.content_type)), text[-400:]


async def test_a_direct_connection_of_open_webui() -> None:
    """Its page asks for leave first, and then sends what its server would send."""
    origin = {"Origin": "http://localhost:3000"}
    asks = {
        **origin, "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }  # fmt: skip
    habit = HABITS["Open WebUI: a chat"]
    async with router_rig(api_keys=(KEY,), cors_origins=("http://localhost:*",)) as rig:
        url = f"{rig.url}{habit.path}"
        async with rig.http.options(url, headers=asks) as response:
            assert response.status == 204
        async with rig.http.post(
            url, json=habit.body, headers={**habit.headers, **origin}
        ) as response:
            assert response.headers["Access-Control-Allow-Origin"] == origin["Origin"]
            assert is_text(read(await response.text(), response.content_type))


async def test_what_claude_code_sends_reaches_the_worker_without_what_changes() -> None:
    habit = HABITS["Claude Code"]
    async with router_rig(api_keys=(KEY,)) as rig:
        async with rig.http.post(
            f"{rig.url}{habit.path}", json=habit.body, headers=dict(habit.headers)
        ) as response:
            await response.read()
            ignored = response.headers["X-Lmx-Ignored"]
        sent = rig.worker.streams[-1].request
    assert "context_management" in ignored and "web_search" in ignored
    assert sent.messages is not None and sent.messages[0]["content"].startswith("You are a coding")
    assert sent.tool_use is not None and len(sent.tool_use.tools) == 12


EFFORTS: dict[str, tuple[dict[str, Any], str]] = {
    "/v1/chat/completions": ({"reasoning_effort": "high"}, "reasoning_effort"),
    "/v1/chat/completions?1": ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
    "/v1/chat/completions?2": ({"think": "high"}, "think"),
    "/v1/responses": ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
    "/v1/messages": ({"output_config": {"effort": "high"}}, "output_config.effort"),
    "/api/chat": ({"think": "high"}, "think"),
    "/api/generate": ({"think": "high"}, "think"),
}


@pytest.mark.parametrize("stream", [False, True])
async def test_an_effort_that_the_model_knows_nothing_of_is_named(stream: bool) -> None:
    async def take(worker: FakeStream) -> None:
        await worker.accept(ignored=(worker.request.thinking.param,))
        await worker.finish("Hi", tokens=1)

    asked = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}
    prompts = {"/v1/responses": {"input": "Hi"}, "/api/generate": {"prompt": "Hi"}}
    async with router_rig(take) as rig:
        for path, (fields, name) in EFFORTS.items():
            body = {"model": MODEL, "stream": stream, **prompts.get(path, asked), **fields}
            async with rig.http.post(f"{rig.url}{path}", json=body) as response:
                assert response.status == 200, (path, await response.text())
                assert response.headers["X-Lmx-Ignored"].split(", ")[-1] == name, path


def test_a_field_that_is_ignored_is_named_once() -> None:
    request: Any = {}
    for _ in range(3):
        note_ignored(request, ["store", "seed", "store"])
    assert request[IGNORED] == ["store", "seed"]

"""A coding agent's session: turn after turn with tools, and sub-agents three at a time.

What is the same as in any earlier request must not be computed again. The model has random weights
and a template that leaves out the thinking of earlier turns, as reasoning models' templates do.
"""

import json
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import httpx2
import pytest
from tokenizers import pre_tokenizers

from lmx.protocol.messages.specs import StablePrompts
from tests.support.models.tiny_models import make_tiny_model, make_tokenizer
from tests.support.rigs.rig import PATIENT, Rig, rig

pytestmark = pytest.mark.long

TEMPLATE = (
    "{% if tools %}<|system|>Tools:{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}<|end|>"
    "{% endif %}"
    "{% set ns = namespace(last=-1) %}"
    "{% for m in messages %}{% if m['role'] == 'user' %}{% set ns.last = loop.index0 %}{% endif %}"
    "{% endfor %}"
    "{% for m in messages %}<|{{ 'user' if m['role'] == 'tool' else m['role'] }}|>"
    "{% if m.get('reasoning_content') and loop.index0 > ns.last %}"
    "<think>{{ m['reasoning_content'] }}</think>{% endif %}"
    "{{ m['content'] }}"
    "{% for call in m.get('tool_calls') or [] %}\n<call>{{ call['function'] | tojson }}</call>"
    "{% endfor %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
LETTERS = [
    number
    for number, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))
    if char.isascii() and char.islower()
]
"""Their tokens."""

SUB_AGENTS_AT = 2
"""The turn of each ten after which sub-agents work."""

SUB_TURNS = 2
REUSED = 0.99
"""The least share of the tokens that are the same as in an earlier request."""

WORDS = (
    *("the", "agent", "reads", "a", "file", "and", "writes", "another", "one", "then", "it"),
    *("runs", "all", "tests", "looks", "at", "what", "failed", "mends", "function", "that"),
)


def text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))


def tool(rng: random.Random, number: int) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {
            name: {"type": "string", "description": text(rng, 8)} for name in ("path", "content")
        },
        "required": ["path"],
    }
    name = f"tool_{number}"
    function = {"name": name, "description": text(rng, 20), "parameters": parameters}
    return {"type": "function", "function": function}


@dataclass
class Reuse:
    """What was the same as in an earlier request, and what of it came from the cache."""

    same_tokens: int = 0
    cached_tokens: int = 0
    prompt_tokens: int = 0
    seen: list[list[int]] = field(default_factory=list)
    """The prompt and answer of each request until now, as tokens."""
    lock: Lock = field(default_factory=Lock)

    def count(self, before: Sequence[list[int]], answer: dict[str, Any]) -> None:
        """Take an answer in. ``before`` are the requests that had ended when it was sent."""
        prompt = answer["prompt_token_ids"]
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        # The last token is always computed: its logits make the answer.
        same = min(max((common(prompt, one) for one in before), default=0), len(prompt) - 1)
        with self.lock:
            self.same_tokens += same
            self.cached_tokens += min(cached, same)
            self.prompt_tokens += len(prompt)
            self.seen.append([*prompt, *answer["choices"][0]["token_ids"]])

    @property
    def share(self) -> float:
        return self.cached_tokens / self.same_tokens


def common(one: list[int], other: list[int]) -> int:
    """Return how many tokens two lists begin with alike."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low


class Agent:
    """Asks turn after turn."""

    def __init__(
        self,
        client: httpx2.Client,
        reuse: Reuse,
        system: str,
        tools: list[dict[str, Any]],
        seed: int,
    ) -> None:
        self._client = client
        self._reuse = reuse
        self._tools = tools
        self._rng = random.Random(seed)
        self._system = system
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": system}]

    def turn(self, number: int) -> None:
        """Ask, take the answer, and sometimes go on with a tool's result."""
        # As agents' programs have it: another text in each request.
        self.messages[0]["content"] = (
            f"x-anthropic-billing-header: cch={self._rng.random()};\n"
            f"Today is 2026-11-27, {number // 60:02}:{number % 60:02}:07. {self._system}\n"
            f"<total_tokens>{90_000 - 700 * number} left</total_tokens>"
        )
        say = text(self._rng, 30)
        self.messages.append({"role": "user", "content": f"Turn {number}: {say}"})
        for step in range(1 + number % 2):
            if step:
                self._use_tool(number)
            before = list(self._reuse.seen)
            body = {
                "model": "agent",
                "messages": self.messages,
                # Some clients list their tools in another order now and then.
                "tools": self._tools[::-1] if number % 8 == 5 else self._tools,
                "max_tokens": 24,
                "temperature": 0,
                # Its answer comes back with the next turn, and is then the same tokens.
                "allowed_token_ids": LETTERS,
                "return_token_ids": True,
            }
            response = self._client.post("/chat/completions", json=body)
            made = response.json()
            assert response.status_code == 200, made
            answer = made["choices"][0]["message"]["content"]
            assert len(answer) == 24, made
            self._reuse.count(before, made)
            self.messages.append(
                {"role": "assistant", "content": answer, "reasoning_content": text(self._rng, 20)}
            )

    def _use_tool(self, number: int) -> None:
        arguments = json.dumps({"path": text(self._rng, 2)})
        function = {"name": f"tool_{number % len(self._tools)}", "arguments": arguments}
        call = {"id": f"call_{number}", "type": "function", "function": function}
        self.messages[-1] = {**self.messages[-1], "tool_calls": [call]}
        result = text(self._rng, 60)
        self.messages.append(
            {"role": "tool", "tool_call_id": call["id"], "content": f"Result: {result}"}
        )


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("qwen3_5", 4, 6)),
        *(
            pytest.param((kind, 40, 12), marks=[pytest.mark.soak, pytest.mark.timeout(900)])
            for kind in ("llama", "gemma3", "qwen3_5")
        ),
    ],
    ids=lambda param: f"{param[0]}-{param[1]}",
)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Rig, int, int]]:
    """A model, and the number of turns and of tools. Caches that can be cut anywhere, those with
    sliding windows and those of recurrent layers are kept in different ways."""
    kind, turns, tools = request.param
    folder = make_tiny_model(tmp_path_factory.mktemp("agent") / "tiny", kind, 32_768)
    make_tokenizer(TEMPLATE).save_pretrained(folder)
    config = {
        "models": [{"id": "agent", "source": str(folder), "concurrency": 4}],
        "server": {"stable_prompts": list(StablePrompts)},
        "timing": PATIENT | {"beat_timeout_s": 20.0},
    }
    with rig(config) as lmx:
        lmx.wait_state("agent", "ready", deadline_s=300)
        yield lmx, turns, tools


def test_what_was_computed_once_is_not_computed_again(served: tuple[Rig, int, int]) -> None:
    lmx, turns, count = served
    rng = random.Random(1)
    tools = [tool(rng, number) for number in range(count)]
    system, sub_system = text(rng, 25 * count), text(rng, 12 * count)
    reuse = Reuse()
    with httpx2.Client(base_url=lmx.url, timeout=300) as client:
        main = Agent(client, reuse, system, tools, seed=2)
        for number in range(turns):
            main.turn(number)
            if number % 10 == SUB_AGENTS_AT:
                with ThreadPoolExecutor(3) as pool:
                    subs = [
                        Agent(client, reuse, sub_system, tools[: count // 2], seed=number + one)
                        for one in range(3)
                    ]
                    for step in range(SUB_TURNS):
                        for done in [pool.submit(sub.turn, step) for sub in subs]:
                            done.result(timeout=300)
    print(
        f"\n{len(reuse.seen)} requests, {reuse.prompt_tokens} prompt tokens, {reuse.same_tokens} "
        f"the same as before, {reuse.cached_tokens} of them cached: {reuse.share:.3f}"
    )
    assert reuse.same_tokens > 0.6 * reuse.prompt_tokens
    assert reuse.share >= REUSED

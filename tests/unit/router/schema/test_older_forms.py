"""Forms of messages and tools that today's API does not have: taken as their senders mean them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmx.protocol.messages.data import Generate
from lmx.protocol.states import ToolChoice
from lmx.router.schema.requests.chat import parse_chat
from lmx.router.schema.requests.conversation.older_forms import modernized

USER = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def generate(**body: Any) -> Generate:
    return parse_chat({"messages": [USER], **body})[1]


def test_tools_and_their_choice_in_the_flat_form() -> None:
    flat = {"type": "function", "name": "f", "description": "d", "parameters": SCHEMA}
    use = generate(tools=[flat], tool_choice={"type": "function", "name": "f"}).tool_use
    assert use is not None and use.function == "f"
    assert use.tools[0]["function"] == {"name": "f", "description": "d", "parameters": SCHEMA}


def test_functions_are_tools_of_which_one_is_called() -> None:
    use = generate(functions=[{"name": "f", "parameters": SCHEMA}], function_call="auto").tool_use
    assert use is not None and (use.choice, use.parallel) == (ToolChoice.AUTO, False)
    assert use.tools[0]["function"]["parameters"] == SCHEMA
    named = generate(functions=[{"name": "f"}], function_call={"name": "f"}).tool_use
    assert named is not None and named.function == "f"
    beside = generate(
        functions=[{"name": "f"}], tools=[{"type": "function", "function": {"name": "g"}}]
    ).tool_use
    assert beside is not None and [tool["function"]["name"] for tool in beside.tools] == ["g"]


def test_an_old_call_and_its_result_are_a_pair() -> None:
    called = {
        "role": "assistant",
        "content": None,
        "function_call": {"name": "f", "arguments": "{}"},
    }
    result = {"role": "function", "name": "f", "content": "3"}
    messages = generate(messages=[USER, called, result, called, result]).messages
    assert messages is not None
    calls = [one["tool_calls"][0]["id"] for one in messages if "tool_calls" in one]
    results = [one["tool_call_id"] for one in messages if one["role"] == "tool"]
    assert calls == results and len(set(calls)) == 2


def test_arguments_as_an_object_and_content_that_is_nothing() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 2**64}}}
    messages = generate(
        messages=[
            {"role": "system", "content": None},
            {"role": "user", "content": []},
            {"role": "assistant", "content": [], "tool_calls": [call]},
        ]
    ).messages
    assert messages is not None
    assert [one["content"] for one in messages] == ["", "", ""]
    assert messages[2]["tool_calls"][0]["function"]["arguments"] == '{"a":18446744073709551616}'


@pytest.mark.parametrize(
    ("body", "effort", "enabled", "budget_tokens"),
    [
        ({"reasoning": {"effort": "low"}}, "low", None, None),
        ({"reasoning": {"effort": "none"}}, "none", False, None),
        ({"reasoning": {"enabled": True, "max_tokens": 5}}, None, True, 5),
        ({"think": False}, None, False, None),
        ({"think": "high", "reasoning_effort": "high"}, "high", None, None),
    ],
)
def test_synonyms_of_the_thinking(
    body: dict[str, Any], effort: str | None, enabled: bool | None, budget_tokens: int | None
) -> None:
    thinking = generate(**body).thinking
    assert (thinking.effort, thinking.enabled, thinking.budget_tokens) == (
        effort, enabled, budget_tokens,
    )  # fmt: skip


def test_numbers_and_texts_that_stand_for_nothing() -> None:
    asked = generate(max_tokens=-1, stop=["", "a", ""], repeat_penalty=1.5, store=True)
    assert (asked.max_tokens, asked.stop) == (None, ("a",))
    assert asked.sampling.repetition_penalty == 1.5
    assert generate(stop="").stop == ()
    assert len(generate(stop=[f"<{number}>" for number in range(64)]).stop) == 64


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["role", "content", "tools", "functions", "function_call", "tool_calls",
                 "function", "name", "arguments", "messages", "type"]
            ),
            inner | st.sampled_from(["user", "assistant", "function"]),
            max_size=4,
        )
    ),
    max_leaves=20,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(["messages", "tools", "functions", "function_call"]), JSON))
def test_whatever_comes_it_is_left_to_the_check(body: dict[str, Any]) -> None:
    before = repr(body)
    once = modernized(body)
    assert repr(body) == before, "the body itself is not changed"
    if not body.get("functions"):
        assert modernized(once) == once

"""What is left out of prompts so that the next request of a session finds them in the cache."""

import time
from typing import Any

import pytest

from lmx.protocol.messages.specs import RouterSpec, StablePrompts
from lmx.router.schema.requests.conversation.unstable import stable_messages, stable_tools
from tests.support.rigs.router_rig import MODEL, router_rig

HI = {"role": "user", "content": "hi at 10:00:01 <total_tokens>9 left</total_tokens>"}
BILLING = "x-anthropic-billing-header: cc_version=2.1; cch=00a1b;"
LEFT = "<total_tokens>90000 left</total_tokens>"
KEPT = (
    f"Be kind.\n{BILLING}",
    "<total_tokens>is a tag",
    "<system_warning>Be quick</system_warning>",
    "Open 10:00 to 18:30",
    "10:20:30:40:50:60, a1:20:30, v1.10:20:30",
)


def system(content: Any) -> dict[str, Any]:
    return {"role": "system", "content": content}


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


@pytest.mark.parametrize(
    ("given", "shown", "names"),
    [
        # Times of an hour and a minute are somebody's, and other numbers no times.
        *((kept, kept, []) for kept in KEPT),
        (f"{BILLING}\nBe kind.", "Be kind.", ["billing_header"]),
        (parts(BILLING, "Be kind."), parts("Be kind."), ["billing_header"]),
        (f"Be kind. {LEFT}", "Be kind. ", ["tokens_left"]),
        (f"{BILLING}\nA{LEFT}B", "AB", ["billing_header", "tokens_left"]),
        (
            "A\n<system_warning>Token usage: 35000/1000000; 965000 remaining</system_warning>",
            "A\n",
            ["tokens_left"],
        ),
        ("Now: 2026-11-27T11:49:08.123Z.", "Now: 2026-11-27.", ["times"]),
        ("Now: 2026-11-27 11:49:08+01:00", "Now: 2026-11-27", ["times"]),
        ("Fri Nov 27 11:49:08 UTC 2026", "Fri Nov 27 UTC 2026", ["times"]),
        ("It is 9:05:00 PM.", "It is.", ["times"]),
    ],
)
def test_what_the_system_says(given: Any, shown: Any, names: list[str]) -> None:
    found, named = stable_messages([system(given), HI], list(StablePrompts))
    assert list(found) == [system(shown), HI]
    assert named == [f"system.{name}" for name in names]
    assert stable_messages([system(given), HI], ()) == ([system(given), HI], [])


def test_what_is_empty_then_is_not_there() -> None:
    for given in (BILLING, parts(BILLING), LEFT):
        assert stable_messages([system(given), HI], list(StablePrompts))[0] == [HI]
    # A conversation keeps its only message, and one that was empty before stays.
    assert stable_messages([system(LEFT)], list(StablePrompts)) == ([system(LEFT)], [])
    assert stable_messages([system(""), HI], list(StablePrompts)) == ([system(""), HI], [])


def test_tools_have_the_order_of_their_names() -> None:
    first, second = ({"type": "function", "function": {"name": name}} for name in "ab")
    rules = (StablePrompts.TOOL_ORDER,)
    assert stable_tools((second, first), rules) == (first, second)
    assert stable_tools((first, second), rules) is None
    assert stable_tools((second, first), ()) is None


def test_the_work_for_a_text_grows_with_its_length() -> None:
    for text in (" " * 10**6, "1" * 10**6, "<total_tokens>" * 10**5, "1:11:11" * 10**5):
        began_s = time.process_time()
        stable_messages([system(text)], list(StablePrompts))
        assert time.process_time() - began_s < 10


async def test_every_api_names_what_it_leaves_out() -> None:
    said = f"{BILLING}\nBe kind.{LEFT}"
    names = "system.billing_header, system.tokens_left"
    conversation = {"model": MODEL, "messages": [system(said), HI]}
    turns = {"model": MODEL, "messages": [HI], "system": said, "max_tokens": 5}
    asked = {
        "/v1/chat/completions": conversation,
        "/v1/messages": turns,
        "/v1/responses": {"model": MODEL, "input": "hi", "instructions": said},
        "/api/chat": conversation | {"stream": False},
    }
    async with router_rig() as rig:
        for path, body in asked.items():
            async with rig.http.post(f"{rig.url}{path}", json=body) as response:
                assert response.status == 200, await response.text()
                assert response.headers["X-Lmx-Ignored"] == names, path
            sent = rig.worker.streams[-1].request.messages
            assert sent is not None and sent[0] == system("Be kind."), path
    assert RouterSpec.__dataclass_fields__["stable_prompts"].default
    async with router_rig(stable_prompts=()) as rig:
        for path, body in asked.items():
            async with rig.http.post(f"{rig.url}{path}", json=body) as response:
                assert "X-Lmx-Ignored" not in response.headers
            sent = rig.worker.streams[-1].request.messages
            assert sent is not None and sent[0] == system(said), path

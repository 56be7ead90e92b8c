"""Vercel's AI SDK with three of its providers, two of them made as docs/clients.md says."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.programs.conftest import node_programs
from tests.support.clients.client_packages import node
from tests.support.programs.agent_plan import call, plan, say
from tests.support.programs.workplace import Workplace
from tests.support.references.document_blocks import block
from tests.support.rigs.rig import wait_until

pytestmark = pytest.mark.clients

PLANS = {
    "loop": plan(
        call("write", path="hello.txt", text="hello\n"),
        say("All is done.", think="It is written."),
    ),
    "form": {
        # It asks models that it does not know for a call of a tool of its own.
        "anthropic": plan(call("json", city="Oslo")),
        "other": plan(say('{"city": "Oslo"}')),
    },
    "picture": plan(say("I see {pictures}.")),
    "slow": plan(say("word " * 5000, pace_s=0.05)),
}


def test_each_provider(place: Workplace, picture: Path) -> None:
    folder = node_programs("ai_sdk")
    (place.folder / "node_modules").symlink_to(folder / "node_modules")
    program = place.folder / "program.mjs"
    made = block("Vercel's AI SDK", "js").replace("http://127.0.0.1:8000", place.root)
    program.write_text(f"{made}\n{(folder / 'cases.mjs').read_text()}")
    before = place.left
    command = [str(node()), str(program), f"{place.root}/v1", json.dumps(PLANS)]
    found: dict[str, dict[str, Any]] = json.loads(place.run(command))
    assert list(found) == ["lmx", "openai", "anthropic"]
    for name, one in found.items():
        kinds = set(one.pop("kinds"))
        assert kinds >= {"tool-call", "tool-result", "text-delta", "finish"}, name
        assert "error" not in kinds, name
        status, message = one.pop("failed")
        assert status == 404 and "'nobody' does not exist" in message, name
        # Without a summary that is requested, OpenAI's provider shows no reasoning.
        assert one.pop("thought") == (None if name == "openai" else "It is written."), name
        assert one == {
            "whole": "All is done.", "steps": 2, "written": "hello\n", "streamed": "All is done.",
            "form": {"city": "Oslo"}, "seen": "I see 48x32.", "ended": "abort",
        }, name  # fmt: skip
    wait_until(lambda: place.left == before + 3, "lmx notes that all three have left")

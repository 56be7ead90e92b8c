"""opencode, set up as docs/clients.md says, with each of the three providers that it names."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.programs.conftest import node_programs
from tests.support.programs.agent_plan import call, plan, say
from tests.support.programs.workplace import Workplace
from tests.support.references.document_blocks import block

pytestmark = pytest.mark.clients

PROVIDERS = ("@ai-sdk/openai-compatible", "@ai-sdk/openai", "@ai-sdk/anthropic")


@pytest.fixture
def opencode() -> list[str]:
    """Return its command line."""
    program = node_programs("opencode") / "node_modules" / ".bin" / "opencode"
    return [str(program), "run", "--format", "json"]


def configure(place: Workplace, provider: str = PROVIDERS[0]) -> None:
    config = json.loads(block("opencode", "json").replace("http://127.0.0.1:8000", place.root))
    config["provider"]["lmx"]["npm"] = provider
    # Its prompt alone is as long as the context of the document, in tokens of a byte each.
    config["provider"]["lmx"]["models"]["auto"]["limit"]["context"] = 200_000
    config |= {"autoupdate": False, "share": "disabled", "permission": {"*": "allow"}}
    (place.folder / "opencode.json").write_text(json.dumps(config))


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_loop_with_tools_and_a_picture(
    place: Workplace, opencode: list[str], picture: Path, provider: str
) -> None:
    configure(place, provider)
    file = place.folder / "hello.txt"
    asked = plan(
        call("write", filePath=str(file), content="hello\n"),
        call("bash", command="cat hello.txt", description="Shows it"),
        say("I see {pictures}.", think="It is written."),
    )
    output = place.run([*opencode, asked, "-f", str(picture)])
    lines: list[dict[str, Any]] = [json.loads(line) for line in output.splitlines()]
    assert file.read_text() == "hello\n"
    states = [line["part"]["state"] for line in lines if line["type"] == "tool_use"]
    assert [state["status"] for state in states] == ["completed"] * 2
    assert states[1]["output"] == "hello\n"
    assert [line["part"]["text"] for line in lines if line["type"] == "text"] == ["I see 48x32."]


def test_an_interrupt_ends_the_answer(place: Workplace, opencode: list[str]) -> None:
    configure(place)
    place.interrupt([*opencode, plan(say("word " * 5000, pace_s=0.05))], "agent")

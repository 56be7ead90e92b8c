"""Claude Code, set up as docs/clients.md says."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.programs.conftest import node_programs
from tests.support.programs.agent_plan import call, plan, say
from tests.support.programs.workplace import Workplace
from tests.support.references.document_blocks import block

pytestmark = pytest.mark.clients

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.fixture
def claude(place: Workplace) -> Callable[..., list[str]]:
    """Return the command line for a model and what is asked of it."""
    program = node_programs("claude_code") / "node_modules" / ".bin" / "claude"
    settings = block("Claude Code", "sh").replace("http://127.0.0.1:8000", place.root)

    def command(model: str, *arguments: str) -> list[str]:
        set_up, last = settings.replace("=auto", f"={model}").rstrip().rsplit("\n", 1)
        assert last == "claude"
        shell = f'{set_up}\nexec "$@"'
        options = ["-p", "--dangerously-skip-permissions"]
        return ["sh", "-c", shell, "sh", str(program), *options, *arguments]

    return command


@pytest.mark.parametrize("model", ["auto", "strict"])
def test_a_loop_with_tools_and_a_picture(
    place: Workplace, claude: Callable[..., list[str]], picture: Path, model: str
) -> None:
    """It asks for the effort "high" with each request, and puts a system message behind the user's:
    the template of ``strict`` refuses both."""
    file = place.folder / "hello.txt"
    asked = plan(
        call("Write", file_path=str(file), content="hello\n"),
        call("Bash", command="cat hello.txt"),
        call("Read", file_path=str(picture)),
        say("I see {pictures}.", think="It is written."),
    )
    stream = ["--output-format", "stream-json", "--verbose", "--include-partial-messages"]
    lines: list[dict[str, Any]] = [
        json.loads(line) for line in place.run(claude(model, *stream, asked)).splitlines()
    ]
    assert file.read_text() == "hello\n"
    (result,) = [line for line in lines if line["type"] == "result"]
    assert (result["is_error"], result["result"], result["num_turns"]) == (
        False, "I see 48x32.", 4,
    )  # fmt: skip
    deltas = [
        line["event"]["delta"] for line in lines
        if line["type"] == "stream_event" and line["event"]["type"] == "content_block_delta"
    ]  # fmt: skip
    kinds = {delta["type"] for delta in deltas}
    assert kinds >= {"thinking_delta", "text_delta", "input_json_delta"}
    said = "".join(delta["text"] for delta in deltas if delta["type"] == "text_delta")
    assert said.endswith("I see 48x32.")


def test_an_answer_in_a_form(place: Workplace, claude: Callable[..., list[str]]) -> None:
    asked = plan(call("StructuredOutput", city="Oslo"), say("Done."))
    form = ["--output-format", "json", "--json-schema", json.dumps(SCHEMA)]
    found = json.loads(place.run(claude("auto", *form, asked)))
    assert found["structured_output"] == {"city": "Oslo"}


def test_a_conversation_that_grows_too_long_is_compacted(
    place: Workplace, claude: Callable[..., list[str]]
) -> None:
    """In time for the context that the model has: of 131,072 tokens of one byte each."""
    prints = [f"head -c 20000 /dev/zero | tr '\\0' {letter}" for letter in "abcdef"]
    asked = plan(*(call("Bash", command=command) for command in prints), say("All is done."))
    stream = ["--output-format", "stream-json", "--verbose"]
    output = place.run(claude("agent", *stream, asked))
    lines = [json.loads(line) for line in output.splitlines()]
    assert "compact_boundary" in [line.get("subtype") for line in lines]
    assert (lines[-1]["type"], lines[-1]["is_error"]) == ("result", False)


def test_an_interrupt_ends_the_answer(place: Workplace, claude: Callable[..., list[str]]) -> None:
    place.interrupt(claude("agent", plan(say("word " * 5000, pace_s=0.05))), "agent")

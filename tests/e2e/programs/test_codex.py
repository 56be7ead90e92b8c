"""Codex, set up as docs/clients.md says."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.programs.conftest import node_programs
from tests.support.programs.agent_plan import call, plan, say
from tests.support.programs.workplace import Workplace
from tests.support.references.document_blocks import block

pytestmark = pytest.mark.clients

PATCH = "*** Begin Patch\n*** Add File: hello.txt\n+hello\n*** End Patch\n"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.fixture
def codex(place: Workplace) -> list[str]:
    """Return its command line, with its configuration in place."""
    configure(place, block("Codex", "toml"))
    program = node_programs("codex") / "node_modules" / ".bin" / "codex"
    alone = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    return [str(program), "exec", "--json", *alone]


def configure(place: Workplace, text: str) -> None:
    folder = place.home / ".codex"
    folder.mkdir(exist_ok=True)
    quiet = "\n[analytics]\nenabled = false\n"
    text = text.replace("http://127.0.0.1:8000", place.root) + quiet
    tomllib.loads(text)
    (folder / "config.toml").write_text(text)


def items_of(output: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in output.splitlines()]
    return [line["item"] for line in lines if line["type"] == "item.completed"]


@pytest.mark.parametrize("model", ["auto", "strict", "eager"])
def test_a_loop_with_a_patch_and_a_picture(
    place: Workplace, codex: list[str], picture: Path, model: str
) -> None:
    """A patch is offered for a model of lmx's catalogue alone: Codex says nothing of metadata that
    it did not find."""
    asked = plan(
        call("apply_patch", input=PATCH),
        call("exec_command", cmd="cat hello.txt"),
        say("I see {pictures}.", think="It is written."),
    )
    effort = ["-c", "model_reasoning_effort=high"]
    options = ["-m", model, *effort, "-i", str(picture), "--", asked]
    items = items_of(place.run([*codex, *options]))
    assert [item["type"] for item in items] == [
        "file_change", "command_execution", "reasoning", "agent_message",
    ]  # fmt: skip
    assert (place.folder / "hello.txt").read_text() == items[1]["aggregated_output"] == "hello\n"
    assert (items[2]["text"], items[3]["text"]) == ("It is written.", "I see 48x32.")


def test_a_catalogue_from_a_file(place: Workplace, codex: list[str], tmp_path: Path) -> None:
    file = tmp_path / "lmx-models.json"
    file.write_bytes(place.get("/v1/models"))
    with_key = block("Codex", "toml").partition("[model_providers.lmx.auth]")[0]
    named = block("Codex", "toml", 1).replace("/home/me/.codex/lmx-models.json", str(file))
    configure(place, f'{named}\n{with_key}env_key = "LMX_API_KEY"\n')
    items = items_of(place.run([*codex, plan(call("apply_patch", input=PATCH), say("Done."))]))
    assert [item["type"] for item in items] == ["file_change", "agent_message"]


def test_an_answer_in_a_form(place: Workplace, codex: list[str], tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps(SCHEMA))
    asked = plan(say('{"city": "Oslo"}'))
    items = items_of(place.run([*codex, "--output-schema", str(schema), asked]))
    assert json.loads(items[-1]["text"]) == {"city": "Oslo"}


def test_an_interrupt_ends_the_answer(place: Workplace, codex: list[str]) -> None:
    place.interrupt([*codex, plan(say("word " * 5000, pace_s=0.05))], "agent")


def test_lmx_compacts_for_a_provider_that_is_named_openai(
    place: Workplace, codex: list[str]
) -> None:
    """The first turn fills the context, so that the second one begins with a compaction."""
    named = block("Codex", "toml").replace('name = "lmx"', 'name = "OpenAI"')
    configure(place, "model_auto_compact_token_limit = 1000\n" + named)
    place.run([*codex, plan(say("It is in a.py."))])
    items = items_of(place.run([*codex, "resume", "--last", plan(say("Done."))]))
    assert (items[-1]["type"], items[-1]["text"]) == ("agent_message", "Done.")
    found = []
    for job in json.loads(place.get("/v1/jobs"))["data"]:
        result = json.loads(place.get(f"/v1/jobs/{job['id']}"))["result"]
        found.append([item["type"] for item in result["output"]])
    # The newest first.
    assert found[:3] == [["message"], ["compaction"], ["message"]]

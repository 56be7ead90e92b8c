"""LiteLLM, with the models of the proxy's configuration in docs/clients.md: OpenAI's routes, and
Ollama's, for which it names no type of its bodies."""

import json
import sys
from pathlib import Path

import pytest
import yaml

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
    "short": plan(say("All is well.")),
    "form": plan(say('{"city": "Oslo"}')),
    "picture": plan(say("I see {pictures}.")),
    "slow": plan(say("word " * 5000, pace_s=0.05)),
}


def test_each_route(place: Workplace, pinned_python: Path, picture: Path) -> None:
    text = block("LiteLLM", "yaml").replace("http://127.0.0.1:8000", place.root)
    models = yaml.safe_load(text)["model_list"]
    program = Path(__file__).parent / "pinned" / "litellm_cases.py"
    before = place.left
    output = place.run(
        [sys.executable, str(program), json.dumps(models), json.dumps(PLANS)],
        PYTHONPATH=str(pinned_python),
    )
    assert (place.folder / "hello.txt").read_text() == "hello\n"
    found = json.loads(output.strip().splitlines()[-1])
    assert list(found) == ["local", "local-ollama"]
    for name, one in found.items():
        assert one == {
            "loop": [["write"], "All is done.", "It is written."], "streamed": "All is well.",
            "waited": "All is well.", "form": {"city": "Oslo"}, "seen": "I see 48x32.",
            "cut": "cut",
        }, name  # fmt: skip
    wait_until(lambda: place.left == before + 2, "lmx notes that both have left")

"""Simon Willison's llm, set up as docs/clients.md says, and its plugin for Ollama."""

import sys
from pathlib import Path

import pytest

from tests.support.programs.agent_plan import call, plan, say
from tests.support.programs.workplace import Workplace
from tests.support.references.document_blocks import block

pytestmark = pytest.mark.clients

TOOLS = """
def write(path: str, text: str) -> str:
    open(path, "w").write(text)
    return "written"
"""
LOOP = plan(
    call("write", path="hello.txt", text="hello\n"),
    say("All is done.", think="It is written."),
)


class Llm:
    """Its command line."""

    def __init__(self, place: Workplace, packages: Path) -> None:
        self._place = place
        self._packages = packages
        self._folder = place.home / "llm"
        self._folder.mkdir()
        made = block("llm", "yaml").replace("http://127.0.0.1:8000", place.root)
        (self._folder / "extra-openai-models.yaml").write_text(made)
        self.run("keys", "set", "lmx", "--value", place.key)

    def run(self, *arguments: str) -> str:
        return self._place.run(
            self.command(*arguments),
            PYTHONPATH=str(self._packages),
            LLM_USER_PATH=str(self._folder),
            OLLAMA_HOST=self._place.root,
            OLLAMA_API_KEY=self._place.key,
        )

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "llm", *arguments]


@pytest.fixture
def llm(place: Workplace, pinned_python: Path) -> Llm:
    return Llm(place, pinned_python)


def test_what_it_asks_of_the_openai_side(place: Workplace, llm: Llm, picture: Path) -> None:
    form = ["--schema", "city str"]
    assert llm.run("-m", "lmx", *form, plan(say('{"city": "Oslo"}'))).strip() == '{"city": "Oslo"}'
    seen = llm.run("-m", "lmx", "-a", str(picture), plan(say("I see {pictures}.")))
    assert seen.strip() == "I see 48x32."
    whole = llm.run("-m", "lmx", "--no-stream", plan(say("First."), say("Second.")))
    assert whole.strip() == "First."
    assert llm.run("-c", "And now?").strip() == "Second."
    output = llm.run("-m", "lmx", "--functions", TOOLS, LOOP)
    assert output.strip().endswith("All is done.")
    assert (place.folder / "hello.txt").read_text() == "hello\n"


def test_what_it_asks_of_the_ollama_side(place: Workplace, llm: Llm) -> None:
    assert "agent:latest" in llm.run("ollama", "models")
    output = llm.run("-m", "ollama/agent", "--functions", TOOLS, LOOP)
    assert output.strip().endswith("All is done.")
    assert (place.folder / "hello.txt").read_text() == "hello\n"


def test_an_interrupt_ends_the_answer(place: Workplace, llm: Llm, pinned_python: Path) -> None:
    place.interrupt(
        llm.command("-m", "lmx", plan(say("word " * 5000, pace_s=0.05))), "agent",
        PYTHONPATH=str(pinned_python), LLM_USER_PATH=str(place.home / "llm"),
    )  # fmt: skip

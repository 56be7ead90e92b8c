"""The documents' links lead somewhere, and the files that they name are there."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmx.protocol.errors import ErrorCode
from tests.support.references.document_blocks import DOCUMENTS, block

ROOT = Path(__file__).parents[2]
ROOMS = ("protocol", "router", "worker", "supervisor")


def _prose(document: Path) -> str:
    return re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)


def _anchors(document: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", _prose(document), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _links(document: Path) -> Iterator[tuple[str, str]]:
    for target in re.findall(r"\]\(([^)\s]+)\)", _prose(document)):
        if "://" not in target and not target.startswith("mailto:"):
            path, _, anchor = target.partition("#")
            yield path, anchor


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(document: Path) -> None:
    for path, anchor in _links(document):
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), f"{path} is not there"
        if anchor and target.suffix == ".md":
            assert anchor in _anchors(target), f"{path}#{anchor}: no such heading"


@pytest.mark.parametrize(
    ("name", "language", "said"),
    [
        ("Claude Code", "sh", ("ANTHROPIC_BASE_URL=", "ANTHROPIC_AUTH_TOKEN=", "\nclaude\n")),
        ("Codex", "toml", ('wire_api = "responses"', "[model_providers.lmx.auth]")),
        ("opencode", "json", ("{env:LMX_API_KEY}", "baseURL")),
        ("Qwen Code", "sh", ("OPENAI_BASE_URL=", "OPENAI_API_KEY=", "OPENAI_MODEL=", "qwen ")),
        ("pi", "json", ("openai-completions", "baseUrl", "contextWindow")),
        ("Cline", "sh", ("cline auth -p openai-compatible", " -b http://")),
        ("aider", "sh", ("OPENAI_API_BASE=", "aider --model openai/auto")),
        ("Vercel's AI SDK", "js", ("createOpenAICompatible", "createAnthropic")),
        ("LiteLLM", "yaml", ("openai/auto", "ollama_chat/auto")),
        ("llm", "yaml", ("model_id: lmx", "api_key_name: lmx")),
        ("Open WebUI", "sh", ("OPENAI_API_BASE_URL=", "RAG_EMBEDDING_MODEL=", "AUDIO_STT_MODEL=")),
    ],
)
def test_how_each_program_is_set_up(name: str, language: str, said: tuple[str, ...]) -> None:
    """The names are the programs' own; `make clients` runs some of them."""
    text = block(name, language)
    assert [one for one in said if one not in text] == []
    # Ollama's clients and Anthropic's take the address without a path.
    paths = set(re.findall(r"http://(?:127\.0\.0\.1|HOST):8000([\w/]*)", text))
    assert paths <= {"", "/v1"}, paths


def test_the_versions_of_the_programs_that_were_tried() -> None:
    pinned = ROOT / "tests" / "e2e" / "programs" / "pinned"
    listed = (ROOT / "docs" / "clients.md").read_text().partition("## What was tried")[2]
    packages = [json.loads(file.read_text()) for file in pinned.glob("*/package.json")]
    versions = {name: one for each in packages for name, one in each["dependencies"].items()}
    for file, tried in (("python", ("llm", "litellm")), ("aider", ("aider-chat",))):
        lines = (pinned / f"{file}.txt").read_text().splitlines()
        versions |= dict(line.split("==") for line in lines if line.startswith(tried))
    missing = {name for name, version in versions.items() if version not in listed} - {"zod"}
    assert missing == set(), "docs/clients.md names other versions of these"


@pytest.mark.parametrize("document", ["docs/architecture.md", "worker/ENGINE.md"])
def test_a_map_names_files_that_are_there(document: str) -> None:
    """Every path in backticks, whole or below one of the rooms."""
    text = _prose(ROOT / document)
    missing = [
        name
        for name in re.findall(r"`([\w./{}-]*/[\w./{}-]*)`", text)
        if not name.startswith("/") and not _is_there(name)
    ]
    assert missing == []


def test_the_names_of_the_glossary_exist() -> None:
    text = (ROOT / "docs/glossary.md").read_text()
    for path, name in re.findall(r"\| `([\w/.]+)`(?: `(\w+)`)? \|$", text, re.MULTILINE):
        assert (ROOT / path).exists(), path
        assert not name or re.search(rf"^class {name}\b", (ROOT / path).read_text(), re.M), name


def test_the_tests_that_show_what_is_protected_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (ROOT / "SECURITY.md").read_text())
    assert named
    for path, test in named:
        assert (ROOT / path).is_file(), path
        assert not test or re.search(rf"def {test}\(", (ROOT / path).read_text()), (path, test)


def test_every_error_is_explained() -> None:
    """Each code stands in one row of the page of errors, and no row has a code that is none."""
    rows = re.findall(r"^\| (`.*?) \|", (ROOT / "docs/start/errors.md").read_text(), re.MULTILINE)
    explained = [code for row in rows for code in re.findall(r"`(\w+)`", row)]
    assert sorted(explained) == sorted(ErrorCode)


def _is_there(name: str) -> bool:
    places = [ROOT, *(ROOT / room for room in ROOMS)]
    return any((place / one).exists() for place in places for one in (name, f"{name}.py"))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_shell_would_expand_is_quoted(document: Path) -> None:
    """An address with a question mark is a pattern of file names for zsh, the shell of macOS."""
    for shell in re.findall(r"```(?:ba|z)?sh\n(.*?)```", document.read_text(), flags=re.DOTALL):
        bare = re.sub(r"'[^']*'|\"[^\"]*\"", "", shell)
        assert re.findall(r"https?://\S*[?&*]\S*", bare) == []

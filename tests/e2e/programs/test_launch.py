"""Programs that `lmx launch` starts: each writes a file by a tool call, or as aider does by an
edit in its answer, with nothing configured but what `lmx launch` gives it."""

import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.e2e.programs.conftest import PINNED, node_programs
from tests.support.clients.client_packages import node, python_packages
from tests.support.programs.agent_plan import call, plan, say
from tests.support.programs.workplace import Workplace

pytestmark = pytest.mark.clients

Launch = Callable[..., str]
"""Runs `lmx launch` with arguments; returns what is printed."""

_NODE_FOLDERS = {
    "claude": "claude_code", "codex": "codex", "opencode": "opencode", "qwen": "qwen_code",
}  # fmt: skip


@pytest.fixture
def launch(place: Workplace, tmp_path: Path) -> Launch:
    def run(name: str, *arguments: str, **variables: str) -> str:
        if name in _NODE_FOLDERS:
            folder = node_programs(_NODE_FOLDERS[name]) / "node_modules" / ".bin"
        else:
            folder = tmp_path / "bin"
            folder.mkdir(exist_ok=True)
            # Its packages are not for lmx, which starts it.
            packages = shlex.quote(str(python_packages(PINNED / f"{name}.txt")))
            file = folder / name
            start = f"exec {shlex.quote(sys.executable)} -m {name}"
            file.write_text(f'#!/bin/sh\nPYTHONPATH={packages} {start} "$@"\n')
            file.chmod(0o755)
        path = [str(folder), str(node().parent), os.environ["PATH"]]
        return place.run(
            [sys.executable, "-m", "lmx.supervisor", "launch", name, *arguments],
            LMX_HOME=str(place.lmx.home), PATH=os.pathsep.join(path), **variables,
        )  # fmt: skip

    return run


def _calls(folder: Path) -> Mapping[str, tuple[list[str], dict[str, object]]]:
    """The arguments with which each program does what it is asked and ends, and the call of its
    own tool that writes hello.txt."""
    file = str(folder / "hello.txt")
    patch = "*** Begin Patch\n*** Add File: hello.txt\n+hello\n*** End Patch\n"
    return {
        "claude": (
            ["-p", "--dangerously-skip-permissions"],
            call("Write", file_path=file, content="hello\n"),
        ),
        "codex": (
            ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"],
            call("apply_patch", input=patch),
        ),
        "opencode": (["run"], call("write", filePath=file, content="hello\n")),
        "qwen": (["--yolo", "-p"], call("write_file", file_path=file, content="hello\n")),
        "aider": (
            ["--yes-always", "--no-git", "--no-check-update", "--no-analytics", "--no-stream",
             "--no-show-release-notes", "--message"],
            say("hello.txt\n```\nhello\n```"),
        ),
    }  # fmt: skip


NOWHERE = "http://127.0.0.1:9"
ELSEWHERE = {
    "claude": {
        ".claude/settings.json": json.dumps(
            {"model": "opus", "env": {"ANTHROPIC_BASE_URL": NOWHERE, "ANTHROPIC_MODEL": "opus"}}
        ),
    },
    "codex": {
        ".codex/config.toml": '# mine\nmodel = "gpt-5"\nmodel_provider = "mine"\n'
        f'[model_providers.mine]\nname = "mine"\nbase_url = "{NOWHERE}/v1"\n'
        f'[model_providers.lmx]\nname = "old"\nbase_url = "{NOWHERE}/v1"\nenv_key = "X"\n'
        "[analytics]\nenabled = false\n",
    },
    "opencode": {
        ".config/opencode/opencode.json": json.dumps(
            {"model": "mine/large", "small_model": "mine/small", "provider": {
                "mine": {"npm": "@ai-sdk/openai-compatible", "options": {"baseURL": NOWHERE},
                         "models": {"large": {}, "small": {}}}}}
        ),
    },
    "qwen": {
        ".qwen/settings.json": json.dumps(
            {"security": {"auth": {"selectedType": "openai", "baseUrl": NOWHERE, "apiKey": "x"}},
             "model": {"name": "qwen3-coder-plus"}}
        ),
        ".qwen/.env": f"OPENAI_BASE_URL={NOWHERE}\nOPENAI_MODEL=other\nOPENAI_API_KEY=wrong\n",
    },
    "aider": {
        ".aider.conf.yml": f"model: gpt-4o\nweak-model: gpt-4o\nopenai-api-base: {NOWHERE}\n",
        ".env": f"OPENAI_API_BASE={NOWHERE}\nAIDER_MODEL=gpt-4o\n",
    },
}  # fmt: skip
"""What a home may say that leads each program to somebody else."""


@pytest.mark.parametrize("name", ELSEWHERE)
def test_it_writes_a_file_whatever_the_home_says(
    place: Workplace, launch: Launch, name: str
) -> None:
    for file, text in ELSEWHERE[name].items():
        path = place.home / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    arguments, step = _calls(place.folder)[name]
    output = launch(
        name, "--", *arguments, plan(step, say("All is done.")),
        OPENAI_BASE_URL=NOWHERE, OPENAI_API_BASE=NOWHERE, OPENAI_API_KEY="a-cloud-key",
        ANTHROPIC_API_KEY="a-cloud-key", ANTHROPIC_BASE_URL=NOWHERE,
    )  # fmt: skip
    assert (place.folder / "hello.txt").read_text() == "hello\n", output

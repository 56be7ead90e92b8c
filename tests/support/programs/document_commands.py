"""Runs what the documents tell people to type, against an lmx that serves the demo model."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.support.references.document_blocks import DOCUMENTS, Block, blocks, commands

README: Final = next(one for one in DOCUMENTS if one.name == "README.md")
MODEL: Final = "smollm2-135m-instruct"
_TIMEOUT_S: Final = 300

_INSTEAD: Final = {"MODEL": MODEL, "qwen3-8b": MODEL}
"""What a reader puts in: the demo model in place of one that would be fetched."""

NOT_RUN: Final = {
    "--image": "the demo model takes text alone",
    "bench": "takes minutes: tests/process/operators/test_command_line.py",
    "COMMAND": "stands for any",
    "demo": "is what serves here",
    "fit": "its second model is on the hub; one is tried as an operator's command",
    "init": "has a test of its own (tests/unit/supervisor/cli)",
    "key": "changes keys: tests/process/operators",
    "launch": "starts programs that others install: `make clients`",
    "pull": "asks the hub: tests/process/models/test_downloads.py",
    "pair": "waits for another machine: tests/process/operators has two",
    "restore": "needs an lmx that does not run: tests/process/operators",
    "batch": "its files are the reader's own: tests/process/requests has batches",
    "serve": "one serves already",
    "service": "changes the machine's services: tests/process/operators/test_service.py",
    "start": "one serves already",
    "stop": "ends it: this is done last",
}
"""Commands whose lines in the documents are not run here, and why. All others are."""

_REPOSITORY: Final = re.compile(r"[\w-]+/[\w.-]+")
"""It is on the hub, which is not asked here."""

_OPERATOR: Final = (
    "version", "help kill", "show MODEL", "status", "status --json", "ps", "top", "events -n 5",
    "logs -n 5", "logs MODEL -n 5", "list",
    "downloads", "estimate MODEL", "fit MODEL", "chat MODEL", "run MODEL Hello",
    "pin MODEL", "unpin MODEL",
    "unload MODEL", "load MODEL", "drain MODEL", "undrain MODEL", "drain MODEL",
    "reset MODEL", "restart MODEL", "kill MODEL",
    "load MODEL", "reload", "restart --router", "restart --supervisor", "config check",
    "config show", "completion bash", "completion fish", "--url URL --key KEY status", "-h",
    "service install --dry-run",
)  # fmt: skip
"""The commands of the README's table and of docs/operating.md, each with what it needs."""


def _documented() -> Iterator[list[str]]:
    """Yield the arguments of each `lmx` line of the documents' blocks once, and then stop."""
    seen = set[str]()
    for document in DOCUMENTS:
        if document.name == "CHANGELOG.md" or document.parent.name == "decisions":
            continue
        for block in blocks(document.read_text()):
            for words in commands(block.text) if block.language == "sh" else ():
                line = " ".join(words[1:])
                if words[0] == "lmx" and line not in seen:
                    seen.add(line)
                    yield words[1:]


def run_lmx_lines(program: Path, url: str, environment: Mapping[str, str], folder: Path) -> int:
    """Run them all, in the order of the documents, and then an operator's; return how many.

    Raises ``AssertionError`` with the output of the first that fails.
    """
    home = Path(environment["LMX_HOME"])
    key = (home / "admin.key").read_text().strip()
    lines = [words for words in _documented() if _is_run(words)]
    lines += [line.split() for line in _OPERATOR]
    for words in lines:
        known = {**_INSTEAD, "URL": url, "http://studio:8000": url, "KEY": key}
        _run([str(program), *(known.get(word, word) for word in words)], environment, folder)
    return len(lines)


def _is_run(words: list[str]) -> bool:
    # What stands behind the options of all commands (--url URL --key KEY) names the command.
    name = next(word for word in words if not word.startswith(("-", "http")))
    asks_the_hub = any(_REPOSITORY.fullmatch(word) for word in words)
    return not NOT_RUN.keys() & {name, *words[1:]} and not asks_the_hub


def run_readme(url: str, environment: Mapping[str, str], folder: Path) -> int:
    """Run the README's blocks of Python and those with curl, with this address in place of theirs;
    return how many. Python has the packages of the process that calls."""
    count = 0
    for block in blocks(README.read_text()):
        text = block.text.replace("http://127.0.0.1:8000", url)
        if block.language == "python":
            assert _run([sys.executable, "-c", text], environment, folder).strip(), _place(block)
            count += 1
        elif "curl " in text:
            # An answer with an error has the status of one.
            said = _run(["sh", "-c", text.replace("curl ", "curl -sSf ")], environment, folder)
            assert re.search(r'"(content|output)": ?', said), (_place(block), said)
            count += 1
    return count


def _place(block: Block) -> str:
    return f"README.md:{block.line}"


def _run(command: list[str], environment: Mapping[str, str], folder: Path) -> str:
    assert shutil.which(command[0]), command[0]
    done = subprocess.run(
        command, cwd=folder, env=dict(os.environ) | dict(environment), input="Hello\n", text=True,
        capture_output=True, timeout=_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (
        command,
        done.returncode,
        done.stdout[-2000:],
        done.stderr[-2000:],
    )
    return done.stdout

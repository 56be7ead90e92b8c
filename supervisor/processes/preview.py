"""What is known of a model before it is on this machine: how large it is on the hub, and from the
heads of its files how much memory it takes. The fetch program asks the hub."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.supervisor.config.secret_variables import without_own_keys
from lmx.supervisor.memory.inspection import Inspection, Question
from lmx.supervisor.processes.inspector import inspect_now
from lmx.supervisor.state.home import Home

_LOOK_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Look:
    """What the hub says of a repository or of one file of it; or a .gguf file here, of itself."""

    total_bytes: int
    missing_bytes: int
    """How much of it is not on this machine."""
    free_bytes: int
    """The room in ``folder``."""
    folder: str
    """Where it would be downloaded or converted to."""
    spare_bytes: int = 0
    """What must stay free there."""
    made_bytes: int = 0
    """How large the weights are that it is yet to be converted or quantized to."""
    made_folder: str | None = None
    """Where these go, if that is on another disk than ``folder``."""
    made_free_bytes: int = 0
    """The room there."""
    problem: str | None = None
    """Why the heads of its files don't say what it takes of the memory."""
    problem_code: str | None = None
    """Of what kind that is, as an error's code."""

    @property
    def lacking_bytes(self) -> dict[str, int]:
        """By their folders, how much more room those disks need that have too little."""
        if self.made_folder is None:
            rooms = [(self.folder, self.missing_bytes + self.made_bytes, self.free_bytes)]
        else:
            rooms = [
                (self.folder, self.missing_bytes, self.free_bytes),
                (self.made_folder, self.made_bytes, self.made_free_bytes),
            ]
        return {
            folder: need_bytes + self.spare_bytes - free_bytes
            for folder, need_bytes, free_bytes in rooms
            if need_bytes and need_bytes + self.spare_bytes > free_bytes
        }


@dataclass(frozen=True, slots=True)
class Preview:
    """A model that is not on this machine, or not in the form in which it is loaded."""

    look: Look
    found: Inspection
    """What its files say. Its folder has no weights, and is gone with the preview."""


@dataclass(frozen=True, slots=True)
class Match:
    """A repository that was found on the hub."""

    repo_id: str
    downloads: int
    """In the last month."""
    size_bytes: int | None
    """The weights. None: the hub does not say it."""
    gated: bool


def look_now(home: Home, source: str, options: Sequence[str]) -> Look:
    """Ask the hub how large a repository is; ``options`` are further arguments of the fetch
    program. This blocks, not longer than a minute. Raises :class:`OperationError`."""
    return Look(**_ask(home, source, ("--look", *options))["look"])


def search_now(home: Home, words: str, most: int) -> list[Match]:
    """Find models on the hub by words of their names, the most downloaded first. This blocks, not
    longer than a minute. Raises :class:`OperationError`."""
    found = _ask(home, words, ("--search", str(most)))["found"]
    return [Match(**each) for each in found]


@contextmanager
def previewed(home: Home, question: Question, filename: str | None = None) -> Iterator[Preview]:
    """Look at a model that was not fetched or converted: a repository, the one file of it, or a
    .gguf file on this machine. This blocks for a minute or two at most. Raises
    :class:`OperationError`."""
    with tempfile.TemporaryDirectory(prefix="lmx-heads-") as folder:
        options = ("--heads", folder, *(("--filename", filename) if filename else ()))
        look = look_now(home, question.source, options)
        found = Inspection(question, problem=look.problem)
        if look.problem is None:
            path = str(Path(folder) / "model")
            (found,) = inspect_now(home, [replace(question, path=path)])
            if found.problem is not None:
                found = replace(found, problem=found.problem.replace(path, question.source))
        yield Preview(look, found)


def preview_now(home: Home, question: Question) -> tuple[int, Inspection]:
    """Return how much of a model is not on this machine, and what the heads of its files say.
    Blocks and raises as :func:`previewed` does."""
    with previewed(home, question) as preview:
        return preview.look.missing_bytes, preview.found


def _ask(home: Home, source: str, options: Sequence[str]) -> dict[str, Any]:
    try:
        done = subprocess.run(
            [
                sys.executable, "-P", "-m", "lmx.supervisor.fetch.main", "--source", source,
                "--models-dir", str(home.models), *options,
            ],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=_LOOK_S, check=False,
            env=without_own_keys(os.environ),
        )  # fmt: skip
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired as error:
        raise OperationError(
            ErrorCode.DOWNLOAD_FAILED,
            f"the hub did not answer about {source} within {_LOOK_S:g} s: try again later",
        ) from error
    except (ValueError, LookupError) as error:
        raise OperationError(
            ErrorCode.DOWNLOAD_FAILED, f"nothing was found out about {source}: {error}"
        ) from error
    if "error" in answer:
        raise OperationError(
            ErrorCode(answer["error"]["code"]),
            answer["error"]["message"],
            retry_after_s=answer["error"].get("retry_after_s"),
        )
    return answer

"""How the tests run; and models that several of them need, made once for each machine and kept
outside the checkout."""

import contextlib
import gc
import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from structlog.testing import capture_logs

from lmx.worker.mlx.device.before_mlx import prefer_openblas
from tests.support.models.minilm import obtain_minilm
from tests.support.rigs.budgets import WHOLE, examples
from tests.support.rigs.device import choose_device, may_differ
from tests.support.rigs.file_queue import (
    EVERYTHING,
    FileQueue,
    folders_of,
    imported_first,
    place_of,
    within,
)

ROOT = Path(__file__).resolve().parent.parent
DEMO_MODEL = ROOT / "supervisor" / "cli" / "serving" / "demo.py"
# Chosen here, so that the same folder is made whatever memory the machine has.
AMPLE_MEMORY_BYTES = 64 << 30
SCARCE_MEMORY_BYTES = 1 << 30

# The collector would walk again and again through what the tests' modules have, which stays until
# the end: a million objects, and the engine collects after each load.
gc.disable()

# structlog would have rich draw each traceback of a test's process: half of the time of some files.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)

_LOGGING = structlog.get_config()


@pytest.fixture(autouse=True)
def logging_as_before() -> None:
    """A command that an earlier test has called in this process has it log to stderr."""
    structlog.configure(**_LOGGING)


# Before a test imports mlx, as in a worker.
with capture_logs():
    prefer_openblas()

choose_device()

# How long an example takes says how busy the machine is, and nothing about lmx. `make test` tries
# the same examples each time: a rare one that finds an old fault is for `make fuzz`, and not for
# whoever changes something else.
settings.register_profile(
    "lmx",
    deadline=None,
    max_examples=examples(100),
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=not WHOLE,
)
settings.load_profile("lmx")
if not WHOLE:
    # Hypothesis also draws constants of those of our modules that are imported by then: the
    # examples would depend on which tests a process has run before.
    assert hasattr(providers, "_get_local_constants")
    vars(providers)["_get_local_constants"] = lambda: providers._local_constants


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Have a process of pytest-xdist collect only some folders, where all tests are run and
    :class:`FileQueue` hands them out."""
    given, config = node.workerinput, node.config
    queued = config.getoption("dist") == "loadfile"
    divided = queued and config.args == config.getini("testpaths")
    processes = given["workercount"]
    given["folders"] = [
        folders_of(each, processes) if divided else EVERYTHING for each in range(processes)
    ]


def folders_here(config: pytest.Config) -> tuple[str, ...]:
    """Return the folders whose tests this process collects."""
    given = getattr(config, "workerinput", None)
    if given is None:
        return EVERYTHING
    place, folders = place_of(given["workerid"]), given["folders"]
    return tuple(folders[place]) if place < len(folders) else EVERYTHING


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave what other processes collect to them."""
    if not collection_path.is_relative_to(ROOT):
        return None
    path = collection_path.relative_to(ROOT).as_posix()
    return None if within(path, folders_here(config)) else True


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Have each process of pytest-xdist import another part of the tests first. In a fresh checkout
    pytest compiles each file of tests when it is first imported, which takes longer than all else
    until the first test: so each file is compiled once, and not by all processes at a time."""
    given = getattr(session.config, "workerinput", None)
    if given is None:
        return
    asked = [
        session.config.invocation_params.dir / arg.partition("::")[0] for arg in session.config.args
    ]
    files = sorted(
        path.relative_to(ROOT).as_posix() for each in asked for path in each.rglob("test_*.py")
    )
    for file in imported_first(files, place_of(given["workerid"]), given["folders"]):
        # What can't be imported is reported when it is collected.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(file.removesuffix(".py").replace("/", "."))


MARKS = {"engine": ("engine",), "process": ("process",), "e2e": ("e2e", "process")}
"""What a folder's tests are marked with."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by their folder, before they are chosen by their marks. Let tests that compare
    tokens find others where a GPU computes, and fail by nothing else."""
    for item in items:
        folder = next((one for one in MARKS if item.path.is_relative_to(ROOT / "tests" / one)), "")
        for mark in MARKS.get(folder, ()):
            item.add_marker(mark)
        # The first test of a server also fetches, converts and loads its models.
        if folder == "e2e" and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(900))
        if may_differ(item.path):
            item.add_marker(
                pytest.mark.xfail(
                    raises=AssertionError, strict=False, reason="it compares tokens of a GPU"
                )
            )


def pytest_collection_finish() -> None:
    """Leave what has been imported and collected alone from here on."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FileQueue | None:
    """Hand out the tests of ``--dist loadfile`` in the order of :mod:`file_queue`."""
    return FileQueue(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct as the GGUF file that `make run` serves."""
    done = subprocess.run(
        [sys.executable, str(DEMO_MODEL)], stdout=subprocess.PIPE, text=True, check=True
    )
    return Path(done.stdout.strip())


def converted(gguf: Path, memory_bytes: int) -> Path:
    """Return the folder that the product's own import makes of a GGUF file."""
    # Half of the tests need none of the converter's libraries.
    from lmx.supervisor.fetch.gguf import fetch_gguf

    cache = Path(os.environ.get("LMX_CACHE_DIR") or gguf.parent.parent)
    return fetch_gguf(
        gguf,
        cache / "test-models",
        platform="linux",
        memory_bytes=memory_bytes,
        report=lambda _phase, _fraction, _detail: None,
    )


@pytest.fixture(scope="session")
def smollm2_dir(smollm2_gguf: Path) -> Path:
    """The same model as a float32 folder."""
    return converted(smollm2_gguf, AMPLE_MEMORY_BYTES)


@pytest.fixture(scope="session")
def smollm2_int4_dir(smollm2_gguf: Path) -> Path:
    """The same model with 4-bit weights: slower on a CPU, a third of the memory."""
    return converted(smollm2_gguf, SCARCE_MEMORY_BYTES)


@pytest.fixture(scope="session")
def shapes_dir(smollm2_dir: Path) -> Path:
    """The same model with eyes for shapes and their colours."""
    # Half of the tests need no MLX.
    from tests.support.models.shapes_model import assemble_shapes_model

    return assemble_shapes_model(smollm2_dir, smollm2_dir.parent / "shapes-float32-1")


@pytest.fixture(scope="session")
def minilm_dir() -> Path:
    """all-MiniLM-L6-v2, an embedding model, as a folder."""
    return obtain_minilm()

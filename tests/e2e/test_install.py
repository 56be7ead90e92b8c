"""lmx on a bare checkout by `make run`, and from its wheel in empty environments by pip, pipx and
uv, as a stranger installs it: each fetches the demo model, serves it and answers, and then every
command of the documents and every example of the README is run. Minutes, and up to a gigabyte each:
`make installs`.

What an installation took is printed: seconds, and megabytes on the disk.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.programs.document_commands import run_lmx_lines, run_readme

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = str(ROOT / "constraints.txt")
OVERRIDES = str(ROOT / "deploy" / "overrides.txt")
DEADLINE_S = 600


def run(*command: str | Path, **more: str) -> None:
    done = subprocess.run(
        command, env=os.environ | more, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    tree = folder / "tree"
    run("git", "-C", ROOT, "worktree", "prune")
    run("git", "clone", "--quiet", "--no-hardlinks", ROOT, tree)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, tree)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with `uv` and `pipx`."""
    folder = tmp_path_factory.mktemp("tools")
    run(sys.executable, "-m", "venv", folder)
    run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", "uv", "pipx")
    return folder / "bin"


Installed = tuple[Path, list[str | Path]]
"""The program, and what serves the demo model."""


def by_make(wheel: Path, tools: Path, folder: Path) -> Installed:
    run("git", "clone", "--quiet", "--no-hardlinks", ROOT, folder / "env")
    # Without uv, which a bare machine does not have: `make run` installs by venv and pip.
    return folder / "env/.venv/bin/lmx", ["make", "-C", folder / "env", "run", "PORT=0"]


def by_pip(wheel: Path, tools: Path, folder: Path) -> Installed:
    run(sys.executable, "-m", "venv", folder / "env")
    python = folder / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "-c", CONSTRAINTS, wheel)
    return served_by(folder / "env" / "bin" / "lmx")


def by_pipx(wheel: Path, tools: Path, folder: Path) -> Installed:
    places = {"PIPX_HOME": str(folder / "env"), "PIPX_BIN_DIR": str(folder / "bin")}
    run(tools / "pipx", "install", f"--pip-args=-c {CONSTRAINTS}", wheel, **places)
    return served_by(folder / "bin" / "lmx")


def by_uv(wheel: Path, tools: Path, folder: Path) -> Installed:
    places = {"UV_TOOL_DIR": str(folder / "env"), "UV_TOOL_BIN_DIR": str(folder / "bin")}
    lists = ["--constraints", CONSTRAINTS, "--overrides", OVERRIDES]
    own = ["--python", sys.executable]
    run(tools / "uv", "tool", "install", "--quiet", *own, *lists, wheel, **places)
    return served_by(folder / "bin" / "lmx")


def served_by(program: Path) -> Installed:
    return program, [program, "demo"]


@pytest.mark.parametrize("install", [by_make, by_pip, by_pipx, by_uv])
def test_what_the_documents_say_can_be_done(
    install: Callable[[Path, Path, Path], Installed], wheel: Path, tools: Path, tmp_path: Path
) -> None:
    began_s = time.monotonic()
    program, serve = install(wheel, tools, tmp_path)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("LMX_")},
        "HOME": str(tmp_path),
        "PATH": os.environ["PATH"],
        "LMX_HOME": str(tmp_path / "home"),
        "LMX_CACHE_DIR": str(tmp_path / "cache"),
        "LMX_SERVER_PORT": "0",
    }
    environment.pop("PYTHONPATH", None)
    if install is not by_make:
        # uv's and pipx's environments have no pip, with which the demo model is fetched.
        environment["PATH"] = f"{tools}{os.pathsep}{environment['PATH']}"
    output = tmp_path / "demo.out"
    with output.open("wb") as said:
        demo = subprocess.Popen(
            serve, cwd=tmp_path, env=environment, stdout=said, stderr=said,
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    try:
        body = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 5}
        url = address(demo, output)
        answer = asked(url, body)
        assert answer["choices"][0]["message"]["content"].strip()
        took_s = time.monotonic() - began_s
        files = [path for path in (tmp_path / "env").rglob("*") if not path.is_symlink()]
        size = sum(path.stat().st_size for path in files if path.is_file())
        print(f"\n{install.__name__}: answers after {took_s:.0f} s, {size / 1e6:.0f} MB")
        assert run_readme(url, environment, tmp_path) >= 3
        print(f"{run_lmx_lines(program, url, environment, tmp_path)} commands of the documents")
        run(program, "stop", **environment)
        assert demo.wait(180) == 0, output.read_text()
    finally:
        if demo.poll() is None:
            os.killpg(demo.pid, signal.SIGINT)
            demo.wait(180)


def address(demo: subprocess.Popen[bytes], output: Path) -> str:
    """The address that the program tells."""
    for _ in ticks():
        assert demo.poll() is None, output.read_text()
        if found := re.search(r"http://127\.0\.0\.1:[1-9]\d*", output.read_text()):
            return found[0]
    raise AssertionError(output.read_text())


def asked(url: str, body: object) -> dict[str, list[dict[str, dict[str, str]]]]:
    """The answer to a chat request; it waits for the model."""
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
        found: dict[str, list[dict[str, dict[str, str]]]] = json.load(response)
        return found


def ticks() -> Iterator[None]:
    end_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < end_s:
        yield
        time.sleep(0.2)

"""What an operator does at a terminal, against a real lmx: pins, drains, events, top, reload."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clients.terminal import reading
from tests.support.rigs.rig import Rig, rig, scripted, wait_until

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def shared() -> Iterator[Rig]:
    models = [scripted("alpha", aliases=["al"]), scripted("beta", preload=False)]
    with rig({"models": models}) as running:
        yield running


@pytest.fixture
def lmx(shared: Rig) -> Rig:
    """The one of all tests here, with its first model loaded."""
    shared.wait_state("alpha", "ready")
    return shared


def test_pin_drain_and_reset(lmx: Rig) -> None:
    assert lmx.cli("pin", "al").returncode == 0
    assert lmx.worker("alpha")["pinned"] is True
    assert "pinned" in lmx.cli("status").stdout
    assert lmx.cli("unpin", "alpha").returncode == 0
    assert lmx.worker("alpha")["pinned"] is False
    pid = lmx.worker("alpha")["pid"]
    drained = lmx.cli("drain", "alpha")
    assert drained.returncode == 0, drained.stderr
    assert f"drained alpha (pid {pid} is gone)" in drained.stdout
    assert lmx.worker("alpha")["state"] == "drained"
    assert lmx.cli("reset", "alpha").returncode == 0
    assert lmx.worker("alpha")["state"] == "cold"
    loaded = lmx.cli("load", "alpha")
    assert loaded.returncode == 0, loaded.stderr
    assert "ready  alpha" in loaded.stdout
    unknown = lmx.cli("logs", "nobody")
    assert (unknown.returncode, "known: alpha, beta" in unknown.stderr) == (1, True)


def test_events_continue_over_a_restart_of_the_supervisor(lmx: Rig) -> None:
    with reading(lmx, "events", "-f", "--json") as events:
        events.saw('"worker.ready"')
        restarted = lmx.cli("restart", "--supervisor")
        assert restarted.returncode == 0, restarted.stderr
        assert lmx.cli("load", "beta").returncode == 0
        events.saw('"model": "beta", "detail"')
        wait_until(
            lambda: any(
                (event["name"], event["model"]) == ("worker.ready", "beta")
                for event in map(json.loads, events.output.splitlines())
            ),
            "beta is ready, in the events",
        )
        assert events.interrupt() == -signal.SIGINT
    assert len({json.loads(line)["epoch"] for line in events.output.splitlines()}) == 2
    assert "worker.ready" in lmx.cli("events", "beta").stdout


def test_top_on_a_terminal(lmx: Rig) -> None:
    with reading(lmx, "top", terminal=True) as top:
        top.saw("TOK/S")
        top.saw("alpha")
        top.saw("worker.ready")
        top.saw("q quits")
        top.type("q")
        assert top.process.wait(90) == 0
        top.saw("\x1b[?1049l")  # the screen is as it was
    with reading(lmx, "top", terminal=True) as top:
        top.saw("alpha")
        assert top.interrupt() == 0


FAKE_PROGRAM = """#!/bin/sh
env | sort | grep -v '^_=\\|^PWD=\\|^SHLVL=\\|^OLDPWD=' > "$OUT"
printf '%s\\n' "$@" >> "$OUT"
exit 7
"""


def test_bench_measures_and_ctrl_c_gives_what_was_measured(lmx: Rig, tmp_path: Path) -> None:
    url = lmx.url.removesuffix("/v1")
    one, plot = tmp_path / "one.json", tmp_path / "one.svg"
    done = lmx.cli(
        "bench", f"a={url}", f"b={url}/v1", "--model", "alpha", "--seconds", "1", "--rounds", "2",
        "--scenario", "concurrency", "--scenario", "agent", "--json", str(one), "--svg", str(plot),
        timeout_s=480,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    written = json.loads(one.read_text())
    assert [each["label"] for each in written["servers"]] == ["a", "b"]
    assert (written["rounds"], written["notes"]) == ({"planned": 2, "done": 2}, [])
    for phase in written["phases"]:
        whole = phase["figures"][0]
        assert (whole["errors"], whole["not_counted"]) == ({}, 0), phase
        assert whole["cpu_ms_per_token"] is not None, phase
        assert whole["memory_bytes"] > 10 << 20, phase
    text = one.read_text()
    assert not [
        name for name in ("127.0.0.1", str(Path.home()), os.uname().nodename) if name in text
    ]
    assert plot.read_text().startswith("<svg")
    with reading(lmx, "bench", url, "--model", "alpha", "--seconds", "600") as bench:
        bench.saw("round 1 of 3: A, 4 clients")
        assert bench.interrupt() == -signal.SIGINT
    assert b"Interrupted" in bench.output
    several = lmx.cli("bench")
    assert (several.returncode, "it has: alpha, beta" in several.stderr) == (1, True), several


@pytest.mark.parametrize("name", ["claude", "crush"])
def test_launch_becomes_the_program_and_changes_no_file_of_it(
    lmx: Rig, tmp_path: Path, name: str
) -> None:
    """What it prints instead does the same."""
    home, programs, out = tmp_path / "user", tmp_path / "bin", tmp_path / "out"
    programs.mkdir()
    program = programs / name
    program.write_text(FAKE_PROGRAM)
    program.chmod(0o755)
    own = home / ".config" / "crush" / "crush.json"
    own.parent.mkdir(parents=True)
    own.write_text('{ "lsp": {"go": {"command": "`gopls` $HOME \\\\"}} }')
    before = own.read_bytes()
    environment = {
        **lmx.environment, "HOME": str(home), "OUT": str(out), "ANTHROPIC_API_KEY": "a-cloud-key",
        "CLAUDE_CODE_USE_BEDROCK": "1", "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip
    # Commands that ran in this process have set it for themselves.
    environment.pop("PYDANTIC_DISABLE_PLUGINS", None)

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=environment, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=90, check=False,
        )  # fmt: skip

    def launch(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run(sys.executable, "-m", "lmx.supervisor", "launch", name, *arguments)

    folder = lmx.home / "state" / "launch" / name
    printed = launch("--model", "al", "--print", "--", "-p", "it's $HOME")
    assert (printed.returncode, folder.exists(), out.exists()) == (0, False, False), printed.stderr
    assert run("sh", "-c", printed.stdout).returncode == 7
    by_script, files = out.read_text(), [path.read_text() for path in folder.rglob("*.json")]
    shutil.rmtree(folder)
    done = launch("--model", "al", "--", "-p", "it's $HOME")
    assert done.returncode == 7, done.stderr
    assert "asks al at http://127.0.0.1:" in done.stderr and "needs a context of" in done.stderr
    assert out.read_text() == by_script
    assert by_script.endswith("-p\nit's $HOME\n") and "LMX_API_KEY=unused\n" in by_script
    assert "a-cloud-key" not in by_script or name == "crush"
    written = [json.loads(path.read_text()) for path in folder.rglob("*.json")]
    # What is printed is for others to see: it has nothing of the user's own settings.
    assert [one.pop("lsp", None) is not None for one in written] == [name == "crush"] * len(files)
    assert written == [json.loads(text) for text in files]
    assert own.read_bytes() == before and len(list(home.rglob("*"))) == 3
    assert f"removed {folder}" in launch("--undo").stdout and not folder.exists()
    assert "nothing to undo" in launch("--undo").stdout
    program.unlink()
    missing = launch("--model", "al")
    assert (missing.returncode, "npm install -g @" in missing.stderr) == (1, True)

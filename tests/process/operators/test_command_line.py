"""What an operator does at a terminal, against a real lmx: pins, drains, events, top, reload."""

import json
import signal
from collections.abc import Iterator

import pytest

from tests.support.clients.terminal import reading
from tests.support.rigs.rig import Rig, rig, scripted, wait_until

pytestmark = pytest.mark.process


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


def test_events_go_on_over_a_restart_of_the_supervisor(lmx: Rig) -> None:
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


def test_a_bad_configuration_changes_nothing_and_says_why(lmx: Rig) -> None:
    before = lmx.wait_state("alpha", "ready")
    good = lmx.config_path.read_text()
    lmx.config_path.write_text(good + "memory: {keep_alive: soon}\nlogs: {keep: 0}\n")
    bad = lmx.cli("reload")
    assert bad.returncode == 4
    for word in ("memory.keep_alive", "1h30m", "logs.keep"):
        assert word in bad.stderr
    assert lmx.worker("alpha")["pid"] == before["pid"]
    lmx.config_path.write_text(good + "memory: {keep_alive: 1h}\n")
    done = lmx.cli("reload")
    assert (done.returncode, "changed: memory" in done.stdout) == (0, True), done.stderr
    assert 3000 < lmx.worker("alpha")["expires_in_s"] <= 3600
    assert "nothing changed" in lmx.cli("reload").stdout


def test_a_new_router_takes_over(lmx: Rig) -> None:
    before = lmx.status()["router"]
    done = lmx.cli("restart", "--router")
    assert done.returncode == 0, done.stderr
    after = lmx.status()["router"]
    assert after["pid"] != before["pid"]
    assert after["url"] == before["url"]
    assert str(after["pid"]) in done.stdout

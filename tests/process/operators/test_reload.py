"""Another configuration while all goes on: only what changed is touched, a bad one not at all."""

import asyncio
import os
import pty
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from lmx.protocol.messages.control import LoadModel, UnloadModel
from tests.support.rigs.rig import (
    Rig,
    Stream,
    ask,
    http,
    rig,
    scripted,
    unused_port,
    wait_until,
)


def three(**alpha: Any) -> dict[str, Any]:
    return {"models": [scripted("alpha", **alpha), scripted("beta"), scripted("gamma")]}


@pytest.fixture(scope="module")
def shared() -> Iterator[Rig]:
    with rig(three()) as running:
        yield running


@pytest.fixture
def lmx(shared: Rig) -> Rig:
    """The one of all tests here but one, with the configuration that it began with."""
    shared.configure(three())
    done = shared.cli("reload")
    assert done.returncode == 0, done.stderr
    for model in ("alpha", "beta", "gamma"):
        shared.ask(LoadModel(model))
    return shared


def pids(lmx: Rig, *models: str) -> dict[str, int]:
    return {model: lmx.wait_state(model, "ready")["pid"] for model in models}


async def test_only_what_changed_is_touched(lmx: Rig) -> None:
    before = pids(lmx, "alpha", "beta", "gamma")
    seen = len(lmx.log_events("supervisor", "config.reloaded"))
    router = lmx.status()["router"]["pid"]
    async with http() as session:
        url = lmx.url
        streams = [
            Stream(session, url, ask(model, {"tokens": 100, "step_s": 0.02}))
            for model in ("alpha", "beta", "gamma")
        ]
        for stream in streams:
            await stream.has_text(10)
        lmx.configure(
            {
                "models": [
                    scripted("alpha", context_length=2048),
                    scripted("beta", aliases=["b"]),
                    scripted("delta"),
                ]
            }
        )
        done = await asyncio.to_thread(lmx.cli, "reload")
        assert done.returncode == 0, done.stderr
        for reported in ("alpha: reloaded once", "context_length none -> 2048", "gamma: unloaded"):
            assert reported in done.stdout
        late = Stream(session, url, ask("b", {"tokens": 3}))
        await asyncio.gather(*(stream.ended() for stream in (*streams, late)))
    assert [(stream.text, stream.errors) for stream in streams] == [("word " * 100, [])] * 3
    assert late.text == "word " * 3
    wait_until(lambda: len(lmx.status()["workers"]) == 3, "gamma is gone")
    after = pids(lmx, "alpha", "beta", "delta")
    assert after["beta"] == before["beta"]
    assert after["alpha"] != before["alpha"]
    assert lmx.status()["router"]["pid"] == router
    events = lmx.log_events("supervisor", "config.reloaded")[seen:]
    assert [event["sections"] for event in events] == [["models"]]


def test_a_bad_configuration_changes_nothing_and_says_why(lmx: Rig) -> None:
    before = pids(lmx, "alpha", "beta", "gamma")
    status = lmx.status()
    seen = len(lmx.log_events("supervisor", "config.rejected"))
    good = lmx.config_path.read_text()
    lmx.config_path.write_text("server: {port: nine}\nmodels: [{id: x}]\nwhat: 1\n")
    done = lmx.cli("reload")
    assert done.returncode == 4
    for problem in (
        "server.port (line 1)",
        "models.x.source (line 2)",
        "what (line 3): unknown key",
    ):
        assert problem in done.stderr
    lmx.config_path.write_text("")  # as while an editor writes it
    done = lmx.cli("reload")
    assert (done.returncode, "names no models" in done.stderr) == (4, True)
    lmx.config_path.unlink()
    done = lmx.cli("reload")
    assert (done.returncode, "can't read" in done.stderr) == (4, True)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        lmx.configure({"models": [scripted("alpha")], "server": {"port": port}})
        done = lmx.cli("reload")
        assert (done.returncode, f"port {port} of 127.0.0.1" in done.stderr) == (1, True)
    assert len(lmx.log_events("supervisor", "config.rejected")) - seen == 4
    lmx.config_path.write_text(good)
    assert "nothing changed" in lmx.cli("reload").stdout
    assert pids(lmx, "alpha", "beta", "gamma") == before
    assert lmx.status()["router"]["pid"] == status["router"]["pid"]


async def test_the_api_moves_and_its_streams_end_first(lmx: Rig) -> None:
    before = pids(lmx, "alpha", "beta", "gamma")
    old_url, router = lmx.url, lmx.status()["router"]["pid"]
    port = unused_port()
    async with http() as session:
        running = Stream(session, old_url, ask("alpha", {"tokens": 100, "step_s": 0.02}))
        await running.has_text(10)
        lmx.configure({**three(), "server": {"port": port, "max_requests": 7}})
        done = await asyncio.to_thread(lmx.cli, "reload")
        assert done.returncode == 0, done.stderr
        await asyncio.to_thread(wait_until, lambda: f":{port}/" in lmx.url, "it has moved")
        late = Stream(session, lmx.url, ask("alpha", {"tokens": 3}))
        await asyncio.gather(running.ended(), late.ended())
    assert (running.text, running.errors, late.text) == ("word " * 100, [], "word " * 3)
    wait_until(lambda: lmx.status()["router"]["retiring"] == 0, "the old router is gone")
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(old_url.split(":")[2][:-3]))) != 0
    assert lmx.status()["router"]["pid"] != router
    assert pids(lmx, "alpha", "beta", "gamma") == before


async def test_the_next_request_after_a_reload_is_under_its_settings(lmx: Rig) -> None:
    """Also on a connection that the client had open, and beside an answer of the old router."""
    key = "a-key-that-was-not-needed"
    async with http() as session:

        async def models() -> int:
            async with session.get(f"{lmx.url}/models") as answer:
                await answer.read()
                return answer.status

        running = Stream(session, lmx.url, ask("alpha", {"tokens": 300, "step_s": 0.02}))
        await running.has_text(10)
        assert await models() == 200
        lmx.configure({**three(), "security": {"api_keys": [key]}})
        done = await asyncio.to_thread(lmx.cli, "reload")
        assert done.returncode == 0, done.stderr
        assert await models() == 401
        lmx.configure(three())
        headers = {"X-Admin-Key": (lmx.home / "admin.key").read_text().strip()}
        url = f"{lmx.url.removesuffix('/v1')}/admin/config/reload"
        async with session.post(url, headers=headers) as answer:
            assert (await answer.json())["updated"] == ["security"]
        assert await models() == 200
        await running.ended()
        assert running.errors == []
    wait_until(lambda: lmx.status()["router"]["retiring"] == 0, "the old routers are gone")


def test_a_hangup_reloads_and_the_log_level_holds_at_once(lmx: Rig) -> None:
    before = pids(lmx, "alpha", "beta", "gamma")
    lmx.configure({**three(), "logs": {"level": "error"}, "memory": {"budget_fraction": 0.5}})
    assert lmx.supervisor is not None
    budget = lmx.status()["supervisor"]["budget_bytes"]
    reloads = len(lmx.log_events("supervisor", "config.reloaded"))
    exits = len(lmx.log_events("supervisor", "worker.exited"))
    lmx.supervisor.send_signal(signal.SIGHUP)
    wait_until(lambda: lmx.status()["supervisor"]["budget_bytes"] < budget, "another budget")
    assert len(lmx.log_events("supervisor", "config.reloaded")) == reloads
    lmx.ask(UnloadModel("gamma"))
    assert len(lmx.log_events("supervisor", "worker.exited")) == exits
    assert pids(lmx, "alpha", "beta") == {name: before[name] for name in ("alpha", "beta")}


def test_a_hangup_of_its_terminal_stops_it() -> None:
    lmx = Rig({"models": [scripted("alpha")]})
    ours, theirs = pty.openpty()
    try:
        lmx.supervisor = subprocess.Popen(
            [sys.executable, "-m", "lmx.supervisor", "up", "--config", str(lmx.config_path)],
            stdin=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env=lmx.environment, start_new_session=True,
        )  # fmt: skip
        lmx.wait_serving()
        assert lmx.stop(signal.SIGHUP) == 0
        assert lmx.processes() == []
    finally:
        os.close(ours)
        os.close(theirs)
        lmx.close()

"""The first hour with lmx, as a stranger types it: serve, talk, look, lose the supervisor."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clients.terminal import reading
from tests.support.fakes.media_pieces import png
from tests.support.rigs.rig import Rig, rig, scripted, wait_until

pytestmark = pytest.mark.long

KEY = "sk-0123456789abcdef"
SENTENCE = "The quick brown fox jumps over the lazy dog."


@pytest.fixture(scope="module")
def lmx() -> Iterator[Rig]:
    models = [scripted("alpha", options={"media": True}), scripted("beta", preload=False)]
    broken = {"id": "broken", "source": "/no/such/folder"}
    with rig({"models": [*models, broken], "security": {"api_keys": [KEY]}}) as made:
        made.wait_state("alpha", "ready")
        yield made


def piped(lmx: Rig, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lmx.supervisor", *arguments],
        env=lmx.environment, input=text, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_a_pipe_gets_one_answer(lmx: Rig) -> None:
    done = piped(lmx, "hi\n", "chat")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{SENTENCE}\n", "")
    done = piped(lmx, "", "run", "alpha", "hi", "there")
    assert (done.returncode, done.stdout) == (0, f"{SENTENCE}\n")
    failed = piped(lmx, json.dumps({"tokens": 5, "raise_at": 2}), "chat", "alpha")
    assert (failed.returncode, failed.stdout) == (1, "word word ")
    assert failed.stderr.startswith("lmx: ")
    unknown = piped(lmx, "hi", "chat", "gamma")
    assert (unknown.returncode, "known: alpha, beta" in unknown.stderr) == (1, True)
    assert piped(lmx, "", "chat").stderr == "lmx: nothing was asked: stdin is empty\n"


def test_a_conversation_on_a_terminal(lmx: Rig, tmp_path: Path) -> None:
    with reading(lmx, "chat", "alpha", terminal=True) as chat:
        chat.sees(">>> ")
        chat.type("hi\n")
        chat.sees(SENTENCE)
        chat.sees(">>> ")
        chat.type(json.dumps({"tokens": 100_000, "step_s": 0.02}) + "\n")
        chat.sees("word word word")
        chat.type("\x03")
        chat.sees("(stopped)")
        chat.sees(">>> ")
        # The answer was ended where it was made, too.
        wait_until(lambda: lmx.worker("alpha")["requests_active"] == 0, "nothing is computed")
        chat.type("\x03")
        chat.sees("(Ctrl-D leaves)")
        chat.sees(">>> ")
        chat.type('"""\n')
        chat.sees("... ")
        chat.type('two\nlines\n"""\n')
        chat.sees(SENTENCE)
        for typed, said in (
            ("/help", "send an image"),
            ("/system Be short.", ""),
            ("/model gamma", "known: alpha, beta"),
            ("/model beta", "continuing with beta"),
            (f"/image {tmp_path}/none.png", "can't read"),
            ("/clear", ""),
            ("/what", "there is no command /what"),
        ):
            chat.sees(">>> ")
            chat.type(typed + "\n")
            chat.sees(said)
        chat.sees(">>> ")
        chat.type("hi\n")
        chat.sees(SENTENCE)
        chat.sees(">>> ")
        chat.type("\x04")
        assert chat.process.wait(90) == 0
    assert "/model beta" in (lmx.home / "state" / "chat_history").read_text()


def test_what_is_typed_while_a_model_answers_is_neither_shown_nor_sent(
    lmx: Rig, tmp_path: Path
) -> None:
    image, saved = tmp_path / "dot.png", tmp_path / "talk.json"
    image.write_bytes(png(8, 8))
    with reading(lmx, "chat", "alpha", "--image", str(image), terminal=True) as chat:
        chat.sees(">>> ")
        chat.type("what is it?\n")
        chat.sees(SENTENCE)
        chat.sees(">>> ")
        chat.type(json.dumps({"tokens": 100_000, "step_s": 0.02}) + "\n")
        chat.sees("word word word")
        chat.type("too early\n")
        time.sleep(0.5)  # nothing is printed that could be waited for
        chat.type("\x03")
        chat.sees("(stopped)")
        for typed, said in (
            ("/set temperature 0.5", ""),
            ("/set", "temperature         0.5"),
            ("/set nonsense 1", "there is no parameter 'nonsense'"),
            (f"/save {saved}", "saved to"),
        ):
            chat.sees(">>> ")
            chat.type(typed + "\n")
            chat.sees(said)
        chat.sees(">>> ")
        chat.type("\x04")
        assert chat.process.wait(90) == 0
        assert b"too early" not in chat.output
    body = json.loads(saved.read_text())
    (first, _, _, answered) = body["messages"]
    assert [part["type"] for part in first["content"]] == ["image_url", "text"]
    assert answered["content"].startswith("word word word")
    assert (body["model"], body["temperature"]) == ("alpha", 0.5)


def test_run_starts_an_lmx_that_does_not_run() -> None:
    lmx = Rig({"models": [scripted("alpha")]})
    lmx.config_path.rename(lmx.home / "lmx.yaml")
    try:
        done = piped(lmx, "", "run", "alpha", "hi")
        assert (done.returncode, done.stdout) == (0, f"{SENTENCE}\n"), done.stderr
        assert done.stderr == (
            "lmx is not running: starting it in the background (`lmx stop` ends it)\n"
        )
        again = piped(lmx, "hi\n", "chat")
        assert (again.returncode, again.stdout, again.stderr) == (0, f"{SENTENCE}\n", "")
        # What would not be served starts nothing.
        assert lmx.cli("stop").returncode == 0
        unknown = piped(lmx, "", "run", "gamma", "hi")
        assert (unknown.returncode, "no model is named 'gamma'" in unknown.stderr) == (1, True)
        assert lmx.cli("status").returncode == 3
    finally:
        lmx.cli("stop")
        lmx.close()


def test_what_a_stranger_looks_at(lmx: Rig) -> None:
    loaded = lmx.cli("ps").stdout
    assert "alpha" in loaded
    assert "broken" not in loaded
    assert lmx.worker("broken")["state"] == "failed"
    shown = lmx.cli("status").stdout
    assert "/no/such/folder does not exist" in shown
    checked = lmx.cli("config", "check")
    assert checked.returncode == 4
    assert re.search(
        r"models.broken \(line \d+\) can't be loaded: /no/such/folder does not exist",
        checked.stderr,
    )
    listed = lmx.cli("list").stdout.splitlines()
    assert listed[0].split() == ["MODEL", "KIND", "SIZE", "SERVED", "AS"]
    assert [line.split()[-1] for line in listed[1:]] == ["alpha", "beta"]
    refused = lmx.cli("add", "empty", str(lmx.root / "cwd"))
    assert (refused.returncode, "has no config.json" in refused.stderr) == (1, True)
    with reading(lmx, "logs", terminal=True) as logs:
        logs.saw("worker.ready")
        assert b'{"' not in logs.output
    lines = lmx.cli("logs").stdout.splitlines()
    assert all(json.loads(line)["timestamp"].endswith("Z") for line in lines)


def test_the_supervisor_dies_and_nothing_changes_unnoticed() -> None:
    entry = scripted("smol")
    with rig({"models": [scripted("alpha", preload=False)]}) as lmx:
        assert lmx.stop() == 0
        entry["source"] = str(lmx.root / "stub")
        models = json.dumps([entry])
        with reading(lmx, "serve", "--port", "0", terminal=True, LMX_MODELS=models) as serve:
            serve.saw("lmx chat")
            assert lmx.wait_state("smol", "ready")["pid"]
            router, url = lmx.status()["router"]["pid"], lmx.url
            # This shell has none of the variables.
            assert "no model is named" not in lmx.cli("estimate", "smol").stderr
            shown = lmx.cli("config", "show").stdout
            assert "# the running lmx: LMX_MODELS, LMX_SERVER_PORT\n" in shown
            assert "id: smol" in shown
            os.kill(serve.process.pid, signal.SIGKILL)
            serve.process.wait()
        status = lmx.cli("status")
        assert (status.returncode, "--take-over recorded" in status.stderr) == (3, True)
        refused = lmx.cli("start")
        assert refused.returncode == 4
        assert "it was started with: LMX_MODELS, LMX_SERVER_PORT" in refused.stderr
        assert "worker.ready" in lmx.cli("events").stdout
        taken = lmx.cli("start", "--take-over", "recorded")
        assert taken.returncode == 0, taken.stderr
        assert (lmx.status()["router"]["pid"], lmx.url) == (router, url)
        assert lmx.events("supervisor.took_over")
        assert lmx.cli("events").stdout.count("supervisor.ready") >= 3
        # Over HTTP those of the supervisor that died come first.
        url = lmx.url.removesuffix("/v1") + "/admin/events?follow=false&last=1000"
        key = (lmx.home / "admin.key").read_text().strip()
        request = urllib.request.Request(url, headers={"X-Admin-Key": key})

        def answer() -> str | None:
            try:
                with urllib.request.urlopen(request, timeout=300) as response:
                    text: str = response.read().decode()
                    return text
            except urllib.error.HTTPError as error:
                assert error.code == 503, error
                return None

        reported = wait_until(answer, "the router has found the new supervisor")
        assert reported.count('"name":"supervisor.ready"') >= 3
        assert reported.index("supervisor.ready") < reported.index("supervisor.took_over")
        assert lmx.cli("stop").returncode == 0
        again = lmx.cli("stop")
        assert again.returncode == 3 and "lmx is not running" in again.stderr
        assert "supervisor.took_over" in lmx.cli("events").stdout
        assert not (lmx.home / "state" / "launch.json").exists()


def test_a_second_ctrl_c_says_that_it_is_at_once(lmx: Rig) -> None:
    models = json.dumps([{**scripted("slow"), "source": str(lmx.root / "stub")}])
    home = str(lmx.root / "home2")
    environment = {"LMX_MODELS": models, "LMX_HOME": home, "LMX_TIMING_SHUTDOWN_GRACE_S": "30"}
    with reading(lmx, "serve", "--port", "0", terminal=True, **environment) as serve:
        serve.saw("lmx chat")
        asked = {"tokens": 100_000, "step_s": 0.02}
        with reading(lmx, "run", "slow", json.dumps(asked), terminal=True, LMX_HOME=home) as run:
            run.saw("word")
            serve.process.send_signal(signal.SIGINT)
            serve.saw("stopping (SIGINT); again to stop at once")
            serve.process.send_signal(signal.SIGINT)
            serve.saw("stopping at once")
            serve.saw("stopped\r\n")
            assert serve.process.wait(90) == 0

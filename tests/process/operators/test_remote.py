"""Another machine's lmx, as commands with --url see it: a home without an lmx drives a running one
over HTTP alone."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from click.testing import CliRunner, Result

from lmx.supervisor.cli.main import main
from tests.support.models.model_folders import write_model
from tests.support.rigs.rig import Rig, rig, scripted, wait_until

pytestmark = pytest.mark.long

KEY = "sk-0123456789abcdef"
SENTENCE = "The quick brown fox jumps over the lazy dog."


@pytest.fixture(scope="module")
def lmx() -> Iterator[Rig]:
    models = [scripted("alpha", aliases=["a"]), scripted("org/beta", preload=False)]
    with rig({"models": models, "security": {"api_keys": [KEY]}}) as made:
        made.wait_state("alpha", "ready")
        yield made


UNMEASURED = "ended before its memory was measured"
"""A small worker may be gone before it is looked at."""


class Elsewhere:
    """A person on another machine: a home of their own, and an address and a key of an lmx."""

    def __init__(self, lmx: Rig, home: Path) -> None:
        self.home = home
        self.url = lmx.url.removesuffix("/v1")
        self.admin_key = (lmx.home / "admin.key").read_text().strip()

    def run(self, *arguments: str, key: str | None = None, typed: str = "", **more: str) -> Result:
        kept = {name: text for name, text in os.environ.items() if not name.startswith("LMX_")}
        environment = {
            **kept,
            "LMX_HOME": str(self.home),
            "LMX_URL": self.url,
            "LMX_API_KEY": self.admin_key if key is None else key,
            **more,
        }
        with (
            contextlib.chdir(self.home.parent),
            mock.patch.dict(os.environ, environment, clear=True),
        ):
            return CliRunner().invoke(main, arguments, prog_name="lmx", input=typed)

    def says(self, *arguments: str, key: str | None = None, typed: str = "") -> str:
        done = self.run(*arguments, key=key, typed=typed)
        assert done.exit_code == 0, f"{arguments}: {done.output} {done.exception!r}"
        return done.output


@pytest.fixture
def there(lmx: Rig, tmp_path: Path) -> Elsewhere:
    return Elsewhere(lmx, tmp_path / "home")


def test_what_is_there_is_seen(there: Elsewhere, lmx: Rig) -> None:
    assert json.loads(there.says("status", "--json"))["supervisor"]["home"] == str(lmx.home)
    assert "alpha" in there.says("status")
    assert "alpha" in there.says("ps")
    assert "alpha" in there.says("top")
    assert "worker.ready" in there.says("events", "a")
    first = json.loads(there.says("events", "--json").splitlines()[0])
    assert first["seq"] == 1
    assert there.says("events", "-n", "1").count("\n") == 1
    assert "worker" in there.says("logs", "a", "-n", "3")
    assert "router.serving" in there.says("logs", "--router")
    assert there.says("logs", "-n", "1").startswith("{")
    assert there.says("logs", "--fetch") == ""
    assert "org/beta" in there.says("list")
    assert "ready, pid" in there.says("show", "a")
    assert f"{there.url} runs lmx " in there.says("version")
    assert "org/beta needs 4" in there.says("estimate", "org/beta")
    assert "nothing was downloaded yet" in there.says("downloads")
    assert not there.home.exists()


def test_models_are_loaded_and_taken_down(there: Elsewhere, lmx: Rig) -> None:
    assert "ready" in there.says("load", "org/beta")
    pid = lmx.worker("org/beta")["pid"]
    assert f"(pid {pid})" in (said := there.says("kill", "org/beta"))
    assert said.count("came back") + said.count(UNMEASURED) == 1
    lmx.wait_state("org/beta", "ready")
    assert "ready" in there.says("restart", "org/beta")
    assert "unloaded org/beta" in (said := there.says("unload", "org/beta"))
    assert said.count("came back") + said.count(UNMEASURED) == 1
    assert "pinned" in there.says("pin", "org/beta")
    there.says("unpin", "org/beta")
    assert "drained org/beta" in there.says("drain", "org/beta")
    assert lmx.worker("org/beta")["state"] == "drained"
    assert "takes requests again" in there.says("undrain", "org/beta")
    assert lmx.worker("org/beta")["state"] == "cold"
    there.says("reset", "org/beta")
    folder = write_model(lmx.root / "more")
    said = there.says("add", "more", str(folder), "--context-length", "512")
    assert said == "more is served: its first request loads it\n"
    assert lmx.worker("more")["source"] == str(folder)
    assert there.says("remove", "more") == "more is removed; its files stay\n"
    assert "nothing changed" in there.says("reload")
    refused = there.run("rm", "alpha")
    assert (refused.exit_code, "alpha" in refused.output) == (1, True)
    refused = there.run("pull", "--cancel", "nothing")
    assert (refused.exit_code, "nothing" in refused.output) == (1, True)


def test_it_answers(there: Elsewhere) -> None:
    assert there.says("run", "alpha", "hi", key=KEY) == f"{SENTENCE}\n"
    assert there.says("chat", key=KEY, typed="hi\n") == f"{SENTENCE}\n"
    unknown = there.run("chat", "gamma", key=KEY, typed="hi\n")
    assert (unknown.exit_code, "known: alpha, org/beta" in unknown.output) == (1, True)
    unknown = there.run("run", "qwen3:8b", "hi", key=KEY)
    assert (unknown.exit_code, "(did you mean qwen3-8b?)" in unknown.output) == (1, True)
    nobody = there.run("--url", "http://127.0.0.1:1", "run", "alpha", "hi")
    assert (nobody.exit_code, "no lmx can be reached" in nobody.output) == (3, True)
    assert not there.home.exists()  # nothing is started here


def test_what_has_no_route_is_said(there: Elsewhere) -> None:
    for arguments in (
        ["stop"], ["start"], ["serve", "x"], ["demo"], ["init"], ["doctor"], ["config", "check"],
        ["config", "show"], ["restart", "--router"], ["restart", "--supervisor"],
        ["backup"], ["service", "status"], ["pull", "--search", "x"],
    ):  # fmt: skip
        done = there.run(*arguments)
        said = "works only on the machine where lmx runs" in done.output
        assert (done.exit_code, said) == (1, True), (arguments, done.output)
    assert not there.home.exists()


def test_keys_and_addresses_that_are_wrong(there: Elsewhere) -> None:
    for key, said in (
        (KEY, "This key is not enough here"),
        ("sk-wrong", "is not right"),
        ("", "is missing"),
    ):
        done = there.run("status", key=key)
        assert (done.exit_code, said in done.output) == (1, True), done.output
        assert "--key KEY or LMX_API_KEY" in done.output
    done = there.run("chat", key="sk-wrong", typed="hi")
    assert (done.exit_code, "The API key is not right" in done.output) == (1, True)
    done = there.run("--url", "http://127.0.0.1:1", "status")
    assert (done.exit_code, "no lmx can be reached at http://127.0.0.1:1" in done.output) == (
        3, True,
    )  # fmt: skip
    done = there.run("status", "--url", "http://127.0.0.1:1")
    assert (done.exit_code, "stands before the command" in done.output) == (2, True)
    done = there.run("--url", "ftp://x", "status")
    assert (done.exit_code, "is not the address of an lmx" in done.output) == (2, True)


def test_events_are_followed_over_a_new_supervisor(there: Elsewhere, lmx: Rig) -> None:
    lmx.run("restart", "--supervisor")

    def lives() -> set[str]:
        done = there.run("events", "--json", "-n", "2000")
        # The next supervisor may not answer yet.
        lines = done.output.splitlines() if done.exit_code == 0 else ()
        return {json.loads(line)["epoch"] for line in lines}

    wait_until(lambda: len(lives()) == 2, "events of both supervisors are there")

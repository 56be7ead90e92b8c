"""Model folders that nobody can read cost their own model alone, whatever is in them."""

import json
import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.messages import control, inventory
from tests.support.faults.bad_files import put_bad
from tests.support.faults.bad_folders import BAD, ODD, write_bad
from tests.support.rigs.rig import Rig, http, scripted, wait_until

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def lmx() -> Iterator[Rig]:
    """One model that can be read, and every kind that can't."""
    bad = [scripted(name, preload=False, source=f"./{name}") for name in sorted(BAD | ODD)]
    made = Rig({"models": [scripted("good"), *bad]})
    for name in BAD | ODD:
        write_bad(made.root / name, name)
    try:
        made.up()
        made.wait_state("good", "ready")
        yield made
    finally:
        made.close()


def lines(lmx: Rig) -> dict[str, dict[str, Any]]:
    return {line["model"]: line for line in lmx.status()["workers"]}


def test_each_has_its_problem_and_the_others_none(lmx: Rig) -> None:
    wait_until(lambda: all(lines(lmx)[name]["problem"] for name in BAD), "all were read")
    found = lmx.cli("status", "--json")
    assert found.returncode == 0, found.stderr
    reported = {line["model"]: line["problem"] for line in json.loads(found.stdout)["workers"]}
    for name in BAD:
        assert str(lmx.root / name) in reported[name], reported[name]
    wait_until(lambda: all(lines(lmx)[name]["needed_bytes"] for name in ODD), "these are models")
    assert [reported[name] for name in ("good", *ODD)] == [None] * (1 + len(ODD))


@pytest.mark.parametrize("name", sorted(BAD))
def test_it_is_neither_loaded_nor_added(name: str, lmx: Rig) -> None:
    with pytest.raises(OperationError, match=str(lmx.root / name)) as refused:
        lmx.ask(control.LoadModel(name))
    assert refused.value.code is ErrorCode.MODEL_SOURCE_INVALID
    with pytest.raises(OperationError, match=str(lmx.root / name)) as refused:
        lmx.ask(inventory.AddModel("another", str(lmx.root / name)))
    assert (refused.value.code, refused.value.param) == (ErrorCode.MODEL_SOURCE_INVALID, "source")
    assert not (lmx.home / "state" / "models.json").exists()
    assert lmx.worker("good")["state"] == "ready"


def test_it_is_said_before_anything_is_started(lmx: Rig) -> None:
    said = lmx.cli("config", "check", "--config", str(lmx.config_path))
    assert said.returncode == 4, said.stderr
    for name in BAD:
        words = rf"models.{name} \(line \d+\) can't be loaded: {lmx.root / name}"
        assert re.search(words, said.stderr), name
    assert "models.good" not in said.stderr
    asked = lmx.cli("estimate", str(lmx.root / "surrogate"))
    assert asked.returncode == 1
    assert "model_type is no name" in asked.stderr


def test_lmx_ends_and_starts_again_with_such_models_in_its_state(lmx: Rig) -> None:
    kept = [{"id": f"added-{name}", "source": str(lmx.root / name)} for name in BAD]
    odd = {"id": "odd", "source": str(lmx.root / "fifo-card"), "parameters": {"a": "\ud800"}}
    assert lmx.stop(signal.SIGTERM) == 0
    assert lmx.processes() == []
    (lmx.home / "state" / "models.json").write_text(json.dumps({"models": [*kept, odd]}))
    lmx.up()
    lmx.wait_state("good", "ready")
    assert "has models that can't be served ('odd')" in lmx.status()["supervisor"]["notices"][0]
    added = [f"added-{name}" for name in BAD]
    wait_until(lambda: all(lines(lmx)[name]["problem"] for name in added), "all were read")
    assert lmx.cli("status").returncode == 0
    for name in added:
        lmx.ask(inventory.RemoveModel(name))


KINDS = ["folder", "dangling link", "pipe", "garbage", "deep", "empty"]


async def test_lmx_starts_whatever_its_own_files_are() -> None:
    made = Rig({"models": [scripted("good")]})
    made.home.chmod(0o700)
    logs = [f"logs/{name}.log" for name in ("supervisor", "router", "worker-good")]
    state = [f"{name}.json" for name in ("pins", "models", "measured", "downloads", "router")]
    others = ["state/workers/x.json", "admin.key", "state/jobs.sqlite", "lock"]
    for at, name in enumerate([*logs, *(f"state/{each}" for each in state), *others]):
        put_bad(made.home / name, KINDS[at % 3 if name in logs else at % len(KINDS)])
    try:
        made.up()
        made.wait_state("good", "ready")
        notices = made.status()["supervisor"]["notices"]
        for name in [*logs, *(f"state/{each}" for each in state), *others[:2]]:
            assert any(str(made.home / name) in notice for notice in notices), (name, notices)
        assert {event.detail for event in made.events("supervisor.notice")} == set(notices)
        printed = made.cli("status")
        assert printed.returncode == 0
        assert "was set aside" in printed.stdout
        async with http() as session, session.get(f"{made.url}/jobs") as response:
            assert response.status == 200
        assert made.stop(signal.SIGTERM) == 0
        made.up()
        assert made.status()["supervisor"]["notices"] == []
    finally:
        made.close()


def test_an_empty_configuration_is_said() -> None:
    made = Rig({"models": []})
    made.config_path.write_text("")
    try:
        said = made.cli("config", "check", "--config", str(made.config_path))
        assert said.returncode == 0
        assert "lmx.yaml is empty" in said.stdout
    finally:
        made.close()

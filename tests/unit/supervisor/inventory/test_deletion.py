"""A model whose files are being deleted is not loaded from them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lmx.protocol.errors import ErrorCode
from lmx.protocol.states import SlotState
from lmx.supervisor.events import EventLog
from lmx.supervisor.inventory import deletion
from lmx.supervisor.inventory.deletion import Deletion
from lmx.supervisor.state.home import Home
from tests.support.rigs.core_rig import CoreRig


async def test_a_request_during_a_deletion_begins_no_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = CoreRig({"a": 100})
    asked: list[Any] = []

    deleted: list[str] = []

    @contextmanager
    def mark(repo_id: str) -> Iterator[None]:
        deleted.append(repo_id)
        yield
        deleted.clear()

    async def nothing(*_: Any) -> tuple[()]:
        return ()

    stopped: list[str] = []

    async def wait_stopped() -> None:
        assert deleted == ["org/a"], "none is begun meanwhile"
        stopped.append("all")

    async def delete_files(*_: Any) -> int:
        assert (deleted, stopped) == (["org/a"], ["all"])
        asked.append(rig.answer(rig.ask("a")))
        assert rig.slot("a").state is SlotState.COLD
        return 7

    monkeypatch.setattr(deletion, "scan_hub", nothing)
    monkeypatch.setattr(deletion, "scan_conversions", nothing)
    plan = SimpleNamespace(repo_id="org/a", commits=("c",))
    monkeypatch.setattr(deletion, "plan_and_users", lambda *_, **__: (plan, ("a",)))
    monkeypatch.setattr(deletion, "delete_files", delete_files)
    others: Any = SimpleNamespace()
    downloads: Any = SimpleNamespace(deleting=mark, of=lambda _: (), wait_stopped=wait_stopped)
    deleting = Deletion(rig.core, others, downloads, Home(tmp_path), EventLog("e1"))
    assert (await deleting.delete("a", force=False)).freed_bytes == 7
    assert (asked[0].code, "being deleted" in asked[0].message) == (ErrorCode.MODEL_UNLOADED, True)
    assert rig.slot("a").problem is None
    assert not deleted
    rig.ask("a")
    assert rig.state("a") == "starting"

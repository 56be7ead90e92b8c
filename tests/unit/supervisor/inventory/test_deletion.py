"""A model whose files are being deleted is not loaded from them."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.messages import control
from lmx.protocol.messages.status import LentRank
from lmx.protocol.states import SlotState
from lmx.supervisor.events import EventLog
from lmx.supervisor.inventory import deletion
from lmx.supervisor.inventory.deletion import Deletion
from lmx.supervisor.inventory.disk import Conversion
from lmx.supervisor.inventory.on_disk import DeletionPlan
from lmx.supervisor.state.home import Home
from tests.support.fakes.fake_peers import until
from tests.support.rigs.core_rig import CoreRig

Made = Callable[..., tuple[Deletion, list[tuple[str, ...]]]]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    """Return what deletes the folder /a that lmx made, and the models whose files it has deleted.
    ``scanning`` is called while the disk is looked at."""

    def make(
        rig: CoreRig, *, scanning: Callable[[], None] = lambda: None,
        lent: tuple[LentRank, ...] = (), **downloads: Any,
    ) -> tuple[Deletion, list[tuple[str, ...]]]:  # fmt: skip
        deleted: list[tuple[str, ...]] = []

        async def scan_hub() -> tuple[()]:
            scanning()
            return ()

        async def delete_files(_gone: DeletionPlan, _home: Home, ids: tuple[str, ...]) -> int:
            deleted.append(ids)
            return 7

        conversions = (Conversion(Path("/a"), None, 70, 6.0),)
        monkeypatch.setattr(deletion, "scan_hub", scan_hub)
        monkeypatch.setattr(deletion, "scan_conversions", AsyncMock(return_value=conversions))
        monkeypatch.setattr(deletion, "delete_files", delete_files)
        parts: Any = SimpleNamespace(
            **{"wait_stopped": AsyncMock(), "forget": lambda _: None, **downloads}
        )
        deleting = Deletion(rig.core, parts, parts, Home(tmp_path), EventLog("e1"), lambda: lent)
        return deleting, deleted

    return make


async def test_a_request_during_a_deletion_begins_no_load(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = CoreRig({"a": 100})
    asked: list[Any] = []
    marked: list[str] = []
    stopped: list[str] = []

    @contextmanager
    def mark(repo_id: str) -> Iterator[None]:
        marked.append(repo_id)
        yield
        marked.clear()

    async def wait_stopped() -> None:
        assert marked == ["org/a"], "none is begun meanwhile"
        stopped.append("all")

    async def delete_files(*_: Any) -> int:
        assert (marked, stopped) == (["org/a"], ["all"])
        asked.append(rig.answer(rig.ask("a")))
        assert rig.slot("a").state is SlotState.COLD
        return 7

    deleting, _ = made(rig, deleting=mark, of=lambda _: (), wait_stopped=wait_stopped)
    plan = DeletionPlan("org/a", ("c",))
    monkeypatch.setattr(deletion, "plan_and_users", lambda *_, **__: (plan, ("a",)))
    monkeypatch.setattr(deletion, "delete_files", delete_files)
    assert (await deleting.delete("a", force=False)).freed_bytes == 7
    assert (asked[0].code, "being deleted" in asked[0].message) == (ErrorCode.MODEL_UNLOADED, True)
    assert rig.slot("a").problem is None
    assert not marked
    rig.ask("a")
    assert rig.state("a") == "starting"


async def test_files_that_were_deleted_in_part_are_fetched_again(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = CoreRig({"a": 100})
    rig.actions.remote.add("a")
    rig.ask("a")
    rig.core.fetch_ended("a", Path("/models/a"), 0.0)
    rig.bring_up("a")
    rig.operate(control.UnloadModel("a"))
    rig.drains("a")
    deleting, _ = made(rig)

    async def delete_files(*_: Any) -> int:
        raise OperationError(ErrorCode.INTERNAL, "the disk is gone")

    monkeypatch.setattr(deletion, "delete_files", delete_files)
    with pytest.raises(OperationError, match="the disk is gone"):
        await deleting.delete("a", force=False)
    rig.actions.fetching.clear()
    rig.ask("a")
    assert rig.actions.fetching == {"a"}


async def test_a_model_that_is_removed_during_its_deletion_is_no_error(made: Made) -> None:
    rig = CoreRig({"a": 100})
    slots: Any = rig.core.slots
    deleting, deleted = made(rig, scanning=slots.clear)
    assert (await deleting.delete("a", force=False)).freed_bytes == 7
    assert deleted == [("a",)]


async def test_a_model_that_is_added_during_a_deletion_keeps_its_files(made: Made) -> None:
    rig = CoreRig({"a": 100, "b": 100}, models={"b": {"source": "/a"}}, up="a")
    slots: Any = rig.core.slots
    added = slots.pop("b")
    deleting, deleted = made(rig)
    ending = asyncio.ensure_future(deleting.delete("a", force=True))
    await until(lambda: control.Drain(if_idle=False) in rig.sent("a"))
    slots["b"] = added
    rig.up("b")
    rig.drains("a")
    with pytest.raises(OperationError, match="b is loaded"):
        await ending
    assert not deleted


async def test_the_files_of_a_model_that_is_added_while_they_are_deleted_are_read_again(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = CoreRig({"a": 100, "b": 100}, models={"b": {"source": "/a"}})
    slots: Any = rig.core.slots
    added = slots.pop("b")
    deleting, _ = made(rig)

    async def delete_files(*_: Any) -> int:
        slots["b"] = added
        rig.actions.inspected.clear()
        return 7

    monkeypatch.setattr(deletion, "delete_files", delete_files)
    await deleting.delete("a", force=False)
    assert rig.actions.inspected == ["a", "b"]


@pytest.mark.parametrize("force", [True, False])
async def test_files_that_another_machine_uses_stay(made: Made, force: bool) -> None:
    rig = CoreRig({"a": 100}, up="a")
    sent = len(rig.sent("a"))
    rank = LentRank(model="a", owner="peer", rank=1, count=2, pid=1, reserved_bytes=1)
    deleting, deleted = made(rig, lent=(rank,))
    with pytest.raises(OperationError, match="rank 1 of 2 of a runs here for peer") as refused:
        await deleting.delete("a", force=force)
    assert refused.value.code is ErrorCode.MODEL_LOADED
    assert (len(rig.sent("a")), deleted) == (sent, [])

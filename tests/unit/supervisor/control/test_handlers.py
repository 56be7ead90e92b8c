"""One handler for each question, one reply for each asker."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages import control
from lmx.protocol.messages.counts import ReportCounts
from lmx.protocol.messages.inventory import AddModel
from lmx.protocol.messages.peers import Peer, PeerList, PutPeer, RemovePeer
from lmx.supervisor.control import following
from lmx.supervisor.control.following import RouterFollowers
from lmx.supervisor.control.handlers import Handlers
from lmx.supervisor.control.inventory import added_handlers, disk_handlers
from lmx.supervisor.control.models import ModelCommands
from lmx.supervisor.control.service import ServiceCommands
from lmx.supervisor.decisions.slots.demand import Requester
from tests.support.fakes.fake_peers import until

REQUESTER = Requester(b"cli", 3)
PROTOCOL_MD = Path(__file__).parents[4] / "protocol" / "PROTOCOL.md"


class Rig:
    """Handlers whose replies are kept."""

    def __init__(self, **handlers: Any) -> None:
        self.replies: list[tuple[Requester, Any]] = []
        self.handlers = Handlers(
            lambda requester, message: self.replies.append((requester, message))
        )
        self.handlers.add({getattr(control, kind): handler for kind, handler in handlers.items()})

    async def ask(self, question: Any) -> Any:
        self.handlers.answer(REQUESTER, question, 7.0)
        for _ in range(3):
            await asyncio.sleep(0)
        return self.replies[-1][1] if self.replies else None


def test_every_question_of_the_protocol_has_exactly_one_handler() -> None:
    nothing: Any = None
    registry = Handlers(lambda _requester, _message: None)
    handled: set[type] = {ReportCounts, control.Acquire}
    for handlers in (
        ModelCommands(nothing, nothing, nothing).handlers,
        added_handlers(nothing, nothing),
        disk_handlers(nothing, nothing),
        ServiceCommands(nothing, nothing, nothing, nothing, nothing, nothing).handlers,
    ):
        registry.add(handlers)
        handled |= handlers.keys()
    tables = re.findall(r"^\| question \|.*\n\|---.*\n((?:\|.*\n)+)", PROTOCOL_MD.read_text(), re.M)
    first_cells = [line.split("|")[1] for table in tables for line in table.splitlines()]
    reported = {name for cell in first_cells for name in re.findall(r"`([A-Z]\w+)`", cell)}
    assert {kind.__name__ for kind in handled} == reported | {"ReportCounts"}


def test_a_question_has_one_handler() -> None:
    rig = Rig(StopAll=lambda *_: None)
    with pytest.raises(ValueError, match="two handlers for StopAll"):
        rig.handlers.add({control.StopAll: lambda *_: None})


async def test_a_handler_gets_what_is_asked_and_when_and_a_waiter_also_by_whom() -> None:
    seen: list[tuple[Any, ...]] = []
    rig = Rig(StopAll=lambda *asked: seen.append(asked))
    rig.handlers.add_waiter(control.Acquire, lambda *asked: seen.append(asked))
    acquire = control.Acquire("m", 1.0, "r")
    for question in (control.StopAll(), acquire):
        assert await rig.ask(question) is None, "somebody else replies"
    assert seen == [(control.StopAll(), 7.0), (acquire, REQUESTER, 7.0)]


async def test_what_is_returned_is_the_reply_at_once_or_later() -> None:
    async def later(*_: Any) -> control.Done:
        await asyncio.sleep(0)
        return control.Done("later")

    rig = Rig(StopAll=lambda *_: control.Done("now"), ReloadConfig=later)
    assert await rig.ask(control.StopAll()) == control.Done("now")
    assert await rig.ask(control.ReloadConfig()) == control.Done("later")
    assert [requester for requester, _ in rig.replies] == [REQUESTER, REQUESTER]


async def test_what_is_refused_is_denied_at_once_or_later() -> None:
    error = RequestError(ErrorCode.INVALID_VALUE, "no", param="model_id")

    def refuse(*_: Any) -> Any:
        raise error

    async def refuse_later(*_: Any) -> Any:
        raise error

    rig = Rig(StopAll=refuse, ReloadConfig=refuse_later)
    for question in (control.StopAll(), control.ReloadConfig()):
        denied = await rig.ask(question)
        assert isinstance(denied, control.Denied)
        assert (denied.code, denied.message, denied.param) == (error.code, "no", "model_id")


async def test_a_bug_in_a_later_answer_is_reported() -> None:
    async def breaks(*_: Any) -> Any:
        raise ZeroDivisionError("bug")

    denied = await Rig(StopAll=breaks).ask(control.StopAll())
    assert denied.code is ErrorCode.INTERNAL


async def test_what_is_no_question_is_denied() -> None:
    denied = await Rig().ask(control.Done("hello"))
    assert denied.code is ErrorCode.PROTOCOL_ERROR
    assert denied.message == "Done is not a question"


async def test_nobody_is_answered_after_the_end() -> None:
    async def never(*_: Any) -> Any:
        await asyncio.Event().wait()

    rig = Rig(StopAll=never)
    await rig.ask(control.StopAll())
    rig.handlers.close()
    for _ in range(3):
        await asyncio.sleep(0)
    assert rig.replies == []


class Followers(Rig):
    """Handlers of which those that change what is served wait for a router. It has the snapshot of
    a revision and a list of peers, and has said so once it knows them."""

    epoch = "e"

    def __init__(self) -> None:
        super().__init__()
        self.revision = self.has = 1
        self.published: list[Any] = []
        self.peers = self.has_list = PeerList.of(())
        own: Any = self
        self.followers = RouterFollowers(own, own, lambda: self.peers, self.published.append)

    def flush(self, _now_s: float) -> None:
        self.revision += 1

    def snapshot(self, _now_s: float) -> int:
        return self.revision

    def has_snapshot(self, epoch: str, revision: int) -> bool:
        return epoch == self.epoch and self.has >= revision

    def has_peers(self, digest: str) -> bool:
        return digest == self.has_list.digest


async def test_a_change_of_what_is_served_is_answered_once_the_router_knows_it() -> None:
    async def add(*_: Any) -> control.Done:
        return control.Done("added")

    rig = Followers()
    handlers = {
        AddModel: add,
        control.ReloadConfig: lambda *_: control.Reloaded((), ()),
        control.StopAll: lambda *_: control.Done("stopping"),
    }
    rig.handlers.add(rig.followers.awaited(handlers))
    assert await rig.ask(control.StopAll()) == control.Done("stopping")
    changes: tuple[tuple[Any, Any], ...] = (
        (AddModel("new", "/new"), control.Done("added")),
        (control.ReloadConfig(), control.Reloaded((), ())),
    )
    for question, expected in changes:
        before = len(rig.replies)
        await rig.ask(question)
        # It was published once more, for a router that has it already.
        assert (len(rig.replies), rig.published[-2]) == (before, rig.revision)
        rig.has = rig.revision
        await until(lambda: len(rig.replies) > before)  # noqa: B023
        assert rig.replies[-1][1] == expected


async def test_a_change_of_the_peers_is_answered_once_the_router_has_the_list() -> None:
    rig, peer = Followers(), Peer("studio", "http://127.0.0.1:9")
    rig.has = 1_000

    def put(question: PutPeer, _now_s: float) -> control.Done:
        rig.peers = PeerList.of((question.peer,))
        return control.Done("stored")

    def remove(*_: Any) -> control.Done:
        rig.peers = PeerList.of(())
        return control.Done("removed")

    rig.handlers.add(rig.followers.awaited({PutPeer: put, RemovePeer: remove}))
    for question, expected in ((PutPeer(peer), "stored"), (RemovePeer("studio"), "removed")):
        before = len(rig.replies)
        await rig.ask(question)
        assert (len(rig.replies), rig.published[-1]) == (before, rig.peers)
        rig.has_list = rig.peers
        await until(lambda: len(rig.replies) > before)  # noqa: B023
        assert rig.replies[-1][1] == control.Done(expected)


async def test_a_router_that_hangs_does_not_keep_a_change_from_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(following, "_FOLLOW_S", 0.05)
    rig = Followers()
    rig.handlers.add(rig.followers.awaited({control.ReloadConfig: lambda *_: control.Done("yes")}))
    await rig.ask(control.ReloadConfig())
    await until(lambda: rig.replies)
    assert rig.replies[-1][1] == control.Done("yes")

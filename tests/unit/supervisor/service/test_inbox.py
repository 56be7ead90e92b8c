"""Messages on the control socket: what follows from them is published once for those that wait."""

import asyncio
from types import SimpleNamespace
from typing import Any

from lmx.protocol.messages import control
from lmx.protocol.messages.status import WorkerFigures
from lmx.protocol.states import WorkerState
from lmx.protocol.wire.endpoints import router_identity
from lmx.supervisor.decisions.slots.demand import Requester
from lmx.supervisor.service.inbox import Inbox
from lmx.supervisor.service.reports import Reports
from tests.support.rigs.core_rig import CoreRig

MODELS = tuple(f"model-{number}" for number in range(5))


class Received(CoreRig):
    """A core that gets its messages from an inbox. ``looks`` counts how often it was looked at
    whether there is anything to publish."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(MODELS, 10))
        for model in MODELS:
            self.up(model)
        self.core.flush(0.0)
        self.looks = 0
        self.core.after_event = self.looked
        unused: Any = None
        self.inbox = Inbox(
            self.core, unused, self.commands, unused, lambda _to, _message: None, self.settings,
            str, str, unused, lambda _now_s: None, unused,
        )  # fmt: skip

    def looked(self) -> None:
        self.looks += 1

    @property
    def published(self) -> int:
        return len(self.actions.published)

    def beats(self) -> None:
        """Each worker's beat comes."""
        for model in MODELS:
            worker = self.worker(model)
            beat = control.WorkerBeat(worker.instance, worker.state, 0, 0, 0.0, WorkerFigures())
            self.inbox.take(b"worker", beat, 0)


async def test_what_follows_from_beats_is_published_once_for_all_that_have_come() -> None:
    rig, published = Received(), 0
    for rounds in (1, 2):
        rig.core.drained = rounds == 1
        published = rig.published
        rig.beats()
        assert (rig.looks, rig.published) == (rounds - 1, published)
        await asyncio.sleep(0)
        assert (rig.looks, rig.published) == (rounds, published + 1)
        assert rig.actions.published[-1].drained is rig.core.drained
    await asyncio.sleep(0)
    assert (rig.looks, rig.published) == (2, published + 1)


async def test_what_a_command_has_changed_is_published_at_once_also_after_beats() -> None:
    rig = Received()
    rig.beats()
    published = rig.published
    rig.inbox.take(b"cli", control.PinModel(MODELS[0], pinned=True), 7)
    assert (rig.looks, rig.published) == (1, published + 1)
    assert rig.actions.published[-1].models[0].pinned
    # The beats before it need no further one.
    for _ in range(3):
        await asyncio.sleep(0)
    assert (rig.looks, rig.published) == (1, published + 1)
    rig.beats()
    await asyncio.sleep(0)
    assert (rig.looks, rig.published) == (2, published + 1)


async def test_a_worker_whose_hello_was_lost_is_asked_for_another_one() -> None:
    rig, sent = CoreRig({"a": 10}), list[Any]()
    unused: Any = SimpleNamespace()
    inbox = Inbox(
        rig.core, unused, rig.commands, unused, lambda _to, message: sent.append(message),
        rig.settings, str, str, unused, lambda _now_s: None, unused,
    )  # fmt: skip
    rig.ask("a")
    beat = control.WorkerBeat(
        rig.worker("a").instance, WorkerState.STARTING, 0, 0, 0.0, WorkerFigures()
    )
    inbox.take(b"worker", beat, 0)
    assert [type(message) for message in sent] == [control.Identify, control.BeatSeen]
    rig.bring_up("a")
    inbox.take(b"worker", beat, 0)
    assert [type(message) for message in sent[2:]] == [control.BeatSeen]


def test_nothing_is_evicted_for_the_requests_of_a_router_that_has_ended() -> None:
    rig = CoreRig({"a": 600, "b": 600, "c": 600})
    rig.up("a")
    rig.beat("a", rows=1)
    for name, pid in (("b", 7), ("c", 7), ("c", 8)):
        asker = Requester(router_identity(pid), 1)
        rig.commands.answer(asker, control.Acquire(name, 300.0, "r", 0.0), 0.0)
    others: Any = SimpleNamespace(exited=lambda *_: None, router_ended=lambda _: None)
    reports = Reports(rig.core, others, others, others, others, others, others)
    reports.router_exited(7, -9)
    assert (rig.state("b"), rig.state("c")) == ("cold", "queued")
    reports.router_exited(8, -9)
    assert rig.state("c") == "cold"

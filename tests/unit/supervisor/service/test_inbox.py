"""Messages on the control socket: what follows from them is published once for those that wait."""

import asyncio
from typing import Any

from lmx.protocol.messages import control
from lmx.protocol.messages.status import WorkerFigures
from lmx.supervisor.service.inbox import Inbox
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

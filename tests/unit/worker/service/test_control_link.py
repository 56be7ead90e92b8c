"""The worker's link to the supervisor at its end."""

from pathlib import Path
from unittest.mock import Mock

import zmq.asyncio

from lmx.protocol.messages.control import BeatSeen
from lmx.protocol.wire.endpoints import RunDirectory
from lmx.worker.service.control import ControlLink


async def test_what_is_sent_after_its_end_is_dropped(tmp_path: Path) -> None:
    """A load says how far it is until the process ends."""
    context = zmq.asyncio.Context()
    link = ControlLink(context, RunDirectory(tmp_path), "i", Mock())
    link.close()
    assert not link.send(BeatSeen("epoch", 1))
    context.term()

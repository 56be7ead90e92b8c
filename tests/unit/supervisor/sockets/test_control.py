"""The supervisor's control socket, and who asks on it."""

import asyncio
from pathlib import Path
from typing import Any

import zmq

from lmx.protocol.messages import control
from lmx.protocol.wire import codec
from lmx.protocol.wire.sockets import Role, open_socket
from lmx.supervisor.sockets.server import ControlServer
from lmx.supervisor.state.home import Home

_GONE_S = 0.1
"""A closed connection is noticed at once; the time is for a busy machine."""


async def test_an_answer_can_still_be_read_when_the_supervisor_has_closed(tmp_path: Path) -> None:
    """As of `restart --supervisor`: it is the last that the old program says."""
    home = Home(tmp_path)
    home.prepare()
    server = ControlServer(home.run)
    answered = asyncio.Event()

    def answer(identity: bytes, _message: Any, correlation: int) -> None:
        server.send(identity, control.Done("begun"), correlation)
        answered.set()

    serving = asyncio.create_task(server.serve(answer))
    context = zmq.Context()
    requester = open_socket(context, Role.CONTROL_REQUESTER)
    try:
        requester.connect(home.run.control)
        requester.send(codec.encode(control.RestartSupervisor(), 7))
        await asyncio.wait_for(answered.wait(), 90)
        serving.cancel()
        await server.close()
        await asyncio.sleep(_GONE_S)
        assert requester.poll(60_000), "the answer is lost"
        envelope = codec.decode(requester.recv())
        assert (envelope.correlation, envelope.message) == (7, control.Done("begun"))
    finally:
        context.destroy(linger=0)

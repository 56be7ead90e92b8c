"""For the processes of a divided model: whatever they connect to each other goes through the
network of :mod:`tests.support.faults.cut_network`, which a test can cut."""

import dataclasses
import os
import socket
import sys
import threading
from typing import Any


def _through(address: str) -> str:
    """Return where the network passes connections on to an address."""
    host, _, port = os.environ["NETWORK_OF_RANKS"].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as asked:
        asked.sendall(f"{address}\n".encode())
        return f"{host}:{int(asked.makefile().readline())}"


if "NETWORK_OF_RANKS" in os.environ and any("lmx.worker" in one for one in sys.orig_argv):
    from lmx.protocol.messages.ranks import FollowerLink
    from lmx.worker.ranks import link as link_module
    from lmx.worker.ranks import ring

    make_environment, connect = ring.ring_environment, link_module.join

    def ring_environment(worker: Any, ring: Any, rank: int) -> dict[str, str]:
        others = tuple(one if n == rank else _through(one) for n, one in enumerate(ring.addresses))
        return make_environment(worker, dataclasses.replace(ring, addresses=others), rank)

    def join(
        link: FollowerLink, keys: tuple[bytes, bytes], beat_s: float, silence_s: float
    ) -> tuple[socket.socket, threading.Thread]:
        place = _through(link.endpoint.removeprefix("tcp://"))
        through = dataclasses.replace(link, endpoint=f"tcp://{place}")
        return connect(through, keys, beat_s, silence_s)

    ring.ring_environment, link_module.join = ring_environment, join

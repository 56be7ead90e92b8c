"""A follower whose rank 0 is on another machine.

    python -m lmx.worker.ranks.lent MODEL "rank N" PROCESS

Its supervisor has written its spec to stdin. It ends when the connection to rank 0 does, when rank
0's machine does not answer, or when its supervisor ends.
"""

import contextlib
import socket
import sys
import threading
from functools import partial
from typing import Final

import zmq

from lmx.protocol.messages.ranks import FollowerSpec
from lmx.protocol.wire.codec import decode
from lmx.worker.ranks.follower import Following, follow, prepare
from lmx.worker.ranks.link import join
from lmx.worker.ranks.wire import Incoming

_SENT_S: Final = 2.0


def _leave(stream: socket.socket, carrier: threading.Thread) -> None:
    with contextlib.suppress(OSError):
        stream.shutdown(socket.SHUT_WR)
    carrier.join(_SENT_S)


def main() -> None:
    """Run the follower; never returns."""
    prepare()
    spec = decode(sys.stdin.buffer.read()).message
    if not isinstance(spec, FollowerSpec) or spec.link is None or spec.worker.ranks is None:
        sys.exit("lmx.worker.ranks.lent reads a FollowerSpec with a link from stdin")
    lease = socket.socket(fileno=spec.link.lease_fd)
    keys = zmq.curve_keypair()
    lease.sendall(keys[0])
    lease.setblocking(False)
    times = spec.worker.beat_interval_s, spec.worker.ranks.silence_s
    stream, carrier = join(spec.link, keys, *times)
    following = Following(stream, spec, lease)
    follow(following, spec, iter(()), Incoming(), partial(_leave, stream, carrier))


if __name__ == "__main__":
    main()

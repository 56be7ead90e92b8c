"""Where ranks find each other: what mlx's backends read from a file, which an environment variable
names: addresses for ``ring``, names of RDMA devices for ``jaccl``."""

import json
import socket
from pathlib import Path
from typing import Final

from lmx.protocol.messages.ranks import RankRing
from lmx.protocol.messages.specs import WorkerSpec
from lmx.protocol.wire.endpoints import RunDirectory

LOOPBACK: Final = "127.0.0.1"
_ANY_PORT: Final = 9


def free_address(address: str) -> str:
    """Return ``ADDRESS:PORT`` with a port that nobody listens on now. Another program may take it
    before mlx does: then the load fails, and is tried again. Raises ``OSError`` if the address is
    none of this machine."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return f"{address}:{probe.getsockname()[1]}"


def reach(host: str) -> tuple[str, str]:
    """Return the IPv4 address of another machine, and that of this one by which it is reached from
    there. Looks the name up, and sends nothing there. Raises ``OSError``."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, _ANY_PORT))
        return probe.getpeername()[0], probe.getsockname()[0]


def ring_environment(worker: WorkerSpec, ring: RankRing, rank: int) -> dict[str, str]:
    """Write the file of a rank, and return the variables that mlx reads when the group is made."""
    file = RunDirectory(Path(worker.run_dir)).ring_file(worker.instance, rank)
    found = {"MLX_RANK": str(rank)}
    if ring.rdma_devices:
        file.write_text(json.dumps([[name or None for name in row] for row in ring.rdma_devices]))
        # Rank 0 listens there until all have exchanged what RDMA needs to begin.
        return found | {"MLX_IBV_DEVICES": str(file), "MLX_JACCL_COORDINATOR": ring.addresses[0]}
    file.write_text(json.dumps([[address] for address in ring.addresses]))
    return found | {"MLX_HOSTFILE": str(file)}

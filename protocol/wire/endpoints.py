"""Where the sockets are: ``ipc://`` paths in a run directory that only its owner can enter. The ids
of instances, epochs and requests are made here too; they are unique without coordination.
"""

import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path

from lmx.protocol.errors import ErrorCode, OperationError

SOCKET_PATH_LIMIT_BYTES = 103
"""macOS's limit for a unix socket path (Linux: 107). The smaller one holds everywhere."""

_LONGEST_NAME = "w-00000000"


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The run directory and the endpoints in it. It holds no open file."""

    path: Path

    @property
    def control(self) -> str:
        """The supervisor's ROUTER socket. The router, the CLI and workers connect to it."""
        return f"ipc://{self.control_socket}"

    @property
    def events(self) -> str:
        """The supervisor's XPUB socket. The router subscribes to it."""
        return f"ipc://{self.events_socket}"

    @property
    def control_socket(self) -> Path:
        return self.path / "control"

    @property
    def events_socket(self) -> Path:
        return self.path / "events"

    def worker(self, instance: str) -> str:
        """Return the endpoint of a worker's ROUTER socket. One DEALER of each router connects to
        it. No second process ever uses it."""
        return f"ipc://{self.worker_socket(instance)}"

    def worker_socket(self, instance: str) -> Path:
        """Return the file behind :meth:`worker`, for removal once the worker has exited."""
        return self.path / f"w-{instance}"

    def ring_file(self, instance: str, rank: int) -> Path:
        """Return the file that names the ports of a divided model's ranks while their group is
        made. Each rank has one of its own."""
        return self.path / f"r-{instance}-{rank}"

    def ring_files(self, instance: str) -> list[Path]:
        """Return those that are there, for removal once the worker has exited."""
        return list(self.path.glob(f"r-{instance}-*"))

    def check_length(self) -> None:
        """Raise :class:`OperationError` when the path is too long for a unix socket."""
        longest = len(os.fsencode(self.path / _LONGEST_NAME))
        if longest > SOCKET_PATH_LIMIT_BYTES:
            raise OperationError(
                ErrorCode.CONFIG_INVALID,
                f"{self.path} is too long for unix sockets ({longest} bytes with a socket's "
                f"name, {SOCKET_PATH_LIMIT_BYTES} allowed): set LMX_HOME to a shorter path",
            )

    def prepare(self) -> None:
        """Make the directory with mode 0700 and check that sockets fit into it.

        Raises :class:`OperationError` when the path is too long for a unix socket, or the directory
        belongs to another user.
        """
        self.check_length()
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        info = self.path.stat()
        if info.st_uid != os.geteuid():
            raise OperationError(
                ErrorCode.CONFIG_INVALID,
                f"{self.path} belongs to another user: set LMX_HOME to a folder of your own",
            )
        if stat.S_IMODE(info.st_mode) != 0o700:
            self.path.chmod(0o700)


_REQUEST_ID_LIMIT = 128


def router_identity(pid: int) -> bytes:
    """Return the name by which the supervisor's control socket knows a router."""
    return f"r:{pid}".encode()


def new_instance_id() -> str:
    """Return a new worker instance id: 8 hex digits.

    An instance id names one worker process for ever. It is part of the path of the worker's socket.
    A path must never be used twice, because a DEALER would deliver what it had queued for the old
    process to the new one.
    """
    return secrets.token_hex(4)


def new_epoch() -> str:
    """Return a new supervisor epoch. The epoch changes each time a supervisor process starts."""
    return secrets.token_hex(4)


def new_request_id() -> str:
    """Return a new request id, as sent back in ``X-Request-Id``."""
    return f"req_{secrets.token_hex(12)}"


def accept_request_id(offered: str | None) -> str:
    """Return the client's own request id if it is fit for logs and headers, else a new one.

    It is fit if it has 1 to 128 printable ASCII characters and no spaces.
    """
    if (
        offered
        and len(offered) <= _REQUEST_ID_LIMIT
        and all("!" <= character <= "~" for character in offered)
    ):
        return offered
    return new_request_id()

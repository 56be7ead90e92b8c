"""The socket on which the API listens. The supervisor holds it, so that it outlives routers."""

import errno
import http.client
import os
import socket
import sys
from typing import Final

import structlog

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.supervisor.config.schema import ServerConfig

log = structlog.get_logger()

_ANSWER_S: Final = 0.5


def bind(server: ServerConfig, last_port: int) -> socket.socket:
    """Return a listening socket. If "any port" is configured, it has ``last_port`` (0: any port).

    Raises ``OSError`` when the address can't be bound. macOS lets two programs listen on one
    port if one of them does on all addresses, and the other on one; it is an error here too.
    """
    if sys.platform == "darwin" and server.port and _answers(server.host, server.port):
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((server.host, server.port or last_port))
        listener.listen(1024)
        listener.setblocking(False)
    except (OSError, TypeError, ValueError) as error:
        listener.close()
        if isinstance(error, OSError):
            raise
        raise OSError(errno.EINVAL, "no machine can have that name") from error
    return listener


def check_free(server: ServerConfig) -> None:
    """Look whether lmx could listen now. Raises :class:`OperationError` (address_unavailable)."""
    try:
        bind(server, 0).close()
    except OSError as error:
        raise cannot_listen(server, error, by_lmx=lmx_answers(server)) from error


def _answers(host: str, port: int) -> bool:
    """Return whether somebody listens on a port of this machine. All addresses lead to it too."""
    try:
        with socket.create_connection((host, port), _ANSWER_S):
            return True
    except (OSError, UnicodeError):  # UnicodeError: no machine can have the name.
        return False


def lmx_answers(server: ServerConfig) -> bool:
    """Return whether an lmx answers at an address. It waits for the answer."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=_ANSWER_S)
    try:
        connection.request("GET", "/version")
        return connection.getresponse().headers.get("Server") == "lmx"
    except (OSError, UnicodeError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def cannot_listen(
    server: ServerConfig, error: OSError, *, by_lmx: bool = False, own_host: str | None = None
) -> OperationError:
    """Return the error for an address that can't be bound, ``by_lmx`` if another lmx has it.
    ``own_host`` is the host on which this lmx listens on the same port."""
    host, port = server.host, server.port
    other_port = "choose another one (--port, or server.port in lmx.yaml)"
    match error.errno:
        case errno.EADDRINUSE if own_host is not None:
            why = (
                f"lmx itself has the port, on {own_host}. Run `lmx stop` and then `lmx start`, or "
                f"{other_port}"
            )
        case errno.EADDRINUSE:
            who, end = "another program", "End that program"
            if by_lmx:
                who, end = "the lmx of another LMX_HOME", "End it by `lmx stop` with that LMX_HOME"
            why = f"{who} listens there. {end}, or {other_port}"
        case errno.EADDRNOTAVAIL:
            why = (
                f"this machine has no address {host} now. Choose one that it has (--host, or "
                "server.host in lmx.yaml)"
            )
        case errno.EACCES:
            why = f"only root may use this port. Instead {other_port}"
        case _:
            why = f"{error.strerror or error}. Instead {other_port}"
    return OperationError(
        ErrorCode.ADDRESS_UNAVAILABLE, f"can't listen on port {port} of {host}: {why}"
    )


def inherited(descriptor: int | None, server: ServerConfig) -> socket.socket | None:
    """Return the listening socket that the program before this one left. Returns None if there is
    none, or if it listens on another port than the configured one."""
    if descriptor is None:
        return None
    listener = socket.socket(fileno=descriptor)
    listener.set_inheritable(False)
    port = listener.getsockname()[1]
    if server.port in (0, port):
        return listener
    log.warning("listener.moved", port=port)
    listener.close()
    return None

"""The socket on which the API listens. The supervisor holds it, so that it outlives routers."""

from __future__ import annotations

import socket

import structlog

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.supervisor.config.schema import ServerConfig

log = structlog.get_logger()


def bind(server: ServerConfig, last_port: int) -> socket.socket:
    """Return a listening socket. If "any port" is configured, it has ``last_port`` (0: any port).

    Raises ``OSError`` when the address can't be bound.
    """
    family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((server.host, server.port or last_port))
        listener.listen(1024)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def cannot_listen(server: ServerConfig, error: OSError) -> OperationError:
    """Return the error for an address that can't be bound."""
    return OperationError(
        ErrorCode.CONFIG_INVALID,
        f"can't listen on {server.host}:{server.port}: {error.strerror}. Stop what uses it, or "
        "choose another server.port (LMX_SERVER_PORT)",
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
    log.warning("listener.elsewhere", port=port)
    listener.close()
    return None

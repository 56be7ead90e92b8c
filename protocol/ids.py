"""Identifiers: who made a thing, unique without coordination."""

from __future__ import annotations

import secrets

_REQUEST_ID_LIMIT = 128


def new_instance_id() -> str:
    """Return a fresh worker instance id: 8 hex digits.

    An instance id names one worker process for good. It is part of the worker's socket
    path, and a path is never used twice: a DEALER would deliver what it had queued for the
    old process to the new one.
    """
    return secrets.token_hex(4)


def new_epoch() -> str:
    """Return a fresh supervisor epoch: changes each time a supervisor process starts."""
    return secrets.token_hex(4)


def new_request_id() -> str:
    """Return a fresh request id, as sent back in ``X-Request-Id``."""
    return f"req_{secrets.token_hex(12)}"


def accept_request_id(offered: str | None) -> str:
    """Return the client's own request id when it is fit for logs and headers, else a new one.

    Fit means 1 to 128 printable ASCII characters without spaces.
    """
    if (
        offered
        and len(offered) <= _REQUEST_ID_LIMIT
        and all("!" <= character <= "~" for character in offered)
    ):
        return offered
    return new_request_id()

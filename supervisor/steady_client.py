"""Asks the supervisor over and over, also over its restarts: for what watches or waits."""

from __future__ import annotations

import time
from typing import Any, Final

from lmx.protocol import control
from lmx.protocol.errors import ErrorCode, OperationError
from lmx.supervisor.control_client import ControlClient
from lmx.supervisor.home import Home

_PATIENCE_S: Final = 30.0
"""A supervisor that starts anew takes over what runs within a few seconds."""
_ANSWER_S: Final = 3.0
"""A question that a supervisor took along into its restart is never answered."""
_AWAY: Final = (ErrorCode.NOT_RUNNING, ErrorCode.SUPERVISOR_UNAVAILABLE)


class SteadyClient:
    """For questions that change nothing, because they may be asked twice. A context manager.
    ``answered``: the supervisor gave an answer a moment ago, so it is there or comes back."""

    def __init__(
        self, home: Home, patience_s: float = _PATIENCE_S, *, answered: bool = False
    ) -> None:
        self._home = home
        self._patience_s = patience_s
        self._client: ControlClient | None = None
        self._answered_at_s = time.monotonic() if answered else None

    def __enter__(self) -> SteadyClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._drop()

    def ask(self, question: Any) -> Any | None:
        """Return the reply, or None while there is nobody to give one.

        Raises :class:`OperationError` when it is denied, when nobody answers the first
        question, and when nobody has answered for the patience given.
        """
        if self._client is None:
            self._client = ControlClient(self._home, _ANSWER_S)
        try:
            reply = self._client.ask(question)
        except OperationError as error:
            if error.code not in _AWAY:
                raise
            self._drop()
            if (
                self._answered_at_s is None
                or time.monotonic() > self._answered_at_s + self._patience_s
            ):
                raise
            return None
        self._answered_at_s = time.monotonic()
        return reply

    def status(self) -> dict[str, Any] | None:
        """Return the status, or None while there is nobody to give it; raises as ``ask``."""
        reply: control.Status | None = self.ask(control.GetStatus())
        return reply.status if reply is not None else None

    def _drop(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

"""How this supervisor was started: enough to read its configuration again, and to put another
program in its own place that goes on where it stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.supervisor.config import Config
from lmx.supervisor.handover import Handover

_CHECK_S: Final = 8.0
"""Less than the CLI waits for an answer."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """``config`` is the file that was named on the command line. ``handover`` is None unless
    this program was put in another one's place."""

    config: Path | None
    detached: bool
    read_config: Callable[[], Config]
    handover: Handover | None = None

    def arguments(self, handover: Handover) -> list[str]:
        """Return the command line of the program that goes on from ``handover``."""
        detached = ["--detached"] if self.detached else []
        return [*_program(), "up", *self._config_option(), *detached, *handover.options]

    def replace_program(self, handover: Handover) -> NoReturn:
        """Put a new program in this one's place; pid, parent and children stay. Only once the
        event loop has ended. Raises ``OSError`` if it can't be run."""
        for descriptor in (handover.lock_fd, handover.listen_fd):
            if descriptor is not None:
                os.set_inheritable(descriptor, True)
        arguments = self.arguments(handover)
        os.execv(arguments[0], arguments)  # noqa: S606  no shell is what is wanted

    async def check_successor(self) -> None:
        """Have the program that is installed now read the configuration, so that none is put in
        this one's place that can't start. Raises :class:`OperationError` with what it says."""
        check = await asyncio.create_subprocess_exec(
            *_program(), "config", "check", *self._config_option(),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        try:
            said, _ = await asyncio.wait_for(check.communicate(), _CHECK_S)
        except TimeoutError as error:
            message = f"the installed lmx did not read the configuration within {_CHECK_S:g} s"
            raise OperationError(ErrorCode.INTERNAL, message) from error
        finally:
            await _end(check)
        if check.returncode != 0:
            raise OperationError(
                ErrorCode.CONFIG_INVALID,
                "the installed lmx can't start, so this one goes on: "
                + said.decode("utf-8", "replace").strip()[-2000:],
            )

    def _config_option(self) -> list[str]:
        return [] if self.config is None else ["--config", str(self.config)]


def _program() -> list[str]:
    return [sys.executable, "-P", "-m", "lmx.supervisor"]


async def _end(process: Any) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()

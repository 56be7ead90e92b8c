"""Kills a worker's helping process in the middle of an exchange."""

import os
import signal
from typing import Any

import psutil
import pytest

from lmx.worker.isolation.child import Exchange
from tests.support.rigs.rig import wait_until


def kill_at_work(monkeypatch: pytest.MonkeyPatch, number: signal.Signals, times: int) -> list[int]:
    """Send a signal to the process of the next ``times`` exchanges, once each has its request.
    Return the list of those processes, which is filled later."""
    killed: list[int] = []
    send = Exchange.send

    def sending(exchange: Exchange, data: Any) -> None:
        if exchange._pid not in killed and len(killed) < times:
            killed.append(exchange._pid)
            os.kill(exchange._pid, number)
            # Not waited for here: how it ended is for its owner to find out.
            process = psutil.Process(exchange._pid)
            wait_until(lambda: process.status() == psutil.STATUS_ZOMBIE, "the process's end")
        send(exchange, data)

    monkeypatch.setattr(Exchange, "send", sending)
    return killed

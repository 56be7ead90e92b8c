"""An address that can't be had: what is said, and what to do."""

import errno
import os
import re
import socket
import sys

import pytest

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.supervisor.config.schema import ServerConfig
from lmx.supervisor.sockets.listening import cannot_listen, check_free
from tests.support.fakes.one_answer import one_answer


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EADDRINUSE, "another program listens there. End that program, or choose another"),
        (errno.EADDRNOTAVAIL, "this machine has no address 127.0.0.1 now"),
        (errno.EACCES, "only root may use this port"),
        (errno.EMFILE, "Too many open files"),
    ],
)
def test_each_reason_has_its_own_advice(number: int, words: str) -> None:
    error = cannot_listen(ServerConfig(), OSError(number, os.strerror(number)))
    assert error.code is ErrorCode.ADDRESS_UNAVAILABLE
    assert words in error.message


def test_a_port_is_free_or_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = ServerConfig(port=taken.getsockname()[1])
        with pytest.raises(OperationError, match="another program"):
            check_free(server)
    check_free(server)


@pytest.mark.parametrize("host", ["192.168.1..5", ".local", f"{'a' * 64}.local", "ü..local"])
@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_a_name_that_no_machine_can_have_is_an_address_that_cannot_be_had(
    host: str, platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(OperationError, match=f"can't listen on port 1 of {re.escape(host)}: "):
        check_free(ServerConfig(host=host, port=1))


def test_another_lmx_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmx.supervisor.sockets.listening._ANSWER_S", 90.0)
    with (
        one_answer(200, b"", **{"Server": "lmx", "Content-Length": "0"}) as (url, _),
        pytest.raises(OperationError, match="the lmx of another LMX_HOME listens there"),
    ):
        check_free(ServerConfig(port=int(url.rpartition(":")[2])))

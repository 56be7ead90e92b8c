"""What ``doctor`` says of machines that it can't reach, or that are not what ranks need."""

from typing import Any

import pytest

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.host.same_model import versions
from lmx.protocol.messages.peers import Peer, PeerKind
from lmx.supervisor.cli.doctor import ranks
from lmx.supervisor.cli.doctor.lines import Verdict
from lmx.supervisor.config.schema import Config
from lmx.supervisor.sockets.http_client import HttpClient

CONFIG = Config.model_validate(
    {"models": [{"id": name, "source": "/m", "hosts": ["studio"]} for name in ("a", "b")]}
)
STUDIO = Peer("studio", "http://127.0.0.1:9")


def test_each_machine_has_a_line_and_one_that_is_no_peer_is_bad() -> None:
    assert ranks.check_ranks(Config(), [STUDIO]) == []
    for peers in ([], [Peer("studio", "http://127.0.0.1:9", PeerKind.OPENAI)]):
        (line,) = ranks.check_ranks(CONFIG, peers)
        assert (line.name, line.verdict, line.measured) == (
            "ranks", Verdict.BAD, "it is no peer of this machine",
        )  # fmt: skip
    (line,) = ranks.check_ranks(CONFIG, [STUDIO])
    assert (line.verdict, "can be reached" in line.measured) == (Verdict.BAD, True)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"port": 9, "versions": versions(), "time_s": 1.0}, "port 9 can't be reached"),
        ({"port": 9, "versions": {"lmx": "9.9"}, "time_s": 1.0}, "9.9 there"),
        ({"port": 9, "time_s": 1.0}, "an answer that is invalid"),
        (OperationError(ErrorCode.PERMISSION_DENIED, "the key was revoked"), "the key was revoked"),
    ],
)
def test_what_is_wrong_is_said(monkeypatch: pytest.MonkeyPatch, answer: Any, said: str) -> None:
    def call(*_: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(HttpClient, "call", call)
    (line,) = ranks.check_ranks(CONFIG, [STUDIO])
    assert (line.verdict, said in line.measured) == (Verdict.BAD, True), line
    assert line.fix

"""The RDMA devices of a Mac, from what ``ibv_devices`` prints."""

import subprocess
from typing import Any

import pytest

from lmx.protocol.host import rdma

PRINTED = """\
    device          \t   node GUID
    ------          \t----------------
    rdma_en2        \te0c5797d9c8fac05
    rdma_en3        \te1c5797d9c8fac05
"""


def test_the_devices_are_those_with_a_name_of_rdma() -> None:
    assert rdma.parse_devices(PRINTED) == ("rdma_en2", "rdma_en3")
    assert rdma.parse_devices("    device   node GUID\n    ------   -------\n") == ()
    assert rdma.parse_devices("") == ()


@pytest.mark.parametrize(
    ("wanted", "there", "said"),
    [
        (["rdma_en2"], ("rdma_en2", "rdma_en3"), None),
        (["rdma_en2", "rdma_en9"], ("rdma_en2", "rdma_en3"), "no rdma_en9, but rdma_en2, rdma_en3"),
        (["rdma_en2"], (), "rdma_ctl enable"),
    ],
)
def test_what_is_missing_is_said(wanted: list[str], there: tuple[str, ...], said: str) -> None:
    found = rdma.missing(wanted, there)
    assert found is None if said is None else said in (found or "")


@pytest.mark.parametrize(
    "error",
    [FileNotFoundError(), PermissionError(), subprocess.TimeoutExpired("ibv_devices", 10.0)],
)
def test_a_machine_without_the_command_has_none(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def run(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(subprocess, "run", run)
    assert rdma.read_devices() == ()

"""The addresses that people are told: ones that they can use."""

import ipaddress
from dataclasses import replace

import pytest
from click.testing import CliRunner

from lmx.supervisor.cli import main
from lmx.supervisor.cli.serving import background
from lmx.supervisor.control.status import with_urls
from lmx.supervisor.sockets.reachable import api_urls, ordered, own_addresses
from tests.support.fakes.admin_lines import reported_status

FOUND = (
    ("lo", "127.0.0.1"),
    ("lo", "::1"),
    ("docker0", "172.17.0.1"),
    ("en0", "fe80::1"),
    ("en0", "fd00::2"),
    ("en0", "192.168.1.5"),
    ("en5", "169.254.3.4"),
    ("utun3", "100.64.0.9"),
)
ORDERED = ("192.168.1.5", "100.64.0.9", "fd00::2", "172.17.0.1")


def test_addresses_that_others_can_reach_come_first() -> None:
    assert ordered(FOUND) == ORDERED
    # A Mac's virtual machines, and the cable to another Mac.
    assert ordered([("bridge100", "10.0.0.1"), ("bridge0", "10.0.1.1")]) == ("10.0.1.1", "10.0.0.1")
    for address in own_addresses():
        assert not ipaddress.ip_address(address).is_loopback


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", ["http://127.0.0.1:8000/v1"]),
        ("::1", ["http://[::1]:8000/v1"]),
        ("mac.example", ["http://mac.example:8000/v1"]),
        (
            "0.0.0.0",
            [
                "http://192.168.1.5:8000/v1", "http://100.64.0.9:8000/v1",
                "http://172.17.0.1:8000/v1", "http://127.0.0.1:8000/v1",
            ],
        ),
        (
            "::",
            [
                "http://192.168.1.5:8000/v1", "http://100.64.0.9:8000/v1",
                "http://[fd00::2]:8000/v1", "http://172.17.0.1:8000/v1",
                "http://127.0.0.1:8000/v1",
            ],
        ),
    ],
)  # fmt: skip
def test_a_listener_on_all_addresses_is_shown_as_those_there_are(
    host: str, expected: list[str]
) -> None:
    assert list(api_urls(host, 8000, lambda: ORDERED)) == expected
    before = replace(reported_status().router, host=host, port=8000)
    router = with_urls(before, lambda: ORDERED, "studio")
    assert (router.url, list(router.urls)) == (expected[0], expected)
    assert router.announced_url == "http://studio.local:8000/v1"


def test_a_machine_without_a_network_is_shown_as_loopback() -> None:
    assert api_urls("0.0.0.0", 8000, lambda: ()) == ("http://127.0.0.1:8000/v1",)


def test_start_prints_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    urls = list(api_urls("0.0.0.0", 8000, lambda: ORDERED))
    status = reported_status(router={"url": urls[0], "urls": urls})
    monkeypatch.setattr(background, "start_background", lambda *_: status)
    said = CliRunner().invoke(main.main, ["start"]).output
    assert "at http://192.168.1.5:8000/v1\n" in said
    assert "also at http://100.64.0.9:8000/v1, " in said
    assert "0.0.0.0" not in said

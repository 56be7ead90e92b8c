"""What ``doctor`` says of RDMA and of the Thunderbolt bridge, from what macOS's commands print."""

from pathlib import Path
from typing import Any

import pytest

from lmx.supervisor.cli.doctor import mac
from lmx.supervisor.cli.doctor.lines import Verdict
from lmx.supervisor.cli.doctor.links import Bridge, bridge_name, check_links, parse_bridge
from lmx.supervisor.config.schema import Config
from tests.support.fakes.fake_machine import Linux, Mac

OK, NOTE, WARNING, BAD = Verdict
PORTS = """
Hardware Port: Ethernet
Device: en0
Ethernet Address: 1c:f6:4c:00:00:01

Hardware Port: Thunderbolt Bridge
Device: bridge0
Ethernet Address: 36:d2:51:00:00:02

Hardware Port: Thunderbolt 1
Device: en2
Ethernet Address: 36:d2:51:00:00:03

VLAN Configurations
===================
"""
ACTIVE = """\
bridge0: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\toptions=63<RXCSUM,TXCSUM,TSO4,TSO6>
\tether 36:d2:51:00:00:02
\tinet 169.254.10.1 netmask 0xffff0000 broadcast 169.254.255.255
\tConfiguration:
\t\tid 0:0:0:0:0:0 priority 0 hellotime 0 fwddelay 0
\tmember: en2 flags=3<LEARNING,DISCOVER>
\t        ifmaxaddr 0 port 9 priority 0 path cost 0
\tnd6 options=201<PERFORMNUD,DAD>
\tmedia: <unknown type>
\tstatus: active
"""
INACTIVE = ACTIVE.replace("status: active", "status: inactive")
JOINED = {"ports": PORTS, "interface": ACTIVE}
IDLE = {"ports": PORTS, "interface": INACTIVE}
DOWN = ACTIVE.replace("UP,", "")
DEVICES = """\
    device          \t   node GUID
    ------          \t----------------
    rdma_en2        \te0c5797d9c8fac05
    rdma_en3        \te1c5797d9c8fac05
"""
HOSTS = {"id": "m", "source": "/m", "hosts": ["studio"]}
RDMA = HOSTS | {"backend": "jaccl", "rdma_devices": [[None, "rdma_en3"], ["rdma_en5", None]]}
NAMES = {
    "ports": "/usr/sbin/networksetup", "interface": "/sbin/ifconfig",
    "devices": "ibv_devices",
}  # fmt: skip


class Printing(Mac):
    """A Mac whose commands print what a test says."""

    def run(self, *command: str, limit_s: float = 10.0) -> str | None:
        printed = {NAMES[name]: text for name, text in self.changes.items()}
        return printed.get(command[0]) or super().run(*command, limit_s=limit_s)


def found(model: dict[str, Any] | None, **printed: str) -> dict[str, tuple[Verdict, str]]:
    config = Config.model_validate({"models": [] if model is None else [model]})
    lines = check_links(Printing(Path("/Users/me"), **printed), config)
    assert all(bool(line.fix) == (line.verdict is not OK) for line in lines)
    return {line.name: (line.verdict, line.measured) for line in lines}


def test_the_bridge_is_read_from_what_macos_prints() -> None:
    assert bridge_name(PORTS) == "bridge0"
    assert bridge_name(PORTS.replace("Thunderbolt Bridge", "Wi-Fi")) is None
    assert parse_bridge(PORTS, ACTIVE) == Bridge("bridge0", True, "169.254.10.1")
    assert parse_bridge(PORTS, INACTIVE) == Bridge("bridge0", False, "169.254.10.1")
    assert parse_bridge(PORTS, DOWN) == Bridge("bridge0", False, "169.254.10.1")
    assert parse_bridge(PORTS, "") == Bridge("bridge0", False, "")
    assert parse_bridge("", ACTIVE) is None


@pytest.mark.parametrize(
    ("model", "printed", "expected"),
    [
        (None, {}, {}),
        (None, IDLE, {}),
        (HOSTS, {}, {}),
        (HOSTS, JOINED, {"thunderbolt": OK}),
        (HOSTS, IDLE, {"thunderbolt": NOTE}),
        (
            HOSTS,
            {**JOINED, "interface": ACTIVE.replace("inet ", "inet6 ")},
            {"thunderbolt": WARNING},
        ),
        (HOSTS, {"devices": DEVICES}, {"rdma": OK}),
        (RDMA, {"devices": DEVICES}, {"rdma": OK}),
        (RDMA, {"devices": DEVICES.replace("en3", "en4")}, {"rdma": BAD}),
        (RDMA, {**JOINED, "devices": DEVICES}, {"rdma": OK, "thunderbolt": WARNING}),
        (RDMA, IDLE, {"rdma": BAD, "thunderbolt": OK}),
    ],
)
def test_links_are_judged_by_what_the_models_need(
    model: dict[str, Any] | None, printed: dict[str, str], expected: dict[str, Verdict]
) -> None:
    assert {name: verdict for name, (verdict, _) in found(model, **printed).items()} == expected


def test_what_is_there_is_shown() -> None:
    shown = found(HOSTS, **JOINED, devices=DEVICES)
    assert shown["rdma"][1] == "rdma_en2, rdma_en3"
    assert shown["thunderbolt"][1] == "bridge0 is active (169.254.10.1)"
    assert "not rdma_en3" in found(RDMA)["rdma"][1]


def test_a_firewall_that_blocks_all_is_in_the_way_of_ranks() -> None:
    ranks = Config.model_validate({"server": {"host": "127.0.0.1"}, "models": [HOSTS]})
    alone = Config.model_validate({"server": {"host": "127.0.0.1"}})
    for state, verdict, fix in ((0, OK, ""), (1, WARNING, "unblockapp"), (2, WARNING, "blockall")):
        line = mac.check_firewall(state, ranks)
        assert (line.verdict, fix in line.fix) == (verdict, True)
        assert mac.check_firewall(state, alone).verdict is OK


def test_a_machine_with_neither_has_no_lines() -> None:
    assert check_links(Linux(Path("/home/me")), Config()) == []

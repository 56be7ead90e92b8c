"""What ``doctor`` checks of the cables between Macs that have ranks of one model: RDMA over
Thunderbolt, and the Thunderbolt bridge. What the commands print is parsed by pure functions."""

import re
from dataclasses import dataclass
from typing import Final

from lmx.protocol.host import rdma
from lmx.supervisor.cli.doctor.lines import Line, Verdict
from lmx.supervisor.cli.doctor.system import System
from lmx.supervisor.config.schema import Config


@dataclass(frozen=True, slots=True)
class Bridge:
    """The Thunderbolt bridge, by which Thunderbolt's ports are one network interface."""

    interface: str
    active: bool
    """Whether a machine is at the other end of a cable."""
    address: str
    """Its IPv4 address; empty: it has none."""


def parse_bridge(ports: str, interface: str) -> Bridge | None:
    """Return the bridge. ``ports`` is what ``networksetup -listallhardwareports`` prints,
    ``interface`` what ``ifconfig`` says of :func:`bridge_name`."""
    name = bridge_name(ports)
    if name is None:
        return None
    address = re.search(r"^\s+inet (\S+)", interface, re.MULTILINE)
    up = re.search(r"flags=\w+<([^>]*)>", interface)
    active = re.search(r"^\s+status: active", interface, re.MULTILINE) is not None
    return Bridge(
        name,
        active and up is not None and "UP" in up[1].split(","),
        address[1] if address else "",
    )


def bridge_name(ports: str) -> str | None:
    """Return the interface of the Thunderbolt bridge, as ``bridge0``; None: there is none."""
    found = re.search(r"^Hardware Port: Thunderbolt Bridge\s*\nDevice: (\S+)", ports, re.MULTILINE)
    return found[1] if found else None


def check_links(system: System, config: Config) -> list[Line]:
    """Return the findings. There are none where there is neither RDMA nor a bridge, and no model
    needs one."""
    hosts = any(model.hosts for model in config.models)
    wanted = [model.rdma_devices[0] for model in config.models if model.rdma_devices]
    names = sorted({name for row in wanted for name in row if name is not None})
    there = rdma.parse_devices(system.run(*rdma.COMMAND) or "")
    ports = system.run("/usr/sbin/networksetup", "-listallhardwareports") or ""
    interface = system.run("/sbin/ifconfig", bridge_name(ports) or "bridge0") or ""
    lines = [check_rdma(names, there)] if names or there else []
    bridge = parse_bridge(ports, interface)
    if bridge is not None and (hosts or bridge.active):
        lines.append(check_bridge(bridge, hosts=hosts, with_rdma=bool(names)))
    return lines


def check_rdma(wanted: list[str], there: tuple[str, ...]) -> Line:
    """Judge the RDMA devices that the models' ``rdma_devices`` name, for this Mac."""
    assumption = "the devices of rdma_devices are there"
    problem = rdma.missing(wanted, there)
    if problem is None:
        return Line("rdma", assumption, ", ".join(there), Verdict.OK)
    fix = (
        "correct rdma_devices in lmx.yaml"
        if there
        else "start macOS Recovery, and run `rdma_ctl enable` in its Terminal"
    )
    measured = f"there are {', '.join(there)}" if there else "there are none (ibv_devices)"
    return Line("rdma", assumption, f"{measured}, not {', '.join(wanted)}", Verdict.BAD, fix)


def check_bridge(bridge: Bridge, *, hosts: bool, with_rdma: bool) -> Line:
    """Judge the Thunderbolt bridge. Ranks over TCP are faster over it than over anything else, and
    RDMA has to do without it."""
    name: Final = "thunderbolt"
    assumption = "ranks over TCP have a cable, those over RDMA no bridge"
    if not bridge.active:
        measured = f"{bridge.interface} joins this Mac to no other"
        if with_rdma or not hosts:
            return Line(name, assumption, measured, Verdict.OK)
        fix = "join the Macs by a Thunderbolt cable, and pair them by the bridge's addresses"
        return Line(name, assumption, measured, Verdict.NOTE, fix)
    measured = f"{bridge.interface} is active ({bridge.address or 'no IPv4 address'})"
    if with_rdma:
        fix = f"sudo ifconfig {bridge.interface} down, on all of the Macs"
        return Line(name, assumption, measured, Verdict.WARNING, fix)
    if not bridge.address:
        fix = "give it an IPv4 address: System Settings > Network > Thunderbolt Bridge"
        return Line(name, assumption, measured, Verdict.WARNING, fix)
    return Line(name, assumption, measured, Verdict.OK)

"""What ``doctor`` checks of the machines among which models are divided (``hosts``): the way to
each of them, measured, and what computes there."""

import socket
import statistics
import time
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import psutil

from lmx.protocol.errors import OperationError
from lmx.protocol.host.same_model import versions
from lmx.protocol.messages.peers import Peer, PeerKind
from lmx.supervisor.cli.doctor.lines import Line, Verdict
from lmx.supervisor.config.schema import Config
from lmx.supervisor.sockets.http_client import UNREADABLE, HttpClient, Remote

_LIMIT_S: Final = 8.0
_ROUNDS: Final = 50
_BULK_BYTES: Final = 16 * 1024**2
_SLOW_S: Final = 0.002
"""A step of 64 layers exchanges sums 128 times: a quarter of a second for each token."""

_CLOCK_S: Final = 5.0


def check_ranks(config: Config, peers: Sequence[Peer]) -> list[Line]:
    """Return a line for each machine that has ranks of this one's models."""
    names = dict.fromkeys(name for model in config.models for name in model.hosts)
    known = {peer.name: peer for peer in peers if peer.kind is PeerKind.LMX}
    return [_check(name, known.get(name)) for name in names]


def _check(name: str, peer: Peer | None) -> Line:
    assumption = f"{name} is paired, of the same versions, and near"
    if peer is None:
        fix = "pair the machines: `lmx pair`"
        return Line("ranks", assumption, "it is no peer of this machine", Verdict.BAD, fix)
    try:
        return _measured(peer, assumption)
    except OperationError as error:
        fix = f"see `lmx status --all`, and whether {name} runs this version of lmx"
        return Line("ranks", assumption, error.message, Verdict.BAD, fix)
    except UNREADABLE:
        fix = f"update lmx on {name}"
        return Line("ranks", assumption, "it gave an answer that is invalid", Verdict.BAD, fix)


def _measured(peer: Peer, assumption: str) -> Line:
    asked_s = time.time()
    found: Any = HttpClient(Remote.of(peer), _LIMIT_S).call("POST", "/admin/ranks/probe", {})
    clock_s = float(found["time_s"]) - (asked_s + time.time()) / 2
    theirs = {str(package): str(version) for package, version in found["versions"].items()}
    other = [f"{package} {own} here, {theirs.get(package)} there"
             for package, own in versions().items() if theirs.get(package) != own]  # fmt: skip
    if other:
        fix = "install the same versions on both machines"
        return Line("ranks", assumption, "; ".join(other), Verdict.BAD, fix)
    host = urlsplit(peer.url).hostname or ""
    try:
        latency_s, bytes_per_s, interface = _way(host, int(found["port"]))
    except OSError as error:
        return Line(
            "ranks",
            assumption,
            f"its port {found['port']} can't be reached ({error.strerror or error})",
            Verdict.BAD,
            f"have the firewall of {peer.name}, and what is between, let all ports pass that come "
            "from this machine",
        )
    measured = (
        f"{latency_s * 1000:.2f} ms there and back, {bytes_per_s / 1e6:.0f} MB/s"
        f"{f' over {interface}' if interface else ''}, its clock is {clock_s:+.1f} s"
    )
    fix, verdict = "", Verdict.OK
    if abs(clock_s) > _CLOCK_S:
        verdict, fix = Verdict.NOTE, "set the clocks, so that the logs can be compared"
    if latency_s > _SLOW_S:
        verdict, fix = Verdict.WARNING, "join the machines by a cable: each token waits for the way"
    return Line("ranks", assumption, measured, verdict, fix)


def _way(host: str, port: int) -> tuple[float, float, str]:
    """Return the time there and back, in seconds, the bytes that come in a second, and the network
    interface. Raises ``OSError``."""
    with socket.create_connection((host, port), timeout=_LIMIT_S) as way:
        way.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        took = []
        for _ in range(_ROUNDS):
            began_s = time.perf_counter()
            way.sendall(b"p")
            if not way.recv(1):
                raise ConnectionResetError("it was closed")
            took.append(time.perf_counter() - began_s)
        began_s, left = time.perf_counter(), _BULK_BYTES
        way.sendall(b"b")
        while left:
            part = way.recv(min(left, 1 << 20))
            if not part:
                raise ConnectionResetError("it was closed")
            left -= len(part)
        rate = _BULK_BYTES / (time.perf_counter() - began_s)
        return statistics.median(took), rate, _interface(way.getsockname()[0])


def _interface(address: str) -> str:
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address == address for one in addresses):
            return f"{name} (a Thunderbolt bridge)" if name.startswith("bridge") else name
    return ""

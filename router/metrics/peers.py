"""The metrics of peers. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


@dataclass(frozen=True, slots=True)
class PeerFigures:
    """What is counted of one peer by this router."""

    name: str
    answers: bool
    running: int
    forwarded: Mapping[str, int]
    """Requests that have ended, by what became of them."""


def peer_families(peers: Sequence[PeerFigures]) -> Iterator[Metric]:
    """Yield the metrics of all peers; none without peers."""
    if not peers:
        return
    up = GaugeMetricFamily(
        "lmx_peer_up", "Whether the machine answers, and gets requests.", labels=["peer"]
    )
    running = GaugeMetricFamily(
        "lmx_peer_requests_running",
        "Requests that this machine has forwarded there and that are under way.",
        labels=["peer"],
    )
    ended = CounterMetricFamily(
        "lmx_peer_requests",
        "Requests that were forwarded there and have ended, by why the machine was chosen, or "
        "`refused` for what is wrong with them, `left` by their client or after too long, "
        "or `failed`, all three before anything came; or `lost` after that.",
        labels=["peer", "outcome"],
    )
    for peer in peers:
        up.add_metric([peer.name], peer.answers)
        running.add_metric([peer.name], peer.running)
        for outcome, count in sorted(peer.forwarded.items()):
            ended.add_metric([peer.name, outcome], count)
    yield from (up, running, ended)

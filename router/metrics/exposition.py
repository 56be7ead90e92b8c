"""Writes everything that is measured in Prometheus' text format. It holds no figures itself."""

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import psutil
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from lmx.protocol.messages.inventory import Downloads
from lmx.protocol.messages.snapshot import ModelView
from lmx.protocol.messages.status import SystemStatus
from lmx.protocol.states import DownloadStatus
from lmx.router.metrics.families import batch_families, request_families, status_families
from lmx.router.metrics.peers import PeerFigures, peer_families
from lmx.router.metrics.requests import Reading


@dataclass(frozen=True, slots=True)
class Scrape:
    """What one scrape shows."""

    version: str

    status: SystemStatus | None
    """The supervisor's status now; None if it does not answer."""

    models: Sequence[ModelView]
    """The models as this router knows them."""

    waiting: Mapping[str, int]
    """The requests that wait in this router, by model."""

    downloads: Downloads | None
    """The supervisor's downloads; None if it does not answer."""

    requests: Reading

    batches: Mapping[str, int] | None = None
    """The batches that have not ended, by status; None if their records can't be read."""

    batch_lines_left: int = 0
    """How many of their lines have no result."""

    peers: Sequence[PeerFigures] = ()


@dataclass(frozen=True, slots=True)
class _Families(Collector):
    families: tuple[Metric, ...]

    def collect(self) -> Iterable[Metric]:
        return self.families


def exposition(scrape: Scrape) -> bytes:
    """Return a scrape as text, with figures of this process. It reads files of the system and takes
    milliseconds if there are many models, so it must not run on an event loop."""
    return generate_latest(
        _Families(
            (
                *_about(scrape.version),
                *status_families(scrape.status, scrape.models, scrape.waiting),
                *_of_downloads(scrape.downloads),
                *request_families(scrape.requests),
                *_of_batches(scrape),
                *peer_families(scrape.peers),
            )
        )
    )


def _about(version: str) -> Iterator[Metric]:
    yield InfoMetricFamily(
        "lmx_build", "What runs.", value={"version": version, "python": platform.python_version()}
    )
    process = psutil.Process()
    times = process.cpu_times()
    yield CounterMetricFamily(
        "process_cpu_seconds", "CPU time of the router.", value=times.user + times.system
    )
    yield GaugeMetricFamily(
        "process_resident_memory_bytes", "Memory of the router.", value=process.memory_info().rss
    )
    yield GaugeMetricFamily(
        "process_start_time_seconds",
        "When the router started, in seconds since 1970.",
        value=process.create_time(),
    )
    yield GaugeMetricFamily("process_open_fds", "The router's open files.", value=process.num_fds())


def _of_batches(scrape: Scrape) -> Iterable[Metric]:
    if scrape.batches is None:
        return ()
    return batch_families(scrape.batches, scrape.batch_lines_left)


def _of_downloads(known: Downloads | None) -> Iterator[Metric]:
    if known is None:
        return
    family = GaugeMetricFamily(
        "lmx_downloads", "Downloads that are known, by where they are.", labels=["status"]
    )
    for status in DownloadStatus:
        family.add_metric([status.value], sum(each.status is status for each in known.downloads))
    yield family

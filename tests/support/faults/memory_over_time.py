"""The memory of processes that must not grow: samples over time, their slope with its error, and a
plot. Only :class:`MemorySamples` looks at processes."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

import psutil

from tests.support.faults.chaos_watch import Observer
from tests.support.rigs.rig import Rig

_EVERY_S: Final = 5.0
_WARM_SHARE: Final = 0.25
"""Of the samples: a process that has just begun fills its caches."""

_WIDTH, _HEIGHT, _EDGE = 640, 260, 50
_COLOURS: Final = ("#0a7d5a", "#c2570c")


@dataclass(frozen=True, slots=True)
class Slope:
    """How a line through samples rises, in MiB an hour, and the standard error of that."""

    mib_per_h: float
    error_mib_per_h: float

    @property
    def rises(self) -> bool:
        """Whether it rises by more than chance explains, and by more than 2 MiB an hour."""
        return self.mib_per_h - 3 * self.error_mib_per_h > 2.0

    def __str__(self) -> str:
        return f"{self.mib_per_h:+.1f} ± {self.error_mib_per_h:.1f} MiB/h"


def slope(samples: Sequence[tuple[float, float]]) -> Slope:
    """Return the slope of samples (seconds, MiB) by least squares, after the first quarter of them.

    Samples that follow one another are alike, which makes the error of the textbook too small. So
    the samples are averaged in ten spans of time first, and these are what the line goes through.
    """
    kept = samples[int(len(samples) * _WARM_SHARE) :]
    size = max(1, len(kept) // 10)
    spans = [kept[at : at + size] for at in range(0, len(kept) - size + 1, size)]
    if len(spans) < 3:
        raise ValueError("too few samples for a slope")
    hours = [sum(at for at, _ in span) / len(span) / 3600 for span in spans]
    sizes = [sum(mib for _, mib in span) / len(span) for span in spans]
    middle_h, middle = sum(hours) / len(hours), sum(sizes) / len(sizes)
    spread = sum((hour - middle_h) ** 2 for hour in hours)
    pairs = list(zip(hours, sizes, strict=True))
    rise = sum((hour - middle_h) * (mib - middle) for hour, mib in pairs) / spread
    left = sum((mib - middle - rise * (hour - middle_h)) ** 2 for hour, mib in pairs)
    return Slope(rise, math.sqrt(left / (len(pairs) - 2) / spread))


class MemorySamples(Observer):
    """Measures router and supervisor every five seconds. A router that was replaced begins samples
    of its own; the longest are judged."""

    def __init__(self, lmx: Rig) -> None:
        super().__init__(_EVERY_S)
        self.lmx = lmx
        self.samples: dict[tuple[str, int], list[tuple[float, float]]] = {}

    def longest(self) -> dict[str, list[tuple[float, float]]]:
        """Return the samples of the router and of the supervisor that lived longest."""
        found: dict[str, list[tuple[float, float]]] = {}
        for (name, _), samples in self.samples.items():
            if len(samples) > len(found.get(name, [])):
                found[name] = samples
        return found

    def _look_on(self) -> None:
        began_s = time.monotonic()
        while self._is_due():
            status = self.lmx.status()
            for name in ("router", "supervisor"):
                pid = status[name]["pid"]
                try:
                    mib = psutil.Process(pid).memory_info().rss / 1024**2
                except (psutil.NoSuchProcess, TypeError):
                    continue  # It is being replaced.
                at_s = time.monotonic() - began_s
                self.samples.setdefault((name, pid), []).append((at_s, mib))


def plot(samples: Mapping[str, Sequence[tuple[float, float]]], title: str) -> str:
    """Return an SVG: memory in MiB over minutes, one line for each process."""
    last_s = max((points[-1][0] for points in samples.values()), default=1.0)
    most = 1.1 * max((mib for points in samples.values() for _, mib in points), default=1.0)
    wide, high = _WIDTH - 2 * _EDGE, _HEIGHT - 2 * _EDGE
    drawn = [f'<text x="10" y="20" font-weight="600">{escape(title)}</text>']
    for share in (0.0, 0.5, 1.0):
        x, y = _EDGE + share * wide, _HEIGHT - _EDGE - share * high
        drawn.append(f'<text x="5" y="{y:.0f}">{share * most:.0f}</text>')
        label = f"{share * last_s / 60:.0f} min"
        drawn.append(f'<text x="{x:.0f}" y="{_HEIGHT - _EDGE + 18}">{label}</text>')
        drawn.append(
            f'<line x1="{_EDGE}" x2="{_WIDTH - _EDGE}" y1="{y:.0f}" y2="{y:.0f}" stroke="#8884"/>'
        )
    for (name, points), colour in zip(samples.items(), _COLOURS, strict=False):
        places = " ".join(
            f"{_EDGE + wide * at / last_s:.1f},{_HEIGHT - _EDGE - high * mib / most:.1f}"
            for at, mib in points
        )
        drawn.append(f'<polyline points="{places}" fill="none" stroke="{colour}"/>')
        y = _HEIGHT - _EDGE - high * points[-1][1] / most - 6
        drawn.append(f'<text x="{_EDGE + 5}" y="{y:.0f}" fill="{colour}">{name}, MiB</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" font-family="system-ui" font-size="12" fill="#888">'
        + "".join(drawn)
        + "</svg>\n"
    )

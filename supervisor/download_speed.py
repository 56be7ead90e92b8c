"""How fast bytes come, over the last seconds. Pure."""

from __future__ import annotations

from collections import deque
from typing import Final

WINDOW_S: Final = 5.0


def note_bytes(samples: deque[tuple[float, int]], now_s: float, done_bytes: int) -> None:
    """Take how much is there now; forget what is older than the window, but for the last of it.
    A download that begins a file anew goes back: its speed counts from there."""
    if samples and done_bytes < samples[-1][1]:
        samples.clear()
    samples.append((now_s, done_bytes))
    while len(samples) > 2 and samples[1][0] <= now_s - WINDOW_S:
        samples.popleft()


def bytes_per_s(samples: deque[tuple[float, int]], now_s: float) -> float:
    """Return the speed within the window that ends now, 0 where nothing came within it."""
    if len(samples) < 2 or samples[-1][0] <= now_s - WINDOW_S:
        return 0.0
    since_s, before_bytes = samples[0]
    took_s = max(now_s, samples[-1][0]) - since_s
    return (samples[-1][1] - before_bytes) / took_s if took_s > 0 else 0.0

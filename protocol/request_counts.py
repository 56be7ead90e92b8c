"""What routers have counted, so that it outlives each of them: from a router to the supervisor,
which adds up what those before it had, and back."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KeyUsage:
    """What one key has used of its limits: requests and tokens of the last minute as they count
    now, and requests that are under way."""

    requests: float = 0.0
    tokens: float = 0.0
    running: int = 0

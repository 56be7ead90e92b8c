"""What a worker has done over its life, as its beats tell it."""

from __future__ import annotations

from dataclasses import dataclass, field

from lmx.protocol.control import Saved
from lmx.protocol.data import Timings, Usage


@dataclass(slots=True)
class Totals:
    """Counts of generations. ``requests``: those that were accepted."""

    requests: int = 0
    tokens: int = 0
    saved: Saved = field(default_factory=Saved)

    def finished(self, usage: Usage, timings: Timings) -> None:
        """Count what a generation didn't have to compute."""
        saved = self.saved
        self.saved = Saved(
            saved.prompt_tokens + usage.prompt_tokens,
            saved.cached_tokens + usage.cached_tokens,
            saved.drafted_tokens + timings.drafted_tokens,
            saved.accepted_tokens + timings.accepted_tokens,
        )

"""The memory ledger: which bytes of the budget are taken, by whom. Pure bookkeeping.

Bytes are reserved before a worker is spawned, corrected when it measures more, and
released only when its exit was observed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lmx.protocol.errors import ErrorCode, UnavailableError


@dataclass(slots=True)
class Ledger:
    """Reservations in bytes by worker instance. Never evicts: that is for its owner to do."""

    budget_bytes: int
    _reserved: dict[str, int] = field(default_factory=dict)

    @property
    def reserved_bytes(self) -> int:
        """All bytes that are taken; may exceed the budget after corrections and adoptions."""
        return sum(self._reserved.values())

    @property
    def free_bytes(self) -> int:
        """What a new worker may still take; never negative."""
        return max(0, self.budget_bytes - self.reserved_bytes)

    def reserved_by(self, instance: str) -> int:
        """Return the bytes one instance holds, 0 if none."""
        return self._reserved.get(instance, 0)

    def reserve(self, instance: str, need_bytes: int, model_id: str) -> None:
        """Take bytes for a worker that is about to be spawned.

        Raises :class:`UnavailableError` (insufficient_memory) with the figures when they do
        not fit; nothing is taken then.
        """
        if need_bytes > self.free_bytes:
            raise UnavailableError(
                ErrorCode.INSUFFICIENT_MEMORY,
                f"{model_id} needs {format_bytes(need_bytes)}, "
                + (
                    f"which is more than the whole budget of {format_bytes(self.budget_bytes)}: "
                    "raise memory.budget_bytes or memory.budget_fraction, lower the model's "
                    "context_length, or choose a smaller model"
                    if need_bytes > self.budget_bytes
                    else f"but only {format_bytes(self.free_bytes)} of "
                    f"{format_bytes(self.budget_bytes)} are free: unload another model first"
                ),
                retry_after_s=30.0,
            )
        self._reserved[instance] = need_bytes

    def adopt(self, instance: str, held_bytes: int) -> None:
        """Enter bytes that a running worker holds already, whether or not they fit."""
        self._reserved[instance] = held_bytes

    def raise_to(self, instance: str, measured_bytes: int) -> None:
        """Correct a reservation upwards by what was measured.

        Never downwards: the estimate has room for KV caches that are not full yet, and the
        worker was told that it may use it. Unknown instances are a bug.
        """
        self._reserved[instance] = max(self._reserved[instance], measured_bytes)

    def release(self, instance: str) -> int:
        """Give back what an instance held (its exit was observed); returns the bytes."""
        return self._reserved.pop(instance, 0)


def format_bytes(count: float) -> str:
    """Return bytes for a person, in binary units: ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"

"""The memory ledger: which bytes of the budget are taken, and by which worker. This module is pure.

Bytes are reserved before a worker is started, corrected by what it measures, and held after its
exit until they are seen to have come back. Bytes that do not come back stay as missing.
:func:`budget_bytes` says how much of a machine models may have.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lmx.protocol.errors import ErrorCode, UnavailableError

if TYPE_CHECKING:
    # Every command that prints bytes imports this module, and would wait for pydantic.
    from lmx.supervisor.config.schema import MemoryConfig


@dataclass(slots=True)
class Ledger:
    """Bytes by worker instance. The ledger never evicts: its owner does.

    Each instance is in at most one of three states: reserved (the worker lives), returning (it
    exited, and its memory is being watched for), missing (its memory did not come back).
    """

    budget_bytes: int
    _reserved: dict[str, int] = field(default_factory=dict)
    _returning: dict[str, int] = field(default_factory=dict)
    _missing: dict[str, int] = field(default_factory=dict)

    @property
    def reserved_bytes(self) -> int:
        """What living workers have. It may exceed the budget after corrections and adoptions."""
        return sum(self._reserved.values())

    @property
    def returning_bytes(self) -> int:
        """What exited workers had and was not seen to come back yet."""
        return sum(self._returning.values())

    @property
    def missing_bytes(self) -> int:
        """What exited workers did not give back."""
        return sum(self._missing.values())

    @property
    def held_bytes(self) -> int:
        """All bytes that no new worker can have. They are at most the budget, unless a measurement,
        an adoption or a smaller budget has changed that."""
        return self.reserved_bytes + self.returning_bytes + self.missing_bytes

    @property
    def free_bytes(self) -> int:
        """What a new worker may still take. It is never negative."""
        return max(0, -self.excess_bytes)

    @property
    def excess_bytes(self) -> int:
        """By how much the held bytes exceed the budget. A negative value is what is free."""
        return self.held_bytes - self.budget_bytes

    def reserved_by(self, instance: str) -> int:
        """Return the bytes that one instance holds, 0 if it holds none."""
        return self._reserved.get(instance, 0)

    def reserve(self, instance: str, need_bytes: int, model_id: str) -> None:
        """Take bytes for a worker that is about to be started.

        Raises :class:`UnavailableError` (insufficient_memory) with the figures when they do not
        fit, and takes nothing then.
        """
        if need_bytes > self.free_bytes:
            raise UnavailableError(
                ErrorCode.INSUFFICIENT_MEMORY,
                f"{model_id} needs {format_bytes(need_bytes)}, but only "
                f"{format_bytes(self.free_bytes)} of {format_bytes(self.budget_bytes)} are free",
                retry_after_s=30.0,
            )
        self._reserved[instance] = need_bytes

    def adopt(self, instance: str, held_bytes: int) -> None:
        """Enter bytes that a running worker holds already, whether or not they fit."""
        self._reserved[instance] = held_bytes

    def correct(self, instance: str, corrected_bytes: int) -> None:
        """Set what an instance holds, up or down, once its load was measured. An unknown instance
        is a bug."""
        if instance not in self._reserved:
            raise KeyError(instance)
        self._reserved[instance] = corrected_bytes

    def raise_to(self, instance: str, measured_bytes: int) -> None:
        """Correct a reservation upwards by what was measured while it works.

        It is never corrected downwards: the reservation has room for KV caches that are not full
        yet, and the worker may use it. An unknown instance is a bug.
        """
        self._reserved[instance] = max(self._reserved[instance], measured_bytes)

    def exited(self, instance: str) -> int:
        """Hold an exited instance's bytes as returning, and return how many they are."""
        held_bytes = self._reserved.pop(instance, 0)
        self._returning[instance] = held_bytes
        return held_bytes

    def settle(self, instance: str, missing_bytes: int) -> int:
        """Free what an exited instance had, except what is missing of it, and return the bytes that
        became free. No more can be missing than the instance had. An unknown instance has none."""
        had_bytes = self._returning.pop(instance, 0) + self._missing.pop(instance, 0)
        still_bytes = min(max(0, missing_bytes), had_bytes)
        if still_bytes:
            self._missing[instance] = still_bytes
        return had_bytes - still_bytes

    def release(self, instance: str) -> int:
        """Free what was reserved for an instance whose process was never started, and return the
        bytes."""
        return self._reserved.pop(instance, 0)


def format_bytes(count: float) -> str:
    """Return bytes for a person, in binary units: ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


_USUAL_FRACTION: Final = 0.75
_GIB: Final = 1024**3

_GPU_SLACK_BYTES: Final = _GIB
"""What is left to the GPU for the screen and for what it also computes."""

_SMALL_MAC_BYTES: Final = 24 * _GIB
_SMALL_MAC_RESERVE_BYTES: Final = 4 * _GIB


def budget_bytes(
    memory: MemoryConfig, total_bytes: int, working_set_bytes: int | None = None
) -> int:
    """Return the budget of a machine with ``total_bytes``: the configured bytes, else the
    configured fraction, else three quarters, and in any case no more than leaves the system's
    reserve. It is never negative.

    On a Mac it is also no more than the GPU may have (``working_set_bytes``) less a slack, and that
    is the budget if none is configured. The reserve of a small Mac is 4 GiB at least.
    """
    reserve_bytes = int(memory.os_reserve_bytes)
    gpu_bytes = total_bytes
    if working_set_bytes is not None:
        gpu_bytes = working_set_bytes - _GPU_SLACK_BYTES
        if total_bytes <= _SMALL_MAC_BYTES:
            reserve_bytes = max(reserve_bytes, _SMALL_MAC_RESERVE_BYTES)
    if memory.budget_bytes is not None:
        intended_bytes = int(memory.budget_bytes)
    elif memory.budget_fraction is not None:
        intended_bytes = int(total_bytes * memory.budget_fraction)
    elif working_set_bytes is not None:
        intended_bytes = gpu_bytes
    else:
        intended_bytes = int(total_bytes * _USUAL_FRACTION)
    return max(0, min(intended_bytes, gpu_bytes, total_bytes - reserve_bytes))

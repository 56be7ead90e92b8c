"""Divides the engine's time among the rows. Pure.

A step that reads a prompt belongs to that prompt's row. Any other step belongs to the rows that
decode, in equal parts.
"""


class ComputeShares:
    """What a step costs here does not depend on the number of rows: the part of a row that decodes
    is how much the sum of all equal parts has grown since it began."""

    def __init__(self) -> None:
        self._part_s = 0.0
        self._began_s: dict[int, float] = {}
        self._read_s: dict[int, float] = {}

    def add(self, step_s: float, read: int | None) -> None:
        """Count a step, in which the prompt of the row ``read`` was read, or rows decoded."""
        if read is not None:
            self._read_s[read] = self._read_s.get(read, 0.0) + step_s
        elif self._began_s:
            self._part_s += step_s / len(self._began_s)

    def decodes(self, sequence_id: int) -> None:
        """Note that a row decodes from the next step on."""
        self._began_s[sequence_id] = self._part_s

    def end(self, sequence_id: int) -> float:
        """Forget a row, and return its part in seconds; 0 for a row that is not known."""
        began_s = self._began_s.pop(sequence_id, self._part_s)
        return self._part_s - began_s + self._read_s.pop(sequence_id, 0.0)

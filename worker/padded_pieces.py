"""Cutting many sequences into batches for one forward pass each. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def cut(lengths: Sequence[int], limit_tokens: int) -> list[list[int]]:
    """Return the indexes of sequences, in batches of at most ``limit_tokens``, padding included.

    Alike lengths go together, the shortest first. One that is longer than the limit goes alone.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        # Sorted, so that this one is as long as the whole batch becomes.
        if not batches or (len(batches[-1]) + 1) * lengths[index] > limit_tokens:
            batches.append([])
        batches[-1].append(index)
    return batches

"""The prompts that are being read, and the decision which of them is read next.

The prompt with the least left to read comes first, so that a short request does not wait for a long
one. So that none starves, every fourth chunk is for the prompt that has waited longest: a prompt of
any length gets at least a quarter of the reading. A prompt with the same beginning as an earlier
one waits until that one has read the shared part, and then finds it in the prefix cache.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from lmx.worker.engine import RowRequest
from lmx.worker.mlx.decoding.prefill import PromptPrefill
from lmx.worker.mlx.media.spans import media_of

_OLDEST_EVERY: Final = 4
"""One of this many chunks is for the oldest prompt."""

_LEAST_SHARED_TOKENS: Final = 64
"""Waiting for another prompt is not worth it if they share fewer tokens than this."""


@dataclass(slots=True, eq=False)
class Prompt:
    """A row whose prompt is being read, or waits for that."""

    row: RowRequest
    arrived_s: float
    tokens: npt.NDArray[np.int32]
    """Its tokens, or for one with media the keys by which it is compared
    (:meth:`lmx.worker.mlx.media.spans.MediaSpans.keyed`)."""
    shared: dict[int, int]
    """How many of its first tokens it shares with each earlier prompt, by that prompt's row."""
    twin: int | None
    """The row of an earlier prompt that is the same: this row takes over the result of its
    reading."""
    prefill: PromptPrefill | None = None
    """None: it has not begun."""
    checkpoints: Sequence[int] = ()
    """After how many tokens its cache is to be kept."""

    @property
    def done_tokens(self) -> int:
        """How many tokens its cache holds."""
        return self.prefill.done_tokens if self.prefill is not None else 0


class PromptQueue:
    """The prompts of rows that don't decode yet. Engine thread.

    ``found`` returns how many of a prompt's first tokens the prefix cache has. If it is None,
    nothing is kept, and prompts share only the part that all of them have. It is called again after
    each chunk, and not at each step, because it compares all tokens.
    """

    def __init__(self, found: Callable[[Prompt], int | None]) -> None:
        self._found = found
        self._prompts: dict[int, Prompt] = {}
        self._turn = 0
        # The results of `found` until the next chunk, by row.
        self._found_tokens: dict[int, int | None] = {}
        self._may_begin: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._prompts)

    def add(self, row: RowRequest) -> None:
        """Add a row."""
        media = media_of(row)
        tokens = np.asarray(row.prompt, np.int32) if media is None else media.keyed(row.prompt)
        shared: dict[int, int] = {}
        twin = None
        for other in self._prompts.values():
            if other.row.cache_salt != row.cache_salt:
                continue
            common = _common_tokens(tokens, other.tokens)
            if twin is None and common == len(tokens) == len(other.tokens):
                twin = other.row.row_id if _are_alike(row, other.row) else None
            if row.prompt_logprobs is None and common >= _LEAST_SHARED_TOKENS:
                # The last token of a prompt is never taken from the cache.
                shared[other.row.row_id] = min(common, len(tokens) - 1)
        self._prompts[row.row_id] = Prompt(row, time.monotonic(), tokens, shared, twin)

    def remove(self, row_id: int) -> Prompt | None:
        """Remove a row and return its prompt; None: it is not here."""
        prompt = self._prompts.pop(row_id, None)
        self._found_tokens.pop(row_id, None)
        self._may_begin.discard(row_id)
        orphans = [other for other in self._prompts.values() if other.twin == row_id]
        for other in self._prompts.values():
            # The row may come back with the same id, and then waits for those that came before.
            other.shared.pop(row_id, None)
        for orphan in orphans:
            orphan.twin = orphans[0].row.row_id if orphan is not orphans[0] else None
        return prompt

    def take_twins(self, prompt: Prompt) -> list[RowRequest]:
        """Remove and return the rows with the same prompt as this one that have not begun."""
        row_id = prompt.row.row_id
        twins = [other.row for other in self._prompts.values() if other.twin == row_id]
        for row in twins:
            self.remove(row.row_id)
        return twins

    def next(self, can_begin: Callable[[Prompt], bool]) -> Prompt | None:
        """Return the prompt of which a chunk is to be read; None: there is none, or all of them
        wait.

        ``can_begin`` returns whether a prompt that has not begun may do so now.
        """
        ready = []
        for row_id, prompt in self._prompts.items():
            if prompt.prefill is None and row_id not in self._may_begin:
                if self._leaders(prompt) or not can_begin(prompt):
                    continue
                self._may_begin.add(row_id)
            ready.append(prompt)
        if not ready:
            return None
        oldest = self._turn % _OLDEST_EVERY == _OLDEST_EVERY - 1
        return ready[0] if oldest else min(ready, key=self._left_tokens)

    def read(self) -> None:
        """Note that a chunk was read."""
        self._turn += 1
        self._found_tokens.clear()
        self._may_begin.clear()

    def stops(self, prompt: Prompt) -> list[int]:
        """Return after how many tokens the prompt's cache is to be kept: for its next turn, and
        where a prompt that waits for it takes another way."""
        return sorted({*prompt.checkpoints, *self._ends(prompt)})

    def _ends(self, prompt: Prompt) -> set[int]:
        """Return the lengths that the waiting prompts share with this one."""
        row_id = prompt.row.row_id
        return {
            other.shared[row_id]
            for other in self._prompts.values()
            if row_id in other.shared and prompt in self._leaders(other)
        }

    def _leaders(self, prompt: Prompt) -> list[Prompt]:
        """Return the prompts that will read a part which this one would read as well."""
        if prompt.prefill is not None:
            return []
        if prompt.twin is not None:
            return [self._prompts[prompt.twin]]
        here = [
            (self._prompts[row_id], common)
            for row_id, common in prompt.shared.items()
            if row_id in self._prompts
        ]
        found = self._known_found(prompt) if here else None
        if found is None:
            return []
        # What a leader has read is kept when it has come as far as both go, and not before.
        return [
            leader
            for leader, common in here
            if leader.done_tokens < common and common - found >= _LEAST_SHARED_TOKENS
        ]

    def _left_tokens(self, prompt: Prompt) -> int:
        """Return how many tokens must be read before some row can go on: this one, or one that
        waits for it."""
        if prompt.prefill is not None:
            left = prompt.prefill.left_tokens
        else:
            left = len(prompt.tokens) - 1 - (self._known_found(prompt) or 0)
        return min([left, *(end - prompt.done_tokens for end in self._ends(prompt))])

    def _known_found(self, prompt: Prompt) -> int | None:
        row_id = prompt.row.row_id
        if row_id not in self._found_tokens:
            self._found_tokens[row_id] = self._found(prompt)
        return self._found_tokens[row_id]


def _are_alike(one: RowRequest, other: RowRequest) -> bool:
    """Return whether everything that is computed for one row's prompt is right for the other."""
    if one.beam is not None or other.beam is not None:
        return False
    return one.prompt_logprobs == other.prompt_logprobs


def _common_tokens(one: npt.NDArray[np.int32], other: npt.NDArray[np.int32]) -> int:
    length = min(len(one), len(other))
    differing = np.flatnonzero(one[:length] != other[:length])
    return int(differing[0]) if len(differing) else length

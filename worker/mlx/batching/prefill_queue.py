"""The prompts that are being read, and the decision which of them is read next.

The prompts of the lowest priority value come first, and of these the one with the least left to
read, so that a short request does not wait for a long one. So that none starves, every fourth chunk
is for the prompt that has waited longest: a prompt of any length and priority gets at least a
quarter of the reading when it is the oldest. A chunk may pause for a more urgent prompt: then the
quarter is one of the time, and turns are left out for what the oldest was read beyond that.

A prompt with the same beginning as an earlier one waits until that one has read the shared part,
and then finds it in the prefix cache. Until then the earlier one is as urgent as the one that waits
for it: an important prompt does not wait for one that is not read. A prompt does not wait for one
that itself waits, unless the two are the same: it may wait for a part that they do not share.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from lmx.protocol.messages.data import BACKGROUND_PRIORITY
from lmx.worker.engine.values import RereadPrompt, SequenceRequest
from lmx.worker.mlx.decoding.prefill import PromptPrefill
from lmx.worker.mlx.media.spans import media_of
from lmx.worker.mlx.prefix.tree import common_tokens

_OLDEST_EVERY: Final = 4
"""One of this many chunks is for the oldest prompt."""

_MOST_AHEAD_S: Final = 1.0
"""No more than this counts of what the oldest was read beyond its share: a machine that stood still
takes no turns from it for long."""

_LEAST_SHARED_TOKENS: Final = 64
"""Waiting for another prompt is not worth it if they share fewer tokens than this."""


@dataclass(slots=True, eq=False)
class Prompt:
    """A row whose prompt is being read, or waits for that."""

    row: SequenceRequest
    arrived_s: float
    tokens: npt.NDArray[np.int32]
    """Its tokens, or for one with media the keys by which it is compared
    (:meth:`lmx.worker.mlx.media.spans.MediaSpans.keyed`)."""
    shared: dict[int, int]
    """How many of its first tokens it shares with each earlier prompt, by that prompt's row."""
    duplicate_of: int | None
    """The row of an earlier prompt that is the same: this row takes over the result of its
    reading."""
    prefill: PromptPrefill | None = None
    """None: it has not begun."""
    checkpoints: Sequence[int] = ()
    """After how many tokens its cache is to be kept."""
    reread: RereadPrompt | None = None
    """Why much of it is computed although it had been before."""
    owed_s: float = 0.0
    """For how long it must be read before its chunk pauses for another prompt. Negative: in its
    turns as the oldest it was read for so long beyond its share."""

    @property
    def done_tokens(self) -> int:
        """How many tokens its cache holds."""
        return self.prefill.done_tokens if self.prefill is not None else 0


class Standing(NamedTuple):
    """What a prompt's place in the order follows from."""

    priority: int
    left_tokens: int
    """How many tokens must be read before its row can decode; ignored while it waits for
    others."""
    waits_for: Mapping[int, int]
    """How many tokens each prompt that it waits for must read until then, by that prompt's row."""


Urgency = tuple[int, int]
"""A priority value, and how many tokens must be read before some row of that value can decode. The
lowest is read first."""


def urgencies(standings: dict[int, Standing]) -> dict[int, Urgency]:
    """Return how urgent each prompt is, by row: as its own row makes it, or as a row that waits for
    it does. A prompt must stand behind those that it waits for. Pure."""
    found = {sequence_id: (one.priority, one.left_tokens) for sequence_id, one in standings.items()}
    for sequence_id, one in reversed(standings.items()):
        # All that wait for this one stand behind it, and have been here.
        priority, _ = found[sequence_id]
        for leader, tokens in one.waits_for.items():
            found[leader] = min(found[leader], (priority, tokens))
    return found


class PrefillQueue:
    """The prompts of rows that don't decode yet. Engine thread.

    ``found`` returns how many of a prompt's first tokens the prefix cache has. If it is None,
    nothing is kept, and prompts share only the part that all of them have. It is called again after
    each chunk, and not at each step, because it compares all tokens.
    """

    def __init__(self, found: Callable[[Prompt], int | None]) -> None:
        self._found = found
        self._prompts: dict[int, Prompt] = {}
        self._turn = 0
        self.is_passed = False
        """Whether another prompt is more urgent than the one that :meth:`next` returned last, which
        has its turn because it is the oldest."""
        self._oldest: int | None = None
        """The row of the oldest prompt that could be read when :meth:`next` was called last."""
        # The results of `found` until the next chunk, by row.
        self._found_tokens: dict[int, int | None] = {}
        self._may_begin: set[int] = set()
        # What waits for what, until a prompt comes, goes, or is read.
        self._waiting: dict[int, list[Prompt]] | None = None

    def __bool__(self) -> bool:
        return bool(self._prompts)

    @property
    def has_foreground(self) -> bool:
        """Whether there is a prompt that is none of the background."""
        return any(not prompt.row.background for prompt in self._prompts.values())

    def add(self, row: SequenceRequest) -> None:
        """Add a row."""
        media = media_of(row)
        tokens = np.asarray(row.prompt, np.int32) if media is None else media.keyed(row.prompt)
        shared: dict[int, int] = {}
        duplicate_of = None
        for other in self._prompts.values():
            if other.row.cache_salt != row.cache_salt:
                continue
            common = common_tokens(tokens, other.tokens)
            if duplicate_of is None and common == len(tokens) == len(other.tokens):
                duplicate_of = other.row.sequence_id if _are_alike(row, other.row) else None
            if row.prompt_logprobs is None and common >= _LEAST_SHARED_TOKENS:
                # The last token of a prompt is never taken from the cache.
                shared[other.row.sequence_id] = min(common, len(tokens) - 1)
        self._prompts[row.sequence_id] = Prompt(row, time.monotonic(), tokens, shared, duplicate_of)
        self._waiting = None

    def remove(self, sequence_id: int) -> Prompt | None:
        """Remove a row and return its prompt; None: it is not here."""
        self._waiting = None
        prompt = self._prompts.pop(sequence_id, None)
        self._found_tokens.pop(sequence_id, None)
        self._may_begin.discard(sequence_id)
        orphans = [other for other in self._prompts.values() if other.duplicate_of == sequence_id]
        for other in self._prompts.values():
            # The row may come back with the same id, and then waits for those that came before.
            other.shared.pop(sequence_id, None)
        for orphan in orphans:
            orphan.duplicate_of = orphans[0].row.sequence_id if orphan is not orphans[0] else None
        return prompt

    def pop_duplicates(self, prompt: Prompt) -> list[SequenceRequest]:
        """Remove and return the rows with the same prompt as this one that have not begun."""
        sequence_id = prompt.row.sequence_id
        duplicates = [
            other.row for other in self._prompts.values() if other.duplicate_of == sequence_id
        ]
        for row in duplicates:
            self.remove(row.sequence_id)
        return duplicates

    def next(self, can_begin: Callable[[Prompt], bool], *, held: bool = False) -> Prompt | None:
        """Return the prompt of which a chunk is to be read; None: there is none, or all of them
        wait.

        ``can_begin`` returns whether a prompt that has not begun may do so now. ``held``: those of
        the background are not read, except the part for which another one waits.
        """
        if held and not self.has_foreground:
            return None
        waits = self._waits()
        ready: dict[int, Prompt] = {}
        for sequence_id, prompt in self._prompts.items():
            if prompt.prefill is None and sequence_id not in self._may_begin:
                if waits[sequence_id] or not can_begin(prompt):
                    continue
                self._may_begin.add(sequence_id)
            ready[sequence_id] = prompt
        if not ready:
            return None
        urgency = urgencies(
            {
                sequence_id: Standing(
                    prompt.row.priority,
                    self._left_tokens(prompt) if sequence_id in ready else 0,
                    self._left_for(prompt, waits[sequence_id]),
                )
                for sequence_id, prompt in self._prompts.items()
            }
        )
        if held:
            ready = {
                sequence_id: prompt
                for sequence_id, prompt in ready.items()
                if urgency[sequence_id][0] < BACKGROUND_PRIORITY
            }
        if not ready:
            return None
        most_urgent = ready[min(ready, key=urgency.__getitem__)]
        self._oldest, oldest = next(iter(ready.items()))
        is_turn = self._turn % _OLDEST_EVERY == _OLDEST_EVERY - 1 and oldest.owed_s >= 0
        self.is_passed = is_turn and oldest is not most_urgent
        return oldest if is_turn else most_urgent

    def read(self, sequence_id: int | None = None, took_s: float = 0.0) -> None:
        """Note that a chunk of a prompt was read, or a part of one, which took so long."""
        oldest = None if self._oldest is None else self._prompts.get(self._oldest)
        if oldest is not None:
            oldest.owed_s = _owed_s(
                oldest.owed_s, took_s, is_own=sequence_id == self._oldest, is_passed=self.is_passed
            )
        self._turn += 1
        self._waiting = None
        self._found_tokens.clear()
        self._may_begin.clear()

    def stops(self, prompt: Prompt) -> list[int]:
        """Return after how many tokens the prompt's cache is to be kept: for its next turn, and
        where a prompt that waits for it takes another way."""
        sequence_id = prompt.row.sequence_id
        ends = {
            self._prompts[other].shared[sequence_id]
            for other, leaders in self._waits().items()
            if prompt in leaders and sequence_id in self._prompts[other].shared
        }
        return sorted({*prompt.checkpoints, *ends})

    def _waits(self) -> dict[int, list[Prompt]]:
        """Return for each prompt, by row and in their order, those that it waits for: earlier ones
        that will read a part which it would read as well."""
        if self._waiting is not None:
            return self._waiting
        waits: dict[int, list[Prompt]] = {}
        for sequence_id, prompt in self._prompts.items():
            waits[sequence_id] = [
                leader
                for leader in self._leaders(prompt)
                # With a duplicate it shares whatever that waits for.
                if not waits[leader.row.sequence_id]
                or leader.row.sequence_id == prompt.duplicate_of
            ]
        self._waiting = waits
        return waits

    def _leaders(self, prompt: Prompt) -> list[Prompt]:
        """Return the prompts that have not read a part which this one would read as well."""
        if prompt.prefill is not None:
            return []
        if prompt.duplicate_of is not None:
            return [self._prompts[prompt.duplicate_of]]
        here = [
            (self._prompts[sequence_id], common)
            for sequence_id, common in prompt.shared.items()
            if sequence_id in self._prompts
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
        """Return how many tokens must be read before the prompt's row can decode."""
        if prompt.prefill is not None:
            return prompt.prefill.left_tokens
        return len(prompt.tokens) - 1 - (self._known_found(prompt) or 0)

    def _left_for(self, prompt: Prompt, leaders: Iterable[Prompt]) -> dict[int, int]:
        """Return how many tokens each of the leaders must read before the prompt need not wait for
        it, by row."""
        # Short duplicates share no part that is worth being kept, but the end.
        ends = ((leader, prompt.shared.get(leader.row.sequence_id)) for leader in leaders)
        return {
            leader.row.sequence_id: (len(prompt.tokens) - 1 if end is None else end)
            - leader.done_tokens
            for leader, end in ends
        }

    def _known_found(self, prompt: Prompt) -> int | None:
        sequence_id = prompt.row.sequence_id
        if sequence_id not in self._found_tokens:
            self._found_tokens[sequence_id] = self._found(prompt)
        return self._found_tokens[sequence_id]


def _owed_s(owed_s: float, took_s: float, *, is_own: bool, is_passed: bool) -> float:
    """Return for how long the oldest prompt must be read, after something was read for ``took_s``:
    it (``is_own``) or another one. ``is_passed``: a more urgent one waited meanwhile."""
    if not is_own:
        return owed_s + took_s / (_OLDEST_EVERY - 1)
    if is_passed:
        return max(owed_s - took_s, -_MOST_AHEAD_S)
    # Nobody waited for it, so it pays what it is owed, and no more.
    return owed_s if owed_s <= 0 else max(0.0, owed_s - took_s)


def _are_alike(one: SequenceRequest, other: SequenceRequest) -> bool:
    """Return whether everything that is computed for one row's prompt is right for the other."""
    if one.beam is not None or other.beam is not None:
        return False
    # Where a prompt is read at once, it counts which of its tokens are of an answer.
    return (one.prompt_logprobs, one.generated_tokens) == (
        other.prompt_logprobs,
        other.generated_tokens,
    )

"""The index of stored prompts: a tree of token runs, shared by all prompts with the same beginning.

It only keeps the books: it does not look into segments, and it reads, writes and frees nothing.
Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]


@dataclass(slots=True, eq=False)
class Segment:
    """A run of tokens from ``start`` on, or, without tokens, a state of the model at ``start``.

    A segment begins within its parent's run or right after it; the parent's tokens after that point
    belong to other prompts. A segment in the tree is in memory, on disk, or on its way there.
    """

    segment_id: bytes
    parent: Segment | None
    start: int
    tokens: Tokens
    payload: Any | None = None
    """Its content; None if it isn't in memory."""
    nbytes: int = 0
    on_disk: bool = False
    used: int = 0
    """When it was used last, counted in touches of the tree. A parent's number is never below its
    child's."""
    children: Children = field(default_factory=lambda: Children())
    depth: int = 0

    @property
    def is_state(self) -> bool:
        """Whether it holds a state in place of a run."""
        return self.parent is not None and not len(self.tokens)


class Children:
    """The segments that grow from a segment. They are found by their start and their first token,
    because thousands of others may branch off from the beginning of a long conversation."""

    __slots__ = ("_runs", "states")

    def __init__(self) -> None:
        self.states: list[Segment] = []
        self._runs: dict[int, dict[int, list[Segment]]] = {}

    def __bool__(self) -> bool:
        return bool(self.states or self._runs)

    def __iter__(self) -> Iterator[Segment]:
        yield from self.states
        for runs in self._runs.values():
            for alike in runs.values():
                yield from alike

    def add(self, child: Segment) -> None:
        """Add a run or a state."""
        if child.is_state:
            self.states.append(child)
        else:
            self._runs.setdefault(child.start, {}).setdefault(int(child.tokens[0]), []).append(
                child
            )

    def remove(self, child: Segment) -> None:
        """Remove a child."""
        if child.is_state:
            self.states.remove(child)
            return
        runs = self._runs[child.start]
        alike = runs[int(child.tokens[0])]
        alike.remove(child)
        if not alike:
            del runs[int(child.tokens[0])]
        if not runs:
            del self._runs[child.start]

    def along(self, tokens: Tokens, length: int) -> Iterator[Segment]:
        """Yield the runs that begin with the right one of ``tokens``, after at most ``length`` of
        them."""
        for start, runs in self._runs.items():
            if start <= length and start < len(tokens):
                yield from runs.get(int(tokens[start]), ())


class Match(NamedTuple):
    """The segments that agree with some tokens, and how many tokens agree."""

    path: tuple[Segment, ...]
    length: int


class Hit(NamedTuple):
    """The segments from which ``length`` tokens can be restored: each segment's run is used up to
    the beginning of the next one."""

    path: tuple[Segment, ...]
    length: int
    state: Segment | None
    """The state; None for a model whose caches can be cut anywhere."""

    @property
    def segments(self) -> tuple[Segment, ...]:
        """All segments, in the order in which they are needed."""
        return self.path if self.state is None else (*self.path, self.state)


class PrefixTree:
    """The segments of all salts. Tokens are compared, not their hashes."""

    def __init__(self) -> None:
        self._roots: dict[bytes, Segment] = {}
        self._segments: dict[bytes, Segment] = {}
        self._resident: dict[bytes, Segment] = {}
        self._clock = 0

    def get(self, segment_id: bytes) -> Segment | None:
        """Return a segment, None when it isn't there."""
        return self._segments.get(segment_id)

    def match(self, tokens: Tokens, salt: str) -> list[Match]:
        """Return the paths that agree with ``tokens``, the longest first; none of them is empty.

        There is more than one only if two workers have cut the same prompt in different places.
        """
        root = self._roots.get(root_id(salt))
        found: list[Match] = []
        open_ways = [] if root is None else [(root, Match((), 0))]
        while open_ways:
            segment, way = open_ways.pop()
            ended = True
            for child in segment.children.along(tokens, way.length):
                end = child.start + common_tokens(child.tokens, tokens[child.start :])
                if end > way.length:
                    open_ways.append((child, Match((*way.path, child), end)))
                    ended = False
            if ended and way.path:
                found.append(way)
        return sorted(found, key=lambda way: -way.length)

    def add(self, parent: Segment, start: int, tokens: Tokens) -> Segment:
        """Add a run, or, without tokens, a state; ``start`` lies within the parent's run or at its
        end. Returns the existing one if there is one."""
        identity = segment_id(parent.segment_id, start, tokens)
        known = self._segments.get(identity)
        if known is not None:
            return known
        if parent.parent is None:
            self._roots.setdefault(parent.segment_id, parent)
        added = Segment(identity, parent, start, tokens, depth=parent.depth + 1)
        parent.children.add(added)
        self._segments[identity] = added
        return added

    def adopt(self, parent_id: bytes, start: int, tokens: Tokens) -> Segment | None:
        """Add a segment that was stored before; return None if its parent isn't there.

        A run that begins at 0 has no parent but its salt's root.
        """
        parent = self._segments.get(parent_id) if start else self._root(parent_id)
        if parent is None or (start and not parent.start < start <= _end(parent)):
            return None
        return self.add(parent, start, tokens)

    def root(self, salt: str) -> Segment:
        """Return the segment from which all runs of a salt grow."""
        return self._root(root_id(salt))

    def remove(self, segment: Segment) -> list[Segment]:
        """Remove a segment with all that grow from it; return them."""
        parent = segment.parent
        if parent is not None:
            parent.children.remove(segment)
            if parent.parent is None and not parent.children:
                del self._roots[parent.segment_id]
        removed = []
        waiting = [segment]
        while waiting:
            gone = waiting.pop()
            del self._segments[gone.segment_id]
            self._resident.pop(gone.segment_id, None)
            removed.append(gone)
            waiting.extend(gone.children)
        return removed

    def touch(self, segments: Sequence[Segment]) -> None:
        """Note that segments are in use, each with all segments from which it grows."""
        self._clock += 1
        for segment in segments:
            segment.used = self._clock

    def hold(self, segment: Segment, payload: Any) -> None:
        """Note that a segment of the tree is in memory."""
        segment.payload = payload
        self._resident[segment.segment_id] = segment

    def release(self, segment: Segment) -> None:
        """Note that a segment is not in memory any more."""
        segment.payload = None
        self._resident.pop(segment.segment_id, None)

    def coldest(self) -> Iterator[Segment]:
        """Yield the segments in memory, the least recently used first, children before parents.

        The cost depends only on those, and not on how many are on disk.
        """
        resident = self._resident.values()
        return iter(sorted(resident, key=lambda each: (each.used, -each.depth)))

    def _root(self, identity: bytes) -> Segment:
        known = self._roots.get(identity)
        return known or Segment(identity, None, 0, np.empty(0, np.int32))


def usable(match: Match, limit: int, *, cuttable: bool, resident: bool) -> Hit | None:
    """Return the longest part of a match, at most ``limit`` tokens, that can be restored.

    ``resident`` means: from memory only. A model that is not ``cuttable`` needs a state.
    """
    bounds = [segment.start for segment in match.path[1:]] + [match.length]
    path: list[Segment] = []
    best: Hit | None = None
    for segment, bound in zip(match.path, bounds, strict=True):
        if segment.start >= limit or (resident and segment.payload is None):
            break
        path.append(segment)
        length = min(bound, limit)
        if cuttable:
            best = Hit(tuple(path), length, None)
            continue
        states = [
            child
            for child in segment.children.states
            if child.start <= length and not (resident and child.payload is None)
        ]
        if states:
            state = max(states, key=lambda each: each.start)
            best = Hit(tuple(path), state.start, state)
    return best


def root_id(salt: str) -> bytes:
    """Return the identity of a salt's root."""
    return hashlib.blake2b(salt.encode(), digest_size=32, person=b"lmx prefix salt").digest()


def segment_id(parent_id: bytes, start: int, tokens: Tokens) -> bytes:
    """Return a cryptographic hash over the salt and all tokens up to the segment's end. So no
    tenant can construct a prompt that collides with another tenant's."""
    digest = hashlib.blake2b(parent_id, digest_size=32, person=b"lmx prefix run")
    digest.update(start.to_bytes(8, "little"))
    digest.update(tokens.astype("<i4").tobytes())
    return digest.digest()


def common_tokens(run: Tokens, tokens: Tokens) -> int:
    """Return how many tokens two runs have in common at their beginning."""
    length = min(len(run), len(tokens))
    if not length or run[0] != tokens[0]:
        return 0
    differs = run[:length] != tokens[:length]
    return int(differs.argmax()) if differs.any() else length


def _end(segment: Segment) -> int:
    return segment.start + len(segment.tokens)

"""Stores the KV caches of prompts, so that a prompt with the same beginning starts where they
differ.

It is a tree of token runs (:mod:`lmx.worker.mlx.prefix.tree`): the shared part of two prompts is
stored once, and a conversation's next turn adds only its new part. Keys and values can be cut
anywhere. Sliding windows and recurrent states can't be cut: they are kept as they were after
certain tokens.

Why not ``mlx_vlm.apc`` (0.7.10, tried): a file whose tail was lost gave wrong keys and values; the
engine waits for the disk at every prefill, and ``close`` waits without a limit; its hashes have 64
bits, by default Python's own, for which anyone can make collisions; queued writes are not within
the memory budget; each model has a disk budget of its own; at most two states are kept. Its cache
classes' snapshots are used.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import structlog

from lmx.protocol.messages.specs import PrefixCacheSpec
from lmx.worker.mlx.prefix.reread import Kept
from lmx.worker.mlx.prefix.state import CacheLayout
from lmx.worker.mlx.prefix.store import Payload, PrefixStore, payload_of
from lmx.worker.mlx.prefix.tree import Hit, Tokens, usable

log = structlog.get_logger()

# Fewer tokens aren't worth the copying: prefill takes them in one go with the rest.
_LEAST_TOKENS: Final = 16
# The longest run. So memory and disk space are given up, and files read, in pieces.
_RUN_TOKENS: Final = 512
# States are kept after this many tokens, after twice as many, and so on: at least half of
# what two prompts share is found, at the price of a few states for each prompt.
_FIRST_STATE_TOKENS: Final = 256
# If a prompt branches off from a stored one after this many tokens, a state is worth its price.
_LEAST_BRANCH_TOKENS: Final = 64
# Before a prompt's end: the next turn's prompt may lack what opens the answer ("<think>").
_OPENING_TOKENS: Final = 8
# mlx-vlm's caches grow by this many tokens.
_CAPACITY_STEP: Final = 256
# How long a lookup waits for the disk.
_READ_WAIT_S: Final = 0.5
_CLOSE_S: Final = 3.0

TokenIds = Sequence[int] | Tokens
"""An array spares a long prompt the copying, which takes longer than finding it."""

AtomicSpans = Sequence[tuple[int, int]]
"""Where parts of a prompt begin and end that must be computed in one go, in order: the cached part
of a prompt never ends inside of one."""


class WarmPrefix(NamedTuple):
    """A single row's cache, ready for the token after its first ``cached_tokens``."""

    prompt_cache: list[Any]
    cached_tokens: int


class PrefixCache:
    """What one worker has stored, in memory and on disk. Engine thread.

    Prompts with different salts never share anything. ``namespace`` stands for the model's files
    (:func:`lmx.worker.mlx.prefix.folder.prefix_namespace`). Memory stays within the spec's budget,
    which doesn't count the caches that ``lookup`` returns; the disk's budget is for all models that
    share the folder. Another thread, which doesn't touch MLX, writes and reads the files.
    """

    def __init__(
        self, new_cache: Callable[[], list[Any]], spec: PrefixCacheSpec, namespace: str
    ) -> None:
        """``new_cache`` returns the empty cache of one row."""
        self._layout = CacheLayout(new_cache)
        self._store = PrefixStore(self._layout, spec, namespace)
        self._enabled = self._layout.restorable
        if not self._enabled:
            log.warning("prefix_cache.unsupported", reason="a cache can't be restored")

    @property
    def enabled(self) -> bool:
        """Whether anything is kept: not of a model whose caches can't be restored."""
        return self._enabled

    def bytes_held(self) -> int:
        """Return the bytes in memory."""
        return self._store.bytes_held

    def lookup(
        self, tokens: TokenIds, salt: str, atomic: AtomicSpans = (), *, wait: bool = True
    ) -> WarmPrefix | None:
        """Return the cache of the longest stored beginning of ``tokens``, but never of all of them.

        The result shares no array with the store. Waits for the disk up to half a second, or not at
        all, and returns what has been read by then: an earlier :meth:`fetch` saves that wait.
        """
        deadline = time.monotonic() + (_READ_WAIT_S if wait else 0.0)
        prompt = np.asarray(tokens, np.int32)
        while not self.fetch(prompt, salt, atomic) and (left_s := deadline - time.monotonic()) > 0:
            self._store.wait(left_s)
        hit = self._best(prompt, salt, len(prompt) - 1, atomic, resident=True)
        if hit is None:
            return None
        self._store.touch(hit.segments)
        # Capacity for the prompt and its first token, so that prefill doesn't copy all of it again.
        capacity = -(-(len(tokens) + 1) // _CAPACITY_STEP) * _CAPACITY_STEP
        return WarmPrefix(self._restore(hit, capacity), hit.length)

    def found(self, tokens: TokenIds, salt: str, atomic: AtomicSpans = ()) -> int:
        """Return how many tokens ``lookup`` would find, including those on disk."""
        prompt = np.asarray(tokens, np.int32)
        hit = self._best(prompt, salt, len(prompt) - 1, atomic, resident=False)
        return 0 if hit is None else hit.length

    def kept(self, tokens: TokenIds, salt: str, atomic: AtomicSpans = ()) -> Kept | None:
        """Return how much is kept of a prompt, usable or not; None: nothing is ever kept."""
        if not self._enabled:
            return None
        ways = self._store.tree.match(np.asarray(tokens, np.int32), salt)
        return Kept(self.found(tokens, salt, atomic), ways[0].length if ways else 0)

    def fetch(self, tokens: TokenIds, salt: str, atomic: AtomicSpans = ()) -> bool:
        """Begin to read from disk what ``lookup`` would return. True: there is nothing to wait for.
        Never blocks."""
        prompt = np.asarray(tokens, np.int32)
        hit = self._best(prompt, salt, len(prompt) - 1, atomic, resident=False)
        self._store.settle(hit.segments if hit else ())
        # Another one, if a part of that is gone.
        hit = self._best(prompt, salt, len(prompt) - 1, atomic, resident=False)
        return hit is None or self._store.bring(hit)

    def checkpoints(self, tokens: TokenIds, cached_tokens: int, salt: str = "") -> Sequence[int]:
        """Return after how many tokens prefill is to pause for a :meth:`store`, in order.

        None for a model whose caches can be cut anywhere. If a prompt branches off from a stored
        one (with the same ``salt``), more prompts are likely to: the next one begins right there.
        """
        if self._layout.cuttable or not self._enabled:
            return ()
        last = len(tokens) - _OPENING_TOKENS
        points = {last} if last - cached_tokens >= _LEAST_TOKENS else set()
        point = _FIRST_STATE_TOKENS
        while point <= last - _LEAST_TOKENS:
            points.add(point)
            point *= 2
        for way in self._store.tree.match(np.asarray(tokens, np.int32), salt):
            if way.length - cached_tokens >= _LEAST_BRANCH_TOKENS:
                points.add(way.length)
        return sorted(point for point in points if cached_tokens < point <= last)

    def store(
        self,
        tokens: TokenIds,
        prompt_cache: Sequence[Any],
        salt: str,
        row: int | None = None,
    ) -> None:
        """Keep what ``prompt_cache`` holds of a row: exactly these tokens, or, for a model without
        :meth:`checkpoints`, at least these.

        ``row`` None means that the cache is a single row's. Call this at the checkpoints, at the
        end of a prompt's prefill, and when a row ends. It copies the new part and waits for that;
        the cache can be used on. It keeps less, or nothing, if the budget is small, and nothing if
        only a few tokens are new.
        """
        if not self._enabled or len(tokens) < _LEAST_TOKENS:
            return
        self._store.settle()
        whole = np.asarray(tokens, np.int32)
        stored = self._best(whole, salt, len(whole), (), resident=False)
        if stored is not None and len(whole) - stored.length < _LEAST_TOKENS:
            self._store.touch(stored.segments)
            return
        ways = self._store.tree.match(whole, salt)
        path, start = ways[0] if ways else ((), 0)
        parent = path[-1] if path else self._store.tree.root(salt)
        try:
            captured = list(self._capture(whole, start, prompt_cache, row))
        except TypeError as error:
            log.warning("prefix_cache.unsupported", reason=str(error))
            self._enabled = False
            return
        total_bytes = sum(payload.nbytes for _, _, payload in captured)
        if not self._layout.cuttable and not self._store.evict_for(total_bytes, path):
            return  # Runs without their state are of no use.
        added = self._store.add(parent, captured, path)
        self._store.touch([*path, *added])

    def rest(self) -> None:
        """Use a pause: free the segments that have been written."""
        self._store.settle()

    def shrink(self) -> None:
        """Give up half of the memory in use, and take no more than the other half."""
        self._store.shrink()

    def regrow(self) -> None:
        """Take the whole budget again."""
        self._store.regrow()

    def close(self) -> None:
        """Wait, a few seconds at most, until everything has been written."""
        self._store.close(_CLOSE_S)

    def _best(
        self, prompt: Tokens, salt: str, limit: int, atomic: AtomicSpans, *, resident: bool
    ) -> Hit | None:
        """Return the longest part of a prompt, at most ``limit`` tokens, that can be restored."""
        ways = self._store.tree.match(prompt, salt)
        while True:
            hits = [
                usable(way, limit, cuttable=self._layout.cuttable, resident=resident)
                for way in ways
            ]
            best = max((hit for hit in hits if hit), key=lambda hit: hit.length, default=None)
            if best is None or best.length < _LEAST_TOKENS:
                return None
            inside = next((begin for begin, end in atomic if begin < best.length < end), None)
            if inside is None:
                return best
            limit = inside

    def _restore(self, hit: Hit, capacity_tokens: int) -> list[Any]:
        ends = [segment.start for segment in hit.path[1:]] + [hit.length]
        runs = [
            (payload_of(segment).arrays, end - segment.start)
            for segment, end in zip(hit.path, ends, strict=True)
        ]
        state = payload_of(hit.state) if hit.state is not None else None
        return self._layout.restore(
            runs, (state.structure, state.arrays) if state is not None else None, capacity_tokens
        )

    def _capture(
        self, tokens: Tokens, start: int, prompt_cache: Sequence[Any], row: int | None
    ) -> Iterator[tuple[int, Tokens, Payload]]:
        """Yield the new part of a cache, lazily: runs, and the state after them."""
        for begin in range(start, len(tokens), _RUN_TOKENS):
            run = tokens[begin : begin + _RUN_TOKENS]
            arrays = self._layout.run(prompt_cache, row, begin, begin + len(run))
            yield begin, run.copy(), Payload(arrays)
        if not self._layout.cuttable:
            structure, arrays = self._layout.state(prompt_cache, row)
            yield len(tokens), tokens[:0].copy(), Payload(arrays, structure)

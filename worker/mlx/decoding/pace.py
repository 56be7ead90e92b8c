"""Decides how many prompt tokens are processed between two tokens of the rows that decode, and when
a chunk pauses between two layers. Pure."""

from statistics import median_low
from typing import Final

LEAST_TOKENS: Final = 8
MOST_TOKENS: Final = 2048
_FIRST_TOKENS: Final = 16
# The rest of the limit is for what can't be predicted: a busy machine, a deeper context. How much
# that is, is learned: on a machine whose chunks take what was expected, nearly all of the limit is
# used. Every chunk has a fixed cost, so on a slow machine this can double the tokens of a chunk:
# where decoding and the fixed cost take half of the limit, chunks at 0.6 of it read a third as many
# tokens as at 0.8.
_FIRST_SHARE: Final = 0.75
_LEAST_SHARE: Final = 0.5
_MOST_SHARE: Final = 0.86
# The next chunk may take this much longer than the late ones of the last chunks.
_SPARE: Final = 1.1
# A wait that was longer by more than this, as when the machine sleeps, shows nothing more: the
# least share is used.
_MOST_OVERRUN: Final = 1 / (_LEAST_SHARE * _SPARE)
# A single late chunk says little of the next one, and several say much: each of them counts by
# this share.
_NOTED: Final = 0.3
# What remains of that with each chunk: a tenth after 22 of them.
_REMEMBERED: Final = 0.9
# The next decode step is estimated from this many of the last ones.
_DECODES: Final = 3
# As is what a layer takes of the next chunk: one that was late says little.
_CHUNKS: Final = 3
# What can't be interrupted should fit more than once, because it may take longer than expected.
_PART_SHARE: Final = 0.25
_LEAST_PART_S: Final = 0.005
# While no row decodes, only cancellations and progress reports wait for a chunk.
_IDLE_CHUNK_S: Final = 1.0
_GPU_IDLE_CHUNK_S: Final = 2.0
_GPU_IDLE_LEAST_TOKENS: Final = 256
"""A GPU reads all weights for each chunk: chunks of 120 tokens, which take a model of 32 billion
parameters a second, lose a tenth of the speed by that. It is far from what macOS lets a command
buffer take, because mlx commits one every 40 operations."""
# A chunk's cost is at most this many times what was expected when the next one doubles.
_GROWTH: Final = 2.0
# Attention costs as much as all the rest at about this depth in a model of 0.1 billion
# parameters, later in larger ones.
_DEPTH_TOKENS: Final = 4096


_LAYERS_S: Final = 0.02
"""For about so long layers are computed until somebody is looked for who waits: on a GPU, which
waits for the host meanwhile, as rarely as that."""


def layers_at_once(count: int, took_s: float) -> int:
    """Return how many layers to compute next, after ``count`` that took ``took_s``."""
    fitting = count * _LAYERS_S / took_s if took_s > 0 else 2 * count
    return int(max(1, min(fitting, 2 * count)))


def pauses(spent_s: float, next_s: float, limit_s: float, owed_s: float, awaited: bool) -> bool:
    """Return whether a chunk pauses before its next layers, which seem to take ``next_s``.

    ``spent_s`` is how long this step has computed, and ``limit_s`` how long it may. ``awaited``:
    somebody waits for its end. ``owed_s`` is for how long that is ignored, so that a prompt does
    not starve while others come again and again.
    """
    if awaited and spent_s >= owed_s:
        return True
    return spent_s + next_s > limit_s


class PrefillPace:
    """Chooses the size of each chunk from the time that earlier chunks took.

    Measurements are kept from prompt to prompt. It knows no clock and no prompt: the caller
    measures, and takes a smaller chunk at the end of a prompt.
    """

    def __init__(self, max_stall_s: float, *, on_gpu: bool = False) -> None:
        self._idle_chunk_s = _GPU_IDLE_CHUNK_S if on_gpu else _IDLE_CHUNK_S
        self._idle_least_tokens = _GPU_IDLE_LEAST_TOKENS if on_gpu else LEAST_TOKENS
        self._max_stall_s = max_stall_s
        self._overrun = 1 / (_FIRST_SHARE * _SPARE)
        """How many times as long as expected the streams have waited for the late ones of the last
        chunks."""
        self._last_decodes_s: list[float] = []
        self._last_shares: list[float] = []
        """How much of the last chunks' time their longest layer took."""
        self._measured_tokens = 0
        self._token_s = 0.0
        self._depth_tokens = 0

    def chunk(self, depth_tokens: int, *, decoding: bool, yields: bool = False) -> int:
        """Return how many tokens to process next, after ``depth_tokens`` of context. ``decoding``
        and ``yields`` are those of :meth:`budget_s`.

        The number is at least LEAST_TOKENS, at most MOST_TOKENS, and never more than twice the
        largest that was tried, unless that is less than a GPU needs to be busy.
        """
        if self._measured_tokens == 0:
            return _FIRST_TOKENS
        token_s = self._takes_s(1, depth_tokens)
        budget_s = self.budget_s(decoding, yields=yields)
        fitting = budget_s / token_s if token_s > 0 else MOST_TOKENS
        most = min(MOST_TOKENS, _GROWTH * self._measured_tokens)
        least = LEAST_TOKENS if decoding or yields else self._idle_least_tokens
        return int(max(least, min(fitting, most)))

    def decoded(self, took_s: float) -> None:
        """Note that a step which only advanced the decoding rows took ``took_s``."""
        self._last_decodes_s = [*self._last_decodes_s[1 - _DECODES :], took_s]

    def prefilled(
        self,
        tokens: int,
        took_s: float,
        depth_tokens: int,
        *,
        decoding: bool,
        yields: bool = False,
        most_tokens: int = 0,
        layer_s: float = 0.0,
    ) -> None:
        """Note that a chunk of ``tokens`` after ``depth_tokens`` took ``took_s``. ``decoding`` and
        ``yields`` are those with which :meth:`chunk` was asked, and ``most_tokens`` is what it
        returned, of which the end of a prompt may leave less. ``layer_s`` is what the longest layer
        took; 0 if the chunk could not pause."""
        # The rest of a prompt says little of a full chunk: what any chunk costs weighs too much.
        if 2 * tokens < most_tokens and took_s <= self.budget_s(decoding, yields=yields):
            return
        if decoding and self._measured_tokens:
            self._compare(
                self._decode_s + took_s, self._decode_s + self._takes_s(tokens, depth_tokens)
            )
        self._measured_tokens = tokens
        self._token_s = took_s / tokens
        self._depth_tokens = depth_tokens
        if took_s > 0:
            self._last_shares = [*self._last_shares[1 - _CHUNKS :], layer_s / took_s]

    @property
    def part_s(self) -> float:
        """How long each part of an encoding should take, which can't be interrupted."""
        return max(_LEAST_PART_S, _PART_SHARE * self._stall_s)

    def budget_s(self, decoding: bool, *, yields: bool = False) -> float:
        """Return how long work on a prompt may take until it lets others continue. ``decoding``
        says whether rows wait for it; ``yields`` that it is work of the background, and that
        somebody may come soon who is to wait for it as little as can be."""
        if yields:
            return self.part_s
        stall_s = max(0.0, self._stall_s - self._decode_s)
        if decoding:
            return stall_s
        # A chunk pauses between two layers for rows that come meanwhile. They then wait for one.
        share = median_low(self._last_shares or [0.0])
        pausing_s = stall_s / share if share > 0 else self._idle_chunk_s
        return max(min(self._idle_chunk_s, pausing_s), self._stall_s)

    @property
    def _decode_s(self) -> float:
        """How long a step of the decoding rows takes: one that was late says little of the next."""
        return median_low(self._last_decodes_s or [0.0])

    @property
    def _stall_s(self) -> float:
        """How long the streams are meant to wait: the limit without its reserve."""
        share = 1 / (_SPARE * self._overrun)
        return self._max_stall_s * max(_LEAST_SHARE, min(share, _MOST_SHARE))

    def _compare(self, waited_s: float, expected_s: float) -> None:
        overrun = min(waited_s / expected_s, _MOST_OVERRUN) if expected_s > 0 else 1.0
        noted = self._overrun + _NOTED * (overrun - self._overrun)
        self._overrun = max(noted, 1 + _REMEMBERED * (self._overrun - 1))

    def _takes_s(self, tokens: int, depth_tokens: int) -> float:
        deeper = (depth_tokens + _DEPTH_TOKENS) / (self._depth_tokens + _DEPTH_TOKENS)
        return tokens * self._token_s * max(1.0, deeper)

"""What the engine of a divided model decides on rank 0 alone: the tokens that are drawn, the rows
that fail by their constraints, and how much of a prompt is read at a time."""

from collections.abc import Sequence

import mlx.core as mx

from lmx.worker.engine.interfaces import Ranks
from lmx.worker.engine.values import Constraint, SequenceSampling
from lmx.worker.mlx.decoding.pace import PrefillPace
from lmx.worker.mlx.sampling.sampler import BatchSampler, PendingScores


class RankedSampler(BatchSampler):
    """Draws on rank 0. The other ranks get the tokens within the computation, as the parts of their
    layers get each other's sums: nobody waits for a token that is still computed, and no rounding
    can make one rank continue with another token."""

    def __init__(self, ranks: Ranks, group: mx.distributed.Group) -> None:
        super().__init__()
        self._ranks = ranks
        self._group = group
        self._constrained: set[int] = set()

    def add(
        self,
        sequence_id: int,
        sampling: SequenceSampling,
        prompt: Sequence[int],
        constraint: Constraint | None,
        top_logprobs: int | None,
        made: Sequence[int] = (),
    ) -> None:
        if constraint is not None:
            self._constrained.add(sequence_id)
        if self._ranks.rank > 0:
            constraint, top_logprobs = None, None
        super().add(sequence_id, sampling, prompt, constraint, top_logprobs, made)

    def remove(self, sequence_id: int) -> None:
        self._constrained.discard(sequence_id)
        super().remove(sequence_id)

    def sample(
        self,
        logits: mx.array,
        sequence_ids: Sequence[int],
        positions: Sequence[int],
        last: mx.array | None = None,
    ) -> mx.array:
        if self._ranks.rank == 0:
            drawn = super().sample(logits, sequence_ids, positions, last).astype(mx.uint32)
        else:
            # All ranks add up in the same order: first what the logits are made of.
            drawn = mx.depends(mx.zeros(len(sequence_ids), mx.uint32), logits)
        return mx.distributed.all_sum(drawn, group=self._group)

    def scores(
        self, logits: mx.array, tokens: mx.array, sequence_ids: Sequence[int]
    ) -> PendingScores | None:
        if self._ranks.rank > 0:
            return None
        return super().scores(logits, tokens, sequence_ids)

    def pop_failed(self) -> list[tuple[int, Exception]]:
        failed = super().pop_failed()
        if not self._constrained:
            return failed
        found = self._ranks.settle("failed", [sequence_id for sequence_id, _ in failed])
        return failed or [(row, RuntimeError("it failed on rank 0")) for row in found]


class RankedPace(PrefillPace):
    """Chooses the size of each chunk by the time that they take on rank 0."""

    def __init__(self, ranks: Ranks, max_stall_s: float, *, on_gpu: bool) -> None:
        super().__init__(max_stall_s, on_gpu=on_gpu)
        self._ranks = ranks

    def chunk(self, depth_tokens: int, *, decoding: bool, yields: bool = False) -> int:
        own = super().chunk(depth_tokens, decoding=decoding, yields=yields)
        (tokens,) = self._ranks.settle("chunk", (own,))
        return tokens

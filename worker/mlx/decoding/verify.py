"""Drawing several tokens of a row from one forward over drafts of them. Engine thread.

Exact: each token is drawn by the row's own parameters from the model's logits, at the position
and with the history that it would have in plain decoding. A draft is only ever compared with
what was drawn, so that it decides how many tokens a step has and never which.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, cast

import mlx.core as mx

from lmx.worker.engine.values import TokenScores
from lmx.worker.mlx.sampling.sampler import BatchSampler, PendingScores


class Drafts(NamedTuple):
    """What may follow the tokens that are drawn but not fed. Of each row's line in ``tokens``
    [rows, most drafted], only the first ``lengths`` tokens count. They may not be evaluated yet."""

    tokens: mx.array
    lengths: Sequence[int]

    @staticmethod
    def of(rows: Sequence[Sequence[int]]) -> Drafts:
        """Return drafts that are known, at least one for some row."""
        lengths = [len(row) for row in rows]
        width = max(lengths)
        lines = [[*row, *[0] * (width - len(row))] for row in rows]
        return Drafts(mx.array(lines, mx.int32), lengths)


class Drawn(NamedTuple):
    """What became of a row's drafts: those that are right, and the token drawn after them."""

    accepted: Sequence[int]
    following: int


def draw(
    logits: mx.array,
    drafts: Drafts,
    sequence_ids: Sequence[int],
    positions: Sequence[int],
    sampler: BatchSampler,
    end_ids: Collection[int],
    *,
    in_step: bool,
) -> list[Drawn]:
    """Draw each row's tokens as far as its drafts are right. Blocks.

    ``logits`` [rows, 1 + most drafted, vocabulary]; the first are for ``positions``. The
    sampler accepts the tokens that were drafted; ``following`` isn't, as it is not fed yet.
    Nothing is drawn behind a token of ``end_ids``: a row is about to end there. ``in_step``: all
    rows continue only as far as the drafts of all are right.
    """
    rows, width, _ = logits.shape
    everything: list[list[int]] | None = None
    if sampler.depends_on_tokens(sequence_ids):
        mx.async_eval(logits)  # type: ignore[no-untyped-call]
    else:
        everything = _draw_everything(logits, sequence_ids, positions, sampler)
    drafted: Any = drafts.tokens.tolist()
    drawn: list[list[int]] = [[] for _ in sequence_ids]
    going = list(range(rows))
    for offset in range(width):
        tokens: Any
        if everything is None:
            tokens = sampler.sample(
                logits[mx.array(going), offset],
                [sequence_ids[row] for row in going],
                [positions[row] + offset for row in going],
            ).tolist()
        else:
            tokens = [everything[row][offset] for row in going]
        right = []
        for row, token in zip(going, tokens, strict=True):
            drawn[row].append(token)
            was_drafted = offset < drafts.lengths[row] and token == drafted[row][offset]
            if was_drafted and token not in end_ids:
                right.append(row)
        if not right or (in_step and len(right) < rows):
            break
        for row in right:
            sampler.accept(sequence_ids[row], drawn[row][-1])
        going = right
    return [Drawn(tokens[:-1], tokens[-1]) for tokens in drawn]


def _draw_everything(
    logits: mx.array, sequence_ids: Sequence[int], positions: Sequence[int], sampler: BatchSampler
) -> list[list[int]]:
    """Draw at all positions at once: no draw depends on the one before."""
    rows, width, vocabulary = logits.shape
    tokens = sampler.sample(
        logits.reshape(rows * width, vocabulary),
        [sequence_id for sequence_id in sequence_ids for _ in range(width)],
        [position + offset for position in positions for offset in range(width)],
    )
    return cast(list[list[int]], tokens.reshape(rows, width).tolist())


class DrawnScores(NamedTuple):
    """The scores of the accepted tokens, by (row, how many were accepted before), and those of
    the tokens drawn after them. Rows that want none are left out."""

    accepted: dict[tuple[int, int], TokenScores]
    following: list[PendingScores]


def score(
    logits: mx.array, drawn: Sequence[Drawn], sequence_ids: Sequence[int], sampler: BatchSampler
) -> DrawnScores:
    """Score what was drawn from ``logits``. Blocks where a row wants scores."""
    following: list[PendingScores] = []
    for offset in range(1 + max(len(row.accepted) for row in drawn)):
        last = [row for row, made in enumerate(drawn) if len(made.accepted) == offset]
        if last:
            tokens = [drawn[row].following for row in last]
            scores = _score_some(logits, last, offset, tokens, sequence_ids, sampler)
            if scores is not None:
                following.append(scores)
    accepted = score_known(logits, [row.accepted for row in drawn], sequence_ids, sampler)
    mx.eval([scores.arrays for scores in following])
    return DrawnScores(accepted, following)


def score_known(
    logits: mx.array,
    known: Sequence[Sequence[int]],
    sequence_ids: Sequence[int],
    sampler: BatchSampler,
) -> dict[tuple[int, int], TokenScores]:
    """Return the scores of each row's ``known`` tokens by ``logits`` [rows, tokens, vocabulary], by
    (row, place). Rows that want none are left out. Blocks where a row wants some."""
    pending: dict[int, PendingScores] = {}
    for offset in range(max(map(len, known))):
        rows = [row for row, tokens in enumerate(known) if len(tokens) > offset]
        tokens = [known[row][offset] for row in rows]
        scores = _score_some(logits, rows, offset, tokens, sequence_ids, sampler)
        if scores is not None:
            pending[offset] = scores
    mx.eval([scores.arrays for scores in pending.values()])
    return {
        (sequence_id, offset): scores
        for offset, read in pending.items()
        for sequence_id, scores in read.read().items()
    }


def _score_some(
    logits: mx.array,
    rows: Sequence[int],
    offset: int,
    tokens: Sequence[int],
    sequence_ids: Sequence[int],
    sampler: BatchSampler,
) -> PendingScores | None:
    some = [sequence_ids[row] for row in rows]
    return sampler.scores(logits[mx.array(list(rows)), offset], mx.array(list(tokens)), some)

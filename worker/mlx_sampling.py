"""One sampler for a batch whose rows all sample differently.

mlx-vlm's ``BatchGenerator`` has one sampler for all of its rows. This one looks up whose row
is whose, so that a row's tokens depend on its own parameters and logits alone, never on the
company it decodes in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import mlx.core as mx

from lmx.worker.engine import RowSampling

_GREEDY_BELOW: Final = 1e-5
"""In float32 a division by much less makes every logit infinite. At this temperature, tokens
that differ by a thousandth in their logits differ by a factor of e^100 in their chances."""

_WORD: Final = 0xFFFF_FFFF_FFFF_FFFF


def position_key(seed: int, position: int) -> int:
    """Return the 64-bit key of one draw: the same for the same seed and position (splitmix64)."""
    mixed = (seed + (position + 1) * 0x9E37_79B9_7F4A_7C15) & _WORD
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58_476D_1CE4_E5B9) & _WORD
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D0_49BB_1331_11EB) & _WORD
    return mixed ^ (mixed >> 31)


class RowSampler:
    """The ``sampler`` of a ``BatchGenerator``. Engine thread only.

    ``bind`` has to be called with that generator before the first step: the sampler reads
    which rows it is asked about from it.
    """

    def __init__(self) -> None:
        self._rows: dict[int, RowSampling] = {}
        self._generator: Any = None

    def bind(self, generator: Any) -> None:
        """Name the generator that this sampler belongs to."""
        self._generator = generator

    def add(self, uid: int, sampling: RowSampling) -> None:
        """Sample the row ``uid`` in this way."""
        self._rows[uid] = sampling

    def remove(self, uid: int) -> None:
        """Forget a row."""
        self._rows.pop(uid, None)

    def sample_target(
        self, logprobs: mx.array, *, row_ids: Sequence[int], positions: Sequence[int]
    ) -> mx.array:
        """Return one token for each row of ``logprobs`` [rows, vocabulary].

        ``row_ids`` are mlx-vlm's, always 0: no use. ``positions`` count the tokens that a row
        has so far. They are 0 in prefill alone, and the rows are then those of the prompt
        batch; a decode step samples for the generation batch.
        """
        in_prefill = not any(positions)
        batch = self._generator._prompt_batch if in_prefill else self._generator._generation_batch
        rows = [self._rows[uid] for uid in batch.uids]
        return sample_rows(logprobs, rows, positions)


def sample_rows(
    logprobs: mx.array, rows: Sequence[RowSampling], positions: Sequence[int]
) -> mx.array:
    """Draw a token for each row by its own parameters; token ids [rows], not evaluated.

    Rows are drawn in three groups (greedy, plain, top_p), because sorting a vocabulary for
    top_p costs more than all the rest.
    """
    groups: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(_kind(row), []).append(index)
    if list(groups) == ["greedy"]:
        return mx.argmax(logprobs, axis=-1)
    parts, order = [], []
    for kind, indices in groups.items():
        chosen = logprobs[mx.array(indices)]
        if kind == "greedy":
            parts.append(mx.argmax(chosen, axis=-1))
        else:
            parts.append(
                _draw(
                    chosen,
                    [rows[index] for index in indices],
                    [positions[index] for index in indices],
                    top_p=kind == "top_p",
                )
            )
        order += indices
    drawn = mx.concatenate(parts)
    back = sorted(range(len(order)), key=order.__getitem__)
    return drawn[mx.array(back)]


def _kind(row: RowSampling) -> str:
    if row.temperature < _GREEDY_BELOW:
        return "greedy"
    return "top_p" if row.top_p < 1 else "plain"


def _draw(
    logprobs: mx.array, rows: Sequence[RowSampling], positions: Sequence[int], *, top_p: bool
) -> mx.array:
    # In float32: with 16-bit noise distant tokens tie.
    scaled = logprobs.astype(mx.float32) / mx.array([[row.temperature] for row in rows])
    if top_p:
        scaled = _keep_top_p(scaled, mx.array([[row.top_p] for row in rows]))
    keys = mx.stack(
        [
            mx.random.key(position_key(row.seed, position))
            for row, position in zip(rows, positions, strict=True)
        ]
    )
    return mx.vmap(lambda row, key: mx.random.categorical(row, key=key))(scaled, keys)


def _keep_top_p(scaled: mx.array, top_p: mx.array) -> mx.array:
    """Mask all but the likeliest tokens that together reach ``top_p``; never the likeliest."""
    order = mx.argsort(-scaled, axis=-1)
    probabilities = mx.softmax(mx.take_along_axis(scaled, order, axis=-1), axis=-1)
    before = mx.cumsum(probabilities, axis=-1) - probabilities
    kept = (before < top_p) | (mx.arange(scaled.shape[-1]) == 0)
    mask = mx.put_along_axis(mx.zeros_like(kept), order, kept, axis=-1)
    return mx.where(mask, scaled, -mx.inf)

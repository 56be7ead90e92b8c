"""What sampling parameters mean, written down a second time: slow, one row, numpy, float64."""

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from lmx.worker.engine.values import SequenceSampling

Floats = npt.NDArray[np.float64]


def edited(
    logits: Sequence[float] | Floats,
    sampling: SequenceSampling,
    prompt: Sequence[int],
    answer: Sequence[int],
    allowed: Collection[int] | None = None,
) -> Floats:
    """Return the logits that are drawn from, after everything that comes before the draw."""
    made = np.array(logits, np.float64)
    times = np.bincount(np.array(answer, np.int_), minlength=len(made))
    for token in {*prompt, *answer}:
        penalty = sampling.repetition_penalty
        made[token] = made[token] / penalty if made[token] > 0 else made[token] * penalty
    made -= sampling.frequency_penalty * times + sampling.presence_penalty * (times > 0)
    for token, bias in sampling.logit_bias:
        made[token] += bias
    for token in range(len(made)):
        too_early = len(answer) < sampling.min_tokens and token in sampling.end_ids
        if too_early or (allowed is not None and token not in allowed):
            made[token] = -np.inf
    return made


def softmax(logits: Floats, temperature: float = 1.0) -> Floats:
    """Return the probabilities."""
    weights = np.exp((logits - logits.max()) / temperature)
    chances: Floats = weights / weights.sum()
    return chances


def distribution(logits: Floats, sampling: SequenceSampling) -> Floats:
    """Return each token's chance to be drawn from edited logits."""
    chances = softmax(logits, sampling.temperature)
    if sampling.top_k > 0:
        chances = _only(chances, np.argsort(-chances, kind="stable")[: sampling.top_k])
    if sampling.typical_p < 1:
        with np.errstate(divide="ignore"):
            surprise = -np.log(chances)
        entropy = np.sum(chances[chances > 0] * surprise[chances > 0])
        order = np.argsort(np.abs(surprise - entropy), kind="stable")
        chances = _first(chances, order, sampling.typical_p)
    if sampling.top_p < 1:
        chances = _first(chances, np.argsort(-chances, kind="stable"), sampling.top_p)
    if sampling.min_p > 0:
        chances = _only(chances, np.flatnonzero(chances >= sampling.min_p * chances.max()))
    return chances


def _first(chances: Floats, order: npt.NDArray[np.intp], share: float) -> Floats:
    kept: list[int] = []
    for token in order:
        kept.append(int(token))
        if chances[kept].sum() >= share:
            break
    return _only(chances, np.array(kept))


def _only(chances: Floats, kept: npt.NDArray[np.intp]) -> Floats:
    left = np.zeros_like(chances)
    left[kept] = chances[kept]
    return left / float(left.sum())


def chi_square(counts: npt.NDArray[np.int_], chances: Floats) -> float:
    """Return how far counts are from what chances make expected, in standard deviations.

    By Wilson and Hilferty's approximation, with tokens pooled that are expected less than 10
    times. A token of no chance that was drawn is infinitely far.
    """
    if counts[chances == 0].any():
        return float("inf")
    expected = chances * counts.sum()
    order = np.argsort(expected)
    pooled_counts, pooled = [0.0], [0.0]
    for token in order:
        if pooled[-1] >= 10:
            pooled_counts.append(0.0)
            pooled.append(0.0)
        pooled[-1] += expected[token]
        pooled_counts[-1] += counts[token]
    freedom = len(pooled) - 1
    if freedom == 0:
        return 0.0
    value = sum((c - e) ** 2 / e for c, e in zip(pooled_counts, pooled, strict=True))
    spread = 2 / (9 * freedom)
    deviations: float = ((value / freedom) ** (1 / 3) - (1 - spread)) / spread**0.5
    return deviations

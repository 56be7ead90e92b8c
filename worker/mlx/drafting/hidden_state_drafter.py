"""Drafters: small models that draft from what the large model has computed, its hidden states.

mlx-vlm has the models, of three kinds: heads for further tokens that were trained with the model
(MTP), EAGLE-3, and DFlash, which drafts several tokens in one pass. Its own loops around them know
nothing of rows that come and go, so each row has its own drafter here: a copy that shares the
weights. Of a prompt only the end is observed (:data:`OBSERVED_TOKENS`), and nothing of a part that
came from the prefix cache: a drafter begins with what it has observed, and its drafts are worse for
the first tokens.

Written for mlx-vlm 0.7.10.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, cast

import mlx.core as mx

from lmx.protocol.messages.data import Assist
from lmx.worker.mlx.drafting.token_drafter import Choose, SequenceDrafter
from lmx.worker.mlx.memory.drafters import OBSERVED_TOKENS
from lmx.worker.mlx.model.hidden import HiddenStates

_ANY_NUMBER: Final = 1 << 20


class HiddenStateDrafter(NamedTuple):
    """A ``TokenDrafter`` with a model of mlx-vlm."""

    model: Any
    """Bound to the target. Rows copy it."""

    target: Any
    """The model whose tokens are drafted, in the form of its library."""

    in_blocks: bool
    """Whether it drafts all tokens in one pass, as DFlash does, and not one after the other."""

    @property
    def observed_tokens(self) -> int:
        """Of how many of a prompt's last tokens rows observe the hidden states."""
        return OBSERVED_TOKENS

    @property
    def foresees(self) -> bool:
        """Whether it knows without computing what it would have drafted."""
        return False

    def open_sequence(self, assist: Assist) -> HiddenStateSequence:
        """Begin a row. What it holds goes when the row does."""
        return self._row(copy.copy(self.model))

    def first_row(self) -> HiddenStateSequence:
        """Begin a row with the model itself, before there are others: what the model computes of
        its weights at its first use is then shared by all rows."""
        return self._row(self.model)

    def _row(self, model: Any) -> HiddenStateSequence:
        if self.in_blocks:
            most = max(0, int(model.config.block_size) - 1)
            return HiddenStateSequence(_ParallelDrafts(model, self.target), most)
        return HiddenStateSequence(_OneByOne(model, self.target), _ANY_NUMBER)


class HiddenStateSequence(SequenceDrafter):
    """A ``SequenceDrafter`` with a drafter of its own.

    The hidden states of a token and the token after it are taken together, so the drafter is one
    token ahead of what the row's cache holds.
    """

    def __init__(self, rounds: _OneByOne | _ParallelDrafts, most_tokens: int) -> None:
        self._rounds = rounds
        self._most_tokens = most_tokens
        self._begin = 0
        """The place of the first token whose hidden states the drafter has not taken."""
        self._end = 0
        """The place behind the last token whose hidden states were observed."""
        self._observed: deque[mx.array] = deque()
        self._verified: int | None = None
        """How many of the last drafts were right. None: none are to be settled."""
        self._fresh = True
        """Whether the drafter has taken nothing."""

    @property
    def read_tokens(self) -> int:
        """How many of the row's first tokens the drafter has taken, or passed over."""
        return self._begin + 1

    def most_drafts(self, length: int) -> int | None:
        """Return how many tokens it drafts at most; 0 if it has not observed the token before the
        last one."""
        return self._most_tokens if self._observed and self._end == length - 1 else 0

    def draft(
        self,
        rest: Sequence[int],
        num_tokens: int,
        choose: Choose,
        confidence_threshold: float | None,
    ) -> mx.array | None:
        """Take what was observed, and draft. The drafts are not evaluated unless there is a
        threshold."""
        hidden = mx.concatenate(list(self._observed), axis=1)
        assert hidden.shape[1] == len(rest)
        chosen = _Chosen(choose, keeps_chances=confidence_threshold is not None)
        drafts = self._rounds.draft(hidden, rest, self._verified, num_tokens, chosen)
        self._observed.clear()
        self._begin = self._end
        self._verified, self._fresh = 0, False
        if confidence_threshold is not None:
            drafts = drafts[: chosen.likely(confidence_threshold)]
        return drafts if drafts.size else None

    def keep(self, accepted_tokens: int) -> None:
        if self._verified is not None:
            self._verified = accepted_tokens

    def observe(self, hidden: HiddenStates) -> None:
        """Take the hidden states that follow. After a gap, begin again: the drafts are worse, but a
        drafter that takes two distant tokens for neighbours drafts even worse."""
        if hidden.begin != self._end:
            self._observed.clear()
            self._restart(hidden.begin)
            self._end = hidden.begin
        self._observed.append(hidden.states)
        self._end += hidden.states.shape[1]
        while self._end - self._begin - self._observed[0].shape[1] >= OBSERVED_TOKENS:
            self._restart(self._begin + self._observed.popleft().shape[1])

    def _restart(self, begin: int) -> None:
        self._begin = begin
        if not self._fresh:
            self._rounds.reset()
            self._verified, self._fresh = None, True


class _OneByOne:
    """The calls to a drafter that makes one token after the other (MTP, EAGLE-3)."""

    def __init__(self, model: Any, target: Any) -> None:
        self._model = model
        self._target = target
        self._targets = _draft_vocabulary(model)
        self.reset()

    def reset(self) -> None:
        """Forget the row."""
        self._model.reset(self._target)

    def draft(
        self,
        hidden: mx.array,
        following: Sequence[int],
        verified: int | None,
        num_tokens: int,
        chosen: _Chosen,
    ) -> mx.array:
        """Return this many drafts [drafted] after the last token of ``following``: the tokens after
        those of ``hidden``. ``verified``: how many of the last drafts are right, whose keys and
        values the drafter may keep."""
        settled = 0
        if verified is not None and verified + 1 < len(following):
            settled = verified + 1
            self._feed(hidden[:, :settled], following[:settled], _likeliest)
        sample = chosen if self._targets is None else _Translated(chosen, *self._targets)
        self._feed(hidden[:, settled:], following[settled:], sample)
        last = mx.array([following[-1]], mx.int32)
        # The first draft was made with what was taken.
        drafts = self._model.draft_block(
            last, hidden[:, -1:], None, num_tokens + 1, sample, mx.int32
        )
        return cast(mx.array, drafts.reshape(-1))

    def _feed(
        self, hidden: mx.array, following: Sequence[int], sample: Callable[[mx.array], mx.array]
    ) -> None:
        """Let the drafter keep what it drafted right, and take the rest; and make a draft."""
        tokens = mx.array([following], mx.int32)
        right = len(following) - 1
        self._model.accept_verified_tokens(
            hidden, tokens[:, :right], right, [following[-1]], sample, mx.int32
        )


class _ParallelDrafts:
    """The calls to a drafter that makes several tokens in one pass (DFlash)."""

    def __init__(self, model: Any, target: Any) -> None:
        self._model = model
        self._target = target
        self.reset()

    def reset(self) -> None:
        """Forget the row."""
        self._cache = self._model.reset(self._target)

    def draft(
        self,
        hidden: mx.array,
        following: Sequence[int],
        verified: int | None,
        num_tokens: int,
        chosen: _Chosen,
    ) -> mx.array:
        """Return this many drafts [drafted] after the last token of ``following``. Its cache holds
        what was observed alone, so nothing of wrong drafts is in there."""
        drafts = self._model.draft_block(
            following[-1], hidden, self._cache, num_tokens + 1, chosen, mx.int32
        )
        return cast(mx.array, drafts.reshape(-1))


class _Chosen:
    """What drafters call a sampler: it chooses as the row would, at one place after the other."""

    def __init__(self, choose: Choose, *, keeps_chances: bool) -> None:
        self._choose = choose
        self._keeps_chances = keeps_chances
        self._made = 0
        self._chances: list[mx.array] = []

    def __call__(self, logits: mx.array) -> mx.array:
        """Return tokens for logits [..., vocabulary] at the next places."""
        flat = logits.reshape(-1, logits.shape[-1])
        tokens = self._choose(flat, self._made)
        self._made += flat.shape[0]
        if self._keeps_chances:
            chances = mx.softmax(flat.astype(mx.float32), axis=-1)
            self._chances.append(mx.take_along_axis(chances, tokens[:, None], axis=-1)[:, 0])
        return tokens.reshape(logits.shape[:-1])

    def likely(self, threshold: float) -> int:
        """Return how many tokens come before the first one that is less likely than that."""
        chances: Any = mx.concatenate(self._chances).tolist() if self._chances else []
        below = (place for place, chance in enumerate(chances) if chance < threshold)
        return next(below, self._made)


class _Translated:
    """A sampler for a drafter that knows only some of the vocabulary, by numbers of its own."""

    def __init__(self, chosen: _Chosen, targets: mx.array, vocabulary: int) -> None:
        self._chosen = chosen
        self._targets = targets
        self._own = mx.zeros(vocabulary, mx.int32)
        self._own[targets] = mx.arange(targets.size, dtype=mx.int32)
        self._vocabulary = vocabulary

    def __call__(self, logits: mx.array) -> mx.array:
        """Return the drafter's numbers of tokens for its logits [..., draft vocabulary]."""
        whole = mx.full((*logits.shape[:-1], self._vocabulary), -mx.inf, logits.dtype)
        whole[..., self._targets] = logits
        return self._own[self._chosen(whole)]


def _draft_vocabulary(model: Any) -> tuple[mx.array, int] | None:
    """Return the tokens that an EAGLE-3 drafter knows, and the size of the target's vocabulary;
    None: it knows them all."""
    if not getattr(model, "uses_draft_vocab", False):
        return None
    targets = mx.arange(model.draft_vocab_size, dtype=mx.int32) + model.d2t
    return targets, int(model.target_vocab_size)


def _likeliest(logits: mx.array) -> mx.array:
    return mx.argmax(logits, axis=-1)

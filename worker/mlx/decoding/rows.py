"""The rows of one model: a prompt in prefill, a batch that decodes, searches beside it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import mlx.core as mx

from lmx.worker.engine import Hypothesis, RowDrafts, RowRequest, RowStarted, RowToken, StepOutput
from lmx.worker.mlx.decoding.beam import BeamGroup
from lmx.worker.mlx.decoding.decode import DecodeBatch, DecodeRow, DecodeStep, Joining
from lmx.worker.mlx.decoding.pace import PrefillPace
from lmx.worker.mlx.decoding.prefill import PromptPrefill
from lmx.worker.mlx.decoding.speculation import Speculation
from lmx.worker.mlx.model.forward import Forward, PromptCache, cache_states
from lmx.worker.mlx.prefix.cache import PrefixCache
from lmx.worker.mlx.sampling.sampler import RowSampler

# A prefix that comes from disk slower than this is waited for no longer.
_FETCH_WAIT_S: Final = 2.0


@dataclass(slots=True)
class _Arrival:
    """A row whose prefill has not begun. ``arguments``: see :meth:`Forward.embed`."""

    row: RowRequest
    arguments: dict[str, Any]
    arrived_s: float


@dataclass(slots=True)
class _Made:
    """What a step makes, collected on the way."""

    tokens: list[RowToken] = field(default_factory=list)
    prefill_tokens: int = 0
    started: list[RowStarted] = field(default_factory=list)
    failed: list[tuple[int, Exception]] = field(default_factory=list)
    found: list[tuple[int, Sequence[Hypothesis]]] = field(default_factory=list)
    drafts: list[RowDrafts] = field(default_factory=list)
    search_tokens: int = 0

    def output(self) -> StepOutput:
        return StepOutput(
            tokens=self.tokens,
            prefill_tokens=self.prefill_tokens,
            started=self.started,
            failed=self.failed,
            found=self.found,
            drafts=self.drafts,
            search_tokens=self.search_tokens,
        )


class RowSet:
    """Admits, steps and removes rows as :class:`lmx.worker.engine.Generator` says.

    Called in mlx-vlm's generation stream. What rows compute is kept in ``prefixes``, and rows
    begin with what is found there. ``speculation`` steps the batch, where there is one.
    Without ``batching`` rows run one after the other.
    """

    def __init__(
        self,
        forward: Forward,
        sampler: RowSampler,
        pace: PrefillPace,
        prefixes: PrefixCache | None,
        speculation: Speculation | None,
        *,
        batching: bool,
    ) -> None:
        self._batching = batching
        self._forward = forward
        self._sampler = sampler
        self._pace = pace
        self._prefixes = prefixes
        self._speculation = speculation
        self._batch = DecodeBatch(forward, sampler)
        self._arrival: _Arrival | None = None
        self._prefill: PromptPrefill | None = None
        self._stops: Sequence[int] = ()
        self._searches: dict[int, BeamGroup] = {}

    @property
    def idle(self) -> bool:
        """Whether no row lives."""
        return not self._filling and not self._decoding

    def can_admit(self) -> bool:
        """One prompt at a time: prefill of several at once is wrong for some models, and none
        of them would have its first token sooner."""
        return not self._filling and (self._batching or not self._decoding)

    def admit(self, row: RowRequest) -> None:
        """Embed the prompt, lazily."""
        arguments = self._forward.embed(row.prompt)
        if row.beam is None:
            self._sampler.add(
                row.row_id, row.sampling, row.prompt, row.constraint, row.top_logprobs
            )
            if self._speculation is not None:
                self._speculation.add(row.row_id, row.assist)
        self._arrival = _Arrival(row, arguments, time.monotonic())

    def step(self) -> StepOutput:
        """Advance all that decodes, then the prompt in prefill by a chunk."""
        made = _Made()
        decoding = self._decoding
        began_s = time.perf_counter()
        if self._batch.rows:
            self._decode(made)
        for row_id in list(self._searches):
            self._search(row_id, made)
        if self._arrival is not None and self._is_fetched(self._arrival, decoding):
            self._fill(self._arrival.row, decoding, made)
        elif self._prefill is not None:
            self._fill(self._prefill.row, decoding, made)
        elif decoding:
            self._pace.decoded(time.perf_counter() - began_s)
        return made.output()

    def remove(self, row_id: int) -> None:
        """Take a row out of wherever it is."""
        if self._arrival is not None and self._arrival.row.row_id == row_id:
            self._arrival = None
            self._forget(row_id)
        elif self._prefill is not None and self._prefill.row.row_id == row_id:
            self._prefill = None
            self._forget(row_id)
            mx.clear_cache()
        elif self._searches.pop(row_id, None) is None:
            self._end([row_id], keep=True)

    @property
    def _filling(self) -> bool:
        return self._arrival is not None or self._prefill is not None

    @property
    def _decoding(self) -> bool:
        return bool(self._batch.rows or self._searches)

    def _decode(self, made: _Made) -> None:
        step = self._step_batch()
        made.tokens += step.tokens
        made.failed += step.failed
        made.drafts += step.drafts
        self._end([row_id for row_id, _ in step.failed], keep=False)
        self._end([row.row_id for row in self._batch.rows if row.left_tokens <= 0], keep=True)

    def _step_batch(self) -> DecodeStep:
        if self._speculation is None:
            return self._batch.step()
        alone = not self._filling and not self._searches
        return self._speculation.step(self._batch, alone=alone)

    def _search(self, row_id: int, made: _Made) -> None:
        try:
            found = self._searches[row_id].step()
        except Exception as error:  # Its constraint's: it concerns this row alone.
            made.failed.append((row_id, error))
            del self._searches[row_id]
            return
        made.search_tokens += 1
        if found is not None:
            made.found.append((row_id, found))
            del self._searches[row_id]

    def _is_fetched(self, arrival: _Arrival, decoding: bool) -> bool:
        """Return whether its prefix is in memory, as far as it will be: while others decode, a
        row waits for the disk without them."""
        if self._prefixes is None or not decoding or arrival.row.prompt_logprobs:
            return True
        if time.monotonic() - arrival.arrived_s > _FETCH_WAIT_S:
            return True
        return self._prefixes.fetch(arrival.row.prompt, arrival.row.cache_salt)

    def _fill(self, row: RowRequest, decoding: bool, made: _Made) -> None:
        """Take a row's prompt a chunk further, and let the row join when it is through."""
        logits = None
        try:
            if self._arrival is not None:
                self._begin_prefill(self._arrival, decoding)
            assert self._prefill is not None
            prefill = self._prefill
            self._advance_prefill(prefill, decoding, made)
            if prefill.ready:
                logits = self._finish_prefill(prefill, made)
        except Exception as error:  # Such as for a buffer that is too large for the device.
            # Until it joins, its arrays are its own, and nobody else is concerned.
            made.failed.append((row.row_id, error))
            self.remove(row.row_id)
            return
        if logits is not None:
            self._join(prefill, logits, made)

    def _begin_prefill(self, arrival: _Arrival, decoding: bool) -> None:
        row, prompt_cache, cached_tokens = arrival.row, None, 0
        self._arrival, self._stops = None, ()
        if self._prefixes is not None:
            if not row.prompt_logprobs:
                warm = self._prefixes.lookup(row.prompt, row.cache_salt, wait=not decoding)
                if warm is not None:
                    prompt_cache, cached_tokens = warm
            self._stops = self._prefixes.checkpoints(row.prompt, cached_tokens, row.cache_salt)
        self._prefill = PromptPrefill(
            self._forward,
            row,
            arrival.arguments,
            self._forward.new_cache() if prompt_cache is None else prompt_cache,
            cached_tokens,
        )

    def _advance_prefill(self, prefill: PromptPrefill, decoding: bool, made: _Made) -> None:
        if prefill.ready:
            return
        depth_tokens = prefill.done_tokens
        chunk_tokens = self._pace.chunk(depth_tokens, decoding=decoding)
        began_s = time.perf_counter()
        done_tokens = prefill.advance(chunk_tokens, self._stops)
        took_s = time.perf_counter() - began_s
        self._pace.prefilled(done_tokens, took_s, depth_tokens, decoding=decoding)
        made.prefill_tokens += done_tokens
        if prefill.done_tokens in self._stops:
            self._keep_prompt(prefill)

    def _finish_prefill(self, prefill: PromptPrefill, made: _Made) -> mx.array:
        """Return the logits of the first token to make, evaluated."""
        made.prefill_tokens += len(prefill.row.prompt) - prefill.done_tokens
        logits = prefill.finish()
        mx.eval(logits, cache_states(prefill.prompt_cache))
        self._keep_prompt(prefill)
        return logits

    def _join(self, prefill: PromptPrefill, logits: mx.array, made: _Made) -> None:
        row, deltas = prefill.row, prefill.rope_deltas()
        self._prefill = None
        started = RowStarted(row.row_id, prefill.cached_tokens, prefill.scores)
        if row.beam is not None:
            self._start_search(row, prefill.prompt_cache, logits, deltas)
            made.started.append(started)
            return
        decode_row = DecodeRow(row.row_id, list(row.prompt), row.max_tokens, row.cache_salt)
        failed = self._batch.join(Joining(decode_row, prefill.prompt_cache, logits, deltas))
        if failed:
            made.failed += failed
            self._forget(row.row_id)
        else:
            made.started.append(started)
        mx.clear_cache()

    def _start_search(
        self, row: RowRequest, prompt_cache: PromptCache, logits: mx.array, deltas: mx.array | None
    ) -> None:
        assert row.beam is not None

        def forward(tokens: mx.array, cache: PromptCache) -> mx.array:
            rows = tokens.shape[0]
            each = None if deltas is None else mx.broadcast_to(deltas, (rows, deltas.shape[1]))
            return self._forward.decode(tokens, cache, each)[:, -1, :]

        self._searches[row.row_id] = BeamGroup(
            forward,
            prompt_cache,
            logits,
            row.beam,
            row.max_tokens,
            row.constraint,
            row.top_logprobs,
            row.sampling,
            row.prompt,
        )

    def _keep_prompt(self, prefill: PromptPrefill) -> None:
        if self._prefixes is not None:
            tokens = prefill.row.prompt[: prefill.done_tokens]
            self._prefixes.store(tokens, prefill.prompt_cache, prefill.row.cache_salt)

    def _end(self, row_ids: Sequence[int], *, keep: bool) -> None:
        """Let decoding rows go. With ``keep``, what they computed is there for the next turn."""
        for row_id in row_ids:
            self._forget(row_id)
            here = self._batch.find(row_id)
            if keep and self._prefixes is not None and here is not None:
                row, place = here
                self._prefixes.store(row.tokens, self._batch.prompt_cache, row.salt, place)
        self._batch.leave(row_ids)

    def _forget(self, row_id: int) -> None:
        self._sampler.remove(row_id)
        if self._speculation is not None:
            self._speculation.remove(row_id)

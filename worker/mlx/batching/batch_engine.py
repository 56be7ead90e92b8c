"""The rows of one model: prompts that are read, rows that decode, and beam searches.

A step either advances everything that decodes or reads one chunk of one prompt, in turns if there
is both. Computed tokens are returned before a chunk is begun: no token waits for another row's
prompt.
"""

import copy
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import mlx.core as mx
import numpy as np
import structlog

from lmx.worker.engine.interfaces import Ranks
from lmx.worker.engine.values import (
    PrefillFinished,
    RereadPrompt,
    SequenceRequest,
    StepOutput,
)
from lmx.worker.mlx.batching.buckets import DecodeBuckets
from lmx.worker.mlx.batching.next_work import Shortest, Standing, Work, next_work
from lmx.worker.mlx.batching.prefill_queue import PrefillQueue, Prompt
from lmx.worker.mlx.decoding.batch_mode import BatchMode
from lmx.worker.mlx.decoding.beam import BeamGroup
from lmx.worker.mlx.decoding.decode import DecodeBatch, DecodeStep, Joining
from lmx.worker.mlx.decoding.pace import PrefillPace, pauses
from lmx.worker.mlx.decoding.prefill import PromptPrefill
from lmx.worker.mlx.decoding.rollback import Blocks
from lmx.worker.mlx.decoding.sequence import DecodeSequence
from lmx.worker.mlx.decoding.speculation import Speculation
from lmx.worker.mlx.device.gpu import on_gpu
from lmx.worker.mlx.media.encoding import FeatureCache
from lmx.worker.mlx.media.spans import media_of
from lmx.worker.mlx.model.forward import Forward, PromptCache, cache_states
from lmx.worker.mlx.prefix.cache import AtomicSpans, PrefixCache
from lmx.worker.mlx.prefix.reread import RecentPrompts
from lmx.worker.mlx.prefix.tree import Tokens
from lmx.worker.mlx.sampling.sampler import BatchSampler
from lmx.worker.scheduling.engine_errors import is_device_failure

log = structlog.get_logger()

# A row waits no longer than this for a prefix from disk.
_FETCH_WAIT_S: Final = 2.0


_PERSON_S: Final = 60.0
"""For this long after a row that is not of the background the next one is expected."""


class _Search(NamedTuple):
    group: BeamGroup
    background: bool


class BatchEngine:
    """Admits, steps and removes rows as ``Generator`` says.

    It is called in mlx-vlm's generation stream. ``prefixes`` keeps what rows compute, and rows
    begin with the stored part of their prompt. ``speculation``, if there is one, steps the decoding
    rows while they are in one bucket. ``features`` are those of pictures and sounds that were
    encoded before; None for a model that takes text only. ``mode`` says which rows run at the same
    time. ``ranks``: those of a divided model, of which this engine computes one.

    While there is a row that is none of the background, those of the background stand still where
    they are, with their caches: that costs the others nothing, and nothing has to be read again.
    Whoever comes waits for the step that is under way, so their prompts are read in small chunks
    while others have come recently.
    """

    def __init__(
        self,
        forward: Forward,
        sampler: BatchSampler,
        pace: PrefillPace,
        prefixes: PrefixCache | None,
        speculation: Speculation | None,
        blocks: Blocks,
        features: FeatureCache | None = None,
        *,
        mode: BatchMode,
        ranks: Ranks | None = None,
    ) -> None:
        self._mode = mode
        self._ranks = ranks
        self._forward = forward
        self._sampler = sampler
        self._pace = pace
        self._prefixes = prefixes
        self._recent = RecentPrompts()
        self._speculation = speculation
        self._features = features
        self._buckets = DecodeBuckets(forward, sampler, blocks, together=self.together, ranks=ranks)
        self._prompts = PrefillQueue(self._found)
        self._searches: dict[int, _Search] = {}
        self._shortest = Shortest.WAITED_FOR_LONGER
        self._foreground_s = float("-inf")
        """When there was a row that is not of the background, on the monotonic clock."""

    @property
    def together(self) -> bool:
        """Whether rows of similar length decode in one forward pass."""
        return self._mode is BatchMode.BATCHED

    @property
    def idle(self) -> bool:
        """Whether there is no row."""
        return not (self._prompts or self._buckets or self._searches)

    def can_admit(self) -> bool:
        """Return whether a row may begin: always; but if rows run one by one, only while there is
        no other."""
        return self._mode is not BatchMode.DISABLED or self.idle

    def admit(self, row: SequenceRequest) -> None:
        """Add a row, which waits until its prompt is read."""
        self._enter(row)
        self._prompts.add(row)

    def step(self, interrupted: Callable[[], bool] = lambda: False) -> StepOutput:
        """Advance everything that decodes, or read a chunk of a prompt. The chunk pauses between
        two layers if it is ``interrupted``."""
        made = StepOutput()
        self._buckets.held = self._has_foreground
        if self._buckets.held:
            self._foreground_s = time.monotonic()
        decoding = self._decoding
        prompt = self._next_prompt(decoding) if self._prompts else None
        has_prompt = prompt is not None
        is_ahead = has_prompt and self._buckets.ahead
        standing = Standing(
            self._shortest, decoding, has_prompt, self._buckets.longer_due, is_ahead
        )
        work = next_work(standing)
        if work is Work.RETURN:
            self._add_step(self._buckets.flush(), made)
        elif work is Work.READ:
            assert prompt is not None
            self._read(prompt, decoding, made, interrupted)
        else:
            self._advance(made, alone=work is Work.STEP, longer=work is Work.STEP_LONGER)
        self._shortest = standing.after(work)
        return made

    def remove(self, sequence_id: int) -> None:
        """Remove a row, wherever it is."""
        if (prompt := self._prompts.remove(sequence_id)) is not None:
            self._forget(sequence_id)
            if prompt.prefill is not None:
                mx.clear_cache()
        elif self._searches.pop(sequence_id, None) is None:
            self._end([sequence_id], keep=True)

    def flush(self) -> StepOutput:
        """Return the tokens that are drawn and not returned. A row's cache then lacks its last
        token, as that of a prompt that was read does."""
        made = StepOutput()
        self._add_step(self._buckets.flush(), made)
        return made

    def preempt(self, sequence_id: int) -> Sequence[int] | None:
        """Remove a row, and return the tokens that it has made; None: it is a beam search, and
        stays."""
        if sequence_id in self._searches:
            return None
        if (prompt := self._prompts.remove(sequence_id)) is not None:
            self._forget(sequence_id)
            if prompt.prefill is not None:
                self._keep_begun(prompt.prefill)
                mx.clear_cache()
            return prompt.row.generated
        here = self._buckets.find(sequence_id)
        if here is None:
            return None
        made = here.row.tokens[len(here.row.tokens) - here.row.generated_tokens :]
        self._end([sequence_id], keep=True)
        self.shrink()
        return made

    def _keep_begun(self, prefill: PromptPrefill) -> None:
        """Keep what a preempted row has read. If the rest of its chunk can't be computed, nothing
        is kept: it fails, if it must, when it is read again."""
        try:
            prefill.complete()
            self._keep_prompt(prefill)
        except Exception as error:
            if self._ranks is not None or is_device_failure(error):
                raise
            log.warning("prompt.not_kept", sequence=prefill.row.sequence_id, reason=str(error))

    def shrink(self) -> None:
        """Free the memory that is reserved for rows that may come."""
        self._buckets.give_up_slots()

    @property
    def _has_foreground(self) -> bool:
        return (
            self._prompts.has_foreground
            or self._buckets.has_foreground
            or any(not search.background for search in self._searches.values())
        )

    @property
    def _decoding(self) -> bool:
        return bool(self._buckets.active or self._active_searches)

    @property
    def _active_searches(self) -> Sequence[int]:
        held = self._buckets.held
        return [
            sequence_id
            for sequence_id, search in self._searches.items()
            if not (held and search.background)
        ]

    def _next_prompt(self, decoding: bool) -> Prompt | None:
        """Return the prompt of which a chunk can be read; None: all of them wait, and others
        decode."""
        held = self._buckets.held
        prompt = self._prompts.next(self._can_begin, held=held)
        if prompt is None and not decoding:
            prompt = self._prompts.next(lambda _: True, held=held)
        return prompt

    def _found(self, prompt: Prompt) -> int | None:
        if self._prefixes is None or not self._prefixes.enabled:
            return None
        if prompt.row.prompt_logprobs is not None:
            return 0
        return self._prefixes.found(prompt.tokens, prompt.row.cache_salt, self._atomic(prompt))

    def _atomic(self, prompt: Prompt) -> AtomicSpans:
        """Return the parts of a prompt that must be processed in one go."""
        media = media_of(prompt.row)
        if media is None or not self._forward.atomic_media:
            return ()
        return [(span.start, span.end) for span in media.spans]

    def _advance(self, made: StepOutput, *, alone: bool, longer: bool) -> None:
        """Advance everything that decodes by a step: a bucket of ``longer`` rows or the shortest
        bucket. If it is not ``alone``, the tokens that it draws are returned."""
        began_s = time.perf_counter()
        if self._speculation is not None and self._buckets.only is None:
            self._speculation.interrupt()
        if self._buckets.active:
            step = self._buckets.step(
                lambda batch: self._step_batch(batch, alone=alone), longer=longer
            )
            self._add_step(step, made)
        for sequence_id in self._active_searches:
            self._search(sequence_id, made)
        if not alone:
            self._add_step(self._buckets.flush(), made)
        self._pace.decoded(time.perf_counter() - began_s)

    def _add_step(self, step: DecodeStep, made: StepOutput) -> None:
        made.tokens += step.tokens
        made.drafts += step.drafts
        if step.failed:
            made.failed += step.failed
            self._end([sequence_id for sequence_id, _ in step.failed], keep=False)
        self._end(
            [row.sequence_id for row in self._buckets.rows if row.left_tokens <= 0], keep=True
        )

    def _step_batch(self, batch: DecodeBatch, *, alone: bool) -> DecodeStep:
        if self._speculation is None:
            return batch.step()
        return self._speculation.step(batch, alone=alone and not self._active_searches)

    def _search(self, sequence_id: int, made: StepOutput) -> None:
        try:
            found = self._searches[sequence_id].group.step()
        except Exception as error:  # Its constraint's: it concerns this row alone.
            made.failed.append((sequence_id, error))
            del self._searches[sequence_id]
            return
        made.search_tokens += 1
        if found is not None:
            made.found.append((sequence_id, found))
            del self._searches[sequence_id]

    def _can_begin(self, prompt: Prompt) -> bool:
        """Return whether its prefix is in memory, as far as it will be. While other rows have work,
        they don't wait for the disk with this one."""
        row = prompt.row
        if self._prefixes is None or row.prompt_logprobs is not None:
            return True
        if time.monotonic() - prompt.arrived_s > _FETCH_WAIT_S:
            return True
        return self._prefixes.fetch(prompt.tokens, row.cache_salt, self._atomic(prompt))

    def _read(
        self, prompt: Prompt, decoding: bool, made: StepOutput, interrupted: Callable[[], bool]
    ) -> None:
        """Read the next chunk of a row's prompt, or continue with it, and let the row join when its
        prompt is finished."""
        row = prompt.row
        made.read = row.sequence_id
        began_s = time.perf_counter()
        # Once, so that the chunk that is read is the one whose pictures are encoded.
        yields = self._yields(row)
        try:
            if prompt.prefill is None:
                prompt.prefill = self._begin_prefill(prompt, decoding)
            prefill = prompt.prefill
            made.cached_tokens = prefill.cached_tokens
            encodes = self._encode(prompt, prefill, decoding, yields, made, interrupted)
            if not encodes:
                self._advance_prefill(prompt, prefill, decoding, yields, made, interrupted)
            # On each rank it would be another time, and they have to choose the same prompts.
            took_s = 0.0 if self._ranks is not None else time.perf_counter() - began_s
            self._prompts.read(row.sequence_id, took_s)
            if encodes or not prefill.ready:
                return
            logits = self._finish_prefill(prefill, made)
        except Exception as error:  # Such as for a buffer that is too large for the device.
            if self._ranks is not None:
                raise  # The other ranks have computed what this one has not.
            # Until it joins, its arrays are its own, and no other row is concerned. If it is the
            # device that failed, also what others compute, the batch sees that in the error.
            made.failed.append((row.sequence_id, error))
            self.remove(row.sequence_id)
            return
        duplicates = self._prompts.pop_duplicates(prompt)
        self._prompts.remove(row.sequence_id)
        # An update in place must not reach another row's cache.
        caches = [copy.deepcopy(prefill.prompt_cache) for _ in duplicates]
        self._join(
            row, prefill, prefill.cached_tokens, prefill.prompt_cache, logits, made, prompt.reread
        )
        for duplicate, prompt_cache in zip(duplicates, caches, strict=True):
            made.prefill_tokens += 1
            self._join(duplicate, prefill, len(row.prompt) - 1, prompt_cache, logits, made)
        if not (decoding and on_gpu()):
            # On a GPU the rows that decode would have to allocate their buffers again.
            mx.clear_cache()

    def _begin_prefill(self, prompt: Prompt, decoding: bool) -> PromptPrefill:
        row, prompt_cache, cached_tokens = prompt.row, None, 0
        if self._prefixes is not None:
            if row.prompt_logprobs is None:
                warm = self._prefixes.lookup(
                    prompt.tokens, row.cache_salt, self._atomic(prompt), wait=not decoding
                )
                if warm is not None:
                    prompt_cache, cached_tokens = warm
            prompt.checkpoints = self._prefixes.checkpoints(
                prompt.tokens, cached_tokens, row.cache_salt
            )
        if self._ranks is not None:
            self._ranks.check("cached tokens", (row.sequence_id, cached_tokens))
        prompt.reread = self._explain(prompt, cached_tokens)
        if prompt_cache is None:
            prompt_cache = self._forward.new_cache()
        forward = self._forward.with_adapter(row.adapter)
        observed_tokens = 0
        if self._speculation is not None and row.beam is None:
            observed_tokens = self._speculation.observed_tokens(row.sequence_id)
        return PromptPrefill(forward, row, prompt_cache, cached_tokens, observed_tokens)

    def _explain(self, prompt: Prompt, cached_tokens: int) -> RereadPrompt | None:
        """Return why a prompt will be read that was read before; None: it was not."""
        row = prompt.row
        overlap = self._recent.overlap(prompt.tokens, row.cache_salt, cached_tokens)
        if overlap is None:
            return None
        kept = None
        if self._prefixes is not None:
            kept = self._prefixes.kept(prompt.tokens, row.cache_salt, self._atomic(prompt))
        return overlap.explained(kept, scored=row.prompt_logprobs is not None)

    def _encode(
        self,
        prompt: Prompt,
        prefill: PromptPrefill,
        decoding: bool,
        yields: bool,
        made: StepOutput,
        interrupted: Callable[[], bool],
    ) -> bool:
        """Continue to encode the next picture, sound or video that the prompt's next chunk needs,
        and return whether that was this step's work. One that was encoded before needs no step."""
        media = prefill.media
        if media is None or prefill.chunk is not None:
            return False
        begin, row = prefill.done_tokens, prefill.row
        end = len(row.prompt)
        if not prefill.ready:
            chunk_end = begin + self._pace.chunk(begin, decoding=decoding, yields=yields)
            end = min(end, max(chunk_end, prefill.atomic_tokens))
        assert self._features is not None
        while (span := media.missing(begin, end)) is not None:
            features = self._features.get(span.digest, row.cache_salt)
            if features is not None:
                media.put(span, features)
                continue
            encoding = media.encoding
            if encoding is None:
                # Recording it is a step of its own: for a large picture it takes a while.
                forward = self._forward.with_adapter(row.adapter)
                media.encoding = forward.encode(span, self._pace.part_s)
                return True
            before = encoding.done_share
            budget_s = self._pace.budget_s(decoding, yields=yields)
            if self._prompts.is_passed or interrupted():
                budget_s = min(budget_s, max(self._pace.part_s, self._owed_s(prompt)))
            if encoding.advance(budget_s):
                self._features.put(span.digest, row.cache_salt, encoding.features)
                media.put(span, encoding.features)
            tokens = len(span.places)
            made.media_tokens += int(tokens * encoding.done_share) - int(tokens * before)
            return True
        return False

    def _advance_prefill(
        self,
        prompt: Prompt,
        prefill: PromptPrefill,
        decoding: bool,
        yields: bool,
        made: StepOutput,
        interrupted: Callable[[], bool],
    ) -> None:
        if prefill.ready:
            return
        stops = self._prompts.stops(prompt)
        began_s = time.perf_counter()
        chunk = prefill.chunk
        if chunk is None:
            most_tokens = self._pace.chunk(prefill.done_tokens, decoding=decoding, yields=yields)
            chunk = prefill.begin(most_tokens, stops)
            chunk.most_tokens, chunk.decoding, chunk.yields = most_tokens, decoding, yields
        limit_s = self._pace.budget_s(decoding, yields=yields)
        if limit_s >= self._pace.budget_s(chunk.decoding, yields=chunk.yields):
            # Its length was chosen for that: if it takes longer, the next one is shorter.
            limit_s = float("inf")
        owed_s, before = self._owed_s(prompt), chunk.done_tokens

        def paused(spent_s: float, next_s: float) -> bool:
            awaited = self._prompts.is_passed or interrupted()
            return pauses(spent_s, next_s, limit_s, owed_s, awaited)

        # All ranks would have to pause at the same layer.
        is_done = self._ranks is not None or chunk.compute(paused)
        if is_done:
            prefill.complete()
        chunk.took_s += time.perf_counter() - began_s
        made.prefill_tokens += (chunk.tokens if is_done else chunk.done_tokens) - before
        if not is_done:
            return
        self._pace.prefilled(
            chunk.tokens,
            chunk.took_s,
            chunk.end - chunk.tokens,
            decoding=chunk.decoding,
            yields=chunk.yields,
            most_tokens=chunk.most_tokens,
            layer_s=chunk.layer_s,
        )
        # One that came in a pause shares perhaps less than the chunk, which is cut for it later.
        if any(chunk.end - chunk.tokens < stop <= chunk.end for stop in stops):
            self._keep_prompt(prefill)

    def _owed_s(self, prompt: Prompt) -> float:
        """Return for how long a prompt is read though somebody waits. What prompts of the
        background owe each other is nothing to somebody who comes."""
        return 0.0 if prompt.row.background and not self._prompts.is_passed else prompt.owed_s

    def _yields(self, row: SequenceRequest) -> bool:
        """Return whether a row's prompt is read in small chunks, because somebody may come. If
        there is somebody, it is read for them."""
        return (
            row.background
            and not self._buckets.held
            and time.monotonic() - self._foreground_s < _PERSON_S
        )

    def _finish_prefill(self, prefill: PromptPrefill, made: StepOutput) -> mx.array | None:
        """Return the logits of the first token to make, evaluated; None: decoding processes the
        prompt's last token."""
        logits = None
        made.prefill_tokens += len(prefill.row.prompt) - prefill.done_tokens
        # A cache that holds nothing has no dtype: mlx-vlm would join it, and with it all rows, as
        # float32.
        if prefill.row.beam is not None or not prefill.chunked or not prefill.done_tokens:
            logits = prefill.finish()
            mx.eval(logits, cache_states(prefill.prompt_cache))
        self._recent.note(
            self._keep_prompt(prefill), len(prefill.row.prompt), prefill.row.cache_salt
        )
        return logits

    def _join(
        self,
        row: SequenceRequest,
        prefill: PromptPrefill,
        cached_tokens: int,
        prompt_cache: PromptCache,
        logits: mx.array | None,
        made: StepOutput,
        reread: RereadPrompt | None = None,
    ) -> None:
        """Let a row decode, with its own cache of its prompt."""
        started = PrefillFinished(row.sequence_id, cached_tokens, prefill.scores, reread)
        if row.max_tokens == 0:
            # The prompt was all that had to be computed.
            self._forget(row.sequence_id)
            made.started.append(started)
            return
        deltas = prefill.rope_deltas()
        if row.beam is not None:
            assert logits is not None
            self._start_search(row, prompt_cache, logits, deltas)
            made.started.append(started)
            return
        decode_row = DecodeSequence(
            row.sequence_id,
            list(row.prompt),
            row.max_tokens,
            row.cache_salt,
            row.generated_tokens,
            adapter=row.adapter,
            background=row.background,
            media=media_of(row),
        )
        failed = self._buckets.join(Joining(decode_row, prompt_cache, logits, deltas))
        if failed:
            made.failed += failed
            self._forget(row.sequence_id)
            return
        if self._speculation is not None and prefill.hidden is not None:
            self._speculation.observe(row.sequence_id, prefill.hidden)
        made.started.append(started)

    def _start_search(
        self,
        row: SequenceRequest,
        prompt_cache: PromptCache,
        logits: mx.array,
        deltas: mx.array | None,
    ) -> None:
        assert row.beam is not None
        adapted = self._forward.with_adapter(row.adapter)

        def forward(tokens: mx.array, cache: PromptCache) -> mx.array:
            rows = tokens.shape[0]
            each = None if deltas is None else mx.broadcast_to(deltas, (rows, deltas.shape[1]))
            return adapted.decode(tokens, cache, each)[:, -1, :]

        group = BeamGroup(
            forward,
            prompt_cache,
            logits,
            row.beam,
            row.max_tokens,
            row.constraint,
            row.top_logprobs,
            row.sampling,
            row.prompt,
            together=self.together,
        )
        self._searches[row.sequence_id] = _Search(group, row.background)

    def _keep_prompt(self, prefill: PromptPrefill) -> Tokens:
        """Keep what was computed of a prompt, and return the tokens of that."""
        keys = np.asarray(prefill.keys, np.int32)
        self._store(keys, prefill.prompt_cache, prefill.row.cache_salt)
        return keys

    def _store(
        self, keys: Tokens, prompt_cache: PromptCache, salt: str, place: int | None = None
    ) -> None:
        """Keep what a row's cache holds. It is not needed: if that fails, such as for memory that
        is short, no row fails."""
        if self._prefixes is None:
            return
        try:
            self._prefixes.store(keys, prompt_cache, salt, place)
        except Exception as error:
            # Each rank must keep the same. What was computed on a device that failed is wrong.
            if self._ranks is not None or is_device_failure(error):
                raise
            log.warning("prefix_cache.not_stored", tokens=len(keys), reason=str(error))

    def _end(self, sequence_ids: Sequence[int], *, keep: bool) -> None:
        """Remove decoding rows. With ``keep``, their caches are stored for the next turn."""
        if not sequence_ids:
            return
        for sequence_id in sequence_ids:
            self._forget(sequence_id)
            here = self._buckets.find(sequence_id)
            if not keep or here is None:
                continue
            row = here.row
            keys = np.asarray(row.keys, np.int32)
            self._store(keys, here.prompt_cache, row.salt, here.place)
            self._recent.note(keys, len(row.tokens) - row.generated_tokens, row.salt)
        self._buckets.leave(sequence_ids)

    def _enter(self, row: SequenceRequest) -> None:
        if row.beam is None:
            prompt = row.prompt[: len(row.prompt) - row.generated_tokens]
            self._sampler.add(
                row.sequence_id,
                row.sampling,
                prompt,
                row.constraint,
                row.top_logprobs,
                row.generated,
            )
            if self._speculation is not None:
                self._speculation.add(row.sequence_id, row.assist)

    def _forget(self, sequence_id: int) -> None:
        self._sampler.remove(sequence_id)
        if self._speculation is not None:
            self._speculation.remove(sequence_id)

"""Whether a model does in lmx what its library makes of it alone: in chunks, in company, after a
prefix. And what lmx may do with it, and how much memory it counts for its caches."""

import copy
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest import mock

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_vlm.generate.common import generation_stream

from lmx.protocol.errors import OperationError
from lmx.protocol.messages.specs import PrefixCacheSpec
from lmx.protocol.models.checkpoint import read_checkpoint_config
from lmx.protocol.models.memory import kv_bytes
from lmx.protocol.states import ModelKind
from lmx.worker.engine.values import SequenceRequest, SequenceSampling
from lmx.worker.mlx.decoding.batch_mode import can_batch, can_run_serially
from lmx.worker.mlx.decoding.prefill import PromptPrefill
from lmx.worker.mlx.decoding.rollback import (
    Blocks,
    Rollback,
    Undo,
    probe_multi_token,
    put_windows_in_order,
)
from lmx.worker.mlx.device.cpu import use_few_operations
from lmx.worker.mlx.engine import _can_batch as rows_go_together
from lmx.worker.mlx.memory.estimate import estimate
from lmx.worker.mlx.model import batch_slots, library
from lmx.worker.mlx.model.batch_slots import can_be_single, single_row
from lmx.worker.mlx.model.forward import Forward, PromptCache, cache_states
from lmx.worker.mlx.model.kv_quantization import quantize_kv
from lmx.worker.mlx.model.load import load_model
from lmx.worker.mlx.prefix.cache import PrefixCache
from lmx.worker.mlx.prefix.state import CacheLayout
from tests.support.models.media_models import HEARING, make_media_model, tiny_towers
from tests.support.models.text_models import CONFIGS, make_text_model
from tests.support.models.tiny_models import make_tokenizer
from tests.support.models.vlm_models import SEEING, make_vlm_model, text_logits
from tests.support.rigs.engine_rig import functions_of_mlx, spec_of

CHUNK_TOKENS: Final = 8
HELD_TOKENS: Final = 512
PROMPT: Final = random.Random(1).choices(range(1, 250), k=44)
FOLLOWING: Final = random.Random(2).choices(range(1, 250), k=6)
# The window of the tiny models is shorter than the longer one.
_COMPANY: Final = random.Random(3).choices(range(1, 250), k=13)

Logits = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Conformance:
    """Of a type, how far the logits are off in units of their spread; None: not tried, for it is
    not done with such a model."""

    library: str
    """Whose class serves it."""

    alone_off: float
    """Prefilled in chunks and decoded, against the library's own whole prompt."""

    batched_off: float | None
    """Two rows of unlike lengths that join and leave each other, against each alone."""

    in_turns_off: float | None
    """Two such rows that are read and decode in turns, if they can't decode together."""

    prefix_off: float | None
    """After a prefix that was stored and restored, against a cold prompt."""

    drafted_off: float | None
    """A block of tokens of which some are taken back, against one token after the other; of a row
    alone, and of two if that is done. The windows have slid."""

    prefix: str
    """``any``: cut anywhere; ``ends``: a state after a prompt; ``none``."""

    blocks: Blocks
    """What can be done with drafts."""

    held_bytes: int
    """What its caches take after HELD_TOKENS."""

    counted_bytes: int
    """What lmx estimates that they take."""


@dataclass(frozen=True)
class FewBits:
    """The same of a type that keeps its keys and values in few bits, without a reference."""

    off: float
    """Against the same model that keeps them as they are: what the rounding does."""

    batched_off: float | None
    prefix_off: float | None
    held_bytes: int
    counted_bytes: int


@dataclass
class _Row:
    cache: PromptCache
    deltas: mx.array | None
    logits: mx.array


def examine(folder: Path, reference: Logits | None) -> Conformance:
    """Load a folder as a worker does, and try. ``reference``: the right logits after PROMPT, and
    after each of FOLLOWING; None: those that the model itself makes of all of them at once."""
    use_few_operations()  # As a worker does.
    with mx.stream(generation_stream):
        loaded = load_model(spec_of(folder), lambda *_: None)
        forward = loaded.forward
        alone = _alone(forward)
        if reference is None:
            reference = _at_once(forward)
        layout = CacheLayout(forward.new_cache)
        prefix = "any" if layout.cuttable else "ends" if layout.restorable else "none"
        if forward.atomic_prompts:
            prefix = "none"
        prefix_off = None if prefix == "none" else _after_prefix(forward)
        assert prefix == "none" or prefix_off is not None, "nothing was found again"
        blocks, together = probe_multi_token(forward, drafts=True), can_batch(forward)
        in_turns = not together and can_run_serially(forward)
        return Conformance(
            library=loaded.library,
            alone_off=_off(alone, reference),
            batched_off=_in_company(forward) if together else None,
            in_turns_off=_in_turns(forward) if in_turns else None,
            prefix_off=prefix_off,
            drafted_off=_drafted(forward, blocks, together=together),
            prefix=prefix,
            blocks=blocks,
            held_bytes=_held_bytes(forward),
            counted_bytes=counted_bytes(folder, HELD_TOKENS),
        )


def off_in_company(folder: Path) -> float:
    """Return how far rows are off that decode together, also where lmx doesn't let them."""
    with mx.stream(generation_stream):
        return _in_company(load_model(spec_of(folder), lambda *_: None).forward)


NARROW: Final = frozenset({"minicpm3", "phimoe", "phixtral"})
"""The types whose numbers don't allow for heads twice as wide."""

SEEING_UNTRIED: Final = HEARING.keys() | {"qwen3_vl_moe", "zaya1_vl"}
"""Those with ears have no such form here. In a tiny Qwen 3 VL with experts, rounding to 8 bits
chooses other experts, which are all of random weights. Zaya's heads belong to groups of queries."""


def examine_few_bits(
    folder: Path, model_type: str, *, sees: bool = False
) -> Mapping[int, FewBits] | None:
    """Make a model with wide heads in ``folder``, and try each number of bits. Those are left out
    with which a worker would refuse it. None: there is no such model. ``sees``: it has eyes."""
    if model_type in (SEEING_UNTRIED if sees else NARROW):
        return None
    if not sees and model_type in CONFIGS:
        make_text_model(folder, model_type, wide=True)
    else:
        make_vlm_model(folder, model_type, wide=True)
    with mx.stream(generation_stream), without_processors():
        forward = load_model(spec_of(folder), lambda *_: None).forward
        plain = _alone(forward)
        found = {}
        for bits in (8, 4):
            forward.kv_quantization = None
            try:
                quantize_kv(forward, bits)
            except OperationError:
                continue
            together = rows_go_together(forward)
            alone = _alone(forward)
            prefix_off = None
            if not forward.atomic_prompts:
                prefix_off = _after_prefix(forward)
                assert CacheLayout(forward.new_cache).restorable == (prefix_off is not None)
            found[bits] = FewBits(
                off=_off(alone, plain),
                batched_off=_in_company(forward) if together else None,
                prefix_off=prefix_off,
                held_bytes=_held_bytes(forward),
                counted_bytes=counted_bytes(folder, HELD_TOKENS, bits),
            )
        return found


WITH_EYES: Final = SEEING.keys() | HEARING.keys()
"""The types with eyes or ears of which a tiny model can be made."""


def examine_seeing(folder: Path, model_type: str) -> Conformance:
    """Make a model with eyes or ears in ``folder``, and try its text."""
    if model_type in SEEING:
        make_vlm_model(folder, model_type)
        same_text, opened = SEEING[model_type].same_text, without_processors()
    else:
        make_media_model(folder, model_type)
        same_text, opened = HEARING[model_type].same_text, tiny_towers()
    reference = None
    if same_text is not None:
        with functions_of_mlx():
            reference = text_logits(folder, same_text, PROMPT, FOLLOWING)
    with opened:
        return examine(folder, reference)


@contextmanager
def without_processors() -> Iterator[None]:
    """Let folders with eyes be opened without what prepares pictures: they are shown none."""
    opened = make_tokenizer(), frozenset({256}), None
    with mock.patch.object(library, "_open_tokenizer", lambda *_, **__: opened):
        yield


def counted_bytes(folder: Path, tokens: int, bits: int | None = None) -> int:
    """Return what lmx counts for the caches of one row. ``bits``: of each number; None: those that
    it computes with."""
    found = estimate(folder, read_checkpoint_config(folder), ModelKind.CHAT)
    return kv_bytes(found.kv_layers_with(bits), tokens)


def _prefill(
    forward: Forward,
    prompt: Sequence[int],
    cache: PromptCache | None = None,
    cached: int = 0,
    chunk_tokens: int = CHUNK_TOKENS,
) -> _Row:
    row = SequenceRequest(0, prompt, 1, SequenceSampling(0.0))
    prefill = PromptPrefill(forward, row, forward.new_cache() if cache is None else cache, cached)
    while not prefill.ready:
        prefill.advance(chunk_tokens, ())
    logits = prefill.finish()
    mx.eval(logits, cache_states(prefill.prompt_cache))
    return _Row(prefill.prompt_cache, prefill.rope_deltas(), logits[0])


def _alone(forward: Forward) -> Logits:
    row = _prefill(forward, PROMPT)
    return _numbers(mx.stack([row.logits, *_decode(forward, row, FOLLOWING)]))


def _at_once(forward: Forward) -> Logits:
    """What looks ahead is given the prompt at once, and the tokens after it one by one."""
    whole = PROMPT if forward.atomic_prompts else [*PROMPT, *FOLLOWING]
    tokens, cache = mx.array([whole]), forward.new_cache()
    with functions_of_mlx():
        logits = [*forward.prompt(tokens, cache, forward.embed(tokens))[0, len(PROMPT) - 1 :]]
        logits += [
            forward.prompt(mx.array([[token]]), cache, {})[0, -1]
            for token in FOLLOWING[len(logits) - 1 :]
        ]
    return _numbers(mx.stack(logits))


def _held_bytes(forward: Forward) -> int:
    """The last tokens come alone, as answers do, because a window holds a whole chunk more after a
    prefill."""
    tokens = [number % 200 for number in range(HELD_TOKENS)]
    row = _prefill(forward, tokens[:-2], chunk_tokens=HELD_TOKENS // 2)
    mx.eval(_decode(forward, row, tokens[-2:]), cache_states(row.cache))
    return sum(map(_cache_bytes, row.cache))


def _cache_bytes(cache: Any) -> int:
    if hasattr(cache, "nbytes"):
        return int(cache.nbytes)
    return sum(
        array.nbytes for _, array in tree_flatten(vars(cache)) if isinstance(array, mx.array)
    )


def _in_company(forward: Forward) -> float:
    """Return by how much two rows of unlike lengths differ from each alone. Each is alone for a
    token, they decode three together, and each goes on after the other has left it."""
    rows = [_prefill(forward, prompt) for prompt in (PROMPT, _COMPANY)]
    following = [FOLLOWING, [7, *FOLLOWING[::-1]][: len(FOLLOWING)]]
    alone = [
        mx.stack([each.logits, *_decode(forward, copy.deepcopy(each), tokens)])
        for each, tokens in zip(rows, following, strict=True)
    ]
    found = [
        [each.logits, *_decode(forward, each, tokens[:1])]
        for each, tokens in zip(rows, following, strict=True)
    ]
    mx.eval(found, [cache_states(each.cache) for each in rows])
    both = batch_slots.join(rows[0].cache, rows[1].cache)
    deltas = [each.deltas for each in rows if each.deltas is not None]
    for pair in list(zip(*following, strict=True))[1:4]:
        together = mx.concatenate(deltas) if deltas else None
        logits = forward.decode(mx.array(pair)[:, None], both, together)[:, -1]
        mx.eval(logits, cache_states(both))
        for number, each in enumerate(found):
            each.append(logits[number])
    for number, tokens in enumerate(following):
        left = copy.deepcopy(both)
        if can_be_single(left):
            left = single_row(left, number)
        else:
            for layer in left:
                layer.filter(mx.array([number], mx.int32))
        row = _Row(left, rows[number].deltas, found[number][-1])
        found[number] += _decode(forward, row, tokens[4:])
    return max(
        _off(_numbers(mx.stack(each)), _numbers(expected))
        for each, expected in zip(found, alone, strict=True)
    )


def _in_turns(forward: Forward) -> float:
    """Return by how much two rows differ from each alone if one is read between the chunks of the
    other, and they decode a token each."""
    prompts, following = (PROMPT, _COMPANY), (FOLLOWING, FOLLOWING[::-1])
    alone = [
        _decode(forward, _prefill(forward, prompt), tokens)
        for prompt, tokens in zip(prompts, following, strict=True)
    ]
    begun = PromptPrefill(
        forward, SequenceRequest(0, PROMPT, 1, SequenceSampling(0.0)), forward.new_cache(), 0
    )
    if not begun.ready:
        begun.advance(CHUNK_TOKENS, ())
    other = _prefill(forward, _COMPANY)
    rows = [_prefill(forward, PROMPT, begun.prompt_cache, begun.done_tokens), other]
    found: list[list[mx.array]] = [[], []]
    for pair in zip(*following, strict=True):
        for row, token, made in zip(rows, pair, found, strict=True):
            made += _decode(forward, row, [token])
    return max(
        _off(_numbers(mx.stack(each)), _numbers(mx.stack(expected)))
        for each, expected in zip(found, alone, strict=True)
    )


def _drafted(forward: Forward, blocks: Blocks, *, together: bool) -> float | None:
    ways: list[tuple[Undo | None, Sequence[int]]] = [(blocks.alone, (2,))]
    if together:
        ways.append((blocks.together, (2, 1) if blocks.apart else (2, 2)))
    offs = [_rolled_back(forward, undo, kept) for undo, kept in ways if undo is not None]
    return max(offs, default=None)


def _rolled_back(forward: Forward, undo: Undo, kept: Sequence[int]) -> float:
    """Let each row keep so many tokens of a block, and go on with one token and with another
    block."""
    rows = [_prefill(forward, prompt) for prompt, _ in zip((PROMPT, _COMPANY), kept, strict=False)]
    expected = [
        _decode(forward, copy.deepcopy(row), [*FOLLOWING[:tokens], *FOLLOWING[3:]])
        for row, tokens in zip(rows, kept, strict=True)
    ]
    cache = rows[0].cache
    for row in rows[1:]:
        cache = batch_slots.join(cache, row.cache)
    deltas = [row.deltas for row in rows if row.deltas is not None]

    def decode(*tokens: int) -> mx.array:
        together = mx.concatenate(deltas) if deltas else None
        logits = forward.decode(mx.array([tokens] * len(rows)), cache, together)
        mx.eval(logits, cache_states(cache))
        return logits

    rollback = Rollback(cache, 3, undo)
    first = decode(*FOLLOWING[:3])
    rollback.keep(kept, lambda tokens: decode(*FOLLOWING[:tokens]))
    after = decode(FOLLOWING[3])
    put_windows_in_order(cache)
    last = decode(*FOLLOWING[4:])
    return max(
        _off(
            _numbers(mx.concatenate([first[row, :tokens], after[row], last[row]])),
            _numbers(mx.stack(alone)),
        )
        for row, (tokens, alone) in enumerate(zip(kept, expected, strict=True))
    )


def _decode(forward: Forward, row: _Row, tokens: Sequence[int]) -> list[mx.array]:
    return [forward.decode(mx.array([[token]]), row.cache, row.deltas)[0, -1] for token in tokens]


def _after_prefix(forward: Forward) -> float | None:
    """None: nothing is found again of what was stored."""
    prefixes = PrefixCache(forward.new_cache, PrefixCacheSpec(1 << 30), "conformance")
    first = _prefill(forward, PROMPT)
    prefixes.store(PROMPT, first.cache, "")
    longer = [*PROMPT, *FOLLOWING]
    cold = _numbers(_prefill(forward, longer).logits)
    found = prefixes.lookup(longer, "")
    if found is None or not found.cached_tokens:
        return None
    warm = _prefill(forward, longer, found.prompt_cache, found.cached_tokens)
    return _off(_numbers(warm.logits), cold)


def _numbers(logits: mx.array) -> Logits:
    return np.array(logits.astype(mx.float32))


def _off(found: Logits, expected: Logits) -> float:
    width = min(found.shape[-1], expected.shape[-1])
    found, expected = found[..., :width], expected[..., :width]
    if found.shape != expected.shape:
        return math.inf
    # A type that forbids tokens gives them no chance.
    possible = np.isfinite(expected)
    if not np.array_equal(found[~possible], expected[~possible]):
        return math.inf
    found, expected = found[possible], expected[possible]
    return float(np.abs(found - expected).max() / expected.std())

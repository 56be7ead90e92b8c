"""Warm caches of real architectures: the same tokens come out as without."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest
from mlx_vlm.models.cache import make_prompt_cache
from mlx_vlm.utils import load

from lmx.protocol.messages.specs import PrefixCacheSpec
from lmx.worker.mlx import engine
from lmx.worker.mlx.prefix.cache import PrefixCache
from tests.support.models.tiny_models import CONFIGS, make_tiny_model
from tests.support.rigs.engine_rig import spec_of

pytestmark = pytest.mark.long

MADE_TOKENS = 9  # With the last of the prompt, enough to be kept.
CHUNK_TOKENS = 50
SYSTEM = [7 * n % 251 for n in range(270)]
QUESTION = [11 * n % 241 for n in range(45)]
OTHER_QUESTION = [5 + 13 * n % 239 for n in range(60)]
CUTTABLE = {"llama", "qwen3"}


class Runner:
    """Decodes greedily with one model, and with or without a prefix cache."""

    def __init__(self, folder: Path, disk: Path) -> None:
        model, _ = load(str(folder))
        self._model = model.language_model
        self._spec = PrefixCacheSpec(1 << 28, str(disk), 1 << 28)
        self.prefixes = PrefixCache(self.new_cache, self._spec, "n")

    def restart(self) -> None:
        self.prefixes.close()
        self.prefixes = PrefixCache(self.new_cache, self._spec, "n")

    def new_cache(self) -> list[Any]:
        cache: list[Any] = make_prompt_cache(self._model)
        return cache

    def cold(self, prompt: Sequence[int]) -> list[int]:
        cache = self.new_cache()
        self.prefill(prompt, cache, 0, (), lambda _: None)
        return self.decode(prompt[-1], cache)

    def warm(self, prompt: Sequence[int]) -> tuple[list[int], int]:
        """Return what was made, and how many tokens of the prompt were cached."""
        found = self.prefixes.lookup(prompt, "s")
        cache, cached = found or (self.new_cache(), 0)
        stops = self.prefixes.checkpoints(prompt, cached, "s")

        def keep(done: int) -> None:
            self.prefixes.store(prompt[:done], cache, "s")

        self.prefill(prompt, cache, cached, stops, keep)
        made = self.decode(prompt[-1], cache)
        self.prefixes.store([*prompt, *made[:-1]], cache, "s")
        return made, cached

    def prefill(
        self,
        prompt: Sequence[int],
        cache: list[Any],
        done: int,
        stops: Sequence[int],
        keep: Callable[[int], None],
    ) -> None:
        last = len(prompt) - 1
        while done < last:
            ends = [stop for stop in stops if stop > done]
            end = min(done + CHUNK_TOKENS, last, *ends)
            mx.eval(self.logits([list(prompt[done:end])], cache))
            done = end
            if done in stops:
                keep(done)

    def decode(self, token: int, cache: list[Any]) -> list[int]:
        made: list[int] = []
        for _ in range(MADE_TOKENS):
            (token,) = self.next_tokens([[token]], cache)
            made.append(token)
        return made

    def next_tokens(self, tokens: list[list[int]], cache: list[Any]) -> list[int]:
        chosen: Any = mx.argmax(self.logits(tokens, cache)[:, -1], axis=-1).tolist()
        return [int(token) for token in chosen]

    def logits(self, tokens: list[list[int]], cache: list[Any]) -> mx.array:
        logits: mx.array = self._model(mx.array(tokens), cache=cache).logits
        return logits


@pytest.fixture(scope="module", params=sorted(CONFIGS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def runner(kind: str, tmp_path: Path) -> Runner:
    return Runner(make_tiny_model(tmp_path / kind, kind), tmp_path / "prefixes")


def test_a_conversation_is_the_same_warm_and_cold(runner: Runner, kind: str) -> None:
    first = SYSTEM + QUESTION
    made, cached = runner.warm(first)
    assert cached == 0 and made == runner.cold(first)
    # The next turn begins with the answer that was just given, but for its last token.
    answered = [*first, *made]
    second = answered + QUESTION[:20]
    made, cached = runner.warm(second)
    assert cached == len(answered) - 1
    assert made == runner.cold(second)
    # The same again, and another conversation that begins alike.
    made, cached = runner.warm(first)
    assert cached == len(first) - (1 if kind in CUTTABLE else 8)
    assert made == runner.cold(first)
    other = SYSTEM + OTHER_QUESTION
    made, cached = runner.warm(other)
    assert cached == (len(SYSTEM) if kind in CUTTABLE else 256)
    assert made == runner.cold(other)
    # All of it again, from disk.
    runner.restart()
    for prompt, least in ((second, len(answered) - 1), (first, len(first) - 8)):
        made, cached = runner.warm(prompt)
        assert cached >= least
        assert made == runner.cold(prompt)


def test_rows_of_a_batch_are_stored_one_by_one(runner: Runner) -> None:
    """Rows of unequal length, decoded together for longer than gemma3's window."""
    prompts = [SYSTEM[:30], SYSTEM[100:190]]
    caches = []
    for prompt in prompts:
        cache = runner.new_cache()
        runner.prefill(prompt, cache, 0, (), lambda _: None)
        caches.append(cache)
    batch = [layers[0].merge(list(layers)) for layers in zip(*caches, strict=True)]
    rows = [list(prompt) for prompt in prompts]
    for _ in range(20):
        made = runner.next_tokens([[row[-1]] for row in rows], batch)
        for row, token in zip(rows, made, strict=True):
            row.append(token)
    for n, row in enumerate(rows):
        runner.prefixes.store(row[:-1], batch, "s", row=n)
    for row in rows:
        prompt = row + QUESTION[:5]
        answer, cached = runner.warm(prompt)
        assert cached == len(row) - 1
        assert answer == runner.cold(prompt)


def test_what_its_class_was_given_is_part_of_the_name_of_a_models_prefixes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another context a model may have other windows and other rotary factors."""
    named: list[tuple[str, ...]] = []
    monkeypatch.setattr(engine, "prefix_namespace", lambda _, given: named.append(tuple(given)))
    monkeypatch.setattr(engine, "PrefixCache", lambda *_: None)
    spec = replace(spec_of(tmp_path), prefix_cache=PrefixCacheSpec(1 << 20))
    for window in (16, None, 16):
        loaded: Any = SimpleNamespace(
            forward=SimpleNamespace(atomic_prompts=False, new_cache=list),
            facts=SimpleNamespace(media=None),
            library="mlx-lm",
            config={"sliding_window": window},
        )
        engine._make_prefix_cache(spec, loaded)
    assert named[0] == named[2] != named[1]

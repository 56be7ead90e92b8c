"""What a real engine says of prompts that it reads again."""

import random
from pathlib import Path

import pytest

from lmx.protocol.messages.specs import PrefixCacheSpec
from lmx.protocol.states import RereadReason
from lmx.worker.engine.values import PrefillFinished
from lmx.worker.mlx.batching import batch_engine
from lmx.worker.mlx.prefix.reread import RecentPrompts
from lmx.worker.scheduling.batch import describe_reread
from tests.support.rigs.engine_rig import GREEDY, EngineRunner, spec_of

pytestmark = pytest.mark.long

RULES = " ".join(f"rule {n}: {random.Random(n).random()}" for n in range(60))


def turn(runner: EngineRunner, tokens: list[int], made: int = 4) -> PrefillFinished:
    row = runner.admit(tokens, GREEDY, made)
    runner.finish()
    return runner.started[row]


def test_a_date_in_the_system_prompt_is_found(tiny_dir: Path) -> None:
    runner = EngineRunner(spec_of(tiny_dir, prefix_cache=PrefixCacheSpec(1 << 26)))
    monday = runner.encode(f"You are kind. It is Monday. {RULES} What is rule 1?")
    tuesday = runner.encode(f"You are kind. It is Tuesday. {RULES} What is rule 1?")
    assert turn(runner, monday).reread is None
    again = turn(runner, tuesday)
    found = again.reread
    assert found is not None and found.reason is RereadReason.DIFFERS
    assert found.position == again.cached_tokens
    assert found.expected_tokens > len(tuesday) - 100
    shown = describe_reread(runner.generator, found, shown=True)
    assert shown.before.endswith("It is ")
    assert shown.was.startswith("Monday. rule") and shown.now.startswith("Tuesday. rule")
    assert max(map(len, (shown.before, shown.was, shown.now))) <= 60
    hidden = describe_reread(runner.generator, found, shown=False)
    assert (hidden.before, hidden.was, hidden.now) == ("", "", "")
    # The next turn continues, and has nothing to explain.
    more = turn(runner, [*tuesday, *runner.encode(" And rule 2?")])
    assert more.reread is None and more.cached_tokens >= len(tuesday) - 1


def test_what_the_cache_has_no_memory_for_is_evicted(tiny_dir: Path) -> None:
    runner = EngineRunner(spec_of(tiny_dir, prefix_cache=PrefixCacheSpec(1 << 26)))
    prompt = runner.encode(RULES)
    assert turn(runner, prompt).reread is None
    for _ in range(20):
        runner.resident.shrink()
    again = turn(runner, [*prompt, *prompt[:20]])
    assert again.reread is not None
    assert again.reread.reason is RereadReason.EVICTED
    assert again.reread.position == again.cached_tokens
    assert again.reread.expected_tokens >= len(prompt) - 1


def test_without_a_cache_all_turns_are_read_again(tiny_dir: Path) -> None:
    runner = EngineRunner(spec_of(tiny_dir))
    prompt = runner.encode(RULES)
    assert turn(runner, prompt).reread is None
    again = turn(runner, [*prompt, 5]).reread
    assert again is not None and again.reason is RereadReason.NO_CACHE


def test_each_way_of_ending_is_remembered(tiny_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the answer, and that of a row that is removed."""
    recent: list[RecentPrompts] = []

    def remembered() -> RecentPrompts:
        recent.append(RecentPrompts())
        return recent[-1]

    monkeypatch.setattr(batch_engine, "RecentPrompts", remembered)
    runner = EngineRunner(spec_of(tiny_dir, prefix_cache=PrefixCacheSpec(1 << 26)))
    prompt = runner.encode(RULES)
    row = runner.admit(prompt, GREEDY, 40)
    runner.until(lambda: len(runner.tokens[row]) > 5)
    (read,) = recent[-1]._prompts
    assert read.tokens.tolist() == prompt[:-1] and read.answer_at == len(prompt)
    runner.remove(row)
    (ended,) = recent[-1]._prompts
    assert ended.tokens.tolist()[: len(prompt) + 4] == [*prompt, *runner.tokens[row][:4]]
    assert ended.answer_at == len(prompt)

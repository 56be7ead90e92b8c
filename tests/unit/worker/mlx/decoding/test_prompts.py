"""Which prompt is read next, and which one waits for another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from lmx.worker.engine import RowRequest, RowSampling
from lmx.worker.mlx.decoding.prompts import Prompt, PromptQueue

BASE = list(range(300))


def row(row_id: int, prompt: Sequence[int]) -> RowRequest:
    return RowRequest(row_id, prompt, 5, RowSampling(0.0))


def read(prompt: Prompt, done_tokens: int) -> None:
    """Stands for a prefill that has come so far."""
    left_tokens = len(prompt.tokens) - 1 - done_tokens
    prefill = SimpleNamespace(done_tokens=done_tokens, left_tokens=left_tokens)
    prompt.prefill = cast(Any, prefill)


def queue_of(
    *prompts: Sequence[int], found: Callable[[Prompt], int | None] = lambda _: 0
) -> PromptQueue:
    queue = PromptQueue(found)
    for row_id, prompt in enumerate(prompts, start=1):
        queue.add(row(row_id, prompt))
    return queue


def chosen(queue: PromptQueue) -> int:
    prompt = queue.next(lambda _: True)
    assert prompt is not None
    return prompt.row.row_id


def test_a_prompt_waits_until_what_it_shares_is_kept_and_not_only_nearly_read() -> None:
    queue = queue_of([*BASE, *BASE], [*BASE[:200], 7])
    leader = queue.next(lambda _: True)
    assert leader is not None
    for done_tokens in (0, 137, 160, 199):
        read(leader, done_tokens)
        queue.read()
        assert chosen(queue) == 1
        assert queue.stops(leader) == [200]
    read(leader, 200)
    queue.read()
    # Nothing was kept, so it reads by itself.
    assert chosen(queue) == 2


def test_nobody_waits_for_what_will_not_be_kept() -> None:
    queue = queue_of([*BASE, 1], [*BASE[:200], 7], found=lambda _: None)
    assert chosen(queue) == 2


def test_what_is_kept_is_asked_for_once_a_chunk_and_not_at_each_step() -> None:
    asked = []

    def found(prompt: Prompt) -> int:
        asked.append(prompt.row.row_id)
        return 0

    begins: list[int] = []

    def can_begin(prompt: Prompt) -> bool:
        begins.append(prompt.row.row_id)
        return True

    queue = queue_of(*([*BASE[:200], *[number] * 30] for number in range(5)), found=found)
    for _ in range(10):
        queue.next(can_begin)
    assert len(asked) == len(set(asked))
    assert begins == [1]
    queue.read()
    queue.next(can_begin)
    assert begins == [1, 1]


def test_the_one_with_the_least_left_is_next_and_a_cached_one_before_all() -> None:
    cached = {1: 0, 2: 0, 3: 980}
    queue = queue_of(
        list(range(1, 400)), list(range(500, 600)), list(range(700, 1700)),
        found=lambda prompt: cached[prompt.row.row_id],
    )  # fmt: skip
    assert chosen(queue) == 3
    queue.remove(3)
    assert chosen(queue) == 2


@given(
    lengths=st.lists(st.integers(1, 3000), min_size=1, max_size=12),
    later=st.lists(st.integers(1, 200), max_size=60),
    chunk_tokens=st.integers(20, 500),
)
def test_the_one_that_has_waited_longest_goes_on_however_many_shorter_ones_come(
    lengths: list[int], later: list[int], chunk_tokens: int
) -> None:
    """A prompt of n chunks is through after 4 n of all chunks from when it is the oldest, for a
    shorter one may come with each chunk."""
    queue = PromptQueue(lambda _: 0)
    prompts = iter(range(1, 10_000))

    def add(tokens: int) -> None:
        row_id = next(prompts)
        queue.add(row(row_id, [row_id, *[0] * tokens]))

    for tokens in lengths:
        add(tokens)
    oldest, waited = 1, 0
    for tokens in later:
        add(tokens)
        prompt = queue.next(lambda _: True)
        assert prompt is not None
        left_tokens = len(prompt.tokens) - 1 - prompt.done_tokens
        if left_tokens > chunk_tokens:
            read(prompt, prompt.done_tokens + chunk_tokens)
        else:
            queue.remove(prompt.row.row_id)
        queue.read()
        waited = 0 if prompt.row.row_id == oldest else waited + 1
        assert waited < 4
        if left_tokens <= chunk_tokens and prompt.row.row_id == oldest:
            oldest = next(iter(queue._prompts), oldest)
            waited = 0


def test_a_row_that_comes_back_does_not_wait_for_those_that_wait_for_it() -> None:
    queue = queue_of([*BASE, 1], [*BASE, 2])
    queue.remove(1)
    queue.add(row(1, [*BASE, 1]))
    assert chosen(queue) == 2

"""Which prompt is read next, and which one waits for another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

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

"""Which prompt is read next, and which one waits for another."""

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmx.protocol.messages.data import BACKGROUND_PRIORITY
from lmx.worker.engine.values import SequenceRequest, SequenceSampling
from lmx.worker.mlx.batching.prefill_queue import PrefillQueue, Prompt, Standing, Urgency, urgencies

BASE = list(range(300))


def row(sequence_id: int, prompt: Sequence[int], priority: int = 0) -> SequenceRequest:
    return SequenceRequest(sequence_id, prompt, 5, SequenceSampling(0.0), priority=priority)


def read(prompt: Prompt, done_tokens: int) -> None:
    """Stands for a prefill that has come so far."""
    left_tokens = len(prompt.tokens) - 1 - done_tokens
    prefill = SimpleNamespace(done_tokens=done_tokens, left_tokens=left_tokens)
    prompt.prefill = cast(Any, prefill)


def queue_of(
    *prompts: Sequence[int], found: Callable[[Prompt], int | None] = lambda _: 0
) -> PrefillQueue:
    queue = PrefillQueue(found)
    for sequence_id, prompt in enumerate(prompts, start=1):
        queue.add(row(sequence_id, prompt))
    return queue


def chosen(queue: PrefillQueue) -> int:
    prompt = queue.next(lambda _: True)
    assert prompt is not None
    return prompt.row.sequence_id


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
        asked.append(prompt.row.sequence_id)
        return 0

    begins: list[int] = []

    def can_begin(prompt: Prompt) -> bool:
        begins.append(prompt.row.sequence_id)
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
        found=lambda prompt: cached[prompt.row.sequence_id],
    )  # fmt: skip
    assert chosen(queue) == 3
    queue.remove(3)
    assert chosen(queue) == 2


PRIORITIES = st.integers(-2, 2)


@given(
    first=st.lists(st.tuples(st.integers(1, 3000), PRIORITIES), min_size=1, max_size=12),
    later=st.lists(st.tuples(st.integers(1, 200), PRIORITIES), max_size=60),
    chunk_tokens=st.integers(20, 500),
)
def test_the_one_that_has_waited_longest_continues_however_many_shorter_and_urgent_ones_come(
    first: list[tuple[int, int]], later: list[tuple[int, int]], chunk_tokens: int
) -> None:
    """A prompt of n chunks is through after 4 n of all chunks from when it is the oldest, for a
    shorter one, or a more important one, may come with each chunk."""
    queue = PrefillQueue(lambda _: 0)
    prompts = iter(range(1, 10_000))

    def add(tokens: int, priority: int) -> None:
        sequence_id = next(prompts)
        queue.add(row(sequence_id, [sequence_id, *[0] * tokens], priority))

    for tokens, priority in first:
        add(tokens, priority)
    oldest, waited = 1, 0
    for tokens, priority in later:
        add(tokens, priority)
        prompt = queue.next(lambda _: True)
        assert prompt is not None
        left_tokens = len(prompt.tokens) - 1 - prompt.done_tokens
        if left_tokens > chunk_tokens:
            read(prompt, prompt.done_tokens + chunk_tokens)
        else:
            queue.remove(prompt.row.sequence_id)
        queue.read()
        waited = 0 if prompt.row.sequence_id == oldest else waited + 1
        assert waited < 4
        if left_tokens <= chunk_tokens and prompt.row.sequence_id == oldest:
            oldest = next(iter(queue._prompts), oldest)
            waited = 0


def test_a_row_that_comes_back_does_not_wait_for_those_that_wait_for_it() -> None:
    queue = queue_of([*BASE, 1], [*BASE, 2])
    queue.remove(1)
    queue.add(row(1, [*BASE, 1]))
    assert chosen(queue) == 2


def test_the_most_important_come_first_and_of_these_the_one_with_the_least_left() -> None:
    queue = PrefillQueue(lambda _: 0)
    for sequence_id, (tokens, priority) in enumerate(
        [(100, 1), (900, 0), (400, 0), (50, 2)], start=1
    ):
        queue.add(row(sequence_id, [sequence_id] * tokens, priority))
    order = []
    while queue:
        queue._turn = 0  # The turns of the oldest are another test's.
        order.append(chosen(queue))
        queue.remove(order[-1])
    assert order == [3, 2, 1, 4]


def test_an_important_prompt_does_not_wait_for_one_that_nobody_reads() -> None:
    """What they share is read at once, and nothing behind it."""
    queue = PrefillQueue(lambda _: 0)
    queue.add(row(1, [*BASE, *BASE], 5))
    queue.add(row(2, [7] * 500, 1))
    queue.add(row(3, [*BASE[:200], 8, 9], 0))
    leader = queue.next(lambda _: True)
    assert leader is not None and leader.row.sequence_id == 1
    assert queue.stops(leader) == [200]
    read(leader, 199)
    queue.read()
    assert chosen(queue) == 1
    read(leader, 200)
    queue.read()
    assert chosen(queue) == 3
    queue.remove(3)
    assert chosen(queue) == 2


def test_how_near_a_prompt_is_counts_for_the_most_important_that_waits_for_it() -> None:
    queue = PrefillQueue(lambda _: 0)
    queue.add(row(1, [*BASE, *BASE], 5))
    queue.add(row(2, [*BASE[:100], 7], 4))
    queue.add(row(3, [*BASE, 8], 0))
    queue.add(row(4, [9] * 200, 0))
    # After a hundred tokens one goes on that matters less.
    assert chosen(queue) == 4
    queue.remove(4)
    assert chosen(queue) == 1


def test_an_important_twin_hurries_the_one_that_reads_for_it_and_what_that_waits_for() -> None:
    queue = PrefillQueue(lambda _: 0)
    queue.add(row(1, [*BASE, *BASE], 5))
    queue.add(row(2, [*BASE, 7], 5))
    queue.add(row(3, [4] * 50, 3))
    queue.add(row(4, [*BASE, 7], 0))
    leader = queue.next(lambda _: True)
    assert leader is not None and leader.row.sequence_id == 1
    read(leader, 300)
    queue.read()
    second = queue.next(lambda _: True)
    assert second is not None and second.row.sequence_id == 2
    assert [row.sequence_id for row in queue.pop_duplicates(second)] == [4]


def test_nobody_waits_for_one_that_waits_for_what_the_two_do_not_share() -> None:
    queue = PrefillQueue(lambda _: 0)
    queue.add(row(1, [*BASE, *BASE], 5))
    leader = queue.next(lambda _: True)
    assert leader is not None
    read(leader, 150)
    queue.add(row(2, [*BASE, 7], 5))
    queue.read()
    assert queue.stops(leader) == [300]
    # The first has read what they share, and did not stop there.
    queue.add(row(3, [*BASE[:100], 8], 0))
    assert chosen(queue) == 3


TOKENS = st.integers(0, 50)
STANDINGS = st.lists(
    st.tuples(PRIORITIES, TOKENS, st.dictionaries(st.integers(0, 7), TOKENS)), max_size=8
)


@given(made=STANDINGS)
def test_a_prompt_is_as_urgent_as_the_most_urgent_that_waits_for_it(
    made: list[tuple[int, int, dict[int, int]]],
) -> None:
    standings = {
        sequence_id: Standing(
            priority,
            left_tokens,
            {leader: tokens for leader, tokens in waits_for.items() if leader < sequence_id},
        )
        for sequence_id, (priority, left_tokens, waits_for) in enumerate(made)
    }

    def urgency(sequence_id: int) -> Urgency:
        own = standings[sequence_id]
        waiting = [
            (urgency(other)[0], one.waits_for[sequence_id])
            for other, one in standings.items()
            if sequence_id in one.waits_for
        ]
        return min([(own.priority, own.left_tokens), *waiting])

    assert urgencies(standings) == {sequence_id: urgency(sequence_id) for sequence_id in standings}


class Reading:
    """Reads a queue's prompts as an engine does: chunks end at the stops, and what is computed up
    to there is kept."""

    def __init__(self, chunk_tokens: int) -> None:
        self.queue = PrefillQueue(self._found)
        self.chunk_tokens = chunk_tokens
        self.kept: list[list[int]] = []
        self.turns = 0

    def _found(self, prompt: Prompt) -> int:
        tokens = list(prompt.tokens)
        shared = (_common(tokens, kept) for kept in self.kept)
        return min(max(shared, default=0), len(tokens) - 1)

    def step(self) -> tuple[list[int], list[int]]:
        """Read the next chunk; return the prompt's tokens up to its end, and the rows that now
        decode."""
        prompt = self.queue.next(lambda _: True)
        assert prompt is not None, "nothing is read for ever"
        done = prompt.done_tokens if prompt.prefill is not None else self._found(prompt)
        stops = self.queue.stops(prompt)
        last = len(prompt.tokens) - 1
        end = min([done + self.chunk_tokens, last, *(stop for stop in stops if stop > done)])
        read(prompt, end)
        self.queue.read()
        self.turns += 1
        tokens = list(prompt.tokens)[:end]
        if end in stops or end == last:
            self.kept.append(tokens)
        if end < last:
            return tokens, []
        duplicates = [row.sequence_id for row in self.queue.pop_duplicates(prompt)]
        self.queue.remove(prompt.row.sequence_id)
        return tokens, [prompt.row.sequence_id, *duplicates]


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


@st.composite
def families(draw: st.DrawFn) -> list[list[int]]:
    """Prompts that share beginnings of several lengths with each other, and some all of it."""
    ways = st.lists(st.integers(0, 1), min_size=1, max_size=4)
    prompts = []
    for number, way in enumerate(draw(st.lists(ways, min_size=2, max_size=8))):
        place, tokens = 1, []
        for turn in way:
            place = 2 * place + turn
            tokens += [place] * 70
        prompts.append(tokens + [1000 + number] * draw(st.sampled_from([0, 1, 30, 400])))
    return prompts


@given(
    prompts=families(),
    priorities=st.lists(st.integers(1, 3), min_size=8, max_size=8),
    before=st.lists(st.integers(0, 7), max_size=12),
    chunk_tokens=st.integers(10, 300),
)
def test_beside_the_oldest_only_what_the_most_important_prompt_needs_is_read(
    prompts: list[list[int]], priorities: list[int], before: list[int], chunk_tokens: int
) -> None:
    """Whatever has been read when it comes, and whoever it waits for; and all come to their end."""
    reading = Reading(chunk_tokens)
    *others, important = prompts
    for sequence_id, (prompt, priority) in enumerate(
        zip(others, priorities, strict=False), start=1
    ):
        reading.queue.add(row(sequence_id, prompt, priority))
        for _ in range(before.count(sequence_id)):
            if reading.queue:
                reading.step()
    reading.queue.add(row(99, important, 0))
    decoding: list[int] = []
    while 99 not in decoding:
        of_the_oldest = reading.turns % 4 == 3
        tokens, decode = reading.step()
        decoding += decode
        assert of_the_oldest or tokens == important[: len(tokens)]
    while reading.queue:
        decoding += reading.step()[1]
    assert len(decoding) == len(set(decoding))


def test_of_the_background_only_the_part_is_read_for_which_another_prompt_waits() -> None:
    queue = PrefillQueue(lambda _: 0)
    queue.add(row(1, BASE[::-1], BACKGROUND_PRIORITY))
    queue.add(row(2, [*BASE, 1], BACKGROUND_PRIORITY))
    assert queue.next(lambda _: True, held=True) is None
    queue.add(row(3, [*BASE, 2]))
    for _ in range(8):  # Whose turn it is by its age included.
        leader = queue.next(lambda _: True, held=True)
        assert leader is not None and leader.row.sequence_id == 2
        queue.read()
    queue = PrefillQueue(lambda _: 300)
    queue.add(row(2, [*BASE, 1], BACKGROUND_PRIORITY))
    queue.add(row(3, [*BASE, 2]))
    for _ in range(8):
        prompt = queue.next(lambda _: True, held=True)
        assert prompt is not None and prompt.row.sequence_id == 3
        queue.read()


def test_the_oldest_is_passed_in_its_own_turn_and_no_other_prompt_is() -> None:
    queue = queue_of([1] * 900, [2] * 50)
    found = []
    for _ in range(8):
        found.append((chosen(queue), queue.is_passed))
        queue.read()
    assert found == [(2, False)] * 3 + [(1, True)] + [(2, False)] * 3 + [(1, True)]
    queue.remove(2)
    queue._turn = 3
    assert (chosen(queue), queue.is_passed) == (1, False), "nobody is there to pass it"


@given(st.lists(st.floats(0.001, 1.0), min_size=4, max_size=60), st.floats(0.001, 0.9))
def test_the_oldest_has_a_quarter_of_the_time_and_what_it_has_beyond_that_counts(
    others_s: list[float], layer_s: float
) -> None:
    """A more urgent prompt always waits. It is read for what it is owed, but by whole layers."""
    queue = queue_of([1] * 900, *([number + 2] * 50 for number in range(len(others_s))))
    oldest = queue._prompts[1]
    read(oldest, 10)
    spent_s, waited = {True: 0.0, False: 0.0}, 0
    while len(queue._prompts) > 1:
        sequence_id = chosen(queue)
        if sequence_id == 1:
            assert queue.is_passed
            took_s = layer_s * max(1, math.ceil(oldest.owed_s / layer_s))
        else:
            took_s = others_s[sequence_id - 2]
            queue.remove(sequence_id)
        queue.read(sequence_id, took_s)
        spent_s[sequence_id == 1] += took_s
        waited = 0 if sequence_id == 1 or oldest.owed_s < 0 else waited + 1
        assert waited <= 4, "it has its turn when it is owed something"
        assert spent_s[True] - spent_s[False] / 3 == pytest.approx(-oldest.owed_s, abs=1e-6)
        assert -layer_s - 1e-6 <= oldest.owed_s <= 4 * max(others_s) / 3 + 1e-6


def test_the_oldest_has_no_turn_until_others_had_their_share_of_what_it_had_too_much() -> None:
    queue = queue_of([1] * 900, [2] * 50)
    queue._turn = 3
    assert chosen(queue) == 1
    queue.read(1, 0.2)
    order = []
    for _ in range(20):
        order.append(chosen(queue))
        queue.read(order[-1], 0.1)
    assert order == [2] * 7 + [1] + [2] * 3 + [1] + [2] * 3 + [1] + [2] * 3 + [1]


def test_a_machine_that_stood_still_takes_no_turns_from_the_oldest_for_long() -> None:
    queue = queue_of([1] * 900, [2] * 50)
    queue._turn = 3
    assert chosen(queue) == 1
    queue.read(1, 100.0)
    assert queue._prompts[1].owed_s == -1.0


def test_what_the_oldest_is_read_while_nobody_waits_counts_against_nobody() -> None:
    queue = queue_of([1] * 900, [2] * 50)
    oldest = queue._prompts[1]
    assert chosen(queue) == 2
    queue.read(2, 0.3)
    assert oldest.owed_s == pytest.approx(0.1)
    queue.remove(2)
    for _ in range(5):
        assert chosen(queue) == 1
        queue.read(1, 1.0)
    assert oldest.owed_s == 0.0
    # As is what it is read because it is the most urgent.
    queue.add(row(2, [2] * 950))
    read(oldest, 10)
    for _ in range(8):
        assert chosen(queue) == 1
        queue.read(1, 1.0)
    assert oldest.owed_s == 0.0


def test_a_prompt_of_the_background_that_stands_still_is_owed_nothing() -> None:
    queue = PrefillQueue(lambda _: 0)
    queue.add(row(1, [1] * 900, BACKGROUND_PRIORITY))
    queue.add(row(2, [2] * 50))
    for _ in range(4):
        prompt = queue.next(lambda _: True, held=True)
        assert prompt is not None and prompt.row.sequence_id == 2
        queue.read(2, 1.0)
    assert queue._prompts[1].owed_s == 0.0

"""Which rows step next, and when a prompt is read: by a table, without an engine."""

import itertools
from collections.abc import Iterable

import pytest

from lmx.worker.mlx.batching.next_work import _TABLE, Shortest, Standing, Work, next_work

STEPS = {Work.STEP, Work.STEP_AND_RETURN}


def run(offers: Iterable[tuple[bool, bool]], shortest: Shortest) -> list[Work]:
    """Return what is done while rows decode, for each offer of a prompt and of longer rows."""
    done = []
    for has_prompt, longer_due in offers:
        standing = Standing(shortest, True, has_prompt, longer_due, False)
        done.append(work := next_work(standing))
        shortest = standing.after(work)
    return done


def test_the_table_has_every_cell() -> None:
    assert set(_TABLE) == set(itertools.product((False, True), repeat=2))
    assert all(set(row) == set(Shortest) for row in _TABLE.values())


@pytest.mark.parametrize("shortest", Shortest)
def test_nothing_waits_while_nothing_decodes(shortest: Shortest) -> None:
    standing = Standing(shortest, False, True, False, False)
    assert next_work(standing) is Work.READ
    assert standing.after(Work.READ) is Shortest.WAITED_FOR_LONGER


@pytest.mark.parametrize("shortest", Shortest)
def test_the_shortest_rows_wait_for_one_thing_at_a_time(shortest: Shortest) -> None:
    """Whatever is offered: between a chunk and the next chunk or longer rows they step, and so
    between longer rows and a chunk. Longer rows alone have their turn whenever it is due: that is
    so seldom that the shortest rows keep half of the time."""
    every = itertools.product(_TABLE, repeat=5)
    for offers in every:
        done = run(offers, shortest)
        for (one, other), (has_prompt, _) in zip(itertools.pairwise(done), offers[1:], strict=True):
            if one is Work.READ or (one is Work.STEP_LONGER and has_prompt):
                assert other in STEPS, (offers, done)


@pytest.mark.parametrize("shortest", Shortest)
def test_prompts_and_longer_rows_take_turns(shortest: Shortest) -> None:
    done = run([(True, True)] * 16, shortest)
    others = [work for work in done if work not in STEPS]
    assert len(others) >= 7
    assert all(one is not other for one, other in itertools.pairwise(others))
    assert run([(True, False)] * 16, shortest).count(Work.READ) >= 8 - 1


def test_no_token_waits_for_a_chunk() -> None:
    """What rows draw is returned by the step before a chunk, or by a step of its own; and what
    they draw after one is not kept for the step that follows."""
    for has_prompt, longer_due in itertools.product((False, True), repeat=2):
        standing = Standing(Shortest.WAITED_FOR_CHUNK, True, has_prompt, longer_due, False)
        assert next_work(standing) is Work.STEP_AND_RETURN
    for shortest in (Shortest.STEPPED_AFTER_CHUNK, Shortest.STEPPED_AFTER_LONGER):
        ahead = Standing(shortest, True, True, False, True)
        assert next_work(ahead) is Work.RETURN
        assert ahead.after(Work.RETURN) is shortest
        assert next_work(ahead._replace(is_ahead=False)) is Work.READ


def test_alone_they_draw_ahead() -> None:
    assert run([(False, False)] * 3, Shortest.WAITED_FOR_CHUNK) == [
        Work.STEP_AND_RETURN,
        Work.STEP,
        Work.STEP,
    ]

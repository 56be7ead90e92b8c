"""The tree of stored prompts: what is found along it, and what looking costs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmx.worker.mlx.prefix import tree as prefix_tree
from lmx.worker.mlx.prefix.tree import PrefixTree, Segment, Tokens

PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), max_size=25)


def tokens(values: list[int]) -> Tokens:
    return np.array(values, np.int32)


def store(tree: PrefixTree, prompt: Tokens, run: int = 4) -> list[Segment]:
    """As the cache does: what is new, after the longest way that is there."""
    ways = tree.match(prompt, "")
    path, start = ways[0] if ways else ((), 0)
    parent = path[-1] if path else tree.root("")
    added = []
    for begin in range(start, len(prompt), run):
        parent = tree.add(parent, begin, prompt[begin : begin + run].copy())
        added.append(parent)
    return added


def shared(one: list[int], other: list[int]) -> int:
    length = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        length += 1
    return length


@given(PROMPTS, st.lists(st.integers(0, 2), max_size=12))
def test_the_longest_stored_beginning_is_found(prompts: list[list[int]], asked: list[int]) -> None:
    tree = PrefixTree()
    kept: list[list[int]] = []
    for prompt in prompts:
        store(tree, tokens(prompt))
        kept.append(prompt)
        assert tree.match(tokens(prompt), "")[0].length == len(prompt)
    ways = tree.match(tokens(asked), "")
    longest = max((shared(prompt, asked) for prompt in kept), default=0)
    assert (ways[0].length if ways else 0) == longest
    for way in ways:
        for segment, following in zip(way.path, way.path[1:], strict=False):
            assert following.parent is segment
    assert not tree.match(tokens(asked), "another salt")


@given(PROMPTS, st.integers(0, 30))
def test_what_is_taken_out_is_not_found(prompts: list[list[int]], which: int) -> None:
    tree = PrefixTree()
    segments = [segment for prompt in prompts for segment in store(tree, tokens(prompt))]
    for segment in segments:
        tree.hold(segment, "held")
    if not segments:
        return
    gone = tree.remove(segments[which % len(segments)])
    assert {segment.segment_id for segment in tree.coldest()} == {
        segment.segment_id for segment in segments if segment not in gone
    }
    for prompt in prompts:
        for way in tree.match(tokens(prompt), ""):
            assert not set(way.path) & set(gone)
    for segment in segments:
        assert (tree.get(segment.segment_id) is None) == (segment in gone)


def test_looking_costs_the_same_however_many_prompts_branch_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All prompts of a model begin alike, by its chat template."""
    compared = 0
    common = prefix_tree.common_tokens

    def counted(run: Tokens, asked: Tokens) -> int:
        nonlocal compared
        compared += 1
        return common(run, asked)

    monkeypatch.setattr(prefix_tree, "common_tokens", counted)
    tree = PrefixTree()
    each = []
    for files in (50, 2000):
        for number in range(files):
            store(tree, tokens([1, 2, 3, 100 + number, 5, 6, number]), 512)
        compared = 0
        assert tree.match(tokens([1, 2, 3, 100 + files // 2, 5, 6, 9]), "")[0].length == 6
        each.append(compared)
    assert each[1] == each[0] <= 4

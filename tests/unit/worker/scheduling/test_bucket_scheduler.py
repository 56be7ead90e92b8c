"""How groups of rows share the time: the shortest are never slowed by more than a half."""

from itertools import cycle

from hypothesis import given
from hypothesis import strategies as st

from lmx.worker.scheduling.length_buckets import BucketScheduler

COSTS = st.lists(st.floats(0.001, 10), min_size=1, max_size=5)


@given(costs=COSTS, steps=st.integers(1, 400))
def test_the_others_get_less_than_half_of_what_the_shortest_gets(
    costs: list[float], steps: int
) -> None:
    buckets = list(range(len(costs)))
    turns = BucketScheduler()
    spent = [0.0] * len(costs)
    for _ in range(steps):
        bucket = turns.next(buckets)
        assert isinstance(bucket, int)
        spent[bucket] += costs[bucket]
        turns.record(buckets, bucket, costs[bucket])
    # Each of the others is stepped once, so that its cost is known.
    assert sum(spent[1:]) <= 0.45 * spent[0] + sum(costs[1:]) + 1e-9


@given(cost_s=st.floats(0.5, 3), varies=st.floats(1, 1.5))
def test_the_others_get_nearly_half_of_what_the_shortest_gets(cost_s: float, varies: float) -> None:
    turns = BucketScheduler()
    spent_s = {"short": 0.0, "long": 0.0}
    costs_s = cycle((cost_s, cost_s * varies))
    for _ in range(3000):
        bucket = str(turns.next(["short", "long"]))
        took_s = next(costs_s) if bucket == "long" else 1.0
        spent_s[bucket] += took_s
        turns.record(["short", "long"], bucket, took_s)
    assert 0.43 < spent_s["long"] / spent_s["short"] < 0.46


@given(costs=COSTS.filter(lambda costs: len(costs) > 1))
def test_nobody_starves(costs: list[float]) -> None:
    buckets = list(range(len(costs)))
    turns = BucketScheduler()
    stepped: set[int] = set()
    spent_s = 0.0
    while len(stepped) < len(costs) or spent_s < 10 * sum(costs):
        bucket = turns.next(buckets)
        assert isinstance(bucket, int)
        spent_s += costs[bucket]
        if spent_s > 5 * sum(costs):
            stepped.add(bucket)
        turns.record(buckets, bucket, costs[bucket])
        assert spent_s < 1000 * len(costs) * sum(costs)


def test_a_lane_that_is_gone_leaves_nothing_behind() -> None:
    turns = BucketScheduler()
    for bucket in ("short", "long"):
        turns.record(["short", "long"], bucket, 1.0)
    turns.record(["short"], "short", 1.0)
    assert turns.next(["short", "long"]) == "long", "its cost is not known"

"""The prefix cache's index of its files, against a plain list of them."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from lmx.worker.mlx.prefix.index import PrefixIndex, Use

PATHS = [Path(f"/p/{name}") for name in "abcdefgh"]
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["put", "use", "drop", "replace", "evict"]),
        st.sampled_from(PATHS),
        st.integers(0, 50),
        st.integers(0, 9),
    ),
    max_size=300,
)


@given(CHANGES)
def test_it_knows_what_a_list_knows(changes: list[tuple[str, Path, int, int]]) -> None:
    index = PrefixIndex()
    known: dict[Path, Use] = {}
    for change, path, used_ns, nbytes in changes:
        match change:
            case "put":
                known[path] = Use(used_ns, nbytes)
                index.put(path, known[path])
            case "use" if path in known:
                known[path] = Use(max(used_ns, known[path].used_ns), known[path].nbytes)
                index.use(path, used_ns)
            case "drop":
                known.pop(path, None)
                index.drop(path)
            case "replace":
                known.pop(path, None)
                index.replace(known.items())
            case "evict" if known:
                oldest = index.oldest()
                assert oldest is not None
                assert oldest[1] == known[oldest[0]]
                assert oldest[1].used_ns == min(use.used_ns for use in known.values())
                index.drop(oldest[0])
                del known[oldest[0]]
            case _:
                index.use(path, used_ns) if path not in known else None
        assert index.total_bytes == sum(use.nbytes for use in known.values())
        assert sorted(index.paths()) == sorted(known)
        assert (index.oldest() is None) == (not known)


def test_the_queue_does_not_grow_with_what_is_done() -> None:
    index = PrefixIndex()
    for turn in range(10_000):
        index.put(PATHS[turn % 8], Use(turn, 1))
        index.use(PATHS[turn % 8], turn + 5)
        index.drop(PATHS[(turn + 3) % 8])
    assert len(index._queue) < 200

"""Which beginnings of conversations are found again, without a tokenizer."""

from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from lmx.protocol.messages.snapshot import Snapshot
from lmx.router.peers.machine import MOST_BYTES, OfferedModel, written
from lmx.router.peers.own import OwnMachine
from lmx.router.peers.prefixes import BLOCK_BYTES, PrefixBook, beginning, chain, longest
from lmx.router.supervisor.directory import Directory
from tests.support.fakes.fake_peers import ready


def talk(*texts: str, **fields: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]
    return {"model": "m", "messages": messages, **fields}


def hashes(seed: str, body: dict[str, Any]) -> tuple[int, ...]:
    return chain(seed, beginning(body))


LONG = "word " * 2000


def test_a_conversation_that_has_grown_is_found_to_its_last_block() -> None:
    before, after = hashes("s", talk(LONG, "a")), hashes("s", talk(LONG, "a", "more " * 900))
    assert after[: len(before)] == before
    book = PrefixBook()
    book.add(before, 0.0)
    assert longest(after, book.held) == len(before)
    book.add(after, 1.0)
    assert len(book._conversations) == 1, "it takes the place of what it continues"


def test_what_begins_alike_is_found_to_two_thirds_at_least() -> None:
    book = PrefixBook()
    first = hashes("s", talk(LONG + "one " * 3000))
    book.add(first, 0.0)
    other = hashes("s", talk(LONG + "two " * 3000))
    common = len(LONG) // BLOCK_BYTES
    assert common * 2 // 3 <= longest(other, book.held) <= common + 1


def test_what_is_not_shared_differs_from_its_first_block() -> None:
    body = talk(LONG)
    assert not set(hashes("model a", body)) & set(hashes("model b", body))
    assert not set(hashes("s", talk(LONG, tools=[{"a": 1}]))) & set(hashes("s", body))


def test_the_marks_of_what_to_cache_change_nothing() -> None:
    def marked(**mark: Any) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": [{"type": "text", "text": LONG, **mark}]}]}

    assert hashes("s", marked()) == hashes("s", marked(cache_control={"type": "ephemeral"}))


def test_any_body_is_taken_and_no_more_than_so_much_is_read() -> None:
    assert hashes("s", {}) == ()
    assert len(hashes("s", {"messages": "x" * 3_000_000})) == 1024
    for odd in (5, "x", None, [[[1]]], [{"content": {"a": 2**200}}], [{"content": [1, None]}]):
        hashes("s\ud800", {"messages": odd, "prompt": odd, "tools": odd})


def test_the_oldest_conversations_are_forgotten() -> None:
    book = PrefixBook()
    chains = [hashes("s", talk(f"{number} {LONG}")) for number in range(300)]
    for number, one in enumerate(chains):
        book.add(one, float(number))
    assert longest(chains[0], book.held) == 0
    assert longest(chains[-1], book.held) == len(chains[-1])
    assert longest(chains[-1], book.since(299.0)) == len(chains[-1])
    assert longest(chains[-2], book.since(299.0)) == 0


@given(st.lists(st.text(max_size=2000), max_size=6), st.integers(0, 6))
def test_a_beginning_is_never_taken_for_longer_than_it_is(texts: list[str], cut: int) -> None:
    whole, part = hashes("s", talk(*texts)), hashes("s", talk(*texts[:cut], "something else"))
    book = PrefixBook()
    book.add(part, 0.0)
    found = longest(whole, book.held)
    assert whole[:found] == part[:found]


def test_the_hashes_of_many_models_leave_room_for_the_rest() -> None:
    models = [ready(f"org/model-{n}", f"{n:08x}") for n in range(60)]
    directory = Directory.of(Snapshot("e", 1, None, tuple(models)))
    own = OwnMachine("a", "1", lambda: directory, lambda: True, dict, lambda _: None)
    for each, model in enumerate(models):
        for number in range(80):
            at = (each * 80 + number) * 1000
            own.note(model.model_id, range(at, at + 1000))
    state = written(own.state(None), None)
    assert min(len(one["prefixes"]) for one in state["models"]) > 10_000, "each has its share"
    assert len(orjson.dumps(state)) < MOST_BYTES


def test_peers_hear_of_each_conversation_and_most_of_the_newest() -> None:
    book = PrefixBook()
    chains = [hashes("s", talk(f"{number} " + LONG * 20)) for number in range(300)]
    for number, one in enumerate(chains):
        book.add(one, float(number))
    for most in (6144, 1000):
        said = OfferedModel(model_id="m", prefixes=book.text(most)).held
        assert len(said) == min(most, len(book.held))
        assert said >= {one[-1] for one in chains[-256:]}, "it is found when it has grown"
        grown_elsewhere = chains[-1][: len(chains[-1]) // 2]
        assert longest(grown_elsewhere, said) >= len(grown_elsewhere) * 2 // 3
    book.add(hashes("s", talk("another one " + LONG)), 300.0)
    assert book.text(6144) != book.text(1000)
    assert (
        hashes("s", talk("another one " + LONG))[-1]
        in OfferedModel(model_id="m", prefixes=book.text(1000)).held
    )

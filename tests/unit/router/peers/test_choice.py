"""Where a request goes: the table row by row, what holds for every decision, and which models may
answer it."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmx.protocol.errors import ErrorCode, RequestError, UnavailableError
from lmx.protocol.messages.peers import Peer
from lmx.protocol.messages.snapshot import ModelView, Route, Snapshot
from lmx.protocol.states import MediaKind, ModelKind
from lmx.router.peers.answer_form import fills_gap
from lmx.router.peers.choice import Candidate, Rank, ranked
from lmx.router.peers.link import PeerLink
from lmx.router.peers.machine import MachineState
from lmx.router.peers.named_files import media_of
from lmx.router.peers.own import offered
from lmx.router.peers.targets import Targets, fitting, targets
from lmx.router.server.routes import ROUTES
from lmx.router.supervisor.directory import Directory
from tests.support.fakes.fake_peers import cold

GIB = 1024**3


def at(machine: str, **fields: Any) -> Candidate:
    fields.setdefault("rows", 4)
    return Candidate(machine=machine, model_id="m", **fields)


HOLDS = at("holds", loaded=True, held_blocks=50, running=3)
IDLE = at("idle", loaded=True)
BUSY = at("busy", loaded=True, running=4)
FITS = at("fits", free_bytes=2 * GIB, needed_bytes=GIB)
LOADS = at("loads", loads=True, running=1)
FULL = at("full", loaded=True, running=8)
EVICTS = at("evicts", free_bytes=GIB, needed_bytes=2 * GIB)
EVICTS_MORE = at("evicts more", free_bytes=0, needed_bytes=2 * GIB)
NO_LOADS = at("no loads", can_load=False)
TABLE = (HOLDS, IDLE, BUSY, FITS, LOADS, FULL, EVICTS, EVICTS_MORE)


def order(*candidates: Candidate, blocks: int = 100) -> list[str]:
    return [one.machine for one, _ in ranked(candidates, blocks)]


def test_the_table_from_its_first_row_to_its_last() -> None:
    assert order(*reversed(TABLE), NO_LOADS) == [one.machine for one in TABLE]
    ranks = [rank for _, rank in ranked(TABLE, 100)]
    assert ranks == sorted(ranks)
    assert set(ranks) == set(Rank)


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        # The longest prefix, unless the difference is small and the machine is busier.
        (replace(HOLDS, held_blocks=90), replace(HOLDS, machine="b")),
        (replace(HOLDS, held_blocks=52, running=1), replace(HOLDS, machine="b", held_blocks=58)),
        # Less than a quarter of the request is no reason.
        (IDLE, replace(HOLDS, held_blocks=24)),
        # A conversation stays where it is while others are idle, until that is full twice over.
        (replace(HOLDS, running=7), IDLE),
        (IDLE, replace(HOLDS, running=8)),
        # What has less to do, and of two with as much, the faster one.
        (IDLE, replace(IDLE, machine="a", running=1)),
        (
            replace(IDLE, running=2, tokens_per_s=80.0),
            replace(IDLE, machine="a", running=1, tokens_per_s=20.0),
        ),
        # One whose speed is not known counts as fast as the others are.
        (replace(IDLE, running=1), replace(IDLE, machine="a", running=2, tokens_per_s=80.0)),
        # No hop where there is no reason for one.
        (replace(IDLE, own=True, machine="z"), IDLE),
        # A route's first model before its others, within a row of the table.
        (IDLE, replace(IDLE, machine="a", place=1)),
        (replace(IDLE, place=1), BUSY),
    ],
)
def test_one_is_better_than_the_other(better: Candidate, worse: Candidate) -> None:
    for candidates in ((better, worse), (worse, better)):
        assert ranked(candidates, 100)[0][0] == better


CANDIDATES = st.lists(
    st.builds(
        Candidate,
        machine=st.text("abcdef", min_size=1, max_size=4),
        model_id=st.just("m"),
        own=st.booleans(),
        place=st.integers(0, 3),
        loaded=st.booleans(),
        loads=st.booleans(),
        rows=st.integers(1, 64),
        running=st.integers(0, 200),
        free_bytes=st.integers(0, 4) | st.just(2**50),
        needed_bytes=st.none() | st.integers(0, 4),
        can_load=st.booleans(),
        held_blocks=st.integers(0, 20),
        tokens_per_s=st.none() | st.floats(0.1, 1e4),
    ),
    max_size=8,
    unique_by=lambda one: one.machine,
)


@given(CANDIDATES, st.integers(0, 20), st.randoms())
def test_what_holds_for_every_decision(
    candidates: list[Candidate], blocks: int, chance: Any
) -> None:
    found = ranked(candidates, blocks)
    shuffled = candidates.copy()
    chance.shuffle(shuffled)
    assert ranked(shuffled, blocks) == found, "it does not depend on who was asked first"
    chosen = [one for one, _ in found]
    left_out = [one for one in candidates if one not in chosen]
    assert all(not (one.loaded or one.loads or one.can_load) for one in left_out)
    for one, rank in found:
        assert (rank in (Rank.PREFIX, Rank.IDLE, Rank.BUSY, Rank.FULL)) is one.loaded
    if found:
        best, rank = found[0]
        # It was not overlooked that a better reason is there.
        idle = [one for one in candidates if one.loaded and one.running < one.rows]
        assert rank <= Rank.IDLE or not idle
        # A machine that becomes less busy and holds more stays the best.
        better = replace(best, running=0, held_blocks=blocks)
        rest = [better if one is best else one for one in candidates]
        assert not best.loaded or ranked(rest, blocks)[0][0].place <= best.place


QWEN = cold("qwen", kind=ModelKind.CHAT, media=(), capabilities=("tools",))
SEES = cold("sees", kind=ModelKind.CHAT, media=(MediaKind.IMAGE,), capabilities=("infill",))
BGE = cold("bge", kind=ModelKind.EMBEDDING, media=())
NEW = cold("new")
ALL = (QWEN, SEES, BGE, NEW)
HOME = Route("home", ("qwen", "bge", "sees"))


def found(
    name: str | None,
    kind: ModelKind | None,
    *own: ModelView,
    peer: tuple[ModelView, ...] = ALL,
    lost: tuple[ModelView, ...] = (),
) -> Targets:
    """What may answer where this machine has the models ``own``, a peer has ``peer``, and another
    one, which does not answer, had ``lost``."""
    routes = (HOME,) if own else ()
    default = own[0].model_id if own else None
    links = {"b": _link("b", peer), "c": _link("c", lost)}
    links["c"].lose("it stood still")
    directory = Directory.of(Snapshot("e", 1, default, own, routes=routes))
    return targets(directory, links, "a", name, None, kind)


def _link(name: str, models: tuple[ModelView, ...]) -> PeerLink:
    link = PeerLink(Peer(name, "http://127.0.0.1:9"), "a", None)  # type: ignore[arg-type]
    link.state = MachineState(
        machine=name, version="1", free_bytes=0, loads=True, drained=False, digest="",
        models=tuple(map(offered, models)),
    )  # fmt: skip
    link.lost.clear()
    return link


def ids(found: Targets) -> tuple[list[str], list[str]]:
    return [one.model_id for one in found.own], [one.model.model_id for one in found.remote]


CHAT, EMBEDDING, RERANK = ModelKind.CHAT, ModelKind.EMBEDDING, ModelKind.RERANK


@pytest.mark.parametrize(
    ("name", "kind", "own", "expected"),
    [
        (None, EMBEDDING, ALL, (["bge"], ["bge"])),
        (None, CHAT, ALL, (["qwen"], ["qwen"])),
        (None, None, ALL, (["qwen"], ["qwen"])),
        ("home", EMBEDDING, ALL, (["bge"], ["bge"])),
        ("home", CHAT, ALL, (["qwen", "sees"], ["qwen", "sees"])),
        # One that is named is meant, whatever it is: it says itself what it can't do.
        ("bge", CHAT, ALL, (["bge"], ["bge"])),
        ("bge@b", CHAT, ALL, ([], ["bge"])),
        # This machine has none, or nothing at all.
        (None, EMBEDDING, (QWEN,), ([], ["bge"])),
        (None, CHAT, (BGE,), ([], ["qwen", "sees", "new"])),
        (None, RERANK, ALL, ([], ["new"])),
        (None, EMBEDDING, (), ([], ["bge"])),
        ("auto", CHAT, (), ([], ["qwen", "sees", "new"])),
        ("auto", EMBEDDING, (), ([], [])),
    ],
)
def test_models_of_another_kind_are_sent_nothing(
    name: str | None,
    kind: ModelKind | None,
    own: tuple[ModelView, ...],
    expected: tuple[list[str], list[str]],
) -> None:
    assert ids(found(name, kind, *own)) == expected


def test_a_tag_is_a_part_of_a_name_where_only_a_peer_has_it() -> None:
    there = (cold("llama:latest"),)
    assert ids(found("llama:latest", CHAT, peer=there)) == ([], ["llama:latest"])
    assert ids(found("llama:latest", CHAT, cold("llama"), peer=there)) == (["llama"], [])
    assert ids(found("qwen:latest", CHAT)) == ([], ["qwen"])
    # What a lost one had keeps nothing from one that answers.
    plain = (cold("llama"),)
    assert ids(found("llama:latest", CHAT, peer=plain, lost=there)) == ([], ["llama"])
    with pytest.raises(UnavailableError, match="The machine c can't be asked"):
        found("llama:latest", CHAT, lost=there)


def test_a_route_without_a_model_of_the_kind_is_refused_as_on_one_machine() -> None:
    with pytest.raises(RequestError, match="leads to no rerank") as refused:
        found("home", RERANK, *ALL)
    assert refused.value.code is ErrorCode.MODEL_NOT_FOUND


def test_what_takes_text_only_is_sent_no_image() -> None:
    whole = found("home", CHAT, *ALL)
    assert [one.has_several for one in (whole, found("qwen", CHAT, *ALL))] == [True, False]
    assert fitting(whole, (), infill=False) == whole
    for some in (fitting(whole, (MediaKind.IMAGE,), infill=False), fitting(whole, (), infill=True)):
        assert ids(some) == (["sees"], ["sees"])
    assert fitting(whole, (MediaKind.VIDEO,), infill=False) == whole, "one of them says so"
    remote = fitting(found("auto", CHAT), (MediaKind.IMAGE,), infill=False)
    assert ids(remote) == ([], ["sees", "new"]), "of what is not known nothing is left out"


IMAGE: dict[str, Any] = {"type": "image_url", "image_url": "x"}


@pytest.mark.parametrize(
    ("body", "media"),
    [
        ({"messages": [{"role": "user", "content": "image"}]}, ()),
        ({"messages": [None, 1, {"content": [None, {"type": None}, {"type": "file"}]}]}, ()),
        ({"messages": "x", "input": 3, "images": []}, ()),
        ({"messages": [{"content": [{"type": "text"}, IMAGE]}]}, ("image",)),
        ({"messages": [{"content": [{"type": "tool_result", "content": [{"type": "image"}]}]}]},
            ("image",)),
        ({"messages": [{"content": "x", "images": ["x"]}]}, ("image",)),
        ({"prompt": "x", "images": ["x"]}, ("image",)),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, ("image",)),
        ({"input": [{"type": "function_call_output", "output": [{"type": "input_image"}]}]},
            ("image",)),
        ({"messages": [{"content": [{"type": "input_audio"}, {"type": "video"}]}]},
            ("audio", "video")),
        ({"messages": [{"content": [{"type": "audio_url"}, {"type": "input_video"}]}]},
            ("audio", "video")),
    ],
)  # fmt: skip
def test_the_media_of_a_request_of_any_api_are_found(
    body: dict[str, Any], media: tuple[str, ...]
) -> None:
    assert media_of(body) == set(media)


def test_each_route_that_is_forwarded_has_its_kind_of_models() -> None:
    kinds = {one.path: one.models for one in ROUTES if one.is_forwarded}
    assert {path for path, kind in kinds.items() if kind is None} == {
        "/tokenize", "/detokenize", "/v1/messages/count_tokens", "/api/show", "/api/pull",
    }  # fmt: skip
    for kind, paths in {
        EMBEDDING: {"/v1/embeddings", "/v3/embeddings", "/api/embed", "/api/embeddings"},
        RERANK: {"/rerank", "/v1/rerank", "/v2/rerank", "/score", "/v1/score"},
        ModelKind.TRANSCRIPTION: {"/v1/audio/transcriptions", "/v1/audio/translations"},
        ModelKind.SPEECH: {"/v1/audio/speech"},
    }.items():
        assert {path for path in kinds if kinds[path] is kind} == paths
    filling = {one.path for one in ROUTES if one.is_forwarded and fills_gap(one, {})}
    assert filling == {"/infill"}

"""Which model answers a request: by name, by route, and the next one where the first can't."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmx.protocol.errors import ErrorCode, LmxError, RequestError
from lmx.protocol.messages.control import Acquire, Acquired, Denied
from lmx.protocol.messages.snapshot import ROUTE_NAMES, ModelView, NamePattern, Route, Snapshot
from lmx.protocol.states import MediaKind, ModelKind, SlotState, WorkerState
from lmx.router.supervisor.directory import Directory, can_serve, ready_instance
from lmx.router.supervisor.routing import (
    accepting_media,
    candidates,
    ranked,
    route_models,
    routes_by_leader,
)
from lmx.router.workers.fallback import NOT_LOADED, first_loaded
from tests.support.fakes.fake_peers import cold, ready
from tests.support.rigs.router_rig import (
    INSTANCE,
    MODEL,
    Rig,
    answer,
    chat_body,
    data_lines,
    router_rig,
)

CHAT, EMBEDDING = ModelKind.CHAT, ModelKind.EMBEDDING

A = ready("a", "00000001", kind=CHAT, needed_bytes=10)
B = cold("b", kind=CHAT, needed_bytes=20)
C = cold("c", kind=CHAT, needed_bytes=5)
E = cold("e", kind=EMBEDDING, needed_bytes=1)
SICK = cold("sick", SlotState.QUARANTINED, kind=CHAT)


def directory(
    *models: ModelView, default: str | None = None, free: int = 0, **routes: tuple[str, ...]
) -> Directory:
    listed = tuple(Route(name, ids) for name, ids in routes.items())
    return Directory.of(Snapshot("e", 1, default, models, routes=listed, free_bytes=free))


def ids(models: tuple[ModelView, ...]) -> list[str]:
    return [model.model_id for model in models]


def chosen(known: Directory, name: str | None, kind: ModelKind | None = CHAT) -> list[str]:
    return ids(candidates(known, name, kind))


@pytest.mark.parametrize(
    ("listed", "free", "order"),
    [
        ((B, A), 100, ["a", "b"]),  # What is ready goes first, the first listed of several.
        ((A, replace(A, model_id="a2")), 0, ["a", "a2"]),
        ((B, C), 100, ["b", "c"]),  # Both fit.
        ((B, C), 10, ["c", "b"]),  # The second alone does.
        ((B, C), 20, ["b", "c"]),
        ((B, C), 0, ["b", "c"]),  # Neither does: others have to go for the first.
        ((B, replace(C, needed_bytes=None)), 0, ["c", "b"]),  # It may fit.
        ((SICK, B), 0, ["b"]),
        ((cold("held", SlotState.HELD), B), 0, ["b"]),
        ((SICK, cold("held", SlotState.HELD)), 0, ["sick"]),  # Its error is the answer.
        ((C, replace(B, slot=SlotState.OCCUPIED, worker=WorkerState.LOADING)), 0, ["b", "c"]),
        ((C, replace(B, slot=SlotState.OCCUPIED, worker=WorkerState.STOPPING)), 0, ["c", "b"]),
    ],
)
def test_the_order_of_a_route(listed: tuple[ModelView, ...], free: int, order: list[str]) -> None:
    assert ids(ranked(listed, free)) == order


def test_the_four_names_mean_all_chat_models_the_default_first() -> None:
    known = directory(B, E, C, SICK, default="c", free=100)
    for name in ROUTE_NAMES:
        assert chosen(known, name) == ["c", "b"]
    assert chosen(directory(B, E, C, free=100), "auto") == ["b", "c"]
    assert chosen(directory(B, replace(C, kind=None), free=100), "auto") == ["b", "c"]


def test_a_configured_route_lists_its_own_and_skips_what_is_not_there() -> None:
    known = directory(A, B, C, E, free=100, code=("gone", "c", "e"), mine=("b",), none=("gone",))
    assert chosen(known, "code") == ["c"]
    assert chosen(known, "code", EMBEDDING) == ["e"]
    assert chosen(known, "code", None) == ["c", "e"]
    assert chosen(known, "mine") == ["b"]
    assert chosen(known, "auto") == ["a", "b", "c"]
    for name, kind in (("none", CHAT), ("mine", EMBEDDING), ("auto", ModelKind.RERANK)):
        with pytest.raises(RequestError) as caught:
            candidates(known, name, kind)
        assert (caught.value.code, caught.value.param) == (ErrorCode.MODEL_NOT_FOUND, "model")
        assert repr(name) in caught.value.message


def test_an_adapter_is_for_those_who_name_it() -> None:
    sql = replace(A, model_id="sql", base="a")
    known = directory(A, sql, B, default="sql", free=100, code=("sql",))
    assert chosen(known, "auto") == ["a", "b"]
    assert [chosen(known, name) for name in ("sql", "code", None)] == [["sql"]] * 3
    assert (known.bases, known.base(sql), known.base(A)) == ((A, B), A, A)


def test_models_own_names_beat_routes() -> None:
    known = directory(
        A, replace(B, aliases=("auto",)), replace(C, source="chat"), free=100,
        a=("b",), auto=("a",), chat=("a",), code=("a",),
    )  # fmt: skip
    assert [chosen(known, name) for name in ("a", "auto", "chat", "code")] == [
        ["a"], ["b"], ["c"], ["a"],
    ]  # fmt: skip
    assert routes_by_leader(known)["a"] == ["code", "reasoning"]


def test_patterns_stand_behind_models_and_routes_and_the_first_that_matches_counts() -> None:
    patterns = {
        "*haiku*": "c", "claude-?": "code", "claude-*": "auto", "gpt-*": "gone",
        "auto": "c", "b": "c", "x-*": "gpt-4", "embed-*": "e",
    }  # fmt: skip
    known = directory(A, replace(B, aliases=("claude-b",)), C, E, free=100, code=("b",))
    known = Directory.of(
        replace(known.snapshot, patterns=tuple(NamePattern(*one) for one in patterns.items()))
    )
    assert [chosen(known, name)[0] for name in ("b", "claude-b", "auto", "code")] == [
        "b", "b", "a", "b",
    ]  # fmt: skip
    assert chosen(known, "claude-haiku-4-5") == ["c"]
    assert chosen(known, "claude-9") == ["b"]
    assert chosen(known, "claude-sonnet-4-5") == ["a", "b", "c"]
    assert chosen(known, "embed-3", EMBEDDING) == ["e"]
    # One leads to what is not there, one to the names of another pattern.
    for name, hint in (("gpt-5", "'gone', which does not exist"), ("x-1", "'gpt-4', which")):
        with pytest.raises(RequestError) as caught:
            candidates(known, name, CHAT)
        assert caught.value.code is ErrorCode.MODEL_NOT_FOUND
        assert repr(name) in caught.value.message and hint in caught.value.message
    with pytest.raises(RequestError):
        candidates(known, "Claude-9", CHAT)


def test_a_named_model_is_the_only_candidate_whatever_its_state_and_kind() -> None:
    known = directory(A, SICK, E)
    assert chosen(known, "sick") == ["sick"]
    assert chosen(known, "e") == ["e"]


def test_the_default_may_be_a_route_and_no_default_is_an_error() -> None:
    assert chosen(directory(B, A, default="auto"), None) == ["a", "b"]
    with pytest.raises(RequestError) as caught:
        candidates(directory(A), None, CHAT)
    assert caught.value.code is ErrorCode.MISSING_PARAMETER
    with pytest.raises(RequestError) as caught:
        candidates(directory(A), "nope", CHAT)
    assert caught.value.code is ErrorCode.MODEL_NOT_FOUND
    assert "auto" in caught.value.message
    # A newcomer's first request has no other model to name.
    for name in ("auto", "a", None):
        with pytest.raises(RequestError) as caught:
            candidates(directory(), name, CHAT)
        assert "`lmx pull qwen3-8b`" in caught.value.message


def test_without_a_name_the_kind_that_is_asked_for_goes_before_the_default() -> None:
    rank = cold("r", kind=ModelKind.RERANK)
    known = directory(A, B, E, rank, default="a", free=100)
    assert [chosen(known, None, kind) for kind in (CHAT, EMBEDDING, ModelKind.RERANK, None)] == [
        ["a"], ["e"], ["r"], ["a"],
    ]  # fmt: skip
    assert chosen(directory(E, A, B, default="e", free=100), None) == ["a", "b"]
    # Where there is none of the kind the default tells that, and what it is for.
    assert chosen(directory(A, default="a"), None, EMBEDDING) == ["a"]
    # One whose files nobody has seen yet is most likely a chat model.
    unknown = cold("u")
    assert chosen(directory(unknown, A, E, default="u"), None) == ["u"]
    assert chosen(directory(unknown, E, default="u"), None, EMBEDDING) == ["e"]


NAMES = ("m0", "m1", "m2", "m3")


@st.composite
def any_model(draw: st.DrawFn, model_id: str) -> ModelView:
    slot = draw(st.sampled_from(SlotState))
    worker = draw(st.sampled_from(WorkerState)) if slot is SlotState.OCCUPIED else None
    return ModelView(
        model_id=model_id,
        aliases=draw(st.sets(st.sampled_from([*ROUTE_NAMES, "x"]), max_size=1).map(tuple)),
        source=f"org/{model_id}", slot=slot, worker=worker, instance="1" if worker else None,
        kind=draw(st.none() | st.sampled_from(ModelKind)),
        needed_bytes=draw(st.none() | st.integers(0, 10)),
    )  # fmt: skip


@st.composite
def any_directory(draw: st.DrawFn) -> Directory:
    models = [draw(any_model(name)) for name in draw(st.lists(st.sampled_from(NAMES), unique=True))]
    routes = draw(
        st.dictionaries(
            st.sampled_from([*ROUTE_NAMES, "x", *NAMES]),
            st.lists(st.sampled_from([*NAMES, "gone"]), unique=True).map(tuple),
            max_size=3,
        )
    )
    default = draw(st.none() | st.sampled_from([*NAMES, "auto"]))
    return directory(*models, default=default, free=draw(st.integers(0, 10)), **routes)


@given(
    any_directory(),
    st.none() | st.sampled_from([*ROUTE_NAMES, *NAMES, "x", "org/m1", "nope"]),
    st.none() | st.sampled_from(ModelKind),
)
def test_the_rule_for_any_models_and_routes(
    known: Directory, name: str | None, kind: ModelKind | None
) -> None:
    try:
        found = candidates(known, name, kind)
    except RequestError as error:
        assert error.param == "model"
        assert error.code in (ErrorCode.MODEL_NOT_FOUND, ErrorCode.MISSING_PARAMETER)
        return
    assert found
    assert len(set(ids(found))) == len(found), "one pass: none is tried twice"
    asked = name if name is not None else known.snapshot.default_model
    assert asked is not None
    if name is None and known.knows(asked) and found != (known.resolve(asked),):
        assert (known.resolve(asked).kind or CHAT) is not kind
        assert {model.kind for model in found} == {kind}
        return
    if known.knows(asked):
        assert found == (known.resolve(asked),)
        return
    listed = route_models(known, asked)
    assert listed is not None
    fit = [model for model in listed if kind is None or model.kind in (kind, None)]
    assert set(ids(found)) <= set(ids(tuple(fit)))
    if not any(map(can_serve, fit)):
        assert found == (fit[0],)
        return
    assert all(map(can_serve, found)), "what can't be loaded is left out"
    assert len(found) == sum(map(can_serve, fit))
    best = found[0]
    if any(ready_instance(model) for model in fit):
        assert best == next(model for model in fit if ready_instance(model))
    for model in found[1:]:
        if ready_instance(model):
            assert ready_instance(best)
    for route in routes_by_leader(known).get(best.model_id, ()):
        assert candidates(known, route, None)[0] is best


async def test_each_is_tried_once_and_the_first_error_is_reported() -> None:
    tried: list[str] = []

    async def fail(model: ModelView) -> None:
        tried.append(model.model_id)
        raise LmxError(ErrorCode.MODEL_LOAD_FAILED, model.model_id)

    with pytest.raises(LmxError) as caught:
        await first_loaded((B, C), fail)
    assert (caught.value.message, tried) == ("b", ["b", "c"])


@pytest.mark.parametrize("code", list(ErrorCode))
async def test_only_a_model_that_can_t_be_had_is_passed_over(code: ErrorCode) -> None:
    async def attempt(model: ModelView) -> str:
        if model is B:
            raise LmxError(code, "no")
        return model.model_id

    if code in NOT_LOADED:
        assert await first_loaded((B, C), attempt) == "c"
    else:
        with pytest.raises(LmxError):
            await first_loaded((B, C), attempt)


LOAD_FAILED = Denied(ErrorCode.MODEL_LOAD_FAILED, "big can't be loaded", retry_after_s=3.0)


async def with_route(rig: Rig, *names: str) -> None:
    """Have the ready model and one that fails to load, and a route to these of them."""
    rig.supervisor.acquire_reply = lambda question: (
        LOAD_FAILED if question.model_id == "big" else Acquired(question.model_id, INSTANCE)
    )
    await rig.publish(
        cold("big", kind=CHAT, created_s=2),
        cold(MODEL, kind=CHAT, created_s=1),
        routes=(Route("auto", names),),
    )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_where_the_first_fails_to_load_the_next_answers(
    rig: Rig, path: str, stream: bool
) -> None:
    await with_route(rig, "big", MODEL)
    body = chat_body(model="auto", stream=stream)
    if path.endswith("/completions") and "chat" not in path:
        body = {"model": "auto", "prompt": ["a", "b"], "stream": stream}
    async with rig.http.post(f"{rig.url}{path}", json=body) as response:
        assert response.status == 200, await response.text()
        if stream:
            chunks = [json.loads(line) for line in data_lines(await response.read())[:-1]]
        else:
            chunks = [await response.json()]
    assert {chunk["model"] for chunk in chunks} == {MODEL}
    asked = [one.model_id for _, _, one in rig.supervisor.acquires]
    assert sorted(set(asked)) == ["big", MODEL]


async def test_where_none_loads_the_first_one_s_error_is_reported(rig: Rig) -> None:
    await with_route(rig, "big")
    status, body = await rig.chat_json(model="auto")
    assert (status, body["error"]["code"]) == (503, "model_load_failed")
    status, body = await rig.chat_json(model="reasoning")
    assert status == 200
    assert body["model"] == MODEL


async def test_a_stream_that_has_begun_to_wait_continues_with_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lmx.router.inference.answering.QUIET_S", 0.01)
    monkeypatch.setattr("lmx.router.inference.answering.INTERVAL_S", 0.01)
    async with router_rig() as rig:
        await with_route(rig, "big", MODEL)
        rig.supervisor.acquire_reply = lambda question: (
            None if question.model_id == "big" else Acquired(question.model_id, INSTANCE)
        )
        async with rig.chat(model="auto", stream=True) as response:
            assert response.status == 200
            assert (await response.content.readline()).startswith(b": big ")
            await rig.supervisor.reply(0, LOAD_FAILED)
            lines = data_lines(b"".join([b"\n", await response.read()]).removeprefix(b"\n\n"))
        chunks = [json.loads(line) for line in lines[:-1]]
        assert {chunk["model"] for chunk in chunks} == {MODEL}


async def test_routes_in_the_lists_of_models(rig: Rig) -> None:
    await rig.publish(
        ready(MODEL, INSTANCE, kind=CHAT, aliases=("tiny",), capabilities=("tools",),
              family="llama", created_s=1),
        cold("org/Qwen3-8B-4bit", kind=CHAT, media=(MediaKind.IMAGE, MediaKind.VIDEO)),
        cold("embedder", kind=EMBEDDING),
        default="tiny", routes=(Route("mine", ("org/Qwen3-8B-4bit", MODEL)),),
    )  # fmt: skip
    for name in ("auto", "chat", "mine", "tiny"):
        _, answer = await rig.json("GET", f"/v1/models/{name}")
        assert answer["id"] == MODEL
    specs: list[dict[str, Any]]
    _, specs = await rig.json("GET", "/v1/chat/models")
    assert specs == [
        {
            "name": MODEL, "family": "llama", "domain": "chat", "default": True,
            "aliases": ["tiny", *ROUTE_NAMES, "mine"], "features": ["text", "tools"],
        },
        {
            "name": "org/Qwen3-8B-4bit", "family": "qwen3", "domain": "chat",
            "default": False, "aliases": [], "features": ["text", "image", "video"],
        },
    ]  # fmt: skip
    _, found = await rig.json("GET", "/v1/models")
    reported = {each["id"]: each["modalities"] for each in found["data"]}
    assert reported == {
        MODEL: ["text"],
        "org/Qwen3-8B-4bit": ["text", "image", "video"],
        "embedder": ["text"],
    }


async def test_the_error_for_the_wrong_kind_by_its_own_name_names_its_route() -> None:
    async with router_rig(answer) as rig:
        await rig.publish(cold("embedder", kind=EMBEDDING))
        status, body = await rig.chat_json(model="embedder")
        assert (status, body["error"]["param"]) == (400, "model")
        assert "/v1/embeddings" in body["error"]["message"]
        assert not rig.supervisor.count(Acquire)


IMAGE, AUDIO = MediaKind.IMAGE, MediaKind.AUDIO


def test_of_several_models_those_that_take_the_media_are_tried() -> None:
    blind = cold("blind", media=())
    seeing = cold("seeing", media=(IMAGE,))
    hearing = cold("hearing", media=(IMAGE, AUDIO))
    unknown = cold("unknown")
    known = directory(blind, seeing, hearing, unknown)
    models = known.models
    assert ids(accepting_media(known, models, {})) == ids(models)
    assert ids(accepting_media(known, models, {IMAGE: "i"})) == ["seeing", "hearing", "unknown"]
    assert ids(accepting_media(known, models, {IMAGE: "i", AUDIO: "a"})) == ["hearing", "unknown"]
    for asked, words in (
        (
            blind,
            "'blind' takes text only: leave it out, or name a model that takes sounds: hearing",
        ),
        (seeing, "'seeing' takes text and images only"),
    ):
        with pytest.raises(RequestError) as caught:
            accepting_media(known, (asked,), {AUDIO: "a"})
        assert (caught.value.code, caught.value.param) == (ErrorCode.UNSUPPORTED_VALUE, "a")
        assert words in caught.value.message
    with pytest.raises(RequestError, match="no model that is configured here takes videos"):
        accepting_media(known, (hearing,), {MediaKind.VIDEO: "v"})

"""The router's view of the models: names, epochs and revisions."""

import pytest

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.snapshot import Snapshot
from lmx.protocol.states import SlotState, WorkerState
from lmx.router.supervisor.directory import Directory, advance, can_serve, is_behind, ready_instance
from tests.support.fakes.fake_peers import cold, ready

MODELS = (
    ready("a", "00000001", aliases=("fast", "b"), source="org/a"),
    cold("b", aliases=("auto",), source="org/b"),
)


def snapshot(
    epoch: str = "e1", revision: int = 1, default: str | None = "b", models: object = MODELS
) -> Snapshot:
    return Snapshot(epoch, revision, default, models)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "model_id"),
    [("a", "a"), ("fast", "a"), ("org/a", "a"), ("b", "b"), ("auto", "b"), (None, "b")],
)
def test_resolve(name: str | None, model_id: str) -> None:
    assert Directory.of(snapshot()).resolve(name).model_id == model_id


def test_a_repository_is_a_name_of_the_model_of_its_revision() -> None:
    models = (
        cold("pinned", source="org/a@main"), cold("later", source="org/a@v2"),
        cold("old", source="org/b@v1"), cold("new", source="org/b"), cold("c", source="/x/c@1"),
    )  # fmt: skip
    directory = Directory.of(snapshot(models=models))
    assert directory.resolve("org/a").model_id == directory.resolve("org/a@main").model_id
    assert directory.resolve("org/a").model_id == "pinned"
    assert directory.resolve("org/b").model_id == "new", "the whole source comes first"
    assert not directory.knows("/x/c"), "a path has no revision"


def test_unknown_and_missing_models() -> None:
    with pytest.raises(RequestError) as caught:
        Directory.of(snapshot()).resolve("c")
    assert (caught.value.code, caught.value.param) == (ErrorCode.MODEL_NOT_FOUND, "model")
    assert "a, b" in caught.value.message
    with pytest.raises(RequestError) as caught:
        Directory.of(snapshot(default=None)).resolve(None)
    assert caught.value.code is ErrorCode.MISSING_PARAMETER
    with pytest.raises(RequestError) as caught:
        Directory.of(snapshot(models=())).resolve("a")
    assert "No model" in caught.value.message


def test_the_list_of_known_ids_is_bounded() -> None:
    many = tuple(cold(f"model-{number}") for number in range(500))
    with pytest.raises(RequestError) as caught:
        Directory.of(snapshot(models=many)).resolve("x" * 5000)
    assert len(caught.value.message) < 700
    assert "480 more" in caught.value.message


def test_advance_keeps_the_newer_of_an_epoch_and_takes_any_other_epoch() -> None:
    current = advance(None, snapshot(revision=5))
    assert advance(current, snapshot(revision=4)) is current
    assert advance(current, snapshot(revision=5)) is current
    assert advance(current, snapshot(revision=6)).snapshot.revision == 6
    assert advance(current, snapshot("e2", 1)).snapshot.epoch == "e2"


@pytest.mark.parametrize(
    ("epoch", "revision", "behind"),
    [("e1", 5, False), ("e1", 4, False), ("e1", 6, True), ("e2", 1, True)],
)
def test_is_behind(epoch: str, revision: int, behind: bool) -> None:
    assert is_behind(Directory.of(snapshot(revision=5)), epoch, revision) is behind
    assert is_behind(None, epoch, revision)


@pytest.mark.parametrize("state", list(WorkerState))
def test_only_a_ready_worker_takes_requests(state: WorkerState) -> None:
    model = cold("a", SlotState.OCCUPIED, worker=state, instance="1")
    assert ready_instance(model) == ("1" if state is WorkerState.READY else None)


def test_a_slot_without_a_worker_has_no_instance() -> None:
    assert ready_instance(cold("a")) is None
    assert Directory.of(snapshot()).instances() == {"00000001"}


@pytest.mark.parametrize("slot", list(SlotState))
def test_all_but_quarantined_and_held_models_can_serve(slot: SlotState) -> None:
    kept_down = (SlotState.QUARANTINED, SlotState.HELD)
    assert can_serve(cold("a", slot)) is (slot not in kept_down)


def test_a_model_is_found_by_its_id_alone() -> None:
    directory = Directory.of(snapshot())
    assert directory.model("a") is MODELS[0]
    assert directory.model("fast") is None
    assert directory.model("c") is None

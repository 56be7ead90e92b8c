"""What a model is for, from its folder or its worker to the routers' view of it."""

from dataclasses import fields, replace
from typing import Any

from lmx.protocol.messages import control
from lmx.protocol.messages.snapshot import ModelCommon, ModelView
from lmx.protocol.states import MediaKind, ModelKind, WorkerState
from lmx.supervisor.config.schema import Config
from lmx.supervisor.config.settings import Settings
from lmx.supervisor.core.core import Core
from lmx.supervisor.core.view import _common
from lmx.supervisor.decisions.ledger import Ledger
from tests.support.fakes.fake_actions import FakeActions


def configured(actions: FakeActions, **model: Any) -> tuple[Core, Settings]:
    config = Config.model_validate({"models": [{"id": "a", "source": "/a", **model}]})
    settings = Settings(config)
    core = Core(settings, Ledger(1000), actions, "epoch")
    settings.on_change(core.reconfigured)
    return core, settings


def make(actions: FakeActions, **model: Any) -> Core:
    return configured(actions, **model)[0]


def view(core: Core) -> ModelView:
    return core.snapshot(0.0).models[0]


def bring_up(
    core: Core, *capabilities: str, kind: ModelKind | None = None, media: tuple[MediaKind, ...] = ()
) -> None:
    core.operator.load("a", 0.0)
    (worker,) = core.workers
    hello = control.WorkerHello(worker.instance, "a", 1, WorkerState.STARTING, kind=kind)
    core.worker_reported(worker.instance, hello, 0.0)
    loaded = control.Loaded(worker.instance, 90, 2048, 0.1, capabilities, media=media)
    core.worker_reported(worker.instance, loaded, 0.0)


def test_a_model_on_this_machine_is_known_before_it_is_loaded() -> None:
    actions = FakeActions()
    actions.kinds["a"] = ModelKind.EMBEDDING
    assert view(make(actions)).kind is ModelKind.EMBEDDING
    assert view(make(actions, kind="rerank")).kind is ModelKind.RERANK


def test_one_that_must_be_fetched_is_known_once_it_is_there() -> None:
    actions = FakeActions()
    actions.kinds["a"], actions.remote = ModelKind.EMBEDDING, {"a"}
    core = make(actions)
    assert view(core).kind is None
    core.operator.load("a", 0.0)
    assert view(core).kind is None
    actions.remote.clear()
    folder = actions.local_path(core.slot("a").model)
    assert folder is not None
    core.fetch_ended("a", folder, 1.0)
    assert view(core).kind is ModelKind.EMBEDDING


def test_a_folder_that_changed_is_read_again_at_each_start() -> None:
    actions = FakeActions()
    core = make(actions)
    assert view(core).kind is ModelKind.CHAT
    actions.kinds["a"] = ModelKind.RERANK
    core.operator.load("a", 0.0)
    assert view(core).kind is ModelKind.RERANK


def test_another_configuration_may_make_a_cold_model_another_kind() -> None:
    """Routers refuse what a model is not for, so no request would come to have it read anew."""
    actions = FakeActions()
    core, settings = configured(actions)
    for model in ({"kind": "embedding"}, {"source": "org/a"}):
        new = Config.model_validate({"models": [{"id": "a", "source": "/a", **model}]})
        actions.remote = {"a"}
        settings.apply(new, 1.0)
        assert view(core).kind is new.models[0].kind


def test_what_a_worker_says_of_itself_is_shown() -> None:
    core = make(FakeActions())
    assert view(core).capabilities == ()
    bring_up(core, "tools", "reasoning")
    assert view(core).capabilities == ("tools", "reasoning")


def test_what_a_worker_said_is_known_after_it_until_the_model_is_another() -> None:
    actions = FakeActions()
    core, settings = configured(actions)
    bring_up(core, "tools")
    worker = core.slot("a").worker
    assert worker is not None
    core.worker_exited(worker.instance, -9, 2.0)
    worker = core.slot("a").worker
    assert worker is None
    assert view(core).capabilities == ("tools",)
    new = Config.model_validate({"models": [{"id": "a", "source": "/another"}]})
    settings.apply(new, 3.0)
    assert view(core).capabilities == ()


def test_what_a_model_takes_is_what_its_files_say_until_a_worker_says_otherwise() -> None:
    actions = FakeActions()
    core, settings = configured(actions)
    slot = core.slot("a")
    assert slot.files.facts.media is view(core).media is None
    seen = replace(slot.files, facts=replace(slot.files.facts, media=(MediaKind.VIDEO,)))
    core._store.put(replace(slot, files=seen))
    assert view(core).media == (MediaKind.VIDEO,)
    bring_up(core, media=(MediaKind.IMAGE,))
    assert view(core).media == (MediaKind.IMAGE,)
    assert core.status(0.0)[0].media == (MediaKind.IMAGE,)
    worker = core.slot("a").worker
    assert worker is not None
    core.worker_exited(worker.instance, -9, 2.0)
    assert view(core).media == (MediaKind.IMAGE,)
    new = Config.model_validate({"models": [{"id": "a", "source": "/another"}]})
    settings.apply(new, 3.0)
    assert view(core).media is None


def test_an_adopted_worker_shows_what_an_earlier_supervisor_knew() -> None:
    actions = FakeActions()
    actions.remote = {"a"}
    core = make(actions)
    assert core.adopt("0ld0", "a", 4242, 90, 0.0)
    assert view(core).kind is None
    hello = control.WorkerHello(
        "0ld0", "a", 4242, WorkerState.READY, 90, 2048, ("tools",), ModelKind.CHAT,
        remarks=("config.json sets x.",),
    )  # fmt: skip
    core.worker_reported("0ld0", hello, 0.0)
    assert view(core).kind is ModelKind.CHAT
    assert view(core).capabilities == ("tools",)
    (reported,) = core.status(0.0)
    assert reported.remarks == ("config.json sets x.",)


def test_the_status_says_whether_a_model_may_run_its_own_code() -> None:
    for allowed in (True, False):
        (reported,) = make(FakeActions(), allow_checkpoint_code=allowed).status(0.0)
        assert reported.allow_checkpoint_code is allowed


def test_the_snapshot_and_the_status_agree_about_what_both_show() -> None:
    core = make(FakeActions(), aliases=["al"], pinned=True)
    bring_up(core, "tools")
    seen, (reported,) = view(core), core.status(0.0)
    assert _common(core.slot("a"), None).keys() == {field.name for field in fields(ModelCommon)}
    for field in fields(ModelCommon):
        assert getattr(seen, field.name) == getattr(reported, field.name), field.name
    assert (seen.state, reported.model, reported.pinned) == (reported.state, seen.model_id, True)

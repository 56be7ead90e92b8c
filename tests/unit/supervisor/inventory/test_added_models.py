"""Models that are added while lmx runs: what is accepted, what is kept, who goes before whom."""

import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lmx.protocol.errors import ErrorCode, OperationError, UnavailableError
from lmx.protocol.messages import control
from lmx.protocol.messages.inventory import AddModel, RemoveModel
from lmx.protocol.messages.snapshot import NamePattern, Route
from lmx.protocol.models.memory import KvLayers
from lmx.protocol.states import MediaKind, ModelKind, WorkerState
from lmx.supervisor.config.model import AddedModelConfig
from lmx.supervisor.config.schema import Config
from lmx.supervisor.control.loading import Loading
from lmx.supervisor.control.reload import Reloader
from lmx.supervisor.decisions.restart import FailureRecord
from lmx.supervisor.inventory.added import AddedModels
from lmx.supervisor.inventory.added_file import AddedFile
from lmx.supervisor.memory.inspection import Inspection, ModelFacts, Question
from lmx.supervisor.memory.plan import MemoryPlan
from tests.support.models.model_folders import write_shard
from tests.support.rigs.core_rig import CoreRig, NoFile


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that looks like a model."""
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text("{}")
    write_shard(made / "model.safetensors", weight=("F32", 4))
    return made


@pytest.fixture
def file(tmp_path: Path) -> AddedFile:
    return AddedFile(tmp_path / "state" / "models.json")


@pytest.fixture
def rig(folder: Path) -> CoreRig:
    """A model that is configured, and one that was added."""
    made = CoreRig({"a": 100})
    made.operate(AddModel("new", str(folder)))
    return made


def added(rig: CoreRig) -> list[str]:
    return [view.model_id for view in rig.core.snapshot(rig.now_s).models if view.added]


def test_an_added_model_is_served_and_nobody_else_notices(folder: Path) -> None:
    rig = CoreRig({"a": 100}, up="a")
    said = rig.operate(AddModel("new", str(folder), 64, {"n_gpu_layers": 7}))
    assert isinstance(said, control.Done)
    assert added(rig) == ["new"]
    assert (rig.state("a"), rig.state("new")) == ("ready", "cold")
    assert rig.sent("a")[1:] == [], "but for its Welcome"
    line = rig.core.status(0.0)[-1]
    assert (line.added, line.context_length) == (True, 64)
    assert line.parameters == {"n_gpu_layers": 7}
    assert rig.slot("new").model.preload is False
    rig.ask("new")
    assert rig.state("new") == "starting"


def test_what_was_added_outlives_the_supervisor_and_is_its_owners_alone(
    folder: Path, file: AddedFile, tmp_path: Path
) -> None:
    rig = CoreRig({"a": 100}, added_file=file)
    rig.operate(AddModel("new", str(folder), 64, {"x": [1, "y"]}))
    rig.operate(AddModel("org/other", "org/other@v1"))
    again = CoreRig({"a": 100}, added_file=file)
    assert added(again) == ["new", "org/other"]
    model = again.slot("new").model
    assert isinstance(model, AddedModelConfig)
    assert (model.source, model.context_length, model.parameters) == (
        str(folder),
        64,
        {"x": [1, "y"]},
    )
    again.operate(RemoveModel("new"))
    assert added(CoreRig({"a": 100}, added_file=file)) == ["org/other"]
    assert stat.S_IMODE((tmp_path / "state" / "models.json").stat().st_mode) == 0o600


async def test_a_file_that_cannot_be_written_changes_nothing(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "blocked").write_text("")
    rig = CoreRig({"a": 100})
    file = AddedFile(tmp_path / "blocked" / "models.json")
    blocked = AddedModels(file, {}, rig.core, rig.settings, rig.inspect, lambda: 0.0)
    with pytest.raises(OperationError, match="nothing was changed"):
        await blocked.add(AddModel("new", str(folder)))
    assert added(rig) == []


def test_the_same_again_is_no_error_and_other_settings_are(folder: Path) -> None:
    configured = {"a": {"source": "/a", "context_length": 32}}
    rig = CoreRig({"a": 100}, models=configured, routing={"code": ["a"]})
    rig.operate(AddModel("new", str(folder), 64))
    rig.up("new")
    again = AddModel("new", f"{folder}/../{folder.name}/", 64, {"p": 1})
    assert isinstance(rig.operate(again), control.Done)
    assert rig.core.status(0.0)[-1].parameters == {"p": 1}
    assert rig.state("new") == "ready"
    assert isinstance(rig.operate(AddModel("a", "/a", 32)), control.Done), "configured, the same"
    assert added(rig) == ["new"]
    for question in (
        AddModel("new", str(folder), 65),
        AddModel("new", "org/other", 64),
        AddModel("a", str(folder), 32),
        AddModel("a-alias", str(folder)),
        AddModel("code", str(folder)),  # the name of a route
    ):
        denied = rig.operate(question)
        assert (denied.code, denied.param) == (ErrorCode.MODEL_EXISTS, "model_id"), question
        assert "taken" in denied.message


@pytest.mark.parametrize(
    ("question", "code", "param", "words"),
    [
        (AddModel("a b", "org/x"), ErrorCode.INVALID_VALUE, "model_id", "letters, digits"),
        (AddModel("", "org/x"), ErrorCode.INVALID_VALUE, "model_id", "1 to 200"),
        (AddModel("x" * 201, "org/x"), ErrorCode.INVALID_VALUE, "model_id", "1 to 200"),
        (AddModel("x", "org/x", 15), ErrorCode.INVALID_VALUE, "context_length", "16"),
        (AddModel("x", "org/x", None, {"a": float("nan")}), ErrorCode.INVALID_VALUE,
         "parameters", "can't be kept"),
        (AddModel("x", "org/x", None, {"a": b""}), ErrorCode.INVALID_VALUE, "parameters", "kept"),
        (AddModel("x", "org/x", None, {"a": "y" * 20_000}), ErrorCode.INVALID_VALUE,
         "parameters", "at most 16384"),
        (AddModel("x", ""), ErrorCode.MODEL_SOURCE_INVALID, "source", "at least 1"),
        (AddModel("x", "nothing"), ErrorCode.MODEL_SOURCE_INVALID, "source", "./nothing"),
        (AddModel("x", "org/a--b"), ErrorCode.MODEL_SOURCE_INVALID, "source", "not a hub"),
        (AddModel("x", "~nobody-here/x"), ErrorCode.MODEL_SOURCE_INVALID, "source", "no user"),
        (AddModel("x", "/nowhere/at/all"), ErrorCode.MODEL_SOURCE_INVALID, "source",
         "there is no folder"),
        (AddModel("x", "/nowhere/x.gguf"), ErrorCode.MODEL_SOURCE_INVALID, "source",
         "there is no file"),
        (AddModel("x", "/"), ErrorCode.MODEL_SOURCE_INVALID, "source", "no config.json"),
        (AddModel("x", __file__), ErrorCode.MODEL_SOURCE_INVALID, "source", "is a file"),
        (AddModel("x", "/a\0b"), ErrorCode.MODEL_SOURCE_INVALID, "source", "unprintable"),
    ],
)  # fmt: skip
def test_what_cannot_be_added_is_denied_with_its_field(
    question: AddModel, code: ErrorCode, param: str, words: str
) -> None:
    rig = CoreRig({"a": 100})
    denied = rig.operate(question)
    assert (denied.code, denied.param) == (code, param)
    assert words in denied.message
    assert added(rig) == []


def test_a_context_beyond_the_models_own_is_refused(folder: Path, file: AddedFile) -> None:
    rig = CoreRig({"a": 100}, added_file=file)
    rig.actions.facts = ModelFacts("qwen3", 4096)
    denied = rig.operate(AddModel("new", str(folder), 4097))
    assert (denied.code, denied.param) == (ErrorCode.INVALID_VALUE, "context_length")
    assert "4097" in denied.message
    assert "4096" in denied.message
    assert (added(rig), file.read()) == ([], {})
    rig.operate(AddModel("new", str(folder), 4096))
    assert added(rig) == ["new"]


def test_a_context_that_nobody_chose_is_never_refused(folder: Path, file: AddedFile) -> None:
    rig = CoreRig({"a": 100}, models={"a": {"source": "/a"}}, added_file=file)
    rig.actions.facts = ModelFacts("qwen3", 2048)
    question = AddModel("new", str(folder), 4096, context_at_most=True)
    assert isinstance(rig.operate(question), control.Done)
    assert file.read()["new"].context_at_most, "it is so after a restart too"
    assert isinstance(rig.operate(question), control.Done)
    rig.operate(AddModel("short", str(folder), 512))
    for there in (AddModel("short", str(folder), 4096, context_at_most=True),
                  AddModel("a", "/a", 4096, context_at_most=True)):  # fmt: skip
        assert isinstance(rig.operate(there), control.Done), "it stays with what it has"
    assert rig.slot("short").model.context_length == 512


def test_a_file_in_gguf_form_can_be_added(tmp_path: Path) -> None:
    gguf = tmp_path / "m.Q4_0.gguf"
    gguf.write_bytes(b"")
    rig = CoreRig({"a": 100})
    assert isinstance(rig.operate(AddModel("m", str(gguf))), control.Done)


def test_a_removed_model_ends_after_its_streams(rig: CoreRig) -> None:
    rig.up("new")
    rig.beat("new", rows=1)
    done = rig.operate(RemoveModel("new"))
    assert done.pid == rig.worker("new").pid
    assert rig.state("new") == "draining"
    assert [view.model_id for view in rig.core.snapshot(0.0).models] == ["a"]
    rig.drains("new")
    assert list(rig.core.slots) == ["a"]


@pytest.mark.parametrize("other", [False, True])
def test_a_model_that_is_added_again_while_its_worker_ends_inherits_nothing_of_another(
    other: bool, rig: CoreRig, folder: Path
) -> None:
    rig.ask("new")
    rig.exits("new", 1)
    rig.at(100.0)
    rig.said("new", control.WorkerHello, "new", 1, WorkerState.STARTING)
    rig.said("new", control.Loaded, 100, 2048, 0.1, ("chat",), media=(MediaKind.IMAGE,))
    rig.beat("new", rows=1)
    before = rig.slot("new")
    assert before.life.failures.failed_at_s
    assert before.past.media == (MediaKind.IMAGE,)
    rig.operate(RemoveModel("new"))
    source = folder.rename(folder.with_name("another")) if other else folder
    assert isinstance(rig.operate(AddModel("new", str(source))), control.Done)
    rig.drains("new")
    after = rig.slot("new")
    assert after.life.failures == (FailureRecord() if other else before.life.failures)
    assert after.past.media == (None if other else before.past.media)
    assert after.past.capabilities == (() if other else ("chat",))


def test_who_waits_for_a_model_that_is_removed_gets_an_error(rig: CoreRig) -> None:
    asked = rig.ask("new")
    rig.operate(RemoveModel("new"))
    denied = rig.answer(asked)
    assert (denied.code, denied.message) == (ErrorCode.MODEL_UNLOADED, "new was removed")


def test_only_what_was_added_can_be_removed() -> None:
    rig = CoreRig({"a": 100})
    denied = rig.operate(RemoveModel("a"))
    assert denied.code is ErrorCode.MODEL_CONFIGURED
    assert "lmx reload" in denied.message
    assert rig.operate(RemoveModel("b")).code is ErrorCode.MODEL_NOT_FOUND


async def test_a_source_is_served_once_however_it_is_written() -> None:
    rig = CoreRig({"a": 100})
    rig.operate(AddModel("hub", "org/name"))
    for source, name in (("org/name@main", "hub"), ("/a/", "a"), ("org/name@v2", "other")):
        assert await rig.added.serve(AddModel("other", source), rig.inspect) == name
    assert rig.core.slot("other").model.source == "org/name@v2"


async def test_files_that_can_not_be_read_now_are_not_refused_for_good(folder: Path) -> None:
    rig = CoreRig({"a": 100})

    async def busy(question: Question) -> Inspection:
        return Inspection(question, problem=f"{question.source} can't be read: busy", by_host=True)

    added_models = AddedModels(NoFile(), {}, rig.core, rig.settings, busy, lambda: 0.0)
    loading = Loading(rig.core, added_models, busy, lambda: 0.0, lambda: False)
    for asking in (added_models.add(AddModel("new", str(folder))), loading.load("org/name", None)):
        with pytest.raises(UnavailableError, match="can't be read: busy") as caught:
            await asking
        assert (caught.value.code, caught.value.retry_after_s) == (ErrorCode.QUEUE_FULL, 5.0)
    assert added(rig) == []
    # Where no client waits, there is time for another way to read them.
    assert await added_models.serve(AddModel("new", str(folder)), rig.inspect) == "new"


def test_nothing_is_added_to_one_that_ends(folder: Path) -> None:
    rig = CoreRig({"a": 100})
    rig.core.begin_stopping()
    assert rig.operate(AddModel("new", str(folder))).code is ErrorCode.SHUTTING_DOWN


# Beside the configuration.


class Reloading:
    """A reloader without anything real behind it."""

    def __init__(self, rig: CoreRig) -> None:
        self.rig = rig
        self.written = rig.config
        self.reloader = Reloader(
            lambda: self.written, rig.added, rig.core, rig.settings, rig.actions
        )

    def write(self, **values: Any) -> control.Reloaded:
        old = self.written.model_dump(mode="json", exclude_defaults=True)
        self.written = Config.model_validate({**old, **values})
        return self.reloader.reload("test", self.rig.now_s)


def test_a_reload_keeps_what_was_added(rig: CoreRig) -> None:
    rig.up("new")
    reloading = Reloading(rig)
    assert reloading.reloader.differs() == ()
    reported = reloading.write(models=[{"id": "a", "source": "/a"}, {"id": "b", "source": "/b"}])
    assert reported.sections == ("models",)
    assert rig.state("new") == "ready"
    assert list(rig.core.slots) == ["a", "b", "new"]


def test_the_configuration_goes_before_what_was_added(rig: CoreRig) -> None:
    reloading = Reloading(rig)
    models = [{"id": "a", "source": "/a"}, {"id": "b", "source": "/b", "aliases": ["new"]}]
    reloading.write(models=models)
    assert added(rig) == []
    assert rig.core.slot("new").model.id == "b"
    assert [model for model, _ in rig.noted("model.shadowed")] == ["new"]
    assert "alias of b" in rig.actions.details["model.shadowed"]
    reloading.write(models=models[:1])
    assert added(rig) == ["new"], "it is back"


def test_one_that_the_configuration_takes_over_continues(rig: CoreRig, folder: Path) -> None:
    rig.up("new")
    reloading = Reloading(rig)
    both = [{"id": "a", "source": "/a"}, {"id": "new", "source": str(folder), "preload": False}]
    reloading.write(models=both)
    assert (rig.state("new"), added(rig)) == ("ready", [])
    assert rig.operate(RemoveModel("new")).code is ErrorCode.MODEL_CONFIGURED


def test_a_configuration_without_models_is_refused_though_some_were_added(rig: CoreRig) -> None:
    with pytest.raises(OperationError, match="names no models"):
        Reloading(rig).write(models=[])
    assert list(rig.core.slots) == ["a", "new"]


# Loads that are not of a model as it is.


def load(rig: CoreRig, model: str, context: int | None = None) -> Any:
    return rig.operate(control.LoadModel(model, context))


def test_no_loaded_model_is_started_again_while_the_supervisor_is_replaced() -> None:
    rig = CoreRig({"a": 100, "b": 100}, up="a")
    rig.replacing = True
    for question in (control.LoadModel("a", 512), control.RestartModel("a")):
        assert rig.operate(question).code is ErrorCode.SHUTTING_DOWN
    assert rig.state("a") == "ready"
    assert "loaded already" in load(rig, "a").message
    # The next supervisor knows of this one.
    assert load(rig, "b").message == "loading b"


def test_no_model_is_removed_while_the_supervisor_is_replaced(rig: CoreRig) -> None:
    """The next one would have no place for its worker, and kill it with its streams."""
    rig.up("new")
    rig.beat("new", rows=1)
    rig.replacing = True
    assert rig.operate(RemoveModel("new")).code is ErrorCode.SHUTTING_DOWN
    assert (rig.state("new"), added(rig)) == ("ready", ["new"])
    rig.replacing = False
    assert isinstance(rig.operate(RemoveModel("new")), control.Done)


def test_a_load_with_another_context_ends_the_worker_politely_and_starts_another() -> None:
    rig = CoreRig({"a": 100}, up="a")
    assert "loaded already" in load(rig, "a", 2048).message, "as the worker said"
    first = rig.worker("a").instance
    assert isinstance(load(rig, "a", 512), control.Done)
    assert rig.state("a") == "draining"
    assert rig.sent("a")[-1] == control.Drain(if_idle=False)
    rig.drains("a")
    assert rig.worker("a").instance != first
    assert rig.slot("a").context_length == 512
    rig.said("a", control.WorkerHello, "a", 1, "starting")
    rig.said("a", control.Loaded, 90, 512, 0.1)
    assert "loaded already" in load(rig, "a", 512).message
    assert "loaded already" in load(rig, "a").message, "any will do"


def test_who_changes_their_mind_while_the_worker_ends_its_streams_gets_the_last_context() -> None:
    rig = CoreRig({"a": 100}, up="a")
    load(rig, "a", 512)
    assert rig.state("a") == "draining"
    assert rig.slot("a").context_length == 2048, "that of the worker that is on its way out"
    load(rig, "a", 2048)
    rig.drains("a")
    assert (rig.state("a"), rig.slot("a").context_length) == ("starting", 2048)


def test_a_context_is_kept_until_the_configuration_changes_the_model() -> None:
    rig = CoreRig({"a": 100, "b": 100})
    load(rig, "a", 512)
    rig.exits("a", 1)
    reloading = Reloading(rig)
    reloading.write(default_model="b")
    assert rig.slot("a").model.context_length == 512
    reloading.write(
        models=[{"id": "a", "source": "/a", "max_rows": 3}, {"id": "b", "source": "/b"}]
    )
    assert rig.slot("a").model.context_length is None


def test_a_context_that_cannot_be_is_denied_with_both_figures() -> None:
    rig = CoreRig({"a": 100})
    rig.actions.facts = ModelFacts("qwen3", 4096)
    rig.up("a")
    for context in (15, 4097):
        denied = load(rig, "a", context)
        assert (denied.code, denied.param) == (ErrorCode.INVALID_VALUE, "max_context_length")
        assert str(context) in denied.message
        assert "4096" in denied.message
    assert rig.state("a") == "ready"


def test_a_context_that_needs_more_than_the_budget_ends_nothing() -> None:
    rig = CoreRig({"a": 100}, budget=1000, up="a")
    rig.actions.needs["a"] = 1001
    denied = load(rig, "a", 512)
    assert denied.code is ErrorCode.INSUFFICIENT_MEMORY
    assert rig.state("a") == "ready"


def test_a_context_beyond_that_of_a_model_that_had_to_be_fetched_is_reported_with_its_field() -> (
    None
):
    rig = CoreRig({"a": 100})
    rig.actions.remote.add("far")
    assert isinstance(rig.operate(AddModel("far", "org/far", 4097)), control.Done)
    asked = rig.ask("far")
    rig.actions.facts = ModelFacts("qwen3", 4096)
    rig.core.fetch_ended("far", Path("/models/far"), 0.0)
    at_last, at_once = rig.answer(asked), load(rig, "far")
    for denied in (at_last, at_once):
        assert (denied.code, denied.param) == (ErrorCode.MODEL_SOURCE_INVALID, "context_length")
        assert "4097" in denied.message
        assert "4096" in denied.message
    assert rig.state("far") == "cold"


def needs(rig: CoreRig, name: str, plan: MemoryPlan) -> None:
    """Its files say that a worker would get this."""
    slot = rig.slot(name)
    rig.core._store.put(slot.with_files(replace(slot.files, needs=plan)))


def test_a_model_that_is_not_loaded_shows_the_context_that_it_will_have() -> None:
    rig = CoreRig({"a": 100}, models={"a": {"context_length": 4096}})
    slot = rig.slot("a")
    assert slot.context_length == 4096
    assert slot.files.needs is not None
    needs(rig, "a", replace(slot.files.needs, context_tokens=512))
    assert rig.slot("a").context_length == 512
    assert rig.core.snapshot(0.0).models[0].context_length == 512


def test_a_repository_that_is_in_the_cache_is_added_and_loaded() -> None:
    rig = CoreRig({"a": 100})
    assert load(rig, "org/name").code is ErrorCode.MODEL_NOT_FOUND
    rig.in_cache.add("org/name")
    assert rig.answer(rig.ask("org/name")).code is ErrorCode.MODEL_NOT_FOUND, "for no request"
    assert added(rig) == []
    assert isinstance(load(rig, "org/name"), control.Done)
    assert (added(rig), rig.state("org/name")) == (["org/name"], "starting")
    rig.in_cache.add("/etc")
    assert load(rig, "/etc").code is ErrorCode.MODEL_NOT_FOUND
    rig.in_cache.add("org/name@v1")
    assert load(rig, "org/name@v1").code is ErrorCode.MODEL_NOT_FOUND


def test_a_repository_that_is_served_under_another_name_is_loaded_there() -> None:
    rig = CoreRig({"a": 100}, models={"a": {"source": "org/name"}})
    rig.in_cache.add("org/name")
    load(rig, "org/name")
    assert (added(rig), rig.state("a")) == ([], "starting")


# What routers and status see.


def test_a_snapshot_has_routes_by_id_and_what_is_free() -> None:
    rig = CoreRig(
        {"a": 100, "b": 300},
        routing={"code": ["b-alias", "a", "b"], "patterns": {"gpt-*": "b-alias"}},
    )
    snapshot = rig.core.snapshot(0.0)
    assert snapshot.routes == (Route("code", ("b", "a")),)
    assert snapshot.patterns == (NamePattern("gpt-*", "b-alias"),)
    assert snapshot.free_bytes == 1000
    rig.up("b")
    assert rig.core.snapshot(0.0).free_bytes == 700


def test_a_route_may_name_a_model_that_is_added_later(folder: Path) -> None:
    rig = CoreRig({"a": 100})
    reloading = Reloading(rig)
    reloading.write(routing={"code": ["new", "a"]})
    assert rig.core.snapshot(0.0).routes == (Route("code", ("new", "a")),)
    assert "'new'" in rig.actions.details["routing.incomplete"]
    rig.operate(AddModel("new", str(folder)))
    rig.actions.details.clear()
    reloading.write(memory={"soft_line": 0.5})
    assert "routing.incomplete" not in rig.actions.details


def test_a_model_shows_its_family_its_age_and_its_need_before_it_is_loaded() -> None:
    rig = CoreRig({"a": 100, "far": 100})
    started_s = rig.core.snapshot(0.0).models[1].created_s
    rig.actions.facts = ModelFacts("qwen3", 4096, created_s=1_600_000_000)
    rig.actions.remote.add("far")
    reloading = Reloading(rig)
    reloading.write(memory={"soft_line": 0.5})
    views = {view.model_id: view for view in rig.core.snapshot(0.0).models}
    assert (views["a"].family, views["a"].needed_bytes) == ("qwen3", 100)
    assert (views["far"].family, views["far"].needed_bytes, views["far"].kind) == (None, None, None)
    assert (views["a"].created_s, views["far"].created_s) == (1_600_000_000, started_s)
    rig.ask("far")
    rig.core.fetch_ended("far", Path("/models/far"), 0.0)
    view = rig.core.snapshot(0.0).models[1]
    assert (view.family, view.needed_bytes, view.kind) == ("qwen3", 100, ModelKind.CHAT)


def test_what_a_model_needs_follows_what_it_was_measured_at() -> None:
    rig = CoreRig({"a": 100})
    rig.ask("a")
    rig.bring_up("a", memory_bytes=250)
    assert rig.core.snapshot(0.0).models[0].needed_bytes == 250


def test_the_status_shows_for_how_long_work_stalls() -> None:
    rig = CoreRig({"a": 100}, up="a")
    worker = rig.worker("a")
    rig.said("a", control.WorkerBeat, worker.state, 1, 0, 12.5)
    assert rig.core.status(0.0)[0].stalled_s == 12.5


@pytest.mark.parametrize(("tokens", "shown_bytes"), [(512, 1_024_000), (1024, 2_048_000)])
def test_the_status_shows_what_full_contexts_take_without_the_room_for_short_ones(
    tokens: int, shown_bytes: int
) -> None:
    rig = CoreRig({"a": 100}, models={"a": {"concurrency": 2}})
    plan = MemoryPlan(
        100,
        kv_cache_bytes=8_192_000,
        context_tokens=tokens,
        kv_layers=(KvLayers(10, 100, step_tokens=256),),
    )
    needs(rig, "a", plan)
    line = rig.core.status(0.0)[0]
    assert (line.context_bytes, line.kv_capacity_bytes) == (shown_bytes, 8_192_000)
    needs(rig, "a", MemoryPlan(100))
    assert rig.core.status(0.0)[0].context_bytes is None

"""Adapters as the core knows them: names of their model, and models of their own for routers."""

from pathlib import Path

import pytest

from lmx.protocol.messages import control
from lmx.protocol.messages.control import RefusedAdapter
from lmx.protocol.messages.snapshot import ModelView
from lmx.protocol.states import ModelKind, WorkerState
from tests.support.rigs.core_rig import CoreRig

SETTINGS = {"a": {"adapters": {"sql": "/lora/sql", "prose": "/lora/prose"}}}


@pytest.fixture
def rig() -> CoreRig:
    return CoreRig({"a": 100, "b": 100}, models=SETTINGS)


def views(rig: CoreRig) -> dict[str, ModelView]:
    return {view.model_id: view for view in rig.core.snapshot(rig.now_s).models}


def test_routers_see_each_adapter_as_a_model_of_its_models_worker(rig: CoreRig) -> None:
    assert list(views(rig)) == ["a", "sql", "prose", "b"]
    requester = rig.ask("sql")
    rig.bring_up("a")
    worker = rig.worker("a")
    assert rig.answer(requester) == control.Acquired("a", worker.instance)
    seen = views(rig)
    assert {name: view.base for name, view in seen.items()} == {
        "a": None, "sql": "a", "prose": "a", "b": None,
    }  # fmt: skip
    sql = seen["sql"]
    assert (sql.instance, sql.worker, sql.kind) == (
        worker.instance, WorkerState.READY, ModelKind.CHAT,
    )  # fmt: skip
    assert (sql.memory_bytes, seen["a"].memory_bytes, sql.adapter) == (0, 100, "sql")


def test_commands_by_an_adapters_name_are_about_its_model(rig: CoreRig) -> None:
    rig.operate(control.LoadModel("prose"))
    rig.bring_up("a")
    assert "a (pid" in rig.operate(control.KillModel("sql")).message
    assert rig.operate(control.PinModel("sql", True)).message == "a is pinned"


def test_what_is_wrong_with_an_adapter_is_reported_and_keeps_nobody_else(rig: CoreRig) -> None:
    rig.ask("a")
    rig.said("a", control.WorkerHello, "a", 1, WorkerState.STARTING)
    refused = (RefusedAdapter("sql", "it is of another model"),)
    rig.said("a", control.Loaded, 100, 2048, 0.1, refused_adapters=refused)
    (status, _) = rig.core.status(rig.now_s)
    assert {one.id: one.problem for one in status.adapters} == {
        "sql": "it is of another model", "prose": None,
    }  # fmt: skip
    assert [view.problem for view in views(rig).values()] == [
        None, "it is of another model", None, None,
    ]  # fmt: skip


def test_adapters_from_the_hub_are_fetched_and_one_that_is_not_costs_itself_alone() -> None:
    sources = {"sql": "org/sql-lora", "prose": "org/none"}
    rig = CoreRig({"a": 100}, models={"a": {"adapters": sources}})
    rig.actions.remote.add("a")
    requester = rig.ask("sql")
    assert rig.state("a") == "fetching"
    why = "the hub has no repository org/none"
    rig.core.fetch_ended("a", Path("/models/a"), rig.now_s, {"org/none": why})
    assert rig.noted("adapter.not_fetched") == [("a", {"source": "org/none"})]
    assert [spec.problem for spec in rig.actions.adapters["a"]][1] == why
    rig.bring_up("a")
    assert rig.answer(requester) == control.Acquired("a", rig.worker("a").instance)
    assert [view.problem for view in views(rig).values()] == [None, None, why]
    # The next start asks for it again.
    rig.exits("a", 1)
    rig.operate(control.RestartModel("a"))
    assert rig.state("a") == "fetching"
    rig.core.fetch_ended("a", Path("/models/a"), rig.now_s)
    rig.bring_up("a")
    assert [view.problem for view in views(rig).values()] == [None, None, None]
    rig.exits("a", 1)
    rig.operate(control.RestartModel("a"))
    assert rig.state("a") == "starting"

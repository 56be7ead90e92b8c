"""Opta-LMX's administration and Kolosal's engines over HTTP, on a whole lmx beside a hub."""

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
import yaml
from yarl import URL

from lmx.router.http.api_family import Error, ErrorObject
from lmx.router.operators.config import ReloadAnswer
from lmx.router.operators.downloads import (
    AvailableAnswer,
    DownloadAnswer,
    DownloadProgress,
    DownloadsAnswer,
)
from lmx.router.operators.engines import (
    EngineAnswer,
    EngineRemoved,
    EnginesAnswer,
    EngineStatusAnswer,
)
from lmx.router.operators.health import ServerHealth
from lmx.router.operators.models import DeleteAnswer, LoadAnswer, UnloadAnswer
from lmx.router.operators.status import HealthAnswer, MemoryAnswer, ModelsAnswer, StatusAnswer
from tests.support.clients.answer_check import check_shape
from tests.support.fakes.fake_hub import FakeHub, fake_hub
from tests.support.models.model_folders import write_model
from tests.support.models.tiny_models import CONTEXT_TOKENS, make_tiny_model
from tests.support.rigs.rig import Rig, http, rig, scripted, wait_until, whole

pytestmark = pytest.mark.long

CONTEXT = 4096
REPO = "org/tiny-llama"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), "llama")


@pytest.fixture(scope="module")
def lmx(tiny: Path) -> Iterator[Rig]:
    models = [
        scripted("alpha", context_length=CONTEXT),
        scripted("be/ta", preload=False, aliases=["b"], context_length=CONTEXT),
        scripted("huge", preload=False, memory_bytes="900 TiB"),
    ]
    before = dict(os.environ)
    with fake_hub() as hub:
        served: FakeHub = hub
        served.add_folder(REPO, tiny)
        os.environ["HF_ENDPOINT"] = served.endpoint
        try:
            # The import of MLX takes its time on a busy machine.
            timing = {"start_timeout_s": 60.0, "load_stall_timeout_s": 60.0}
            with rig({"models": models, "timing": timing}) as running:
                running.wait_state("alpha", "ready")
                yield running
        finally:
            os.environ.clear()
            os.environ.update(before)


def read_as(shape: Any, text: str) -> Any:
    check_shape(shape, json.loads(text))
    return json.loads(text, object_hook=lambda fields: SimpleNamespace(**fields))


class Admin:
    """An operator's client; every answer is read as what its route says that it is."""

    def __init__(self, lmx: Rig, session: aiohttp.ClientSession) -> None:
        self.base = lmx.url.removesuffix("/v1")
        self.key = {"X-Admin-Key": (lmx.home / "admin.key").read_text().strip()}
        self.session = session

    async def send(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        url = URL(f"{self.base}{path}", encoded=True)
        async with self.session.request(method, url, headers=self.key, json=body) as response:
            return response.status, await response.text()

    async def get(self, shape: Any, path: str) -> Any:
        return await self.do(shape, "GET", path)

    async def do(
        self, shape: Any, method: str, path: str, body: Any = None, status: int = 200
    ) -> Any:
        """Return the answer with its fields as attributes."""
        got, text = await self.send(method, path, body)
        assert got == status, text
        return read_as(shape, text)

    async def refused(self, method: str, path: str, body: Any = None) -> tuple[int, ErrorObject]:
        status, text = await self.send(method, path, body)
        check_shape(Error, json.loads(text))
        error: ErrorObject = json.loads(text)["error"]
        return status, error


def measured(lmx: Rig, model: str) -> None:
    """Wait until it is known what memory a model's worker takes, which is measured twice a
    second."""
    wait_until(lambda: lmx.worker(model)["memory_bytes"] > 0, f"the memory of {model}")


async def test_how_lmx_is(lmx: Rig) -> None:
    await asyncio.to_thread(measured, lmx, "alpha")
    async with http() as session:
        admin = Admin(lmx, session)
        assert (await whole(session, lmx.url, "alpha", "hello"))[0] == 200
        status = await admin.get(StatusAnswer, "/admin/status")
        assert (status.loaded_models, status.models) == (1, ["alpha"])
        assert status.memory.total_gb > status.memory.used_gb > 0
        assert status.memory.threshold_percent == 92
        found = await admin.get(ModelsAnswer, "/admin/models")
        assert (found.count, [model.id for model in found.available]) == (1, ["be/ta", "huge"])
        alpha = found.loaded[0]
        assert alpha.request_count >= 1
        assert alpha.last_used_at is not None
        assert alpha.loaded_at is not None
        assert alpha.last_used_at >= alpha.loaded_at - 1
        memory = await admin.get(MemoryAnswer, "/admin/memory")
        models = vars(memory.models)
        assert models["alpha"].memory_gb > 0
        assert not models["be/ta"].loaded
        assert (await admin.get(HealthAnswer, "/admin/health")).status in ("ok", "degraded")
        assert (await admin.get(ServerHealth, "/v1/health")).engines.total == 3


async def test_models_are_loaded_and_unloaded(lmx: Rig) -> None:
    async with http() as session:
        admin = Admin(lmx, session)
        path = "/admin/models/load"
        for context in (1024, 2048, 2048):
            wanted = {"model_id": "b", "max_context_length": context, "gpu_layers": 3}
            loaded = await admin.do(LoadAnswer, "POST", path, wanted)
            assert (loaded.model_id, loaded.context_length) == ("be/ta", context)
            assert loaded.gpu_layers == 3
            assert loaded.memory_after_load_gb > 0
        line = lmx.worker("be/ta")
        assert (line["state"], line["context_length"], line["loads_total"]) == ("ready", 2048, 2)
        await asyncio.to_thread(measured, lmx, "be/ta")
        wanted = {"model_id": "be/ta"}
        unloaded = await admin.do(UnloadAnswer, "POST", "/admin/models/unload", wanted)
        assert unloaded.memory_freed_gb > 0
        assert lmx.worker("be/ta")["pid"] is None
        status, error = await admin.refused("POST", "/admin/models/unload", wanted)
        assert (status, error["code"]) == (409, "model_not_loaded")
        for model, code in [("nope", 404), ("huge", 507)]:
            status, error = await admin.refused("POST", path, {"model_id": model})
            assert status == code, error
        assert (await whole(session, lmx.url, "huge", "hello"))[0] == 503


async def test_engines_that_are_refused(lmx: Rig, tiny: Path, tmp_path: Path) -> None:
    async with http() as session:
        admin = Admin(lmx, session)
        same = {"engine_id": "alpha", "model_path": str(lmx.root / "stub"), "n_ctx": CONTEXT}
        await admin.do(EngineAnswer, "POST", "/engines", same, 201)
        for wanted, code, param in [
            ({**same, "n_ctx": 2048}, 409, "engine_id"),
            ({"engine_id": "x", "model_path": "/nowhere/at/all"}, 400, "model_path"),
            ({"engine_id": "x", "model_path": str(tiny), "n_ctx": 4096}, 400, "n_ctx"),
        ]:
            status, error = await admin.refused("POST", "/engines", wanted)
            assert (status, error["param"]) == (code, param), error
        assert str(CONTEXT_TOKENS) in error["message"]
        broken = {"engine_id": "x", "model_path": str(write_model(tmp_path / "x")), "n_ctx": 128}
        status, error = await admin.refused("POST", "/engines", broken)
        assert (status, error["code"]) == (503, "model_load_failed"), error
        engines = (await admin.get(EnginesAnswer, "/engines")).engines
        assert {(each.engine_id, each.status) for each in engines} == {
            ("alpha", "loaded"),
            ("be/ta", "unloaded"),
            ("huge", "unloaded"),
        }
        status, error = await admin.refused("DELETE", "/engines/alpha")
        assert (status, error["code"], error["param"]) == (409, "model_configured", "engine_id")


async def test_from_a_download_to_its_deletion(lmx: Rig) -> None:
    async with http() as session:
        admin = Admin(lmx, session)
        path = "/admin/models/download"
        status, error = await admin.refused("POST", path, {"repo_id": "org/nothing"})
        assert (status, error["param"]) == (404, "repo_id"), error
        begun = await admin.do(DownloadAnswer, "POST", path, {"repo_id": REPO})
        assert begun.estimated_size_bytes
        url = f"{admin.base}{path}/{begun.download_id}/progress"
        async with session.get(url, headers=admin.key) as response:
            lines = (await response.text()).strip().split("\n\n")
        events = [
            read_as(DownloadProgress, line.removeprefix("data: "))
            for line in lines
            if not line.startswith(":")
        ]
        assert (events[-1].status, events[-1].progress_percent) == ("completed", 100)
        assert events[-1].model_id == REPO
        assert (await admin.get(DownloadsAnswer, path)).downloads[0].status == "completed"
        assert (await admin.get(DownloadAnswer, f"{path}/{begun.download_id}")).model_id == REPO
        status, text = await admin.send("GET", "/admin/models/available")
        on_disk = read_as(list[AvailableAnswer], text)
        assert [each.repo_id for each in on_disk] == [REPO]
        assert Path(on_disk[0].local_path).is_dir()
        await use_as_engine(admin, lmx)
        deleted = await admin.do(DeleteAnswer, "DELETE", f"/admin/models/{REPO}")
        assert deleted.model_id == REPO
        assert deleted.freed_bytes > 0
        assert (await admin.send("GET", "/admin/models/available")) == (200, "[]")
        assert (await admin.refused("DELETE", f"/admin/models/{REPO}"))[0] == 404
        status, error = await admin.refused("DELETE", "/admin/models/alpha")
        assert status == 409, error


async def use_as_engine(admin: Admin, lmx: Rig) -> None:
    """Load the model that was downloaded, ask it, and remove it; its files stay meanwhile."""
    wanted = {"engine_id": "my/tiny", "model_path": REPO, "n_ctx": 256, "main_gpu_id": 1}
    added = await admin.do(EngineAnswer, "POST", "/engines", wanted, 201)
    assert (added.status, added.parameters.n_ctx) == ("loaded", 256)
    engines = (await admin.get(EnginesAnswer, "/engines")).engines
    assert ("my/tiny", "loaded", REPO) in [
        (each.engine_id, each.status, each.model_path) for each in engines
    ]
    tokens = {"max_tokens": 8, "min_tokens": 8}
    status, answer = await whole(admin.session, lmx.url, "my/tiny", "hello", **tokens)
    assert status == 200, answer
    # The worker's beat may count a request before the router knows that its last byte has left.
    async with asyncio.timeout(90):
        while True:
            shown = await admin.get(EngineStatusAnswer, "/engines/my%2Ftiny/status")
            if shown.performance.last_inference_tps:
                break
            await asyncio.sleep(0.05)
    assert (shown.parameters.n_ctx, shown.parameters.main_gpu_id) == (256, 1)
    assert shown.memory_usage.model_size_mb > 0
    assert shown.memory_usage.context_size_mb > 0
    assert shown.performance.total_requests == 1
    status, error = await admin.refused("DELETE", f"/admin/models/{REPO}")
    assert (status, error["code"], error["param"]) == (409, "model_loaded", "model_id")
    await admin.do(EngineRemoved, "DELETE", "/engines/my/tiny")
    assert (await admin.refused("GET", "/engines/my/tiny/status"))[0] == 404
    assert "my/tiny" not in [line["model"] for line in lmx.status()["workers"]]


async def test_the_configuration_is_read_again(lmx: Rig) -> None:
    async with http() as session:
        admin = Admin(lmx, session)
        path = "/admin/config/reload"
        assert (await admin.do(ReloadAnswer, "POST", path)).updated == []
        config = yaml.safe_load(lmx.config_path.read_text())
        config["logs"] = {"level": "debug"}
        config["memory"] = {"soft_line": 0.9}
        lmx.config_path.write_text(yaml.safe_dump(config))
        reloaded = await admin.do(ReloadAnswer, "POST", path)
        assert set(reloaded.updated) == {"logging", "memory"}
        config["memory"] = {"soft_line": 7}
        config["server"]["port"] = "x"
        lmx.config_path.write_text(yaml.safe_dump(config))
        status, error = await admin.refused("POST", path)
        assert (status, error["code"]) == (400, "config_invalid")
        assert "soft_line" in error["message"]
        assert "port" in error["message"]

"""Adapters in a whole lmx: several model ids, and one worker."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from lmx.supervisor.cli.views.estimate import print_estimate
from lmx.supervisor.config.schema import Config
from lmx.supervisor.state.home import Home
from tests.support.fakes.fake_hub import fake_hub
from tests.support.models.model_folders import write_model
from tests.support.rigs.rig import Rig, Stream, ask, http, rig, scripted, wait_until, whole

pytestmark = pytest.mark.long


def with_adapters(lmx: Rig, *names: str) -> dict[str, Any]:
    """The configuration with adapters whose folders are there."""
    folders: dict[str, str] = {}
    for name in names:
        folder = Path(lmx.root) / name
        folder.mkdir(exist_ok=True)
        config = {"lora_parameters": {"rank": 1, "scale": 1.0}}
        (folder / "adapter_config.json").write_text(json.dumps(config))
        (folder / "adapters.safetensors").write_bytes(b"-")
        folders[name] = str(folder)
    return {"models": [scripted("base", adapters=folders)]}


async def test_several_ids_have_one_worker_and_a_reload_adds_another() -> None:
    with rig({"models": [scripted("base")]}) as lmx:
        lmx.wait_state("base", "ready")
        lmx.configure(with_adapters(lmx, "sql", "prose"))
        done = await asyncio.to_thread(lmx.cli, "reload")
        assert "base: reloaded once its streams have ended" in done.stdout, done.stderr
        async with http() as session:
            names = ("base", "sql", "prose", "sql")
            streams = [Stream(session, lmx.url, ask(name, {"tokens": 2})) for name in names]
            await asyncio.gather(*(stream.ended() for stream in streams))
            assert [stream.text for stream in streams] == [
                "word word ", "[sql] word word ", "[prose] word word ", "[sql] word word ",
            ]  # fmt: skip
            wait_until(lambda: lmx.worker("base")["requests_total"] == 4, "all four are counted")
            (worker,) = lmx.status()["workers"]
            assert {one["id"] for one in worker["adapters"]} == {"sql", "prose"}
            _, answer = await whole(session, lmx.url, "prose", {"tokens": 1})
            assert answer["model"] == "prose"
            async with session.get(f"{lmx.url}/models") as response:
                listed = {one["id"]: one["parent"] for one in (await response.json())["data"]}
            assert listed == {"base": None, "sql": "base", "prose": "base"}
            body = {"model": "sql", "prompt": "abc"}
            async with session.post(
                f"{lmx.url}/tokenize".replace("/v1", ""), json=body
            ) as response:
                assert (await response.json())["count"] == 3
            async with session.get(f"{lmx.url}/jobs?model=sql") as response:
                assert {job["model"] for job in (await response.json())["data"]} == {"sql"}
            shown = await asyncio.to_thread(lmx.cli, "status")
            assert "with " in shown.stdout
            refused = await asyncio.to_thread(lmx.cli, "delete", "sql")
            assert "sql is an adapter of base" in refused.stderr
            reported = await asyncio.to_thread(lmx.cli, "kill", "sql")
            assert "killed base" in reported.stdout, reported.stderr
            wait_until(lambda: lmx.worker("base")["pid"] != worker["pid"], "another worker")
            # One that is no longer configured is nobody's name, and its model goes on.
            lmx.configure(with_adapters(lmx, "prose"))
            assert (await asyncio.to_thread(lmx.cli, "reload")).returncode == 0
            late = Stream(session, lmx.url, ask("prose", {"tokens": 1}))
            await late.ended()
            assert late.text == "[prose] word "
            status, _ = await whole(session, lmx.url, "sql", {"tokens": 1})
            assert status == 404


ADAPTER = {
    "adapter_config.json": json.dumps({"lora_parameters": {"rank": 1, "scale": 1.0}}).encode(),
    "adapters.safetensors": b"-" * 60_000,
    # What a training left there, and the merged model.
    "checkpoint-5.safetensors": b"-" * 70_000,
    "model.safetensors": b"-" * 80_000,
    "config.json": b"{}",
}


def test_an_estimate_asks_the_hub_how_large_an_adapter_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Until it is fetched. What the hub does not say is named."""
    adapters = {"sql": "org/sql-lora@main", "odd": "org/gone"}
    model = {"id": "m", "source": str(write_model(tmp_path / "m")), "adapters": adapters}
    config = Config.model_validate({"models": [model]})
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    with fake_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        hub.add("org/sql-lora", ADAPTER)
        print_estimate(config, Home(tmp_path), "m", True)
        assert not hub.served
    found = json.loads(capsys.readouterr().out)
    taken = ("adapter_config.json", "adapters.safetensors")
    assert found["adapters_bytes"] == sum(len(ADAPTER[name]) for name in taken)
    assert found["adapters_not_fetched"] == ["odd"]


async def test_an_adapter_comes_from_the_hub_and_another_can_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with fake_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        hub.add("org/sql-lora", ADAPTER)
        sources = {"sql": "org/sql-lora", "late": "org/late", "odd": "org/odd"}
        hub.add("org/odd", {"adapter_config.json": b"{}", "adapter_model.bin": b"-"})
        with rig({"models": [scripted("base", adapters=sources)]}) as lmx:
            lmx.wait_state("base", "ready")
            large = {name: hub.served[name] for name in ADAPTER if name.endswith(".safetensors")}
            assert large == {
                "adapters.safetensors": 60_000, "checkpoint-5.safetensors": 0,
                "model.safetensors": 0,
            }  # fmt: skip
            reported = {one["id"]: one["problem"] for one in lmx.worker("base")["adapters"]}
            assert reported["sql"] is None
            assert "no repository org/late" in reported["late"]
            assert "no adapter_model.safetensors" in reported["odd"]
            async with http() as session:
                stream = Stream(session, lmx.url, ask("sql", {"tokens": 1}))
                await stream.ended()
                assert stream.text == "[sql] word "
                status, answer = await whole(session, lmx.url, "late", {"tokens": 1})
                assert status == 503 and "no repository org/late" in answer["message"]
                used = await asyncio.to_thread(lmx.cli, "delete", "org/sql-lora")
                assert "base is loaded" in used.stderr
                # It is there now, and the next worker has it.
                hub.add("org/late", ADAPTER)
                await asyncio.to_thread(lmx.cli, "restart", "base")

                def problems() -> dict[str, str | None]:
                    base = lmx.worker("base")
                    return {one["id"]: one["problem"] for one in base["adapters"]}

                wait_until(lambda: problems()["late"] is None, "the other adapter has come")
                late = Stream(session, lmx.url, ask("late", {"tokens": 1}))
                await late.ended()
                assert late.text == "[late] word "

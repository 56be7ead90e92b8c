"""With the real engine: what was computed for one API key is not found by another."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.models.tiny_models import make_tiny_model
from tests.support.rigs.rig import PATIENT, http, rig

pytestmark = [pytest.mark.process, pytest.mark.engine]

ONE, OTHER = "first-key-of-the-tests", "other-key-of-the-tests"


async def test_keys_share_what_is_computed_only_where_they_may(tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "models": [
            {"id": "tiny", "source": str(make_tiny_model(tmp_path / "tiny", "llama", 2048))}
        ],
        "security": {"api_keys": [ONE, OTHER]},
        "timing": PATIENT,
    }
    with rig(config) as lmx:
        lmx.wait_state("tiny", "ready", deadline_s=300)

        async def cached(key: str, story: str) -> int:
            body = {"model": "tiny", "prompt": f"{story} " * 60, "max_tokens": 2}
            headers = {"Authorization": f"Bearer {key}"}
            async with (
                http() as session,
                session.post(f"{lmx.url}/completions", json=body, headers=headers) as response,
            ):
                assert response.status == 200, await response.text()
                tokens: int = (await response.json())["usage"]["cached_tokens"]
                return tokens

        assert [await cached(key, "a secret") > 0 for key in (ONE, ONE, OTHER, OTHER, ONE)] == [
            False, True, False, True, True,
        ]  # fmt: skip

        lmx.configure({**config, "security": {**config["security"], "share_prefix_cache": True}})
        done = await asyncio.to_thread(lmx.cli, "reload")
        assert done.returncode == 0, done.stderr
        assert await cached(ONE, "what both know") == 0
        assert await cached(OTHER, "what both know") > 0

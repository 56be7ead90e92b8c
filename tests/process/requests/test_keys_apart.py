"""With the real engine: what was computed for one API key is not found by another, and explains
nothing to it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.models.tiny_models import make_tiny_model
from tests.support.rigs.rig import PATIENT, Rig, http, rig

pytestmark = pytest.mark.engine

ONE, OTHER, ADMIN = "first-key-of-the-tests", "other-key-of-the-tests", "admin-key-of-the-tests"
RULES = " ".join(f"rule {number} is {number * number}" for number in range(40))


async def complete(lmx: Rig, key: str, prompt: str) -> int:
    """Return how many tokens of the prompt were cached."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 2}
    headers = {"Authorization": f"Bearer {key}"}
    async with (
        http() as session,
        session.post(f"{lmx.url}/completions", json=body, headers=headers) as response,
    ):
        assert response.status == 200, await response.text()
        answered = await response.json()
        assert "reread" not in str(answered)
        tokens: int = answered["usage"]["cached_tokens"]
        return tokens


async def rereads(lmx: Rig, most: int) -> list[Any]:
    """Return why the last prompts were read again, the newest first."""
    url = f"{lmx.url.removesuffix('/v1')}/admin/requests?ended={most}"
    async with http() as session, session.get(url, headers={"X-Admin-Key": ADMIN}) as response:
        assert response.status == 200, await response.text()
        return [ended["reread"] for ended in (await response.json())["ended"]]


async def test_keys_share_what_is_computed_only_where_they_may(tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "models": [
            {"id": "tiny", "source": str(make_tiny_model(tmp_path / "tiny", "llama", 2048))}
        ],
        "server": {"show_rereads": True},
        "security": {"api_keys": [ONE, OTHER], "admin_key": ADMIN},
        "timing": PATIENT,
    }
    with rig(config) as lmx:
        lmx.wait_state("tiny", "ready", deadline_s=300)

        async def cached(key: str, story: str) -> int:
            return await complete(lmx, key, f"{story} " * 60)

        assert [await cached(key, "a secret") > 0 for key in (ONE, ONE, OTHER, OTHER, ONE)] == [
            False, True, False, True, True,
        ]  # fmt: skip
        assert await rereads(lmx, 5) == [None] * 5

        monday, tuesday = (
            f"Be kind to everybody. It is {day}. {RULES}" for day in ("Monday", "Tuesday")
        )
        for key, prompt in ((ONE, monday), (OTHER, tuesday), (ONE, tuesday)):
            await complete(lmx, key, prompt)
        explained, unknown, first = await rereads(lmx, 3)
        # The other key's prompt repeats nothing of its own.
        assert (unknown, first) == (None, None)
        assert explained["reason"] == "differs"
        assert explained["cached_tokens"] == explained["position"] < explained["expected_tokens"]
        assert explained["before"].endswith("It is ")
        assert explained["was"].startswith("Monday. rule 0")
        assert explained["now"].startswith("Tuesday. rule 0")
        assert lmx.log_events("worker-tiny", "stream.finished")[-1]["reread_at"] > 0
        logs = "".join(path.read_text() for path in (lmx.home / "logs").glob("*.log"))
        assert "reread" in logs and "Monday" not in logs

        shared = {**config["security"], "share_prefix_cache": True}
        lmx.configure({**config, "server": {}, "security": shared})
        done = await asyncio.to_thread(lmx.cli, "reload")
        assert done.returncode == 0, done.stderr
        assert await cached(ONE, "what both know") == 0
        assert await cached(OTHER, "what both know") > 0
        for key, prompt in ((ONE, monday), (OTHER, tuesday)):
            await complete(lmx, key, prompt)
        explained, _ = await rereads(lmx, 2)
        assert (explained["reason"], explained["was"]) == ("differs", None)

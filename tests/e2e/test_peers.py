"""Conversations over two machines with the real engine: of each turn, what the turn before has
computed is found again, whichever machine it comes in at."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from lmx.protocol.models.default_engine import MLX_ENGINE
from tests.support.models.tiny_models import make_tiny_model
from tests.support.rigs.federated_homes import MODEL, federated_homes, know_all
from tests.support.rigs.rig import http

pytestmark = pytest.mark.soak

TURNS = 20
TALKS = 3


async def test_of_each_turn_nearly_all_is_found_that_was_computed(tmp_path: Path) -> None:
    tiny = make_tiny_model(tmp_path / "tiny", "llama", 65_536)
    real: dict[str, Any] = {"source": str(tiny), "engine": MLX_ENGINE, "memory_bytes": None}
    with federated_homes(("desk", "studio"), **real, max_rows=2, context_length=32_768) as rigs:
        async with http() as session:
            for one in rigs.values():
                await asyncio.to_thread(one.wait_state, MODEL, "ready")
                await know_all(session, one, 1)
            fronts = [one.url for one in rigs.values()]
            found = reusable = 0
            machines: set[str] = set()

            async def talk(number: int) -> None:
                nonlocal found, reusable
                messages: list[dict[str, str]] = []
                before = 0
                for turn in range(TURNS):
                    text = f"talk {number} turn {turn} " + "some words of a person " * 20
                    messages.append({"role": "user", "content": text})
                    body = {"model": MODEL, "messages": messages, "max_tokens": 24}
                    url = f"{fronts[(number + turn) % 2]}/chat/completions"
                    async with session.post(url, json=body) as response:
                        answer = await response.json()
                        assert response.status == 200, answer
                        machines.add(response.headers["X-Lmx-Machine"])
                    usage = answer["usage"]
                    found += min(before, usage["prompt_tokens_details"]["cached_tokens"])
                    reusable += before
                    before = usage["prompt_tokens"]
                    content = answer["choices"][0]["message"]["content"] or "-"
                    messages.append({"role": "assistant", "content": content})
                    # A person reads, and the machines tell each other what they have.
                    await asyncio.sleep(1.5)

            await asyncio.gather(*(talk(number) for number in range(TALKS)))
            print(f"\n{found} of {reusable} tokens were found again, on {sorted(machines)}")
            assert found >= 0.95 * reusable
            assert len(machines) == 2

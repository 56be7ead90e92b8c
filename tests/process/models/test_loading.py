"""Loads that go wrong, are slow, or do not fit; and models that come on demand."""

from collections.abc import Iterator

import pytest

from lmx.protocol.messages.control import LoadModel
from tests.support.rigs.rig import Rig, ask, http, rig, scripted, wait_until

STALL_S = 3.0


@pytest.fixture(scope="module")
def lmx() -> Iterator[Rig]:
    config = {
        "models": [
            scripted("alpha"),
            scripted("slow", preload=False, options={"load_s": 2 * STALL_S}),
            scripted("big", preload=False, memory_bytes="3 GiB"),
        ],
        "memory": {"budget_bytes": "2 GiB"},
        "timing": {"load_stall_timeout_s": STALL_S},
    }
    with rig(config) as running:
        yield running


def test_a_slow_load_with_progress_is_waited_for(lmx: Rig) -> None:
    """Twice the stall limit in all, but never without progress for so long."""
    lmx.ask(LoadModel("slow"))
    fractions = set()

    def loaded() -> bool:
        line = lmx.worker("slow")
        fractions.add(line["fraction"])
        return bool(line["state"] == "ready")

    wait_until(loaded, "slow is ready")
    assert len(fractions - {None}) >= 2, "progress is shown"


async def test_a_model_larger_than_the_budget_is_refused_with_figures(lmx: Rig) -> None:
    lmx.wait_state("alpha", "ready")
    done = lmx.cli("load", "big")
    assert done.returncode == 1
    assert "3.0 GiB" in done.stderr
    assert "whole budget of 2.0 GiB" in done.stderr
    async with http() as session:
        url = f"{lmx.url}/chat/completions"
        async with session.post(url, json=ask("big", "hi", stream=False)) as response:
            error = (await response.json())["error"]
            assert (response.status, error["code"]) == (503, "insufficient_memory")
            # It never will fit: nothing is worth waiting for.
            assert "Retry-After" not in response.headers
            assert response.headers["X-Should-Retry"] == "false"
    assert lmx.worker("alpha")["state"] == "ready"

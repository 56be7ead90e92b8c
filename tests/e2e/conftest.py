"""A server with the small real models, as a user would run it; one for all tests here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI
from rig import Rig, rig


@pytest.fixture(scope="package")
def server(smollm2_dir: Path, smollm2_int4_dir: Path) -> Iterator[Rig]:
    """Two real models, loaded at once: SmolLM2 in float32 and in 4 bits."""
    config = {
        "models": [
            {"id": "smollm2", "source": str(smollm2_dir), "aliases": ["small"]},
            {"id": "smollm2-int4", "source": str(smollm2_int4_dir)},
        ],
        # Real weights on a busy machine: patience, except for the beats of a stopped process.
        "timing": {
            "beat_timeout_s": 6.0,
            "stall_timeout_s": 60.0,
            "load_stall_timeout_s": 120.0,
            "start_timeout_s": 60.0,
            "shutdown_grace_s": 1.0,
        },
    }
    with rig(config) as lmx:
        for model in ("smollm2", "smollm2-int4"):
            lmx.wait_state(model, "ready", deadline_s=120)
        yield lmx


@pytest.fixture
def client(server: Rig) -> Iterator[OpenAI]:
    """The official SDK, without retries: a test wants to see each error."""
    with OpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=120) as made:
        yield made

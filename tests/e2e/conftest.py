"""Servers as a user would run them, each for all tests here."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.support.clients.client_packages import python_packages
from tests.support.models.tiny_models import make_tiny_model
from tests.support.rigs.rig import PATIENT, Rig, rig, scripted


@pytest.fixture(scope="package")
def server(smollm2_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Two models on the real engine, loaded at once: SmolLM2 in float32, and a tiny one with random
    weights, for what is the same whatever an answer says: it writes a hundred times as fast. Files
    that need others have it serve those too. It beats as seldom as a user's: what waits for a
    beat here has minutes for it, and all of its processes last as long."""
    tiny = make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", "llama", 8192)
    config = {
        "models": [
            {"id": "smollm2", "source": str(smollm2_dir), "aliases": ["small"]},
            {"id": "tiny", "source": str(tiny)},
        ],
        "media": {"allowed_networks": ["127.0.0.1"]},
        "timing": PATIENT | {"beat_interval_s": 1.0, "shutdown_grace_s": 1.0},
    }
    with rig(config) as lmx:
        for model in ("smollm2", "tiny"):
            lmx.wait_state(model, "ready", deadline_s=300)
        yield lmx


API_KEY = "an-inference-key-of-the-tests"


@pytest.fixture(scope="package")
def scripted_server(minilm_dir: Path) -> Iterator[Rig]:
    """Models whose answers the requests script, with an API key; for what clients do with them.
    ``narrow`` takes one request at a time, which may have images, sounds and videos. ``stumbling``
    and ``tripping`` fail to load the first time. ``slow`` is for tests that hold its load up
    (:meth:`Rig.held_load`). ``good`` is no script: it writes what a good model would
    (:mod:`good_model`).
    """
    config = {
        "security": {"api_keys": [API_KEY]},
        "server": {"capture_requests": 100},
        # A model's failed load is tried again at once. Several tests break an engine, and a quick
        # machine runs them within one window.
        "restart": {"backoff_base_s": 0.05, "backoff_max_s": 0.1, "max_failures": 1000},
        "models": [
            scripted("scripted"),
            scripted("narrow", max_rows=1, max_queue=0, options={"media": True}),
            scripted("stumbling", preload=False, options={"bad_loads": [1]}),
            scripted("tripping", preload=False, options={"bad_loads": [1]}),
            scripted("slow", preload=False),
            scripted("good", preload=False, engine="tests.support.fakes.good_engine:create"),
            {"id": "minilm", "source": str(minilm_dir), "preload": False},
        ],
        # The router gives a supervisor up that has not answered five beats.
        "timing": {"load_stall_timeout_s": 60.0, "beat_timeout_s": 6.0, "beat_interval_s": 0.5},
    }
    with rig(config) as lmx:
        for model in ("scripted", "narrow"):
            lmx.wait_state(model, "ready", deadline_s=300)
        yield lmx


@pytest.fixture
def scripted_client(scripted_server: Rig) -> Iterator[OpenAI]:
    """The official SDK on the scripted models, without retries."""
    url = scripted_server.url
    with OpenAI(base_url=url, api_key=API_KEY, max_retries=0, timeout=300) as made:
        yield made


@pytest.fixture(scope="session")
def packages() -> Path:
    """Other clients of the API: fetched once for each machine."""
    return python_packages()


@pytest.fixture
def client(server: Rig) -> Iterator[OpenAI]:
    """The official SDK, without retries: a test wants to see each error."""
    with OpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=300) as made:
        yield made

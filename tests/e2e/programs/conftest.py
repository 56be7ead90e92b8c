"""An lmx for programs of other people, which are fetched in exact versions into the cache of this
machine, and run as their users run them (`make clients`)."""

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clients.client_packages import node_folder, python_packages
from tests.support.models.tiny_models import CHAT_TEMPLATE
from tests.support.programs.workplace import Workplace
from tests.support.rigs.rig import PATIENT, Rig, rig, scripted

API_KEY = "an-inference-key-of-the-tests"
PINNED = Path(__file__).parent / "pinned"
STRICT = (
    "{% set effort = reasoning_effort | default('xhigh') %}"
    "{% if effort not in ('xhigh', 'medium', 'low') %}"
    "{{ raise_exception('Unexpected reasoning effort ' ~ effort) }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}{% endfor %}"
) + CHAT_TEMPLATE
"""Refuses what programs send, as Qwen's do: the effort "high", and system messages in between."""
PICTURE_SIZE = (48, 32)


def node_programs(name: str) -> Path:
    """Return the folder of a package.json of pinned/, with node_modules; fetched once."""
    return node_folder(PINNED / name)


def agent(model_id: str, template: str = CHAT_TEMPLATE) -> dict[str, object]:
    """Return a model that follows plans."""
    options = {"template": template}
    return scripted(model_id, engine="tests.support.programs.agent_engine:create", options=options)


@pytest.fixture(scope="package")
def agent_server() -> Iterator[Rig]:
    """``agent`` takes any request; ``strict`` has the template above; ``eager`` tells all efforts
    apart, and so does its entry in lists that programs read."""
    models = [
        agent("agent"), agent("strict", STRICT),
        agent("eager", CHAT_TEMPLATE + "{{ reasoning_effort }}"),
    ]  # fmt: skip
    with rig({"security": {"api_keys": [API_KEY]}, "models": models, "timing": PATIENT}) as lmx:
        for model in models:
            lmx.wait_state(str(model["id"]), "ready", deadline_s=300)
        yield lmx


@pytest.fixture
def place(agent_server: Rig, tmp_path: Path) -> Workplace:
    """An empty folder and an empty home."""
    folder, home = tmp_path / "folder", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    return Workplace(agent_server, API_KEY, folder, home)


@pytest.fixture
def picture(place: Workplace) -> Path:
    """A grey PNG file of ``PICTURE_SIZE``."""
    width, height = PICTURE_SIZE

    def chunk(kind: bytes, data: bytes) -> bytes:
        checked = kind + data
        return struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress((b"\0" + b"\x80" * width) * height)
    file = place.folder / "grey.png"
    file.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    )
    return file


@pytest.fixture(scope="session")
def pinned_python() -> Path:
    """The Python packages of pinned/, for PYTHONPATH."""
    return python_packages(PINNED / "python.txt")

"""Which weights are wired on a Mac, and the order of what is asked of mlx, which records it."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from lmx.protocol.states import MemoryWiring, ModelKind
from lmx.supervisor.config.schema import TimingConfig
from lmx.supervisor.config.shutdown_timeout import term_grace_s
from lmx.worker.lifecycle import close_bounds_s
from lmx.worker.mlx import factory
from lmx.worker.mlx.device import metal_memory
from lmx.worker.mlx.device.before_mlx import VARIABLE, keep_resident
from lmx.worker.mlx.device.wired import wired_bytes
from lmx.worker.mlx.encoders import embedding

GIB = 1024**3
AUTO, ALWAYS, NEVER = MemoryWiring.AUTO, MemoryWiring.ALWAYS, MemoryWiring.NEVER


@pytest.mark.parametrize(
    ("wiring", "weights", "wired"),
    [
        (AUTO, 48, 0),
        (AUTO, 49, 49),
        (AUTO, 90, 90),
        (ALWAYS, 1, 1),
        (ALWAYS, 97, 96),
        (NEVER, 90, 0),
    ],
)
def test_only_weights_are_wired_and_by_themselves_only_large_ones(
    wiring: MemoryWiring, weights: int, wired: int
) -> None:
    assert wired_bytes(wiring, weights * GIB, 96 * GIB) == wired * GIB


class Metal:
    """As much of mlx.core as the memory of a Mac needs. It records what changes something."""

    def __init__(self, weights_bytes: int, available: bool = True) -> None:
        self.calls: list[tuple[str, int | None]] = []
        self.active_bytes = weights_bytes
        self.available = available
        self.metal = self

    def is_available(self) -> bool:
        return self.available

    def device_info(self) -> dict[str, Any]:
        return {"max_recommended_working_set_size": 96 * GIB}

    def get_active_memory(self) -> int:
        return self.active_bytes

    def clear_cache(self) -> None:
        self.calls.append(("clear_cache", None))

    def synchronize(self) -> None:
        self.calls.append(("synchronize", None))

    def set_wired_limit(self, limit_bytes: int) -> None:
        self.calls.append(("set_wired_limit", limit_bytes // GIB))

    def set_memory_limit(self, limit_bytes: int) -> None:
        self.calls.append(("set_memory_limit", limit_bytes // GIB))


class Layer(dict[str, Any]):
    """A module without mlx."""

    def modules(self) -> list[Layer]:
        return [self, *(part for part in self.values() if isinstance(part, Layer))]


def metal(monkeypatch: pytest.MonkeyPatch, *given: Any) -> Metal:
    fake = Metal(*given)
    monkeypatch.setattr(metal_memory, "mx", fake)
    return fake


@pytest.mark.parametrize(
    ("wiring", "weights", "limits"),
    [
        (AUTO, 60, [("set_memory_limit", 70), ("set_wired_limit", 60)]),
        (AUTO, 80, [("set_memory_limit", 80), ("set_wired_limit", 80)]),
        (AUTO, 20, [("set_memory_limit", 70)]),
        (NEVER, 60, [("set_memory_limit", 70)]),
    ],
)
def test_buffers_of_the_load_are_not_counted_as_weights(
    monkeypatch: pytest.MonkeyPatch,
    wiring: MemoryWiring,
    weights: int,
    limits: list[tuple[str, int]],
) -> None:
    fake = metal(monkeypatch, weights * GIB)
    metal_memory.wire_weights(wiring, 70 * GIB)
    assert fake.calls == [("synchronize", None), ("clear_cache", None), *limits]


def test_all_is_freed_before_it_is_unwired(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = metal(monkeypatch, 60 * GIB)
    model = Layer(weight=1, part=Layer(weight=2))
    part = model["part"]
    metal_memory.release_memory([model])
    assert model == {} and part == {}, "also if somebody else still refers to a part"
    assert fake.calls == [("synchronize", None), ("set_wired_limit", 0), ("clear_cache", None)]


def test_a_device_that_has_failed_is_unwired_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so once, at the first call that waits for it."""
    fake = metal(monkeypatch, 60 * GIB)

    def fail() -> None:
        raise RuntimeError("[METAL] Command buffer execution failed: Innocent Victim")

    monkeypatch.setattr(fake, "synchronize", fail)
    with pytest.raises(RuntimeError, match="METAL"):
        metal_memory.release_memory([Layer(weight=1)])
    assert fake.calls == [("set_wired_limit", 0), ("clear_cache", None)]


def test_a_load_that_fails_leaves_nothing_wired(monkeypatch: pytest.MonkeyPatch) -> None:
    """The warm-up comes after the wiring, and is the first to find that memory is short."""
    fake = metal(monkeypatch, 60 * GIB)

    def load(spec: Any, advanced: Any) -> None:
        metal_memory.wire_weights(ALWAYS, 70 * GIB)
        raise RuntimeError("[malloc] Unable to allocate")

    monkeypatch.setattr(embedding, "load_embedder", load)
    spec: Any = SimpleNamespace(kind=ModelKind.EMBEDDING, wiring=ALWAYS)
    with pytest.raises(RuntimeError, match="malloc"):
        factory.create(spec, lambda *_: None)
    assert fake.calls[-3:] == [
        ("set_wired_limit", 60),
        ("set_wired_limit", 0),
        ("clear_cache", None),
    ]


@pytest.mark.parametrize("platform", ["darwin", "linux"])
def test_a_worker_has_given_its_memory_back_before_it_is_killed(platform: str) -> None:
    step_s, close_s = close_bounds_s(platform)
    assert step_s + close_s + 1 < term_grace_s(TimingConfig(), platform)
    assert (step_s > 2) is (platform == "darwin"), "so long a chunk of a prompt may take there"


def test_other_machines_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = metal(monkeypatch, 60 * GIB, False)
    model = Layer(weight=1)
    metal_memory.wire_weights(ALWAYS, 70 * GIB)
    metal_memory.release_memory([model])
    assert fake.calls == [] and model == {"weight": 1}


@pytest.mark.parametrize(
    ("platform", "wiring", "already", "interval"),
    [
        ("darwin", AUTO, None, "500"),
        ("darwin", ALWAYS, "0", "0"),
        ("darwin", NEVER, None, None),
        ("linux", ALWAYS, None, None),
    ],
)
def test_an_idle_macs_wired_memory_is_kept(
    monkeypatch: pytest.MonkeyPatch,
    platform: str,
    wiring: MemoryWiring,
    already: str | None,
    interval: str | None,
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(os, "environ", {} if already is None else {VARIABLE: already})
    keep_resident(wiring)
    assert os.environ.get(VARIABLE) == interval

"""Which BLAS a worker loads before mlx."""

import ctypes.util
import sys

import pytest
import structlog.testing

from lmx.worker.mlx.device.before_mlx import prefer_openblas


def events_with(
    monkeypatch: pytest.MonkeyPatch, library: str | None, platform: str = "linux"
) -> list[dict[str, object]]:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: library)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    with structlog.testing.capture_logs() as logs:
        prefer_openblas()
    return [dict(entry) for entry in logs]


def test_without_openblas_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    (event,) = events_with(monkeypatch, None)
    assert (event["event"], event["blas"]) == ("blas.selected", "reference")
    assert "libopenblas" in str(event["advice"])


def test_a_library_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    (event,) = events_with(monkeypatch, ctypes.util.find_library("c"))
    assert event["blas"] == ctypes.util.find_library("c")


def test_a_broken_library_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    (event,) = events_with(monkeypatch, "libno-such-thing.so.7")
    assert (event["blas"], event["log_level"]) == ("reference", "warning")


def test_elsewhere_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    assert events_with(monkeypatch, None, "darwin") == []

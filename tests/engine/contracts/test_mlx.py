"""What lmx replaces of mlx while it runs: that models look it up whenever they call it."""

from importlib import import_module
from operator import attrgetter
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from lmx.worker.mlx.media.slices import Slicer
from tests.support.references.private_parts import CPU, PARTS, SLICES, said

LIBRARY = "mlx"


def test_layers_look_it_up_when_they_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    x = mx.zeros((1, 1, 2, 4))
    layers = {"rms_norm": nn.RMSNorm(4), "rope": nn.RoPE(4)}
    for part in (one for one in PARTS[LIBRARY] if CPU in one.files):
        name = part.where.rpartition(":")[2]
        called: list[int] = []
        original = getattr(mx.fast, name)

        def noted(
            *given: Any, called: list[int] = called, original: Any = original, **named: Any
        ) -> Any:
            called.append(1)
            return original(*given, **named)

        monkeypatch.setattr(mx.fast, name, noted)
        layers[name](x)
        words = said(LIBRARY, part.where, part.files, part.use)
        assert called, f"{words}mlx.nn no longer calls what stands there"


def test_slices_replace_what_is_named_and_nothing_else() -> None:
    named = {part.where for parts in PARTS.values() for part in parts if SLICES in part.files}
    places = {
        (id(attrgetter(path)(import_module(module)) if path else import_module(module)), name)
        for module, _, whole in (where.partition(":") for where in named)
        for path, _, name in [whole.rpartition(".")]
    }
    # A class of the model's own is replaced too, for the time in which it is recorded.
    assert {(id(owner), name) for owner, name, _ in Slicer([], [])._patches} == places

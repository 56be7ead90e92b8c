"""What lmx replaces of mlx while it runs: that models look it up whenever they call it."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from tests.support.references.private_parts import PARTS, Part, find, said

pytestmark = pytest.mark.engine
LIBRARY = "mlx"


@pytest.mark.parametrize("part", PARTS[LIBRARY], ids=lambda part: part.where)
def test_it_is_there(part: Part) -> None:
    assert find(LIBRARY, part) is not None


def test_layers_look_it_up_when_they_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    x = mx.zeros((1, 1, 2, 4))
    layers = {"rms_norm": nn.RMSNorm(4), "rope": nn.RoPE(4)}
    for part in PARTS[LIBRARY]:
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

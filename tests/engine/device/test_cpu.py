"""Norms and rotary positions on a CPU: mlx's own results, bit for bit, of fewer operations."""

import platform
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import mlx.core as mx
import mlx.nn as nn
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmx.worker.mlx.device import cpu

# A compiler for ARM joins a product and a sum, which are rounded once then.
EXACT = platform.machine() == "x86_64"


@pytest.fixture(autouse=True)
def on_the_cpu() -> Iterator[None]:
    """As in a worker on a CPU."""
    mx.random.seed(0)
    with (
        mx.stream(mx.cpu),
        mock.patch.object(mx.fast, "rms_norm", cpu.rms_norm),
        mock.patch.object(mx.fast, "rope", cpu.rope),
    ):
        yield


def same(ours: mx.array, theirs: mx.array) -> bool:
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype
    if EXACT:
        return bool(mx.array_equal(ours, theirs).item())
    return bool(mx.allclose(ours, theirs, rtol=1e-6, atol=1e-6).item())


def numbers(shape: list[int], dtype: mx.Dtype = mx.float32) -> mx.array:
    return (3 * mx.random.normal(shape)).astype(dtype)


@given(
    leading=st.lists(st.integers(1, 5), max_size=3),
    width=st.sampled_from([1, 8, 64, 100]),
    eps=st.sampled_from([1e-5, 1e-6, 1e-12]),
    dtype=st.sampled_from([mx.float32, mx.float16, mx.bfloat16]),
    weighted=st.booleans(),
)
def test_norms(leading: list[int], width: int, eps: float, dtype: mx.Dtype, weighted: bool) -> None:
    x = numbers([*leading, width], dtype)
    weight = numbers([width], dtype) if weighted else None
    assert same(cpu.rms_norm(x, weight, eps), cpu._mlx_rms_norm(x, weight, eps))


@given(
    rows=st.integers(1, 3),
    heads=st.integers(1, 4),
    tokens=st.sampled_from([1, 2, 9]),
    width=st.sampled_from([96, 128]),
    dims=st.sampled_from([6, 16, 48, 64, 80, 96]),
    transposed=st.booleans(),
    traditional=st.booleans(),
    base=st.none() | st.sampled_from([1e4, 11_000.0, 150_000.0, 5e5, 1e6]) | st.floats(2, 1e7),
    scale=st.sampled_from([1.0, 0.25]),
    start=st.sampled_from([0, 5, 12345]),
    form=st.sampled_from(["number", "array", "one for all", "one for each"]),
    dtype=st.sampled_from([mx.float32, mx.float16]),
)
def test_rotary_positions(
    rows: int,
    heads: int,
    tokens: int,
    width: int,
    dims: int,
    transposed: bool,
    traditional: bool,
    base: float | None,
    scale: float,
    start: int,
    form: str,
    dtype: mx.Dtype,
) -> None:
    if transposed:  # As models give their queries.
        x = numbers([rows, tokens, heads, width], dtype).transpose(0, 2, 1, 3)
    else:
        x = numbers([rows, heads, tokens, width], dtype)
    offset: Any = {
        "number": start,
        "array": mx.array(start),
        "one for all": mx.array([start]),
        "one for each": mx.arange(rows) * 7 + start,
    }[form]
    if form != "number":
        cpu.tables.name_offsets(offset)
    layer = nn.Module()
    layer._freqs = mx.random.uniform(1, 100, (dims // 2,))
    cpu.tables.share_freqs(layer)
    named: dict[str, Any] = {
        "traditional": traditional,
        "base": base,
        "scale": scale,
        "offset": offset,
        "freqs": layer._freqs if base is None else None,
    }
    assert cpu.tables.find(tokens, dims, **named) is not None
    theirs = cpu._mlx_rope(x, dims, **named)
    assert same(cpu.rope(x, dims, **named), theirs)
    assert same(cpu.rope(x, dims, **named), theirs), "the table that was kept is another one"


def operations(make: Callable[[], mx.array], folder: Path) -> int:
    path = folder / "graph.dot"
    mx.export_to_dot(str(path), make())
    return len(re.findall("shape=rectangle", path.read_text()))


def test_operations_are_few(tmp_path: Path) -> None:
    x, weight, offset = numbers([2, 4, 1, 16]), numbers([16]), mx.array([3, 5])
    cpu.tables.name_offsets(offset)
    named: dict[str, Any] = {"traditional": False, "base": 1e4, "scale": 1.0, "offset": offset}
    # The table is there: another layer has needed it.
    mx.eval(weight, cpu.rope(x, 16, **named))
    for ours, theirs in (
        (lambda: cpu.rms_norm(x, weight, 1e-6), lambda: cpu._mlx_rms_norm(x, weight, 1e-6)),
        (lambda: cpu.rope(x, 16, **named), lambda: cpu._mlx_rope(x, 16, **named)),
    ):
        assert 2 * operations(ours, tmp_path) <= operations(theirs, tmp_path)


def test_offsets_that_may_change_have_no_table() -> None:
    """mlx adds to an array in place: an array that is known may have other content by now."""
    x, offset = numbers([2, 4, 1, 16]), mx.array([3, 5])
    named: dict[str, Any] = {"traditional": False, "base": 1e4, "scale": 1.0}
    before = cpu.rope(x, 16, offset=offset, **named)
    offset += 1
    after = cpu.rope(x, 16, offset=offset, **named)
    assert same(after, cpu._mlx_rope(x, 16, offset=mx.array([4, 6]), **named))
    assert not same(before, after)


def test_layers_with_equal_frequencies_have_one_table() -> None:
    model = nn.Sequential(*(nn.Module() for _ in range(3)))
    for layer, least in zip(model.layers, (1, 1, 2), strict=True):
        layer._freqs = mx.arange(least, least + 8).astype(mx.float32)
    kept = cpu.RopeTables()
    kept.share_freqs(model)
    first, second, third = (layer._freqs for layer in model.layers)
    assert first is second
    found = [kept.find(1, 16, False, None, 1.0, 7, freqs) for freqs in (first, second, third)]
    assert found[0] is not None
    assert found[1] is not None
    assert found[2] is not None
    assert found[0][0] is found[1][0]
    assert found[0][0] is not found[2][0]
    unknown = mx.arange(1, 9).astype(mx.float32)
    assert kept.find(1, 16, False, None, 1.0, 7, unknown) is None


def test_each_thread_has_its_own_tables() -> None:
    """An array that is not computed yet belongs to the thread that made it."""
    x = numbers([1, 2, 1, 16])
    mx.eval(x)
    named: dict[str, Any] = {"traditional": False, "base": 1e4, "scale": 1.0, "offset": 4321}
    cpu.rope(x, 16, **named)
    made: list[mx.array] = []

    def other() -> None:
        with mx.stream(mx.cpu):
            made.append(cpu.rope(x, 16, **named))
            mx.eval(made)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert same(made[0], cpu._mlx_rope(x, 16, **named))


@pytest.mark.parametrize(
    "wrong",
    [
        {"dims": 24},
        {"dims": 5},
        {"base": None},
        {"freqs": mx.ones(8)},
        {"offset": mx.array([1, 2, 3])},
        {"offset": mx.array([[1], [2]])},
        {"offset": mx.array([1.0, 2.0])},
    ],
    ids=str,
)
def test_what_mlx_refuses_is_refused(wrong: dict[str, Any]) -> None:
    x = numbers([2, 4, 1, 16])
    named: dict[str, Any] = {
        "dims": 16,
        "traditional": False,
        "base": 1e4,
        "scale": 1.0,
        "offset": 3,
    }
    named |= wrong
    if isinstance(named["offset"], mx.array):
        cpu.tables.name_offsets(named["offset"])
    with pytest.raises(ValueError):
        cpu._mlx_rope(x, **named)
    with pytest.raises(ValueError):
        cpu.rope(x, **named)


def test_few_and_small_tables_are_kept() -> None:
    kept = cpu.RopeTables()
    for start in range(100):
        assert kept.find(1, 16, False, 1e4, 1.0, start, None) is not None
        assert len(kept._tables) <= 8
    assert kept.find(8192, 128, False, 1e4, 1.0, 0, None) is None
    kept.clear()
    assert not kept._tables


def test_models_use_them_on_a_cpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, ours in (("rms_norm", cpu.rms_norm), ("rope", cpu.rope)):
        monkeypatch.setattr(mx.fast, name, getattr(cpu, f"_mlx_{name}"))
        monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu))
        cpu.use_few_operations()
        assert getattr(mx.fast, name) is not ours
        monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.cpu))
        cpu.use_few_operations()
        assert getattr(mx.fast, name) is ours
        monkeypatch.undo()

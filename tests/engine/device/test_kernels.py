"""Kernels that mlx compiles on a CPU are compiled once, and not in each home again."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lmx.worker.mlx.device import kernels
from lmx.worker.mlx.device.kernels import Kernels

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="mlx compiles no kernels elsewhere")

LOAD = """
from lmx.worker.mlx.device.kernels import shared_kernels

kernels = shared_kernels()
assert kernels is not None
kernels.fetch()
import mlx.core as mx

compute = mx.compile(lambda x: mx.exp(x) * mx.tanh(x) + 1)
mx.eval(compute(mx.ones((8,))))
kernels.save()
"""


def load(folder: Path, home: str) -> list[str]:
    """Load in a home. Return the kernels that were compiled for it: mlx writes a source of each."""
    temporary = folder / home
    temporary.mkdir(exist_ok=True)
    subprocess.run(
        [sys.executable, "-c", LOAD],
        env={**os.environ, "TMPDIR": str(temporary), "LMX_CACHE_DIR": str(folder / "cache")},
        check=True,
        timeout=500,
    )
    return sorted(path.stem for path in temporary.rglob("*.cpp"))


@pytest.mark.skipif(shutil.which("g++") is None, reason="mlx needs it")
def test_the_next_home_compiles_nothing(tmp_path: Path) -> None:
    compiled = load(tmp_path, "one")
    kept = list((tmp_path / "cache").rglob("*.so"))
    assert sorted(path.stem.removeprefix("lib") for path in kept) == compiled
    assert len(compiled) >= 1
    assert kept[0].parent.stat().st_mode & 0o777 == 0o700
    assert load(tmp_path, "two") == []
    kept[0].parent.chmod(0o777)  # another user may have written into it
    assert load(tmp_path, "three") == compiled


def test_what_no_load_has_used_is_not_kept(tmp_path: Path) -> None:
    made, kept = tmp_path / "made", tmp_path / "kept"
    made.mkdir()
    (made / "libcut.so").write_bytes(b"\x7fELF")  # its worker was killed meanwhile
    Kernels(made, kept).save()
    assert list(kept.iterdir()) == []
    (kept / "libwhole.so").write_bytes(b"whole")
    Kernels(made, kept).fetch()
    assert sorted(path.name for path in made.iterdir()) == ["libcut.so", "libwhole.so"]


def test_a_copy_that_a_killed_worker_left_is_nobodys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, kept = tmp_path / "made", tmp_path / "kept"
    made.mkdir()
    kept.mkdir(mode=0o700)
    for name in (".4711-libcut.so", ".1-libnew.so", "libwhole.so"):
        (kept / name).write_bytes(b"some")
    os.utime(kept / ".4711-libcut.so", (0, 0))
    Kernels(made, kept).fetch()
    assert [path.name for path in made.iterdir()] == ["libwhole.so"]
    (made / "libown.so").write_bytes(b"own")
    monkeypatch.setattr(kernels, "_loaded", lambda _: [made / "libown.so"])
    monkeypatch.setattr(kernels, "_MOST_KERNELS", 2)
    Kernels(made, kept).save()
    assert sorted(path.name for path in kept.iterdir()) == [
        ".1-libnew.so",
        "libown.so",
        "libwhole.so",
    ]

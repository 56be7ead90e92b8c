"""Keeps the kernels that mlx compiles on a CPU, for the loads of other homes. No mlx here: this
must come before its import.

On a CPU mlx has the system's compiler make a library of each fused kernel, which takes a second or
more, in a folder below TMPDIR, and a worker's TMPDIR is its home's own. They stay there: mlx writes
them in place, so that one which is not whole, because its worker was killed, must harm no other
home. Those with which a load has succeeded are copied to the user's cache, and from there into the
folder of the next home, each by a rename.
"""

import contextlib
import os
import platform
import shutil
import stat
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Final

import structlog

from lmx.protocol.host.cache_folder import cache_dir

log = structlog.get_logger()

_MOST_KERNELS: Final = 2_000
"""Of one version of mlx. A model has some dozens, most of which others have too."""

_ABANDONED_S: Final = 3600
"""The copy of a kernel that has been under way for longer belongs to a worker that was killed."""


class Kernels:
    """``made`` is mlx's folder, and ``kept`` the one that homes share."""

    def __init__(self, made: Path, kept: Path) -> None:
        self._made = made
        self._kept = kept

    def fetch(self) -> None:
        """Put what is kept where mlx looks for it. Does nothing if another user could have written
        it, or a disk fails: then mlx compiles."""
        with contextlib.suppress(OSError):
            if not _is_ours(self._kept):
                return
            self._made.mkdir(parents=True, exist_ok=True)
            fetched = sum(_copied(each, self._made) for each in self._kept.glob("[!.]*.so"))
            log.info("kernels.fetched", kernels=fetched)

    def save(self) -> None:
        """Keep those that this process has loaded, and so are whole."""
        loaded = _loaded(self._made)
        with contextlib.suppress(OSError):
            self._kept.mkdir(mode=0o700, parents=True, exist_ok=True)
            if loaded and _is_ours(self._kept):
                for partial in self._kept.glob(".*"):
                    if time.time() - partial.stat().st_mtime > _ABANDONED_S:
                        partial.unlink(missing_ok=True)
                free = _MOST_KERNELS - sum(1 for _ in self._kept.glob("[!.]*.so"))
                kept = sum(_copied(each, self._kept) for each in loaded[: max(0, free)])
                log.info("kernels.saved", kernels=kept)


def shared_kernels() -> Kernels | None:
    """Return those of the installed mlx on this kind of machine; None where mlx compiles none."""
    if sys.platform != "linux":
        return None
    try:
        made = Path(tempfile.gettempdir()) / "mlx" / version("mlx") / "cpu"
        kept = cache_dir() / "kernels" / f"{version('mlx')}-{platform.machine()}"
    except RuntimeError:
        return None  # The user has no home.
    return Kernels(made, kept)


def _is_ours(folder: Path) -> bool:
    """Return whether only this user can write into a folder, which then holds code to run."""
    found = folder.lstat()
    return (
        stat.S_ISDIR(found.st_mode)
        and found.st_uid == os.getuid()
        and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )


def _copied(kernel: Path, folder: Path) -> bool:
    """Copy a kernel into a folder that does not have it, and return whether it was copied."""
    target = folder / kernel.name
    if target.exists():
        return False
    # Processes of several containers may have the same pid.
    descriptor, name = tempfile.mkstemp(prefix=".", dir=folder)
    os.close(descriptor)
    partial = Path(name)
    try:
        shutil.copyfile(kernel, partial)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return True


def _loaded(folder: Path) -> list[Path]:
    """Return the libraries of a folder that are mapped into this process."""
    prefix = f"{folder.resolve()}{os.sep}"
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/maps").read_text().splitlines()
        found = {line.split(maxsplit=5)[-1] for line in lines if line.endswith(".so")}
        return sorted(Path(each) for each in found if each.startswith(prefix))
    return []

"""promtool, the checker of Prometheus' makers: from the PATH, else out of Debian's package.

Where neither is to be had (another system, no network), there is none; `metric_lint` has the
rules that matter and needs nothing.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.support.models.minilm import demo_script

_PACKAGE = "prometheus"
_MEMBER = "usr/bin/promtool"
_FETCH_S = 90


def obtain_promtool() -> Path | None:
    """Return the program, after fetching it into the cache of the tests' models once for each
    machine. Installs nothing, and needs no rights."""
    if found := shutil.which("promtool"):
        return Path(found)
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return None
    demo = demo_script()
    cache = demo.cache_dir() / "test-tools"
    cache.mkdir(parents=True, exist_ok=True)
    target: Path = cache / "promtool"
    with demo.locked(cache / ".promtool.lock"):
        if not target.exists():
            with tempfile.TemporaryDirectory(prefix=".fetch-", dir=cache) as name:
                try:
                    found_there = _fetch(Path(name))
                except (OSError, subprocess.SubprocessError) as error:
                    print(f"no promtool: {error}")
                    return None
                found_there.replace(target)  # last, so that what is there is whole
    return target


def check_metrics(promtool: Path, text: str) -> str:
    """Return what `promtool check metrics` finds wrong; empty: nothing."""
    done = subprocess.run(
        [promtool, "check", "metrics"],
        input=text, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    said = (done.stdout + done.stderr).strip()
    return said or ("" if done.returncode == 0 else f"exit status {done.returncode}")


def _fetch(folder: Path) -> Path:
    # Lists and cache of its own: the system's may be empty, and are root's.
    lists, cache = folder / "lists", folder / "cache"
    for place in (lists, cache):
        (place / "partial").mkdir(parents=True)
    apt = [
        "apt-get", "-q", "-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={cache}",
        "-o", "APT::Sandbox::User=", "-o", "Acquire::Retries=1",
    ]  # fmt: skip
    for command in ([*apt, "update"], [*apt, "download", _PACKAGE]):
        subprocess.run(
            command, cwd=folder, timeout=_FETCH_S, check=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    (package,) = folder.glob("*.deb")
    unpacked = folder / "unpacked"
    subprocess.run(["dpkg-deb", "-x", package, unpacked], timeout=_FETCH_S, check=True)
    return unpacked / _MEMBER

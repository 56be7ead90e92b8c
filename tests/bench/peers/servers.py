"""The servers that lmx is compared with: how each is installed, started, and stopped.

Each peer has an environment of its own below the cache folder of this machine, made once for each
list of requirements; nothing of it is in the checkout. All of them compute with mlx of one version
and the OpenBLAS that lmx takes, are started with their own defaults, and fetch nothing.
"""

import ctypes.util
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil
import yaml

from lmx.protocol.host.cache_folder import cache_dir
from lmx.supervisor.cli.bench.processes import ServerProcesses
from tests.bench.bench_start import free_port

ROOT: Final = Path(__file__).resolve().parents[3]
_INSTALL_S: Final = 900.0
_END_S: Final = 20.0
MLX: Final = "mlx[cpu]==0.32.4"
Models = Mapping[str, Path]
"""The folders of models by the names under which they are served, if a server can name them."""


@dataclass(frozen=True)
class Peer:
    """A server program."""

    name: str
    requirements: tuple[str, ...]
    """If there are none, it runs in the environment of this checkout."""
    command: Callable[[Path, Models, int, Path], list[str]]
    """Of the interpreter, the models, a port, and a folder for its files."""
    named: Callable[[str, Path], str]
    """What requests call a model, of its name and folder."""
    swaps: bool
    """Whether it serves several models by their names, and loads and unloads them."""
    variables: Callable[[Path], Mapping[str, str]] = lambda _: {}
    """Of the folder for its files."""


def _lmx(python: Path, models: Models, port: int, folder: Path) -> list[str]:
    config: dict[str, Any] = {
        "server": {"port": port},
        "models": [{"id": name, "source": str(path)} for name, path in models.items()],
    }
    if len(models) > 1:
        # Room for one of the two, and no rest between loads: they are swapped, as in others.
        config["memory"] = {"budget_bytes": "900 MiB", "min_residency_s": 0}
        config["models"] = [{**one, "preload": not n} for n, one in enumerate(config["models"])]
    (folder / "lmx.yaml").write_text(yaml.safe_dump(config))
    return [str(python), "-m", "lmx.supervisor", "up", "--config", str(folder / "lmx.yaml")]


def _mlx_lm(python: Path, models: Models, port: int, _: Path) -> list[str]:
    first = next(iter(models.values()))
    return [str(python), "-m", "mlx_lm", "server", "--model", str(first), "--port", str(port)]


def _mlx_vlm(python: Path, models: Models, port: int, _: Path) -> list[str]:
    first = next(iter(models.values()))
    return [str(python), "-m", "mlx_vlm", "server", "--model", str(first), "--port", str(port)]


def _vllm_mlx(python: Path, models: Models, port: int, _: Path) -> list[str]:
    (first,) = models.values()
    return [str(python.parent / "vllm-mlx"), "serve", str(first), "--port", str(port),
            "--host", "127.0.0.1", "--continuous-batching"]  # fmt: skip


def _rapid_mlx(python: Path, models: Models, port: int, _: Path) -> list[str]:
    (first,) = models.values()
    return [str(python.parent / "rapid-mlx"), "serve", str(first), "--port", str(port),
            "--host", "127.0.0.1", "--disable-model-downloads", "--no-preflight",
            "--yes"]  # fmt: skip


def _mlx_serve(python: Path, models: Models, port: int, folder: Path) -> list[str]:
    listed = [{"name": name, "type": "text", "hf_path": str(path)} for name, path in models.items()]
    config = {"manager_port": port, "mlx_port": free_port(), "models": listed}
    (folder / "models.yaml").write_text(yaml.safe_dump(config))
    return [str(python.parent / "mlx-serve"), "start", "--host", "127.0.0.1", "--port", str(port)]


def _by_name(name: str, _: Path) -> str:
    return name


def _by_folder(_: str, folder: Path) -> str:
    return str(folder)


LMX: Final = "lmx"
PEERS: Final = (
    Peer(LMX, (), _lmx, _by_name, swaps=True),
    Peer("mlx_lm.server", (), _mlx_lm, _by_folder, swaps=True),
    Peer("mlx_vlm.server", ("mlx-vlm==0.7.10", MLX), _mlx_vlm, _by_folder, swaps=True),
    Peer("vllm-mlx", ("vllm-mlx==0.6.0", MLX), _vllm_mlx, _by_folder, swaps=False),
    Peer("rapid-mlx", ("rapid-mlx==0.16.10", MLX), _rapid_mlx, _by_folder, swaps=False),
    Peer(
        "mlx-serve", ("mlx-serve[text]==0.3.0", "mlx-lm==0.32.2", MLX), _mlx_serve, _by_name,
        swaps=True, variables=lambda folder: {"MLX_SERVE_CONFIG": str(folder / "models.yaml")},
    ),
)  # fmt: skip
NOT_INSTALLED: Final = {
    "mlx-openai-server 1.8.1": "on Linux it requires mlx[cuda13], whose packages did not "
    "install on this machine without a GPU",
}
"""Peers that do not install here, and why."""


class NotInstalledError(Exception):
    """A peer's packages could not be installed."""


def interpreter(peer: Peer) -> Path:
    """Return the Python that runs a peer, after making its environment if it is not there. Raises
    :class:`NotInstalledError`."""
    if not peer.requirements:
        return Path(sys.executable)
    digest = hashlib.sha256(" ".join(peer.requirements).encode()).hexdigest()[:12]
    folder = cache_dir() / "peers" / f"{peer.name}-{digest}"
    python = folder / "bin" / "python"
    if (folder / "whole").exists():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    install = [str(python), "-m", "pip", "install", "--quiet", *peer.requirements]
    try:
        done = subprocess.run(
            install, capture_output=True, text=True, timeout=_INSTALL_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise NotInstalledError(f"its installation took more than {_INSTALL_S:g} s") from error
    if done.returncode:
        raise NotInstalledError(done.stderr.strip().splitlines()[-1])
    (folder / "whole").touch()
    return python


@dataclass
class Started:
    """A server's process, which may not answer yet."""

    port: int
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def url(self) -> str:
        """The beginning of its URLs."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def processes(self) -> ServerProcesses:
        """All of its processes."""
        return ServerProcesses([psutil.Process(self.process.pid)])

    def computing(self) -> psutil.Process:
        """Return the process that holds the model: the one with the most memory."""
        root = psutil.Process(self.process.pid)
        found = {}
        for each in (root, *root.children(recursive=True)):
            with suppress(psutil.Error):
                found[each] = each.memory_info().rss
        return max(found, key=lambda each: found[each])


@contextmanager
def started(peer: Peer, python: Path, models: Models) -> Iterator[Started]:
    """Start a server, and end it with all of its processes at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="lmx-peer-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        port = free_port()
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("LMX_")},
            "HOME": name, "LMX_HOME": str(folder / "lmx"), "LMX_CACHE_DIR": str(cache_dir()),
            "HF_HUB_OFFLINE": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": "", "DO_NOT_TRACK": "1", **_blas(), **peer.variables(folder),
        }  # fmt: skip
        log = folder / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                peer.command(python, models, port, folder), env=environment, cwd=folder,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        try:
            yield Started(port, process, log)
        finally:
            _end(process)


def _blas() -> dict[str, str]:
    """Every server gets the OpenBLAS that lmx loads by itself."""
    name = ctypes.util.find_library("openblas")
    return {} if name is None else {"LD_PRELOAD": name}


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that descend from it, in good order if they can."""
    tree: list[psutil.Process] = []
    with suppress(psutil.Error):
        root = psutil.Process(process.pid)
        tree = [root, *root.children(recursive=True)]
        for each in tree:
            each.resume()
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_END_S)
    for each in tree:
        with suppress(psutil.Error):
            each.kill()
    process.wait(_END_S)

"""The fetch program: make one model available as a local folder, then end.

    python -m lmx.supervisor.fetch.main --source S --models-dir D [--revision R]
        [--filename F | --adapter] [--bits 4|8|mixed]

On stdout are JSON lines and nothing else: any number of
`{"phase": "download"|"convert"|"check", "fraction": 0.42|null, "detail": "..."}`, with
`"done_bytes"` and `"total_bytes"` from where a download's size is known, then one of
`{"path": "/abs/folder"}` (exit status 0) and `{"error": {"code", "message"}}` (1). What the
libraries print goes to stderr.

With `--bits` the folder is one that is made of the source and quantized
(:mod:`lmx.supervisor.fetch.quantize`); the last line of progress says how much worse it is.

With `--look` nothing is made: the one line is `{"look": {"total_bytes", "missing_bytes",
"free_bytes", "folder", "made_bytes", "made_folder", "made_free_bytes"}}`, of a repository, and with
`--heads FOLDER` of a .gguf file too; `FOLDER/model` is then a model's folder without weights. With
`--search` the source is words, and the one line is
`{"found": [{"repo_id", "downloads", "size_bytes", "gated"}]}`.

It is a program of its own so that the supervisor never loads the hub client or the converter,
and so that a fetch can be stopped at any point: SIGTERM, or the parent's death, ends it within
seconds and leaves nothing half made in the models folder. What the hub client has downloaded of
a file stays in its cache, where the next fetch continues from it.
"""

import argparse
import errno
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import psutil

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.host.lasting import keep_up_in_thread
from lmx.protocol.host.stdout import take_stdout
from lmx.protocol.states import QuantizedBits
from lmx.supervisor.config.sources import (
    FolderSource,
    GgufSource,
    HubSource,
    Source,
    SourceError,
    names_quantisation,
    parse_file_name,
    parse_source,
)
from lmx.supervisor.fetch.conversion_form import Platform
from lmx.supervisor.fetch.file import LONGEST_WAIT_S, HubFile
from lmx.supervisor.fetch.heads import fetch_model_heads
from lmx.supervisor.fetch.hub import fetch_hub, free_space, look_up, search, snapshot_folder
from lmx.supervisor.fetch.made_folder import check_room
from lmx.supervisor.fetch.progress import Phase
from lmx.supervisor.fetch.quantize import (
    fetch_quantized,
    fit_to_quantize,
    is_quantized,
)
from lmx.supervisor.fetch.quantized_form import quantized_bytes, refuse_quantized
from lmx.supervisor.memory.files import part_names

# Often enough for a progress bar, seldom enough that thousands of tensors cost nothing.
REPORT_INTERVAL_S = 0.25
PARENT_POLL_INTERVAL_S = 1.0
# To remove what is half made: gb are unlinked in well under a second. The hub client's
# threads can't be interrupted, so without a limit a slow download would keep the process alive.
STOP_GRACE_S = 3.0
STOPPED_STATUS = 128 + signal.SIGTERM


class Outlet:
    """The one writer of stdout's JSON lines."""

    def __init__(self) -> None:
        """Take stdout over: from here on, descriptor 1 is stderr for everyone else."""
        self._stream = take_stdout()
        self._lock = threading.Lock()
        self._last: tuple[str, float] = ("", 0.0)
        self._bytes: dict[str, int] = {}

    def progress(
        self,
        phase: Phase,
        fraction: float | None,
        detail: str,
        *,
        done_bytes: int | None = None,
        total_bytes: int | None = None,
    ) -> None:
        """Report progress; drops a report that follows the last one of its phase too closely."""
        if done_bytes is not None and total_bytes is not None:
            self._bytes = {"done_bytes": done_bytes, "total_bytes": total_bytes}
        now = time.monotonic()
        last_phase, last_at = self._last
        if phase == last_phase and now - last_at < REPORT_INTERVAL_S and fraction != 1.0:
            return
        self._last = (phase, now)
        rounded = None if fraction is None else round(min(max(fraction, 0.0), 1.0), 4)
        self.line({"phase": phase, "fraction": rounded, "detail": detail, **self._bytes})

    def line(self, value: dict[str, Any]) -> None:
        """Write one line. Raises `BrokenPipeError` when nobody reads any more."""
        with self._lock:
            self._stream.write(json.dumps(value, ensure_ascii=False) + "\n")
            self._stream.flush()


def fetch(
    source: Source,
    filename: str | None,
    models_dir: Path,
    memory_bytes: int,
    platform: Platform,
    outlet: Outlet,
    longest_wait_s: float,
    adapter: bool = False,
) -> Path:
    """Make the source available and return its folder, or the one file of it that was requested.
    With `adapter` a repository holds an adapter. Raises `OperationError`."""
    match source:
        case FolderSource(path=path):
            return _checked_folder(Path(path).expanduser().absolute())
        case GgufSource(path=path):
            return _imported(
                Path(path).expanduser().absolute(), models_dir, memory_bytes, platform, outlet
            )
        case HubSource(repo_id=repo_id, revision=revision):
            return fetch_hub(
                repo_id,
                revision,
                report=outlet.progress,
                filename=filename,
                adapter=adapter,
                longest_wait_s=longest_wait_s,
            )


def _imported(
    file: Path, models_dir: Path, memory_bytes: int, platform: Platform, outlet: Outlet
) -> Path:
    _keep_mlx_out()
    # The converter's libraries take most of a second, and a download needs none of them.
    from lmx.supervisor.fetch.gguf import fetch_gguf

    return fetch_gguf(
        file, models_dir, platform=platform, memory_bytes=memory_bytes, report=outlet.progress
    )


@dataclass(frozen=True, slots=True)
class Quantizing:
    """Makes a source available and quantizes it. What can be refused is refused before anything is
    downloaded, as far as the hub says enough of it."""

    bits: QuantizedBits
    models_dir: Path
    memory_bytes: int
    platform: Platform
    outlet: Outlet

    def fetch(self, source: Source, filename: str | None, longest_wait_s: float) -> Path:
        """Return the folder that was made. Raises `OperationError`."""
        match source:
            case FolderSource(path=path):
                folder = _checked_folder(Path(path).expanduser().absolute())
                return self._quantized(folder, str(folder))
            case GgufSource(path=path):
                return self._of_gguf(Path(path).expanduser().absolute(), str(path))
            case HubSource(repo_id=repo_id, revision=revision):
                name = repo_id if revision is None else f"{repo_id}@{revision}"
                if filename is None:
                    self._look_first(name, source)
                elif not filename.lower().endswith(".gguf"):
                    raise OperationError(
                        ErrorCode.MODEL_SOURCE_INVALID,
                        f"{filename} is no model of its own, so it is not quantized",
                        param="filename",
                    )
                if filename is not None and names_quantisation(filename):
                    raise refuse_quantized(f"{repo_id}/{filename}")
                fetched = fetch_hub(
                    repo_id,
                    revision,
                    report=self.outlet.progress,
                    filename=filename,
                    longest_wait_s=longest_wait_s,
                )
                if filename is None:
                    return self._quantized(fetched, name)
                return self._of_gguf(fetched, f"{repo_id}/{filename}")

    def _look_first(self, name: str, source: HubSource) -> None:
        with tempfile.TemporaryDirectory(prefix="lmx-heads-") as heads:
            looking = Looking(
                self.models_dir, Path(heads), self.memory_bytes, self.platform, self.bits
            )
            try:
                look = looking.at(source, None, adapter=False)
            except OperationError as error:
                if error.code is ErrorCode.DOWNLOAD_FAILED:
                    return  # It may be here already, and the download itself says what is wrong.
                raise
        if look["problem_code"] == ErrorCode.MODEL_SOURCE_INVALID:
            raise OperationError(ErrorCode.MODEL_SOURCE_INVALID, str(look["problem"]), param="bits")
        if made_bytes := int(look["made_bytes"] or 0):
            what, download_bytes = f"quantized, {name}", int(look["missing_bytes"] or 0)
            if download_bytes and "made_folder" not in look:
                what, made_bytes = f"{what} with its download", made_bytes + download_bytes
            check_room(self.models_dir, what, made_bytes)

    def _of_gguf(self, file: Path, name: str) -> Path:
        _keep_mlx_out()
        from lmx.supervisor.fetch.gguf import read_facts

        if read_facts(file, self.outlet.progress).is_quantised:
            raise refuse_quantized(name)
        folder = _imported(file, self.models_dir, self.memory_bytes, self.platform, self.outlet)
        return self._quantized(folder, name)

    def _quantized(self, folder: Path, name: str) -> Path:
        return fetch_quantized(
            folder,
            name,
            self.bits,
            self.models_dir,
            platform=self.platform,
            report=self.outlet.progress,
        )


@dataclass(frozen=True, slots=True)
class Looking:
    """Says how large something is. With a folder for heads it also makes a model's folder without
    weights there, ``model``, from which the memory is read."""

    models_dir: Path
    heads: Path | None
    memory_bytes: int
    platform: Platform
    bits: QuantizedBits | None = None
    """To how many bits it is to be quantized."""

    def at(
        self, source: Source, filename: str | None, *, adapter: bool
    ) -> dict[str, int | str | None]:
        """Return the sizes of a source. Raises `OperationError`."""
        match source:
            case HubSource(repo_id=repo_id, revision=revision):
                name = repo_id if revision is None else f"{repo_id}@{revision}"
                is_gguf = filename is not None and filename.lower().endswith(".gguf")
                made: list[int] = []
                snapshots: list[Path] = []

                def fetch_heads(commit: str, files: list[HubFile]) -> None:
                    assert self.heads is not None
                    snapshots.append(snapshot_folder(repo_id, commit))
                    if filename is not None and not is_gguf:
                        raise OperationError(
                            ErrorCode.MODEL_SOURCE_INVALID, f"{filename} is no model of its own"
                        )
                    if not is_gguf:
                        folder = self.heads / "model"
                        fetch_model_heads(repo_id, commit, files, folder)
                        if self.bits is not None:
                            _, tensors = fit_to_quantize(folder, name)
                            made.append(quantized_bytes(tensors, self.bits, self.platform))
                        return
                    _keep_mlx_out()
                    from lmx.supervisor.fetch.gguf_heads import fetch_gguf_heads

                    first = fetch_gguf_heads(repo_id, commit, files, self.heads / "gguf")
                    made.append(self._converted(first))

                found = look_up(
                    repo_id,
                    revision,
                    filename,
                    adapter=adapter,
                    heads=None if self.heads is None else fetch_heads,
                )
                if made and any(self._is_made(each, name, filename) for each in snapshots):
                    made = []
                other_disk = _other_disk(self.models_dir, found)
                return {**found, "made_bytes": sum(made), **other_disk}
            case GgufSource(path=path) if self.heads is not None:
                file = Path(path).expanduser().absolute()
                made_bytes = self._converted(file)
                folder, free_bytes = free_space(self.models_dir)
                return {
                    "total_bytes": sum(
                        file.with_name(name).stat().st_size for name in part_names(file.name)
                    ),
                    "missing_bytes": 0,
                    "free_bytes": free_bytes,
                    "folder": str(folder),
                    "made_bytes": made_bytes,
                }
            case _:
                raise OperationError(
                    ErrorCode.MODEL_SOURCE_INVALID,
                    "only repositories and .gguf files are looked at",
                )

    def _is_made(self, snapshot: Path, name: str, filename: str | None) -> bool:
        if filename is None:
            return self.bits is not None and is_quantized(
                snapshot, name, self.bits, self.models_dir
            )
        from lmx.supervisor.fetch.gguf import is_converted

        return is_converted(snapshot / filename, self.models_dir, self.platform, self.memory_bytes)

    def _converted(self, file: Path) -> int:
        _keep_mlx_out()
        from lmx.supervisor.fetch.gguf_heads import write_converted_heads

        assert self.heads is not None
        return write_converted_heads(
            file, self.heads / "model", platform=self.platform, memory_bytes=self.memory_bytes
        )


def _other_disk(
    models_dir: Path, look: Mapping[str, int | str | None]
) -> dict[str, int | str | None]:
    """Return the models' folder and its free space if it is on another disk than the one that is
    downloaded to."""
    place, free_bytes = free_space(models_dir)
    if place.stat().st_dev == Path(str(look["folder"])).stat().st_dev:
        return {}
    return {"made_folder": str(place), "made_free_bytes": free_bytes}


def _keep_mlx_out() -> None:
    """Keep the converter from importing mlx-lm, which it can use and lmx does not let it use: that
    takes seconds, and fails on a Mac without a GPU that Metal knows."""
    sys.modules.setdefault("mlx_lm", None)  # type: ignore[arg-type]


def _checked_folder(folder: Path) -> Path:
    if not (folder / "config.json").is_file():
        what = "has no config.json" if folder.is_dir() else "is not a folder"
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID,
            f"{folder} {what}: a model folder holds config.json, a tokenizer and *.safetensors",
        )
    return folder


def _source(text: str, revision: str | None, filename: str | None) -> Source:
    try:
        if filename is not None:
            parse_file_name(filename)
        source = parse_source(text if revision is None else f"{text}@{revision}")
        if (revision, filename) != (None, None) and not isinstance(source, HubSource):
            raise SourceError(f"{text!r} is no repository, so it has no revision and no files")
    except SourceError as error:
        raise OperationError(ErrorCode.MODEL_SOURCE_INVALID, str(error)) from error
    return source


def _stop(_signal: int, _frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Should the clean-up below hang in a library, this ends the process all the same.
    last_resort = threading.Timer(STOP_GRACE_S, os._exit, (STOPPED_STATUS,))
    last_resort.daemon = True
    last_resort.start()
    raise SystemExit(STOPPED_STATUS)


def _stop_with_parent(parent_pid: int) -> None:
    # A signal that this thread took would not wake the main one, which may wait in a read.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    while os.getppid() == parent_pid:
        time.sleep(PARENT_POLL_INTERVAL_S)
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m lmx.supervisor.fetch.main")
    parser.add_argument("--source", required=True, help="a folder, a .gguf file or org/name")
    parser.add_argument("--revision", help="of a repository: a branch, tag or commit")
    parser.add_argument("--filename", help="of a repository: this file alone")
    parser.add_argument(
        "--adapter", action="store_true", help="the repository holds an adapter, and no model"
    )
    parser.add_argument(
        "--bits", type=QuantizedBits, help="quantize it: a folder of its own is made"
    )
    parser.add_argument(
        "--parent",
        type=int,
        # By the time that this is parsed, a parent may be gone already.
        default=os.getppid(),
        help="the process without which this one ends (default: its parent)",
    )
    parser.add_argument(
        "--longest-wait-s",
        type=float,
        default=LONGEST_WAIT_S,
        help="of a hub that takes no more requests for now: for this long it is waited for",
    )
    parser.add_argument("--look", action="store_true", help="say how large it is, and end")
    parser.add_argument(
        "--heads", type=Path, help="with --look: make a folder there that has no weights"
    )
    parser.add_argument(
        "--search", type=int, metavar="MOST", help="find models by the words of --source, and end"
    )
    parser.add_argument("--models-dir", required=True, type=Path, help="where conversions go")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Run the program; returns its exit status."""
    arguments = _arguments(argv)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    parent_pid = arguments.parent
    keep_up_in_thread(lambda: _stop_with_parent(parent_pid), "the look for the parent").start()
    outlet = Outlet()
    try:
        if arguments.search is not None:
            outlet.line({"found": search(arguments.source, arguments.search)})
            return 0
        source = _source(arguments.source, arguments.revision, arguments.filename)
        models_dir: Path = arguments.models_dir.expanduser().absolute()
        memory_bytes = psutil.virtual_memory().total
        platform: Platform = "darwin" if sys.platform == "darwin" else "linux"
        if arguments.look:
            filename, adapter = arguments.filename, arguments.adapter
            look = Looking(models_dir, arguments.heads, memory_bytes, platform, arguments.bits)
            outlet.line({"look": look.at(source, filename, adapter=adapter)})
            return 0
        if arguments.bits is not None:
            quantizing = Quantizing(arguments.bits, models_dir, memory_bytes, platform, outlet)
            made = quantizing.fetch(source, arguments.filename, arguments.longest_wait_s)
            outlet.line({"path": str(made)})
            return 0
        folder = fetch(
            source,
            arguments.filename,
            models_dir,
            memory_bytes,
            platform,
            outlet,
            arguments.longest_wait_s,
            arguments.adapter,
        )
        outlet.line({"path": str(folder)})
    except OperationError as error:
        failure = {
            "code": error.code.value,
            "message": error.message,
            "param": error.param,
            "retry_after_s": error.retry_after_s,
        }
        outlet.line({"error": failure})
        return 1
    except BrokenPipeError:
        return 1
    except OSError as error:
        # A look or a search converts nothing.
        asking = arguments.look or arguments.search is not None
        code = ErrorCode.DOWNLOAD_FAILED if asking else ErrorCode.CONVERSION_FAILED
        if error.errno == errno.ENOSPC:
            code = ErrorCode.INSUFFICIENT_DISK
        outlet.line({"error": {"code": code.value, "message": f"{arguments.source}: {error}"}})
        return 1
    return 0


if __name__ == "__main__":
    try:
        status = main()
    except SystemExit as stopped:
        status = stopped.code if isinstance(stopped.code, int) else 1
    sys.stderr.flush()
    # The hub client's threads outlive a failed download; a normal exit would wait for them.
    os._exit(status)

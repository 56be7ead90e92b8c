"""Fetch a repository of the model hub into the hub client's own cache.

The cache is the usual one (HF_HOME, HF_HUB_CACHE), shared with every other program, so a model
that is already on the machine is not downloaded again. HF_ENDPOINT, HF_HUB_OFFLINE and HF_TOKEN
mean what they mean everywhere. Of a repository only files in `ALLOWED` are fetched: code, pickles
and GGUF files never reach the disk, unless a GGUF file is asked for by name. Runs only inside the
fetch program.
"""

import os
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager
from pathlib import Path, PurePath
from types import TracebackType
from typing import Any, Final, Protocol

from httpx2 import TransportError
from huggingface_hub import HfApi, constants, hf_hub_download, hf_hub_url, snapshot_download
from huggingface_hub.errors import (
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import repo_folder_name
from huggingface_hub.utils import filter_repo_objects

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.models.adapter import read_adapter_config
from lmx.supervisor.fetch.errors import explained
from lmx.supervisor.fetch.file import (
    LONGEST_WAIT_S,
    SPARE_BYTES,
    HubFile,
    fetch_file,
    part_of,
    patiently,
)
from lmx.supervisor.fetch.progress import Counted, Report, gb
from lmx.supervisor.memory.files import (
    given_again,
    has_tokenizer,
    missing_part,
    part_names,
    promised,
)

# What an MLX model consists of. Never *.py (code), *.bin and *.pt (pickles) or *.gguf. The model
# card may be all that distinguishes an embedding model from a chat model.
ALLOWED = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "README.md")
ADAPTER = ("adapter_config.json", "adapters.safetensors", "adapter_model.safetensors")
"""What an adapter consists of. Whatever else its repository has, such as a merged model or what a
training left, stays there."""

_NEVER: Final = frozenset({".py", ".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})
_AT_ONCE: Final = 4
_SHOWN_NAMES: Final = 8
# What the hub says becomes paths.
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_DIGEST: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_FILE: Final = re.compile(r"(?!/)[^\\\x00-\x1f]{1,1024}")


class _Bar(Protocol):
    def update(self, n: float | None = 1) -> None: ...


def fetch_hub(
    repo_id: str,
    revision: str | None,
    *,
    report: Report,
    filename: str | None = None,
    adapter: bool = False,
    longest_wait_s: float = LONGEST_WAIT_S,
) -> Path:
    """Return the folder of the repository's snapshot, or the path of the one file, after
    downloading what is missing. With `adapter` the repository holds an adapter, and no model.

    Without the hub, a whole snapshot in the cache is used as it is. Does not look into the
    weights. A hub that is asked too much, and says for how long, is waited for until
    `longest_wait_s` at the beginning. Raises `OperationError`: `model_source_invalid` (no such
    repository, revision or file, or not a model in safetensors form), `insufficient_disk`,
    `download_failed`.
    """
    report("check", None, f"looking up {repo_id}")
    if filename is not None and PurePath(filename).suffix.lower() in _NEVER:
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID,
            f"{filename} may hold code, which lmx does not download: choose a .gguf file, or a "
            "repository with *.safetensors",
            param="filename",
        )
    try:
        try:
            commit, listed = patiently(
                lambda: _listed(repo_id, revision), longest_wait_s=longest_wait_s
            )
        except RevisionNotFoundError:
            raise
        except (HfHubHTTPError, OfflineModeIsEnabled, TransportError) as error:
            return _cached(repo_id, revision, filename, adapter, error)
        files = _wanted(listed, repo_id, filename, adapter)
        counted = _fetch_missing(repo_id, commit, files, report)
        folder = patiently(lambda: _linked(repo_id, revision, commit, files, counted))
        if filename is not None:
            return folder / part_names(filename)[0]
        _refuse_not_whole(folder, repo_id, adapter)
        return folder
    # A border to a library that raises its own, its HTTP client's and the system's errors:
    # each becomes one of ours, with the original as its cause.
    except Exception as error:
        raise explained(error, repo_id, revision) from error


Heads = Callable[[str, list[HubFile]], None]
"""Fetches the heads of a commit's files."""


def look_up(
    repo_id: str,
    revision: str | None,
    filename: str | None,
    *,
    adapter: bool = False,
    heads: Heads | None = None,
) -> dict[str, int | str | None]:
    """Return how large a repository or the one file is, how much of it is not here yet, and how
    much room is where it would go. With `adapter` the repository holds an adapter, and no model.
    Downloads nothing but what `heads` does; where that fails, `problem` says why, and
    `problem_code` of what kind it is. Raises `OperationError`."""
    problem = None
    try:
        commit, listed = patiently(lambda: _listed(repo_id, revision), longest_wait_s=0.0)
        files = _wanted(listed, repo_id, filename, adapter)
    # The same border as in `fetch_hub`.
    except Exception as error:
        raise explained(error, repo_id, revision) from error
    try:
        if heads is not None:
            heads(commit, files)
    # The sizes are worth knowing without them.
    except Exception as error:
        problem = explained(error, repo_id, revision)
    blobs, _ = _places(repo_id)
    missing = [file for file in files if not (blobs / file.digest).exists()]
    folder, free_bytes = free_space(_cache())
    return {
        "problem": None if problem is None else problem.message,
        "problem_code": None if problem is None else problem.code.value,
        "spare_bytes": SPARE_BYTES,
        "total_bytes": sum(file.size_bytes for file in files),
        "missing_bytes": sum(
            file.size_bytes - _part_bytes(blobs / file.digest) for file in missing
        ),
        "free_bytes": free_bytes,
        "folder": str(folder),
    }


def _listed(repo_id: str, revision: str | None) -> tuple[str, list[HubFile]]:
    """Ask the hub for the commit that a revision is, and its files."""
    found = HfApi().model_info(repo_id, revision=revision, files_metadata=True)
    files = [
        HubFile(
            file.rfilename,
            int(file.size if file.lfs is None else file.lfs.size),
            file.blob_id if file.lfs is None else file.lfs.sha256,
        )
        for file in found.siblings or []
    ]
    commit = str(found.sha)
    if not _COMMIT.fullmatch(commit):
        raise _no_name(repo_id, "a commit", commit)
    return commit, files


def _wanted(
    listed: list[HubFile], repo_id: str, filename: str | None, adapter: bool
) -> list[HubFile]:
    if filename is None:
        names = set(
            filter_repo_objects([file.name for file in listed], allow_patterns=_patterns(adapter))
        )
        if adapter:
            _refuse_no_adapter(names, repo_id)
        else:
            names -= given_again(names)
            _refuse_no_model(names, repo_id)
        return _checked([file for file in listed if file.name in names], repo_id)
    # The other parts of a model that is split into several come with it.
    parts = part_names(filename)
    files = [file for file in listed if file.name in parts]
    if any(file.name == filename for file in files):
        return _checked(files, repo_id)
    names = {file.name for file in listed if file.name.lower().endswith(".gguf")}
    hint = (
        f"; its GGUF files: {', '.join(sorted(names)[:_SHOWN_NAMES])}"
        if names
        else " and no GGUF files: leave filename out to download all of it"
    )
    raise OperationError(
        ErrorCode.MODEL_SOURCE_INVALID,
        f"{repo_id} has no file {filename!r}{hint}",
        param="filename",
    )


def _checked(files: list[HubFile], repo_id: str) -> list[HubFile]:
    """Return the files. Raises if a name or a hash, which become paths here, leads elsewhere."""
    for file in files:
        if not _DIGEST.fullmatch(str(file.digest)):
            raise _no_name(repo_id, f"the hash of {file.name!r}", str(file.digest))
        if not _FILE.fullmatch(file.name) or ".." in file.name.split("/"):
            raise _no_name(repo_id, "a file", file.name)
    return files


def _no_name(repo_id: str, what: str, name: str) -> OperationError:
    return OperationError(
        ErrorCode.DOWNLOAD_FAILED,
        f"the hub calls {what} of {repo_id} {name[:80]!r}, which can't be: something on the way "
        "changes what it says; check proxies and HF_ENDPOINT, then try again",
    )


def _patterns(adapter: bool) -> list[str]:
    return list(ADAPTER if adapter else ALLOWED)


def _refuse_no_adapter(names: set[str], repo_id: str) -> None:
    if "adapter_config.json" not in names:
        problem = "adapter_config.json, so it is no adapter"
    elif not names - {"adapter_config.json"}:
        problem = (
            "adapters.safetensors and no adapter_model.safetensors: lmx reads no other files of "
            "an adapter, as they may hold code"
        )
    else:
        return
    raise OperationError(ErrorCode.MODEL_SOURCE_INVALID, f"{repo_id} has no {problem}")


def _refuse_no_model(names: set[str], repo_id: str) -> None:
    """Refuse a repository that is not a model, before gigabytes of something else are
    downloaded."""
    if "config.json" not in names:
        missing = "config.json"
    elif not any(name.endswith(".safetensors") for name in names):
        missing = "*.safetensors"
    elif not has_tokenizer(names):
        missing = "tokenizer.json"
    elif lacking := [name for name in promised(names) if name not in names]:
        missing = lacking[0]
    else:
        return
    hint = "if it holds GGUF files, download one by its name, or give its path"
    if "adapter_config.json" in names:
        hint = "it is an adapter: name it under `adapters` of the model that it belongs to"
    raise OperationError(
        ErrorCode.MODEL_SOURCE_INVALID,
        f"{repo_id} has no {missing}, so it is not a model that MLX can load; {hint}",
        param="repo_id",
    )


def _fetch_missing(repo_id: str, commit: str, files: list[HubFile], report: Report) -> Counted:
    """Put every file where the client keeps it in its cache, by what its content is called."""
    blobs, locks = _places(repo_id)
    missing = [file for file in files if not (blobs / file.digest).exists()]
    total_bytes = sum(file.size_bytes for file in files)
    missing_bytes = sum(file.size_bytes for file in missing)
    # This comes first, because a client learns from the first report that its download has begun.
    _check_disk(repo_id, missing_bytes - sum(_part_bytes(blobs / file.digest) for file in missing))
    counted = Counted(report, repo_id, total_bytes, total_bytes - missing_bytes)
    # Beyond this size the hub answers its own protocol alone, which the client speaks.
    ours = [file for file in missing if file.size_bytes <= constants.MAX_HTTP_DOWNLOAD_SIZE]
    pool = ThreadPoolExecutor(_AT_ONCE)
    try:
        running = [
            pool.submit(
                fetch_file,
                hf_hub_url(repo_id, file.name, revision=commit),
                file,
                blobs / file.digest,
                locks / f"{file.digest}.lock",
                counted.advanced,
            )
            for file in ours
        ]
        for done in as_completed(running):
            done.result()
    finally:
        # Threads can't be interrupted: the program's end is theirs.
        pool.shutdown(wait=False, cancel_futures=True)
    return counted


def _places(repo_id: str) -> tuple[Path, Path]:
    """Return where the hub client keeps the contents of a repository's files, and their locks."""
    folder = repo_folder_name(repo_id=repo_id, repo_type="model")
    return _cache() / folder / "blobs", _cache() / ".locks" / folder


def snapshot_folder(repo_id: str, commit: str) -> Path:
    """Return where the files of a commit are, or would be."""
    blobs, _ = _places(repo_id)
    return blobs.parent / "snapshots" / commit


def _linked(
    repo_id: str, revision: str | None, commit: str, files: list[HubFile], counted: Counted
) -> Path:
    """Make the snapshot of files that are in the cache, as the hub client does; return its folder.

    The client itself would ask the hub once more, and take its word for paths. It is only asked for
    files that are too large for :func:`fetch_file`.
    """
    blobs, _ = _places(repo_id)
    snapshot = snapshot_folder(repo_id, commit)
    # First what is not here, so that a snapshot never looks complete before it is.
    for file in sorted(files, key=lambda file: (blobs / file.digest).exists()):
        blob, link = blobs / file.digest, snapshot / file.name
        if not blob.exists():
            hf_hub_download(repo_id, file.name, revision=commit, tqdm_class=_bar_class(counted))
        elif not link.exists() or not link.samefile(blob):
            link.parent.mkdir(parents=True, exist_ok=True)
            _link(blob, link)
    if revision != commit:
        ref = blobs.parent / "refs" / (revision or constants.DEFAULT_REVISION)
        ref.parent.mkdir(parents=True, exist_ok=True)
        made = _temporary_for(ref)
        made.write_text(commit)
        made.replace(ref)
    return snapshot


def _link(blob: Path, link: Path) -> None:
    made = _temporary_for(link)
    made.unlink(missing_ok=True)
    try:
        made.symlink_to(os.path.relpath(blob, link.parent))
    except OSError:
        # Some disks, as those for cameras, know no links.
        shutil.copyfile(blob, made)
    made.replace(link)


def _temporary_for(path: Path) -> Path:
    return path.with_name(f"{path.name}.{os.getpid()}.lmx.incomplete")


def _refuse_not_whole(folder: Path, repo_id: str, adapter: bool) -> None:
    if adapter:
        read_adapter_config(folder)
        return
    missing = missing_part(folder)
    if missing is not None:
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID,
            f"{repo_id} has no {missing}, so it is not a model that MLX can load",
            param="repo_id",
        )


def _cached(
    repo_id: str, revision: str | None, filename: str | None, adapter: bool, error: Exception
) -> Path:
    """Return the complete snapshot in the cache when the hub can't be asked. Without one,
    raise why the hub can't be asked."""
    try:
        if filename is not None:
            parts = [
                hf_hub_download(repo_id, name, revision=revision, local_files_only=True)
                for name in part_names(filename)
            ]
            return Path(parts[0])
        patterns = _patterns(adapter)
        folder = Path(
            snapshot_download(
                repo_id, revision=revision, allow_patterns=patterns, local_files_only=True
            )
        )
    except LocalEntryNotFoundError:
        raise error from None
    if adapter:
        try:
            read_adapter_config(folder)
        except OperationError:
            raise error from None
    elif missing_part(folder) is not None:
        raise error
    return folder


def _part_bytes(blob: Path) -> int:
    part = part_of(blob)
    return part.stat().st_size if part.exists() else 0


def search(words: str, most: int) -> list[dict[str, Any]]:
    """Return the models of the hub whose names have these words and that MLX can load, the most
    downloaded first: ``repo_id``, ``downloads``, ``size_bytes`` (None: not known). Raises
    `OperationError`."""
    try:
        found = HfApi().list_models(
            search=words,
            filter="mlx",
            sort="downloads",
            limit=most,
            expand=["downloads", "safetensors", "gated"],
        )
        return [
            {
                "repo_id": str(model.id),
                "downloads": int(model.downloads or 0),
                "size_bytes": _weights_bytes(model.safetensors),
                "gated": bool(model.gated),
            }
            for model in found
        ]
    # The same border as in `fetch_hub`.
    except Exception as error:
        raise explained(error, f"a search for {words!r}", None) from error


def _weights_bytes(info: Any) -> int | None:
    """Return how large weights are by the numbers of each type that the hub has counted."""
    if info is None:
        return None
    bits = [(re.search(r"\d+", kind), count) for kind, count in info.parameters.items()]
    return sum(count * int(found[0]) // 8 for found, count in bits if found) or None


def free_space(folder: Path) -> tuple[Path, int]:
    """Return the folder, or the one that it would be made in, and how much is free there."""
    while not folder.exists():
        folder = folder.parent
    return folder, shutil.disk_usage(folder).free


def _cache() -> Path:
    return Path(constants.HF_HUB_CACHE).expanduser()


def _check_disk(repo_id: str, needed_bytes: int) -> None:
    folder, free_bytes = free_space(_cache())
    if needed_bytes > 0 and free_bytes < needed_bytes + SPARE_BYTES:
        raise OperationError(
            ErrorCode.INSUFFICIENT_DISK,
            f"{repo_id} needs {gb(needed_bytes)} and {gb(SPARE_BYTES)} to spare, but {folder} "
            f"has {gb(free_bytes)} free: delete models there, or set HF_HUB_CACHE to another disk",
        )


def _bar_class(counted: Counted) -> type[AbstractContextManager[_Bar]]:
    """Build the class that the hub client makes its progress bars with.

    Of its bars, only that of bytes written counts; it moves for what is left to the client.
    """

    class Bar(AbstractContextManager[_Bar]):
        def __init__(self, *_args: Any, desc: str = "", total: float | None = None, **_kw: Any):
            self.total = total
            self.n = 0.0
            self._counts = desc.startswith("Reconstructing")

        def update(self, n: float | None = 1) -> None:
            self.n += n or 0
            if self._counts:
                counted.advanced(int(n or 0))

        @property
        def format_dict(self) -> dict[str, Any]:
            return {"rate": None, "n": self.n, "total": self.total}

        def refresh(self) -> None: ...

        def close(self) -> None: ...

        def set_description(self, *_args: Any, **_kw: Any) -> None: ...

        set_description_str = set_postfix = set_postfix_str = set_description

        def __exit__(
            self,
            _type: type[BaseException] | None,
            _value: BaseException | None,
            _traceback: TracebackType | None,
        ) -> None: ...

    return Bar

"""Fetch a repository of the model hub into the hub client's own cache.

The cache is the usual one (HF_HOME, HF_HUB_CACHE), shared with every other program, so a model
that is already on the machine is not downloaded again. HF_ENDPOINT, HF_HUB_OFFLINE and HF_TOKEN
mean what they mean everywhere. Only files in `ALLOWED` are fetched: code, pickles and GGUF files
of a repository never reach the disk. Runs only inside the fetch program.
"""

import errno
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import (
    DryRunError,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from lmx.protocol.errors import ErrorCode, OperationError

# What an MLX model consists of. Never *.py (code), *.bin and *.pt (pickles) or *.gguf. The model
# card may be all that tells an embedding model from a chat model.
ALLOWED = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "README.md")
# Left free after a download, so that the machine does not end up with a full disk.
SPARE_BYTES = 1 << 30

Report = Callable[[Literal["download", "check"], float | None, str], None]


class _Bar(Protocol):
    def update(self, n: float | None = 1) -> None: ...


def fetch_hub(repo_id: str, revision: str | None, *, report: Report) -> Path:
    """Return the folder of the repository's snapshot, after downloading what is missing.

    Without a network, or with HF_HUB_OFFLINE, a complete snapshot in the cache is used as it is.
    Does not look into the weights. Raises `OperationError`: `model_source_invalid` (no such
    repository or revision, or not a model in safetensors form), `insufficient_disk`,
    `download_failed`.
    """
    report("check", None, f"looking up {repo_id}")
    wanted: dict[str, Any] = {
        "repo_id": repo_id,
        "revision": revision,
        "allow_patterns": list(ALLOWED),
    }
    try:
        total_bytes = _missing_bytes(wanted)
        if total_bytes:
            _check_disk(repo_id, total_bytes)
        bar = _bar_class(report, repo_id, total_bytes)
        folder = Path(snapshot_download(**wanted, tqdm_class=bar))
    except OperationError:
        raise
    # A border to a library that raises its own, its HTTP client's and the system's errors:
    # each becomes one of ours, with the original as its cause.
    except Exception as error:
        raise _explained(error, repo_id, revision) from error
    _check_model(folder, repo_id)
    return folder


def _missing_bytes(wanted: dict[str, Any]) -> int | None:
    """How much is to be downloaded, or None when the hub can't be asked."""
    try:
        files = snapshot_download(**wanted, dry_run=True)
    except DryRunError:
        # The call that follows looks into the cache, and explains what it does not find.
        return None
    return sum(int(file.file_size) for file in files if file.will_download)


def _check_disk(repo_id: str, needed_bytes: int) -> None:
    folder = Path(constants.HF_HUB_CACHE).expanduser()
    while not folder.exists():
        folder = folder.parent
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes + SPARE_BYTES:
        raise OperationError(
            ErrorCode.INSUFFICIENT_DISK,
            f"{repo_id} needs {_gb(needed_bytes)} and {_gb(SPARE_BYTES)} to spare, but {folder} "
            f"has {_gb(free_bytes)} free: delete models there, or set HF_HUB_CACHE to another disk",
        )


def _bar_class(
    report: Report, repo_id: str, total_bytes: int | None
) -> type[AbstractContextManager[_Bar]]:
    """Build the class that the hub client makes its progress bars with.

    It makes three: of bytes received, of bytes written and of files. Only the bytes written count
    here; every file, by whatever protocol it comes, passes them once.
    """
    done_bytes = 0

    class Bar(AbstractContextManager[_Bar]):
        def __init__(self, *_args: Any, desc: str = "", total: float | None = None, **_kw: Any):
            self.total = total
            self.n = 0.0
            self._counts = desc.startswith("Reconstructing")

        def update(self, n: float | None = 1) -> None:
            nonlocal done_bytes
            self.n += n or 0
            if not self._counts:
                return
            done_bytes += int(n or 0)
            if total_bytes:
                detail = f"{repo_id}: {_gb(done_bytes)} of {_gb(total_bytes)}"
                report("download", done_bytes / total_bytes, detail)

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


def _explained(error: Exception, repo_id: str, revision: str | None) -> OperationError:
    """Say what happened and what to do, in place of the library's own account of it."""
    failed, invalid = ErrorCode.DOWNLOAD_FAILED, ErrorCode.MODEL_SOURCE_INVALID
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    if isinstance(error, GatedRepoError):
        return OperationError(
            failed,
            f"{repo_id} is gated: accept its terms on its page at the hub, then set HF_TOKEN to a "
            "token of that account in the environment of lmx",
        )
    # The hub answers 401 for a private repository and, without a token, for one that isn't there.
    if status in (401, 403):
        return OperationError(
            failed,
            f"the hub refused {repo_id} ({status}): it is private, gated or does not exist; check "
            "the name, and set HF_TOKEN to a token that may read it",
        )
    if isinstance(error, RevisionNotFoundError):
        return OperationError(
            invalid, f"{repo_id} has no branch, tag or commit {revision!r}: check what follows '@'"
        )
    if isinstance(error, RepositoryNotFoundError) or status == 404:
        return OperationError(invalid, f"the hub has no repository {repo_id}: check the name")
    if isinstance(error, LocalEntryNotFoundError):
        if constants.HF_HUB_OFFLINE:
            message = f"{repo_id} is not complete in the cache, and HF_HUB_OFFLINE is set: unset it"
        else:
            reason = error.__cause__ or error
            message = (
                f"{repo_id} is not complete in the cache, and the hub is out of reach "
                f"({type(reason).__name__}: {_first_line(reason)}): "
                "check the network and HF_ENDPOINT"
            )
        return OperationError(failed, message)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return OperationError(
            ErrorCode.INSUFFICIENT_DISK, f"the disk got full while fetching {repo_id}"
        )
    return OperationError(
        failed,
        f"fetching {repo_id} failed ({type(error).__name__}: {_first_line(error)}); what has been "
        "downloaded is kept, so try again",
    )


def _check_model(folder: Path, repo_id: str) -> None:
    has_config = (folder / "config.json").is_file()
    if not has_config or not any(folder.glob("*.safetensors")):
        missing = "*.safetensors" if has_config else "config.json"
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID,
            f"{repo_id} has no {missing}, so it is not a model that MLX can load; if it holds GGUF "
            "files, download one and give its path",
        )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0]


def _gb(count_bytes: int) -> str:
    return f"{count_bytes / 1e9:.2f} GB"

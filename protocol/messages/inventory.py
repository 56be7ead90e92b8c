"""Messages about which models there are: added, downloaded, found on disk, deleted. See
PROTOCOL.md, "Inventory".

They go over the control socket like those of :mod:`lmx.protocol.messages.control`: questions of a
router or of the command line to the supervisor, each with one reply, or Denied."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lmx.protocol.errors import ErrorCode
from lmx.protocol.states import DownloadStatus
from lmx.protocol.wire.codec import message


@message
@dataclass(frozen=True, slots=True)
class AddModel:
    """Question: serve another model from now on, and after restarts, until RemoveModel.

    ``source`` is as in the configuration. ``parameters`` are kept and shown, and mean nothing
    to lmx. ``context_at_most``: nobody chose ``context_length``, so that a model whose own is
    shorter has its own, and one that is there already stays with what it has. ``Done`` means that
    it is known, not that it is loaded. Denied: MODEL_EXISTS, MODEL_SOURCE_INVALID, INVALID_VALUE
    with the ``param`` it is about.
    """

    model_id: str
    source: str
    context_length: int | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    context_at_most: bool = False


@message
@dataclass(frozen=True, slots=True)
class RemoveModel:
    """Question: unload a model that was added, and forget it. ``Done`` means begun. One of the
    configuration is Denied with MODEL_CONFIGURED. Files stay."""

    model_id: str


@message
@dataclass(frozen=True, slots=True)
class StartDownload:
    """Question: download a repository of the hub, or one file of it, and serve it from then on.

    The reply is a DownloadView, once the size is known, the download has ended, or neither came
    within seconds. What runs already for the same repository, revision and file is replied with
    as it is; what was interrupted goes on where it stopped, under its id.
    """

    repo_id: str
    revision: str | None = None
    filename: str | None = None


@message
@dataclass(frozen=True, slots=True)
class CancelDownload:
    """Question: end a download; what has come stays for the next try. Reply: DownloadView."""

    download_id: str


@message
@dataclass(frozen=True, slots=True)
class GetDownloads:
    """Question; the reply is a Downloads. ``download_id``: of this one alone, Denied with
    NOT_FOUND if there is none."""

    download_id: str | None = None


@message
@dataclass(frozen=True, slots=True)
class DownloadView:
    """One download. ``total_bytes`` None: not known yet. ``downloaded_bytes`` counts what was
    there before it went on. ``model_id``: under what it is served, once it is COMPLETED.
    ``param``: the field of StartDownload that is at fault; ``retry_after_s``: after its end, as of
    then. Times are times of day."""

    download_id: str
    repo_id: str
    revision: str | None
    filename: str | None
    status: DownloadStatus
    total_bytes: int | None
    downloaded_bytes: int
    speed_bytes_per_s: float
    started_s: float
    ended_s: float | None = None
    model_id: str | None = None
    error_code: ErrorCode | None = None
    error: str | None = None
    param: str | None = None
    retry_after_s: float | None = None


@message
@dataclass(frozen=True, slots=True)
class Downloads:
    """The downloads that are known, the latest first."""

    downloads: tuple[DownloadView, ...]


@message
@dataclass(frozen=True, slots=True)
class GetAvailable:
    """Question: which models are on this machine's disk, whole; the reply is an Available."""


@dataclass(frozen=True, slots=True)
class AvailableModel:
    """A model on disk. ``repo_id`` is its source where it is no repository: the folder's name.
    ``model_id``: under what it is served, None if it is not."""

    repo_id: str
    local_path: str
    size_bytes: int
    downloaded_at_s: float
    model_id: str | None = None


@message
@dataclass(frozen=True, slots=True)
class Available:
    """What is on disk, by name."""

    models: tuple[AvailableModel, ...]


@message
@dataclass(frozen=True, slots=True)
class DeleteModel:
    """Question: delete a model's files, and forget it if it was added or downloaded. Reply:
    Deleted. Denied: MODEL_NOT_FOUND, MODEL_LOADED unless ``force`` (which unloads it first),
    NOT_DELETABLE for files that lmx did not put there."""

    model_id: str
    force: bool = False


@message
@dataclass(frozen=True, slots=True)
class Deleted:
    """The files are gone. ``freed_bytes``: what they took."""

    model_id: str
    freed_bytes: int

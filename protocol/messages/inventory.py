"""The messages by which models are added, downloaded, found on disk and deleted. See PROTOCOL.md,
"Inventory".

They go over the control socket like those of :mod:`lmx.protocol.messages.control`. A router or the
command line asks the supervisor a question, and gets one reply or Denied."""

from dataclasses import dataclass, field
from typing import Any

from lmx.protocol.errors import ErrorCode
from lmx.protocol.free_text import FreeText
from lmx.protocol.states import DownloadStatus, QuantizedBits
from lmx.protocol.wire.codec import message


@message
@dataclass(frozen=True, slots=True)
class AddModel:
    """Question: serve another model from now on, and after restarts, until RemoveModel.

    ``Done`` means that the model is known, not that it is loaded. Denied: MODEL_EXISTS,
    MODEL_SOURCE_INVALID, or INVALID_VALUE with the ``param`` that it is about.
    """

    model_id: str
    source: str
    """The source, as in the configuration."""
    context_length: int | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    """Values that lmx keeps and shows, and does not use."""
    context_at_most: bool = False
    """Whether ``context_length`` is only an upper limit, because nobody chose it. A model whose own
    context is shorter gets its own, and a model that is known already keeps what it has."""


@message
@dataclass(frozen=True, slots=True)
class RemoveModel:
    """Question: unload a model that was added, and forget it. Its files stay. ``Done`` means that
    this has begun. A model of the configuration is Denied with MODEL_CONFIGURED."""

    model_id: str


@message
@dataclass(frozen=True, slots=True)
class StartDownload:
    """Question: download a repository of the hub, or one file of it, and serve it from then on.
    With ``bits`` it is then quantized, and the result is served under a name of its own.

    The reply is a DownloadView. It comes when the size is known or the download has ended, and
    after some seconds at the latest. If the same repository, revision and file is being downloaded
    already, the reply shows that download. One that was interrupted resumes where it stopped, with
    its old id.
    """

    repo_id: str
    """The repository. With ``bits`` also a folder, or a .gguf file, of the supervisor's machine."""
    revision: str | None = None
    filename: str | None = None
    bits: QuantizedBits | None = None


@message
@dataclass(frozen=True, slots=True)
class CancelDownload:
    """Question: cancel a download. What has arrived stays for the next try. Reply:
    DownloadView."""

    download_id: str


@message
@dataclass(frozen=True, slots=True)
class GetDownloads:
    """Question: which downloads are there? The reply is a Downloads."""

    download_id: str | None = None
    """Ask for this download alone. If there is no such download, the reply is Denied with
    NOT_FOUND."""


@message
@dataclass(frozen=True, slots=True)
class DownloadView:
    """One download, as clients see it."""

    download_id: str
    repo_id: str
    revision: str | None
    filename: str | None
    status: DownloadStatus
    total_bytes: int | None
    """The size; None while it is not known yet."""
    downloaded_bytes: int
    """How much is here, with what was here before the download resumed."""
    speed_bytes_per_s: float
    started_s: float
    """When it was started, in Unix time."""
    ended_s: float | None = None
    """When it ended, in Unix time."""
    model_id: str | None = None
    """The id under which the model is served, once the download is COMPLETED."""
    error_code: ErrorCode | None = None
    error: FreeText | None = None
    param: FreeText | None = None
    """The field of StartDownload that caused the error."""
    retry_after_s: float | None = None
    """How many seconds after ``ended_s`` another try makes sense."""
    bits: QuantizedBits | None = None
    note: FreeText | None = None
    """What is done after all has arrived, and what came of it, for people: how far the quantization
    is, and how well the model predicts a text before and after."""


@message
@dataclass(frozen=True, slots=True)
class Downloads:
    """The downloads that are known, the latest first."""

    downloads: tuple[DownloadView, ...]


@message
@dataclass(frozen=True, slots=True)
class GetAvailable:
    """Question: which complete models are on this machine's disk? The reply is an Available."""


@dataclass(frozen=True, slots=True)
class AvailableModel:
    """A model on disk."""

    repo_id: str
    """Its repository; the name of its folder if it is not from a repository."""
    local_path: str
    size_bytes: int
    downloaded_at_s: float
    model_id: str | None = None
    """The id under which it is served; None if it is not served."""


@message
@dataclass(frozen=True, slots=True)
class Available:
    """Reply to GetAvailable: the models on disk, sorted by name."""

    models: tuple[AvailableModel, ...]


@message
@dataclass(frozen=True, slots=True)
class DeleteModel:
    """Question: delete a model's files, and forget the model if it was added or downloaded. Reply:
    Deleted. Denied: MODEL_NOT_FOUND; MODEL_LOADED unless ``force``; NOT_DELETABLE for files that
    lmx did not put there."""

    model_id: str
    force: bool = False
    """Unload the model first if it is loaded."""


@message
@dataclass(frozen=True, slots=True)
class Deleted:
    """Reply to DeleteModel: the files are deleted."""

    model_id: str
    freed_bytes: int
    """The size of the files that were deleted."""
    forgotten: tuple[str, ...] = ()
    """The models that were served from these files, and are served no more: they were added or
    downloaded, and the configuration does not name them."""

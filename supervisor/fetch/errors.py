"""What went wrong with the hub, said so that a person knows what to do. Runs only inside the
fetch program."""

import errno
from collections.abc import Mapping
from typing import Final

from httpx2 import TransportError
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import parse_ratelimit_headers

from lmx.protocol.errors import ErrorCode, OperationError

_BUSY_RETRY_S: Final = 300
"""When the hub has too many requests and does not say for how long."""

_MOST_DIGITS: Final = 6
_KEPT: Final = "what has been downloaded is kept, so try again"


def explained(error: Exception, repo_id: str, revision: str | None) -> OperationError:
    """Say what happened and what to do, in place of the library's own account of it."""
    failed, invalid = ErrorCode.DOWNLOAD_FAILED, ErrorCode.MODEL_SOURCE_INVALID
    if isinstance(error, OperationError):
        return error
    if isinstance(error, GatedRepoError):
        return OperationError(
            invalid,
            f"{repo_id} is gated: accept its terms on its page at the hub, then set HF_TOKEN to a "
            "token of that account in the environment of lmx",
            param="repo_id",
        )
    if isinstance(error, RevisionNotFoundError):
        return OperationError(
            invalid,
            f"{repo_id} has no branch, tag or commit {revision!r}: check the revision (in a "
            "source: what follows '@')",
            param="revision",
        )
    if isinstance(error, LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        return explained(error.__cause__, repo_id, revision)
    if isinstance(error, OfflineModeIsEnabled):
        return OperationError(
            failed, f"{repo_id} is not complete in the cache, and HF_HUB_OFFLINE is set: unset it"
        )
    if isinstance(error, TransportError):
        return OperationError(
            failed,
            f"{repo_id} is not complete in the cache, and the hub is out of reach "
            f"({type(error).__name__}: {_first_line(error)}): check the network and HF_ENDPOINT; "
            f"{_KEPT}",
        )
    if isinstance(error, HfHubHTTPError):
        return _refused(error, repo_id)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return OperationError(
            ErrorCode.INSUFFICIENT_DISK,
            f"the disk got full while fetching {repo_id}: free some space there; {_KEPT}",
        )
    return OperationError(
        failed, f"fetching {repo_id} failed ({type(error).__name__}: {_first_line(error)}); {_KEPT}"
    )


def _refused(error: HfHubHTTPError, repo_id: str) -> OperationError:
    failed = ErrorCode.DOWNLOAD_FAILED
    status = error.response.status_code
    # The hub answers 401 for a private repository and, without a token, for one that isn't there.
    if status in (401, 403):
        return OperationError(
            ErrorCode.MODEL_SOURCE_INVALID,
            f"the hub refused {repo_id} ({status}): it is private, gated or does not exist; check "
            "the name, and set HF_TOKEN to a token that may read it",
            param="repo_id",
        )
    if isinstance(error, RepositoryNotFoundError) or status == 404:
        return OperationError(
            ErrorCode.MODEL_SOURCE_INVALID,
            f"the hub has no repository {repo_id}: check the name",
            param="repo_id",
        )
    if status == 429:
        requested_s = requested_wait_s(error.response.headers)
        wait_s = _BUSY_RETRY_S if requested_s is None else requested_s
        return OperationError(
            failed,
            f"the hub takes no more requests from this machine for now (429): try again in "
            f"{wait_s} s, or set HF_TOKEN, which raises the limit; {_KEPT}",
            retry_after_s=wait_s,
        )
    if status >= 500:
        return OperationError(
            failed,
            f"the hub is out of order ({status}) and was asked several times: try again later; "
            f"{_KEPT}",
        )
    return OperationError(
        failed, f"the hub refused {repo_id} ({status}: {_first_line(error)}); {_KEPT}"
    )


def requested_wait_s(headers: Mapping[str, str]) -> int | None:
    """Return how long the hub asks to wait before the next request; None: it does not say. Pure."""
    limit = parse_ratelimit_headers(headers)
    if limit is not None and limit.remaining == 0:
        wait_s: int = limit.reset_in_seconds
        return wait_s
    requested = headers.get("retry-after", "").strip()
    # It may also be a date, which is not worth reading.
    known = requested.isascii() and requested.isdecimal() and len(requested) < _MOST_DIGITS
    return int(requested) if known else None


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0]

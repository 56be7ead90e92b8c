"""Reads what somebody wants downloaded. Pure, but for the time and a new id."""

from __future__ import annotations

import time

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.inventory import StartDownload
from lmx.supervisor.download_records import Download, new_download_id
from lmx.supervisor.sources import HubSource, SourceError, parse_file_name, parse_source


def asked_download(question: StartDownload) -> Download:
    """Read a question into a download that has not begun. Raises :class:`RequestError`
    (invalid_value) with the ``param`` it is about."""
    try:
        source = parse_source(question.repo_id)
        if not isinstance(source, HubSource) or source.revision is not None:
            raise SourceError(f"{question.repo_id[:200]!r} is not a repository: write 'org/name'")
    except SourceError as error:
        raise RequestError(ErrorCode.INVALID_VALUE, str(error), param="repo_id") from error
    try:
        if question.revision is not None:
            checked = parse_source(f"{source.repo_id}@{question.revision}")
            if not isinstance(checked, HubSource):
                raise SourceError(f"the revision {question.revision!r} ends like a GGUF file")
    except SourceError as error:
        raise RequestError(ErrorCode.INVALID_VALUE, str(error), param="revision") from error
    try:
        if question.filename is not None:
            parse_file_name(question.filename)
    except SourceError as error:
        raise RequestError(ErrorCode.INVALID_VALUE, str(error), param="filename") from error
    return Download(
        new_download_id(), source.repo_id, question.revision, question.filename, time.time()
    )

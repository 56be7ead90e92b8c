"""The form and the query of the routes of files."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal

from pydantic import Field

from lmx.router.http.bodies.form import FormField, Upload
from lmx.router.schema.requests.audio import FileField
from lmx.router.schema.validation import Strict, invalid, missing, validated

_DAY_S: Final = 86_400
MIN_EXPIRY_S: Final = 3600
MAX_EXPIRY_S: Final = 30 * _DAY_S
MAX_ANTHROPIC_EXPIRY_S: Final = 90 * _DAY_S
_ANCHOR: Final = "expires_after[anchor]"
_SECONDS: Final = "expires_after[seconds]"


class ExpiresAfter(Strict):
    """When a file is removed."""

    anchor: Literal["created_at"]
    """From when on the time counts: from the making of the file."""
    seconds: Annotated[int, Field(ge=MIN_EXPIRY_S, le=MAX_EXPIRY_S, strict=False)]
    """After how many seconds: an hour to 30 days."""


class FileRequest(Strict):
    """The form of POST /v1/files."""

    file: FileField
    """The file, of any type. The lines of a batch are JSONL."""
    purpose: Literal["assistants", "batch", "user_data", "vision"]
    """What it is for: `batch` for the lines of a batch, `user_data` for anything else. `vision` and
    `assistants` are taken too, and mean no more than `user_data`."""
    expires_after: ExpiresAfter | None = None
    """When it is removed, in the fields `expires_after[anchor]` and `expires_after[seconds]`. A
    file for a batch goes after 30 days otherwise, others stay until they are deleted."""

    @property
    def lifetime_s(self) -> int | None:
        """For how long the file is kept; None: until it is deleted."""
        if self.expires_after is not None:
            return self.expires_after.seconds
        return MAX_EXPIRY_S if self.purpose == "batch" else None


class AnthropicFileRequest(Strict):
    """The form of POST /v1/files with the header `anthropic-version`."""

    file: FileField
    """The file, of any type."""
    expires_in_seconds: (
        Annotated[int, Field(ge=MIN_EXPIRY_S, le=MAX_ANTHROPIC_EXPIRY_S, strict=False)] | None
    ) = None
    """After how many seconds it is removed: an hour to 90 days. Default: never."""

    purpose: Literal["user_data"] = "user_data"
    """Anthropic's files have none: `user_data`."""

    @property
    def lifetime_s(self) -> int | None:
        """For how long the file is kept; None: until it is deleted."""
        return self.expires_in_seconds


class AnthropicFilesQuery(Strict):
    """GET /v1/files with the header `anthropic-version`."""

    limit: int = Field(20, ge=1, le=1000, strict=False, description="The most files of a page.")
    page: str | None = Field(None, description="The `next_page` of the page before.")


class FilesQuery(Strict):
    """GET /v1/files."""

    after: str | None = Field(
        None, description="The list begins after the file with this id. Default: with the first."
    )
    limit: int = Field(10_000, ge=1, le=10_000, strict=False, description="The most files to list.")
    order: Literal["asc", "desc"] = Field(
        "desc", description="`asc`: the oldest first. Default: `desc`."
    )
    purpose: str | None = Field(None, description="List only files with this purpose.")


def parse_file(form: Mapping[str, list[FormField]]) -> FileRequest:
    """Return a form that is checked. Raises :class:`lmx.protocol.errors.RequestError` (400)."""
    values = _values(form, ("file", "purpose", _ANCHOR, _SECONDS))
    expiry = {name: values.pop(key) for name, key in _EXPIRY.items() if key in values}
    if expiry:
        values["expires_after"] = expiry
    return validated(FileRequest, values)


def parse_anthropic_file(form: Mapping[str, list[FormField]]) -> AnthropicFileRequest:
    """The same for the form of Anthropic's clients."""
    return validated(AnthropicFileRequest, _values(form, ("file", "expires_in_seconds")))


def _values(form: Mapping[str, list[FormField]], names: Sequence[str]) -> dict[str, object]:
    values: dict[str, object] = {}
    for name in names:
        found = form.get(name, [])
        if len(found) > 1:
            raise invalid(name, "is there more than once: send it once.")
        if found:
            values[name] = found[0]
    if not isinstance(values.get("file"), Upload):
        raise missing("file", "is required, and a file.")
    return values


_EXPIRY: Final = {"anchor": _ANCHOR, "seconds": _SECONDS}

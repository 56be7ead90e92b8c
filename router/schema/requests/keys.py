"""What operators may send to make and change keys. The supervisor checks the names and patterns."""

from typing import Annotated

from pydantic import Field

from lmx.protocol.messages.keys import KeyFamily, KeyScope
from lmx.router.schema.validation import Strict

_Amount = Annotated[int, Field(ge=1, le=10**15)]
_Text = Annotated[str, Field(min_length=1, max_length=200)]
_Scope = Annotated[KeyScope, Field(strict=False)]
_Family = Annotated[KeyFamily, Field(strict=False)]


class KeyRequest(Strict):
    """The body of POST /admin/keys. What is left out is not limited."""

    name: Annotated[str, Field(min_length=1, max_length=60)]
    """What people call the key: letters, digits, and of `. _ @ + -`."""
    scopes: Annotated[
        tuple[_Scope, ...], Field(min_length=1, max_length=len(KeyScope), strict=False)
    ] = (KeyScope.INFERENCE,)
    """What it opens: requests to models (`inference`), the metrics (`metrics`), what operators see
    (`operator`), all that they see and do (`admin`), or what another lmx asks that forwards
    requests here (`peer`)."""
    models: Annotated[tuple[_Text, ...], Field(max_length=50, strict=False)] = ()
    """Patterns of the ids of the models that it is for, as a shell's: `qwen3-*`."""
    families: Annotated[tuple[_Family, ...], Field(max_length=len(KeyFamily), strict=False)] = ()
    """The APIs that it is for."""
    requests_per_minute: _Amount | None = None
    """With one of these three it has these limits, instead of those of every key."""
    tokens_per_minute: _Amount | None = None
    """Of prompts and answers together."""
    concurrent_requests: _Amount | None = None
    """How many of its requests are answered at a time."""
    requests_per_day: _Amount | None = None
    """A day is one of lmx's clock, from midnight to midnight."""
    tokens_per_day: _Amount | None = None
    """Of prompts and answers together."""
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] | None = None
    """The lowest `priority` that its requests may have, and the one of those that name none."""
    expires_at_s: Annotated[float, Field(gt=0, le=1e11, allow_inf_nan=False)] | None = None
    """From when on it opens nothing, in Unix time."""


class RotateRequest(Strict):
    """The body of POST /admin/keys/{name}/rotate."""

    grace_s: Annotated[float, Field(ge=0, le=30 * 86_400, allow_inf_nan=False)] = 0.0
    """For how many seconds the former secret stays valid."""

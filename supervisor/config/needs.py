"""What has to happen before a changed value of the configuration is in effect.

It is declared in the annotation of each key: ``Annotated[int, Needs.ROUTER]``. This module is pure.
"""

from collections.abc import Mapping
from enum import Flag, auto
from functools import cache

from pydantic import BaseModel


class Needs(Flag):
    """What has to happen before a changed value is in effect."""

    NOTHING = 0
    """It takes effect as soon as the configuration is read again."""
    NEXT_WORKER = auto()
    """Workers that are started from now on have it. Deadlines stay as they were for those that
    run: they also got their beat interval at their start, and the two belong together."""
    WORKER = auto()
    """The model is reloaded once its streams have ended."""
    ROUTER = auto()
    """The router is replaced, after its streams."""
    ADDRESS = auto()
    """As ROUTER, on another listening socket."""
    ROUTER_AND_NEXT_WORKER = ROUTER | NEXT_WORKER
    """The router is replaced; workers that are started from now on have it too."""


@cache
def needs_of(section: type[BaseModel]) -> Mapping[str, Needs]:
    """Return what a change of each key of a section needs. A key that does not say it is left
    out."""
    return {
        name: one
        for name, field in section.model_fields.items()
        for one in field.metadata
        if isinstance(one, Needs)
    }

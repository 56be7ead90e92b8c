"""An event in the form in which programs read it, over HTTP and from the command line. Pure."""

from __future__ import annotations

from typing import Any

from lmx.protocol.messages.control import Event


def event_object(epoch: str, event: Event) -> dict[str, Any]:
    """Return an event as plain values. ``seq`` is unique within an ``epoch``."""
    return {
        "epoch": epoch,
        "seq": event.seq,
        "at_s": event.at_s,
        "name": event.name,
        "model": event.model_id,
        "detail": event.detail,
        "data": event.data,
    }

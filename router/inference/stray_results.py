"""What becomes of the results of tools whose calls a conversation does not have."""

from dataclasses import replace
from typing import TypeVar

from aiohttp import web

from lmx.protocol.messages.data import Generate
from lmx.protocol.messages.tasks import Tokenize
from lmx.router.http.outcome import note_ignored
from lmx.router.schema.requests.conversation.turns import with_stray_results

_Asked = TypeVar("_Asked", Generate, Tokenize)


def with_known_calls(request: web.Request, asked: _Asked, field: str) -> _Asked:
    """Return what is asked of a worker with a conversation in which every result of a tool belongs
    to a call. ``field`` is the one that names a result's call: it is noted as one that changes
    nothing if there is no such call."""
    shown = None if asked.messages is None else with_stray_results(asked.messages)
    if shown is None:
        return asked
    note_ignored(request, [field])
    return replace(asked, messages=tuple(shown))

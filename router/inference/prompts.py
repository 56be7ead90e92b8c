"""What lmx changes in a conversation before a model sees it; the answer's headers name it."""

from dataclasses import replace
from typing import TypeVar

from aiohttp import web

from lmx.protocol.messages.data import Generate
from lmx.protocol.messages.tasks import Tokenize
from lmx.router.http.outcome import note_ignored
from lmx.router.schema.requests.conversation.turns import with_stray_results
from lmx.router.schema.requests.conversation.unstable import stable_messages, stable_tools
from lmx.router.services import SERVICES

_Asked = TypeVar("_Asked", Generate, Tokenize)


def prepared(request: web.Request, asked: _Asked, field: str) -> _Asked:
    """Return what is asked of a worker with a conversation in which every result of a tool belongs
    to a call, and without what ``server.stable_prompts`` leaves out. ``field`` is the one that
    names a result's call: it is noted as one that changes nothing if there is no such call."""
    if asked.messages is None:
        return asked
    rules = request.app[SERVICES].spec.stable_prompts
    messages, names = stable_messages(asked.messages, rules)
    shown = with_stray_results(messages)
    if shown is not None:
        names.append(field)
    tool_use = asked.tool_use
    if tool_use is not None:
        tools = stable_tools(tool_use.tools, rules)
        if tools is not None:
            names.append("tools.order")
            tool_use = replace(tool_use, tools=tools)
    if not names:
        return asked
    note_ignored(request, names)
    return replace(asked, messages=tuple(shown or messages), tool_use=tool_use)

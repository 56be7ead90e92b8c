"""POST /ui/markdown: the page's Markdown as trees of elements, with code in colours."""

from typing import Any, Final

import orjson
from aiohttp import web

from lmx.router.console.markdown_process import MarkdownProcess
from lmx.router.http.bodies.json_body import read_object
from lmx.router.http.outcome import CONTEXT, note_ignored
from lmx.router.http.responses import Answer, json_text
from lmx.router.schema.requests.console import MarkdownRequest
from lmx.router.schema.validation import validated

MARKDOWN: Final = web.AppKey("markdown", MarkdownProcess)

LONGEST_BODY_BYTES: Final = 2**18


class MarkdownTrees(Answer):
    """The answer of POST /ui/markdown."""

    blocks: list[list[Any]]
    """The tree of each text: a list of nodes. A node is a text, or a list of a tag, an object of
    attributes, and child nodes. Nothing in it is HTML."""


async def render_markdown(request: web.Request) -> web.Response:
    """Return the trees of Markdown texts. No model works for it. A text that takes too long to
    render is a 400."""
    body = await read_object(request, LONGEST_BODY_BYTES)
    wanted = validated(MarkdownRequest, body)
    note_ignored(request, (name for name in body if name not in MarkdownRequest.model_fields))
    line = orjson.dumps({"blocks": wanted.blocks})
    return json_text(await request.app[MARKDOWN].render(line, request[CONTEXT].requester))


async def end_markdown(app: web.Application) -> None:
    """End the process when the application does."""
    await app[MARKDOWN].close()

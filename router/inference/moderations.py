"""POST /v1/moderations: refused, in words."""

from aiohttp import web

from lmx.protocol.errors import ErrorCode, RequestError


async def moderations(request: web.Request) -> web.Response:
    """Refuse: no text or image is sorted into categories of harm here."""
    raise RequestError(
        ErrorCode.NOT_FOUND,
        "lmx has no moderations: they sort texts and images into categories of harm, with a "
        "classifier of OpenAI's, and lmx serves no classifier. Switch the client's moderation off, "
        "or point it alone at another server; a chat model with a guard's prompt and a JSON schema "
        "(/v1/chat/completions with `response_format`) can judge texts too.",
    )

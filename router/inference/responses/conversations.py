"""/v1/conversations and their items, and what responses take of them and add to them.

A conversation is its key's alone. It is kept until it is deleted, within the limits of
:meth:`lmx.router.jobs.store.JobStore`.
"""

import re
import secrets
import time
from collections.abc import Sequence
from typing import Final, Literal, NoReturn

import orjson
from aiohttp import web

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.router.http.bodies.json_body import next_step, parse_stored, read_object
from lmx.router.http.bodies.limits import MAX_VALUES
from lmx.router.http.outcome import CONTEXT
from lmx.router.http.responses import Answer, json_page, json_text, json_value
from lmx.router.inference.responses.stored import checked_in_steps, with_referenced
from lmx.router.jobs import conversations
from lmx.router.jobs.conversations import ConversationRow, ItemPage, Piece, Room
from lmx.router.rendering.responses.items import conversation_items
from lmx.router.rendering.responses.sealing import sealing_key
from lmx.router.schema.requests.conversation.messages import MAX_ITEMS
from lmx.router.schema.requests.conversations import (
    ConversationItemsQuery,
    ConversationItemsRequest,
    ConversationRequest,
    ConversationUpdate,
)
from lmx.router.schema.requests.responses.conversation import summary_of
from lmx.router.schema.requests.responses.items import (
    CompactionItem,
    CompactionTrigger,
    Item,
    OtherItem,
    stored_items,
)
from lmx.router.schema.validation import invalid, short, unsupported, validated
from lmx.router.services import SERVICES

_ID: Final = re.compile(r"conv_[0-9a-f]{24}")
_SHAPED_AT_ONCE: Final = 1_000
"""This many items are put into their form within some milliseconds."""


class ConversationObject(Answer):
    """A conversation, as OpenAI's API shows it."""

    id: str
    object: Literal["conversation"]
    created_at: int
    """Unix time."""
    metadata: dict[str, str]


class DeletedConversation(Answer):
    """A conversation that was removed."""

    id: str
    object: Literal["conversation.deleted"]
    deleted: Literal[True]


async def create_conversation(request: web.Request) -> web.Response:
    """Make a conversation, with its first items."""
    services, owner = request.app[SERVICES], request[CONTEXT].owner
    body = await read_object(request, services.spec.body_limit_bytes)
    wanted = validated(ConversationRequest, body)
    pieces = await _new_items(request, wanted.items or ())
    row = ConversationRow(
        f"conv_{secrets.token_hex(12)}",
        owner,
        orjson.dumps(wanted.metadata or {}),
        int(time.time()),
    )
    if _size_bytes(pieces) > _room(request).bytes:
        raise _full(request, row.id, "items")
    await services.jobs.perform(lambda records: conversations.add(records, row, pieces))
    return json_value(_object(row))


async def get_conversation(request: web.Request) -> web.Response:
    """Show a conversation, without its items."""
    return json_value(_object(await _row(request)))


async def update_conversation(request: web.Request) -> web.Response:
    """Give a conversation other metadata."""
    services, owner = request.app[SERVICES], request[CONTEXT].owner
    wanted_id = _wanted(request)
    body = await read_object(request, services.spec.body_limit_bytes)
    metadata = orjson.dumps(validated(ConversationUpdate, body).metadata or {})
    row = await services.jobs.perform(
        lambda records: conversations.set_metadata(records, wanted_id, owner, metadata)
    )
    return json_value(_object(row or _missing(wanted_id)))


async def delete_conversation(request: web.Request) -> web.Response:
    """Remove a conversation and its items. What responses under way would add is not kept."""
    wanted_id, owner = _wanted(request), request[CONTEXT].owner
    jobs = request.app[SERVICES].jobs
    if not await jobs.perform(lambda records: conversations.remove(records, wanted_id, owner)):
        _missing(wanted_id)
    return json_value(
        DeletedConversation(id=wanted_id, object="conversation.deleted", deleted=True)
    )


async def add_items(request: web.Request) -> web.Response:
    """Add items at the end of a conversation, and return them."""
    services, owner = request.app[SERVICES], request[CONTEXT].owner
    wanted_id, room = _wanted(request), _room(request)
    body = await read_object(request, services.spec.body_limit_bytes)
    pieces = await _new_items(request, validated(ConversationItemsRequest, body).items)
    now_s = time.time()
    try:
        found = await services.jobs.perform(
            lambda records: conversations.extend(records, wanted_id, owner, pieces, room, now_s)
        )
    except OverflowError as error:
        raise _full(request, wanted_id, "items") from error
    if not found:
        _missing(wanted_id)
    return _listed(pieces, has_more=False)


async def list_items(request: web.Request) -> web.Response:
    """List the items of a conversation."""
    query = validated(ConversationItemsQuery, dict(request.query))
    row = await _row(request)
    wanted = ItemPage(query.limit, query.order == "desc", query.after)
    jobs = request.app[SERVICES].jobs
    page = await jobs.perform(lambda records: conversations.page(records, row.id, wanted))
    if page is None:
        raise invalid("after", f"is not the id of one of the items: {short(query.after)}.")
    return _listed(page[0], has_more=page[1])


async def get_item(request: web.Request) -> web.Response:
    """Show one item of a conversation."""
    row, item_id = await _row(request), request.match_info["item_id"]
    found = await request.app[SERVICES].jobs.perform(
        lambda records: conversations.item(records, row.id, row.owner, item_id)
    )
    return json_text(found or _missing_item(row.id, item_id))


async def delete_item(request: web.Request) -> web.Response:
    """Remove one item of a conversation, and return the conversation."""
    row, item_id = await _row(request), request.match_info["item_id"]
    found = await request.app[SERVICES].jobs.perform(
        lambda records: conversations.remove_item(records, row.id, row.owner, item_id)
    )
    return json_value(_object(row if found else _missing_item(row.id, item_id)))


async def items_of(request: web.Request, conversation: str) -> list[Item]:
    """Return all items of a conversation, for a response that continues it. Raises NOT_FOUND, and
    REQUEST_TOO_LARGE if they are more than a request may have."""
    owner, room = request[CONTEXT].owner, _room(request)
    found = None
    if _ID.fullmatch(conversation):
        try:
            found = await request.app[SERVICES].jobs.perform(
                lambda records: conversations.whole(records, conversation, owner, room)
            )
        except OverflowError as error:
            raise _full(request, conversation, "conversation") from error
    if found is None:
        _missing(conversation, "conversation")
    try:
        items = await parse_stored(request, found)
    except RequestError as error:
        raise _full(request, conversation, "conversation") from error
    return await checked_in_steps(items, "conversation")


async def pieces_of(request: web.Request, items: Sequence[Item]) -> tuple[Piece, ...]:
    """Return items as a conversation keeps them, each with an id of its own. Those that no prompt
    has are left out: what only OpenAI's servers can read, and the request for a summary."""
    kept = [item for item in items if not isinstance(item, OtherItem | CompactionTrigger)]
    pieces: list[Piece] = []
    for begin in range(0, len(kept), _SHAPED_AT_ONCE):
        await next_step(request)
        raw = stored_items(kept[begin : begin + _SHAPED_AT_ONCE])
        # One of them may be as large as a body.
        await next_step(request)
        dumped = orjson.loads(raw)
        await next_step(request)
        pieces += [(item["id"], orjson.dumps(item)) for item in conversation_items(dumped, _new_id)]
    return tuple(pieces)


async def _new_items(request: web.Request, items: Sequence[Item]) -> tuple[Piece, ...]:
    for index, item in enumerate(items):
        if isinstance(item, OtherItem):
            raise unsupported(
                f"items[{index}].type",
                f"is {short(item.type)}, which only OpenAI's servers can read: leave the item out.",
            )
        if isinstance(item, CompactionTrigger):
            raise unsupported(
                f"items[{index}].type",
                "is 'compaction_trigger', which is for `input` in /v1/responses: leave it out.",
            )
        if isinstance(item, CompactionItem):
            key = sealing_key(request.app[SERVICES].spec.admin_key)
            summary_of(item, f"items[{index}]", key, request[CONTEXT].owner)
    return await pieces_of(request, await with_referenced(request, items, "items"))


def _new_id() -> str:
    return secrets.token_hex(12)


def _room(request: web.Request) -> Room:
    """Return what a conversation may hold: as much as a request, and no more than is kept of all
    together."""
    spec = request.app[SERVICES].spec
    return Room(MAX_ITEMS, min(spec.body_limit_bytes, spec.jobs_max_bytes))


def _size_bytes(pieces: Sequence[Piece]) -> int:
    return sum(len(item) for _, item in pieces)


def _wanted(request: web.Request) -> str:
    wanted = request.match_info["id"]
    if not _ID.fullmatch(wanted):
        _missing(wanted)
    return wanted


async def _row(request: web.Request) -> ConversationRow:
    wanted, owner = _wanted(request), request[CONTEXT].owner
    jobs = request.app[SERVICES].jobs
    row = await jobs.perform(lambda records: conversations.get(records, wanted, owner))
    return row or _missing(wanted)


def _missing(conversation: str, param: str | None = None) -> NoReturn:
    raise RequestError(
        ErrorCode.NOT_FOUND,
        f"Conversation with id {_quoted(conversation)} not found.",
        param=param,
    )


def _missing_item(conversation: str, item_id: str) -> NoReturn:
    raise RequestError(
        ErrorCode.NOT_FOUND,
        f"Item with id {_quoted(item_id)} not found in conversation with id '{conversation}'.",
    )


def _quoted(text: str) -> str:
    return f"'{short(text)[1:-1]}'"


def _full(request: web.Request, conversation: str, param: str) -> RequestError:
    room = _room(request)
    return RequestError(
        ErrorCode.REQUEST_TOO_LARGE,
        f"The conversation {conversation} has more than {room.items} items, {room.bytes} bytes or "
        f"{MAX_VALUES} strings, arrays and objects, as many as a request may have, or would have: "
        "delete items of it, or begin another.",
        param=param,
    )


def _object(row: ConversationRow) -> ConversationObject:
    return ConversationObject(
        id=row.id,
        object="conversation",
        created_at=row.created_s,
        metadata=orjson.loads(row.metadata),
    )


def _listed(pieces: Sequence[Piece], *, has_more: bool) -> web.Response:
    shown = [(item_id, orjson.Fragment(item)) for item_id, item in pieces]
    return json_page(shown, has_more=has_more)

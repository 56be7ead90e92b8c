"""GET and DELETE /v1/responses/{id}, /v1/responses/{id}/cancel and /input_items: responses that are
kept, and what later requests take of them.

A response is kept with its job's record: for as long, and for its own key alone.
"""

import re
from collections.abc import Sequence
from typing import Any, Final, Literal

import orjson
from aiohttp import web

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.router.event_loop import yield_to_loop
from lmx.router.http.bodies.json_body import parse_stored
from lmx.router.http.bodies.limits import MAX_NUMBERS, MAX_VALUES
from lmx.router.http.outcome import CONTEXT
from lmx.router.http.responses import Answer, ListPage, json_page, json_text, json_value
from lmx.router.inference.responses.background import follow_events
from lmx.router.jobs.live import LiveState, cancel_job
from lmx.router.jobs.records import JobState, StoredResponse, Turn
from lmx.router.rendering.responses.items import (
    COMPLETED,
    IN_PROGRESS,
    listed_items,
    response_of_item,
)
from lmx.router.rendering.responses.state import CANCELLED, FAILED, QUEUED, error_object
from lmx.router.schema.requests.responses.items import Item, ItemReference, checked_items
from lmx.router.schema.requests.responses.responses import InputItemsQuery, RetrieveQuery
from lmx.router.schema.validation import invalid, short, validated
from lmx.router.services import SERVICES

_MOST_RESPONSES: Final = 1_000
"""The most responses that a conversation may continue."""

_CHECKED_AT_ONCE: Final = 1_000
"""This many stored items are checked within some milliseconds."""

_RESPONSE_ID: Final = re.compile(r"resp_[0-9a-f]{24}")


class DeletedResponse(Answer):
    """A response that was removed."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class ItemList(ListPage):
    """The items of a response's input or of a conversation, page by page."""

    data: list[dict[str, Any]]
    """The items as they were sent, each with its type and an id."""


async def get_response(request: web.Request) -> web.StreamResponse:
    """Return a response: whole, or as it is until now, or its events."""
    query = validated(RetrieveQuery, dict(request.query))
    stored = await _response(request, request.match_info["id"])
    if not query.stream:
        return json_text(_shown(request, stored))
    log = request.app[SERVICES].event_logs.get(stored.job.id)
    if log is None:
        raise RequestError(
            ErrorCode.INVALID_VALUE,
            f"There are no events of {stored.job.id}: only those of streams with `background` are "
            "kept, of the last ones, and until the router ends. Fetch the response without "
            "`stream`.",
            param="stream",
        )
    after = query.starting_after
    return await follow_events(request, log, 0 if after is None else after + 1)


async def delete_response(request: web.Request) -> web.Response:
    """Remove a response, and its job's record. One that is under way is cancelled."""
    services = request.app[SERVICES]
    row = (await _response(request, request.match_info["id"])).job
    if row.ended_s is None:
        live = services.live.get(row.id)
        if live is not None:
            live.is_deleted = True
        # It raises for a job of another router, so what is removed below is this router's own. The
        # end may come later, for a client that reads slowly: it leaves no record then.
        await cancel_job(services.live, services.jobs, row)
    await services.jobs.delete(row.id, under_way=True)
    return json_value({"id": row.id, "object": "response", "deleted": True})


async def cancel_response(request: web.Request) -> web.Response:
    """Cancel a response that is under way, and return it. One that has ended stays as it is."""
    services = request.app[SERVICES]
    wanted = request.match_info["id"]
    stored = await _response(request, wanted)
    if stored.job.ended_s is None:
        await cancel_job(services.live, services.jobs, stored.job)
        stored = await _response(request, wanted)
    return json_text(_shown(request, stored))


async def input_items(request: web.Request) -> web.Response:
    """List the items of a response's input, with those of the responses that it continues, as far
    as they are kept."""
    query = validated(InputItemsQuery, dict(request.query))
    wanted = request.match_info["id"]
    turns = await _turns(request, wanted)
    if not turns:
        raise _missing(wanted)
    found = await _parsed_items(request, turns, with_last_output=False)
    listed = listed_items(wanted, [item for items in found for item in items])
    if query.order != "asc":
        listed.reverse()
    begin = 0
    if query.after is not None:
        ids = [item["id"] for item in listed]
        if query.after not in ids:
            raise invalid("after", f"is not the id of one of the items: {short(query.after)}.")
        begin = ids.index(query.after) + 1
    page = listed[begin : begin + query.limit]
    shown = [(item["id"], item) for item in page]
    return json_page(shown, has_more=begin + query.limit < len(listed))


async def earlier_items(request: web.Request, previous_id: str) -> list[Item]:
    """Return the items that a request continues: the input and the output of the response with this
    id and of those before it.

    Raises PREVIOUS_RESPONSE_NOT_FOUND if one of them is not there, and INVALID_VALUE for one that
    is under way.
    """
    turns = await _turns(request, previous_id)
    if not turns or turns[-1].previous is not None:
        raise RequestError(
            ErrorCode.PREVIOUS_RESPONSE_NOT_FOUND,
            f"There is no response {short(previous_id)}, or not all that it continues: "
            "responses are kept as long as jobs are, and not with `store: false`. Send the whole "
            "conversation in `input`.",
            param="previous_response_id",
        )
    if turns[-1].conversation is not None:
        raise RequestError(
            ErrorCode.INVALID_VALUE,
            f"The response {turns[-1].response_id} belongs to a conversation: continue that, with "
            f"`conversation: {turns[-1].conversation}` and without `previous_response_id`.",
            param="previous_response_id",
        )
    if not turns[0].is_over:
        raise RequestError(
            ErrorCode.INVALID_VALUE,
            f"The response {previous_id} is still under way: wait for its end.",
            param="previous_response_id",
        )
    earlier: list[Item] = []
    for items in await _parsed_items(request, turns, with_last_output=True):
        earlier += await checked_in_steps(items, "previous_response_id")
    return earlier


async def checked_in_steps(items: list[Any], param: str) -> list[Item]:
    """Return items that were stored, and that ``param`` stands for."""
    checked: list[Item] = []
    for begin in range(0, len(items), _CHECKED_AT_ONCE):
        checked += checked_items(items[begin : begin + _CHECKED_AT_ONCE], param)
        await yield_to_loop()
    return checked


async def with_referenced(
    request: web.Request, items: Sequence[Item], field: str = "input"
) -> Sequence[Item]:
    """Return ``items``, which are those of ``field``, with what references among them stand for.
    Raises NOT_FOUND, and REQUEST_TOO_LARGE if that is more than a request may have."""
    named = {item.id for item in items if isinstance(item, ItemReference)}
    services = request.app[SERVICES]
    limit_bytes = services.spec.body_limit_bytes
    found, taken_bytes = list(items), 0
    outputs: dict[str, dict[str, tuple[Item, int]]] = {}
    for index, item in enumerate(items):
        if not isinstance(item, ItemReference):
            continue
        response_id = response_of_item(item.id) or ""
        if response_id not in outputs:
            raw = await services.jobs.output(response_id, request[CONTEXT].owner)
            try:
                (output,) = await parse_stored(request, [raw or b"[]"])
            except RequestError:
                output = []
            wanted = [one for one in output if one["id"] in named]
            checked = checked_items(wanted, field)
            outputs[response_id] = {
                one["id"]: (made, len(orjson.dumps(one)))
                for one, made in zip(wanted, checked, strict=True)
            }
        known = outputs[response_id].get(item.id)
        if known is None:
            param = f"{field}[{index}].id"
            raise RequestError(
                ErrorCode.NOT_FOUND,
                f"`{param}` is not the id of a stored item: {short(item.id)}. Responses are "
                "kept as long as jobs are, and not with `store: false`: send the item itself.",
                param=param,
            )
        found[index], size_bytes = known
        # The same item may be named thousands of times.
        taken_bytes += size_bytes
        if taken_bytes > limit_bytes:
            raise RequestError(
                ErrorCode.REQUEST_TOO_LARGE,
                f"The items that `{field}` refers to have more than {limit_bytes} bytes, as many "
                "as a request may have: refer to fewer.",
                param=field,
            )
    return found


async def _response(request: web.Request, response_id: str) -> StoredResponse:
    """Return a response. Raises NOT_FOUND, also for one of another key."""
    stored = None
    if _RESPONSE_ID.fullmatch(response_id):
        jobs = request.app[SERVICES].jobs
        stored = await jobs.response(response_id, request[CONTEXT].owner)
    if stored is None:
        raise _missing(response_id)
    return stored


def _missing(response_id: str) -> RequestError:
    return RequestError(
        ErrorCode.NOT_FOUND,
        f"There is no response {short(response_id)}: it may have been removed by age or number, "
        "or was not stored.",
        param="id",
    )


async def _turns(request: web.Request, response_id: str) -> list[Turn]:
    """Return a response and those that it continues, the newest first, as far as they are kept and
    the caller's own."""
    services = request.app[SERVICES]
    limit_bytes = services.spec.body_limit_bytes
    if not _RESPONSE_ID.fullmatch(response_id):
        return []
    try:
        return await services.jobs.turns(
            response_id, request[CONTEXT].owner, _MOST_RESPONSES, limit_bytes
        )
    except OverflowError as error:
        raise _too_large(response_id, f"more than {limit_bytes} bytes") from error


async def _parsed_items(
    request: web.Request, turns: Sequence[Turn], *, with_last_output: bool
) -> list[list[Any]]:
    """Return the items of a conversation from its beginning on, in lists."""
    pieces: list[bytes] = []
    for turn in reversed(turns):
        pieces.append(turn.items)
        if turn.output is not None and (with_last_output or turn is not turns[0]):
            pieces.append(turn.output)
    try:
        return await parse_stored(request, pieces)
    except RequestError as error:
        raise _too_large(
            turns[0].response_id,
            f"more than {MAX_VALUES} strings, arrays and objects, or {MAX_NUMBERS} numbers",
        ) from error


def _too_large(response_id: str, what: str) -> RequestError:
    return RequestError(
        ErrorCode.REQUEST_TOO_LARGE,
        f"The conversation of {response_id} has {what}, as many as a request may have: send what "
        "is needed of it in `input`.",
        param="previous_response_id",
    )


def _shown(request: web.Request, stored: StoredResponse) -> bytes:
    """Return a response as JSON."""
    row = stored.job
    if row.state == JobState.COMPLETED and row.result is not None:
        return row.result
    response: dict[str, Any] = orjson.loads(stored.response.head)
    response["model"] = row.model
    response["output"] = orjson.Fragment(stored.response.output or b"[]")
    match row.state:
        case JobState.CANCELLED:
            response["status"] = CANCELLED
        case JobState.FAILED | JobState.INTERRUPTED:
            error = orjson.loads(row.error or b"{}")
            response["status"] = FAILED
            response["error"] = error_object(
                error.get("code", ""), error.get("message", ""), row.http_status or 500
            )
        case JobState.COMPLETED:
            # It could not be written whole while the disk was full; its output may be there.
            response["status"] = COMPLETED
        case _:
            response["status"] = _status_under_way(request, row.id)
    return orjson.dumps(response)


def _status_under_way(request: web.Request, job_id: str) -> str:
    requests = request.app[SERVICES].live
    live = requests.get(job_id)
    if live is None:
        return IN_PROGRESS  # In another router.
    if live.error is not None:
        return CANCELLED
    where, _ = requests.place(live)
    return IN_PROGRESS if where is LiveState.RUNNING else QUEUED

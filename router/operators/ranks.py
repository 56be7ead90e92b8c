"""The routes by which a paired machine has ranks of its models run here."""

from typing import Final

from aiohttp import web

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.control import Done
from lmx.protocol.messages.ranks import EndRanks, RankStarted, StartRank
from lmx.protocol.wire.codec import from_map
from lmx.router.http.bodies.json_body import read_object
from lmx.router.http.responses import json_value, succeeded
from lmx.router.operators.pairing import peer_key
from lmx.router.schema.requests.ranks import RankRequest
from lmx.router.schema.validation import validated
from lmx.router.services import SERVICES
from lmx.router.supervisor.queries import ask, command

RANK_ERRORS: Final = (ErrorCode.MODEL_LOAD_FAILED, ErrorCode.INSUFFICIENT_MEMORY)
"""Why a rank is not started."""

_BODY_BYTES: Final = 16 * 1024
_START_S: Final = 60.0


async def start_rank(request: web.Request) -> web.Response:
    """Reserve memory for one rank of a model of the machine that asks, and start it. It ends with
    its connection to rank 0."""
    wanted = validated(RankRequest, await read_object(request, _BODY_BYTES))
    owner = machine_key(request, wanted.model)
    check_endpoint(wanted.meeting.endpoint, request.remote or "")
    values = {**wanted.model_dump(), "owner": owner, "model_id": wanted.model}
    question = from_map(StartRank, values, "rank")
    supervisor = request.app[SERVICES].supervisor
    found = await ask(supervisor, question, RankStarted, _START_S)
    return json_value(found)


async def end_ranks(request: web.Request) -> web.Response:
    """End the ranks of a group that the machine which asks has started."""
    question = EndRanks(machine_key(request), request.match_info["group"])
    done: Done = await command(request.app[SERVICES].supervisor, question)
    return succeeded(done.message)


def check_endpoint(endpoint: str, remote: str) -> None:
    """Raise :class:`RequestError` if rank 0 is elsewhere than the sender of the request."""
    # As a socket for both versions of IP writes an address of IPv4.
    remote = remote.removeprefix("::ffff:")
    if endpoint.startswith(f"tcp://{remote}:"):
        return
    needs = (
        "ranks need IPv4: pair the machines by an IPv4 address, and not by a name"
        if ":" in remote
        else "ranks need a direct way, without a proxy in between"
    )
    raise RequestError(
        ErrorCode.INVALID_VALUE,
        f"rank 0 must be where the request comes from ({remote}): {needs}",
        param="meeting.endpoint",
    )


def machine_key(request: web.Request, model_id: str | None = None) -> str:
    """Return the name of the machine's key, which must be for the model too."""
    key = peer_key(request, "Only a paired machine's own key starts and ends ranks.")
    if model_id is not None and not key.allows(model_id):
        raise RequestError(
            ErrorCode.PERMISSION_DENIED,
            f"The key is not for the model {model_id!r}.",
            param="model",
        )
    return key.name

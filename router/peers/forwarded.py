"""What goes with a request from one machine to the next, and what comes back: who forwards it, for
which client, and its figures, which are counted where the client came in."""

import re
import secrets
from hashlib import blake2b
from typing import Any, Final

import orjson
from aiohttp import web

from lmx.protocol.errors import ErrorCode
from lmx.protocol.states import FinishReason
from lmx.router.http.outcome import FIGURES, Forwarded, RequestContext

FORWARDED_HEADER: Final = "X-Lmx-Forwarded"
"""The name of the machine that forwards a request. A request that has it is answered where it came
to, and never forwarded again."""

CLIENT_HEADER: Final = "X-Lmx-Client"
PRIORITY_HEADER: Final = "X-Lmx-Priority"

_SECRET: Final = secrets.token_bytes(16)
"""Without it a tag would be found by trying all addresses of a network."""

_CLIENT: Final = re.compile(r"([0-9a-f]{16})(;apart)?")
_MOST: Final = 10**9
_MOST_REASONS_CHARACTERS: Final = 2000


def client_tag(context: RequestContext) -> str:
    """Return what tells clients apart to a peer, and reveals no key and no address. It is another
    one after each start of this router."""
    return blake2b(context.requester.encode(), digest_size=8, key=_SECRET).hexdigest()


def headers_of(context: RequestContext) -> dict[str, str]:
    """Return what a peer must know of a request's client."""
    found = {CLIENT_HEADER: client_tag(context) + (";apart" if context.apart else "")}
    if context.priority is not None:
        found[PRIORITY_HEADER] = str(context.priority)
    return found


def read_headers(request: web.Request, machine: str) -> Forwarded:
    """Return what a peer says of the client whose request it forwards."""
    found = _CLIENT.fullmatch(request.headers.get(CLIENT_HEADER, ""))
    priority = request.headers.get(PRIORITY_HEADER, "")
    return Forwarded(
        machine[:60],
        "" if found is None else found[1],
        found is not None and found[2] is not None,
        int(priority) if re.fullmatch(r"-?[0-9]{1,7}", priority) else None,
    )


_REASONS: Final = frozenset(reason.value for reason in FinishReason)
_CODES: Final = frozenset(code.value for code in ErrorCode)


def read_record(payload: bytes) -> dict[str, Any]:
    """Return the figures that a peer sent back, as fields of :class:`Outcome`. What is not as it
    should be is left out."""
    try:
        given = orjson.loads(payload)
    except ValueError:
        return {}
    if not isinstance(given, dict):
        return {}
    found: dict[str, Any] = {}
    for name in FIGURES:
        value = given.get(name)
        kinds = (int,) if name.endswith("_tokens") else (int, float)
        if value is not None and type(value) in kinds and 0 <= value <= _MOST:
            found[name] = value
    reasons, error = given.get("finish_reason"), given.get("error")
    if (
        isinstance(reasons, str)
        and len(reasons) <= _MOST_REASONS_CHARACTERS
        and _REASONS.issuperset(reasons.split(","))
    ):
        found["finish_reason"] = reasons
    if isinstance(error, str) and error in _CODES:
        found["error"] = error
    return found

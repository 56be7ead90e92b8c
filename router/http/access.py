"""Reads from a request which key it came with, and refuses it if the key does not open its route
(:mod:`lmx.router.http.keys`)."""

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from aiohttp import web

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.data import Generate
from lmx.protocol.messages.keys import ApiKey, KeyFamily, KeyScope
from lmx.router.http.endpoint import Access
from lmx.router.http.keys import Ring, Verdict, judge, opened_by
from lmx.router.http.outcome import RequestContext

ADMIN_HEADER: Final = "X-Admin-Key"
_BEARER: Final = "bearer"
_KEY_HEADERS: Final = ("X-Api-Key", "Api-Key")
"""Where Anthropic's and Azure's clients send a key, instead of ``Authorization: Bearer``."""


def check_access(
    request: web.Request, access: Access, family: KeyFamily | None, ring: Ring, *, local: bool
) -> ApiKey | None:
    """Return the key for models that the request came with; None if it needed none, or another
    kind of key. ``local`` is whether only this machine can send requests.

    Raises :class:`RequestError`: INVALID_AUTHENTICATION (401) without a key that is valid,
    PERMISSION_DENIED (403) for a key that is not for this route. The routes for operators take
    their key in ``X-Admin-Key``, or as the others are sent: as ``Authorization: Bearer``,
    ``X-Api-Key`` or ``Api-Key``. Where a request has several of these, one of them must be right.
    """
    now_s = time.time()
    given = _sent_keys(request, access, ring, now_s)
    known = [key for key in (ring.find(one, now_s) for one in given) if key is not None]
    verdicts = [
        (
            judge(
                access,
                family,
                None,
                key,
                given=bool(given),
                keyless=ring.keyless,
                local=local,
                now_s=now_s,
            ),
            key,
        )
        for key in known or (None,)
    ]
    for verdict, key in verdicts:
        if verdict is Verdict.ALLOWED:
            return None if ring.keyless or access is not Access.INFERENCE else key
    verdict, key = verdicts[0]
    if key is not None:
        raise key_refusal(verdict, key, access, family, now_s=now_s)
    raise _unknown(request, access, given=bool(given))


def key_refusal(
    verdict: Verdict,
    key: ApiKey,
    access: Access,
    family: KeyFamily | None = None,
    model_id: str = "",
    *,
    now_s: float = 0.0,
) -> RequestError:
    """Return the error for a key of lmx's that does not open what is requested."""
    what = f"The key {key.name!r}" if key.name else "This key"
    match verdict:
        case Verdict.EXPIRED:
            ended = datetime.fromtimestamp(key.expires_at_s or now_s).astimezone()
            return RequestError(
                ErrorCode.INVALID_AUTHENTICATION,
                f"{what} expired on {ended:%Y-%m-%d at %H:%M}: ask for another one.",
            )
        case Verdict.FAMILY:
            return RequestError(
                ErrorCode.PERMISSION_DENIED,
                f"{what} is not for the API {family}: it is for {_listed(key.families)} alone.",
            )
        case Verdict.MODEL:
            return RequestError(
                ErrorCode.PERMISSION_DENIED,
                f"{what} is not for the model {model_id!r}: it is for {_listed(key.models)} alone.",
                param="model",
            )
        case _:
            needed = _listed(opened_by(access))
            return RequestError(
                ErrorCode.PERMISSION_DENIED,
                f"{what} is not enough here: it has the scope {_listed(key.scopes)}, and this "
                f"needs the scope {needed}.{_WHERE if access is not Access.INFERENCE else ''}",
            )


def _unknown(request: web.Request, access: Access, *, given: bool) -> RequestError:
    """Return the error for a request without a key of lmx's."""
    if access is Access.INFERENCE:
        fault = "is not right" if given else _absence(request.headers.getall("Authorization", ()))
        how = "send one of lmx's in the header `Authorization: Bearer KEY`, or `X-Api-Key: KEY`."
        return RequestError(ErrorCode.INVALID_AUTHENTICATION, f"The API key {fault}: {how}")
    headers = request.headers.getall(ADMIN_HEADER, ())
    fault = "is not right" if headers and given else _absence(headers)
    return RequestError(
        ErrorCode.INVALID_AUTHENTICATION,
        f"The admin key {fault}: send it in the header {ADMIN_HEADER}.{_WHERE}",
    )


_WHERE: Final = (
    " The admin key is security.admin_key, or in the file admin.key in lmx's home folder."
)


def _listed(names: Sequence[str]) -> str:
    return " or ".join(names)


def key_of_open_route(request: web.Request, ring: Ring) -> tuple[bool, ApiKey | None]:
    """Return whether a request may learn the names of the models on a route that needs no key, and
    the key that limits which: it came with a valid key of lmx's, or there are no keys that keep
    them from anybody."""
    if ring.keyless:
        return True, None
    now_s = time.time()
    given = [*_given_keys(request), _only(request, ADMIN_HEADER)]
    found = [key for key in (ring.find(one, now_s) for one in given) if key is not None]
    valid = [key for key in found if not key.has_expired(now_s)]
    return bool(valid), next(iter(valid), None)


def own_request(generate: Generate, context: RequestContext) -> Generate:
    """Return a request as it is sent to its worker: with its id, with the owner who takes turns
    with others, and with a cache salt that differs for each key, so that nobody finds out what
    others asked by the time that the first token takes, or by guessing their salt. A request
    without a salt stays without one where there is one key or none, and where keys share what is
    computed. No request goes before what its key allows."""
    salt = generate.cache_salt
    if context.owner is not None and (salt or context.apart):
        salt = f"{context.owner}:{salt}"
    priority = generate.priority
    if context.priority is not None:
        priority = max(priority, context.priority)
    return replace(
        generate,
        request_id=context.request_id,
        cache_salt=salt,
        owner=context.requester,
        priority=priority,
        show_reread=context.show_reread,
    )


def _absence(headers: Sequence[str]) -> str:
    return "is there more than once" if len(headers) > 1 else "is missing"


def _sent_keys(request: web.Request, access: Access, ring: Ring, now_s: float) -> list[str]:
    """Return what was sent as a key for a route of this kind."""
    given = _given_keys(request)
    headers = request.headers.getall(ADMIN_HEADER, ())
    if access is Access.INFERENCE or not headers:
        return given
    own = list(headers) if len(headers) == 1 else []
    if access.for_operators:
        return own
    found = {one: ring.find(one, now_s) for one in given}
    return [one for one, key in found.items() if key and KeyScope.METRICS in key.scopes] + own


def _given_keys(request: web.Request) -> list[str]:
    # With a header that is there several times, a proxy before lmx may look at another one: none of
    # them counts.
    scheme, _, key = _only(request, "Authorization").partition(" ")
    given = [key if scheme.lower() == _BEARER else ""]
    given += [_only(request, name) for name in _KEY_HEADERS]
    return [key.strip() for key in given if key.strip()]


def _only(request: web.Request, header: str) -> str:
    """Return the value of a header; an empty text if it is missing, or there more than once."""
    values = request.headers.getall(header, ())
    return values[0] if len(values) == 1 else ""

"""Reads from a request which key it came with, and refuses it if the key does not open its route
(:mod:`lmx.router.http.keys`)."""

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from aiohttp import web

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.data import BACKGROUND_PRIORITY, Generate
from lmx.protocol.messages.keys import ApiKey, KeyFamily, KeyScope
from lmx.router.http.endpoint import Access
from lmx.router.http.keys import Keys, Ring, Verdict, judge, opened_by
from lmx.router.http.outcome import RequestContext

ADMIN_HEADER: Final = "X-Admin-Key"
_BEARER: Final = "bearer"
_KEY_HEADERS: Final = ("X-Api-Key", "Api-Key")
"""Where Anthropic's and Azure's clients send a key, instead of ``Authorization: Bearer``."""


def check_access(
    request: web.Request,
    access: Access,
    family: KeyFamily | None,
    ring: Ring,
    *,
    local: bool,
    forwarded: bool = False,
) -> ApiKey | None:
    """Return the key for models that the request came with; None if it needed none, or another
    kind of key. Takes and raises what :func:`opening_key` does."""
    key = opening_key(request, access, family, ring, local=local, forwarded=forwarded)
    # Where requests need no key, a peer's says all the same who forwards them.
    from_peer = key is not None and KeyScope.PEER in key.scopes
    if access is not Access.INFERENCE or (ring.keyless and not from_peer):
        return None
    return None if key is None or key.has_expired(time.time()) else key


def opening_key(
    request: web.Request,
    access: Access,
    family: KeyFamily | None,
    ring: Ring,
    *,
    local: bool,
    forwarded: bool = False,
) -> ApiKey | None:
    """Return the key that opens a route for a request; None if the request has none and needs none.
    ``local`` is whether only this machine can send requests, ``forwarded`` whether peers forward
    requests to the route.

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
                key,
                given=bool(given),
                keyless=ring.keyless,
                local=local,
                now_s=now_s,
                forwarded=forwarded,
            ),
            key,
        )
        for key in known or (None,)
    ]
    for verdict, key in verdicts:
        if verdict is Verdict.ALLOWED:
            return key
    verdict, key = verdicts[0]
    if key is not None:
        raise key_refusal(verdict, key, access, family, now_s=now_s)
    raise _unknown(request, access, given=bool(given))


class Permit:
    """Whether a request may still have what it was allowed at its beginning: a stream that follows
    what happens would otherwise outlive its key. Made when the request was allowed."""

    def __init__(
        self,
        request: web.Request,
        access: Access,
        family: KeyFamily | None,
        keys: Keys,
        *,
        local: bool,
    ) -> None:
        self._access, self._family, self._keys, self._local = access, family, keys, local
        self._ring, self._looked_s = keys.ring, time.monotonic()
        self._key = self._opening(request)

    def refusal(self, request: web.Request) -> RequestError | None:
        """Return why the request would be refused now; None if it would not. It notices at once
        that keys have changed, and within ``PERMIT_S`` that one has expired."""
        ring, now_s = self._keys.ring, time.monotonic()
        if ring is self._ring and now_s - self._looked_s < PERMIT_S:
            return None
        self._ring, self._looked_s = ring, now_s
        try:
            key = self._opening(request)
        except RequestError as error:
            return self._in_words(error)
        if self._key is not None and (key is None or key.owner != self._key.owner):
            # Without the last key nobody needs one, and still nobody sees what was that key's.
            return self._in_words(RequestError(ErrorCode.INVALID_AUTHENTICATION, ""))
        return None

    def _opening(self, request: web.Request) -> ApiKey | None:
        return opening_key(request, self._access, self._family, self._ring, local=self._local)

    def _in_words(self, error: RequestError) -> RequestError:
        key = self._key
        if key is None or error.code is not ErrorCode.INVALID_AUTHENTICATION:
            return error
        now = next((one for one in self._ring.keys if one.owner == key.owner), None)
        if now is None:
            why = "was revoked"
        elif not now.has_expired(time.time()):
            why = "has another secret now"
        else:
            return error
        return RequestError(error.code, f"The key {key.shown_name!r} {why}: this stream ends.")


PERMIT: Final = web.RequestKey("permit", Permit)
"""The key under which a request carries its permit, if it may follow what happens."""

PERMIT_S: Final = 1.0
"""The longest time until a stream notices that its key has expired."""


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
    fault = "is not right" if given else _absence(headers)
    for_metrics = access in (Access.METRICS, Access.LOCAL)
    return RequestError(
        ErrorCode.INVALID_AUTHENTICATION,
        f"The admin key {fault}: send it in the header {ADMIN_HEADER}.{_WHERE}"
        f"{_METRICS if for_metrics else ''}",
    )


_METRICS: Final = (
    " A key for the metrics alone (`lmx key add NAME --scope metrics`) is sent as a Bearer token."
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
    salt, sharer, requester = generate.cache_salt, context.owner, context.requester
    apart, lowest = context.apart, [context.priority]
    if context.forwarded is not None:
        # The clients of another lmx are distinguished, as its own are.
        requester = f"{requester}/{context.forwarded.client}"
        lowest.append(context.forwarded.priority)
        if context.forwarded.apart:
            sharer, apart = requester, True
    if sharer is not None and (salt or apart):
        salt = f"{sharer}:{salt}"
    priority = max((generate.priority, *(one for one in lowest if one is not None)))
    if context.background:
        priority = BACKGROUND_PRIORITY
    return replace(
        generate,
        request_id=context.request_id,
        cache_salt=salt,
        owner=requester,
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

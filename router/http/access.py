"""Checks who may use a route: the API keys are for inference, the admin key is for operators."""

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from aiohttp import web

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.data import Generate
from lmx.protocol.messages.specs import RouterSpec
from lmx.protocol.web_origins import is_loopback
from lmx.router.http.endpoint import Access
from lmx.router.http.outcome import RequestContext

ADMIN_HEADER: Final = "X-Admin-Key"
_BEARER: Final = "bearer"
_KEY_HEADERS: Final = ("X-Api-Key", "Api-Key")
"""Where Anthropic's and Azure's clients send a key, instead of ``Authorization: Bearer``."""


def check_access(request: web.Request, access: Access, spec: RouterSpec) -> str | None:
    """Return a name for the API key that the request came with; None if it needed none, or another
    kind of key.

    Raises :class:`RequestError`: INVALID_AUTHENTICATION (401) without the right key,
    PERMISSION_DENIED (403) for another key where the admin key is needed. The comparison takes as
    long for a key that is nearly right as for any other. An empty key in the spec opens nothing.
    The admin key may also be sent as the API keys are: as ``Authorization: Bearer``, ``X-Api-Key``
    or ``Api-Key``. Where a request has several of these, one of them must be right.
    """
    match access:
        case Access.OPEN:
            return None
        case Access.LOCAL if is_loopback(spec.host):
            return None
        case Access.METRICS | Access.LOCAL if _among(_given_keys(request), [spec.metrics_key]):
            return None
        case Access.ADMIN | Access.METRICS | Access.LOCAL:
            _require_admin(request, spec)
            return None
        case Access.INFERENCE:
            return _require_inference(request, spec)


def _require_admin(request: web.Request, spec: RouterSpec) -> None:
    headers = request.headers.getall(ADMIN_HEADER, ())
    given = _given_keys(request) if not headers else list(headers) if len(headers) == 1 else []
    if spec.admin_key and _among(given, [spec.admin_key]) is not None:
        return
    where = "It is security.admin_key, or in the file admin.key in lmx's home folder."
    # In either header: we know who asks, and that they are not allowed to.
    known = {**dict.fromkeys(_keys(spec), "An API key"), spec.metrics_key: "The metrics key"}
    key = _among(given, [one for one in known if one])
    if key is not None:
        raise RequestError(
            ErrorCode.PERMISSION_DENIED,
            f"{known[key]} is not enough here: send the admin key in the header {ADMIN_HEADER}. "
            f"{where}",
        )
    fault = "is not right" if headers and given else _absence(headers)
    raise RequestError(
        ErrorCode.INVALID_AUTHENTICATION,
        f"The admin key {fault}: send it in the header {ADMIN_HEADER}. {where}",
    )


def _require_inference(request: web.Request, spec: RouterSpec) -> str | None:
    if not spec.api_keys:
        return None
    given = _given_keys(request)
    key = _among(given, _keys(spec))
    if key is not None:
        return key_name(key)
    fault = "is not right" if given else _absence(request.headers.getall("Authorization", ()))
    raise RequestError(
        ErrorCode.INVALID_AUTHENTICATION,
        f"The API key {fault}: send one of lmx's in the header `Authorization: Bearer KEY`, or "
        "`X-Api-Key: KEY`.",
    )


def knows_a_key(request: web.Request, spec: RouterSpec) -> bool:
    """Return whether a request may learn the names of the models on a route that needs no key: it
    came with any of lmx's keys, or there are no API keys that keep them from anybody."""
    known = [*_keys(spec), *filter(None, (spec.admin_key, spec.metrics_key))]
    given = [*_given_keys(request), *request.headers.getall(ADMIN_HEADER, ())]
    return not spec.api_keys or _among(given, known) is not None


def key_name(key: str) -> str:
    """Return a name that identifies a key, but does not reveal it."""
    return f"key_{hashlib.sha256(key.encode()).hexdigest()[:12]}"


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


def _keys(spec: RouterSpec) -> list[str]:
    return [known.key for known in spec.api_keys]


def _among(given: Sequence[str], keys: Sequence[str]) -> str | None:
    """Return the first of ``keys`` that was given."""
    # Every key is compared, so that the time does not show which one it was.
    found = [key for key in keys for sent in given if _same(sent, key)]
    return found[0] if found else None


def _same(given: str, expected: str) -> bool:
    # Bytes, because the comparison takes only ASCII strings.
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), expected.encode())

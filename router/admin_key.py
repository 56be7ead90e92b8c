"""The key of the routes below ``/admin``."""

from __future__ import annotations

import hmac
from typing import Final

from aiohttp import web

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.router.services import SERVICES

_HEADER: Final = "X-Admin-Key"


def require_admin_key(request: web.Request) -> None:
    """Raise INVALID_API_KEY unless the request has the admin key in ``X-Admin-Key``.

    Takes as long for a key that is nearly right as for one that is not. No key in the spec
    means that none is right.
    """
    expected = request.app[SERVICES].spec.admin_key.encode()
    given = request.headers.get(_HEADER)
    # Bytes: of strings the comparison takes ASCII only.
    if (
        given is not None
        and expected
        and hmac.compare_digest(given.encode("utf-8", "surrogateescape"), expected)
    ):
        return
    fault = "is missing" if given is None else "is not right"
    raise RequestError(
        ErrorCode.INVALID_API_KEY,
        f"The admin key {fault}: send it in the header {_HEADER}. It is in the file admin.key "
        "in lmx's home folder.",
    )

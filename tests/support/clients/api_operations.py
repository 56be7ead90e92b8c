"""What can be asked by the table of routes. Whoever collects tests needs no more of the API's
description, which takes seconds to make."""

from typing import Final

from lmx.router.schema.openapi.document import operation_id
from lmx.router.server.routes import ROUTES

_TAKES: Final = {
    operation_id(route): any((route.request, route.form, route.query)) for route in ROUTES
}
OPERATIONS: Final = sorted(_TAKES)
_FOR_SOME_CLIENTS: Final = {"get_v1_models", "get_v3_models"}
"""Their query is Anthropic's: other clients may send any."""

FAULTY_OPERATIONS: Final = sorted(
    name for name, takes in _TAKES.items() if takes and name not in _FOR_SOME_CLIENTS
)
"""Those that can be asked for something wrong: any text is good for an id in a path."""
MODEL: Final = "alpha"
"""What models are called in every other good request: a made-up name is a 404 and tells little."""

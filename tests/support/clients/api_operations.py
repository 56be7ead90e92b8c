"""What the API's own description says can be asked. Whoever collects tests needs no more of it."""

from __future__ import annotations

from typing import Any, Final

from lmx.router.schema.openapi.document import describe_api
from lmx.router.server.routes import ROUTES

DOCUMENT: Final[dict[str, Any]] = describe_api(ROUTES, "fuzz")
_TAKES: Final = {
    operation["operationId"]: "requestBody" in operation
    or any(parameter["in"] == "query" for parameter in operation.get("parameters", ()))
    for item in DOCUMENT["paths"].values()
    for operation in item.values()
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

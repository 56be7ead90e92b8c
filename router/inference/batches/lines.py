"""What a line of a batch says, and what is wrong with it, in OpenAI's words. Pure.

Source of the codes and messages: the errors of batches of OpenAI's own API.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import orjson

from lmx.protocol.states import ModelKind
from lmx.router.http.bodies.json_body import MAX_DEPTH, too_deep

MOST_LINES: Final = 50_000
MOST_INPUT_BYTES: Final = 200 * 1000 * 1000
"""OpenAI's limits of an input file."""

ANTHROPIC_ENDPOINT: Final = "/v1/messages"
KINDS: Final = {
    "/v1/chat/completions": ModelKind.CHAT,
    "/v1/completions": ModelKind.CHAT,
    "/v1/embeddings": ModelKind.EMBEDDING,
    "/v1/responses": ModelKind.CHAT,
    ANTHROPIC_ENDPOINT: ModelKind.CHAT,
}
"""The endpoints of lines, each with the kind of its models."""

_MOST_ID_CHARACTERS: Final = 512
_BEGINNINGS: Final = (64, 256, 1024, 4096, 16_384, 65_536)
"""The lengths, in bytes, of the beginnings by which prompts are sorted."""

_HASH_BYTES: Final = 4
_NO_JSON: Final = "This line is not parseable as valid JSON."


@dataclass(frozen=True, slots=True)
class LineFault(Exception):
    """What is wrong with a line, or with the whole input."""

    code: str
    message: str
    param: str | None = None

    def shown(self, line: int | None) -> dict[str, Any]:
        """Return the fault as an entry of the list of a batch's errors."""
        return {"code": self.code, "message": self.message, "param": self.param, "line": line}


@dataclass(frozen=True, slots=True)
class Line:
    """A line that is in order."""

    custom_id: str
    body: dict[str, Any]

    @property
    def model(self) -> str | None:
        """The model that it names. None: it leaves that open."""
        model: str | None = self.body.get("model")
        return model


DUPLICATE: Final = LineFault(
    "duplicate_custom_id",
    "The custom_id for this request is a duplicate of another request. The custom_id parameter "
    "must be unique for each request in a batch.",
    "custom_id",
)
EMPTY: Final = LineFault(
    "empty_file",
    "The input file is empty. Please ensure that the batch contains at least one request.",
)
TOO_MANY: Final = LineFault(
    "too_many_tasks",
    f"The batch input file contains too many requests. The maximum is {MOST_LINES} requests per "
    "batch.",
)


def parse_line(raw: bytes, endpoint: str) -> Line:
    """Return what a line says. Raises :class:`LineFault`."""
    # A fault that is raised holds the line: each is one of its own, and not a constant.
    try:
        found = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise LineFault("invalid_json_line", _NO_JSON) from error
    if not isinstance(found, dict):
        raise LineFault("invalid_json_line", _NO_JSON)
    for name, kind, what in (
        ("custom_id", str, "a string"),
        ("method", str, "a string"),
        ("url", str, "a string"),
        ("body", dict, "an object"),
    ):
        value = found.get(name)
        if value is None:
            raise LineFault(
                "missing_required_parameter", f"Missing required parameter: '{name}'.", name
            )
        if not isinstance(value, kind):
            raise LineFault("invalid_type", f"Invalid type for '{name}': expected {what}.", name)
    if not 1 <= len(found["custom_id"]) <= _MOST_ID_CHARACTERS:
        raise LineFault(
            "invalid_value",
            f"Invalid 'custom_id': it must have 1 to {_MOST_ID_CHARACTERS} characters.",
            "custom_id",
        )
    if found["method"] != "POST":
        raise LineFault("invalid_method", "Invalid method: only 'POST' is supported.", "method")
    if found["url"] != endpoint:
        raise LineFault(
            "url_mismatch",
            "The URL provided for this request does not match the batch endpoint.",
            "url",
        )
    body = found["body"]
    if too_deep(raw, body):
        # It could be read here, and neither written again nor answered.
        raise LineFault(
            "invalid_value", f"Invalid 'body': nested deeper than {MAX_DEPTH} levels.", "body"
        )
    if body.get("stream"):
        raise LineFault("invalid_value", "Streaming is not supported in a batch.", "body.stream")
    if body.get("background"):
        raise LineFault(
            "invalid_value",
            "Background responses are not supported in a batch.",
            "body.background",
        )
    if not isinstance(body.get("model"), str | None):
        raise LineFault(
            "invalid_type", "Invalid type for 'body.model': expected a string.", "body.model"
        )
    return Line(found["custom_id"], body)


def unknown_model(name: str | None, why: str) -> LineFault:
    """Return the fault of a line whose model can't answer it."""
    shown = "the default model" if name is None else f"model '{name[:80]}'"
    return LineFault("model_not_found", f"The provided {shown} can't be used: {why}", "body.model")


def order_of(endpoint: str, body: dict[str, Any]) -> bytes:
    """Return by what a line is sorted among those of its model: prompts that begin alike come one
    after the other, so that what they share is read once.

    It has a short hash of each of some beginnings, the shortest first: prompts that share one
    stand together, and within them those that share the next. Embeddings share nothing, and keep
    their order.
    """
    if KINDS[endpoint] is not ModelKind.CHAT:
        return b""
    text = orjson.dumps(list(_prompt_parts(body)))
    return b"".join(
        hashlib.blake2b(text[:length], digest_size=_HASH_BYTES).digest()
        for length in _BEGINNINGS
        if length < len(text) or length == _BEGINNINGS[0]
    )


def _prompt_parts(body: dict[str, Any]) -> Iterator[Any]:
    """Yield what a prompt is made of, in the order in which templates write it."""
    for name in ("tools", "system", "instructions", "messages", "input", "prompt"):
        value = body.get(name)
        if value is not None:
            yield value


def request_of(endpoint: str, body: dict[str, Any]) -> bytes:
    """Return the body of the request that answers a line."""
    # A batch's output is kept in its files alone.
    kept = {**body, "store": False} if endpoint == "/v1/responses" else body
    return orjson.dumps(kept)

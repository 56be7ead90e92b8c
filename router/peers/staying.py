"""Which requests only the machine can answer to which they came, and in which words they are
refused if another one has their model. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.peers import PeerKind
from lmx.router.http.api_family import RESPONSES
from lmx.router.http.endpoint import Endpoint
from lmx.router.peers.named_files import names_a_file
from lmx.router.peers.targets import Target

_OF_OPENAI: Final = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/embeddings"})
"""What servers with OpenAI's API are asked."""

_KEPT: Final = ("background", "previous_response_id", "conversation")
"""Fields of requests that are about responses which this machine keeps."""


def movable(
    endpoint: Endpoint,
    body: Mapping[str, Any],
    remote: Sequence[Target],
    *,
    has_own: bool,
    is_drained: bool,
) -> tuple[Target, ...]:
    """Return the models of peers that may answer a request. ``has_own`` is whether this machine
    has one too: then what is easier here stays here, unless this machine ``is_drained``.

    Raises :class:`RequestError` that names a machine with the model if only this machine could
    answer, and has not the model.
    """
    if not remote:
        return ()
    why = _why_it_stays(endpoint, body)
    if why is not None:
        if has_own:
            return ()
        param, words = why
        raise _elsewhere(remote[0], words, param)
    if has_own and not is_drained and (names_a_file(body) or _is_to_be_kept(endpoint, body)):
        return ()
    asked = tuple(
        one
        for one in remote
        if one.link.peer.kind is PeerKind.LMX or endpoint.openai_path in _OF_OPENAI
    )
    if not asked and not has_own:
        raise _elsewhere(
            remote[0],
            "of which chat, completions and embeddings alone are asked (it is of the kind openai)",
            "model",
        )
    return asked


def _is_to_be_kept(endpoint: Endpoint, body: Mapping[str, Any]) -> bool:
    return endpoint.family is RESPONSES and body.get("store") is not False


def _why_it_stays(endpoint: Endpoint, body: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the field of a request because of which no other machine can answer it, and the reason
    in words; None if another one can."""
    if endpoint.here_only:
        return "model", (
            "and what makes a conversation shorter is read by the machine alone that made it: send "
            "this request and those that continue it to that machine"
        )
    if endpoint.family is not RESPONSES:
        return None
    if (kept := next((field for field in _KEPT if body.get(field)), None)) is not None:
        return kept, (
            f"and `{kept}` is about responses that a machine keeps, which are not forwarded: leave "
            "it out, or send the request to that machine"
        )
    if _is_compacted(body):
        return "input", (
            "and the request makes or has a compaction, which is read by the machine alone that "
            "made it: send the conversation to that machine, from before it was made shorter"
        )
    return None


def _is_compacted(body: Mapping[str, Any]) -> bool:
    """Return whether a request makes or has a compaction, which only this machine can read."""
    if body.get("context_management"):
        return True
    items = body.get("input")
    return isinstance(items, list) and any(
        isinstance(item, dict) and str(item.get("type")).startswith("compaction") for item in items
    )


def _elsewhere(target: Target, words: str, param: str) -> RequestError:
    return RequestError(
        ErrorCode.INVALID_VALUE,
        f"The model {target.model.model_id!r} is on the machine {target.link.name}, {words}.",
        param=param,
    )

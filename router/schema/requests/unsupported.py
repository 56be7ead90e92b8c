"""Fields of the API that lmx does not support yet, and the values with which they change nothing.

A field that would change the answer is refused and never ignored: an answer that looks right and is
not what the client requested is the worst outcome. As features are added, rows leave this table.
"""

from typing import Any, Final

import orjson
from pydantic import BaseModel

from lmx.router.schema.validation import short, unsupported

_COMMON: Final[dict[str, tuple[Any, ...]]] = {
    # Sampling.
    "early_stopping": (False,),
    "logits_processors": ([],),
    # What comes besides the text, and how it is written.
    "detokenize": (True,),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
}

CHAT: Final[dict[str, tuple[Any, ...]]] = _COMMON | {
    "add_special_tokens": (False,),
    "audio": (),
    "echo": (False,),
    "modalities": (["text"],),
    "prediction": (),
    "web_search_options": (),
}
"""Maps a field of a chat request to the values (besides null) that mean the same as leaving it
out."""

COMPLETION: Final[dict[str, tuple[Any, ...]]] = _COMMON | {
    "add_special_tokens": (True,),
}
"""The same for a completion request."""


def refuse_unsupported(body: dict[str, Any], table: dict[str, tuple[Any, ...]]) -> None:
    """Raise :class:`RequestError` for the first field whose value requests something lmx can't do
    yet."""
    for name, harmless in table.items():
        value = body.get(name)
        if value is not None and not any(_same(value, allowed) for allowed in harmless):
            allowed_text = " or ".join(
                ["absent", *(orjson.dumps(item).decode() for item in harmless)]
            )
            raise unsupported(
                name, f"is not supported yet: it must be {allowed_text}, got {short(value)}."
            )


def ignored_fields(
    body: dict[str, Any], schema: type[BaseModel], table: dict[str, tuple[Any, ...]]
) -> list[str]:
    """Return the fields that neither the schema nor the table knows: they change nothing."""
    return [name for name in body if name not in schema.model_fields and name not in table]


def _same(value: object, allowed: object) -> bool:
    # In Python True == 1 and False == 0; in a request they are different things.
    return isinstance(value, bool) == isinstance(allowed, bool) and value == allowed

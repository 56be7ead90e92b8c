"""What the messages of a conversation may hold."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, TypeAdapter
from pydantic_core import PydanticCustomError

from lmx.router.media.source import MediaSource
from lmx.router.schema.requests.conversation.media import (
    KINDS,
    AudioPart,
    AudioUrlPart,
    ImageUrlPart,
    InputAudioPart,
    InputVideoPart,
    MediaPart,
    VideoDefaults,
    VideoPart,
    VideoUrlPart,
    source_of,
)
from lmx.router.schema.requests.conversation.turns import joined_texts
from lmx.router.schema.validation import (
    LIST,
    PART_TYPE,
    TEXT,
    TEXT_OR_LIST,
    Strict,
    invalid,
    missing,
    type_of,
)

MAX_MESSAGES: Final = 10_000
MAX_PARTS: Final = 1_000
MAX_CALLS: Final = 1_000
MAX_ITEMS: Final = 20_000
"""The limit for the items of all messages together. They are checked on the event loop, at a few
microseconds an item, and an invalid array fails at its first wrong item. Without these two limits
15 MiB of zeros took a minute, and 15 MiB of valid parts took 5 s, in which no stream moved."""


class TextPart(Strict):
    """A piece of a message that is text."""

    type: Literal["text"]
    """A text."""
    text: str
    """A text."""


class FunctionCall(Strict):
    """The call that an earlier assistant message made."""

    name: str
    """The function that was called."""
    arguments: str
    """The arguments, as JSON text."""


class ToolCall(Strict):
    """One of the calls of an earlier assistant message."""

    id: str
    """The call's id, which its result names."""
    type: Literal["function"] = "function"
    """Functions are the only kind of tool."""
    function: FunctionCall
    """The function, and the arguments."""


_TAGS: Final = {kind: f"<{kind}>" for kind in ("text", *KINDS)}


def _part_tag(value: object) -> str | None:
    kind = type_of(value)
    return _TAGS.get(kind) if isinstance(kind, str) else None


Part = Annotated[
    Annotated[TextPart, Tag("<text>")]
    | Annotated[ImageUrlPart, Tag("<image_url>")]
    | Annotated[InputAudioPart, Tag("<input_audio>")]
    | Annotated[AudioUrlPart, Tag("<audio_url>")]
    | Annotated[AudioPart, Tag("<audio>")]
    | Annotated[VideoUrlPart, Tag("<video_url>")]
    | Annotated[VideoPart, Tag("<video>")]
    | Annotated[InputVideoPart, Tag("<input_video>")],
    Discriminator(_part_tag, custom_error_type=PART_TYPE, custom_error_message="a part"),
]
"""A piece of a message: a text, an image, a sound or a video."""

_PARTS: Final = Field(min_length=1, max_length=MAX_PARTS, fail_fast=True)

Content = Annotated[
    Annotated[str, Tag(TEXT)] | Annotated[list[Part], _PARTS, Tag(LIST)], TEXT_OR_LIST
]


class Message(Strict):
    """One turn of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    """Who speaks. `developer` is a later name for `system`."""
    content: Content | None = None
    """A text, or parts: texts, images, sounds and videos, in any order. It is optional for the role
    `assistant` alone."""
    name: str | None = None
    """Who speaks, among several in one role. It is given to the template."""
    tool_call_id: str | None = None
    """The id of the call that this is the result of. It is needed with the role `tool`."""
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_CALLS, fail_fast=True)] | None = None
    """The calls that the assistant made."""
    reasoning_content: str | None = None
    """What the assistant thought."""

    def plain(self, first_media: int = 0) -> dict[str, Any]:
        """Return the message as a worker takes it.

        Text parts that follow each other are joined by a line break into one string; the content of
        a message without media is one string. Media are numbered from ``first_media`` on. Missing
        content becomes "", because templates add it to other text; other absent fields are left
        out. "developer" is OpenAI's later name for "system": templates know the older one, and some
        silently drop roles that they don't know.
        """
        if isinstance(self.content, list):
            content = _plain_parts(self.content, first_media)
        else:
            content = self.content or ""
        role = "system" if self.role == "developer" else self.role
        message: dict[str, Any] = {"role": role, "content": content}
        calls = [call.model_dump() for call in self.tool_calls or ()]
        rest = {
            "name": self.name,
            "tool_call_id": self.tool_call_id,
            "tool_calls": calls or None,
            "reasoning_content": self.reasoning_content,
        }
        return message | {name: value for name, value in rest.items() if value is not None}


def _plain_parts(
    parts: Sequence[TextPart | MediaPart], first_media: int
) -> str | list[dict[str, Any]]:
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    if len(texts) == len(parts):
        return "\n".join(texts)
    plain: list[dict[str, Any]] = []
    for part in parts:
        if not isinstance(part, TextPart):
            plain.append({"type": KINDS[part.type].value, "media": first_media})
            first_media += 1
        else:
            plain.append({"type": "text", "text": part.text})
    return joined_texts(plain)


def plain_messages(
    messages: Sequence[Message], defaults: VideoDefaults
) -> tuple[tuple[dict[str, Any], ...], tuple[MediaSource, ...]]:
    """Return messages as a worker takes them, and where their media come from: the number of each
    is its place there.

    Raises :class:`RequestError` (400) for a part that names no content, or names it twice.
    """
    plain: list[dict[str, Any]] = []
    media: list[MediaSource] = []
    for index, message in enumerate(messages):
        plain.append(message.plain(len(media)))
        if isinstance(message.content, list) and isinstance(plain[-1]["content"], list):
            for path, part in _media_parts(message.content, f"messages[{index}].content"):
                media.append(source_of(part, path, defaults))
    return tuple(plain), tuple(media)


def _media_parts(
    parts: Sequence[TextPart | MediaPart], path: str
) -> Iterator[tuple[str, MediaPart]]:
    for index, part in enumerate(parts):
        if not isinstance(part, TextPart):
            yield f"{path}[{index}]", part


def bounded(most: int, names: Sequence[str]) -> BeforeValidator:
    """Refuse too many parts and calls before any of them is checked, which would hold up the event
    loop. They are in the lists ``names`` of objects, of which there may be ``most``."""

    def check(held: object) -> object:
        if not isinstance(held, list) or len(held) > most:
            return held  # The next check refuses it without looking at any.
        items = 0
        for one in held:
            # Some may have been checked already.
            fields = one if isinstance(one, dict) else getattr(one, "__dict__", {})
            lists = (fields.get(name) for name in names)
            items += sum(len(each) for each in lists if isinstance(each, list))
        if items > MAX_ITEMS:
            raise PydanticCustomError(
                "too_many_items", "too many items", {"items": items, "max_items": MAX_ITEMS}
            )
        return held

    return BeforeValidator(check)


Messages = Annotated[
    list[Message],
    Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True),
    bounded(MAX_MESSAGES, ("content", "tool_calls")),
]

MESSAGES: Final[TypeAdapter[list[Any]]] = TypeAdapter(list[Message])
"""Some of the messages of a conversation."""


def check_messages(messages: Sequence[Message]) -> None:
    """Raise :class:`RequestError` for the first message whose fields don't fit its role."""
    for index, message in enumerate(messages):
        _check_message(message, f"messages[{index}]")


def _check_message(message: Message, path: str) -> None:
    if message.content is None and message.role != "assistant":
        raise missing(
            f"{path}.content",
            f"is required for the role '{message.role}': a string or an array of parts.",
        )
    if message.tool_calls and message.role != "assistant":
        raise invalid(
            f"{path}.tool_calls",
            f"is allowed for the role 'assistant' only, got role '{message.role}'.",
        )
    if message.tool_call_id is None and message.role == "tool":
        raise missing(
            f"{path}.tool_call_id",
            "is required for the role 'tool': the id of the call that this is the result of.",
        )

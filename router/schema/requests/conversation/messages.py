"""What the messages of a conversation may hold."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag, TypeAdapter
from pydantic_core import PydanticCustomError

from lmx.router.media.source import NamedFile, PartSource
from lmx.router.schema.requests.conversation.media import (
    KINDS,
    AudioPart,
    AudioUrlPart,
    FilePart,
    ImageUrlPart,
    InputAudioPart,
    InputVideoPart,
    MediaPart,
    VideoDefaults,
    VideoPart,
    VideoUrlPart,
    file_of,
    source_of,
)
from lmx.router.schema.requests.conversation.turns import NAMED, content_of
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


class RefusalPart(Strict):
    """A model's refusal. It is read as a text."""

    type: Literal["refusal"]
    """A refusal."""
    refusal: str
    """Its text."""

    @property
    def text(self) -> str:
        """What a model reads."""
        return self.refusal


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


_TAGS: Final = {kind: f"<{kind}>" for kind in ("text", "refusal", "file", *KINDS)}


def _part_tag(value: object) -> str | None:
    kind = type_of(value)
    return _TAGS.get(kind) if isinstance(kind, str) else None


Part = Annotated[
    Annotated[TextPart, Tag("<text>")]
    | Annotated[RefusalPart, Tag("<refusal>")]
    | Annotated[ImageUrlPart, Tag("<image_url>")]
    | Annotated[InputAudioPart, Tag("<input_audio>")]
    | Annotated[AudioUrlPart, Tag("<audio_url>")]
    | Annotated[AudioPart, Tag("<audio>")]
    | Annotated[VideoUrlPart, Tag("<video_url>")]
    | Annotated[VideoPart, Tag("<video>")]
    | Annotated[InputVideoPart, Tag("<input_video>")]
    | Annotated[FilePart, Tag("<file>")],
    Discriminator(_part_tag, custom_error_type=PART_TYPE, custom_error_message="a part"),
]
"""A piece of a message: a text, an image, a sound, a video or a file."""

_PARTS: Final = Field(min_length=1, max_length=MAX_PARTS, fail_fast=True)

Content = Annotated[
    Annotated[str, Tag(TEXT)] | Annotated[list[Part], _PARTS, Tag(LIST)], TEXT_OR_LIST
]


class Message(Strict):
    """One turn of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    """Who speaks. `developer` is a later name for `system`."""
    content: Content | None = None
    """A text, or parts: texts, images, sounds, videos and files, in any order. It is optional for
    the role `assistant` alone."""
    name: str | None = None
    """Who speaks, among several in one role. It is given to the template."""
    tool_call_id: str | None = None
    """The id of the call that this is the result of. It is needed with the role `tool`."""
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_CALLS, fail_fast=True)] | None = None
    """The calls that the assistant made."""
    reasoning_content: str | None = None
    """What the assistant thought."""

    def plain(self, path: str, media: list[PartSource], defaults: VideoDefaults) -> dict[str, Any]:
        """Return the message at ``path`` as a worker takes it. ``media`` gets where its media come
        from.

        Text parts that follow each other are joined by a line break into one string; the content of
        a message without media is one string. Missing content becomes "", because templates add it
        to other text; other absent fields are left out. "developer" is OpenAI's later name for
        "system": templates know the older one, and some silently drop roles that they don't know.
        """
        content: str | list[dict[str, Any]]
        if isinstance(self.content, list):
            content = _plain_parts(self.content, f"{path}.content", media, defaults)
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
    parts: Sequence[TextPart | RefusalPart | MediaPart | FilePart],
    path: str,
    media: list[PartSource],
    defaults: VideoDefaults,
) -> str | list[dict[str, Any]]:
    texts = [part.text for part in parts if isinstance(part, TextPart | RefusalPart)]
    if len(texts) == len(parts):
        return "\n".join(texts)
    plain: list[dict[str, Any]] = []
    for index, part in enumerate(parts):
        if isinstance(part, TextPart | RefusalPart):
            plain.append({"type": "text", "text": part.text})
            continue
        found: PartSource | str
        if isinstance(part, FilePart):
            found = file_of(part, f"{path}[{index}]", defaults)
        else:
            found = source_of(part, f"{path}[{index}]", defaults)
        if isinstance(found, str):
            plain.append({"type": "text", "text": found})
        else:
            plain.append(placeholder(found, media))
    return content_of(plain)


def placeholder(source: PartSource, media: list[PartSource]) -> dict[str, Any]:
    """Return the part that stands for ``source``, which ``media`` gets. What a file is shows when
    it has been found (:mod:`lmx.router.inference.named_files`)."""
    media.append(source)
    kind = NAMED if isinstance(source, NamedFile) else source.kind.value
    return {"type": kind, "media": len(media) - 1}


def plain_messages(
    messages: Sequence[Message], defaults: VideoDefaults
) -> tuple[tuple[dict[str, Any], ...], tuple[PartSource, ...]]:
    """Return messages as a worker takes them, and where their media come from: the number of each
    is its place there.

    Raises :class:`RequestError` (400) for a part that names no content, or names it twice.
    """
    media: list[PartSource] = []
    plain = [
        message.plain(f"messages[{index}]", media, defaults)
        for index, message in enumerate(messages)
    ]
    return tuple(plain), tuple(media)


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

MESSAGES: Final[TypeAdapter[list[Any]]] = TypeAdapter(
    list[Message], config=ConfigDict(defer_build=True)
)
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

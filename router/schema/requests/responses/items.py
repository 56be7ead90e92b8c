"""The items that a response's input may have.

Clients send back what they were given, often with fields missing: an item's ``type`` and ``id``,
the ``content`` of thoughts. What can be understood without them is taken.

Source: the documentation of OpenAI's Responses API, and the types of its Python library.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
)

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.router.media.source import NamedFile, PartSource
from lmx.router.schema.requests.conversation.documents import document_text, file_text
from lmx.router.schema.requests.conversation.media import (
    ImageReference,
    ImageUrlPart,
    InputAudioPart,
    VideoDefaults,
    source_of,
)
from lmx.router.schema.requests.conversation.messages import MAX_ITEMS, bounded
from lmx.router.schema.requests.responses.tools import Tools
from lmx.router.schema.validation import (
    BLOCK_TYPE,
    LIST,
    OBJECT,
    TEXT,
    TEXT_OR_LIST,
    TEXT_OR_OBJECT,
    CallArguments,
    NonEmpty,
    Strict,
    arguments_text,
    missing,
    type_of,
    unsupported,
)

MAX_PARTS: Final = 1_000
"""The most parts in one item."""

_PARTS: Final = Field(max_length=MAX_PARTS, fail_fast=True)


class ItemText(Strict):
    """A piece of text."""

    type: Literal["input_text", "output_text", "text", "summary_text", "reasoning_text"]
    """What the text is: `input_text` or `output_text` in a message, `reasoning_text` and
    `summary_text` in thoughts."""
    text: str
    """The text."""


class ItemRefusal(Strict):
    """A model's refusal."""

    type: Literal["refusal"]
    """A refusal."""
    refusal: str
    """Its text."""


class ItemImage(Strict):
    """An image, for models that take images."""

    type: Literal["input_image"]
    """An image."""
    image_url: NonEmpty | None = None
    """An http or https URL, or a data URL. The server fetches it."""
    file_id: str | None = None
    """The id of a file that was uploaded to /v1/files with the same key. It is not read if there is
    an `image_url`."""
    detail: str | None = None
    """`low`: the model sees the image reduced to 262,144 pixels (512 x 512) at most."""

    def content(self, path: str) -> PartSource:
        """Return where the content of the part at ``path`` comes from. Raises
        :class:`RequestError`."""
        file_id = None if self.image_url else self.file_id
        if not (self.image_url or file_id):
            raise missing(f"{path}.image_url", "is required, or `file_id`.")
        detail: Literal["low"] | None = "low" if self.detail == "low" else None
        image = ImageReference(url=self.image_url, file_id=file_id, detail=detail)
        source = source_of(ImageUrlPart(type="image_url", image_url=image), path, VideoDefaults())
        if isinstance(source, NamedFile):
            return replace(source, param=f"{path}.file_id")
        return source


class ItemFile(Strict):
    """A file that is a text: source code, Markdown, JSON and others. The model reads it with its
    name."""

    type: Literal["input_file"]
    """A file."""
    file_data: NonEmpty | None = None
    """The content in base64, or a data URL. It is a text in UTF-8 or UTF-16: a PDF is a 400."""
    filename: str | None = None
    """The file's name. Default: none."""
    file_url: NonEmpty | None = None
    """A data URL. Any other is a 400: of URLs only images and sounds are fetched."""
    file_id: str | None = None
    """The id of a file that was uploaded to /v1/files with the same key. It is not read if the
    content is there."""

    def content(self, path: str) -> NamedFile | str:
        """Return the file at ``path`` as a model reads it, or which file it is. Raises
        :class:`RequestError`."""
        param, data = f"{path}.file_data", self.file_data
        if data is None:
            param, data = f"{path}.file_url", self.file_url
        notes = (("title", self.filename),)
        if data is None:
            if not self.file_id:
                raise missing(f"{path}.file_data", "is required, or `file_id`.")
            texts = frozenset({None})
            return NamedFile(self.file_id, f"{path}.file_id", texts, notes=notes, shows_name=True)
        if param.endswith("url") and data[:5].lower() != "data:":
            raise unsupported(
                param,
                "is an address, from which no files are fetched here: send the content in "
                "`file_data`.",
            )
        return document_text(file_text(data, param), notes)


class ItemAudio(InputAudioPart):
    """A sound, for models with audio input."""

    def content(self, path: str) -> PartSource:
        """Return where the content of the part at ``path`` comes from. Raises
        :class:`RequestError`."""
        return source_of(self, path, VideoDefaults())


def _part_tag(value: object) -> str | None:
    kind = type_of(value)
    if kind in ("refusal", "input_image", "input_audio", "input_file"):
        return f"<{kind}>"
    known = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
    return "<part>" if kind in known else None


Part = Annotated[
    Annotated[ItemText, Tag("<part>")]
    | Annotated[ItemRefusal, Tag("<refusal>")]
    | Annotated[ItemImage, Tag("<input_image>")]
    | Annotated[ItemFile, Tag("<input_file>")]
    | Annotated[ItemAudio, Tag("<input_audio>")],
    Discriminator(_part_tag, custom_error_type=BLOCK_TYPE, custom_error_message="a part"),
]

Content = Annotated[
    Annotated[str, Tag(TEXT)] | Annotated[list[Part], _PARTS, Tag(LIST)], TEXT_OR_LIST
]
"""A text, or parts."""


class MessageItem(Strict):
    """A turn of the conversation."""

    type: Literal["message"] | None = None
    """A message. It may be left out."""
    id: str | None = None
    """The item's id."""
    role: Literal["user", "assistant", "system", "developer"]
    """Who speaks. `developer` is a later name for `system`."""
    content: Content | None = None
    """A text, or parts: texts, and of the user also images, sounds and files."""


class ReasoningItem(Strict):
    """What the model thought in an earlier turn. It is given to the template, which shows it to the
    model or not."""

    type: Literal["reasoning"]
    """Thoughts."""
    id: str | None = None
    """The item's id."""
    summary: Annotated[list[Part], _PARTS] | None = None
    """The thoughts, where they were requested as a summary."""
    content: Annotated[list[Part], _PARTS] | None = None
    """The thoughts. They go before those of `encrypted_content` and of `summary`."""
    encrypted_content: str | None = None
    """The thoughts as a token, which lmx made. Tokens of others are left out."""


class FunctionCallItem(Strict):
    """A call of a function that the model made in an earlier turn."""

    type: Literal["function_call"]
    """A call of a function."""
    id: str | None = None
    """The item's id."""
    call_id: str
    """The call's id, which its output names."""
    name: str
    """The function."""
    namespace: str | None = None
    """The namespace that the function is in."""
    # What is stored is the text, which keeps integers of any size.
    arguments: Annotated[
        Annotated[str, Tag(TEXT)]
        | Annotated[CallArguments, AfterValidator(arguments_text), Tag(OBJECT)],
        TEXT_OR_OBJECT,
    ] = "{}"
    """The arguments: a JSON text, or an object."""


class CustomCallItem(Strict):
    """A call of a custom tool that the model made in an earlier turn."""

    type: Literal["custom_tool_call"]
    """A call of a custom tool."""
    id: str | None = None
    """The item's id."""
    call_id: str
    """The call's id, which its output names."""
    name: str
    """The tool."""
    namespace: str | None = None
    """The namespace that the tool is in."""
    input: str
    """What the tool was given."""


class CallOutputItem(Strict):
    """What came of a call."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    """The output of a function, or of a custom tool."""
    id: str | None = None
    """The item's id."""
    call_id: str
    """The id of the call."""
    output: Content | None = None
    """A text, or parts: texts, images, sounds and files."""


class AdditionalToolsItem(Strict):
    """Further tools that the model may call, in addition to the `tools` of the request."""

    type: Literal["additional_tools"]
    """Further tools."""
    id: str | None = None
    """The item's id."""
    tools: Tools = Field(default_factory=list)
    """Tools, as in `tools`."""


class ItemReference(Strict):
    """An item of a stored response, by its id."""

    type: Literal["item_reference"] | None = None
    """A reference. It may be left out."""
    id: str
    """The item's id."""


class CompactionItem(Strict):
    """A summary of the conversation until here, as `/v1/responses/compact` and a
    `compaction_trigger` make it. The model reads it in the place of the answers, calls and outputs
    before it; messages of others stay."""

    type: Literal["compaction", "compaction_summary"]
    """A summary. `compaction_summary` is an older name."""
    id: str | None = None
    """The item's id."""
    encrypted_content: str
    """The summary as a token, which this lmx made for this key. Any other is a 400."""


class CompactionTrigger(Strict):
    """The last item of an input: the response is a `compaction` item with a summary of all that
    comes before, and no answer."""

    type: Literal["compaction_trigger"]
    """A request for a summary."""
    id: str | None = None
    """The item's id."""


class OtherItem(Strict):
    """An item that only OpenAI's servers can read or run. It is left out of the prompt, and named
    in the header `X-Lmx-Ignored`."""

    type: str
    """Its kind."""
    id: str | None = None
    """The item's id."""


_BY_TYPE: Final = {
    "message": "<message>",
    "reasoning": "<reasoning>",
    "function_call": "<call>",
    "custom_tool_call": "<custom>",
    "function_call_output": "<output>",
    "custom_tool_call_output": "<output>",
    "additional_tools": "<tools>",
    "compaction": "<compaction>",
    "compaction_summary": "<compaction>",
    "compaction_trigger": "<trigger>",
    "item_reference": "<reference>",
}


def _item_tag(value: object) -> str | None:
    kind = type_of(value)
    if isinstance(kind, str):
        return _BY_TYPE.get(kind, "<other>")
    if isinstance(value, MessageItem) or (isinstance(value, dict) and "role" in value):
        return "<message>"
    if isinstance(value, ItemReference) or (isinstance(value, dict) and "id" in value):
        return "<reference>"
    return None


Item = Annotated[
    Annotated[MessageItem, Tag("<message>")]
    | Annotated[ReasoningItem, Tag("<reasoning>")]
    | Annotated[FunctionCallItem, Tag("<call>")]
    | Annotated[CustomCallItem, Tag("<custom>")]
    | Annotated[CallOutputItem, Tag("<output>")]
    | Annotated[AdditionalToolsItem, Tag("<tools>")]
    | Annotated[CompactionItem, Tag("<compaction>")]
    | Annotated[CompactionTrigger, Tag("<trigger>")]
    | Annotated[ItemReference, Tag("<reference>")]
    | Annotated[OtherItem, Tag("<other>")],
    Discriminator(_item_tag, custom_error_type=BLOCK_TYPE, custom_error_message="an item"),
]


_LISTS: Final = ("content", "summary", "output")
"""The fields of items that may be lists of parts."""

Items = Annotated[
    list[Item], Field(max_length=MAX_ITEMS, fail_fast=True), bounded(MAX_ITEMS, _LISTS)
]

ITEMS: Final[TypeAdapter[list[Any]]] = TypeAdapter(Items, config=ConfigDict(defer_build=True))
"""The items of a conversation, or some of them."""


def checked_items(items: list[Any], param: str) -> list[Item]:
    """Return items that were stored, and that ``param`` stands for. Raises :class:`RequestError`
    for those of another version of lmx."""
    try:
        checked: list[Item] = ITEMS.validate_python(items)
        return checked
    except ValidationError as error:
        raise _not_together(param) from error


def check_together(items: Sequence[Item], param: str) -> None:
    """Raise :class:`RequestError` if items, of which each was checked, are more than a conversation
    may have."""
    parts = 0
    for item in items:
        for name in _LISTS:
            held = getattr(item, name, None)
            if isinstance(held, list):
                parts += len(held)
    if len(items) > MAX_ITEMS or parts > MAX_ITEMS:
        raise _not_together(param)


def stored_items(items: Sequence[Item]) -> bytes:
    """Return items as they are stored, a JSON array: with the fields that are described here, and
    no others, which nobody would ever read."""
    return ITEMS.dump_json(list(items), exclude_unset=True, by_alias=True)


def _not_together(param: str) -> RequestError:
    return RequestError(
        ErrorCode.INVALID_VALUE,
        "The conversation can't be taken together: it has more items than one may have "
        f"({MAX_ITEMS}), or one of another version of lmx. Send what is needed of it in "
        "`input`.",
        param=param,
    )


Input = Annotated[Annotated[str, Tag(TEXT)] | Annotated[Items, Tag(LIST)], TEXT_OR_LIST]
"""The input of a response: a text, which is a message of the user, or items."""

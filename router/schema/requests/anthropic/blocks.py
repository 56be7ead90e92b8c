"""The blocks that a message's content may have, and the text that a model reads of each.

Source: the documentation of Anthropic's Messages API, and the types of its Python library.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Final, Literal

from pydantic import BaseModel, Discriminator, Field, Tag

from lmx.protocol.states import MediaKind
from lmx.router.media.source import MediaSource, NamedFile, PartSource
from lmx.router.schema.requests.conversation.documents import document_ends, document_text
from lmx.router.schema.validation import (
    BLOCK_TYPE,
    LIST,
    TEXT,
    TEXT_OR_LIST,
    CallArguments,
    NonEmpty,
    Strict,
    type_of,
)

MAX_BLOCKS: Final = 1_000
"""The most blocks in one message, and in one result of a tool."""

_BLOCKS: Final = Field(max_length=MAX_BLOCKS, fail_fast=True)


class TextBlock(Strict):
    """A text."""

    type: Literal["text"]
    """A text."""
    text: str
    """The text."""


class ThinkingBlock(Strict):
    """What the model thought in an earlier turn. It is given to the template, which shows it to the
    model or not."""

    type: Literal["thinking"]
    """What the model thought."""
    thinking: str
    """The thoughts; they may be empty."""
    signature: str | None = None
    """It is accepted, and not looked at: thoughts of other models are taken too."""


class Base64Source(Strict):
    """An image whose content is in the request."""

    type: Literal["base64"]
    """The content itself."""
    media_type: str | None = None
    """It is accepted, and changes nothing: the type is detected from the content."""
    data: NonEmpty
    """The image in base64."""


class UrlSource(Strict):
    """An image that the server fetches."""

    type: Literal["url"]
    """A URL."""
    url: NonEmpty
    """An http or https URL."""


class FileSource(Strict):
    """A file that was uploaded before."""

    type: Literal["file"]
    """A file."""
    file_id: NonEmpty
    """The id of a file that was uploaded to /v1/files with the same key."""


_REFUSED: Final = frozenset(
    {"image_url", "input_audio", "input_image", "input_text", "input_file", "audio_url"}
    | {"video_url", "audio", "video", "container_upload"}
)
"""Blocks of other APIs, and files for a container, have content of the client's that must not be
lost."""


def _by_type(*types: str, others: Callable[[str], bool] = lambda kind: False) -> Discriminator:
    """Return how the members of a union are distinguished by their ``type``. Those of any other
    type that ``others`` is true of are all of one member, ``<other>``."""

    def tag(value: object) -> str | None:
        kind = type_of(value)
        if kind in types:
            return f"<{kind}>"
        return "<other>" if isinstance(kind, str) and others(kind) else None

    return Discriminator(tag, custom_error_type=BLOCK_TYPE, custom_error_message="a block")


def _is_new(kind: str) -> bool:
    return kind not in _REFUSED


class ImageBlock(Strict):
    """An image, for models that take images."""

    type: Literal["image"]
    """An image."""
    source: Annotated[
        Annotated[Base64Source, Tag("<base64>")]
        | Annotated[UrlSource, Tag("<url>")]
        | Annotated[FileSource, Tag("<file>")],
        _by_type("base64", "url", "file"),
    ]
    """Where it is."""

    def media(self, path: str) -> PartSource:
        """Return where the content of the block at ``path`` comes from."""
        if isinstance(self.source, FileSource):
            images = frozenset({MediaKind.IMAGE})
            return NamedFile(self.source.file_id, f"{path}.source.file_id", images)
        if isinstance(self.source, UrlSource):
            return MediaSource(MediaKind.IMAGE, f"{path}.source.url", self.source.url)
        return MediaSource(MediaKind.IMAGE, f"{path}.source.data", self.source.data)


class ToolUseBlock(Strict):
    """A call that the model made in an earlier turn."""

    type: Literal["tool_use"]
    """A call."""
    id: str
    """The call's id, which its result names."""
    name: str
    """The tool that was called."""
    input: CallArguments
    """The arguments."""


class PlainTextSource(Strict):
    """A document that is a text."""

    type: Literal["text"]
    """A text."""
    media_type: Literal["text/plain"] = "text/plain"
    """Plain text is the only kind."""
    data: str
    """The text."""


_DocumentPart = Annotated[
    Annotated[TextBlock, Tag("<text>")] | Annotated[ImageBlock, Tag("<image>")],
    _by_type("text", "image"),
]


class ContentSource(Strict):
    """A document that is made of blocks."""

    type: Literal["content"]
    """Blocks."""
    content: Annotated[
        Annotated[str, Tag(TEXT)] | Annotated[list[_DocumentPart], _BLOCKS, Tag(LIST)],
        TEXT_OR_LIST,
    ]
    """A text, or blocks of text and images."""


class UnreadSource(Strict):
    """A document that lmx does not read."""

    type: Literal["base64", "url"]
    """A file in base64, such as a PDF, or a URL."""
    media_type: str | None = None
    """The kind of the file."""


class DocumentBlock(Strict):
    """A document, of text and images: PDFs are not read."""

    type: Literal["document"]
    """A document."""
    source: Annotated[
        Annotated[PlainTextSource, Tag("<text>")]
        | Annotated[ContentSource, Tag("<content>")]
        | Annotated[FileSource, Tag("<file>")]
        | Annotated[UnreadSource, Tag("<other>")],
        _by_type("text", "content", "file", others=("base64", "url").__contains__),
    ]
    """Where its content is."""
    title: str | None = None
    """Its title."""
    context: str | None = None
    """What else is to be known of it."""

    def named(self, path: str) -> NamedFile | None:
        """Return which file the block at ``path`` names; None if its text is in it."""
        if not isinstance(self.source, FileSource):
            return None
        param, texts = f"{path}.source.file_id", frozenset({None})
        return NamedFile(self.source.file_id, param, texts, notes=self._notes)

    def pieces(self, path: str) -> Iterator[PartSource | str]:
        """Yield what a model sees and reads of the document at ``path``, if its text is in it."""
        source = self.source
        if isinstance(source, UnreadSource | FileSource):
            return
        beginning, end = document_ends(self._notes)
        yield beginning
        content = source.data if isinstance(source, PlainTextSource) else source.content
        if isinstance(content, str):
            yield content
        else:
            for index, block in enumerate(content):
                if isinstance(block, TextBlock):
                    yield block.text
                else:
                    yield block.media(f"{path}.source.content[{index}]")
        yield end

    @property
    def _notes(self) -> tuple[tuple[str, str | None], ...]:
        return (("title", self.title), ("context", self.context))


class SearchResultBlock(Strict):
    """A text that a search of the client's has found. The model reads it as a document."""

    type: Literal["search_result"]
    """What a search has found."""
    source: str | None = None
    """Where it was found."""
    title: str | None = None
    """Its title."""
    content: Annotated[list[TextBlock], _BLOCKS]
    """Its text, as blocks."""

    @property
    def text(self) -> str:
        """The result as a model reads it."""
        notes = (("title", self.title), ("source", self.source))
        return document_text(texts_of(self.content), notes)


class ToolReferenceBlock(Strict):
    """The name of a tool that a search for tools has found."""

    type: Literal["tool_reference"]
    """A tool's name."""
    tool_name: str
    """The name."""


class HostedBlock(Strict):
    """A block that lmx does not know, or that only Anthropic's own servers can read or run. It is
    left out of the prompt, and named in the header `X-Lmx-Ignored`: clients send whole histories,
    and one block that is new to lmx must not end a session."""

    type: str
    """Its kind."""


_ResultBlock = Annotated[
    Annotated[TextBlock, Tag("<text>")]
    | Annotated[ImageBlock, Tag("<image>")]
    | Annotated[DocumentBlock, Tag("<document>")]
    | Annotated[SearchResultBlock, Tag("<search_result>")]
    | Annotated[ToolReferenceBlock, Tag("<tool_reference>")]
    | Annotated[HostedBlock, Tag("<other>")],
    _by_type("text", "image", "document", "search_result", "tool_reference", others=_is_new),
]


class ToolResultBlock(Strict):
    """What came of a call."""

    type: Literal["tool_result"]
    """The result of a call."""
    tool_use_id: str
    """The id of the call."""
    content: (
        Annotated[
            Annotated[str, Tag(TEXT)] | Annotated[list[_ResultBlock], _BLOCKS, Tag(LIST)],
            TEXT_OR_LIST,
        ]
        | None
    ) = None
    """The result: a text, or blocks of text, images, documents and search results. Default:
    empty."""
    is_error: bool | None = None
    """Whether the call failed. The model is informed before the result. Default: false."""


_Block = Annotated[
    Annotated[TextBlock, Tag("<text>")]
    | Annotated[ImageBlock, Tag("<image>")]
    | Annotated[DocumentBlock, Tag("<document>")]
    | Annotated[SearchResultBlock, Tag("<search_result>")]
    | Annotated[ThinkingBlock, Tag("<thinking>")]
    | Annotated[ToolUseBlock, Tag("<tool_use>")]
    | Annotated[ToolResultBlock, Tag("<tool_result>")]
    | Annotated[HostedBlock, Tag("<other>")],
    _by_type(
        *("text", "image", "document", "search_result", "thinking", "tool_use", "tool_result"),
        others=_is_new,
    ),
]

Blocks = Annotated[
    Annotated[str, Tag(TEXT)] | Annotated[list[_Block], _BLOCKS, Tag(LIST)], TEXT_OR_LIST
]
"""The content of a message: a text, or blocks."""

SystemText = Annotated[
    Annotated[str, Tag(TEXT)] | Annotated[list[TextBlock], _BLOCKS, Tag(LIST)], TEXT_OR_LIST
]
"""The system prompt: a text, or blocks of text."""


def texts_of(content: str | Sequence[BaseModel] | None) -> str:
    """Return the text of blocks, joined by line breaks; of a text, itself."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "\n".join(text for block in content if (text := text_of(block)) is not None)


def text_of(block: BaseModel) -> str | None:
    """Return what a model reads of a block of text, a search result or a tool's name; None of any
    other block."""
    if isinstance(block, TextBlock):
        return block.text
    if isinstance(block, ToolReferenceBlock):
        return block.tool_name
    return block.text if isinstance(block, SearchResultBlock) else None

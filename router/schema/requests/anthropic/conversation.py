"""A conversation in Anthropic's form, and in the form that workers take. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.router.media.source import PartSource
from lmx.router.schema.requests.anthropic.blocks import (
    Blocks,
    DocumentBlock,
    HostedBlock,
    ImageBlock,
    SearchResultBlock,
    SystemText,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UnreadSource,
    text_of,
    texts_of,
)
from lmx.router.schema.requests.conversation.messages import MAX_MESSAGES, placeholder
from lmx.router.schema.requests.conversation.turns import joined_texts, joined_turns
from lmx.router.schema.validation import Strict, arguments_text, invalid

_OF_THE_USER: Final = (
    *(TextBlock, ImageBlock, DocumentBlock, SearchResultBlock, ToolResultBlock, HostedBlock),
)
_OF_THE_ASSISTANT: Final = (TextBlock, ThinkingBlock, ToolUseBlock, HostedBlock)


class Turn(Strict):
    """One turn of the conversation."""

    role: Literal["user", "assistant", "system"]
    """Who speaks. Turns of the same role that follow each other are one turn."""
    content: Blocks
    """A text, or blocks: text; of the user also images, documents, search results and results of
    tools; of the assistant also thoughts and calls."""


Turns = Annotated[list[Turn], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]

TURNS: Final[TypeAdapter[list[Any]]] = TypeAdapter(list[Turn], config=ConfigDict(defer_build=True))
"""Some of the turns of a conversation."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation as workers take it."""

    messages: list[dict[str, Any]]
    """The messages of a chat request. Their media are numbered by their place in ``media``."""
    media: tuple[PartSource, ...]
    """Where the images come from."""


def chat_messages(system: SystemText | None, turns: Sequence[Turn]) -> Conversation:
    """Return a conversation in the form of a chat request.

    A user's turn becomes the results of tools, each a message of its own, and then the user's text
    and images. Raises :class:`RequestError` for a block that is not of its turn's role.
    """
    messages: list[dict[str, Any]] = []
    media: list[PartSource] = []
    if text := _system_text(system):
        messages.append({"role": "system", "content": text})
    for index, turn in enumerate(turns):
        path = f"messages[{index}]"
        _check_blocks(turn, path)
        if turn.role == "assistant":
            made = _assistant_messages(turn)
        else:
            made = _other_messages(turn, f"{path}.content", media)
        messages += made
    return Conversation(joined_turns(messages), tuple(media))


def hosted_blocks(turns: Sequence[Turn]) -> list[str]:
    """Return the kinds of the blocks that are left out."""
    kinds = dict.fromkeys(
        block.type
        for turn in turns
        for outer in _blocks(turn.content)
        for block in (outer, *_inner(outer))
        if isinstance(block, HostedBlock)
    )
    return [f"content.{kind}" for kind in kinds]


def _blocks(content: object) -> Sequence[BaseModel]:
    return content if isinstance(content, list) else ()


def _inner(block: BaseModel) -> Sequence[BaseModel]:
    """Return the blocks of a tool's result."""
    return _blocks(block.content) if isinstance(block, ToolResultBlock) else ()


def _system_text(system: SystemText | None) -> str:
    if system is None:
        return ""
    return system if isinstance(system, str) else "\n".join(block.text for block in system)


def _check_blocks(turn: Turn, path: str) -> None:
    if isinstance(turn.content, str):
        return
    allowed = _OF_THE_ASSISTANT if turn.role == "assistant" else _OF_THE_USER
    for index, block in enumerate(turn.content):
        if not isinstance(block, allowed):
            param = f"{path}.content[{index}]"
            raise invalid(
                param,
                f"is a block of the type '{block.type}', which a turn of the role '{turn.role}' "
                "can't have.",
            )
        _refuse_unread(block, f"{path}.content[{index}]")
        for number, inner in enumerate(_inner(block)):
            _refuse_unread(inner, f"{path}.content[{index}].content[{number}]")


def _refuse_unread(block: BaseModel, path: str) -> None:
    if isinstance(block, DocumentBlock) and isinstance(block.source, UnreadSource):
        kind = "a PDF" if block.source.media_type == "application/pdf" else "a file"
        raise RequestError(
            ErrorCode.UNSUPPORTED_VALUE,
            f"`{path}.source` is {kind}, which lmx does not read: send its text as a source of the "
            'type "text", or its pages as images.',
            param=f"{path}.source",
        )


def _other_messages(turn: Turn, path: str, media: list[PartSource]) -> Iterator[dict[str, Any]]:
    content = turn.content
    if isinstance(content, str):
        yield {"role": turn.role, "content": content}
        return
    has_results = False
    for index, block in enumerate(content):
        if isinstance(block, ToolResultBlock):
            has_results = True
            yield {
                "role": "tool",
                "tool_call_id": block.tool_use_id,
                "content": _result_content(block, f"{path}[{index}].content", media),
            }
    if (shown := _content_of(content, path, media)) or not has_results:
        yield {"role": turn.role, "content": shown}


def _result_content(
    block: ToolResultBlock, path: str, media: list[PartSource]
) -> str | list[dict[str, Any]]:
    content = block.content
    made = texts_of(content) if not isinstance(content, list) else _content_of(content, path, media)
    if not block.is_error:
        return made
    if isinstance(made, str):
        return f"Error: {made}"
    return joined_texts([{"type": "text", "text": "Error:"}, *made])


def _content_of(
    blocks: Sequence[BaseModel], path: str, media: list[PartSource]
) -> str | list[dict[str, Any]]:
    """Return what a model reads and sees of blocks: one string if there are no images and files.
    ``media`` gets these."""
    pieces = [
        piece for index, block in enumerate(blocks) for piece in _pieces(block, f"{path}[{index}]")
    ]
    texts = [piece for piece in pieces if isinstance(piece, str)]
    if len(texts) == len(pieces):
        return "\n".join(texts)
    parts: list[dict[str, Any]] = []
    for piece in pieces:
        if not isinstance(piece, str):
            parts.append(placeholder(piece, media))
        elif piece:
            parts.append({"type": "text", "text": piece})
    return joined_texts(parts)


def _pieces(block: BaseModel, path: str) -> Iterator[PartSource | str]:
    """Yield what a model sees and reads of the block at ``path``."""
    if isinstance(block, ImageBlock):
        yield block.media(path)
    elif isinstance(block, DocumentBlock):
        named = block.named(path)
        if named is not None:
            yield named
        else:
            yield from block.pieces(path)
    elif (text := text_of(block)) is not None:
        yield text


def _assistant_messages(turn: Turn) -> Iterator[dict[str, Any]]:
    content = turn.content
    if isinstance(content, str):
        yield {"role": "assistant", "content": content}
        return
    # The texts of an answer are pieces of one text: nothing was between them.
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "".join(block.text for block in content if isinstance(block, TextBlock)),
    }
    thoughts = [block.thinking for block in content if isinstance(block, ThinkingBlock)]
    if any(thoughts):
        message["reasoning_content"] = "".join(thoughts)
    calls = [_call(block) for block in content if isinstance(block, ToolUseBlock)]
    if calls:
        message["tool_calls"] = calls
    yield message


def _call(block: ToolUseBlock) -> dict[str, Any]:
    function = {"name": block.name, "arguments": arguments_text(block.input)}
    return {"id": block.id, "type": "function", "function": function}

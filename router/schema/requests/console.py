"""What the page at / sends of its own."""

from typing import Annotated

from pydantic import Field

from lmx.router.schema.validation import Strict


class MarkdownRequest(Strict):
    """The body of POST /ui/markdown."""

    blocks: Annotated[list[str], Field(max_length=256)]
    """Texts, each of which is rendered by itself. The whole body has at most 256 KiB."""

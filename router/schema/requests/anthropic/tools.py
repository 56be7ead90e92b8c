"""The tools of a request in Anthropic's form, and whether any of them must be called."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import Discriminator, Field, Tag

from lmx.protocol.messages.data import ToolUse
from lmx.protocol.states import ToolChoice
from lmx.router.schema.requests.conversation.tools import MAX_TOOLS, function_object, refuse_second
from lmx.router.schema.validation import FreeObject, Strict, invalid, missing, short

_OWN: Final = "<custom>"
_HOSTED: Final = "<hosted>"

_WORDS: Final = {
    "auto": ToolChoice.AUTO,
    "any": ToolChoice.REQUIRED,
    "tool": ToolChoice.REQUIRED,
    "none": ToolChoice.NONE,
}


class ClientTool(Strict):
    """A tool that the client runs."""

    type: Literal["custom"] | None = None
    """A tool of the client's own."""
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]
    """1 to 128 letters, digits, `_`, `.` and `-`; each name once."""
    description: str | None = None
    """What the tool does, for the model."""
    input_schema: FreeObject
    """A JSON schema of the input."""
    strict: bool | None = None
    """Whether calls that need not be made are held to the schema too."""


class HostedTool(Strict):
    """A tool whose form only Anthropic's models know, or that only its servers run. It is left out,
    and named in the header `X-Lmx-Ignored`."""

    type: str
    """Its kind, such as `web_search_20250305`."""
    name: str | None = None
    """Its name."""


def _tool_tag(value: object) -> str | None:
    if isinstance(value, ClientTool):
        return _OWN
    if isinstance(value, HostedTool):
        return _HOSTED
    if not isinstance(value, dict):
        return None
    return _OWN if value.get("type") in (None, "custom") else _HOSTED


Tools = Annotated[
    list[
        Annotated[
            Annotated[ClientTool, Tag(_OWN)] | Annotated[HostedTool, Tag(_HOSTED)],
            Discriminator(_tool_tag, custom_error_type="dict_type"),
        ]
    ],
    Field(max_length=MAX_TOOLS, fail_fast=True),
]


class Choice(Strict):
    """Whether the model must call a tool."""

    type: Literal["auto", "any", "tool", "none"]
    """`auto`: it may. `any`: it must call one. `tool`: it must call the one of `name`, once.
    `none`: it can't. A call that must be made is enforced by a grammar."""
    name: str | None = None
    """The tool of the type `tool`."""
    disable_parallel_tool_use: bool | None = None
    """The answer has one call at most. Default: false."""


def tool_use_of(
    tools: Sequence[ClientTool | HostedTool] | None, choice: Choice | None
) -> ToolUse | None:
    """Return the tools and how they are to be used; None without tools.

    Raises :class:`RequestError` for two tools with the same name, and for a choice of tools that do
    not exist.
    """
    named: dict[str, dict[str, Any]] = {}
    for index, tool in enumerate(tools or ()):
        if isinstance(tool, HostedTool):
            continue
        refuse_second(tool.name, named, f"tools[{index}].name")
        named[tool.name] = function_object(
            tool.name, tool.description, tool.input_schema, tool.strict
        )
    kind = choice.type if choice else "auto"
    wanted = choice.name if choice and kind == "tool" else None
    if kind == "tool" and wanted is None:
        raise missing("tool_choice.name", "is required with the type 'tool'.")
    if wanted is not None and wanted not in named:
        raise invalid(
            "tool_choice.name", f"is not one of the `tools` that lmx knows: {short(wanted)}."
        )
    if not named:
        if kind == "any":
            raise invalid(
                "tool_choice", "asks for a call, but there are no `tools` that lmx knows."
            )
        return None
    return ToolUse(
        tools=tuple(named.values()),
        choice=_WORDS[kind],
        function=wanted,
        parallel=not (choice and choice.disable_parallel_tool_use),
    )


def hosted_tools(tools: Sequence[ClientTool | HostedTool] | None) -> list[str]:
    """Return the tools that are left out."""
    return [f"tools.{tool.type}" for tool in tools or () if isinstance(tool, HostedTool)]

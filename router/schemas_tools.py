"""The tools of a request, and whether and which of them must be called."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field, Tag

from lmx.protocol.data import ToolUse
from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.states import ToolChoice
from lmx.router.invalid import short
from lmx.router.schema_types import OBJECT, TEXT, TEXT_OR_OBJECT, FreeObject, Strict

MAX_TOOLS: Final = 1024

_WORDS: Final[dict[str, ToolChoice]] = {
    "auto": ToolChoice.AUTO,
    "none": ToolChoice.NONE,
    "required": ToolChoice.REQUIRED,
    "any": ToolChoice.REQUIRED,
}


class Function(Strict):
    """What a model is told of a function. No ``parameters``: it takes none."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: FreeObject | None = None
    strict: bool | None = None


class Tool(Strict):
    """Functions are the only kind of tool."""

    type: Literal["function"]
    function: Function


class NamedFunction(Strict):
    """A function by its name."""

    name: str


class NamedTool(Strict):
    """The choice of one tool."""

    type: Literal["function"]
    function: NamedFunction


class ToolFields(Strict):
    """OpenAI's three fields."""

    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: (
        Annotated[
            Annotated[Literal["none", "auto", "required", "any"], Tag(TEXT)]
            | Annotated[NamedTool, Tag(OBJECT)],
            TEXT_OR_OBJECT,
        ]
        | None
    ) = None
    parallel_tool_calls: bool | None = None


def tool_use_of(fields: ToolFields) -> ToolUse | None:
    """Return the tools and what is to be done with them, None without tools.

    Whether the parameters are a good schema is the worker's to judge. Raises
    :class:`RequestError`: two tools of one name, a choice among tools that are not there.
    """
    choice = fields.tool_choice
    if not fields.tools:
        if choice not in (None, "none", "auto"):
            raise RequestError(
                ErrorCode.INVALID_VALUE,
                "`tool_choice` asks for a call, but there are no `tools`.",
                param="tool_choice",
            )
        return None
    names: set[str] = set()
    for index, tool in enumerate(fields.tools):
        if tool.function.name in names:
            param = f"tools[{index}].function.name"
            raise RequestError(
                ErrorCode.INVALID_VALUE,
                f"`{param}` is the name of an earlier tool: {short(tool.function.name)}.",
                param=param,
            )
        names.add(tool.function.name)
    named = choice.function.name if isinstance(choice, NamedTool) else None
    if named is not None and named not in names:
        raise RequestError(
            ErrorCode.INVALID_VALUE,
            f"`tool_choice.function.name` is none of the `tools`: {short(named)}.",
            param="tool_choice.function.name",
        )
    return ToolUse(
        tools=tuple(_plain(tool.function) for tool in fields.tools),
        choice=(ToolChoice.REQUIRED if isinstance(choice, NamedTool) else _WORDS[choice or "auto"]),
        function=named,
        parallel=fields.parallel_tool_calls is not False,
    )


def _plain(function: Function) -> dict[str, Any]:
    # By hand: exclude_none would reach into the parameters, where null can mean something.
    given = {
        "name": function.name,
        "description": function.description,
        "parameters": function.parameters,
        "strict": function.strict,
    }
    return {
        "type": "function",
        "function": {name: value for name, value in given.items() if value is not None},
    }

"""The tools of a request, and whether any of them must be called."""

from collections.abc import Container
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

from pydantic import Discriminator, Field, Tag

from lmx.protocol.messages.data import ToolUse
from lmx.protocol.states import ToolChoice
from lmx.router.schema.validation import (
    OBJECT,
    TEXT,
    TEXT_OR_OBJECT,
    FreeObject,
    Strict,
    invalid,
    short,
)

MAX_TOOLS: Final = 1024

_ALLOWED: Final = "<allowed>"

CHOICES: Final[dict[str, ToolChoice]] = {
    "auto": ToolChoice.AUTO,
    "none": ToolChoice.NONE,
    "required": ToolChoice.REQUIRED,
    "any": ToolChoice.REQUIRED,
}


class Function(Strict):
    """What a model learns about a function."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
    """1 to 64 letters, digits, `_`, `.` and `-`; each name once."""
    description: str | None = None
    """What the function does, for the model."""
    parameters: FreeObject | None = None
    """A JSON schema of the arguments. Default: the function takes none."""
    strict: bool | None = None
    """Whether calls that need not be made are held to the schema too, from the token on that begins
    them; calls that must be made always are. Of models that begin their calls with ordinary text,
    or with none, such calls are not held to it without a form of the answer."""


class Tool(Strict):
    """Functions are the only kind of tool."""

    type: Literal["function"]
    """Functions are the only kind of tool."""
    function: Function
    """The function."""


class NamedFunction(Strict):
    """A function by its name."""

    name: str
    """The function that must be called: one of the `tools`."""


class NamedTool(Strict):
    """The choice of one tool."""

    type: Literal["function"]
    """Functions are the only kind of tool."""
    function: NamedFunction
    """The function."""


class AllowedTools(Strict):
    """Some of the tools, and whether one of them must be called."""

    mode: Literal["auto", "required"]
    """`auto`: they may be called. `required`: one of them must be."""
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]
    """Their names."""


class AllowedChoice(Strict):
    """The choice of some of the tools: the others are as if they were not there."""

    type: Literal["allowed_tools"]
    """The choice of some of the tools."""
    allowed_tools: AllowedTools
    """Which tools, and whether one must be called."""


def _choice_form(value: object) -> str | None:
    if isinstance(value, str):
        return TEXT
    if isinstance(value, AllowedChoice) or (
        isinstance(value, dict) and value.get("type") == "allowed_tools"
    ):
        return _ALLOWED
    return OBJECT if isinstance(value, dict | NamedTool) else None


class ToolFields(Strict):
    """OpenAI's three fields."""

    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    """Functions that the model may call. Their names have 1 to 64 letters, digits, `_`, `.` and
    `-`, each once. Default: none."""
    tool_choice: (
        Annotated[
            Annotated[Literal["none", "auto", "required", "any"], Tag(TEXT)]
            | Annotated[NamedTool, Tag(OBJECT)]
            | Annotated[AllowedChoice, Tag(_ALLOWED)],
            Discriminator(
                _choice_form,
                custom_error_type="text_or_object",
                custom_error_message="a string or an object",
            ),
        ]
        | None
    ) = None
    """Whether the model must call a tool. `required` (or `any`) and a function are enforced by a
    grammar, and such an answer has no `content`. A function is called once, and the answer's
    `finish_reason` is then `tool_calls`, and `stop` on `/v3`; `required` is one call or more. With
    `allowed_tools` the other tools are as if they were not there. Without `tools` only `auto` and
    `none` are accepted. Default: `auto`."""
    parallel_tool_calls: bool | None = None
    """The answer may have more than one call. Default: true."""


class FunctionFields(Strict):
    """The two fields that OpenAI's API had before tools."""

    functions: Annotated[list[Function], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    """The functions of `tools`, by the older name. The answer then has one `function_call` at most,
    and no `tool_calls`. Without effect together with `tools`. Default: none."""
    function_call: (
        Annotated[
            Annotated[Literal["none", "auto"], Tag(TEXT)] | Annotated[NamedFunction, Tag(OBJECT)],
            TEXT_OR_OBJECT,
        ]
        | None
    ) = None
    """The `tool_choice` for `functions`. Default: `auto`."""


def tool_use_of(fields: ToolFields) -> ToolUse | None:
    """Return the tools and how they are to be used; None without tools.

    The worker judges whether the parameters are a valid schema. Raises :class:`RequestError` for
    two tools with the same name, and for a choice of tools that do not exist.
    """
    choice = fields.tool_choice
    if not fields.tools:
        if choice not in (None, "none", "auto"):
            raise invalid("tool_choice", "asks for a call, but there are no `tools`.")
        return None
    names: set[str] = set()
    for index, tool in enumerate(fields.tools):
        refuse_second(tool.function.name, names, f"tools[{index}].function.name")
        names.add(tool.function.name)
    use = ToolUse(
        tools=tuple(
            function_object(one.name, one.description, one.parameters, one.strict)
            for one in (tool.function for tool in fields.tools)
        ),
        parallel=fields.parallel_tool_calls is not False,
    )
    match choice:
        case NamedTool():
            name = _known(choice.function.name, names, "tool_choice.function.name")
            return replace(use, choice=ToolChoice.REQUIRED, function=name)
        case AllowedChoice():
            allowed = tuple(
                _known(
                    tool.function.name,
                    names,
                    f"tool_choice.allowed_tools.tools[{index}].function.name",
                )
                for index, tool in enumerate(choice.allowed_tools.tools)
            )
            return replace(use, choice=CHOICES[choice.allowed_tools.mode], allowed=allowed)
        case _:
            return replace(use, choice=CHOICES[choice or "auto"])


def _known(name: str, names: Container[str], param: str) -> str:
    if name not in names:
        raise invalid(param, f"is not one of the `tools`: {short(name)}.")
    return name


def refuse_second(name: str, names: Container[str], param: str) -> None:
    """Raise :class:`RequestError` if ``names``, those of earlier tools, have this name too."""
    if name in names:
        raise invalid(param, f"is the name of an earlier tool: {short(name)}.")


def function_object(
    name: str, description: str | None, parameters: dict[str, Any] | None, strict: bool | None
) -> dict[str, Any]:
    """Return a tool as a worker takes it: OpenAI's object, without what was left out."""
    # This is done by hand: exclude_none would also change the parameters, where null has a meaning.
    given = {"name": name, "description": description, "parameters": parameters, "strict": strict}
    return {
        "type": "function",
        "function": {name: value for name, value in given.items() if value is not None},
    }

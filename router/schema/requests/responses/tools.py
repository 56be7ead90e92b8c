"""The tools of a response's request, and whether any of them must be called.

Workers know functions alone. A custom tool is a function with one argument, its input, and the
tools of a namespace are functions whose names begin with it; :class:`CalledTool` describes what a
function stands for.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from lmx.protocol.messages.data import ToolUse
from lmx.protocol.states import ToolChoice
from lmx.router.rendering.responses.tools import INPUT, CalledTool, worker_name
from lmx.router.schema.requests.conversation.tools import (
    CHOICES,
    MAX_TOOLS,
    function_object,
    refuse_second,
)
from lmx.router.schema.requests.responses.grammar import StepBudget, input_pattern
from lmx.router.schema.validation import (
    BLOCK_TYPE,
    TEXT,
    FreeObject,
    Strict,
    invalid,
    missing,
    short,
    type_of,
)

MAX_GRAMMAR_CHARS: Final = 65_536

_NAME: Final = r"^[a-zA-Z0-9_.-]{1,128}$"


class FunctionTool(Strict):
    """A function that the client runs."""

    type: Literal["function"]
    """A function."""
    name: Annotated[str, Field(pattern=_NAME)]
    """1 to 128 letters, digits, `_`, `.` and `-`; each name once."""
    description: str | None = None
    """What the function does, for the model."""
    parameters: FreeObject | None = None
    """A JSON schema of the arguments. Default: the function takes none."""
    strict: bool | None = None
    """Whether calls that need not be made are held to the schema too. Default: false."""


class TextFormat(Strict):
    """An input of any text."""

    type: Literal["text"]
    """Any text."""


class GrammarFormat(Strict):
    """An input that follows a grammar."""

    type: Literal["grammar"]
    """A grammar."""
    syntax: Literal["lark", "regex"]
    """What the definition is written in."""
    definition: Annotated[str, Field(min_length=1, max_length=MAX_GRAMMAR_CHARS)]
    """The grammar, or the regular expression. It is enforced, also where the call need not be
    made."""


class CustomTool(Strict):
    """A tool that the client runs and that takes a text."""

    type: Literal["custom"]
    """A tool that takes a text."""
    name: Annotated[str, Field(pattern=_NAME)]
    """1 to 128 letters, digits, `_`, `.` and `-`; each name once."""
    description: str | None = None
    """What the tool does, for the model."""
    format: (
        Annotated[
            Annotated[TextFormat, Tag("<text>")] | Annotated[GrammarFormat, Tag("<grammar>")],
            Discriminator(
                lambda value: f"<{type_of(value)}>",
                custom_error_type=BLOCK_TYPE,
                custom_error_message="a form",
            ),
        ]
        | None
    ) = None
    """The form of its input. Default: any text."""


class ServerTool(Strict):
    """A tool that only OpenAI's servers run. It is left out, and named in the header
    `X-Lmx-Ignored`."""

    type: str
    """Its kind, such as `web_search`."""


def _tag(*kinds: str) -> Discriminator:
    def tag(value: object) -> str | None:
        kind = type_of(value)
        if not isinstance(kind, str):
            return None
        return f"<{kind}>" if kind in kinds else "<hosted>"

    return Discriminator(tag, custom_error_type=BLOCK_TYPE, custom_error_message="a tool")


def flat_tool(tool: Any) -> Any:
    """Return a function in the form of this API if it has that of chat completions."""
    if isinstance(tool, dict) and isinstance(function := tool.get("function"), dict):
        return {**function, "type": tool.get("type")}
    return tool


class NamespaceTool(Strict):
    """A group of tools. Each of its functions and custom tools may be called."""

    type: Literal["namespace"]
    """A group."""
    name: Annotated[str, Field(pattern=_NAME)]
    """The name of the group."""
    description: str | None = None
    """What the tools are for, for the model."""
    tools: Annotated[
        list[
            Annotated[
                Annotated[FunctionTool, Tag("<function>")]
                | Annotated[CustomTool, Tag("<custom>")]
                | Annotated[ServerTool, Tag("<hosted>")],
                _tag("function", "custom"),
            ]
        ],
        Field(max_length=MAX_TOOLS, fail_fast=True),
    ]
    """The tools."""


Tool = FunctionTool | CustomTool | NamespaceTool | ServerTool

Tools = Annotated[
    list[
        Annotated[
            Annotated[FunctionTool, Tag("<function>")]
            | Annotated[CustomTool, Tag("<custom>")]
            | Annotated[NamespaceTool, Tag("<namespace>")]
            | Annotated[ServerTool, Tag("<hosted>")],
            _tag("function", "custom", "namespace"),
            BeforeValidator(flat_tool),
        ]
    ],
    Field(max_length=MAX_TOOLS, fail_fast=True),
]


class ToolReference(Strict):
    """A tool by its kind and name."""

    type: str
    """`function` or `custom`. Tools of other kinds are not there to be chosen."""
    name: str | None = None
    """The name of a function or a custom tool."""
    namespace: str | None = None
    """The namespace that it is in."""


class AllowedReferences(Strict):
    """The choice of some of the tools: the others are as if they were not there."""

    type: Literal["allowed_tools"]
    """The choice of some of the tools."""
    mode: Literal["auto", "required"] = "auto"
    """`auto`: they may be called. `required`: one of them must be."""
    tools: Annotated[
        list[Annotated[ToolReference, BeforeValidator(flat_tool)]],
        Field(max_length=MAX_TOOLS, fail_fast=True),
    ]
    """The tools."""


def _choice_form(value: object) -> str | None:
    if isinstance(value, str):
        return TEXT
    if type_of(value) == "allowed_tools":
        return "<allowed>"
    return "<tool>" if isinstance(value, dict | ToolReference) else None


Choice = Annotated[
    Annotated[Literal["none", "auto", "required", "any"], Tag(TEXT)]
    | Annotated[ToolReference, BeforeValidator(flat_tool), Tag("<tool>")]
    | Annotated[AllowedReferences, Tag("<allowed>")],
    Discriminator(
        _choice_form,
        custom_error_type="text_or_object",
        custom_error_message="a string or an object",
    ),
]


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """The tools of a request, as its worker and its answer need them."""

    use: ToolUse | None
    """How the model may use them; None without tools."""
    called: Mapping[str, CalledTool]
    """What the functions stand for that a worker knows, by their names."""
    left_out: Sequence[str]
    """What was left out, for the header."""


def offered_tools(
    tools: Sequence[Tool], further: Sequence[Tool], choice: Choice | None, *, parallel: bool
) -> OfferedTools:
    """Return a request's tools. ``further`` are those of its input, of which those with a name that
    is there already are skipped.

    Raises :class:`RequestError` for two of ``tools`` with the same name, for a grammar that can't
    be enforced, and for a choice of a tool that does not exist.
    """
    called: dict[str, CalledTool] = {}
    functions: list[dict[str, Any]] = []
    left_out: list[str] = []
    budget = StepBudget()
    for source, param in ((tools, "tools"), (further, "")):
        for place, tool, namespace in _flattened(source, param):
            if isinstance(tool, ServerTool):
                left_out.append(f"tools.{tool.type}")
                continue
            name = worker_name(tool.name, None if namespace is None else namespace.name)
            if param:
                refuse_second(name, called, f"{place}.name")
            elif name in called:
                continue
            called[name] = CalledTool(
                tool.name,
                None if namespace is None else namespace.name,
                custom=isinstance(tool, CustomTool),
            )
            functions.append(_function(name, tool, namespace, place, budget))
    return _chosen(functions, called, left_out, choice, parallel=parallel)


def _flattened(
    tools: Sequence[Tool], param: str
) -> Iterator[tuple[str, FunctionTool | CustomTool | ServerTool, NamespaceTool | None]]:
    for index, tool in enumerate(tools):
        place = f"{param or 'input.tools'}[{index}]"
        if isinstance(tool, NamespaceTool):
            for inner, one in enumerate(tool.tools):
                yield f"{place}.tools[{inner}]", one, tool
        else:
            yield place, tool, None


def _function(
    name: str,
    tool: FunctionTool | CustomTool,
    namespace: NamespaceTool | None,
    place: str,
    budget: StepBudget,
) -> dict[str, Any]:
    texts = [namespace.description if namespace else None, tool.description]
    if isinstance(tool, FunctionTool):
        about = "\n".join(filter(None, texts)) or None
        return function_object(name, about, tool.parameters, tool.strict)
    value: dict[str, Any] = {"type": "string"}
    form = tool.format if isinstance(tool.format, GrammarFormat) else None
    if form is not None:
        texts.append(f"The input has this form ({form.syntax}):\n{form.definition}")
        param = f"{place}.format.definition"
        value["pattern"] = input_pattern(form.syntax, form.definition, param, budget)
    about = "\n".join(filter(None, texts)) or None
    parameters = {
        "type": "object",
        "properties": {INPUT: value},
        "required": [INPUT],
        "additionalProperties": False,
    }
    return function_object(name, about, parameters, True)


def _chosen(
    functions: list[dict[str, Any]],
    called: Mapping[str, CalledTool],
    left_out: list[str],
    choice: Choice | None,
    *,
    parallel: bool,
) -> OfferedTools:
    word, function, allowed = ToolChoice.AUTO, None, None
    match choice:
        case str():
            word = CHOICES[choice]
        case ToolReference():
            function = _named(choice, called, "tool_choice", left_out)
            word = ToolChoice.AUTO if function is None else ToolChoice.REQUIRED
        case AllowedReferences():
            word = CHOICES[choice.mode]
            names = [
                _named(tool, called, f"tool_choice.tools[{index}]", left_out)
                for index, tool in enumerate(choice.tools)
            ]
            allowed = tuple(name for name in names if name is not None)
    if word is ToolChoice.REQUIRED and not (functions if allowed is None else allowed):
        raise invalid("tool_choice", "asks for a call, but there are no `tools` that lmx knows.")
    if not functions:
        return OfferedTools(None, called, left_out)
    use = ToolUse(
        tools=tuple(functions), choice=word, function=function, parallel=parallel, allowed=allowed
    )
    return OfferedTools(use, called, left_out)


def _named(
    tool: ToolReference, called: Mapping[str, CalledTool], param: str, left_out: list[str]
) -> str | None:
    """Return the name that a worker knows a tool by; None for one that only OpenAI runs."""
    if tool.type not in ("function", "custom"):
        left_out.append(f"tool_choice.{tool.type}")
        return None
    if tool.name is None:
        raise missing(f"{param}.name", f"is required with the type '{tool.type}'.")
    name = worker_name(tool.name, tool.namespace)
    if name not in called:
        raise invalid(
            f"{param}.name", f"is not one of the `tools` that lmx knows: {short(tool.name)}."
        )
    return name

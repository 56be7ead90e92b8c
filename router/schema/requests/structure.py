"""The form that an answer must have, under all the names by which clients request one."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

import orjson
from pydantic import Field

from lmx.protocol.messages.data import Structure
from lmx.protocol.states import StructureKind
from lmx.router.http.bodies.json_body import MAX_DEPTH, too_deep
from lmx.router.schema.validation import (
    FreeObject,
    NonEmpty,
    Strict,
    TextOrObject,
    invalid,
    missing,
)

MAX_CHOICES: Final = 10_000
MAX_FORM_CHARS: Final = 2**20
"""The limit for a form as text. Workers have lower limits for most forms. The form is sent to the
worker once for each prompt."""
MAX_WHITESPACE_CHARS: Final = 256


class JsonSchemaFormat(Strict):
    """OpenAI's wrapping of a schema."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")] | None = None
    """It is accepted, for the client's own use. It may be left out."""
    description: str | None = None
    """It is accepted, for the client's own use."""
    strict: bool | None = None
    """It is accepted: a schema is always enforced."""
    schema_: Annotated[FreeObject, Field(alias="schema")]
    """A JSON schema. What no grammar enforces of it is checked when the answer is whole."""


class ResponseFormat(Strict):
    """OpenAI's way to ask for JSON."""

    type: Literal["text", "json_object", "json_schema"]
    """Which form the answer has."""
    json_schema: JsonSchemaFormat | None = None
    """The schema of the type `json_schema`, in OpenAI's wrapping."""
    schema_: Annotated[FreeObject | None, Field(alias="schema")] = None
    """A schema next to the type `json_object` or `json_schema`: Together's, Fireworks' and
    llama.cpp's way."""


_Choices = Annotated[list[NonEmpty], Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True)]


_Whitespace = Annotated[str, Field(max_length=MAX_WHITESPACE_CHARS)]


class StructuredOutputs(Strict):
    """vLLM's way to ask for one of several forms."""

    json_: Annotated[TextOrObject | None, Field(alias="json")] = None
    """A JSON schema, or its text."""
    json_object: bool | None = None
    """The answer is some JSON object."""
    regex: NonEmpty | None = None
    """A regular expression that the whole answer matches."""
    choice: _Choices | None = None
    """The answer is one of these."""
    grammar: NonEmpty | None = None
    """A grammar that the answer follows: Lark or GBNF."""
    whitespace_pattern: _Whitespace | None = None
    """A regular expression for each stretch of white space in the JSON, which may always be left
    out. Default: one space, or a line break with its indentation."""


class StructureFields(Strict):
    """At most one of these may ask for a form."""

    response_format: ResponseFormat | None = None
    """Text, JSON, or JSON that a schema describes. A schema is always enforced, `strict` or not.
    Enforced formats are date-time, time, date, duration, email, hostname, ipv4, ipv6, uuid and uri;
    others are remarks, as JSON Schema has it."""
    structured_outputs: StructuredOutputs | None = None
    """One of several forms, which is enforced: vLLM's way."""
    guided_json: TextOrObject | None = None
    """The older name of `structured_outputs.json`."""
    guided_regex: NonEmpty | None = None
    """The older name of `structured_outputs.regex`."""
    guided_choice: _Choices | None = None
    """The older name of `structured_outputs.choice`."""
    guided_grammar: NonEmpty | None = None
    """The older name of `structured_outputs.grammar`."""
    guided_whitespace_pattern: _Whitespace | None = None
    """The older name of `structured_outputs.whitespace_pattern`."""
    grammar: str | None = None
    """A grammar that the answer follows (Lark or GBNF); an empty one asks for none. The name is
    llama.cpp's."""
    json_schema: TextOrObject | None = None
    """A JSON schema, or its text. The name is llama.cpp's."""


def structure_of(fields: StructureFields) -> Structure | None:
    """Return the form that is requested, None for free text.

    The worker judges what is inside a schema, an expression or a grammar. Raises
    :class:`RequestError` for more than one form, and for a wrapping without its content.
    """
    asked = list(_all_asked(fields))
    if len(asked) > 1:
        raise invalid(
            asked[1].param, f"can't be combined with `{asked[0].param}`: an answer has one form."
        )
    if asked and len(asked[0].text) > MAX_FORM_CHARS:
        raise invalid(
            asked[0].param,
            f"has {len(asked[0].text)} characters as JSON, and may have at most "
            f"{MAX_FORM_CHARS}: ask for a smaller form.",
        )
    return _with_whitespace(fields, asked[0]) if asked else None


def _with_whitespace(fields: StructureFields, structure: Structure) -> Structure:
    """Return the form with the white space that its JSON may have, if a request sets it."""
    outputs, older = fields.structured_outputs, fields.guided_whitespace_pattern
    newer = outputs.whitespace_pattern if outputs is not None else None
    return replace(structure, whitespace=older if newer is None else newer)


def _all_asked(fields: StructureFields) -> Iterator[Structure]:
    if fields.response_format is not None:
        yield from _of_response_format(fields.response_format)
    if (outputs := fields.structured_outputs) is not None:
        found = list(
            _of_values(
                "structured_outputs.", outputs.json_, outputs.regex, outputs.choice, outputs.grammar
            )
        )
        if outputs.json_object:
            found.append(Structure(StructureKind.JSON_OBJECT, "", "structured_outputs.json_object"))
        if not found:
            raise missing(
                "structured_outputs",
                "must hold one of json, json_object, regex, choice and grammar.",
            )
        yield from found
    yield from _of_values(
        "guided_",
        fields.guided_json,
        fields.guided_regex,
        fields.guided_choice,
        fields.guided_grammar,
    )
    if fields.json_schema is not None:
        yield _of_schema(fields.json_schema, "json_schema")
    if fields.grammar:
        yield Structure(StructureKind.GRAMMAR, fields.grammar, "grammar")


def _of_response_format(wanted: ResponseFormat) -> Iterator[Structure]:
    if wanted.schema_ is not None and wanted.json_schema is not None:
        raise invalid(
            "response_format.schema",
            "can't be combined with `response_format.json_schema`: an answer has one form.",
        )
    if wanted.schema_ is not None and wanted.type != "text":
        yield _of_schema(wanted.schema_, "response_format.schema")
    elif wanted.type == "json_object":
        yield Structure(StructureKind.JSON_OBJECT, "", "response_format")
    elif wanted.type == "json_schema":
        if wanted.json_schema is None:
            raise missing("response_format.json_schema", "is required with the type 'json_schema'.")
        yield Structure(
            StructureKind.JSON_SCHEMA,
            _json(wanted.json_schema.schema_),
            "response_format.json_schema.schema",
        )


def _of_values(
    prefix: str,
    schema: str | dict[str, Any] | None,
    regex: str | None,
    choice: list[str] | None,
    grammar: str | None,
) -> Iterator[Structure]:
    if schema is not None:
        yield _of_schema(schema, f"{prefix}json")
    if regex is not None:
        yield Structure(StructureKind.REGEX, regex, f"{prefix}regex")
    if choice is not None:
        yield Structure(StructureKind.CHOICE, _json(choice), f"{prefix}choice")
    if grammar is not None:
        yield Structure(StructureKind.GRAMMAR, grammar, f"{prefix}grammar")


def _of_schema(schema: str | dict[str, Any], param: str) -> Structure:
    text = _schema_text(schema, param) if isinstance(schema, str) else _json(schema)
    return Structure(StructureKind.JSON_SCHEMA, text, param)


def _schema_text(text: str, param: str) -> str:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise invalid(param, f"is not valid JSON: {error.msg}.") from error
    if not isinstance(value, dict) or too_deep(text.encode(), value):
        raise invalid(
            param, f"must be a JSON schema: an object, nested at most {MAX_DEPTH} levels deep."
        )
    return text


def _json(value: object) -> str:
    return orjson.dumps(value).decode()

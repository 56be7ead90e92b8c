"""The schemas of requests, from the models that check them, and of answers, from their shapes."""

import ast
import inspect
import re
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import pairwise
from typing import Any, Final

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from lmx.protocol.host.python_source import python_tree

_ROLE: Final = re.compile(r":[a-z]+:`~?(?:[\w.]*\.)?(\w+)`")
"""Sphinx's markup for a name in the code, as docstrings use it."""


class Schemas:
    """The schemas of all given types. ``components`` are the named ones; :meth:`of` returns a
    type's own schema, which is mostly a reference."""

    def __init__(self, types: Iterable[Any]) -> None:
        adapters = {_key(one): TypeAdapter(one) for one in types}
        own, whole = TypeAdapter.json_schemas(
            [(key, "validation", adapter) for key, adapter in adapters.items()],
            ref_template="#/components/schemas/{model}",
            schema_generator=_Generator,
        )
        self.components: dict[str, Any] = whole.get("$defs", {})
        self._own: dict[str, JsonSchemaValue] = {key: schema for (key, _), schema in own.items()}

    def of(self, one: Any) -> dict[str, Any]:
        """Return the schema of one of the types."""
        return self._own[_key(one)]


class _Generator(GenerateJsonSchema):
    # A title that repeats the field's name, and a default of null, would be of no use to readers.
    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        made = super().default_schema(schema)
        if made.get("default", ...) is None:
            del made["default"]
        return made

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        made = super().model_schema(schema)
        model: type[BaseModel] = schema["cls"]
        names = {name: field.alias or name for name, field in model.model_fields.items()}
        return _explained(made, model, names)

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        made = super().typed_dict_schema(schema)
        # Answers may gain fields: a client must not refuse what it does not know.
        made.pop("additionalProperties", None)
        return _explained(made, schema["cls"], {name: name for name in schema["fields"]})

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        made = super().dataclass_schema(schema)
        # Only answers have dataclasses. They are written with all fields, and may gain others.
        made["required"] = list(made["properties"])
        made.pop("additionalProperties", None)
        return _explained(made, schema["cls"], {name: name for name in made["properties"]})


def _explained(made: JsonSchemaValue, cls: Any, names: Mapping[str, str]) -> JsonSchemaValue:
    """Return the schema of a class with the meanings of its fields. ``names`` are those that the
    fields have in JSON."""
    if "description" in made:
        made["description"] = _unwrapped(made["description"])
    meanings = field_docstrings(cls)
    for field, name in names.items():
        its = made["properties"][name]
        if field in meanings:
            its.setdefault("description", meanings[field])
        if "description" in its:
            its["description"] = _unwrapped(its["description"])
    return made


def _unwrapped(docstring: str) -> str:
    """Return a docstring as Markdown: its paragraphs, each on one line."""
    text = _ROLE.sub(r"`\1`", docstring).replace("``", "`")
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def _key(one: Any) -> str:
    return repr(one)


@cache
def field_docstrings(cls: type) -> dict[str, str]:
    """Return the docstring of each field of a model or a ``TypedDict`` that has one, including
    inherited fields. A class whose source is missing has none.

    They are read from the source when they are needed. Pydantic can read them itself
    (``use_attribute_docstrings``), but does so as it makes each class: that costs 0.1 s at every
    start of a router, whose description is rarely requested.
    """
    found: dict[str, str] = {}
    # The bases of a TypedDict are kept there alone.
    for base in reversed(cls.__dict__.get("__orig_bases__", cls.__bases__)):
        if isinstance(base, type) and base not in (BaseModel, object):
            found |= field_docstrings(base)
    return found | _own(cls)


def _own(cls: type) -> dict[str, str]:
    definition = _classes(cls.__module__).get(cls.__name__)
    if definition is None:
        return {}
    found = {}
    for field, docstring in pairwise(definition.body):
        match field, docstring:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str() as text)),
            ):
                found[name] = inspect.cleandoc(text)
    return found


@cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    """Read a module's source once: ``inspect.getsource`` would for each of its classes."""
    try:
        source = inspect.getsource(sys.modules[module])
    except OSError:
        return {}
    return {node.name: node for node in ast.walk(python_tree(source)) if type(node) is ast.ClassDef}

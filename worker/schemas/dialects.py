"""Rewrites JSON schemas of any draft as one that stands alone, in draft 2020-12. Pure.

The meaning of a schema is not changed; a schema that can't be read is refused, with the place of
the fault.
"""

import itertools
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote, urljoin

Schema = dict[str, Any] | bool

ROOT: Final = "#"
_OLD_DRAFTS: Final = ("draft-04", "draft-06", "draft-07")
VALUES: Final = frozenset({"const", "enum", "default", "examples"})
TYPES: Final = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
IN_PLACE: Final = ("allOf", "anyOf", "oneOf")
"""Keywords with schemas for the same value."""
_IN_PLACE_ONE: Final = ("not", "if", "then", "else")

# The formats that llguidance enforces. In JSON Schema any other is a remark, and pydantic writes
# such ("password", "binary").
FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
)

_SHORT: Final = 60
# The place of an item in a JSON pointer.
_PLACE: Final = re.compile(r"0|[1-9][0-9]{0,9}")
# llguidance can't count much further. No answer has more of anything.
_MAX_COUNT: Final = 2**31 - 1


class SchemaFault(Exception):
    """A schema can't be used. ``place`` is the place of the fault, as a JSON pointer."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"{reason}, at {place}")


@dataclass(frozen=True, slots=True)
class Standalone:
    """A schema with only the assertions of draft 2020-12. Every reference points into its ``$defs``
    or to the root."""

    schema: dict[str, Any]
    places: Mapping[int, str]
    """Where its objects were in the original, as JSON pointers by their identity."""

    def resolve(self, ref: str) -> Schema:
        """Return the schema to which a reference points."""
        definitions: Mapping[str, Schema] = self.schema.get("$defs", {})
        return self.schema if ref == ROOT else definitions[ref.rpartition("/")[2]]


def standalone(schema: Mapping[str, Any]) -> Standalone:
    """Return a schema with the same meaning that stands alone.

    Raises :class:`SchemaFault` for content that no draft knows, and for references to other
    documents.
    """
    return _Reader(schema).read()


def in_place(schema: Schema, several: Sequence[str] = IN_PLACE) -> Iterator[Schema]:
    """Yield the schemas that a schema has for the same value, except its reference. ``several`` are
    the keywords with a list of schemas that count."""
    if isinstance(schema, dict):
        for key in several:
            yield from schema.get(key, ())
        for key in _IN_PLACE_ONE:
            if key in schema:
                yield schema[key]
        yield from schema.get("dependentSchemas", {}).values()


class _Reader:
    """Reads one document."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._root = schema
        declared = schema.get("$schema")
        declared = declared if isinstance(declared, str) else ""
        self._old = any(draft in declared for draft in _OLD_DRAFTS)
        self._base = ""
        self._resources: dict[str, tuple[Any, str]] = {}
        self._anchors: dict[tuple[str, str], list[tuple[Any, str]]] = {}
        self._dynamic: dict[str, int] = {}
        self._find_names(schema, "", True)
        # The targets of references, by their identity in the document.
        self._names: dict[int, str] = {}
        self._places: dict[int, str] = {}
        self._waiting: list[tuple[Any, str, str]] = []
        self._base = self._own_base(schema, "")

    def read(self) -> Standalone:
        whole = self._schema(self._root, ROOT, "")
        if not isinstance(whole, dict):
            raise SchemaFault(ROOT, "no answer satisfies `false`")
        definitions: dict[str, Schema] = {}
        while self._waiting:
            node, base, place = self._waiting.pop()
            definitions[self._names[id(node)]] = self._schema(node, place, base)
        if definitions:
            whole["$defs"] = definitions
        made = Standalone(whole, self._places)
        _refuse_circles(made)
        return made

    # References.

    def _own_base(self, node: Mapping[str, Any], base: str) -> str:
        if self._old and "$ref" in node:
            return base
        own = node.get("$id", node.get("id"))
        return _joined(base, own) if isinstance(own, str) and own else base

    def _find_names(self, node: Any, base: str, is_root: bool) -> None:
        if isinstance(node, list):
            for one in node:
                self._find_names(one, base, False)
        if not isinstance(node, dict):
            return
        base = self._own_base(node, base)
        document, fragment = _split(base)
        if fragment and not is_root:
            # An anchor, as drafts 6 and 7 wrote it.
            self._anchors.setdefault((document, fragment), []).append((node, document))
            base = document
        elif is_root or isinstance(node.get("$id", node.get("id")), str):
            self._resources.setdefault(document, (node, document))
        for key in ("$anchor", "$dynamicAnchor"):
            if isinstance(node.get(key), str):
                self._anchors.setdefault((document, node[key]), []).append((node, document))
                if key == "$dynamicAnchor":
                    self._dynamic[node[key]] = self._dynamic.get(node[key], 0) + 1
        if node.get("$recursiveAnchor") is True:
            self._dynamic[""] = self._dynamic.get("", 0) + 1
        for key, value in node.items():
            if key not in VALUES:
                self._find_names(value, base, False)

    def _reference(self, ref: Any, place: str, base: str) -> str | bool:
        """Return a reference to the schema in the new document, or itself if true or false."""
        if not isinstance(ref, str):
            raise SchemaFault(place, "a reference is a string")
        document, fragment = _split(_joined(base, ref) if not ref.startswith("#") else base)
        if ref.startswith("#"):
            fragment = ref[1:]
        resource = self._resources.get(document)
        if resource is None:
            raise SchemaFault(place, f"{short(ref)!r} is in another document, which is not fetched")
        if fragment and not fragment.startswith("/"):
            found = self._anchors.get((document, fragment), ())
            if len(found) != 1:
                raise SchemaFault(place, f"there is no one place that {short(ref)!r} names")
            node, base = found[0]
        else:
            node, base = self._pointed(resource, fragment, place, ref)
        if node is self._root:
            return ROOT
        if isinstance(node, bool):
            return node
        if not isinstance(node, dict):
            raise SchemaFault(place, f"{short(ref)!r} is no schema")
        name = self._names.get(id(node))
        if name is None:
            name = self._names[id(node)] = str(len(self._names))
            self._waiting.append((node, base, ref))
        return f"#/$defs/{name}"

    def _moves(self, ref: Any) -> bool:
        """Return whether the meaning of a dynamic reference depends on how it is reached."""
        anchor = _split(ref)[1] if isinstance(ref, str) else ""
        return self._dynamic.get(anchor, 0) > 1

    def _pointed(
        self, resource: tuple[Any, str], pointer: str, place: str, ref: str
    ) -> tuple[Any, str]:
        node, base = resource
        for raw in pointer.split("/")[1:]:
            step = unquote(raw).replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict) and step in node:
                node = node[step]
            elif isinstance(node, list) and _PLACE.fullmatch(step) and int(step) < len(node):
                node = node[int(step)]
            else:
                raise SchemaFault(place, f"there is nothing at {short(ref)!r}")
            if isinstance(node, dict):
                base = _split(self._own_base(node, base))[0]
        return node, base

    # Schemas.

    def _schema(self, node: Any, place: str, base: str) -> Schema:
        if isinstance(node, bool):
            return node
        if not isinstance(node, dict):
            raise SchemaFault(place, "a schema is an object, true or false")
        base = _split(self._own_base(node, base))[0] or base
        made: dict[str, Any] = {}
        self._places[id(made)] = place
        for key in ("$ref", "$recursiveRef", "$dynamicRef"):
            if key in node:
                if key != "$ref" and self._moves(node[key]):
                    reason = f"`{key}` may mean several places here, which can't be enforced"
                    raise SchemaFault(place, reason)
                found = self._reference(node[key], f"{place}/{key}", base)
                if found is False:
                    return False
                if found is not True:
                    made["$ref"] = found
                if self._old and key == "$ref":
                    # In those drafts everything next to a reference is ignored.
                    return made
        for key, value in node.items():
            read = _READERS.get(key)
            if read is not None:
                read(self, made, key, value, f"{place}/{pointer_step(key)}", base)
        if isinstance(node.get("items"), list) and "additionalItems" in node:
            made["items"] = self._schema(node["additionalItems"], f"{place}/additionalItems", base)
        for key, limit in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            # In draft 4 this is a boolean about the other limit.
            if node.get(key) is True and limit in made:
                made[key] = made.pop(limit)
        return made

    def _one(self, made: dict[str, Any], key: str, value: Any, place: str, base: str) -> None:
        made[key] = self._schema(value, place, base)

    def _items(self, made: dict[str, Any], key: str, value: Any, place: str, base: str) -> None:
        if isinstance(value, list):
            if value:
                self._several(made, "prefixItems", value, place, base)
        else:
            made[key] = self._schema(value, place, base)

    def _several(self, made: dict[str, Any], key: str, value: Any, place: str, base: str) -> None:
        if not isinstance(value, list) or not value:
            raise SchemaFault(place, f"`{key}` is an array of one schema or more")
        made[key] = [self._schema(one, f"{place}/{n}", base) for n, one in enumerate(value)]

    def _by_name(self, made: dict[str, Any], key: str, value: Any, place: str, base: str) -> None:
        if not isinstance(value, dict):
            raise SchemaFault(place, f"`{key}` is an object of schemas")
        made[key] = {
            ecma(name) if key == "patternProperties" else name: self._schema(
                one, f"{place}/{pointer_step(name)}", base
            )
            for name, one in value.items()
        }

    def _dependencies(
        self, made: dict[str, Any], key: str, value: Any, place: str, base: str
    ) -> None:
        if not isinstance(value, dict):
            raise SchemaFault(place, f"`{key}` is an object")
        for name, needed in value.items():
            at = f"{place}/{pointer_step(name)}"
            if isinstance(needed, str):
                needed = [needed]
            if isinstance(needed, list):
                _names(needed, at)
                made.setdefault("dependentRequired", {})[name] = needed
            elif key == "dependentRequired":
                raise SchemaFault(at, "names are an array of strings")
            else:
                made.setdefault("dependentSchemas", {})[name] = self._schema(needed, at, base)

    def _required(self, made: dict[str, Any], key: str, value: Any, place: str, base: str) -> None:
        _names(value, place)
        if value:
            made[key] = list(dict.fromkeys(value))

    def _type(self, made: dict[str, Any], key: str, value: Any, place: str, base: str) -> None:
        types = value if isinstance(value, list) else [value]
        for one in types:
            if not isinstance(one, str) or one not in TYPES:
                raise SchemaFault(place, f"there is no type {short(one)!r}")
        if not types:
            raise SchemaFault(place, "there is no type")
        made[key] = value

    def _enum(self, made: dict[str, Any], key: str, value: Any, place: str, base: str) -> None:
        if not isinstance(value, list) or not value:
            raise SchemaFault(place, "`enum` is an array that is not empty")
        self._value(made, key, value, place, base)

    def _value(self, made: dict[str, Any], key: str, value: Any, place: str, base: str) -> None:
        if not _is_writable(value):
            raise SchemaFault(place, "a number in it is too large, or is not finite")
        made[key] = value

    def _count(self, made: dict[str, Any], key: str, value: Any, place: str, base: str) -> None:
        if not _is_number(value) or value < 0 or value % 1:
            raise SchemaFault(place, f"`{key}` is a whole number, 0 or more")
        if value <= _MAX_COUNT:
            made[key] = int(value)
        elif key.startswith("min"):
            raise SchemaFault(place, f"no answer is that long: `{key}` is more than {_MAX_COUNT}")

    def _number(self, made: dict[str, Any], key: str, value: Any, place: str, base: str) -> None:
        if isinstance(value, bool) and key.startswith("exclusive"):
            return
        if not _is_number(value) or (key == "multipleOf" and value <= 0):
            raise SchemaFault(place, f"`{key}` is a number{' above 0' * (key == 'multipleOf')}")
        made[key] = value

    def _text(self, made: dict[str, Any], key: str, value: Any, place: str, base: str) -> None:
        if not isinstance(value, str):
            raise SchemaFault(place, f"`{key}` is a string")
        if key == "pattern":
            made[key] = ecma(value)
        elif value in FORMATS:
            made[key] = value

    def _flag(self, made: dict[str, Any], key: str, value: Any, place: str, base: str) -> None:
        if not isinstance(value, bool):
            raise SchemaFault(place, f"`{key}` is true or false")
        if value:
            made[key] = value


_Read = Callable[[_Reader, dict[str, Any], str, Any, str, str], None]

_READERS: Final[Mapping[str, _Read]] = {
    **dict.fromkeys(
        (
            "additionalProperties",
            "contains",
            "propertyNames",
            "unevaluatedItems",
            "unevaluatedProperties",
            *_IN_PLACE_ONE,
        ),
        _Reader._one,
    ),
    **dict.fromkeys((*IN_PLACE, "prefixItems"), _Reader._several),
    **dict.fromkeys(("properties", "patternProperties"), _Reader._by_name),
    **dict.fromkeys(
        ("dependencies", "dependentRequired", "dependentSchemas"), _Reader._dependencies
    ),
    **dict.fromkeys(
        (
            "minLength",
            "maxLength",
            "minItems",
            "maxItems",
            "minProperties",
            "maxProperties",
            "minContains",
            "maxContains",
        ),
        _Reader._count,
    ),
    **dict.fromkeys(
        ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        _Reader._number,
    ),
    **dict.fromkeys(("pattern", "format"), _Reader._text),
    "items": _Reader._items,
    "required": _Reader._required,
    "type": _Reader._type,
    "enum": _Reader._enum,
    "const": _Reader._value,
    "uniqueItems": _Reader._flag,
}
"""How the value of each keyword is read. Any other keyword does not restrict an answer."""


def ecma(pattern: str) -> str:
    """Return a regular expression that has its ECMAScript meaning in other engines too. In
    ECMAScript digits and word characters are ASCII, and characters beyond 16 bits are two
    escapes."""
    made: list[str] = []
    inside = was_class = False
    # Whether a range may begin with the atom before, or ends with this one.
    begins = ends = False
    atoms = _ATOM.findall(pattern)
    for atom, following in itertools.pairwise([*atoms, ""]):
        if inside and atom == "-" and not was_class and begins and following not in _NO_RANGE_END:
            made.append(atom)
            begins, ends = False, True
            continue
        # No range begins or ends with a class.
        literal = was_class or not begins or following in _CLASSES
        if inside and (atom in _SET_SIGNS or (atom == "-" and literal)):
            # Other engines read `[`, `&&`, `~~` and `--` as operators.
            made.append(f"\\{atom}")
            begins, ends, was_class = not ends, False, False
            continue
        first = not inside or (atom == "^" and made[-1] == "[")
        was_class = inside and atom in _CLASSES
        begins, ends = not (first or was_class or ends), False
        if atom.startswith("\\u"):
            atom = _character(atom)
        elif atom in _ASCII:
            atom = _ASCII[atom] if inside else f"[{_ASCII[atom]}]"
        elif atom in _NOT_ASCII and not inside:
            atom = _NOT_ASCII[atom]
        elif atom == "\\/":
            atom = "/"
        elif atom in "[]":
            inside = atom == "[" or (inside and atom != "]")
        made.append(atom)
    return "".join(made)


def _character(escape: str) -> str:
    """Return the expression for the character of one or two ``\\u`` escapes. What is no such escape
    stays as it is, and so no engine accepts it."""
    if escape.startswith("\\u{"):
        number = int(escape[3:-1], 16)
        if number > sys.maxunicode:
            return escape
        code_units = chr(number).encode("utf-16-be", "surrogatepass")
    else:
        code_units = bytes.fromhex(escape.replace("\\u", ""))
    return re.escape(code_units.decode("utf-16-be", "replace")) or escape


_ATOM: Final = re.compile(
    r"\\u\{[0-9a-fA-F]+\}|"
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.|[\s\S]"
)
_ASCII: Final = {r"\d": "0-9", r"\w": "A-Za-z0-9_"}
_CLASSES: Final = (r"\d", r"\w", r"\s", r"\D", r"\W", r"\S")
_SET_SIGNS: Final = ("[", "&", "~")
_NO_RANGE_END: Final = ("]", *_CLASSES)
_NOT_ASCII: Final = {r"\D": "[^0-9]", r"\W": "[^A-Za-z0-9_]"}


def _joined(base: str, reference: str) -> str:
    """Return a URI that is relative to ``base``. One that can't be read stays as it is, and so
    leads to another document."""
    try:
        return urljoin(base, reference)
    except ValueError:
        return reference


def _split(uri: str) -> tuple[str, str]:
    """Return the document that a URI leads to, and the place in it."""
    document, _, fragment = uri.partition("#")
    return document, fragment


def pointer_step(name: str) -> str:
    """Return a name in the form of a step of a JSON pointer."""
    return short(name).replace("~", "~0").replace("/", "~1")


def short(value: object) -> str:
    """Return a value in the form in which errors show it."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _SHORT else f"{text[: _SHORT - 3]}..."


def _is_number(value: object) -> bool:
    """Return whether a value is a number that JSON can express and a float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _is_writable(value: object) -> bool:
    """Return whether all numbers in a JSON value are such numbers."""
    match value:
        case bool():
            return True
        case int() | float():
            return _is_number(value)
        case list():
            return all(map(_is_writable, value))
        case dict():
            return all(map(_is_writable, value.values()))
    return True


def _names(value: Any, place: str) -> None:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise SchemaFault(place, "names are an array of strings")


def _refuse_circles(made: Standalone) -> None:
    """Refuse a schema that leads back to itself for the same value, because it has no meaning."""
    done: set[str] = set()

    def visit(ref: str, above: tuple[str, ...]) -> None:
        if ref in above:
            place = made.places.get(id(made.resolve(ref)), ref)
            raise SchemaFault(place, "a schema refers to itself without end")
        if ref in done:
            return
        for one in _references_in_place(made.resolve(ref)):
            visit(one, (*above, ref))
        done.add(ref)

    for ref in [ROOT, *(f"#/$defs/{name}" for name in made.schema.get("$defs", ()))]:
        visit(ref, ())


def _references_in_place(schema: Schema) -> Iterator[str]:
    if isinstance(schema, dict):
        if "$ref" in schema:
            yield schema["$ref"]
        # If there are alternatives, another one may end it.
        for one in in_place(schema, ("allOf",)):
            yield from _references_in_place(one)

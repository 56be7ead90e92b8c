"""Random schemas and values of few letters, so that they often meet."""

from typing import Any

from hypothesis import strategies as st

_NAMES = ("a", "b", "c")
_TEXTS = ("", "a", "b", "ab", "a1")
_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")

_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 4),
    st.sampled_from([0.5, 1.5]),
    st.sampled_from(_TEXTS),
)
VALUES = st.recursive(
    _scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        # In this order, which is that of the properties.
        st.fixed_dictionaries({}, optional=dict.fromkeys(_NAMES, inner)),
    ),
    max_leaves=6,
)

_names = st.lists(st.sampled_from(_NAMES), min_size=1, max_size=2, unique=True)
_patterns = st.sampled_from(["^a", "b$", "^[ab]*$", "^(?=a)[ab]+$", "^(?!a)"])


def _keywords(schemas: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    by_name = st.dictionaries(st.sampled_from(_NAMES), schemas, min_size=1, max_size=3)
    several = st.lists(schemas, min_size=1, max_size=3)
    keywords: dict[str, st.SearchStrategy[Any]] = {
        "type": st.sampled_from(_TYPES) | st.lists(st.sampled_from(_TYPES), min_size=1),
        "const": _scalars,
        "enum": st.lists(VALUES, min_size=1, max_size=4),
        "properties": by_name.map(lambda made: dict(sorted(made.items()))),
        "required": _names,
        "additionalProperties": schemas,
        "patternProperties": st.dictionaries(st.sampled_from(["^a", "b"]), schemas),
        "propertyNames": schemas,
        "minProperties": st.integers(0, 3),
        "maxProperties": st.integers(0, 3),
        "dependentRequired": st.dictionaries(st.sampled_from(_NAMES), _names, max_size=2),
        "dependentSchemas": st.dictionaries(st.sampled_from(_NAMES), schemas, max_size=1),
        "prefixItems": st.lists(schemas, min_size=1, max_size=2),
        "items": schemas,
        "minItems": st.integers(0, 2),
        "maxItems": st.integers(0, 3),
        "uniqueItems": st.booleans(),
        "contains": schemas,
        "minContains": st.integers(0, 2),
        "maxContains": st.integers(1, 2),
        "minimum": st.integers(-2, 3),
        "exclusiveMaximum": st.integers(0, 4),
        "multipleOf": st.sampled_from([1, 2, 0.5]),
        "minLength": st.integers(0, 2),
        "maxLength": st.integers(0, 2),
        "pattern": _patterns,
        "anyOf": several,
        "allOf": several,
        "oneOf": several,
        "not": schemas,
        "if": schemas,
        "then": schemas,
        "else": schemas,
        "unevaluatedProperties": schemas,
        "unevaluatedItems": schemas,
    }
    some = st.lists(st.sampled_from(sorted(keywords)), min_size=1, max_size=4, unique=True)
    return some.flatmap(lambda keys: st.fixed_dictionaries({key: keywords[key] for key in keys}))


_numbers = st.one_of(
    st.integers(-3, 5),
    st.sampled_from([0.5, -0.0, 1e-320, 1e308, 1e400, -1e400, 2**31, 2**63, 10**30, -(10**400)]),
)
_junk: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    _numbers,
    st.sampled_from(["", "#", "a", "\ud800", "http://[", "#/a/0", "#/" + "9" * 5000, "uuid"]),
    st.sampled_from([[], {}, [[]], [None], {"": None}, [""], ["a", "a"], [1e400]]),
)
_refs = st.sampled_from(["#", "#/$defs/a", "#/$defs/b", "#b", "#/properties/a", "b", "", "#/"])
_expressions = st.one_of(
    st.sampled_from(
        ["", "^", "$", "^$", "(", "[", "[]", "[^]", "\\", "\\u", "a**", "(?=a)", "(?!)"]
    ),
    st.text("ab()[]{}*+?.^$|\\-,1duw:=!<>\n😀", max_size=8),
)


def _hostile(schemas: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    names = st.sampled_from(["", "a", "b", "$ref", "const", "\ud800", "a/b~"])
    by_name = st.dictionaries(names | _expressions, schemas, max_size=3)
    several = st.lists(schemas, max_size=3)
    one = (
        "additionalItems additionalProperties contains else if items not propertyNames then "
        "unevaluatedItems unevaluatedProperties"
    )
    numbers = (
        "exclusiveMaximum exclusiveMinimum maxContains maxItems maxLength maxProperties maximum "
        "minContains minItems minLength minProperties minimum multipleOf"
    )
    keywords: dict[str, st.SearchStrategy[Any]] = {
        **dict.fromkeys(one.split(), schemas),
        **dict.fromkeys(numbers.split(), _numbers),
        **dict.fromkeys(["allOf", "anyOf", "oneOf", "prefixItems", "items"], several),
        **dict.fromkeys(
            ["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties"],
            by_name,
        ),
        "properties": by_name,
        **dict.fromkeys(["$ref", "$dynamicRef", "$recursiveRef", "$id", "id"], _refs),
        **dict.fromkeys(["$anchor", "$dynamicAnchor"], st.sampled_from(["", "a", "b"])),
        "$schema": st.sampled_from(["draft-04", "draft-07", "", "2020-12"]),
        "const": VALUES | _junk,
        "dependentRequired": st.dictionaries(names, st.lists(names, max_size=2), max_size=2),
        "enum": st.lists(VALUES | _junk, max_size=4),
        "format": st.sampled_from(["uuid", "date-time", "none", ""]),
        "pattern": _expressions,
        "required": st.lists(names, max_size=3),
        "type": st.sampled_from(_TYPES) | st.lists(st.sampled_from([*_TYPES, "any"]), max_size=3),
        "uniqueItems": st.booleans(),
        "x-guidance": _junk,
    }
    some = st.lists(st.sampled_from(sorted(keywords)), min_size=1, max_size=4, unique=True)
    # One value in ten is of any other kind.
    mixed = {key: st.one_of(*[made] * 9, _junk) for key, made in keywords.items()}
    return some.flatmap(lambda keys: st.fixed_dictionaries({key: mixed[key] for key in keys}))


SCHEMAS = st.recursive(
    st.one_of(
        st.booleans(),
        st.sampled_from([{"type": one} for one in _TYPES]),
        _scalars.map(lambda value: {"const": value}),
        _names.map(lambda names: {"required": names}),
    ),
    _keywords,
    max_leaves=8,
)

HOSTILE: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.booleans(), st.just({}), _junk), _hostile, max_leaves=10
).filter(lambda schema: isinstance(schema, dict))
"""What somebody may send as a schema: keywords of all drafts, with values that fit or don't."""

"""What a function's schema leaves open is closed, and nothing becomes impossible by it."""

import copy
from typing import Any

import pytest

from lmx.worker.formats.closed_objects import closed

TEXT = {"type": "string"}
A = {"type": "object", "properties": {"a": TEXT}}
B = {"type": "object", "properties": {"b": TEXT}}
AB = {"type": "object", "properties": {"a": TEXT, "b": TEXT}}


def shut(schema: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**schema, **changes, "additionalProperties": False}


def with_defs(schema: dict[str, Any], **defs: Any) -> dict[str, Any]:
    return {**schema, "$defs": defs}


REF = {"$ref": "#/$defs/one"}
HAS_REF = {"type": "object", "properties": {"x": REF}}

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": (A, shut(A)),
    "no arguments": ({"properties": {}}, shut({"properties": {}})),
    "nested": (
        {"properties": {"x": A, "y": {"type": "array", "items": {"anyOf": [B, TEXT]}}}},
        shut({"properties": {
            "x": shut(A), "y": {"type": "array", "items": {"anyOf": [shut(B), TEXT]}}
        }}),
    ),
    "members of a map": (
        {"type": "object", "additionalProperties": A},
        {"type": "object", "additionalProperties": shut(A)},
    ),
    "patterns too": ({"properties": {"x": A}, "patternProperties": {"^x": B}},
                     shut({"properties": {"x": A}, "patternProperties": {"^x": B}})),
    "a pattern alone": ({"patternProperties": {"^x": B}}, {"patternProperties": {"^x": shut(B)}}),
    "referred to": (with_defs(HAS_REF, one=A), shut(with_defs(HAS_REF, one=shut(A)))),
    "one of two": (with_defs({"oneOf": [REF, B]}, one=A),
                   with_defs({"oneOf": [REF, shut(B)]}, one=shut(A))),
    "nothing but one": ({"allOf": [A]}, {"allOf": [shut(A)]}),
    "a choice of what is required": (
        {**AB, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        shut(AB, anyOf=[{"required": ["a"]}, {"required": ["b"]}]),
    ),
    "a list of items": ({"prefixItems": [A], "items": [B]},
                        {"prefixItems": [shut(A)], "items": [shut(B)]}),
}  # fmt: skip

AS_THEY_ARE: dict[str, dict[str, Any]] = {
    "told open": {**A, "additionalProperties": True},
    "told what else": {**A, "additionalProperties": TEXT},
    "asked for what is not named": {**A, "required": ["b"]},
    "one thing asks for another": {**A, "dependentRequired": {"a": ["b"]}},
    "a choice of what is not named": {**A, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
    "a map": {"type": "object"},
    "two together": {"allOf": [A, B]},
    "own and another": {**A, "allOf": [B]},
    "own and one of": {**A, "anyOf": [B, {"required": ["a"]}]},
    "a condition": {**A, "if": A, "then": B},
    "a base": with_defs({**B, **REF}, one=A),
    "an alias of a base": with_defs({"allOf": [REF, B]}, one={"$ref": "#/$defs/two"}, two=A),
    "a base whose name is escaped": {
        "allOf": [{"$ref": "#/$defs/o%20ne"}, B],
        "$defs": {"o ne": A},
    },
    "a base with an anchor": with_defs(
        {"allOf": [{"$ref": "#base"}, B]}, one={**A, "$anchor": "base"}
    ),
    "a base with an identifier": with_defs(
        {"allOf": [{"$ref": "base"}, B]}, one={**A, "$id": "base"}
    ),
    "an alias with an anchor": with_defs(
        {"allOf": [{"$ref": "#alias"}, B]}, one={"$anchor": "alias", "$ref": "#/$defs/two"}, two=A
    ),
    "a base with a dynamic anchor": with_defs(
        {"allOf": [{"$dynamicRef": "#base"}, B]}, one={**A, "$dynamicAnchor": "base"}
    ),
    "own and a dynamic reference": with_defs(
        {**B, "$dynamicRef": "#base"}, one={**A, "$dynamicAnchor": "base"}
    ),
    "a base by its whole address": with_defs(
        {"$id": "http://x/y", "allOf": [{"$ref": "http://x/y#/$defs/one"}, B]}, one=A
    ),
    "a base by its relative address": with_defs(
        {"$id": "http://x/y", "properties": {"z": {"allOf": [{"$ref": "y#/$defs/one"}, B]}}},
        one=A,
    ),
    "a value": {"const": A, "default": B, "enum": [A]},
    "no schema": {"properties": [1], "allOf": 3, "items": "x", "$defs": {"y": 4}},
}


@pytest.mark.parametrize("name", CASES)
def test_objects_that_name_their_members_take_no_others(name: str) -> None:
    schema, expected = CASES[name]
    before = copy.deepcopy(schema)
    assert closed(schema) == expected
    assert closed(expected) == expected
    assert schema == before


@pytest.mark.parametrize("name", AS_THEY_ARE)
def test_what_is_open_on_purpose_or_described_twice_stays(name: str) -> None:
    schema = AS_THEY_ARE[name]
    assert closed(schema) == schema


def test_what_is_used_alone_and_together_stays_open() -> None:
    schema = with_defs({"properties": {"x": REF, "y": {"allOf": [REF, B]}}}, one=A)
    assert closed(schema) == {**schema, "additionalProperties": False}


class _Counted(dict[str, Any]):
    """A schema that counts how often it is looked at."""

    looks = 0

    def get(self, *key: Any) -> Any:
        self.looks += 1
        return super().get(*key)


def test_a_schema_is_looked_at_as_often_however_many_references_lead_to_it() -> None:
    def looks(length: int) -> int:
        last = _Counted(A)
        chain = {str(at): {"$ref": f"#/$defs/{at + 1}"} for at in range(length)}
        both = {"allOf": [{"$ref": "#/$defs/0"}, B]}
        schema = with_defs({"properties": {"x": both}}, **chain, **{str(length): last})
        assert closed(schema) == shut(schema)
        return last.looks

    assert looks(100) == looks(5)

"""A hand-written corpus of JSON schemas: what people ask answers to be held to."""

from typing import Any

# fmt: off
_STEP = {
    "type": "object",
    "properties": {"explanation": {"type": "string"}, "output": {"type": "string"}},
    "required": ["explanation", "output"], "additionalProperties": False}

SCHEMAS: dict[str, dict[str, Any]] = {
    "flat": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"], "additionalProperties": False},
    "nested": {
        "type": "object",
        "properties": {
            "steps": {"type": "array", "items": _STEP, "maxItems": 3},
            "final_answer": {"type": "string"}}, "required": ["steps", "final_answer"],
        "additionalProperties": False},
    "enum": {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "green", "blue", 7, None, True]}},
        "required": ["colour"], "additionalProperties": False},
    "bounded array": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 5},
    "any of": {
        "type": "object",
        "properties": {
            "value": {
                "anyOf": [
                    {"type": "integer", "minimum": 0}, {"type": "string", "maxLength": 5},
                    {
                        "type": "object", "properties": {"x": {"type": "number"}},
                        "required": ["x"]}]}}, "required": ["value"],
        "additionalProperties": False},
    "recursion": {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "value": {"type": "integer"},
                    "children": {
                        "type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}},
                "required": ["value"], "additionalProperties": False}}, "$ref": "#/$defs/node"},
    "pattern": {
        "type": "object",
        "properties": {
            "plate": {"type": "string", "pattern": "^[A-Z]{1,3}-[A-Z]{1,2} [1-9]\\d{0,3}$"}},
        "required": ["plate"], "additionalProperties": False},
    "ranges": {
        "type": "object",
        "properties": {
            "percent": {"type": "integer", "minimum": 0, "maximum": 100},
            "share": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
            "celsius": {"type": "number", "minimum": -273.15},
            "even": {"type": "integer", "minimum": 0, "multipleOf": 2}},
        "required": ["percent", "share", "celsius", "even"], "additionalProperties": False},
    "const": {
        "type": "object", "properties": {"version": {"const": "1.0"}, "kind": {"const": 3}},
        "required": ["version", "kind"], "additionalProperties": False},
    "nullable": {
        "type": "object",
        "properties": {
            "nickname": {"type": ["string", "null"]},
            "parent": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
        "required": ["nickname", "parent"], "additionalProperties": False},
    "map": {
        "type": "object",
        "additionalProperties": {"type": "integer", "minimum": 1, "maximum": 5}},
    "formats": {
        "type": "object",
        "properties": {
            "at": {"type": "string", "format": "date-time"},
            "day": {"type": "string", "format": "date"}, "id": {"type": "string", "format": "uuid"},
            "address": {"type": "string", "format": "ipv4"}},
        "required": ["at", "day", "id", "address"], "additionalProperties": False},
    "unicode": {
        "type": "object",
        "properties": {
            "größe": {"enum": ["klein", "groß", "自動", "🎉"]},
            "名前": {"type": "string", "minLength": 1, "maxLength": 8}},
        "required": ["größe", "名前"], "additionalProperties": False},
    "empty object": {"type": "object", "properties": {}, "additionalProperties": False},
    "long enum": {
        "type": "object",
        "properties": {"code": {"enum": [f"item-{n * 7919 % 100_003}" for n in range(1000)]}},
        "required": ["code"], "additionalProperties": False},
    "optional properties": {
        "type": "object",
        "properties": {
            "a": {"type": "boolean"}, "b": {"type": "integer"}, "c": {"type": "null"},
            "d": {"type": "boolean"}}, "required": ["b"], "additionalProperties": False},
    "all of": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"type": "object", "properties": {"b": {"type": "boolean"}}, "required": ["b"]}]},
    "tuple": {
        "type": "array",
        "prefixItems": [{"type": "boolean"}, {"type": "integer", "maximum": 9}], "items": False,
        "minItems": 2},
    "tagged union": {
        "type": "object",
        "properties": {
            "shape": {
                "anyOf": [
                    {
                        "type": "object",
                        "properties": {
                            "kind": {"const": "circle"},
                            "radius": {"type": "number", "minimum": 0}},
                        "required": ["kind", "radius"], "additionalProperties": False},
                    {
                        "type": "object",
                        "properties": {
                            "kind": {"const": "square"}, "side": {"type": "number", "minimum": 0}},
                        "required": ["kind", "side"], "additionalProperties": False}]}},
        "required": ["shape"], "additionalProperties": False},
    # As pydantic writes a model with a list of models in it.
    "pydantic": {
        "$defs": {
            "Line": {
                "properties": {
                    "sku": {"maxLength": 12, "minLength": 3, "title": "Sku", "type": "string"},
                    "count": {"default": 1, "minimum": 1, "title": "Count", "type": "integer"}},
                "required": ["sku"], "title": "Line", "type": "object"}},
        "properties": {
            "title": {"description": "A property called title", "type": "string"},
            "lines": {"items": {"$ref": "#/$defs/Line"}, "maxItems": 2, "type": "array"}},
        "required": ["title", "lines"], "title": "Order", "type": "object"},
    "pattern properties": {
        "type": "object", "patternProperties": {"^x-[a-z]{1,4}$": {"type": "boolean"}},
        "additionalProperties": False},
    "bounded text": {"type": "string", "minLength": 3, "maxLength": 6},
    "any value": {},
}
# fmt: on

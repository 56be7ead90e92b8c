"""Rewrites JSON schemas with the keywords that llguidance enforces. Pure.

Keywords that it does not know are expressed by others with the same meaning, or left out and
checked when the answer is complete (:mod:`lmx.worker.schemas.check`). So the resulting grammar
allows every answer that satisfies the schema, except for the order of properties.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import regex

from lmx.worker.schemas.dialects import FORMATS, IN_PLACE, ROOT, Schema, SchemaFault, Standalone
from lmx.worker.schemas.disjoint import Lookup, overlaps, type_of, types_of, values_of
from lmx.worker.schemas.negation import all_of, any_of, negated, without

Accepts = Callable[[Mapping[str, Any]], bool]
"""Returns whether llguidance accepts a small schema."""

# Each alternative is combined with every other one of the same schema.
_MAX_ALTERNATIVES: Final = 96
_MAX_COMBINATIONS: Final = 24
_MAX_DISTINCT: Final = 4
_MAX_REMARKS: Final = 16
_TEXT: Final = ("pattern", "minLength", "maxLength", "format")
_NUMBER: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
# For the search of all names, and of one of them.
_MAX_S: Final = 0.1
_MIN_S: Final = 0.001
_AHEAD: Final = re.compile(r"\^\(\?=")
_FORMAT_INSIDE: Final = re.compile(r'"format": "(?:' + "|".join(sorted(FORMATS)) + ')"')


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A schema that llguidance can read."""

    schema: dict[str, Any]
    remarks: tuple[str, ...]
    """What is enforced differently than it is written, in words, with the places."""
    checked: tuple[str, ...]
    """What is not enforced, in words, with the places."""
    expanded: bool
    """Whether something became alternatives."""
    loose: frozenset[int] = frozenset()
    """The schemas of the source, by their identity, whose `oneOf` is taken as `anyOf`."""


def rewrite(source: Standalone, accepts: Accepts, *, expand: bool = True) -> Rewritten:
    """Return a schema of which llguidance knows all keywords. llguidance may refuse it all the
    same.

    Without ``expand`` nothing becomes alternatives, which may be too many together. Raises
    :class:`SchemaFault` for a schema that can neither be enforced nor checked.
    """
    return _Rewriter(source, accepts, expand).rewrite()


class _Rewriter:
    def __init__(self, source: Standalone, accepts: Accepts, expand: bool) -> None:
        self._source = source
        self._ask = accepts
        self._look = Lookup(source)
        self._left = _MAX_ALTERNATIVES if expand else 0
        self._expanded = False
        self._asked: dict[str, bool] = {}
        self._remarks: dict[str, None] = {}
        self._checked: dict[str, None] = {}
        self._loose: set[int] = set()

    def rewrite(self) -> Rewritten:
        schema = self._schema(self._source.schema)
        if schema is False:
            raise SchemaFault(ROOT, "nothing satisfies it")
        if schema is True:
            schema = {}
        definitions = self._source.schema.get("$defs", {})
        if definitions:
            schema["$defs"] = {name: self._schema(one) for name, one in definitions.items()}
        return Rewritten(
            schema,
            tuple(self._remarks),
            tuple(self._checked),
            self._expanded,
            frozenset(self._loose),
        )

    # Remarks.

    def _place(self, node: Mapping[str, Any]) -> str:
        return self._source.places.get(id(node), ROOT)

    def _defer(self, node: Mapping[str, Any], key: str) -> None:
        """Leave a keyword out of the grammar, and let it be checked later."""
        inside = json.dumps(node[key])
        if key not in ("pattern", "format") and _FORMAT_INSIDE.search(inside):
            reason = f"`{key}` has a `format` in it, which can't be checked"
            raise SchemaFault(self._place(node), reason)
        if len(self._checked) < _MAX_REMARKS:
            self._checked[f"`{key}` at {self._place(node)}"] = None

    def _may_expand(self, alternatives: int, combinations: int) -> bool:
        if alternatives > self._left or combinations > _MAX_COMBINATIONS:
            return False
        self._expanded = True
        self._left -= alternatives
        return True

    def _accepts(self, schema: Mapping[str, Any]) -> bool:
        key = json.dumps(schema)
        known = self._asked.get(key)
        if known is None:
            known = self._asked[key] = self._ask(schema)
        return known

    # Schemas.

    def _schema(self, node: Schema) -> Schema:
        if isinstance(node, bool):
            return node
        made: dict[str, Any] = {}
        for key, value in node.items():
            match key:
                case "properties":
                    made[key] = {name: self._schema(one) for name, one in value.items()}
                case "additionalProperties" | "items":
                    made[key] = self._schema(value)
                case "prefixItems" | "anyOf" | "allOf":
                    made[key] = [self._schema(one) for one in value]
                case "$ref" | "type" | "const" | "enum" | "required" | "minItems" | "maxItems":
                    made[key] = value
        parts: list[Schema] = [made]
        self._text(node, made, parts)
        self._numbers(node, made)
        self._names(node, made)
        self._counts(node, made, parts)
        self._distinct(node, made, parts)
        self._contains(node, made)
        self._unevaluated(node, made)
        combinations = 1
        for alternatives in self._alternatives(node):
            combinations *= len(alternatives)
            if self._may_expand(len(alternatives), combinations):
                parts.append(any_of(alternatives.schemas))
            else:
                combinations //= len(alternatives)
                self._defer(node, alternatives.key)
        self._one_of(node, made, parts)
        return _joined(parts)

    def _text(self, node: dict[str, Any], made: dict[str, Any], parts: list[Schema]) -> None:
        keywords: dict[str, Any] = {key: node[key] for key in _TEXT if key in node}
        if not keywords:
            return
        if not self._accepts({"type": "string", **keywords}) and "pattern" in keywords:
            pieces = _pieces(keywords["pattern"])
            if len(pieces) > 1 and all(
                self._accepts({"type": "string", "pattern": piece}) for piece in pieces
            ):
                parts += [{"pattern": piece} for piece in pieces]
                del keywords["pattern"]
            elif self._accepts({"type": "string", "pattern": keywords["pattern"]}):
                for key in ("minLength", "maxLength"):
                    if keywords.pop(key, None) is not None:
                        self._defer(node, key)
            else:
                self._defer(node, "pattern")
                del keywords["pattern"]
        made.update(keywords)

    def _numbers(self, node: dict[str, Any], made: dict[str, Any]) -> None:
        keywords: dict[str, Any] = {key: node[key] for key in _NUMBER if key in node}
        if not keywords:
            return
        type_ = "integer" if node.get("type") == "integer" else "number"
        least = max(keywords.get("minimum", -1e400), keywords.get("exclusiveMinimum", -1e400))
        most = min(keywords.get("maximum", 1e400), keywords.get("exclusiveMaximum", 1e400))
        if least <= most and not self._accepts({"type": type_, **keywords}):
            for key in keywords:
                self._defer(node, key)
            return
        made.update(keywords)

    def _names(self, node: dict[str, Any], made: dict[str, Any]) -> None:
        patterns = node.get("patternProperties")
        if patterns:
            if self._accepts(
                {"type": "object", "patternProperties": dict.fromkeys(patterns, True)}
            ):
                made["patternProperties"] = {
                    name: self._schema(one) for name, one in patterns.items()
                }
            else:
                made["additionalProperties"] = True
                self._defer(node, "patternProperties")
        if "propertyNames" not in node:
            return
        names = node["propertyNames"]
        rest = made.get("additionalProperties", True)
        # What holds for other names here must not be replaced by `_unevaluated`, and a pattern for
        # names concerns those in `properties` too.
        alone = not patterns and "unevaluatedProperties" not in node
        if alone and _allows_no_name(names):
            made["properties"] = dict.fromkeys(made.get("properties", ()), False)
            made["additionalProperties"] = False
            return
        alone = alone and (isinstance(rest, bool) or not made.get("properties"))
        pattern = self._name_pattern(names) if alone else None
        if pattern is None:
            if names is not True:
                self._defer(node, "propertyNames")
            return
        try:
            fitting = _fitting(pattern, made.get("properties", ()))
        except TimeoutError:
            self._defer(node, "propertyNames")
            return
        made["properties"] = {
            name: one if name in fitting else False
            for name, one in made.get("properties", {}).items()
        }
        if rest is not False:
            made["patternProperties"] = {pattern: rest}
        made["additionalProperties"] = False

    def _name_pattern(self, names: Schema) -> str | None:
        """Return a regular expression for the names that a schema allows."""
        if not isinstance(names, dict):
            return None
        keywords = names.keys() - {"type"}
        values = values_of(names)
        pattern = None
        if values is not None and len(keywords) == 1:
            texts = [re.escape(one) for one in values if isinstance(one, str)]
            pattern = f"^(?:{'|'.join(texts)})$"
        elif keywords == {"pattern"}:
            pattern = names["pattern"]
        elif keywords and keywords <= {"minLength", "maxLength"}:
            pattern = f"^[\\s\\S]{{{names.get('minLength', 0)},{names.get('maxLength', '')}}}$"
        if pattern is None or not self._accepts({"patternProperties": {pattern: True}}):
            return None
        try:
            regex.compile(pattern)
        except (regex.error, OverflowError, RecursionError):
            return None
        return pattern

    def _counts(self, node: dict[str, Any], made: dict[str, Any], parts: list[Schema]) -> None:
        least, most = node.get("minProperties", 0), node.get("maxProperties")
        names = list(node.get("properties", {}))
        closed = made.get("additionalProperties") is False and "patternProperties" not in made
        required = node.get("required", ())
        if least <= len(required):
            least = 0
        if closed and most is not None and most >= len(names):
            most = None
        if not least and most is None:
            return
        optional = [name for name in names if name not in required]
        simple = least <= 1 and most in (None, 0, 1)
        if (closed and simple) or not optional:
            if least:
                made["minProperties"] = least
            if most is not None:
                made["maxProperties"] = most
            # Names that are not listed may come twice, and then count once.
            if least > 1 and not closed:
                self._defer(node, "minProperties")
            return
        for key, limit in (("minProperties", least), ("maxProperties", most)):
            if limit:
                options = _of_count(key, optional, limit - len(required)) if closed else None
                if options and self._may_expand(len(options), len(options)):
                    parts.append(any_of(options))
                else:
                    self._defer(node, key)
        if most == 0 and not closed:
            self._defer(node, "maxProperties")

    def _distinct(self, node: dict[str, Any], made: dict[str, Any], parts: list[Schema]) -> None:
        if not node.get("uniqueItems") or node.get("maxItems", 2) < 2:
            return
        items = node.get("items", True)
        if isinstance(items, dict) and "$ref" in items and len(items) == 1:
            items = self._source.resolve(items["$ref"])
        values = _all_values(items)
        if (
            values is None
            or len(values) > _MAX_DISTINCT
            or "prefixItems" in node
            or types_of(node, self._look) != {"array"}
        ):
            self._defer(node, "uniqueItems")
            return
        lengths = range(node.get("minItems", 0), min(len(values), node.get("maxItems", 99)) + 1)
        arrays = [list(one) for size in lengths for one in itertools.permutations(values, size)]
        del made["items"]
        parts.append({"enum": arrays} if arrays else False)

    def _contains(self, node: dict[str, Any], made: dict[str, Any]) -> None:
        if "contains" not in node:
            return
        least = node.get("minContains", 1)
        if least == 0 and "maxContains" not in node:
            return
        made["minItems"] = max(made.get("minItems", 0), least)
        if node["contains"] is True and "maxContains" not in node:
            return
        self._defer(node, "contains")

    def _unevaluated(self, node: dict[str, Any], made: dict[str, Any]) -> None:
        applied = [key for key in ("$ref", "if", "dependentSchemas", *IN_PLACE) if key in node]
        for key, own in (
            ("unevaluatedProperties", "additionalProperties"),
            ("unevaluatedItems", "items"),
        ):
            if key not in node or own in node or node[key] is True:
                continue
            if not applied and not (key == "unevaluatedItems" and "contains" in node):
                made[own] = self._schema(node[key])
                continue
            names = self._evaluated(node) if key == "unevaluatedProperties" else None
            if names is not None and node[key] is False:
                made["properties"] = {
                    **made.get("properties", {}),
                    **{name: True for name in names if name not in made.get("properties", {})},
                }
                made[own] = False
            if names is None or set(applied) - {"$ref", "allOf"} or node[key] is not False:
                self._defer(node, key)

    def _evaluated(self, node: Schema, depth: int = 0) -> list[str] | None:
        """Return the names of all properties that a schema may evaluate; None for any name."""
        if isinstance(node, bool):
            return []
        if (
            depth > 8
            or not self._look.spend()
            or node.keys() & {"patternProperties", "if", "dependentSchemas"}
            or node.get("additionalProperties", False) is not False
        ):
            return None
        names = list(node.get("properties", ()))
        inner = [part for key in IN_PLACE for part in node.get(key, ())]
        if "$ref" in node:
            inner.append(self._source.resolve(node["$ref"]))
        for part in inner:
            more = self._evaluated(part, depth + 1)
            if more is None:
                return None
            names += more
        return names

    def _negated(self, schema: Schema, around: Schema) -> Schema | None:
        made = negated(schema, around, self._look)
        return None if made is None else self._schema(made)

    def _alternatives(self, node: dict[str, Any]) -> Iterable[_Alternatives]:
        """Yield the keywords of a schema that are alternatives."""
        around = {key: value for key, value in node.items() if key in _AROUND}
        if "not" in node:
            made = self._negated(node["not"], around)
            yield _Alternatives("not", None if made is None else _options(made))
        if "if" in node and ("then" in node or "else" in node):
            condition = node["if"]
            other = self._negated(condition, around)
            then, otherwise = node.get("then", True), node.get("else", True)
            yield _Alternatives(
                "if",
                None
                if other is None
                else [
                    all_of([self._schema(condition), self._schema(then)]),
                    all_of([other, self._schema(otherwise)]),
                ],
            )
        required = node.get("required", ())
        for name, needed in node.get("dependentRequired", {}).items():
            left = [one for one in needed if one not in required and one != name]
            if left:
                absent = [] if name in required else [without(name)]
                yield _Alternatives("dependentRequired", [*absent, {"required": left}])
        for name, needed in node.get("dependentSchemas", {}).items():
            present = name in required and types_of(node, self._look) == {"object"}
            absent = [] if present else [without(name)]
            yield _Alternatives("dependentSchemas", [*absent, self._schema(needed)])

    def _one_of(self, node: dict[str, Any], made: dict[str, Any], parts: list[Schema]) -> None:
        if "oneOf" not in node:
            return
        options = node["oneOf"]
        around = {key: value for key, value in node.items() if key in _AROUND}
        meets = overlaps(options, self._look, around, self._left)
        exact = self._exactly_one(options, meets, around) if meets else None
        if meets != {} and exact is None:
            text = (
                f"`oneOf` at {self._place(node)} is taken as `anyOf`: "
                "an answer may fit more than one of its schemas"
            )
            self._loose.add(id(node))
            if len(self._remarks) < _MAX_REMARKS:
                self._remarks[text] = None
        alternatives = exact or [self._schema(one) for one in options]
        if "anyOf" in made:
            parts.append(any_of(alternatives))
        else:
            made["anyOf"] = alternatives

    def _exactly_one(
        self, options: Sequence[Schema], meets: Mapping[int, Sequence[int]], around: Schema
    ) -> list[Schema] | None:
        """Return each option without the values that others share; None if that is not short."""
        negations: dict[int, Schema] = {}
        for at in meets:
            made = self._negated(options[at], around)
            if made is None or len(_options(made)) > 3:
                return None
            negations[at] = made
        alternatives = []
        for at, option in enumerate(options):
            others = meets.get(at, ())
            several = 1
            for other in others:
                several *= len(_options(negations[other]))
            if not self._may_expand(several, several):
                return None
            alternatives.append(
                all_of([self._schema(option), *(negations[other] for other in others)])
            )
        return alternatives


_AROUND: Final = frozenset(
    {"type", "properties", "patternProperties", "additionalProperties", "const", "enum"}
)


def _fitting(pattern: str, names: Collection[str]) -> frozenset[str]:
    """Return the names in which a pattern is found. Raises ``TimeoutError`` if it takes long."""
    fits, timeout_s = regex.compile(pattern), max(_MIN_S, _MAX_S / max(1, len(names)))
    return frozenset(name for name in names if fits.search(name, timeout=timeout_s))


def _allows_no_name(names: Schema) -> bool:
    """Return whether a schema of names, which are strings, lists none or has another type."""
    if not isinstance(names, dict):
        return False
    type_, values = names.get("type", "string"), values_of(names)
    if type_ != "string" and "string" not in type_:
        return True
    return values is not None and not any(isinstance(one, str) for one in values)


def _all_values(schema: Schema) -> Sequence[Any] | None:
    """Return the values that satisfy a schema; None if it doesn't just list them."""
    if not isinstance(schema, dict):
        return None
    if schema == {"type": "boolean"}:
        return (False, True)
    values = values_of(schema)
    if values is None or len(schema.keys() - {"type"}) > 1:
        return None
    named = schema.get("type", ())
    types = {named} if isinstance(named, str) else set(named)
    return values if not types or all(_type_of(one) & types for one in values) else None


def _type_of(value: Any) -> set[str]:
    type_ = type_of(value)
    return {type_, "integer"} if type_ == "number" and value % 1 == 0 else {type_}


@dataclass(frozen=True, slots=True)
class _Alternatives:
    """A keyword with alternatives."""

    key: str
    options: Sequence[Schema] | None
    """None: they can't be expressed."""

    def __len__(self) -> int:
        # This is more than any number that is allowed.
        return _MAX_ALTERNATIVES + 1 if self.options is None else max(1, len(self.options))

    @property
    def schemas(self) -> Sequence[Schema]:
        return self.options or ()


def _options(schema: Schema) -> Sequence[Schema]:
    if isinstance(schema, dict) and schema.keys() == {"anyOf"}:
        options: Sequence[Schema] = schema["anyOf"]
        return options
    return [schema]


def _joined(parts: Sequence[Schema]) -> Schema:
    """Return the first of ``parts``, which is an object, combined with all others."""
    first = parts[0]
    others = [one for one in parts[1:] if one is not True]
    if any(one is False for one in others):
        return False
    assert isinstance(first, dict)
    if others:
        first["allOf"] = [*first.get("allOf", ()), *others]
    return first


def _of_count(key: str, names: Sequence[str], count: int) -> list[Schema] | None:
    """Return schemas for at least, or at most, ``count`` of the names; None if too many."""
    if count > len(names):
        return []
    if key == "minProperties":
        chosen = itertools.islice(itertools.combinations(names, count), _MAX_COMBINATIONS + 1)
        options: list[Schema] = [{"required": list(one)} for one in chosen]
    else:
        gone = len(names) - max(0, count)
        chosen = itertools.islice(itertools.combinations(names, gone), _MAX_COMBINATIONS + 1)
        options = [{"properties": dict.fromkeys(one, False)} for one in chosen]
    return options if len(options) <= _MAX_COMBINATIONS else None


def _pieces(pattern: str) -> list[str]:
    """Split a pattern that begins with lookaheads into several that must all match."""
    pieces = []
    while _AHEAD.match(pattern):
        end = _closing(pattern, 1)
        if end is None:
            return []
        pieces.append(f"^(?:{pattern[4:end]})")
        pattern = "^" + pattern[end + 1 :]
    return [*pieces, pattern]


def _closing(pattern: str, start: int) -> int | None:
    """Return where the group that begins at ``start`` ends."""
    depth, inside, at = 0, False, start
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 1
        elif inside:
            inside = char != "]"
        elif char == "[":
            inside = True
        elif char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
            if not depth:
                return at
        at += 1
    return None

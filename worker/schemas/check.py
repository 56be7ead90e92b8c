"""Checks whether a complete answer satisfies a schema, for the parts that its grammar doesn't
enforce. Pure.

No package for this is used: they take exponential time for some schemas and expressions, and a
server gets both from strangers. Here each schema looks at each value once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any, Final, NamedTuple

import regex

from lmx.worker.engine.values import Unchecked
from lmx.worker.schemas.dialects import ROOT, Schema, SchemaFault, Standalone, short
from lmx.worker.schemas.disjoint import equal_text, type_of

_MAX_DIGITS: Final = 400
_NO_CIRCLE: Final = 1 << 30


class SchemaCheck:
    """Checks answers. One thread uses it at a time."""

    def __init__(
        self, source: Standalone, checked: tuple[str, ...], loose: frozenset[int] = frozenset()
    ) -> None:
        """``checked`` names the parts of the schema that need the check, in words. Of the schemas
        in ``loose``, which are known by their identity, several of ``oneOf`` may fit, as in the
        grammar.

        Raises :class:`SchemaFault` for an invalid expression.
        """
        self._source = source
        self._checked = checked
        self._loose = loose
        self._patterns: dict[str, Any] = {}
        # What `enum` and `const` list, by its identity, once it has been compared with.
        self._texts: dict[int, frozenset[str]] = {}
        self._compile(source.schema)

    def __call__(self, text: str, left_s: Callable[[], float] | None = None) -> str | None:
        """Return why an answer doesn't satisfy the schema; None if it does.

        Raises :class:`Unchecked` when ``left_s``, which is called repeatedly, returns that no
        seconds are left.
        """
        try:
            value = json.loads(text, parse_float=_number)
            made = _Evaluation(self._source, self._patterns, self._loose, self._texts, left_s)
            if made.of(self._source.schema, value, False):
                return None
        except (ValueError, RecursionError):
            return "it is no JSON that can be read"
        except ArithmeticError:
            return "it has a number that can't be checked"
        except TimeoutError:
            raise Unchecked(_list(self._checked)) from None
        return f"it does not satisfy the schema, of which this is checked: {_list(self._checked)}"

    def _compile(self, schema: Any) -> None:
        # This also finds values that are no schemas; they do no harm here.
        if isinstance(schema, list):
            for one in schema:
                self._compile(one)
        elif isinstance(schema, dict):
            patterns = schema.get("patternProperties")
            texts = [*patterns] if isinstance(patterns, dict) else []
            if isinstance(schema.get("pattern"), str):
                texts.append(schema["pattern"])
            for text in texts:
                if text not in self._patterns:
                    try:
                        self._patterns[text] = regex.compile(text)
                    except (regex.error, RecursionError, OverflowError) as error:
                        place = self._source.places.get(id(schema), ROOT)
                        raise SchemaFault(
                            place, f"`{short(text)}` is no expression: {error}"
                        ) from error
            for one in schema.values():
                self._compile(one)


class _Seen(NamedTuple):
    """Which properties and items of a value a schema has looked at."""

    names: frozenset[str] = frozenset()
    items: frozenset[int] = frozenset()

    def with_(self, other: _Seen) -> _Seen:
        return _Seen(self.names | other.names, self.items | other.items)


_NOTHING: Final = _Seen()


class _Evaluation:
    """The evaluation of one value, which must outlive it: its parts are known by identity."""

    def __init__(
        self,
        source: Standalone,
        patterns: Mapping[str, Any],
        loose: frozenset[int],
        texts: dict[int, frozenset[str]],
        left_s: Callable[[], float] | None,
    ) -> None:
        self._source = source
        self._patterns = patterns
        self._loose = loose
        self._texts = texts
        self._clock = left_s
        # The value's parts, as they are compared.
        self._written: dict[int, str] = {}
        self._known: dict[tuple[int, int, bool], _Seen | None] = {}
        # The depth of each evaluation under way; and the highest one that was looked at since.
        self._open: dict[tuple[int, int, bool], int] = {}
        self._highest = _NO_CIRCLE

    def of(self, schema: Schema, value: Any, exact: bool) -> _Seen | None:
        """Return what ``schema`` has looked at; None if the value does not satisfy it. If it is
        ``exact``, no `oneOf` is taken as `anyOf`: the opposite of less would be more."""
        if isinstance(schema, bool):
            return _NOTHING if schema else None
        key = (id(schema), id(value), exact)
        if key in self._known:
            return self._known[key]
        if key in self._open:
            # A reference that leads back to itself is satisfied by something else, or not at all.
            self._highest = min(self._highest, self._open[key])
            return None
        self._left_s()
        depth = len(self._open)
        above, self._highest = self._highest, _NO_CIRCLE
        self._open[key] = depth
        found = self._keywords(schema, value, exact)
        del self._open[key]
        # A result that depends on an evaluation still under way may differ elsewhere.
        if found is not None or self._highest >= depth:
            self._known[key] = found
        if self._highest >= depth:
            self._highest = _NO_CIRCLE
        self._highest = min(self._highest, above)
        return found

    def _keywords(self, schema: dict[str, Any], value: Any, exact: bool) -> _Seen | None:
        for key, limit in schema.items():
            rule = _RULES.get(key)
            if rule is not None and not rule(value, limit):
                return None
        for key in ("enum", "const"):
            if key in schema and not self._is_listed(value, schema[key], several=key == "enum"):
                return None
        text = schema.get("pattern") if isinstance(value, str) else None
        if text is not None and not self._matches(text, value):
            return None
        seen = _NOTHING
        for part in (self._applied, self._object, self._array):
            more = part(schema, value, exact)
            if more is None:
                return None
            seen = seen.with_(more)
        return self._rest(schema, value, exact, seen)

    def _left_s(self) -> float | None:
        """Return how long the check may still take; None: without a limit."""
        if self._clock is None:
            return None
        left_s = self._clock()
        if left_s <= 0:
            raise TimeoutError
        return left_s

    def _matches(self, pattern: str, text: str) -> bool:
        return bool(self._patterns[pattern].search(text, timeout=self._left_s()))

    def _is_listed(self, value: Any, listed: Any, *, several: bool) -> bool:
        texts = self._texts.get(id(listed))
        if texts is None:
            texts = frozenset(map(equal_text, listed if several else (listed,)))
            self._texts[id(listed)] = texts
        return self._text_of(value) in texts

    def _text_of(self, value: Any) -> str:
        text = self._written.get(id(value))
        if text is None:
            text = self._written[id(value)] = equal_text(value)
        return text

    def _applied(self, schema: dict[str, Any], value: Any, exact: bool) -> _Seen | None:
        all_: list[Schema] = list(schema.get("allOf", ()))
        if "$ref" in schema:
            all_.append(self._source.resolve(schema["$ref"]))
        seen = _NOTHING
        if "if" in schema:
            condition = self.of(schema["if"], value, True)
            seen = condition or seen
            all_.append(schema.get("else" if condition is None else "then", True))
        if isinstance(value, dict):
            dependent = schema.get("dependentSchemas", {})
            all_ += [one for name, one in dependent.items() if name in value]
        for one in all_:
            more = self.of(one, value, exact)
            if more is None:
                return None
            seen = seen.with_(more)
        for key in ("anyOf", "oneOf"):
            if key in schema:
                found = [self.of(one, value, exact) for one in schema[key]]
                fitting = [one for one in found if one is not None]
                one_alone = key == "oneOf" and (exact or id(schema) not in self._loose)
                if not fitting or (one_alone and len(fitting) > 1):
                    return None
                for more in fitting:
                    seen = seen.with_(more)
        if "not" in schema and self.of(schema["not"], value, True) is not None:
            return None
        return seen

    def _object(self, schema: dict[str, Any], value: Any, exact: bool) -> _Seen | None:
        if not isinstance(value, dict):
            return _NOTHING
        properties = schema.get("properties", {})
        patterns = schema.get("patternProperties", {})
        seen: set[str] = set()
        for name, one in value.items():
            if self.of(schema.get("propertyNames", True), name, True) is None:
                return None
            rules = [properties[name]] if name in properties else []
            rules += [rule for text, rule in patterns.items() if self._matches(text, name)]
            if not rules and "additionalProperties" in schema:
                rules = [schema["additionalProperties"]]
            if any(self.of(rule, one, exact) is None for rule in rules):
                return None
            if rules:
                seen.add(name)
        return _Seen(names=frozenset(seen))

    def _array(self, schema: dict[str, Any], value: Any, exact: bool) -> _Seen | None:
        if not isinstance(value, list):
            return _NOTHING
        first = schema.get("prefixItems", ())
        seen = set(range(min(len(first), len(value))))
        for rule, one in zip(first, value, strict=False):
            if self.of(rule, one, exact) is None:
                return None
        if "items" in schema:
            seen = set(range(len(value)))
            if any(self.of(schema["items"], one, exact) is None for one in value[len(first) :]):
                return None
        if schema.get("uniqueItems"):
            texts = {self._text_of(one) for one in value}
            if len(texts) < len(value):
                return None
        if "contains" in schema:
            rule = schema["contains"]
            found = [at for at, one in enumerate(value) if self.of(rule, one, True) is not None]
            least = schema.get("minContains", 1)
            if not least <= len(found) <= schema.get("maxContains", len(found)):
                return None
            seen.update(found)
        return _Seen(items=frozenset(seen))

    def _rest(self, schema: dict[str, Any], value: Any, exact: bool, seen: _Seen) -> _Seen | None:
        rest: Iterable[Any] = ()
        if "unevaluatedProperties" in schema and isinstance(value, dict):
            names = value.keys() - seen.names
            rule, rest = schema["unevaluatedProperties"], [value[name] for name in names]
            seen = _Seen(frozenset(value), seen.items)
        elif "unevaluatedItems" in schema and isinstance(value, list):
            places = set(range(len(value))) - seen.items
            rule, rest = schema["unevaluatedItems"], [value[at] for at in places]
            seen = _Seen(seen.names, frozenset(range(len(value))))
        if any(self.of(rule, one, exact) is None for one in rest):
            return None
        return seen


def _type_is(value: Any, types: Any) -> bool:
    names = types if isinstance(types, list) else [types]
    type_ = type_of(value)
    return type_ in names or (type_ == "number" and "integer" in names and value == int(value))


def _of_size(
    kind: type[str | list[Any] | dict[str, Any]], holds: Callable[[int, int], bool]
) -> Callable[[Any, Any], bool]:
    return lambda value, limit: not isinstance(value, kind) or holds(len(value), limit)


def _of_number(holds: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    return lambda value, limit: type_of(value) != "number" or holds(value, _number(str(limit)))


_RULES: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "type": _type_is,
    "required": lambda value, names: not isinstance(value, dict) or all(n in value for n in names),
    "dependentRequired": lambda value, needed: (
        not isinstance(value, dict)
        or all(one in value for name, names in needed.items() if name in value for one in names)
    ),
    "minLength": _of_size(str, int.__ge__),
    "maxLength": _of_size(str, int.__le__),
    "minItems": _of_size(list, int.__ge__),
    "maxItems": _of_size(list, int.__le__),
    "minProperties": _of_size(dict, int.__ge__),
    "maxProperties": _of_size(dict, int.__le__),
    "minimum": _of_number(lambda value, limit: bool(value >= limit)),
    "maximum": _of_number(lambda value, limit: bool(value <= limit)),
    "exclusiveMinimum": _of_number(lambda value, limit: bool(value > limit)),
    "exclusiveMaximum": _of_number(lambda value, limit: bool(value < limit)),
    "multipleOf": _of_number(lambda value, limit: bool(value % limit == 0)),
}
"""Keywords that concern only the value itself."""


def _number(text: str) -> Decimal:
    number = Decimal(text)
    if not number.is_finite() or abs(number.adjusted()) > _MAX_DIGITS:
        raise ValueError("a number is too large")
    return number


def _list(words: Iterable[str]) -> str:
    return ", ".join(words)

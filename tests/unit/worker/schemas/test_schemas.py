"""What schemas are rewritten to, and the check of answers, against a validator of others."""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from jsonschema import Draft202012Validator

from lmx.worker.engine.values import Unchecked
from lmx.worker.schemas.check import SchemaCheck
from lmx.worker.schemas.dialects import SchemaFault, ecma, standalone
from lmx.worker.schemas.disjoint import Lookup, equal_text
from lmx.worker.schemas.negation import negated
from lmx.worker.schemas.rewrite import Rewritten, rewrite
from tests.support.references.schema_cases import SCHEMAS, VALUES
from tests.support.rigs.budgets import examples

DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
_SLOW = settings(
    max_examples=examples(120), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def rewritten(schema: dict[str, Any], *, expand: bool = True) -> Rewritten:
    return rewrite(standalone(schema), lambda _: True, expand=expand)


def second() -> Callable[[], float]:
    """Return what says how much is left of a second of the processor."""
    until_s = time.thread_time() + 1
    return lambda: until_s - time.thread_time()


def valid(schema: Any, value: Any) -> bool:
    return bool(Draft202012Validator(schema).is_valid(value))


@_SLOW
@given(SCHEMAS, VALUES)
def test_the_check_is_what_json_schema_says(schema: Any, value: Any) -> None:
    # Inside `not` one schema of `oneOf` alone is meant, as it is written.
    whole = {"not": schema}
    try:
        source = standalone(whole)
    except SchemaFault:
        return
    said = SchemaCheck(source, ())(json.dumps(value))
    assert (said is None) == valid(whole, value), source.schema


@_SLOW
@given(SCHEMAS, VALUES)
def test_what_is_rewritten_allows_all_that_is_valid(schema: Any, value: Any) -> None:
    if not isinstance(schema, dict):
        return
    made = rewritten(schema)
    if valid(schema, value):
        assert valid(made.schema, value), made
    elif not made.checked and not made.remarks:
        assert not valid(made.schema, value), made


@_SLOW
@given(SCHEMAS, VALUES)
def test_an_opposite_is_one(schema: Any, value: Any) -> None:
    source = standalone({"not": schema})
    made = negated(schema, True, Lookup(source))
    if made is not None:
        assert valid(made, value) is not valid(schema, value), made


@pytest.mark.parametrize(
    ("schema", "modern"),
    [
        (
            {"items": [{"type": "null"}], "additionalItems": False},
            {"prefixItems": [{"type": "null"}], "items": False},
        ),
        ({"maximum": 3, "exclusiveMaximum": True}, {"exclusiveMaximum": 3}),
        ({"maximum": 3, "exclusiveMaximum": False}, {"maximum": 3}),
        (
            {"dependencies": {"a": ["b"], "c": {"minProperties": 2}}},
            {
                "dependentRequired": {"a": ["b"]},
                "dependentSchemas": {"c": {"minProperties": 2}},
            },
        ),
        ({"minLength": 2.0, "title": "T", "default": 1, "format": "password"}, {"minLength": 2}),
        (
            {"$schema": DRAFT_7, "$ref": "#/definitions/a~1b", "maxLength": 1, "definitions":
             {"a/b": {"type": "string"}, "unused": {"type": "nothing"}}},
            {"$ref": "#/$defs/0", "$defs": {"0": {"type": "string"}}},
        ),
        (
            {"properties": {"a": {"$ref": "#x"}, "b": {"$ref": "#/properties/a"}},
             "$defs": {"q": {"$anchor": "x", "type": "null"}}},
            {
                "properties": {"a": {"$ref": "#/$defs/0"}, "b": {"$ref": "#/$defs/1"}},
                "$defs": {"1": {"$ref": "#/$defs/0"}, "0": {"type": "null"}},
            },
        ),
        (
            {"$id": "https://a.example/s.json", "properties": {"a": {"$ref": "t.json#/$defs/u"}},
             "$defs": {"t": {"$id": "t.json", "$defs": {"u": {"const": 1}}}}},
            {"properties": {"a": {"$ref": "#/$defs/0"}}, "$defs": {"0": {"const": 1}}},
        ),
        ({"items": {"$recursiveRef": "#"}}, {"items": {"$ref": "#"}}),
        ({"not": {"$ref": "#/$defs/no"}, "$defs": {"no": False}}, {"not": False}),
    ],
)  # fmt: skip
def test_any_draft_is_read(schema: dict[str, Any], modern: dict[str, Any]) -> None:
    assert standalone(schema).schema == modern


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"properties": {"a/b": {"type": "strong"}}}, "'strong', at #/properties/a~1b/type"),
        ({"anyOf": []}, "`anyOf` is an array of one schema or more, at #/anyOf"),
        ({"allOf": [{}, 1]}, "a schema is an object, true or false, at #/allOf/1"),
        ({"required": True}, "names are an array of strings, at #/required"),
        ({"minItems": 1.5}, "`minItems` is a whole number, 0 or more, at #/minItems"),
        ({"multipleOf": 0}, "`multipleOf` is a number above 0, at #/multipleOf"),
        ({"pattern": 1}, "`pattern` is a string"),
        ({"properties": []}, "`properties` is an object of schemas"),
        ({"dependentRequired": {"a": {}}}, "strings, at #/dependentRequired/a"),
        ({"uniqueItems": "yes"}, "`uniqueItems` is true or false"),
        ({"items": {"enum": [{"a": [1e400]}]}}, "a number in it is too large"),
        ({"not": {"minItems": 2**31}}, "no answer is that long"),
        ({"maximum": 10**400}, "`maximum` is a number"),
        ({"$ref": "http://["}, "another document"),
        ({"$ref": "#/x/" + "9" * 5000, "x": [{}]}, "there is nothing at"),
        ({"$ref": "https://example.org/a"}, "another document, which is not fetched, at #/$ref"),
        ({"items": {"$ref": "#/no"}}, "there is nothing at '#/no', at #/items/$ref"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#"}]}}}, "itself without end"),
        (
            {"$defs": {"a": {"$dynamicAnchor": "x"}, "b": {"$dynamicAnchor": "x"}},
             "$dynamicRef": "#x"},
            "`$dynamicRef` may mean several places",
        ),
    ],
)  # fmt: skip
def test_what_is_no_schema_is_said_with_its_place(schema: dict[str, Any], said: str) -> None:
    with pytest.raises(SchemaFault) as raised:
        standalone(schema)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("pattern", "meant"),
    [
        (r"^\d+$", "^[0-9]+$"),
        (r"[\w-.]\W[^\D]", r"[A-Za-z0-9_\-.][^A-Za-z0-9_][^\D]"),
        (r"a\/b\\d", r"a/b\\d"),
        (r"\uD83C\uDF89?", "\N{PARTY POPPER}?"),
        (r"[\u0041-\u005A]", "[A-Z]"),
        (
            r"^[\u{4e00}-\u{9FFF}]+\u{2D}[\u{2d}\u{1F389}]$",
            "^[一-\u9fff]+\\-[\\-\N{PARTY POPPER}]$",
        ),
        (r"\u{0}a\u{000000062}", "\0ab"),
        (r"\u{110000}\u{}\u12", r"\u{110000}\u{}\u12"),
        ("[[a&&b~~]&[^-~]", r"[\[a\&\&b\~\~]&[^\-\~]"),
        ("", ""),
        ("[+--][--a][a-c--z][---]", r"[+-\-][\--a][a-c\--z][\--\-]"),
        (r"[a-z_-]-[a-\d][^-z]x--", r"[a-z_-]-[a\-0-9][^\-z]x--"),
    ],
)
def test_expressions_mean_what_they_do_in_ecmascript(pattern: str, meant: str) -> None:
    assert ecma(pattern) == meant


def test_what_is_left_out_is_said_with_its_place() -> None:
    schema = {
        "$defs": {"d": {"type": "array", "uniqueItems": True}},
        "properties": {"a": {"$ref": "#/$defs/d"}, "b": {"not": {"pattern": "a"}}},
    }
    made = rewritten(schema)
    assert made.checked == ("`not` at #/properties/b", "`uniqueItems` at #/$defs/d")
    assert "`uniqueItems` at #/$defs/d" in str(
        SchemaCheck(standalone(schema), made.checked)('{"a": [1, 1]}')
    )


def test_alternatives_are_few() -> None:
    many = {f"p{n}": [f"q{n}"] for n in range(40)}
    made = rewritten({"type": "object", "dependentRequired": many})
    assert len(json.dumps(made.schema)) < 3000
    assert made.checked == ("`dependentRequired` at #",)
    plain = rewritten({"type": "object", "dependentRequired": {"a": ["b"]}}, expand=False)
    assert (plain.schema, len(plain.checked)) == ({"type": "object"}, 1)


def test_a_check_ends() -> None:
    # Each level names the one below twice: without a memory 2^60 steps.
    levels: dict[str, Any] = {
        str(n): {"allOf": [{"$ref": f"#/$defs/{n + 1}"}] * 2} for n in range(60)
    }
    source = standalone({"$defs": {**levels, "60": {"minimum": 5}}, "$ref": "#/$defs/0"})
    assert SchemaCheck(source, ())("5") is None
    # The expression accepts exponential time.
    slow = SchemaCheck(standalone({"pattern": "^(a|a)*$", "not": {"const": 1}}), ("`not`",))
    with pytest.raises(Unchecked, match="`not`"):
        slow(json.dumps("a" * 60 + "b"), second())
    assert "no JSON" in str(slow("[" * 100_000))
    assert "no JSON" in str(slow("1" * 10_000))


def test_all_of_an_answer_has_one_time() -> None:
    # Each match accepts some time, and there are more of them than there is time for.
    text, pattern = "a" * 30 + "!", "^(a|aa)+$"
    check = SchemaCheck(standalone({"not": {"contains": {"pattern": pattern}}}), ("`not`",))
    answer = json.dumps([f"{text}{n}" for n in range(10_000)])
    before_s = time.process_time()
    with pytest.raises(Unchecked):
        check(answer, second())
    # Without a limit for all it is an hour.
    assert time.process_time() - before_s < 60


def test_what_is_listed_is_read_once_for_each_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[Any] = []

    def counted(value: Any) -> str:
        compared.append(value)
        return equal_text(value)

    monkeypatch.setattr("lmx.worker.schemas.check.equal_text", counted)
    ids = list(range(5000))
    schema = {"items": {"enum": ids}, "uniqueItems": True, "prefixItems": [{"const": "a"}] * 2}
    check = SchemaCheck(standalone(schema), ("`uniqueItems`",))
    answers = [json.dumps(["a", "a", *ids[:300]]), json.dumps(["a", "a", *ids[-300:]])]
    assert [check(one) is None for one in (*answers, *answers)] == [False] * 4
    assert len(compared) < 2 * len(ids)


def test_constants_of_which_there_are_thousands_are_known_to_differ() -> None:
    options = [{"const": n, "title": f"choice {n}"} for n in range(3000)]
    before_s = time.process_time()
    made = rewritten({"oneOf": options})
    assert (made.remarks, made.checked, len(made.schema["anyOf"])) == ((), (), 3000)
    # Compared pair by pair they are nine million comparisons.
    assert time.process_time() - before_s < 30
    assert rewritten({"oneOf": [*options, {"enum": [-1, 2999]}]}).remarks


@pytest.mark.parametrize(
    "schema",
    [
        # The name accepts exponential time with the pattern.
        {"properties": {"a" * 60 + "!": {}}, "propertyNames": {"pattern": "^(a|aa)+$"}},
        {"unevaluatedProperties": False, "allOf": [{"$ref": "#/$defs/0"}], "$defs":
         {str(n): {"allOf": [{"$ref": f"#/$defs/{n + 1}"}] * 400} for n in range(3)}
         | {"3": {"properties": {"a": {}}}}},
        {"oneOf": [{"const": 1}] * 3000},
        {"oneOf": [{"minLength": n} for n in range(3000)]},
        {"properties": {"a": {}}, "additionalProperties": False, "minProperties": 2**31 - 1},
    ],
)  # fmt: skip
def test_what_would_take_long_to_rewrite_is_checked_or_a_remark(schema: dict[str, Any]) -> None:
    before_s = time.process_time()
    made = rewritten(schema)
    assert made.checked or made.remarks
    assert time.process_time() - before_s < 30


@pytest.mark.parametrize(
    ("schema", "refused"),
    [
        (
            {
                "properties": {"a": {"type": "integer"}},
                "propertyNames": {"pattern": "^[a-z]+$"},
                "unevaluatedProperties": False,
            },
            {"a": 1, "b": 2},
        ),
        ({"propertyNames": {"enum": [1]}}, {"": 1}),
        ({"propertyNames": {"type": "null", "minLength": 1}}, {"a": 1}),
        (
            {
                "type": "array",
                "items": {"enum": ["a", "bb", "cc"], "minLength": 2},
                "uniqueItems": True,
            },
            ["a"],
        ),
        (
            {
                "type": "array",
                "items": {"enum": ["a", 1, 1.5], "type": ["integer", "string"]},
                "uniqueItems": True,
            },
            [1.5],
        ),
    ],
)
def test_what_is_forbidden_is_enforced_or_checked(schema: dict[str, Any], refused: Any) -> None:
    assert not valid(schema, refused)
    made = rewritten(schema)
    if valid(made.schema, refused):
        check = SchemaCheck(standalone(schema), made.checked)
        assert made.checked and check(json.dumps(refused)) is not None


@pytest.mark.parametrize(
    ("schema", "allowed"),
    [
        (
            {
                "properties": {"a": {"type": "string"}},
                "propertyNames": {"pattern": "^[a-z]+$"},
                "additionalProperties": {"type": "integer"},
            },
            {"a": "x", "b": 1},
        ),
        (
            {
                "type": "object",
                "additionalProperties": {"enum": [1]},
                "patternProperties": {"^a": {"type": "string"}},
                "required": ["ab"],
                "not": {"properties": {"ab": {"const": "x"}}},
            },
            {"ab": "y"},
        ),
        ({"propertyNames": {"type": ["string", "null"], "pattern": "a"}}, {"a": 1}),
    ],
)
def test_what_is_valid_stays_possible(schema: dict[str, Any], allowed: Any) -> None:
    assert valid(schema, allowed)
    assert valid(rewritten(schema).schema, allowed)


def test_items_that_are_listed_are_distinguished_in_the_grammar() -> None:
    for items in ({"const": 1, "type": "integer"}, {"type": "boolean"}, {"enum": ["a", None]}):
        made = rewritten({"type": "array", "items": items, "uniqueItems": True})
        assert not made.checked


def test_what_failed_in_a_circle_is_looked_at_again_elsewhere() -> None:
    # "b" fails first for "a", which is still under way, and then holds by it.
    schema = {
        "$defs": {
            "a": {"anyOf": [{"$ref": "#/$defs/b"}, {"minimum": 1}]},
            "b": {"anyOf": [{"$ref": "#/$defs/a"}, {"minimum": 9}]},
        },
        "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
    }
    check = SchemaCheck(standalone(schema), ("`x`",))
    assert check("5") is None
    assert check("0") is not None


def test_many_alternatives_are_not_compared_with_each_other() -> None:
    """Counted in calls, which do not depend on the machine."""

    def calls(alternatives: int) -> int:
        schema = {"anyOf": [{"const": value} for value in range(alternatives)]}
        count = 0

        def note(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += event == "call"

        before = sys.getprofile()
        sys.setprofile(note)
        try:
            standalone(schema)
        finally:
            sys.setprofile(before)
        return count

    assert calls(1000) < 3 * calls(500)

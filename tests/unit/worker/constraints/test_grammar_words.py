"""What llguidance refuses is said in lmx's words: nobody can set its options."""

import pytest

from lmx.worker.constraints.error_texts import (
    TOO_COMPLEX,
    UNSPELLABLE,
    explain_error,
    has_lone_surrogate,
    parts,
)

ERRORS = {
    "lexer error: too many expressions constructed": TOO_COMPLEX,
    "initial lexer configuration (grammar) too big (limit for this grammar: 1000)": TOO_COMPLEX,
    "Current row has 2001 items; max is 2000; consider making your grammar left-recursive if it's "
    "right-recursive; ParserTooComplex": TOO_COMPLEX,
    "parser error: Too many items (limit 50000; ff_tokens); try avoiding single-byte/short "
    "lexemes": TOO_COMPLEX,
    "step_lexer_fuel exceeded": TOO_COMPLEX,
    'Parser Error: token "x[0]" doesn\'t satisfy the grammar; forced bytes: got 4': UNSPELLABLE,
    "NoExtensionBias": "nothing that this model can write fits it",
    'Unimplemented keys: ["not", "if"]': "`not` and `if` can't be enforced",
    "oneOf constraints are not supported. Enable 'coerce_one_of' option": "use anyOf",
    "recursion limit exceeded at line 1 column 1": "nested too deeply",
    "Unsatisfiable schema: anyOf is empty\n<more>": "nothing satisfies it",
    "regex parse error:\n    (\n    ^\nerror: unclosed group": "expression can't be enforced: unc",
    "lookarounds not supported yet; WordUnicode in regex /x/": "a boundary or an anchor",
    'at 1(8): unknown special token: "<nope>"; following special tokens are available: <a>':
        "it names a token that this model doesn't have: <nope>",
    'at 1(8): unknown name: "foo"\n1: start: foo': "something that can't be enforced",
    "Schema intersection stack level exceeded": "its schemas are combined too deeply",
    "circular references with sibling keys are not supported: json-schema:///#/$defs/5":
        "a schema leads back to itself",
    "Expected positive integer for 'minItems', got 1e30": "something that can't be enforced",
    "unexpected end of hex escape at line 1 column 69": "half of a character",
    "<non-verbose/>": "something that can't be enforced",
    "internal panic in serde_json::from_str": "something that can't be enforced",
    "enum must be an array": "something that can't be enforced",
}  # fmt: skip


@pytest.mark.parametrize("error", ERRORS)
def test_errors_are_in_words(error: str) -> None:
    said = explain_error(error)
    assert ERRORS[error] in said
    assert not {"fuel", "option", "lexeme", "Enable"} & set(said.replace("'", " ").split())
    assert "\n" not in said


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ('at 1(8): unknown name: "foo"\n1: start: foo', 'line 1, column 8: unknown name: "foo"'),
        ("1(10): lexer error", "line 1, column 10 is not Lark"),
        ("no start rule", "no start rule"),
        ("option coerce_one_of", "it has something that can't be enforced"),
    ],
)
def test_what_is_said_of_a_client_s_own_lark_is_passed_on(error: str, said: str) -> None:
    assert explain_error(error, lark=True) == said


def test_parts_have_their_paths() -> None:
    schema = {"properties": {"x": {"anyOf": [{"type": "null"}, True]}}}
    assert dict(parts(schema)) == {
        "": schema,
        ".properties": schema["properties"],
        ".properties.x": schema["properties"]["x"],
        ".properties.x.anyOf[0]": {"type": "null"},
    }


def test_half_of_a_pair() -> None:
    assert has_lone_surrogate("a\ud83d")
    assert not has_lone_surrogate("a😀é")

"""The table of families, beside the registry of the library that is installed."""

import importlib
import pkgutil
from importlib.metadata import version
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from lmx.worker.formats import families
from lmx.worker.formats.families import table
from lmx.worker.formats.families.table import FAMILIES, family_of, parser_for
from lmx.worker.formats.family import Family, SpecialTokens, Tool
from lmx.worker.formats.forms import library
from lmx.worker.formats.forms.library import family_parser, family_registry
from lmx.worker.formats.grammar import tools_grammar
from tests.support.rigs.parsed_output import parse, tool

TOOLS = [tool("now"), tool("save", path="string")]
OWN = {name for name, family in FAMILIES.items() if family.template_markers}


def test_every_family_of_the_library_has_a_line_in_the_table() -> None:
    known = {spec.name for spec in family_registry().SPECS}
    said = f"mlx-vlm {version('mlx-vlm')}"
    new, gone = known - FAMILIES.keys(), FAMILIES.keys() - OWN - known
    assert not new, (
        f"{said} has tool parsers that lmx does not know: {sorted(new)}. Their calls are read by "
        "the library and not enforced, until each has a value in worker/formats/families."
    )
    assert not gone, (
        f"{said} no longer tells these families by their chat templates: {sorted(gone)}. Each "
        "needs `template_markers` of its own in worker/formats/families."
    )


@pytest.mark.parametrize("name", sorted(FAMILIES.keys() - OWN))
def test_the_library_s_parsers_are_where_they_are_looked_for(name: str) -> None:
    parser = family_parser(name)
    assert callable(parser.parse_tool_call), "formats/forms/library calls it"
    assert isinstance(parser.tool_call_start, str), "families/table reads it"
    assert isinstance(parser.tool_call_end, str), "families/table reads it"


def test_every_family_is_in_the_table() -> None:
    found: dict[str, str] = {}
    for module in pkgutil.walk_packages(families.__path__, f"{families.__name__}."):
        if module.ispkg or module.name.endswith(".table"):
            continue
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, Family):
                found[value.name] = module.name
                assert FAMILIES.get(value.name) is value, f"{module.name} has no line in the table"
    assert found.keys() == FAMILIES.keys()


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_a_family_says_how_its_calls_are_read(family: Family) -> None:
    assert bool(family.calls) is (family.answer is None)
    assert all(form.start for form in family.calls)
    assert family_of(family.name) is family


def a_new_parser() -> ModuleType:
    module = ModuleType("newest")
    module.__dict__.update(
        tool_call_start="<new>",
        tool_call_end="</new>",
        parse_tool_call=lambda text, tools: {"name": text.strip(), "arguments": {}},
    )
    return module


@pytest.fixture
def a_later_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the library know a family "newest", and one "odd" that has no parser to speak of."""
    spec = SimpleNamespace(name="newest", priority=100, matches=lambda text: "<new>" in text)
    odd = SimpleNamespace(name="odd", priority=100, matches=lambda text: "<odd>" in text)
    specs = SimpleNamespace(SPECS=(*family_registry().SPECS, spec, odd))
    monkeypatch.setattr("lmx.worker.formats.families.table.family_registry", lambda: specs)

    def find(name: str) -> Any:
        return a_new_parser() if name == "newest" else family_parser(name)

    for module in (library, table):
        monkeypatch.setattr(module, "family_parser", find)


@pytest.mark.usefixtures("a_later_library")
def test_a_family_that_only_the_library_knows_is_read_by_its_parser() -> None:
    assert parser_for("a <new> form", None) == "newest"
    parsed = parse("Hm <new>now</new><new>nobody</new>", "newest", tools=TOOLS)
    assert parsed.objects == [("now", {})]
    assert parsed.content == "Hm<new>nobody</new>"
    family = family_of("newest")
    assert "'newest', which lmx does not know" in family.remark
    # What must be called is held to JSON, and that is read too.
    made = tools_grammar([Tool("now", {"type": "object"})], family, False, SpecialTokens({}))
    assert "<tool_call>" in made["lark_grammar"]
    text = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    assert parse(text, "newest", tools=TOOLS).objects == [("now", {})]


@pytest.mark.usefixtures("a_later_library")
def test_a_family_of_which_nothing_is_known_has_calls_in_json() -> None:
    assert parser_for("an <odd> form", None) == "odd"
    assert "only calls in JSON are read" in family_of("odd").remark
    text = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    assert parse(text, "odd", tools=TOOLS).objects == [("now", {})]


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_definitions_are_written_for_the_arguments_that_refer_to_them(family: Family) -> None:
    def written(count: int, values: int, **reference: str) -> str:
        schema = {
            "type": "object",
            "properties": {f"a{at}": {"type": "integer", **reference} for at in range(count)},
            "$defs": {"whole": {"type": "integer", "enum": [*range(values)]}},
            "additionalProperties": False,
        }
        tools = [Tool("save", schema)]
        return str(tools_grammar(tools, family, False, SpecialTokens({}))["lark_grammar"])

    assert written(20, 1).count('"whole"') <= 1
    assert '"whole"' in written(2, 1, **{"$ref": "#/$defs/whole"})
    # Very many copies would take long: the arguments are one object in JSON instead.
    assert written(400, 1000, **{"$ref": "#/$defs/whole"}).count('"whole"') <= 1

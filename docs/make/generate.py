"""Writes into the documents what the code says of each field: `make docs`.

The meaning, range and default of a field of a request stand on the field
(:mod:`lmx.router.schema.requests`), those of a key of the configuration on the key
(:mod:`lmx.supervisor.config.schema`). From there come:

- in ``docs/parameters.md``, ``docs/audio.md`` and ``docs/configuration.md`` the tables between
  marks. A mark names what comes below it, ``<!-- fields of ChatRequest: model stream -->`` or
  ``<!-- keys of lmx.yaml -->``; ``<!-- end -->`` ends it. What stands outside is written by hand.
- in ``docs/clients.md`` the lines of each client, ``<!-- lines of Codex -->``, which the console's
  page Connect has too: both are from ``router/console/assets/clients.json``.
- ``deploy/lmx.example.yaml``, which ``lmx init`` writes too: every key with its meaning, commented
  out, with its default or an example.
- ``deploy/lmx.schema.json``, with which editors check and complete a configuration.
- in ``docs/start/which-model.md`` the table of models that fit, ``<!-- memories of Macs -->``, by
  :mod:`docs.make.mac_table`.
- ``docs/commands.md``: every command of `lmx`, its options and examples.
- ``docs/status.schema.json``, which says what `lmx status --json` prints.
- in ``pyproject.toml`` the lists of packages, and of modules that say that they are pure.

With ``--check`` nothing is written: the exit status is 1 when something would be.
"""

import ast
import functools
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, get_args

import yaml
from pydantic import ByteSize
from pydantic.fields import FieldInfo

from docs.make import mac_table
from docs.make.commands_page import commands_page
from docs.make.figures import PACKAGES
from docs.make.status_schema import status_schema
from lmx.protocol.models.keep_alive import keep_alive_text
from lmx.router.schema.openapi.document import describe_api
from lmx.router.schema.openapi.schemas import field_docstrings
from lmx.router.server.routes import ROUTES
from lmx.supervisor.config.load import variable_names
from lmx.supervisor.config.needs import Needs, needs_of
from lmx.supervisor.config.schema import Config
from lmx.supervisor.config.values import DURATION_PATTERN, Section

ROOT: Final = Path(__file__).parents[2]
PARAMETERS: Final = ROOT / "docs" / "parameters.md"
AUDIO: Final = ROOT / "docs" / "audio.md"
CONFIGURATION: Final = ROOT / "docs" / "configuration.md"
CLIENTS: Final = ROOT / "docs" / "clients.md"
CLIENT_LINES: Final = ROOT / "router" / "console" / "assets" / "clients.json"
EXAMPLE: Final = ROOT / "deploy" / "lmx.example.yaml"
SCHEMA: Final = ROOT / "deploy" / "lmx.schema.json"
WHICH_MODEL: Final = ROOT / "docs" / "start" / "which-model.md"
COMMANDS: Final = ROOT / "docs" / "commands.md"
STATUS: Final = ROOT / "docs" / "status.schema.json"
PROJECT: Final = ROOT / "pyproject.toml"

_MARKED: Final = re.compile(
    r"(<!-- (fields of|keys of|lines of|memories of) (.+?) -->\n).*?(<!-- end -->)", re.DOTALL
)
_FILLED: Final = re.compile(r"\{\{(\w+)(?::([^}]*))?\}\}")
_PURE: Final = re.compile(r"\bPure\b|\bmodule\s+is\s+pure\b")
_PACKAGE_LIST: Final = re.compile(r"(^packages = \[\n).*?^\]", re.DOTALL | re.MULTILINE)
_PURE_LIST: Final = re.compile(
    r'(^id = "pure"$.*?^source_modules = \[\n).*?^\]', re.DOTALL | re.MULTILINE
)
IN_WORDS: Final = {
    Needs.NOTHING: "takes effect at once",
    Needs.NEXT_WORKER: "takes effect when a worker starts",
    Needs.WORKER: "the model is reloaded once its streams have ended",
    Needs.ROUTER: "the router is replaced once its streams have ended",
    Needs.ADDRESS: "the router is replaced by one that listens there, after its streams",
    Needs.ROUTER_AND_NEXT_WORKER: "the router is replaced, after its streams; workers have it from "
    "their next start",
}
"""What a change of a key needs, in words."""

_UNBOUNDED: Final = 2**31 - 1
"""A bound as large as this is there for machines: no person comes near it."""

_ENDLESS: Final = 10_000
"""Columns: no value is broken into lines."""

_EXAMPLE_HEAD: Final = """\
# yaml-language-server: $schema=lmx.schema.json
# lmx.yaml with every key. All are commented out, with their defaults, or with an example where
# there is none. To set a key, remove the # directly before it.
# `lmx config check` reports every mistake, `lmx reload` has a running lmx read the file again.
# Sizes may be written as 16MiB or 8GB. What ends in _s is in seconds,
# or has units: 90s, 5m, 1h30m.
# docs/configuration.md has the ranges, what follows from a change, and the variables that override
# the file. This file is made from the code by `make docs`."""

Schema = Mapping[str, Any]


def documents() -> dict[Path, str]:
    """Return each document as it is to be."""
    return {
        PARAMETERS: _with_tables(PARAMETERS.read_text(), _request_table),
        AUDIO: _with_tables(AUDIO.read_text(), _request_table),
        CONFIGURATION: _with_tables(CONFIGURATION.read_text(), lambda _: _all_keys()),
        CLIENTS: _with_tables(CLIENTS.read_text(), client_lines),
        COMMANDS: commands_page(),
        WHICH_MODEL: _with_tables(WHICH_MODEL.read_text(), lambda _: mac_table.table()),
        EXAMPLE: example(),
        SCHEMA: json.dumps(configuration_schema(), indent=2) + "\n",
        STATUS: json.dumps(status_schema(), indent=2) + "\n",
        PROJECT: _project(PROJECT.read_text()),
    }


def _project(text: str) -> str:
    """Return pyproject.toml with its lists of packages and of pure modules."""
    packages, pure = [], list[str]()
    for path in sorted(path for top in PACKAGES for path in (ROOT / top).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(["lmx", *parts]).removesuffix(".__init__")
        if path.name == "__init__.py":
            packages.append(name)
        docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
        # A package stands for all that is in it.
        covered = any(name.startswith(f"{one}.") for one in pure)
        if _PURE.search(docstring) and not covered:
            pure.append(name)
    for pattern, names in ((_PACKAGE_LIST, packages), (_PURE_LIST, pure)):
        lines = "".join(f'    "{name}",\n' for name in sorted(names))
        text = pattern.sub(rf"\g<1>{lines}]", text)
    return text


def _with_tables(text: str, table: Callable[[str], str]) -> str:
    return _MARKED.sub(lambda found: f"{found[1]}{table(found[3])}\n{found[4]}", text)


def client_lines(name: str) -> str:
    """Return the block to paste for a client, with the address and the model of the examples."""
    table = json.loads(CLIENT_LINES.read_text())
    (client,) = [one for one in table["clients"] if one["name"] == name]
    (block,) = client["blocks"]
    text = _FILLED.sub(
        lambda found: found[2] or table["examples"][found[1]], "\n".join(block["lines"])
    )
    return f"```{block['language']}\n{text}\n```"


def values_of(schema: Schema, definitions: Schema) -> str:
    """Return in words which values a field may have; null, which is as good as nothing, is left
    out."""
    if "$ref" in schema:
        return values_of(definitions[schema["$ref"].rpartition("/")[2]], {})
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        if any(one.get("pattern") == DURATION_PATTERN for one in options):
            return f"time, {', '.join(_bounds(options[0]))} s"
        texts = [values_of(one, definitions) for one in options if one.get("type") != "null"]
        return ", or ".join(dict.fromkeys(texts))
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        return " or ".join(kind)
    match kind:
        case "boolean":
            return "true or false"
        case "integer" | "number":
            return ", ".join([kind, *_bounds(schema)])
        case "string":
            return _amount(schema, "string", "Length", "characters")
        case "array":
            return _amount(schema, "array", "Items", _plural(schema.get("items", {})))
    return str(kind)


def _plural(schema: Schema) -> str:
    kinds = [one.get("type", "object") for one in schema.get("anyOf", [schema])]
    return " or ".join(f"{kind}s" for kind in kinds if kind != "null")


def _bounds(schema: Schema) -> Iterator[str]:
    least, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    most = schema.get("maximum")
    if most is not None and most >= _UNBOUNDED:
        most = None
    if least is not None and least <= -_UNBOUNDED:
        least = None
    if least is not None and most is not None:
        yield f"{_number(least)} to {_number(most)}"
        return
    if above is not None:
        yield f"above {above:g}"
    if least is not None:
        yield f"at least {least:g}"
    if most is not None:
        yield f"at most {_number(most)}"


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) or value >= 10_000 else f"{value:g}"


def _amount(schema: Schema, kind: str, name: str, unit: str) -> str:
    least, most = schema.get(f"min{name}", 0), schema.get(f"max{name}")
    if most is not None:
        return f"{kind} of {f'{least} to ' if least else 'up to '}{most:,} {unit}"
    if kind == "array":
        return f"array of one or more {unit}" if least else f"array of {unit}"
    return f"{kind}, not empty" if least else kind


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _table(head: tuple[str, ...], rows: Iterator[str]) -> str:
    return "\n".join([_row(*head), "|" + "---|" * len(head), *rows])


# Requests.


@functools.cache
def request_schemas() -> Schema:
    """Return the schemas of all requests, as the API describes itself."""
    schemas: Schema = describe_api(ROUTES, "")["components"]["schemas"]
    return schemas


def request_fields(text: str) -> dict[str, list[str]]:
    """Return which fields of which request a document has tables of. A field of an object within
    a request is named with a point: ``stream_options.include_usage``."""
    named: dict[str, list[str]] = {}
    for _, kind, what, _ in _MARKED.findall(text):
        if kind == "fields of":
            request, _, fields = what.partition(":")
            named.setdefault(request, []).extend(fields.split())
    return named


def _request_table(what: str) -> str:
    request, _, fields = what.partition(":")
    schemas = request_schemas()
    rows = (_request_row(name, schemas[request], schemas) for name in fields.split())
    return _table(("field", "meaning", "values", "default"), rows)


def _request_row(name: str, schema: Schema, schemas: Schema) -> str:
    outer, _, inner = name.rpartition(".")
    for step in outer.split(".") if outer else ():
        schema = schemas[_reference(schema["properties"][step])]
    field = schema["properties"][inner]
    meaning, _, default = field["description"].partition(" Default: ")
    if not default and inner in schema.get("required", ()):
        default = "required"
    return _row(f"`{name}`", meaning, values_of(field, schemas), default.removesuffix("."))


def _reference(field: Schema) -> str:
    options = field.get("anyOf", [field])
    return str(next(one["$ref"] for one in options if "$ref" in one).rpartition("/")[2])


# Configuration.


def configuration_schema() -> dict[str, Any]:
    """Return the JSON Schema of lmx.yaml."""
    schema = Config.model_json_schema()
    _describe(schema, Config)
    for section in _sections():
        _describe(schema["$defs"][section.__name__], section)
    for name, its in schema["properties"].items():
        # One with nothing below it, as when all its keys are commented out, says nothing.
        described = schema["$defs"][its["$ref"].rpartition("/")[2]] if "$ref" in its else its
        schema["properties"][name] = {
            "description": described["description"],
            "anyOf": [
                {key: value for key, value in its.items() if key != "description"},
                {"type": "null"},
            ],
        }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "lmx.yaml",
        "description": "The configuration of lmx.",
    }


def _describe(schema: dict[str, Any], section: type[Section]) -> None:
    """Put the descriptions of a section's keys on one line each, with what a change needs."""
    needs = needs_of(section)
    schema["description"] = _line(schema.get("description", ""))
    schema.pop("title", None)
    for name, its in schema["properties"].items():
        its.pop("title", None)
        if not isinstance(its.get("default"), str | bool | int | float):
            its.pop("default", None)
        description = _line(_meaning(section, name))
        if name in needs:
            description = f"{description}\n\nOn a change: {IN_WORDS[needs[name]]}.".strip()
        if description:
            its["description"] = description


def _meaning(section: type[Section], name: str) -> str:
    described = section.model_fields[name].description
    return described or field_docstrings(section).get(name, "")


def _line(docstring: str) -> str:
    return " ".join(docstring.replace("``", "`").split())


def _sections() -> dict[type[Section], list[str]]:
    """Return every kind of section below the whole, with the paths where it stands."""
    found: dict[type[Section], list[str]] = {}
    left: list[tuple[type[Section], str]] = [(Config, "")]
    while left:
        section, path = left.pop(0)
        for name, field in section.model_fields.items():
            for inner, steps in _within(field.annotation):
                where = f"{path}.{name}{steps}".removeprefix(".")
                found.setdefault(inner, []).append(where)
                left.append((inner, where))
    return found


def _within(annotation: Any, steps: str = "") -> Iterator[tuple[type[Section], str]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation, steps
    for one in get_args(annotation):
        yield from _within(one, steps + "[]" * (getattr(annotation, "__origin__", None) is tuple))


def _all_keys() -> str:
    schema = Config.model_json_schema()
    parts = [_keys("At the top", Config, schema, schema["$defs"])]
    for section, paths in _sections().items():
        title = ", ".join(f"`{path}`" for path in paths)
        its = schema["$defs"][section.__name__]
        parts.append(_keys(title, section, its, schema["$defs"]))
    return "\n\n".join(parts)


def _keys(title: str, section: type[Section], schema: Schema, definitions: Schema) -> str:
    needs = needs_of(section)
    variables = {path: name for name, path in variable_names().items()}
    where = () if section is Config else (title.strip("`"),)
    rows = []
    for name, field in section.model_fields.items():
        if section is Config and next(_within(field.annotation), (None, "[]"))[1] == "":
            continue
        variable = variables.get((*where, name))
        cells = [
            f"`{name}`" + (f"<br>`{variable}`" if variable else ""),
            _line(_meaning(section, name)),
            _values_of_key(schema["properties"][name], field, definitions),
            _default(name, field),
        ]
        if needs:
            cells.append(IN_WORDS[needs[name]] if name in needs else "")
        rows.append(_row(*cells))
    head = ("key", "meaning", "values", "default", *(("on a change",) if needs else ()))
    about = "" if section is Config else f"{_line(section.__doc__ or '')}\n\n"
    return f"## {title}\n\n{about}{_table(head, iter(rows))}"


def _values_of_key(schema: Schema, field: FieldInfo, definitions: Schema) -> str:
    if "ByteSize" in repr(field.annotation) or "ByteSize" in repr(field.metadata):
        return "size"
    # A section that stands by itself, and not in a list.
    if any(not steps for _, steps in _within(field.annotation)):
        return "section"
    return values_of(schema, definitions)


def _default(name: str, field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None or value == "" or isinstance(value, Section):
        return ""
    return f"`{_yaml(name, value)}`"


def _yaml(name: str, value: Any) -> str:
    """Return a value as a person writes it in lmx.yaml."""
    if isinstance(value, ByteSize):
        return value.human_readable().replace(".0", "")
    if name == "keep_alive" and isinstance(value, float):
        return keep_alive_text(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, tuple):
        value = [str(one) if isinstance(one, StrEnum) else one for one in value]
    text: str = yaml.safe_dump(value, default_flow_style=True, width=_ENDLESS, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")


def example() -> str:
    """Return a lmx.yaml with every key, all commented out: it changes nothing."""
    lines = [_EXAMPLE_HEAD]
    for name, field in Config.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            keys = _commented_out(_keys_in_yaml(kind, "  "), "  ")
            lines += ["", *_comment(kind.__doc__, ""), f"{name}:", *keys]
        elif inner := [one for one, _ in _within(kind)]:
            item = _commented_out(_as_item(_keys_in_yaml(inner[0], "    ")), "  ")
            lines += ["", *_comment(_meaning(Config, name), ""), f"{name}:", *item]
        else:
            lines += ["", *_commented_out(_key_in_yaml(Config, name, ""), "")]
    return "\n".join(lines) + "\n"


def _keys_in_yaml(section: type[Section], indent: str) -> list[str]:
    lines = [f"{indent}{name}: {_yaml(name, value)}" for name, value in _free_keys(section)]
    for name, field in section.model_fields.items():
        inner = [one for one, steps in _within(field.annotation) if not steps]
        if inner:
            lines += _comment(_meaning(section, name), indent)
            lines += [f"{indent}{name}:", *_keys_in_yaml(inner[0], indent + "  ")]
        else:
            lines += _key_in_yaml(section, name, indent)
    return lines


def _free_keys(section: type[Section]) -> Iterator[tuple[str, Any]]:
    """Return the keys that a section's example has and that people name as they like."""
    more = section.model_config.get("json_schema_extra")
    examples = more.get("examples") if isinstance(more, dict) else None
    if isinstance(examples, list) and isinstance(examples[0], dict):
        yield from examples[0].items()


def _key_in_yaml(section: type[Section], name: str, indent: str) -> list[str]:
    """Return a key with its meaning, and with its example or else its default."""
    field = section.model_fields[name]
    default = None if field.is_required() else field.get_default(call_default_factory=True)
    value = field.examples[0] if field.examples else default
    return [*_comment(_meaning(section, name), indent), f"{indent}{name}: {_yaml(name, value)}"]


def _as_item(lines: list[str]) -> list[str]:
    """Return the keys of a section as those of the first item of a list."""
    first = next(index for index, line in enumerate(lines) if not line.strip().startswith("#"))
    comment = [line.removeprefix("  ") for line in lines[:first]]
    return [*comment, lines[first].replace("    ", "  - ", 1), *lines[first + 1 :]]


def _comment(docstring: str | None, indent: str) -> list[str]:
    text = _line(docstring or "").replace("`", "")
    return textwrap.wrap(
        text,
        96,
        initial_indent=f"{indent}# ",
        subsequent_indent=f"{indent}# ",
        break_on_hyphens=False,
    )


def _commented_out(lines: list[str], indent: str) -> list[str]:
    return [
        line if line.startswith(f"{indent}#") else f"{indent}#{line.removeprefix(indent)}"
        for line in lines
    ]


def main(arguments: list[str]) -> int:
    """Write the documents, or with ``--check`` say which of them are stale."""
    stale = [path for path, text in documents().items() if _text_of(path) != text]
    for path in stale:
        if "--check" in arguments:
            print(f"{path.relative_to(ROOT)} is stale: `make docs` writes it again")
        else:
            path.write_text(documents()[path])
            print(f"wrote {path.relative_to(ROOT)}")
    return 1 if stale and "--check" in arguments else 0


def _text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

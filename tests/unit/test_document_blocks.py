"""What the documents' blocks of code say is so: commands and their options, targets of make, routes
and bodies of requests, keys of the configuration, names of variables. Nothing is run here: what can
be run is run by ``make installs``."""

import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

import click
import pytest
import yaml
from jsonschema import Draft202012Validator

from docs.make.generate import configuration_schema
from lmx.router.http.endpoint import Access
from lmx.router.server.routes import ROUTES
from lmx.supervisor.cli.main import main
from lmx.supervisor.config.load import variable_names
from tests.support.clients.document_requests import curl_request
from tests.support.references.document_blocks import DOCUMENTS, blocks, commands

ROOT: Final = Path(__file__).parents[2]
TODAYS: Final = [
    one for one in DOCUMENTS if one.name != "CHANGELOG.md" and one.parent.name != "decisions"
]
"""Those that say how lmx is, and not how it was or was not made."""
SHELL: Final = ("sh", "bash", "zsh")
by_document = pytest.mark.parametrize(
    "document", TODAYS, ids=lambda path: str(path.relative_to(ROOT))
)

PLACEHOLDER: Final = re.compile(r"\.\.\.|[A-Z][A-Z0-9_|/.-]*|\$\w+|\{.*\}")
"""What a reader puts something else for: ``MODEL``, ``$KEY``."""


def shell_commands(document: Path, *programs: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the commands of these programs in the document's shell blocks, each with its place."""
    for block in blocks(document.read_text()):
        if block.language in SHELL:
            for words in commands(block.text):
                if words[0].rpartition("/")[2] in programs:
                    yield f"{document.name}:{block.line}: {' '.join(words)}", words


def check_lmx(arguments: list[str], *, is_whole: bool = True) -> None:
    """Raise click's error if these are no arguments of ``lmx``. ``is_whole``: none is missing."""
    context = click.Context(main, info_name="lmx", **main.context_settings)
    command: click.Command = main
    while True:
        values, rest, _ = command.make_parser(context).parse_args(list(arguments))
        for one in command.get_params(context):
            _check_value(
                one, values.get(one.name), context, needed=is_whole and not values.get("help")
            )
        if not isinstance(command, click.Group):
            if rest and is_whole:
                raise click.UsageError(f"unexpected: {' '.join(rest)}", context)
            return
        if not rest or PLACEHOLDER.fullmatch(rest[0]):
            return
        inner = command.get_command(context, rest[0])
        if inner is None:
            raise click.UsageError(f"there is no command {rest[0]}", context)
        command, arguments = inner, rest[1:]
        context = click.Context(command, info_name=rest[0], parent=context)


CONVERTED: Final = (click.Choice, click.types.IntParamType, click.types.FloatParamType)


def _check_value(one: click.Parameter, value: Any, context: click.Context, *, needed: bool) -> None:
    given = [value] if isinstance(value, str) else list(value) if isinstance(value, tuple) else []
    if one.required and needed and not given:
        raise click.MissingParameter(ctx=context, param=one)
    if isinstance(one.type, CONVERTED):
        for each in given:
            if not PLACEHOLDER.fullmatch(each):
                one.type(each, one, context)


@by_document
def test_commands_of_lmx_are_ones(document: Path) -> None:
    for place, words in shell_commands(document, "lmx", "lmx-supervisor"):
        try:
            check_lmx(words[1:])
        except click.UsageError as error:
            pytest.fail(f"{place}: {error.format_message()}")


@by_document
def test_commands_of_lmx_in_the_text_are_ones(document: Path) -> None:
    """They may leave arguments out, and mark those that may be left out."""
    for code in re.findall(
        r"`lmx ([^`]+)`", re.sub(r"```.*?```", "", document.read_text(), flags=re.S)
    ):
        for each in re.split(r"[;|] ", code):
            words = re.sub(r"[\[\]]|(?<=\w)\|\S*|\.\.\.", "", each.removeprefix("lmx ")).split()
            try:
                # An option may stand there without its value.
                with suppress(click.BadOptionUsage):
                    check_lmx(words, is_whole=False)
            except click.UsageError as error:
                pytest.fail(f"{document.name}: `lmx {code}`: {error.format_message()}")


@pytest.mark.parametrize(
    "line",
    ["lmx kill", "lmx kill a b", "lmx klil a", "lmx logs -n many", "lmx completion ksh",
     "lmx serve --prot 8080", "lmx config chekc", "lmx load m --context-length"],
)  # fmt: skip
def test_a_wrong_command_is_seen(line: str) -> None:
    with pytest.raises(click.UsageError):
        check_lmx(line.split()[1:])


MAKEFILE: Final = (ROOT / "Makefile").read_text()


@by_document
def test_targets_of_make_exist(document: Path) -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", MAKEFILE, re.M))
    variables = set(re.findall(r"\$[({](\w+)[)}]", MAKEFILE))
    text = document.read_text()
    lines = [" ".join(words) for _, words in shell_commands(document, "make")]
    # Those in the text, and in indented blocks.
    lines += re.findall(r"`(make [^`]+)`", text) + re.findall(r"^    (make .+)$", text, re.M)
    for line in lines:
        for word in shlex.split(line, comments=True)[1:]:
            name, is_variable, _ = word.partition("=")
            assert name in (variables if is_variable else targets), f"{document.name}: {line}"


OPTIONS: Final = {
    "pip install": {"-c", "--upgrade", "-e", "-r"},
    "pip uninstall": {"-y"},
    "pip show": {"-f"},
    "pip freeze": set[str](),
    "pipx install": {"--pip-args"},
    "pipx upgrade": set[str](),
    "pipx uninstall": set[str](),
    "pipx environment": set[str](),
    "uv tool install": {"--overrides", "--constraints", "--python", "--upgrade", "--from"},
    "uv tool upgrade": set[str](),
    "uv tool uninstall": set[str](),
    "uv tool dir": set[str](),
    "uv pip install": {"-c", "--upgrade", "-e", "-r"},
    "uv venv": {"--python"},
    "uv build": set[str](),
    "uv run": set[str](),
}
"""What the documents use of the programs that install, as those programs have it."""


@by_document
def test_what_installs_names_what_is_there(document: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for place, words in shell_commands(document, "pip", "pipx", "uv"):
        length = next(n for n in (3, 2, 0) if " ".join(words[:n]) in {*OPTIONS, ""})
        assert length, f"{place}: not a command that OPTIONS has"
        options = {word.partition("=")[0] for word in words if word.startswith("-")}
        assert options <= OPTIONS[" ".join(words[:length])], place
        for word in words[length:]:
            if re.fullmatch(r"[\w./]+\.txt", word):
                assert (ROOT / word).is_file(), place
            if extra := re.fullmatch(r"(?:lmx|\.)\[([\w,-]+)\]", word):
                missing = set(extra[1].split(",")) - set(project["optional-dependencies"])
                assert missing == set(), place


def route_of(method: str, path: str) -> Any:
    found = [
        one
        for one in ROUTES
        if one.method == method
        and re.fullmatch(
            re.sub(r"\{\w+:([^}]+)\}|\{\w+\}", lambda m: m[1] or "[^/]+", one.path), path
        )
    ]
    return found[0] if found else None


def listed_routes() -> Iterator[tuple[str, str, str]]:
    """Yield method, path and the words on its key of each route in the table of docs/api.md. A
    method by itself is of the next path, a path without one has that of the path before, and three
    dots stand for the last path written in full, up to its first parameter."""
    table = (ROOT / "docs/api.md").read_text().partition("## Routes")[2].partition("\n\n##")[0]
    for row, key in re.findall(r"^\| (.+?) \| (.+?) \|$", table, re.MULTILINE):
        methods: list[str] = []
        new: list[str] = []
        base = ""
        for method, path in re.findall(
            r"`(GET|POST|DELETE)?(?: ?((?:/|\.\.\.)[^`?]*)\??[^`]*)?`", row
        ):
            new += [method] if method else []
            if path and path != "/v3":
                methods, new = new or methods, []
                base = base if path.startswith("...") else path.partition("/{")[0]
                yield from ((one, path.replace("...", base), key) for one in methods)


WORDS_ON_KEYS: Final = {
    Access.OPEN: "none",
    Access.INFERENCE: "API",
    Access.OPERATOR: "operator",
    Access.ADMIN: "admin",
    Access.PEER: "peer",
    Access.METRICS: "metrics or operator",
    Access.LOCAL: "metrics or operator; none on loopback without API keys",
}


def test_every_route_is_in_the_table_with_the_key_that_it_needs() -> None:
    listed = sorted(
        (method, re.sub(r"\{\w+\}", "{}", path), key.removesuffix("; a code"))
        for method, path, key in listed_routes()
    )
    # Below /v3 are some of /v1; below /docs are the files of that page.
    assert listed == sorted(
        (one.method, re.sub(r"\{\w+(:.\+)?\}", "{}", one.path), WORDS_ON_KEYS[one.access])
        for one in ROUTES
        if not one.path.startswith(("/v3/", "/docs/"))
    )


@by_document
def test_requests_of_curl_are_ones(document: Path) -> None:
    for place, words in shell_commands(document, "curl"):
        address = next(word for word in words[1:] if "://" in word)
        if ":8000" not in address:
            continue
        asked = curl_request(words[1:])
        path = asked.path.partition("?")[0]
        endpoint = route_of(asked.method, path)
        assert endpoint is not None, f"{place}: no such route"
        if asked.body is not None:
            body = json.loads(asked.body)
            endpoint.request.model_validate(body)
            assert set(body) <= names_of(endpoint.request), place


def names_of(request: Any) -> set[str]:
    return {
        name for field, its in request.model_fields.items() for name in (field, its.alias) if name
    }


READERS: Final[dict[str, Callable[[str], object]]] = {
    "json": json.loads,
    "toml": tomllib.loads,
    "yaml": lambda text: list(yaml.safe_load_all(text)),
    "py": lambda text: compile(text, "block", "exec"),
    "python": lambda text: compile(text, "block", "exec"),
    **dict.fromkeys(
        SHELL, lambda text: subprocess.run(["sh", "-n"], input=text, text=True, check=True)
    ),
}
ELSEWHERE: Final = {
    "model_list": "LiteLLM",
    "schema": "Continue",
    "scrape_configs": "Prometheus",
    "services": "compose",
}
"""A key at the top of a YAML that is another program's."""


@by_document
def test_blocks_can_be_read(document: Path) -> None:
    validator = Draft202012Validator(schema())
    for block in blocks(document.read_text()):
        if block.language in READERS:
            READERS[block.language](block.text)
        if block.language == "yaml":
            values = yaml.safe_load(block.text)
            if isinstance(values, dict) and not ELSEWHERE.keys() & values.keys():
                problems = [one.message for one in validator.iter_errors(values)]
                assert problems == [], f"{document.name}:{block.line}"


@by_document
def test_keys_of_the_configuration_exist(document: Path) -> None:
    """``server.port`` in backticks; what stands behind ``models[].`` too."""
    for code in re.findall(
        r"`([a-z_]+(?:\[\])?(?:\.[a-z_]+(?:\[\])?)+)(?:: [^`]*)?`", document.read_text()
    ):
        first, *steps = re.split(r"(?:\[\])?\.", code.removesuffix("[]"))
        here = schema()["properties"].get(first)
        if here is None or code.endswith(".json") or code in names_of_events():
            continue
        for step in steps:
            inner = properties(here)
            assert not inner or step in inner, f"{document.name}: `{code}`"
            here = inner.get(step, {})


@cache
def names_of_events() -> set[str]:
    """Names with a point that are no keys."""
    texts = (path.read_text() for path in (ROOT / "supervisor").rglob("*.py"))
    return {name for text in texts for name in re.findall(r"\"([a-z]+\.[a-z_]+)\"", text)}


@cache
def schema() -> Any:
    return configuration_schema()


def properties(here: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in (here, here.get("items", {}), *here.get("anyOf", ()), *here.get("allOf", ())):
        if "$ref" in one:
            found |= schema()["$defs"][one["$ref"].rpartition("/")[2]].get("properties", {})
    return found


@by_document
def test_variables_are_read_somewhere(document: Path) -> None:
    named = set(re.findall(r"\bLMX_[A-Z][A-Z_]*[A-Z]\b", document.read_text()))
    assert named - set(variable_names()) - elsewhere_read() == set()


@cache
def elsewhere_read() -> set[str]:
    """The variables that are no keys of the configuration."""
    files = (*ROOT.glob("*/**/*.py"), *ROOT.glob("*/**/*.js*"), ROOT / "Makefile")
    return {
        name
        for path in files
        if ".venv" not in path.parts and "build" not in path.parts
        for name in re.findall(r"\bLMX_[A-Z_]+[A-Z]\b", path.read_text(errors="replace"))
    }

"""What the documents say of fields and keys is what the code says, and the schema of lmx.yaml takes
what lmx takes."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from docs.make import generate
from lmx.router.schema.requests.chat import ChatRequest
from lmx.router.schema.requests.completions import CompletionRequest
from lmx.supervisor.config.schema import Config, ModelConfig

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def documents() -> dict[Path, str]:
    made: dict[Path, str] = generate.documents()
    return made


def test_the_documents_are_as_the_code_says(documents: dict[Path, str]) -> None:
    assert len(documents) == 10
    for path, text in documents.items():
        assert path.read_text() == text, f"{path.name} is stale: run `make docs`"


def test_every_field_of_a_request_is_in_a_table() -> None:
    """A new field must be named in one of the marks of docs/parameters.md."""
    named = generate.request_fields(generate.PARAMETERS.read_text())
    for requests, schema in (
        (("ChatRequest",), ChatRequest),
        (("ChatRequest", "CompletionRequest"), CompletionRequest),
    ):
        tables = {name.partition(".")[0] for request in requests for name in named[request]}
        assert set(schema.model_fields) - tables == set()


def test_a_mark_of_an_unknown_field_is_an_error() -> None:
    with pytest.raises(KeyError, match="temprature"):
        generate._request_table("ChatRequest: temprature")


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 2**31 - 1}, "integer, at least 1"),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, "number, above 0, at most 1"),
        ({"type": "integer", "minimum": 0, "maximum": 65535}, "integer, 0 to 65,535"),
        ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, "true or false"),
        ({"type": "string", "minLength": 1}, "string, not empty"),
        ({"type": "array", "items": {"type": "string"}, "maxItems": 4}, "array of up to 4 strings"),
        ({"enum": ["a", "b"], "type": "string"}, "`a`, `b`"),
        ({"$ref": "#/$defs/E"}, "`x`"),
    ],
)
def test_ranges_in_words(schema: dict[str, Any], words: str) -> None:
    assert generate.values_of(schema, {"E": {"enum": ["x"]}}) == words


# The schema of lmx.yaml.


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    schema = generate.configuration_schema()
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def test_the_example_fits_its_schema_which_it_names(validator: Draft202012Validator) -> None:
    path = ROOT / "deploy" / "lmx.example.yaml"
    first, _, _ = path.read_text().partition("\n")
    assert (path.parent / first.rpartition("$schema=")[2]).resolve() == generate.SCHEMA
    validator.validate(yaml.safe_load(path.read_text()))


def test_the_example_is_as_good_with_every_key_switched_on(validator: Draft202012Validator) -> None:
    """As its head says: without the # directly before it, a key is set."""
    text = re.sub(r"^( *)#(?! )(.*)$", r"\1\2", generate.EXAMPLE.read_text(), flags=re.MULTILINE)
    text = re.sub(r"^( *)#(?=  )", r"\1", text, flags=re.MULTILINE)
    # A draft model guesses, or prompt lookup does.
    text = text.replace("draft: /models/draft", "")
    text = text.replace("admin_key: KEY", f"admin_key: {KEY}a")
    text = text.replace("metrics_key: KEY", f"metrics_key: {KEY}m")
    text = text.replace(" key: KEY", f" key: {KEY}p")
    text = text.replace("[qwen-coder, devstral]", "[qwen3-8b]")
    values = yaml.safe_load(text)
    validator.validate(values)
    config = Config.model_validate(values)
    assert config.models[0].model_fields_set == set(ModelConfig.model_fields)
    assert config.model_fields_set == set(Config.model_fields)


KEY = "k" * 16


@pytest.mark.parametrize(
    "text",
    [
        "server: {body_limit_bytes: 16 MiB, port: 0}",
        "memory: {budget_bytes: 8GB, os_reserve_bytes: 1024, keep_alive: 5m}",
        "memory: {keep_alive: -1}",
        "server: {allowed_hosts: a.example, cors_origins: [null, 'app://*']}",
        f"security: {{api_keys: [{KEY}, {{key: {KEY}x, name: ci, limits: {{}}}}]}}",
        "models: [{id: a, source: /x, keep_alive: forever, kind: chat, memory_bytes: 2GiB}]",
        "models: [{id: a, source: /x}]\nrouting: {code: a, fast: [a]}",
        "models: [{id: a, source: /x, speculation: {method: prompt_lookup}}]",
        "models: [{id: a, source: /x}]\ngroups: [{name: g, models: [a]}]",
    ],
)
def test_the_schema_takes_what_lmx_takes(validator: Draft202012Validator, text: str) -> None:
    values = yaml.safe_load(text)
    Config.model_validate(values)
    validator.validate(values)


@pytest.mark.parametrize(
    "text",
    [
        "sever: {}",
        "server: {port: 70000}",
        "memory: {keep_alive: [1]}",
        "models: [{id: a}]",
        "models: [{id: a, source: /x, min_p: 2}]",
        "models: [{id: a, source: /x, prefix_cache: {size: 1}}]",
        "logs: {level: loud}",
    ],
)
def test_the_schema_refuses_what_lmx_refuses(validator: Draft202012Validator, text: str) -> None:
    values = yaml.safe_load(text)
    with pytest.raises(ValueError, match="validation error"):
        Config.model_validate(values)
    assert not validator.is_valid(values)


def test_every_key_has_a_meaning() -> None:
    schema = generate.configuration_schema()
    assert set(schema["properties"]) == set(Config.model_fields)
    places = {"": schema, **schema["$defs"]}
    missing = [
        f"{place}.{name}"
        for place, its in places.items()
        for name, key in its.get("properties", {}).items()
        if not key.get("description") and "$ref" not in key
    ]
    assert missing == []

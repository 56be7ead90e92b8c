"""The configuration: what is accepted, and what each refusal says."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.supervisor.config import Config, PrefixCacheConfig, SpeculationConfig
from lmx.supervisor.config_load import load_config, variable_names

EXAMPLE = Path(__file__).parents[2] / "deploy" / "lmx.example.yaml"


def load(text: str, tmp_path: Path, **variables: str) -> Config:
    path = tmp_path / "lmx.yaml"
    path.write_text(text)
    return load_config(path, variables)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("server: {port: 99999}", ["server.port", "99999", "65535"]),
        ("server: {prot: 1}", ["server.prot", "unknown key", "port"]),
        ("sever: {}", ["sever", "unknown key", "server"]),
        ("server: {host: 0.0.0.0}", ["0.0.0.0", "allow_lan_without_key"]),
        ("server: []", ["server"]),
        ("timing: {beat_timeout_s: 1}", ["beat_timeout_s", "beat_interval_s"]),
        ("timing: {stall_timeout_s: -3}", ["timing.stall_timeout_s", "greater than 0", "-3"]),
        ("timing: {stall_timeout_s: .nan}", ["timing.stall_timeout_s"]),
        ("memory: {budget_bytes: lots}", ["memory.budget_bytes", "lots"]),
        ("models: [{id: a}]", ["models.0.source", "required"]),
        ("models: [{id: a, source: nothing}]", ["models.0.source", "nothing", "./nothing"]),
        ("models: [{id: 'a b', source: /x}]", ["models.0.id", "a b"]),
        ("models: [{id: a, source: /x, ttl: 3}]", ["models.0.ttl", "unknown key", "max_rows"]),
        ("models: [{id: a, source: /x}, {id: b, source: /y, aliases: [a]}]", ["'a'", "unique"]),
        ("models: [{id: a, source: /x}]\ndefault_model: b", ["default_model", "'b'", "known: a"]),
        ("models: [{id: a, source: /x, kind: picture}]", ["models.0.kind", "embedding", "picture"]),
        ("models: [{id: a, source: /x, min_p: 2}]", ["models.0.min_p", "less than or equal to 1"]),
        ("models: [{id: a, source: /x, tool_parser: A/b}]", ["models.0.tool_parser", "A/b"]),
        (
            "models: [{id: a, source: /x, memory_bytes: 2MB, prefix_cache: {memory_bytes: 2MB}}]",
            ["models.0", "prefix_cache.memory_bytes (2000000)", "must be less"],
        ),
        (
            "models: [{id: a, source: /x, prefix_cache: {size: 1}}]",
            ["models.0.prefix_cache.size", "unknown key", "disk_bytes"],
        ),
        (
            "models: [{id: a, source: /x, speculation: {method: prompt_lookup, ngram: 1}}]",
            ["models.0.speculation.ngram", "unknown key", "max_ngram_size"],
        ),
        (
            "models: [{id: a, source: /x, speculation: {method: draft_model}}]",
            ["models.0.speculation", "draft", "must be given with method draft_model"],
        ),
        (
            "models: [{id: a, source: /x, speculation: {method: draft_model, draft: org/x}}]",
            ["models.0.speculation.draft", "org/x", "must be a folder"],
        ),
        ("logs: {level: loud}", ["logs.level", "loud", "debug"]),
        ("server: {port: 1}\nserver: {port: 2}", ["stands twice", "server", "line 2"]),
        ("1: 2", ["the key 1 is not a word", "line 1"]),
        ("[a]: 2", ["is not a word"]),
        ("a: [", ["not YAML"]),
        ("- 1", ["expected keys"]),
    ],
)
def test_each_mistake_names_key_value_and_what_is_allowed(
    text: str, words: list[str], tmp_path: Path
) -> None:
    with pytest.raises(OperationError) as caught:
        load(text, tmp_path)
    assert caught.value.code is ErrorCode.CONFIG_INVALID
    for word in words:
        assert word in caught.value.message


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(OperationError) as caught:
        load("server: {port: x}\nlogs: {keep: 0}", tmp_path, LMX_SERVER_PROT="1")
    for word in ("server.port", "logs.keep", "LMX_SERVER_PROT"):
        assert word in caught.value.message


def test_variables_go_over_the_file(tmp_path: Path) -> None:
    config = load(
        "server: {port: 1, body_limit_bytes: 1 MiB}\nmodels: [{id: a, source: /x}]",
        tmp_path,
        LMX_SERVER_PORT="2",
        LMX_TIMING_STALL_TIMEOUT_S="7.5",
        LMX_MODELS="b=/y,org/Name",
        LMX_HOME="/somewhere",
        LMX_LOGS_LEVEL="",
    )
    assert (config.server.port, config.server.body_limit_bytes) == (2, 1024**2)
    assert config.timing.stall_timeout_s == 7.5
    assert [(model.id, model.source) for model in config.models] == [
        ("b", "/y"),
        ("org/Name", "org/Name"),
    ]
    assert config.default_model_id == "b"


def test_models_variable_takes_yaml_too(tmp_path: Path) -> None:
    config = load_config(None, {"LMX_MODELS": "[{id: a, source: /x, max_rows: 3}]"})
    assert config.models[0].max_rows == 3
    with pytest.raises(OperationError, match=r"models\.0\.max_rows"):
        load_config(None, {"LMX_MODELS": "[{id: a, source: /x, max_rows: 0}]"})


def test_no_file_is_a_valid_configuration() -> None:
    config = load_config(None, {})
    assert (config.server.host, config.server.port, config.models) == ("127.0.0.1", 8000, ())
    assert config.default_model_id is None


def test_a_variable_that_is_no_value_is_said_so() -> None:
    with pytest.raises(OperationError, match=r"LMX_SERVER_PORT: '\{' is not a value"):
        load_config(None, {"LMX_SERVER_PORT": "{"})


def test_merge_keys_work(tmp_path: Path) -> None:
    text = "models:\n- &base {id: a, source: /x, max_rows: 7}\n- {<<: *base, id: b}\n"
    config = load(text, tmp_path)
    assert [(model.id, model.max_rows) for model in config.models] == [("a", 7), ("b", 7)]


def test_a_missing_file_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(OperationError, match="can't read the configuration"):
        load_config(tmp_path / "none.yaml", {})


def test_the_example_documents_every_key_with_its_default() -> None:
    """Uncommented, the example is exactly the defaults, and no key is missing from it."""
    text = EXAMPLE.read_text()
    values = yaml.safe_load(text)
    example = load_config(EXAMPLE, {})
    default = Config()
    for section in ("server", "memory", "timing", "restart", "logs"):
        assert getattr(example, section) == getattr(default, section), section
        documented = set(values[section])
        missing = set(type(getattr(default, section)).model_fields) - documented
        assert all(f"# {key}:" in text for key in missing), missing
    documented = set(values["models"][0]) | {"engine", "engine_options"}
    fields = set(type(example.models[0]).model_fields)
    for nested in (PrefixCacheConfig, SpeculationConfig):
        fields |= set(nested.model_fields)
    lines = {line.strip().lstrip("# ").partition(":")[0] for line in text.splitlines()}
    assert fields <= documented | lines


def test_every_setting_has_a_variable() -> None:
    names = variable_names()
    assert names["LMX_SERVER_PORT"] == ("server", "port")
    assert len(names) == len(set(names.values()))

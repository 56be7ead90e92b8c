"""The configuration: what is accepted, and what each refusal says."""

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.messages.keys import ApiKey, RateLimits
from lmx.protocol.models.keep_alive import keep_alive_text, parse_keep_alive
from lmx.supervisor.config.known_models import KNOWN_MODELS
from lmx.supervisor.config.load import (
    config_notices,
    configured_models,
    load_config,
    variable_names,
)
from lmx.supervisor.config.media import ModelMediaConfig
from lmx.supervisor.config.model import ModelConfig, PrefixCacheConfig, SpeculationConfig
from lmx.supervisor.config.schema import Config, GroupConfig
from lmx.supervisor.config.security import LimitsConfig
from lmx.supervisor.config.values import Section
from tests.support.faults.bad_files import put_bad

KEY, OTHER = "sk-0123456789abcdef", "sk-fedcba9876543210"
EXAMPLE = Path(__file__).parents[4] / "deploy" / "lmx.example.yaml"


def load(text: str, tmp_path: Path, **variables: str) -> Config:
    path = tmp_path / "lmx.yaml"
    path.write_text(text)
    return load_config(path, variables)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("server: {prot: 1}", ["server.prot", "unknown key", "port"]),
        ("sever: {}", ["sever", "unknown key", "server"]),
        ("server: {host: 0.0.0.0}", ["0.0.0.0", "allow_lan_without_key"]),
        ("server: {host: 192.168.1.5}", ["192.168.1.5", "security.api_keys"]),
        ("server: {host: '::'}", ["security.api_keys"]),
        (f"server: {{host: 0.0.0.0}}\nsecurity: {{admin_key: {KEY}}}", ["security.api_keys"]),
        ("server: {advertise: true}", ["server.advertise", "others can't reach 127.0.0.1"]),
        ("server: {advertise: maybe, host: 0.0.0.0}", ["server.advertise", "can be reached"]),
        ("server: []", ["server"]),
        ("server: {allowed_hosts: [http://a.example]}", ["server.allowed_hosts.0", "without http"]),
        ("server: {allowed_hosts: 'a, b'}", ["server.allowed_hosts", "[A, B]"]),
        ("server: {allowed_hosts: 3}", ["server.allowed_hosts"]),
        ("server: {body_limit_bytes: 99999999PB}", ["server.body_limit_bytes", "at most"]),
        ("server: {cors_origins: [a.example]}", ["server.cors_origins.0", "https://app.example"]),
        ("server: {cors_origins: [https://a.example/]}", ["server.cors_origins.0", "slash"]),
        ("timing: {beat_timeout_s: 1}", ["beat_timeout_s", "beat_interval_s"]),
        ("timing: {stall_timeout_s: -3}", ["timing.stall_timeout_s", "above 0", "-3"]),
        ("timing: {stall_timeout_s: .nan}", ["timing.stall_timeout_s"]),
        ("timing: {stall_timeout_s: soon}", ["timing.stall_timeout_s", "'soon'", "90s, 5m, 1h30m"]),
        ("timing: {stall_timeout_s: forever}", ["timing.stall_timeout_s", "is not a time"]),
        ("timing: {stall_timeout_s: 2d}", ["timing.stall_timeout_s", "is not a time"]),
        ("timing: {stall_timeout_s: 25h}", ["timing.stall_timeout_s", "at most 86400"]),
        ("memory: {budget_bytes: lots}", ["memory.budget_bytes", "lots"]),
        ("models: [{id: a}]", ["models.a.source", "required"]),
        ("models: [{id: a, source: ~nobody-here/x}]", ["models.a.source", "no user"]),
        ("models: [{id: a, source: ~nobody-here/x.gguf}]", ["models.a.source", "no user"]),
        ("models: [{id: 'a b', source: /x}]", ["models.a b.id", "a b"]),
        ("models: [{id: a, source: /x}, {id: b, source: /y, aliases: [a]}]", ["'a'", "unique"]),
        (
            "models: [{id: a, source: /x, adapters: {b: /l}}, {id: b, source: /y}]",
            ["'b'", "models.a", "models.b", "names of adapters", "unique"],
        ),
        (
            "models: [{id: a, source: /x, adapters: {b: /l}}]\nrouting: {b: [a]}",
            ["routing.b", "models.a"],
        ),
        ("models: [{id: a, source: /x}]\ndefault_model: b", ["default_model", "'b'", "known: a"]),
        ("memory: {keep_alive: 5 minutes}", ["memory.keep_alive", "5 minutes", "1h30m"]),
        ("memory: {keep_alive: true}", ["memory.keep_alive", "True", "forever"]),
        ("memory: {keep_alive: .inf}", ["memory.keep_alive", "forever"]),
        ("groups: [{name: g, models: []}]", ["groups.g.models", "at least 1"]),
        ("groups: [{name: g, models: [b]}]", ["groups.g", "'b'", "known: none"]),
        (
            "models: [{id: a, source: /x, aliases: [b]}]\ngroups: [{name: g, models: [b]}]",
            ["groups.g", "'b'", "another name", "'a'"],
        ),
        (
            "models: [{id: a, source: /x, adapters: {b: /l}}]\ngroups: [{name: g, models: [b]}]",
            ["groups.g", "'b'", "another name", "'a'"],
        ),
        (
            "models: [{id: a, source: /x}]\n"
            "groups: [{name: g, models: [a]}, {name: h, models: [a]}]",
            ["'a'", "groups g and h", "one group"],
        ),
        (
            "models: [{id: a, source: /x}, {id: b, source: /x}]\n"
            "groups: [{name: g, models: [a]}, {name: g, models: [b]}]",
            ["two groups have the same name"],
        ),
        (
            "models: [{id: a, source: /x, pinned: true}, {id: b, source: /x, pinned: true}]\n"
            "groups: [{name: g, models: [a, b], swap: true}]",
            ["groups.g", "a and b are pinned"],
        ),
        ("routing: {code: ''}", ["routing.code"]),
        ("routing: {code: 3}", ["routing.code"]),
        (
            "models: [{id: a, source: /x, aliases: [auto]}]\nrouting: {auto: [a]}",
            ["routing.auto", "models.a"],
        ),
        ("routing: {code: []}", ["routing.code", "names no model"]),
        ("routing: {'a b': [x]}", ["routing.a b"]),
        ("routing: {patterns: [x]}", ["routing.patterns", "section"]),
        ("routing: {patterns: {'gpt 4*': x}}", ["routing.patterns.gpt 4*"]),
        ("routing: {patterns: {'gpt-[45]': x}}", ["routing.patterns.gpt-[45]"]),
        ("routing: {patterns: {gpt-*: [x]}}", ["routing.patterns.gpt-*", "it is a text"]),
        ("routing: {patterns: {*haiku*: x}}", ["not YAML", "quotes", "line 1"]),
        ("jobs: {max_count: 0}", ["jobs.max_count", "0"]),
        ("jobs: {max_age_s: .inf}", ["jobs.max_age_s"]),
        ("server: {sync_timeout_s: 0}", ["server.sync_timeout_s"]),
        ("logs: {level: loud}", ["logs.level", "loud", "debug"]),
        ("server: {port: 1}\nserver: {port: 2}", ["stands twice", "server", "line 2"]),
        ("1: 2", ["the key 1 is not a word", "line 1"]),
        ("[a]: 2", ["is not a word"]),
        ("a: [", ["not YAML"]),
        # What looks like a date or a number, and can't be one.
        ("server:\n  name: 2025-02-30", ["not YAML", "day is out of range", "quotes", "line 2"]),
        ("server: {name: 0b_}", ["not YAML", "invalid literal for int", "line 1"]),
        ("server: {advertise: !!bool maybe}", ["not YAML", "a value is invalid ('maybe')"]),
        ("server: {name: !!timestamp soon}", ["not YAML", "a value is invalid", "line 1"]),
        ("server: {port: !!int ''}", ["not YAML", "a value is invalid", "line 1"]),
        ("- 1", ["models:", "a list"]),
    ],
)
def test_each_mistake_names_key_value_and_what_is_allowed(
    text: str, words: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    # A long value is shown in part, and a path of its file has that one's folder.
    with pytest.raises(OperationError) as caught:
        load(text, tmp_path_factory.mktemp("c"))
    assert caught.value.code is ErrorCode.CONFIG_INVALID
    for word in words:
        assert word in caught.value.message


@pytest.mark.parametrize(
    ("keys", "place", "words"),
    [
        ("ttl: 3", ".ttl", ["unknown key", "max_rows"]),
        ("adapters: {a: /l}", "", ["twice"]),
        ("ranks: 2, adapters: {b: /l}", "", ["divided among ranks (2) can't have adapters"]),
        ("ranks: 2, speculation: {method: prompt_lookup}", "",
         ["can't have speculation: leave one of them out"]),
        ("ranks: 2, prefix_cache: {disk: true}", "", ["can't have prefix_cache.disk"]),
        ("adapters: {b: ./lora.gguf}", ".adapters (line 1): b: an adapter can't be a .gguf file",
         ["/lora.gguf'"]),
        ("adapters: {b: lora}", ".adapters (line 1): b: ",
         ["'lora' is neither a path nor a hub repository"]),
        ("adapters: {'b c': /l}", ".adapters.b c", ["letters"]),
        ("adapters: [/l]", ".adapters", ["section"]),
        ("adapter: /l", ".adapter", ["unknown", "adapters"]),
        ("kind: rerank, adapters: {b: /l}", "", ["adapters are for models that write", "rerank"]),
        ("kind: picture", ".kind", ["embedding", "picture"]),
        ("min_p: 2", ".min_p", ["at most 1"]),
        ("tool_parser: A/b", ".tool_parser", ["A/b"]),
        ("chat_template_kwargs: {date_string: 2026-11-28}", ".chat_template_kwargs",
         ["date_string: it is read as a date", "in quotes"]),
        ("tokenizer_config: {a: [1, 2000000000000000000000]}", ".tokenizer_config",
         ["a.1: it is a whole number of more than 64 bits"]),
        ("engine_options: {c: [1.5, .nan]}", ".engine_options", ["c.1: it is not a finite number"]),
        ("engine_options: {c: !!set {d, e}}", ".engine_options",
         ["c: it must be a text, a number"]),
        ("engine_options: {c: !!binary YQ==}", ".engine_options",
         ["c: it must be a text, a number"]),
        (r'chat_template_kwargs: {c: "\ud83d\ude00"}', ".chat_template_kwargs",
         ["c: it has half of a surrogate pair"]),
        (f"engine_options: {{c: {'[' * 40}{']' * 40}}}", ".engine_options", ["nested too deeply"]),
        ("default_max_tokens: 100000000000000000000", ".default_max_tokens", ["at most"]),
        ("context_length: 100000000000000000000", ".context_length", ["at most"]),
        ("memory_bytes: 2MB, prefix_cache: {memory_bytes: 2MB}", "",
         ["prefix_cache.memory_bytes (2000000)", "must be less"]),
        ("speculation: {method: prompt_lookup, ngram: 1}", ".speculation.ngram",
         ["unknown key", "max_ngram_size"]),
        ("speculation: {method: draft_model}", ".speculation",
         ["draft", "must be given with method draft_model"]),
        ("speculation: {method: mtp, draft: /y}", ".speculation",
         ["draft", "must be given with method draft_model"]),
        ("speculation: {method: draft_model, draft: org/x}", ".speculation.draft",
         ["org/x", "not downloaded", "name a folder"]),
        ("speculation: {method: draft_model, draft: ./x.gguf}", ".speculation.draft",
         ["/x.gguf", "can't be a .gguf file"]),
        ("speculation: {method: draft_model, draft: x}", ".speculation.draft",
         ["'x'", "this is no path"]),
        ("keep_alive: soon", ".keep_alive", ["soon", "5m"]),
    ],
)  # fmt: skip
def test_each_mistake_in_a_model_names_it_too(
    keys: str, place: str, words: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = f"models: [{{id: a, source: /x, {keys}}}]"
    test_each_mistake_names_key_value_and_what_is_allowed(
        text, [f"models.a{place}", *words], tmp_path_factory
    )


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(OperationError) as caught:
        load(
            "server: {port: x}\nlogs: {keep: 0}",
            tmp_path,
            LMX_SERVER_PROT="1",
            LMX_SERVER_NAME="2025-02-30",
            LMX_MODELS="[{id: a, source: /x, size: 2025-02-30}]",
        )
    for word in (
        "server.port", "logs.keep", "LMX_SERVER_PROT", "LMX_SERVER_NAME: '2025-02-30'",
        "LMX_MODELS: day is out of range",
    ):  # fmt: skip
        assert word in caught.value.message
    with pytest.raises(OperationError, match="LMX_MODELS: day is out of range"):
        configured_models(None, {"LMX_MODELS": "[{id: a, size: 2025-02-30}]"})


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


def test_short_names_are_sources(tmp_path: Path) -> None:
    config = load("models: [{id: a, source: Qwen3-8B}]", tmp_path)
    assert config.models[0].source == KNOWN_MODELS["qwen3-8b"]
    assert config_notices(tmp_path / "lmx.yaml", {}) == []
    assert (
        load_config(None, {"LMX_MODELS": "[{id: a, source: qwen3-8b}]"}).models[0].source
        == (KNOWN_MODELS["qwen3-8b"])
    )


def test_models_variable_takes_yaml_too() -> None:
    config = load_config(None, {"LMX_MODELS": "[{id: a, source: /x, max_rows: 3}]"})
    assert config.models[0].max_rows == 3
    with pytest.raises(OperationError, match=r"models\.a\.max_rows \(LMX_MODELS\)"):
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


def test_the_example_changes_nothing_and_names_every_key() -> None:
    assert load_config(EXAMPLE, {}) == Config()
    sections = [value for _, value in Config() if isinstance(value, Section)]
    fields = set(Config.model_fields).union(*(type(each).model_fields for each in sections))
    for nested in (
        *(ModelConfig, PrefixCacheConfig, SpeculationConfig, ModelMediaConfig),
        *(GroupConfig, LimitsConfig),
    ):
        fields |= set(nested.model_fields)
    lines = EXAMPLE.read_text().splitlines()
    assert fields <= {line.strip().lstrip("# -").partition(":")[0] for line in lines}


def test_every_setting_has_a_variable() -> None:
    names = variable_names()
    assert names["LMX_SERVER_PORT"] == ("server", "port")
    assert len(names) == len(set(names.values()))


@pytest.mark.parametrize(
    ("written", "seconds", "shown"),
    [
        ("300", 300.0, "5m"),
        ("'300'", 300.0, "5m"),
        ("90s", 90.0, "1m30s"),
        ("1h30m", 5400.0, "1h30m"),
        ("0", 0.0, "0s"),
        ("-1", -1.0, "forever"),
        ("forever", -1.0, "forever"),
        ("250ms", 0.25, "0.25s"),
    ],
)
def test_keep_alive_is_read_and_shown_as_a_duration(
    written: str, seconds: float, shown: str, tmp_path: Path
) -> None:
    config = load(f"memory: {{keep_alive: {written}}}", tmp_path)
    assert config.memory.keep_alive == seconds
    assert config.model_dump(mode="json")["memory"]["keep_alive"] == shown


@given(st.floats(0, 1e7))
def test_a_keep_alive_that_is_shown_reads_back_the_same(seconds: float) -> None:
    assert parse_keep_alive(keep_alive_text(seconds)) == pytest.approx(seconds, abs=1e-3)


def test_the_shown_configuration_is_a_configuration(tmp_path: Path) -> None:
    """`config show > lmx.yaml` changes nothing."""
    config = load(
        "server: {allowed_hosts: [a.example], load_wait_s: 5m}\nmemory: {keep_alive: 90s}\n"
        "models: [{id: a, source: /x, keep_alive: forever, speculation: {method: prompt_lookup}}]",
        tmp_path,
    )
    again = load(yaml.safe_dump(config.model_dump(mode="json")), tmp_path)
    assert again == config


# Keys.


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{{api_keys: [{KEY}, sk-short]}}", ["security.api_keys.1", "at least 16"]),
        (f"{{api_keys: ['{KEY} sk-x']}}", ["security.api_keys.0", "without spaces"]),
        (f"{{api_keys: ['{KEY}\u00e9']}}", ["security.api_keys.0", "ASCII"]),
        (f"{{api_keys: {KEY}}}", ["security.api_keys", "write [KEY]"]),
        (f"{{api_keys: [{KEY}, [{OTHER}]]}}", ["security.api_keys.1", "it is a text"]),
        ("{api_keys: [12345678901234567890]}", ["security.api_keys.0", "in quotes"]),
        (f"{{api_keys: [{KEY}, {KEY}]}}", ["security", "one key twice"]),
        (f"{{api_keys: [{KEY}], admin_key: {KEY}}}", ["security", "admin_key is one of api_keys"]),
        (f"{{api_keys: [{KEY}, {{key: {KEY}}}]}}", ["security", "one key twice"]),
        (
            f"{{api_keys: [{{key: {KEY}, name: ci}}, {{key: {OTHER}, name: ci}}]}}",
            ["security", "one name twice"],
        ),
        (f"{{api_keys: [{{key: {KEY}, nmae: ci}}]}}", ["security.api_keys.0.nmae", "mean name?"]),
        ("{api_keys: [{name: ci}]}", ["security.api_keys.0.key", "required"]),
        ("{admin_key: sk-short}", ["security.admin_key", "at least 16"]),
        ("{admin_key: 12345678901234567890}", ["security.admin_key", "in quotes"]),
        (f"{{admin_key: [{KEY}]}}", ["security.admin_key", "it is a text"]),
        (f"{KEY}", ["security"]),
        (f"{{api_keys: [{KEY}", ["not YAML", "line 2"]),
        (f"{{api_keys: [{KEY}, *{OTHER}]}}", ["not YAML"]),
    ],
)
def test_a_wrong_key_is_named_by_its_place_and_never_shown(
    text: str, words: list[str], tmp_path: Path
) -> None:
    with pytest.raises(OperationError) as caught:
        load(f"security: {text}\n", tmp_path)
    message = caught.value.message
    for word in words:
        assert word in message
    assert "sk-" not in message
    assert "1234567890" not in message
    assert "sk-" not in str(caught.value.__cause__ or "")


def test_keys_may_come_by_variables_and_are_not_shown_then_either() -> None:
    config = load_config(
        None, {"LMX_SECURITY_API_KEYS": f"[{KEY}, {OTHER}]", "LMX_SECURITY_ADMIN_KEY": "k" * 16}
    )
    assert config.security.api_key_specs == (ApiKey.of_secret(KEY), ApiKey.of_secret(OTHER))
    assert config.security.client_key == KEY
    assert config.security.admin_key_text == "k" * 16
    for text in (f"[{KEY}", f"[{KEY}, sk-short]", KEY):
        with pytest.raises(OperationError) as caught:
            load_config(None, {"LMX_SECURITY_API_KEYS": text})
        assert "sk-" not in caught.value.message
    config = load_config(None, {"LMX_SECURITY_ADMIN_KEY": f"'{KEY}'\n"})
    assert config.security.admin_key_text == KEY
    with pytest.raises(OperationError, match="without spaces"):  # It is no comment of YAML.
        load_config(None, {"LMX_SECURITY_ADMIN_KEY": f"{KEY} #more"})


def test_a_key_may_have_a_name_and_limits_of_its_own(tmp_path: Path) -> None:
    config = load(
        f"security: {{api_keys: [{KEY}, {{key: {OTHER}, name: ci, priority: 5, "
        "limits: {requests_per_minute: 60, concurrent_requests: 2}}]}\n"
        "rate_limits: {per_key: {tokens_per_minute: 100000}, total: {concurrent_requests: 8}}",
        tmp_path,
    )
    assert config.security.api_key_specs == (
        ApiKey.of_secret(KEY),
        ApiKey.of_secret(OTHER, "ci", limits=RateLimits(60, None, 2), priority=5),
    )
    assert config.rate_limits.per_key.spec == RateLimits(None, 100_000, None)
    assert config.rate_limits.total.spec == RateLimits(None, None, 8)
    with pytest.raises(OperationError, match=r"rate_limits\.per_key\.requests_per_minute"):
        load("rate_limits: {per_key: {requests_per_minute: 0}}", tmp_path)


def test_no_shown_configuration_has_a_key(tmp_path: Path) -> None:
    config = load(f"security: {{api_keys: [{KEY}], admin_key: {OTHER}}}", tmp_path)
    shown = yaml.safe_dump(config.model_dump(mode="json"))
    assert "**********" in shown
    for text in (shown, repr(config), str(config), config.model_dump_json()):
        assert KEY not in text
        assert OTHER not in text
    with pytest.raises(OperationError, match=r"security\.api_keys\.0"):
        load(shown, tmp_path)  # nobody's key becomes asterisks


@pytest.mark.parametrize(
    "text",
    [
        f"server: {{host: 0.0.0.0}}\nsecurity: {{api_keys: [{KEY}]}}",
        "server: {host: 0.0.0.0, allow_lan_without_key: true}",
        "server: {host: localhost}",
        "server: {host: '::1'}",
        "server: {host: 127.0.0.2}",
    ],
)
def test_with_a_key_or_if_it_is_meant_others_may_reach_it(text: str, tmp_path: Path) -> None:
    assert load(text, tmp_path).server.host


def test_keys_that_lmx_keeps_protect_it_too(tmp_path: Path) -> None:
    path = tmp_path / "lmx.yaml"
    path.write_text("server: {host: 0.0.0.0}")
    assert load_config(path, {}, keys_kept=True).closed_without_key
    path.write_text("server: {host: 0.0.0.0, port: 0}\nlogs: {keep: many}")
    for keys_kept in (True, False):
        with pytest.raises(OperationError) as caught:
            load_config(path, {}, keys_kept=keys_kept)
        assert ("`lmx key add NAME`" in caught.value.message) is not keys_kept
        assert "logs.keep" in caught.value.message


def test_routes_may_name_what_is_added_later(tmp_path: Path) -> None:
    text = "models: [{id: a, source: /x, aliases: [b]}]\nrouting: {code: [late, b, a], auto: a}"
    config = load(text, tmp_path)
    assert config.routing.routes == {"code": ("late", "b", "a"), "auto": ("a",)}
    assert config.routing_gaps() == (
        "routing.code names 'late', which is no configured model: it is left out until one is "
        "added",
    )


def test_patterns_that_lead_nowhere_or_never_count_are_named(tmp_path: Path) -> None:
    text = """
models: [{id: a, source: /x, aliases: [b]}]
routing:
  code: a
  patterns:
    claude-*: auto
    "*haiku*": b
    claude-haiku-*: a
    gpt-?: code
    gpt-4: a
    gpt-4o: late
    gpt-*: a
"""
    assert load(text, tmp_path).routing_gaps() == (
        "routing.patterns.gpt-4o leads to 'late', which is no configured model and no name in "
        "routing: its requests get a 404 until a model of that name is added",
        "routing.patterns.claude-haiku-* never counts: claude-* stands before it and matches all "
        "of its names",
        "routing.patterns.gpt-4 never counts: gpt-? stands before it and matches all of its names",
    )


def test_the_example_of_routes_is_one(tmp_path: Path) -> None:
    text = EXAMPLE.read_text().partition("\nrouting:")[2].partition("\n\n")[0]
    text = "routing:" + re.sub(r"\n  #(?! )", "\n  ", text)
    models = [{"id": name, "source": "/x"} for name in ("qwen", "gemma", "qwen-coder")]
    config = load(f"{text}\nmodels: {models}", tmp_path)
    assert config.routing.routes["auto"] == ("qwen", "gemma")
    assert list(config.routing.patterns.items()) == [("claude-*", "auto"), ("gpt-*", "code")]
    assert config.routing_gaps() == ()


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("host", "::", "::"),
        ("host", "2001:db8::", "2001:db8::"),
        ("host", "::1", "::1"),
        ("host", '"127.0.0.1"', "127.0.0.1"),
        ("host", "studio.lan", "studio.lan"),
        ("allowed_hosts", "*", ("*",)),
        ("allowed_hosts", "*.example.com", ("*.example.com",)),
        ("allowed_hosts", "Lmx.Example.com", ("lmx.example.com",)),
        ("allowed_hosts", "[a.example, b.example]", ("a.example", "b.example")),
        ("cors_origins", "*", ("*",)),
        ("cors_origins", "http://localhost:*", ("http://localhost:*",)),
        ("cors_origins", "[app://*, null]", ("app://*", "null")),
    ],
)
def test_a_host_from_a_variable_is_a_text(
    key: str, text: str, expected: str | tuple[str, ...], tmp_path: Path
) -> None:
    lan = "server: {allow_lan_without_key: true}"
    config = load(lan, tmp_path, **{f"LMX_SERVER_{key.upper()}": text})
    assert getattr(config.server, key) == expected


@pytest.mark.parametrize("kind", ["folder", "pipe", "dangling link", "garbage", "deep"])
def test_a_configuration_that_is_no_text_is_said_and_not_waited_for(
    kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "lmx.yaml"
    put_bad(path, kind)
    with pytest.raises(OperationError, match=str(path)) as refused:
        load_config(path, {})
    assert refused.value.code is ErrorCode.CONFIG_INVALID


def test_one_that_is_empty_is_valid_and_said(tmp_path: Path) -> None:
    path = tmp_path / "lmx.yaml"
    path.touch()
    assert load_config(path, {}).models == ()
    assert config_notices(path, {}) == [
        f"{path} is empty: what it should say is as by default, and no models are in it"
    ]
    path.write_text("models: []")
    assert config_notices(path, {}) == config_notices(None, {}) == []


def test_models_of_a_variable_need_nothing_that_the_file_says_of_others(tmp_path: Path) -> None:
    """As those that are typed after `lmx serve`, or the demo's."""
    path = tmp_path / "lmx.yaml"
    path.write_text("""
default_model: small
models: [{id: a, source: org/a, aliases: [small]}, {id: b, source: org/b}, {id: c, source: org/c}]
groups: [{name: swapped, models: [a, b], swap: true}, {name: alone, models: [c]}]
""")
    assert load_config(path, {}).default_model == "small"
    variables = {"LMX_MODELS": "b=org/b,d=org/d"}
    config = load_config(path, variables)
    assert ([model.id for model in config.models], config.default_model) == (["b", "d"], None)
    assert [(group.name, group.models) for group in config.groups] == [("swapped", ("b",))]
    assert config_notices(path, {}) == []
    assert config_notices(path, variables) == [
        "default_model is left out: 'small' is not served now",
        "models that are not served now are left out of the group 'swapped': a",
        "models that are not served now are left out of the group 'alone': c",
    ]
    # What names no model of the file either is a mistake all the same.
    with pytest.raises(OperationError, match="'nobody' is no name of a model"):
        load_config(path, {**variables, "LMX_DEFAULT_MODEL": "nobody"})
    path.write_text(path.read_text().replace("models: [a, b]", "models: [a, [b], typo]"))
    with pytest.raises(OperationError, match=r"it is a text \(given: \['b'\]\)"):
        load_config(path, variables)
    path.write_text(path.read_text().replace("[a, [b], typo]", "[a, typo]"))
    with pytest.raises(OperationError, match="it names 'typo', which is no model's id"):
        load_config(path, variables)


def test_a_group_that_is_left_out_moves_no_line(tmp_path: Path) -> None:
    path = tmp_path / "lmx.yaml"
    path.write_text("""models: [{id: a, source: org/a}, {id: b, source: org/b}]
groups:
  - {name: alone, models: [a]}
  - name: other
    models: [b]
    swap: perhaps
""")
    with pytest.raises(OperationError, match=r"groups\.other\.swap \(line 6\)"):
        load_config(path, {})
    with pytest.raises(OperationError, match=r"groups\.other\.swap \(line 6\)"):
        load_config(path, {"LMX_MODELS": "b=org/b"})


def test_times_may_have_units(tmp_path: Path) -> None:
    text = "server: {load_wait_s: 5m, sync_timeout_s: '90'}\njobs: {max_age_s: 36h}\n"
    config = load(text + "memory: {fair_wait_s: 0s}", tmp_path, LMX_TIMING_STALL_TIMEOUT_S="1h30m")
    assert (config.server.load_wait_s, config.server.sync_timeout_s) == (300.0, 90.0)
    assert (config.jobs.max_age_s, config.memory.fair_wait_s) == (36 * 3600.0, 0.0)
    assert config.timing.stall_timeout_s == 5400.0


def test_paths_of_models_are_from_the_folder_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = """models:
  - {id: a, source: ./a, adapters: {s: ../lora, h: org/lora}}
  - {id: b, source: b.gguf, speculation: {method: draft_model, draft: ./draft}}
  - {id: c, source: ~/c, chat_template: ~/c.jinja}
  - {id: d, source: org/d, chat_template: ../d.jinja}
  - {id: e, source: org/e, chat_template: "{{ messages }}/e"}
"""
    config = load(entry, tmp_path)
    above = tmp_path.parent
    assert [m.source for m in config.models] == [
        str(tmp_path / "a"), str(tmp_path / "b.gguf"), "~/c", "org/d", "org/e",
    ]  # fmt: skip
    assert [m.chat_template for m in config.models[2:]] == [
        "~/c.jinja", str(above / "d.jinja"), "{{ messages }}/e",
    ]  # fmt: skip
    assert config.models[0].adapters == {"s": str(above / "lora"), "h": "org/lora"}
    assert config.models[1].speculation.draft == str(tmp_path / "draft")
    # The same file by a relative path; and a variable has no folder of its own.
    monkeypatch.chdir(above)
    same = load_config(Path(tmp_path.name) / "lmx.yaml", {})
    assert same.models == config.models
    assert load_config(None, {"LMX_MODELS": "./a"}).models[0].source == "./a"


def test_a_folder_beside_the_file_that_is_read_as_a_repository_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "lmx.yaml"
    path.write_text("models: [{id: a, source: m/minilm}, {id: b, source: org/b}]")
    assert config_notices(path, {}) == []
    (tmp_path / "m" / "minilm").mkdir(parents=True)
    (tmp_path / "m" / "minilm" / "config.json").write_text("{}")
    (notice,) = config_notices(path, {})
    assert notice.startswith("models.a.source: 'm/minilm' would be a repository of the hub")
    assert "write './m/minilm' for the folder" in notice

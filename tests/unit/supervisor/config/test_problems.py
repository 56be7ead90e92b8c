"""What a person reads of a configuration that is not valid: where, what, and what was meant."""

from pathlib import Path

import pytest

from lmx.protocol.errors import OperationError
from lmx.supervisor.config.load import load_config
from lmx.supervisor.config.sources import SourceError, refuse_folder_as_repository


def problems(folder: Path, text: str, **variables: str) -> list[str]:
    path = folder / "lmx.yaml"
    path.write_text(text)
    with pytest.raises(OperationError) as caught:
        load_config(path, variables)
    return [line.removeprefix("  - ") for line in caught.value.message.splitlines()[1:]]


def test_lines_names_and_what_was_meant(tmp_path: Path) -> None:
    text = """\
server:
  prot: 1
models:
  - id: qwen
    source: /x
    concurency: 2
  - id: other
    source: /y
    kind: picture
"""
    port, concurrency, kind = problems(tmp_path, text)
    assert port == "server.prot (line 2): unknown key: did you mean port?"
    assert concurrency == "models.qwen.concurency (line 6): unknown key: did you mean concurrency?"
    assert kind.startswith("models.other.kind (line 9): ")


def test_what_no_word_of_python_says(tmp_path: Path) -> None:
    models, server = problems(tmp_path, "models: {a: 1}\nserver: [1]\n")
    assert models.startswith("server (line 2): it is a section")
    assert server.startswith("models (line 1): it is a list")


def test_sections_in_which_all_is_commented_out_say_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lmx.yaml"
    path.write_text("models:\n#  - id: a\nserver:\n#  port: 1\n")
    assert load_config(path, {}).models == ()


def test_variables_are_named_where_they_are_wrong(tmp_path: Path) -> None:
    (port,) = problems(tmp_path, "server: {port: 80}", LMX_SERVER_PORT="abc")
    assert port.startswith("server.port (LMX_SERVER_PORT): ")
    for port_text in ("[" * 5000, "!!bool maybe"):
        (port,) = problems(tmp_path, "", LMX_SERVER_PORT=port_text)
        assert port.startswith("LMX_SERVER_PORT: ") and port.endswith(" is not a value")
        (models,) = problems(tmp_path, "", LMX_MODELS=f"[{port_text}]")
        assert models.startswith("LMX_MODELS: a value is invalid (")
    (key,) = problems(tmp_path, "", LMX_API_KEYS="sk-0123456789abcdef")
    assert key.startswith("LMX_API_KEYS is not a setting: did you mean LMX_")
    (unlike,) = problems(tmp_path, "", LMX_ZZZZZZZZ="1")
    assert "known are LMX_API_KEY, LMX_CACHE_DIR" in unlike


def test_no_password_of_an_address_is_shown(tmp_path: Path) -> None:
    url = "http://joe:hunter2@machine:4318"
    text = f"tracing: {{endpoint: '{url}'}}\npeers: [{{name: b, url: '{url}'}}]"
    said = problems(tmp_path, text)
    assert len(said) == 2
    for each in said:
        assert "password in it" in each and "hunter2" not in each


def test_the_variables_of_clients_are_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "lmx.yaml"
    path.write_text("")
    clients = {"LMX_API_KEY": "sk-0123456789abcdef", "LMX_URL": "http://studio:8000"}
    assert load_config(path, clients) == load_config(path, {})


def test_every_mistake_of_every_kind_is_said_at_once(tmp_path: Path) -> None:
    """Of single keys, of sections, and of what several keys say together."""
    text = """\
server:
  host: 0.0.0.0
  port: 99999
  cors_origins: [localhost]
memory:
  soft_line: 0.99
  keep_alve: 1
security:
  api_keys: [short]
default_model: zz
routing: {b: [a]}
groups:
  - {name: g, models: [q], swop: true}
  - {name: h, models: [q, a]}
models:
  - {id: a, source: /x}
  - {id: a, source: /y, max_rows: many}
  - {id: b, source: nothing, aliases: [c], default_max_tokens: 2, max_tokens_limit: 1}
  - {id: c, source: /z, concurrency: 9, max_rows: 8}
  - {source: /z}
"""
    said = problems(tmp_path, text)
    for place, words in (
        ("server.port (line 3)", "at most 65535 (given: 99999)"),
        ("server.cors_origins.0 (line 4)", "localhost"),
        ("memory.keep_alve (line 7)", "did you mean keep_alive?"),
        ("memory (line 5)", "soft_line (0.99) must be below hard_line (0.97)"),
        ("security.api_keys.0.key (line 9)", "at least 16 characters"),
        ("default_model (line 10)", "'zz' is no name of a model"),
        ("routing.b (line 11)", "models.b"),
        ("groups.g.swop (line 13)", "did you mean swap?"),
        ("groups.g (line 13)", "'q', which is no model's id"),
        ("groups.h (line 14)", "'q', which is no model's id"),
        ("models.a (line 17)", "two models, or one model twice, have the name 'a'"),
        ("models.a.max_rows (line 17)", "whole number"),
        ("models.b.source (line 18)", "write './nothing' for a folder"),
        ("models.b (line 18)", "default_max_tokens (2) is more than max_tokens_limit (1)"),
        ("models.c (line 19)", "'c' belongs to models.b too"),
        ("models.c (line 19)", "concurrency (9) is more than max_rows (8)"),
        ("models.5th.id (line 20)", "it is required"),
    ):
        assert any(each.startswith(f"{place}: ") and words in each for each in said), (place, said)
    assert len(said) == 17, said
    assert not any("Input should" in each for each in said)
    # A wrong key is a key: that the network can reach lmx is no mistake of its own.
    assert not any("no key protects" in each for each in said)


def test_each_form_of_a_text_is_described_as_it_is(tmp_path: Path) -> None:
    """The rule of models' names is said of these alone."""
    text = """\
routing: {patterns: {'a b': m}}
models: [{id: 'm m', source: /x, engine: my.module, tool_parser: JSON-Tools}]
security: {api_keys: [{key: sk-0123456789abcdef, name: "a\\tb"}]}
"""
    said = dict(each.split(" (line ", 1) for each in problems(tmp_path, text))
    assert "it has letters, digits and" in said.pop("models.m m.id")
    assert said.pop("security.api_keys.0.name").endswith("it has no control characters")
    assert sorted(said) == [
        "models.m m.engine", "models.m m.tool_parser", "routing.patterns.a b.[key]",
    ]  # fmt: skip
    for each in said.values():
        assert "it must match the regular expression ^" in each
    assert "(given: 'my.module')" in said["models.m m.engine"]


def test_a_folder_that_is_here_is_no_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refuse_folder_as_repository("m/minilm")
    (tmp_path / "m" / "minilm").mkdir(parents=True)
    (tmp_path / "m" / "minilm" / "config.json").write_text("{}")
    with pytest.raises(SourceError, match=r"write '\./m/minilm' for the folder, or 'm/"):
        refuse_folder_as_repository("m/minilm")
    for meant in ("./m/minilm", "m/minilm@main", "other/model"):
        refuse_folder_as_repository(meant)

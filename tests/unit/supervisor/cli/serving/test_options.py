"""What is said to lmx at its start goes over variables, and these over the file."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lmx.protocol.errors import OperationError
from lmx.supervisor.cli.command import own_config
from lmx.supervisor.cli.main import main
from lmx.supervisor.cli.serving import first_config
from lmx.supervisor.cli.serving.options import apply, settle_handover
from lmx.supervisor.config.load import load_config
from lmx.supervisor.config.schema import Config
from lmx.supervisor.state.home import Home

KEY = "sk-0123456789abcdef"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("LMX_")]:
        monkeypatch.delenv(name)
    # What `apply` writes is taken back with these.
    for name in ("LMX_SERVER_HOST", "LMX_SERVER_PORT", "LMX_SECURITY_API_KEYS", "LMX_MODELS"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("LMX_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def served(
    *models: str, host: str | None = None, port: int | None = None, keys: Sequence[str] = ()
) -> Config:
    apply(models, host, port, keys, None, None)
    return own_config(None)


def test_options_go_over_variables_and_these_over_the_file(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "lmx.yaml").write_text("server: {port: 1000, max_requests: 5}")
    assert served().server.port == 1000
    monkeypatch.setenv("LMX_SERVER_PORT", "2000")
    assert served().server.port == 2000
    config = served(host="0.0.0.0", port=3000, keys=[KEY])
    assert (config.server.host, config.server.port) == ("0.0.0.0", 3000)
    assert config.server.max_requests == 5
    assert config.security.client_key == KEY


def test_models_by_every_kind_of_name(home: Path) -> None:
    (home / "lmx.yaml").write_text(
        "models:\n  - {id: mine, source: /x, aliases: [me], context_length: 64}\n"
        "  - {id: unasked, source: /y}\n"
    )
    config = served("me", "qwen3-8b", "org/name", "./folder", "own=~/a.gguf")
    assert [(model.id, model.source) for model in config.models] == [
        ("mine", "/x"),
        ("qwen3-8b", "mlx-community/Qwen3-8B-4bit"),
        ("org/name", "org/name"),
        ("folder", str(home / "folder")),
        ("own", str(Path("~/a.gguf").expanduser())),
    ]
    assert config.models[0].context_length == 64


def test_a_model_without_an_id_is_a_mistake_in_the_configuration(home: Path) -> None:
    (home / "lmx.yaml").write_text("models:\n  - {source: /x, aliases: [me]}\n")
    with pytest.raises(OperationError, match=r"models\.1st\.id.* it is required"):
        served("me")


def test_short_names_in_the_variable(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMX_MODELS", "Qwen3-8B,mine=qwen3-0.6b")
    assert [(model.id, model.source) for model in served().models] == [
        ("qwen3-8b", "mlx-community/Qwen3-8B-4bit"),
        ("mine", "mlx-community/Qwen3-0.6B-4bit"),
    ]
    monkeypatch.setenv("LMX_MODELS", "qwen3:8b")
    with pytest.raises(OperationError, match=r"LMX_MODELS: .* \(did you mean qwen3-8b\?\)"):
        served()


def test_a_name_that_is_none_says_what_to_write(home: Path) -> None:
    with pytest.raises(OperationError, match=r"write './nothing' for a folder"):
        served("nothing")
    with pytest.raises(OperationError, match=r"did you mean qwen3-8b\?"):
        served("qwen3:8b")
    assert served("Qwen3-8B").models[0].id == "qwen3-8b"
    (home / "m" / "minilm").mkdir(parents=True)
    (home / "m" / "minilm" / "config.json").write_text("{}")
    for model in ("m/minilm", "a=m/minilm"):
        with pytest.raises(OperationError, match=r"write '\./m/minilm' for the folder"):
            served(model)


def test_paths_in_the_variable_are_from_where_lmx_is_started(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever continues this lmx, or compares with it, may stand elsewhere."""
    monkeypatch.setenv("LMX_MODELS", "m=./m,n=/n,~/o.gguf,org/p")
    settle_handover(Home(home), None, None)
    monkeypatch.chdir("/")
    assert [(model.id, model.source) for model in load_config(None, os.environ).models] == [
        ("m", str(home / "m")), ("n", "/n"), ("o", "~/o.gguf"), ("org/p", "org/p"),
    ]  # fmt: skip
    before = os.environ["LMX_MODELS"]
    settle_handover(Home(home), None, None)
    assert os.environ["LMX_MODELS"] == before
    monkeypatch.chdir(home)
    monkeypatch.setenv(
        "LMX_MODELS",
        "[{id: m, source: ./m, chat_template: t.jinja, adapters: {a: ./a}}, {id: h, source: o/h}]",
    )
    settle_handover(Home(home), None, None)
    monkeypatch.chdir("/")
    model, of_hub = load_config(None, os.environ).models
    assert (model.source, model.chat_template) == (str(home / "m"), str(home / "t.jinja"))
    assert (model.adapters, of_hub.source) == ({"a": str(home / "a")}, "o/h")


@pytest.mark.parametrize(
    "models",
    [
        "[{id: a, source: /x}]",
        "[{id: a, source: ./x, engine_options: {1: x}}]",
        "[{id: a, source: ./x, engine_options: {d: 2026-11-28}}]",
        "[{id: a, source: ./x, size: 2025-02-30}]",
        "[{id: a",
    ],
)
def test_a_variable_without_paths_or_with_mistakes_stays(
    models: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMX_MODELS", models)
    settle_handover(Home(home), None, None)
    assert os.environ["LMX_MODELS"] == models


def test_characters_beyond_the_basic_plane_in_models(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMX_MODELS", "m=./\U0001f600")
    assert served().models[0].source == str(home / "\U0001f600")
    monkeypatch.setenv("LMX_MODELS", "")
    (home / "lmx.yaml").write_text(
        "models: [{id: m, source: /x, chat_template_kwargs: {g: \U0001f600}}]", encoding="utf-8"
    )
    assert served("m").models[0].chat_template_kwargs == {"g": "\U0001f600"}


def test_a_folder_in_the_variable_is_no_repository(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "m" / "minilm").mkdir(parents=True)
    (home / "m" / "minilm" / "config.json").write_text("{}")
    monkeypatch.setenv("LMX_MODELS", "rel=m/minilm")
    with pytest.raises(OperationError, match="LMX_MODELS: 'm/minilm' would be a repository"):
        served()


def test_init_writes_a_configuration_that_is_valid_once(home: Path) -> None:
    done = CliRunner().invoke(main, ["init"])
    assert done.exit_code == 0, done.output
    assert f"wrote {home / 'lmx.yaml'}" in done.output
    assert CliRunner().invoke(main, ["config", "check"]).exit_code == 0
    assert own_config(None) == Config()
    assert (home / "lmx.yaml").stat().st_mode & 0o077 == 0
    (home / "lmx.yaml").write_text("# mine")
    again = CliRunner().invoke(main, ["init"])
    assert (again.exit_code, "is there already" in again.output) == (1, True)
    assert (home / "lmx.yaml").read_text() == "# mine"
    other = CliRunner().invoke(main, ["init", "--config", str(home / "other.yaml")])
    assert f"`lmx serve --config {home / 'other.yaml'}`" in other.output


def test_init_on_a_full_disk_leaves_nothing_in_the_way_of_the_next(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any, **options: Any) -> Any:
        open(*arguments, **options).close()  # noqa: PTH123  a descriptor
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(first_config, "open", full, raising=False)
        done = CliRunner().invoke(main, ["init"])
        assert (done.exit_code, os.strerror(errno.ENOSPC) in done.output) == (1, True)
    assert CliRunner().invoke(main, ["init"]).exit_code == 0


def test_config_check_says_mistakes_and_missing_files_in_one_round(home: Path) -> None:
    path = home / "lmx.yaml"
    path.write_text(
        "models:\n  - id: g\n    source: ./nothere.gguf\n  - id: d\n    source: ./folder\n"
    )
    done = CliRunner().invoke(main, ["config", "check"])
    assert done.exit_code == 4, done.output
    assert f"models.g (line 3) can't be loaded: there is no file {home / 'nothere.gguf'}" in (
        done.output
    )
    assert f"models.d (line 5) can't be loaded: {home / 'folder'} does not exist" in done.output
    with path.open("a") as file:
        file.write("server: {prot: 1}\ndefault_model: zz\n")
    done = CliRunner().invoke(main, ["config", "check"])
    assert done.exit_code == 4
    for words in ("server.prot (line 6)", "default_model (line 7)", "models.g (line 3)"):
        assert words in done.output
    assert "models.d (line 5)" in done.output


def test_config_check_warns_of_keys_that_others_can_read(home: Path) -> None:
    path = home / "lmx.yaml"
    path.write_text(f"security: {{api_keys: [{KEY}]}}\n")
    path.chmod(0o644)
    done = CliRunner().invoke(main, ["config", "check"])
    assert (done.exit_code, f"(mode 0644): chmod 600 {path}" in done.output) == (0, True)
    assert KEY not in done.output
    path.chmod(0o600)
    assert "chmod" not in CliRunner().invoke(main, ["config", "check"]).output

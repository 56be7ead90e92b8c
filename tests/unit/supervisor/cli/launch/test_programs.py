"""What each program of `lmx launch` is started with."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from lmx.supervisor.cli.launch.programs import KEY, PROGRAMS, Setup, Target

FOLDER = Path("/home/me/.lmx/state/launch/x")
ROOT = "https://studio.lan:8443/lmx"


def target(**fields: Any) -> Target:
    known = {
        "root": ROOT, "model": "org/qwen", "context_tokens": 65_536, "images": True,
        "reasoning": True, "folder": FOLDER,
    }  # fmt: skip
    return Target(**{**known, **fields})


def setup(name: str, **fields: Any) -> Setup:
    return PROGRAMS[name].setup(target(**fields))


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_has_the_address_the_model_and_a_way_to_the_key(name: str) -> None:
    found = setup(name)
    text = "\n".join([*found.variables.values(), *found.arguments, *found.files.values()])
    assert "studio.lan:8443" in text and "org/qwen" in text
    assert KEY in text or "LMX_API_KEY" in text
    # No program has it on its command line, where other users see it.
    assert KEY not in " ".join(found.arguments)
    assert all(FOLDER in file.parents for file in found.files)
    assert not set(found.removed) & set(found.variables)
    if name != "codex":  # it reads lmx's catalogue of models
        assert "65536" in text


def test_claude_code_goes_by_settings_that_win_over_its_own() -> None:
    found = setup("claude")
    (option, file) = found.arguments
    assert option == "--settings"
    env = json.loads(found.files[Path(file)])["env"]
    assert env == found.variables
    assert env["ANTHROPIC_BASE_URL"] == ROOT
    named = {value for name, value in env.items() if name.endswith("MODEL")}
    assert named == {"org/qwen"}


def test_codex_has_a_provider_by_options() -> None:
    settings = tomllib.loads("\n".join(setup("codex").arguments[1::2]))
    provider = settings["model_providers"]["lmx-launch"]
    assert (settings["model"], settings["model_provider"]) == ("org/qwen", "lmx-launch")
    assert (provider["base_url"], provider["wire_api"]) == (f"{ROOT}/v1", "responses")
    assert provider["auth"]["args"] == ["-c", "echo $LMX_API_KEY"]


@pytest.mark.parametrize(("images", "kinds"), [(True, ["text", "image"]), (False, ["text"])])
def test_opencode_knows_what_the_model_takes(images: bool, kinds: list[str]) -> None:
    config = json.loads(setup("opencode", images=images).variables["OPENCODE_CONFIG_CONTENT"])
    model = config["provider"]["lmx"]["models"]["org/qwen"]
    assert config["model"] == "lmx/org/qwen"
    assert (model["attachment"], model["modalities"]["input"]) == (images, kinds)
    assert model["limit"] == {"context": 65_536, "output": 8192}


def test_crush_keeps_what_the_user_has() -> None:
    own = {"lsp": {"go": {}}, "providers": {"mine": {"type": "openai"}}, "models": {"x": 1}}
    found = setup("crush", own_settings=own, context_tokens=16_000)
    (text,) = found.files.values()
    settings = json.loads(text)
    assert settings["lsp"] == own["lsp"]
    assert settings["providers"]["mine"] == {"type": "openai"}
    (model,) = settings["providers"]["lmx"]["models"]
    assert (model["context_window"], model["default_max_tokens"]) == (16_000, 4000)
    choice = {"provider": "lmx", "model": "org/qwen"}
    assert settings["models"] == {"x": 1, "large": choice, "small": choice}


def test_goose_has_host_and_path_apart() -> None:
    found = setup("goose").variables
    assert found["OPENAI_HOST"] == "https://studio.lan:8443"
    assert found["OPENAI_BASE_PATH"] == "lmx/v1/chat/completions"
    plain = setup("goose", root="http://127.0.0.1:8000").variables
    assert plain["OPENAI_BASE_PATH"] == "v1/chat/completions"

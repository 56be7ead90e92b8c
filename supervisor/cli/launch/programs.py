"""The programs that ``lmx launch`` starts, and what each needs to ask lmx. Values and paths only:
nothing is read or written here.

A program gets environment variables, arguments, and files in a folder of lmx's own, whichever of
them it has. No file of the user or of the program is ever changed: see
docs/decisions/launching-programs.md.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

KEY_VARIABLE: Final = "LMX_API_KEY"
"""Every program has the key to lmx in this variable."""
KEY: Final = "<the key to lmx>"
"""Stands for the key in variables and files."""
_MOST_OUTPUT_TOKENS: Final = 8192


@dataclass(frozen=True, slots=True)
class Target:
    """What a program is to ask."""

    root: str
    """The address of lmx, without a path of the API and without a slash at the end."""
    model: str
    """The name for requests."""
    context_tokens: int
    images: bool
    reasoning: bool
    folder: Path
    """For files of lmx's own about this program."""
    own_settings: Mapping[str, Any] = field(default_factory=dict)
    """What the user's own file of settings says, of a program whose file is copied."""

    @property
    def output_tokens(self) -> int:
        """How long an answer may be, for programs that want to know it: it is a part of the
        context."""
        return min(_MOST_OUTPUT_TOKENS, self.context_tokens // 4)


@dataclass(frozen=True, slots=True)
class Setup:
    """What a program is started with."""

    variables: Mapping[str, str] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    """Variables that would lead it elsewhere."""
    arguments: tuple[str, ...] = ()
    """Before those of the user."""
    files: Mapping[Path, str] = field(default_factory=dict)
    """Files of lmx's own with their text."""


@dataclass(frozen=True, slots=True)
class Program:
    """One program."""

    title: str
    command: str
    install: str
    """The command that installs it."""
    family: str
    """The API that it asks."""
    context_tokens: int
    """The least context in which it is of use: its own prompt with tools, and room for work."""
    setup: Callable[[Target], Setup]
    settings_path: Callable[[Mapping[str, str]], Path] | None = None
    """The user's own file of settings by the environment, of a program whose file is copied."""


def _claude(target: Target) -> Setup:
    # Its settings may have variables of their own, which go before those of the process; what is
    # named on the command line goes before all of them.
    model, file = target.model, target.folder / "settings.json"
    tiers = ("OPUS", "SONNET", "HAIKU", "FABLE")
    variables = {
        "ANTHROPIC_BASE_URL": target.root,
        "ANTHROPIC_AUTH_TOKEN": KEY,
        "ANTHROPIC_API_KEY": "",
        "ANTHROPIC_MODEL": model,
        **{f"ANTHROPIC_DEFAULT_{tier}_MODEL": model for tier in tiers},
        "ANTHROPIC_SMALL_FAST_MODEL": model,
        "CLAUDE_CODE_SUBAGENT_MODEL": model,
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(target.context_tokens),
    }
    return Setup(
        variables,
        removed=(
            "CLAUDE_CODE_OAUTH_TOKEN",
            "CLAUDE_CODE_USE_BEDROCK",
            "CLAUDE_CODE_USE_FOUNDRY",
            "CLAUDE_CODE_USE_VERTEX",
        ),
        arguments=("--settings", str(file)),
        files={file: _json({"env": variables})},
    )


def _codex(target: Target) -> Setup:
    # With `auth` it reads lmx's catalogue of models, which tells it the context and the tools.
    provider = (
        f'{{name="lmx",base_url={json.dumps(f"{target.root}/v1")},wire_api="responses",'
        f'auth={{command="sh",args=["-c","echo ${KEY_VARIABLE}"]}}}}'
    )
    # A provider of a name that the user has would be merged with it.
    settings = (
        f"model={json.dumps(target.model)}",
        'model_provider="lmx-launch"',
        f"model_providers.lmx-launch={provider}",
    )
    return Setup(arguments=tuple(part for one in settings for part in ("-c", one)))


def _opencode(target: Target) -> Setup:
    name = f"lmx/{target.model}"
    model = {
        "name": target.model,
        "attachment": target.images,
        "reasoning": target.reasoning,
        "tool_call": True,
        "modalities": {
            "input": ["text", *(["image"] if target.images else [])],
            "output": ["text"],
        },
        "limit": {"context": target.context_tokens, "output": target.output_tokens},
    }
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "lmx",
        "options": {"baseURL": f"{target.root}/v1", "apiKey": f"{{env:{KEY_VARIABLE}}}"},
        "models": {target.model: model},
    }
    config = {"model": name, "small_model": name, "provider": {"lmx": provider}}
    return Setup({"OPENCODE_CONFIG_CONTENT": json.dumps(config)})


def _aider(target: Target) -> Setup:
    name = f"openai/{target.model}"
    known = {
        name: {
            "litellm_provider": "openai",
            "mode": "chat",
            "max_input_tokens": target.context_tokens,
            "max_output_tokens": target.output_tokens,
            "input_cost_per_token": 0,
            "output_cost_per_token": 0,
            "supports_vision": target.images,
        }
    }
    file = target.folder / "models.json"
    return Setup(
        {"OPENAI_API_KEY": KEY},
        removed=("OPENAI_BASE_URL",),
        arguments=(
            "--openai-api-base", f"{target.root}/v1", "--model", name, "--weak-model", name,
            "--editor-model", name, "--model-metadata-file", str(file),
        ),
        files={file: _json(known)},
    )  # fmt: skip


def _qwen(target: Target) -> Setup:
    file = target.folder / "settings.json"
    settings = {"model": {"generationConfig": {"contextWindowSize": target.context_tokens}}}
    return Setup(
        {"OPENAI_API_KEY": KEY, "QWEN_CODE_SYSTEM_DEFAULTS_PATH": str(file)},
        arguments=(
            "--auth-type", "openai", "--openai-base-url", f"{target.root}/v1",
            "--model", target.model,
        ),
        files={file: _json(settings)},
    )  # fmt: skip


def _crush(target: Target) -> Setup:
    own = target.own_settings
    providers, models = own.get("providers"), own.get("models")
    choice = {"provider": "lmx", "model": target.model}
    provider = {
        "name": "lmx",
        "type": "openai-compat",
        "base_url": f"{target.root}/v1",
        "api_key": f"${KEY_VARIABLE}",
        "models": [
            {
                "id": target.model,
                "name": target.model,
                "context_window": target.context_tokens,
                "default_max_tokens": target.output_tokens,
                "can_reason": target.reasoning,
                "supports_attachments": target.images,
            }
        ],
    }
    settings = {
        **own,
        "providers": {**(providers if isinstance(providers, dict) else {}), "lmx": provider},
        "models": {
            **(models if isinstance(models, dict) else {}), "large": choice, "small": choice,
        },
    }  # fmt: skip
    config, data = target.folder / "config", target.folder / "data"
    return Setup(
        # What its user chose in its menus is in its data, and goes before its configuration.
        {"CRUSH_GLOBAL_CONFIG": str(config), "CRUSH_GLOBAL_DATA": str(data)},
        files={config / "crush.json": _json(settings)},
    )


def _crush_settings(environment: Mapping[str, str]) -> Path:
    chosen = environment.get("CRUSH_GLOBAL_CONFIG")
    if chosen:
        return Path(chosen) / "crush.json"
    folder = environment.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(folder).expanduser() / "crush" / "crush.json"


def _goose(target: Target) -> Setup:
    place = urlsplit(target.root)
    return Setup(
        {
            "GOOSE_PROVIDER": "openai",
            "GOOSE_MODEL": target.model,
            "GOOSE_FAST_MODEL": target.model,
            "GOOSE_CONTEXT_LIMIT": str(target.context_tokens),
            "OPENAI_HOST": f"{place.scheme}://{place.netloc}",
            "OPENAI_BASE_PATH": f"{place.path}/v1/chat/completions".removeprefix("/"),
            "OPENAI_API_KEY": KEY,
        },
        removed=("OPENAI_BASE_URL",),
    )


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


_CHAT: Final = "OpenAI chat"

PROGRAMS: Final = {
    "claude": Program(
        "Claude Code", "claude", "npm install -g @anthropic-ai/claude-code",
        "Anthropic Messages", 65_536, _claude,
    ),
    "codex": Program(
        "Codex", "codex", "npm install -g @openai/codex", "OpenAI Responses", 32_768, _codex
    ),
    "opencode": Program(
        "opencode", "opencode", "npm install -g opencode-ai", _CHAT, 32_768, _opencode
    ),
    "aider": Program("aider", "aider", "uv tool install aider-chat", _CHAT, 16_384, _aider),
    "qwen": Program(
        "Qwen Code", "qwen", "npm install -g @qwen-code/qwen-code", _CHAT, 65_536, _qwen
    ),
    "crush": Program(
        "Crush", "crush", "npm install -g @charmland/crush", _CHAT, 32_768, _crush,
        _crush_settings,
    ),
    "goose": Program(
        "goose", "goose", "brew install block-goose-cli", _CHAT, 32_768, _goose
    ),
}  # fmt: skip
"""The programs by the names that people type."""

"""``lmx init``: writes a configuration to begin with."""

import os
from pathlib import Path
from typing import Final

import click

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.supervisor.state.home import Home

FIRST_CONFIG: Final = """\
# The configuration of lmx. To set a key that is commented out, remove the # before it.
# `lmx config check` reports every problem of this file, `lmx reload` has a running lmx read it,
# `lmx config show` prints every key with its value.

server:
  # The address that lmx listens on. One that others can reach, as 0.0.0.0, needs api_keys below.
  host: 127.0.0.1
  port: 8000
  # Web pages that may use lmx from a browser.
  # cors_origins: [https://app.example.com]

# security:
#   # Keys that clients send. Make one with: openssl rand -hex 24
#   api_keys: [the-key-that-openssl-printed]

memory:
  # All models together may take this share of the machine's memory.
  budget_fraction: 0.75
  # How long an idle model stays loaded: 300, 90s, 5m, 1h30m, forever, or 0 (not at all).
  keep_alive: forever

# The models that are served. A source is a repository of the hub, a folder in MLX form, or a .gguf
# file. `lmx pull` and `lmx add` serve models without this list.
#
# models:
#   - id: qwen
#     source: mlx-community/Qwen3-8B-4bit
#     # It is loaded when lmx starts; with false, when somebody asks for it.
#     preload: true
#     # It is never unloaded to make room for others.
#     pinned: false
#     # Tokens of a conversation at most; a smaller number takes less memory.
#     context_length: 8192
#   - id: coder
#     source: ~/models/my-coder

# The model that answers requests that name none. Without it the first one does.
# default_model: qwen
"""


def write_first_config(home: Home, path: Path | None) -> None:
    """Write the file, and print what to do with it. Raises :class:`OperationError` if there is one
    already, ``OSError`` if it can't be written."""
    chosen = path
    if path is None:
        home.prepare()
        path = home.default_config
    if os.path.lexists(path):
        raise OperationError(
            ErrorCode.CONFIG_INVALID,
            f"{path} is there already, and was not changed: `lmx config check` looks at it",
        )
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123  of a descriptor, with its mode
        file.write(FIRST_CONFIG)
    option = "" if chosen is None else f" --config {path}"
    click.echo(f"wrote {path}: put your models into it, then `lmx serve{option}`")

"""``lmx init``: writes a configuration with every key, commented out: ``deploy/lmx.example.yaml``,
which ``make docs`` makes from the schema."""

import os
from pathlib import Path

import click

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.supervisor.cli.deploy_files import deploy_file
from lmx.supervisor.state.home import Home


def write_first_config(home: Home, path: Path | None) -> None:
    """Write the file, and print what to do with it. Raises :class:`OperationError` if there is one
    already, ``OSError`` if it can't be written."""
    # Its first line names the schema next to it, which is for editors of the example.
    _, _, text = deploy_file("lmx.example.yaml").read_text("utf-8").partition("\n")
    chosen = path
    if path is None:
        home.prepare()
        path = home.default_config
    if os.path.lexists(path):
        raise OperationError(
            ErrorCode.INVALID_VALUE,
            f"{path} is there already, and was not changed: `lmx config check` looks at it",
        )
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123  of a descriptor, with its mode
            file.write(text)
    except OSError:
        path.unlink()  # a part of it would stand in the way of the next try
        raise
    option = "" if chosen is None else f" --config {path}"
    click.echo(f"wrote {path}: put your models into it, then `lmx serve{option}`")

"""The page of the command line, ``docs/commands.md``, from the commands themselves."""

import inspect
import re
from collections.abc import Iterator
from typing import Final

import click

from lmx.supervisor.cli.main import main

_HEAD: Final = """\
# Commands

What `lmx COMMAND -h` says of each command. This page is made from the code by `make docs`;
[operating.md](operating.md) says when to use which."""


def commands_page() -> str:
    """Return the page."""
    # Options for help are made once for each command, from the names of its first context.
    context = click.Context(main, info_name="lmx", terminal_width=_WIDTH, **main.context_settings)
    parts = [_HEAD, *_text(main.help or ""), _options(main, context), *_text(main.epilog or "")]
    for title, lines in main.sections.items():
        parts.append(f"## {title}")
        for name, *others in lines:
            parts += _of(main.commands[name], name, others, context)
    return "\n\n".join(part for part in parts if part) + "\n"


_WIDTH: Final = 1000
"""Columns: no line of an option is broken."""


def _of(
    command: click.Command, name: str, others: list[str], above: click.Context
) -> Iterator[str]:
    context = click.Context(command, info_name=name, parent=above, terminal_width=_WIDTH)
    yield f"### {context.command_path}"
    options = _options(command, context)
    pieces = command.collect_usage_pieces(context)
    if not options:
        pieces.remove("[OPTIONS]")
    yield f"```text\n{' '.join((context.command_path, *pieces))}\n```"
    if others:
        yield f"Also: {', '.join(f'`{above.command_path} {other}`' for other in others)}."
    yield from _text(command.help or "")
    yield options
    yield from _text(command.epilog or "")
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            if not command.commands[inner].hidden:
                yield from _of(command.commands[inner], inner, [], context)


def _options(command: click.Command, context: click.Context) -> str:
    rows = [
        record
        for one in command.get_params(context)
        if not {"--help", "--version"} & set(one.opts)
        and (record := one.get_help_record(context)) is not None
        # An argument's name is in the line of usage already.
        and (record[1] or isinstance(one, click.Option))
    ]
    if not rows:
        return ""
    lines = (f"| `{_cell(option)}` | {_cell(' '.join(text.split()))} |" for option, text in rows)
    return "\n".join(("| option | |", "|---|---|", *lines))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _text(text: str) -> Iterator[str]:
    """Yield the paragraphs of a help text. What click leaves as it is (after ``\\b``) is a block:
    lines of a shell, where they are examples."""
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if "\b" not in paragraph:
            yield " ".join(paragraph.split())
            continue
        lines = [line for line in paragraph.replace("\b", "").splitlines() if line.strip()]
        examples = lines[0] == "Examples:"
        if lines[0].endswith(":"):
            yield lines.pop(0)
        yield "\n".join(
            (f"```{'sh' if examples else 'text'}", *(_line(one, examples) for one in lines), "```")
        )


def _line(line: str, is_example: bool) -> str:
    """Return a line of a block; what an example says of itself becomes the shell's comment."""
    text = line.strip()
    return re.sub(r"(?<=\S)( {2,})(?=[^#\s])", r"\1# ", text, count=1) if is_example else text

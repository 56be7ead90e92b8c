"""A group of commands whose help lists them in sections, each with its whole first sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import click

_LONGEST: Final = 1000
"""No first sentence is longer, so that none is cut: click wraps what does not fit on a line."""


class Sections(click.Group):
    """A click group whose commands stand in named sections, in the order in which they were
    added."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._sections: dict[str, list[tuple[str, ...]]] = {}

    def add_section(
        self, title: str, commands: Sequence[click.Command | tuple[click.Command, str]]
    ) -> None:
        """Add the commands of a section. A command may come with a second name, under which
        another program has it."""
        lines = self._sections.setdefault(title, [])
        for each in commands:
            command, *others = each if isinstance(each, tuple) else (each,)
            assert isinstance(command, click.Command)
            assert command.name is not None
            names = (command.name, *(str(other) for other in others))
            for name in names:
                self.add_command(command, name)
            lines.append(names)

    def list_commands(self, _context: click.Context) -> list[str]:
        return [name for lines in self._sections.values() for names in lines for name in names]

    def format_commands(self, _context: click.Context, formatter: click.HelpFormatter) -> None:
        for title, lines in self._sections.items():
            with formatter.section(title):
                formatter.write_dl(
                    [
                        (", ".join(names), self.commands[names[0]].get_short_help_str(_LONGEST))
                        for names in lines
                    ]
                )

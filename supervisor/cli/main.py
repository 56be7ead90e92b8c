"""``lmx``: the command line. The exit codes are a contract, see
:mod:`lmx.supervisor.cli.command`."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.supervisor.cli import about, backup, disk, models, watch
from lmx.supervisor.cli import config as cli_config
from lmx.supervisor.cli.batch import batch_group
from lmx.supervisor.cli.bench.command import bench
from lmx.supervisor.cli.chat import commands as talk
from lmx.supervisor.cli.command import (
    KEY_VARIABLE,
    URL_VARIABLE,
    command,
    config_option,
    config_path,
    home,
    own_config,
    remote_options,
)
from lmx.supervisor.cli.completion import completion
from lmx.supervisor.cli.doctor.command import doctor
from lmx.supervisor.cli.keys import key_group
from lmx.supervisor.cli.launch.command import launch
from lmx.supervisor.cli.pairing import pair, peers_group
from lmx.supervisor.cli.service.command import service
from lmx.supervisor.cli.serving.options import apply, refuse_unloadable, serving_options

_LONGEST: Final = 1000
"""No first sentence is longer, so that none is cut: click wraps what does not fit on a line."""


class Sections(click.Group):
    """A click group whose commands stand in named sections, in the order in which they were
    added."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.sections: dict[str, list[tuple[str, ...]]] = {}
        """By their titles, the names of each command; the first is its own."""

    def add_section(
        self, title: str, commands: Sequence[click.Command | tuple[click.Command, str]]
    ) -> None:
        """Add the commands of a section. A command may come with a second name, under which
        another program has it."""
        lines = self.sections.setdefault(title, [])
        for each in commands:
            command, *others = each if isinstance(each, tuple) else (each,)
            assert isinstance(command, click.Command)
            assert command.name is not None
            names = (command.name, *(str(other) for other in others))
            for name in names:
                self.add_command(command, name)
            lines.append(names)

    def invoke(self, context: click.Context) -> Any:
        """Run a command. Options of the group that stand after it are named as such."""
        try:
            return super().invoke(context)
        except click.NoSuchOption as error:
            if any(error.option_name in each.opts for each in self.params):
                words = f"{error.option_name} stands before the command: `lmx --url URL COMMAND`"
                raise click.UsageError(words, error.ctx) from error
            raise

    def list_commands(self, _context: click.Context) -> list[str]:
        return [name for lines in self.sections.values() for names in lines for name in names]

    def format_commands(self, _context: click.Context, formatter: click.HelpFormatter) -> None:
        for title, lines in self.sections.items():
            with formatter.section(title):
                formatter.write_dl(
                    [
                        (", ".join(names), self.commands[names[0]].get_short_help_str(_LONGEST))
                        for names in lines
                    ]
                )


if TYPE_CHECKING:
    from lmx.supervisor.processes.handover import Handover, Successor

# Ctrl-C ends a command without a traceback also while it is still importing; each command, and
# `up`, set handlers of their own.
signal.signal(signal.SIGINT, signal.SIG_DFL)

_EXAMPLES = """\b
Examples:
  lmx serve qwen3-8b                 serve a model, in the foreground
  lmx chat                           talk with it in the terminal
  lmx start --port 8080              serve what lmx.yaml says, in the background
  lmx status                         what is loaded, and how much memory it takes
  lmx --url http://studio:8000 chat  the same with the lmx of another machine
  lmx COMMAND -h                     more about a command
"""


@click.group(
    cls=Sections, context_settings={"help_option_names": ["-h", "--help"]}, epilog=_EXAMPLES
)
@click.version_option(package_name="lmx", prog_name="lmx")
@remote_options
def main(**_: Any) -> None:
    """Serve language models on this machine, each in a process of its own.

    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 lmx is not running, 4 the configuration is
    invalid, 5 lmx is running already. State is kept in LMX_HOME (default ~/.lmx). With
    --url commands are about the lmx of another machine.
    """


@main.command(hidden=True)
@config_option
@click.option("--take-over", "take_over", hidden=True, help="As that of `serve`.")
@click.option("--detached", is_flag=True, hidden=True, help="Log to the log file only.")
@click.option("--background", is_flag=True, hidden=True, help="Nobody else looks after it.")
@click.option("--asker", "requester_id", hidden=True, help="The process that wants it.")
@click.option("--because", default="", hidden=True, help="Why it is started.")
@click.option("--lock-fd", type=int, hidden=True, help="The lock, held by this process already.")
@click.option("--listen-fd", type=int, hidden=True, help="The listening socket, inherited.")
@click.option("--down", multiple=True, hidden=True, help="A model that stays down.")
@click.option("--held", multiple=True, hidden=True, help="A model that was drained.")
@command
def up(
    config: Path | None,
    take_over: str | None,
    detached: bool,
    background: bool,
    requester_id: str | None,
    because: str,
    lock_fd: int | None,
    listen_fd: int | None,
    down: tuple[str, ...],
    held: tuple[str, ...],
) -> None:
    """Run in the foreground until Ctrl-C, as services and lmx itself do.

    Streams may finish first; a second Ctrl-C stops at once. People have `serve`.
    """
    from lmx.protocol.host.imports import quick_imports

    with quick_imports():
        from lmx.supervisor.processes.handover import Handover, Successor

    for name in (URL_VARIABLE, KEY_VARIABLE):  # they are for clients, and not for what runs here
        os.environ.pop(name, None)
    handover = None if lock_fd is None else Handover.of(lock_fd, listen_fd, down, held)
    successor = None if requester_id is None else Successor(requester_id, because)
    if not detached and handover is None:
        apply((), None, None, (), take_over, config)
    _run(config, detached, handover, background, successor)


@click.command()
@serving_options
@command
def serve(**options: Any) -> None:
    """Serve models in the foreground, until Ctrl-C.

    MODEL is a model of the configuration, a short name (see `lmx pull -h`), org/name of the hub, a
    folder in MLX form, a .gguf file, or one of these as NAME=SOURCE. Without a MODEL it is what the
    configuration says. Options override LMX_* variables, which override lmx.yaml. On Ctrl-C
    streams may finish first; a second Ctrl-C stops at once.

    \b
    Examples:
      lmx serve qwen3-8b
      lmx serve mlx-community/Qwen3-8B-4bit --port 8080
      lmx serve ./my-model coder=~/models/coder.gguf
      lmx serve --host 0.0.0.0 --api-key "$(openssl rand -hex 24)"
    """
    apply(**options)
    refuse_unloadable(options["models"], options["config"])
    _run(options["config"])


@click.command()
@serving_options
@command
def start(**options: Any) -> None:
    """Serve models in the background; returns when the API answers.

    MODEL and the options are those of `lmx serve`.
    """
    from lmx.supervisor.cli.serving.background import start_background
    from lmx.supervisor.cli.views.progress import make_console, print_started

    apply(**options)
    config = options["config"]
    refuse_unloadable(options["models"], config)
    started = start_background(home(), own_config(config), config_path(config))
    print_started(make_console(), started)


@click.command()
@click.option("--port", type=click.IntRange(0, 65_535), help="Listen there (default: 8000).")
@click.option("--two", is_flag=True, help="Serve it twice, and show how one is killed.")
@command
def demo(port: int | None, two: bool) -> None:
    """Serve a small model in the foreground, to try lmx out.

    It is SmolLM2-135M, 93 MB from the package index. It is quick, and often wrong. With --two a
    page of the console shows how one of two models is killed while the other continues.
    """
    from lmx.protocol.host.cache_folder import cache_dir
    from lmx.supervisor.cli.serving.demo import DemoModelError, demo_models, obtain, story_lines

    here = home()  # before the download: another machine's lmx gives no demo
    try:
        gguf = obtain(cache_dir() / "demo")
    except DemoModelError as error:
        raise OperationError(ErrorCode.DOWNLOAD_FAILED, str(error)) from error
    os.environ["LMX_MODELS"] = json.dumps(demo_models(gguf, two=two))
    apply((), None, port, (), None, None)
    _run(None, more=story_lines(here.admin_key) if two else ())


@click.command()
@click.option(
    "--config",
    "config",
    type=click.Path(path_type=Path),
    default=None,
    help="Write this file (default: lmx.yaml in $LMX_HOME).",
)
@command
def init(config: Path | None) -> None:
    """Write a configuration with every key and its meaning, all commented out."""
    from lmx.supervisor.cli.serving.first_config import write_first_config

    write_first_config(home(), config)


def _run(
    config: Path | None,
    detached: bool = False,
    handover: Handover | None = None,
    background: bool = False,
    successor: Successor | None = None,
    more: Sequence[str] = (),
) -> None:
    from importlib.metadata import version

    from lmx.protocol.host.imports import quick_imports

    with quick_imports():
        from lmx.supervisor.cli.serving.foreground import run_foreground
        from lmx.supervisor.processes.handover import Invocation

    invocation = Invocation(
        config, detached, lambda: own_config(config), handover, background,
        lambda: config_path(config), successor,
    )  # fmt: skip
    run_foreground(invocation, home(), version("lmx"), more)


@main.command(hidden=True)
@config_option
@click.option("--guarded", required=True, help="Who starts a dead supervisor again.")
@click.option("--silence", "silence_s", type=float, required=True, help="For how long it was.")
@command
def rescue(config: Path | None, guarded: str, silence_s: float) -> None:
    """See to a supervisor that is silent. Routers run this."""
    from lmx.supervisor.cli.serving.rescue import run_rescue
    from lmx.supervisor.processes.handover import Guarded

    run_rescue(home(), config, Guarded(guarded), silence_s)


@click.command()
@command
def stop() -> None:
    """Stop everything; returns when no process is left.

    Streams may finish first; a second `stop` meanwhile stops at once and cuts them off. A
    supervisor that hangs or has died is no hindrance: what it left is ended. Exit code 3: nothing
    was running.
    """
    from lmx.supervisor.cli import without_supervisor

    pid = without_supervisor.stop(home(), click.echo)
    if pid is None:
        raise OperationError(ErrorCode.NOT_RUNNING, "lmx is not running")
    click.echo(f"stopped lmx (pid {pid})")


main.add_section("Serve", [serve, start, stop, service, demo, init])
main.add_section("Talk", [talk.chat, talk.run, launch, batch_group])
main.add_section(
    "Models",
    [
        (disk.download, "pull"), disk.downloads, (disk.available, "list"), models.add,
        models.remove, (disk.delete, "rm"), models.estimate,
        models.fit,
    ],
)  # fmt: skip
main.add_section("Memory", [models.load, models.unload, models.pin, models.unpin, watch.ps])
main.add_section(
    "Watch", [watch.status, watch.show, watch.top, watch.events, watch.logs, doctor, bench]
)
main.add_section(
    "Recover", [models.restart, models.kill, models.drain, models.undrain, models.reset]
)
main.add_section(
    "Configure",
    [
        cli_config.config_group,
        cli_config.reload_command,
        key_group,
        pair,
        peers_group,
        backup.backup,
        backup.restore,
        completion,
    ],
)
main.add_section("About", [about.version, about.help_command])


if __name__ == "__main__":
    main()

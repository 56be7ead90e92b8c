"""Commands on one model, and on the processes around it: what changes what runs."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

from lmx.supervisor.cli.command import (
    command,
    config_option,
    home,
    json_option,
    place,
    remote_place,
    served_config,
)
from lmx.supervisor.cli.completion import MODEL, MODEL_OR_SHORT_NAME, SHORT_NAME

_HUNG_S: Final = 5.0
"""For a supervisor that may hang, before what `kill` does without it."""

_model = click.argument("model", type=MODEL)


def _on_model(function: Callable[[str], None]) -> click.Command:
    """Make a command of what is done with one model."""
    return click.command()(_model(command(function)))


_context = click.option(
    "--context-length",
    type=int,
    default=None,
    metavar="TOKENS",
    help="Context length in tokens (default: the configured one).",
)


@click.command()
@_model
@_context
@command
def load(model: str, context_length: int | None) -> None:
    """Load MODEL and wait until it answers.

    A repository that is whole in the hub's cache on this machine is added first, under its own
    name. --context-length holds until another load gives another, or the configuration changes
    the model; one that is loaded is reloaded once its streams have ended.
    """
    from lmx.supervisor.cli.operations import load_model

    load_model(place(), model, context_length)


@click.command()
@click.argument("id", metavar="ID")
@click.argument("source", type=SHORT_NAME)
@_context
@command
def add(id: str, source: str, context_length: int | None) -> None:
    """Serve another model under ID, now and after restarts.

    SOURCE is a folder in MLX form, a .gguf file, a short name (see `lmx pull -h`) or
    org/name[@revision]. Its first request loads it. `remove` takes it back.
    """
    from lmx.supervisor.cli.operations import add_model

    add_model(place(), id, source, context_length)


@_on_model
def remove(model: str) -> None:
    """Stop serving MODEL, which was added or downloaded, once its streams have ended. Its files
    stay."""
    from lmx.supervisor.cli.operations import remove_model

    remove_model(place(), model)


@_on_model
def unload(model: str) -> None:
    """Let MODEL's streams end, then give its memory back. A new request loads it again."""
    from lmx.supervisor.cli.machines import at_machine
    from lmx.supervisor.cli.operations import unload_model

    unload_model(*at_machine(model))


def _on_model_or_machine(function: Callable[[str | None, str | None], None]) -> click.Command:
    """Make a command of what is done with one model, or with a whole machine."""
    named = click.argument("model", required=False, type=MODEL)
    machine = click.option(
        "--machine", is_flag=False, flag_value="", metavar="[NAME]",
        help="The whole machine: this one, or the peer NAME.",
    )  # fmt: skip

    @functools.wraps(function)
    def checked(model: str | None, machine: str | None) -> None:
        if (model is None) is (machine is None):
            raise click.UsageError("give MODEL or --machine")
        function(model, machine)

    return click.command()(named(machine(command(checked))))


@_on_model_or_machine
def drain(model: str | None, machine: str | None) -> None:
    """Let MODEL's streams end and keep it down, for maintenance.

    New requests for it are refused. `undrain` lets them in again; so do `load`, `restart` and
    `reset`.

    With --machine no model of the machine takes new requests, and all stay loaded. Its peers answer
    them, those of its own clients too, where they have the model; others are refused. It lasts over
    restarts, until `lmx undrain --machine`.
    """
    from lmx.supervisor.cli.machines import at_machine, drain_machine
    from lmx.supervisor.cli.operations import drain_model

    if machine is not None:
        drain_machine(machine, drained=True)
    elif model is not None:
        drain_model(*at_machine(model))


@_on_model_or_machine
def undrain(model: str | None, machine: str | None) -> None:
    """Take requests for MODEL again after a drain; the next one loads it. With --machine, for all
    models of the machine."""
    from lmx.supervisor.cli.machines import at_machine, drain_machine
    from lmx.supervisor.cli.operations import undrain_model

    if machine is not None:
        drain_machine(machine, drained=False)
    elif model is not None:
        undrain_model(*at_machine(model))


@_on_model
def kill(model: str) -> None:
    """Kill MODEL's worker now, hung or not; the model comes back.

    Its requests end with an error. The API and the other models continue. Works also while the
    supervisor hangs or is not there; then MODEL is a model's id. MODEL@MACHINE is that of a peer,
    where the key needs the scope admin: this machine's, or --key. The same holds for drain,
    undrain, unload and reset.
    """
    from lmx.supervisor.cli.machines import at_machine
    from lmx.supervisor.cli.operations import kill_model

    kill_model(*at_machine(model, _HUNG_S))


@click.command()
@click.argument("model", required=False, type=MODEL)
@click.option("--router", is_flag=True, help="Restart the router: the old one ends its streams.")
@click.option("--supervisor", is_flag=True, help="Replace the supervisor; workers and router stay.")
@command
def restart(model: str | None, router: bool, supervisor: bool) -> None:
    """Restart MODEL, the router or the supervisor, and wait for it.

    MODEL: its streams end first; a quarantine or a drain ends too. --router and --supervisor
    take the program that is installed now. Requests have `timing.drain_timeout_s` to end.
    """
    from lmx.supervisor.cli import operations

    if (model is not None) + router + supervisor != 1:
        raise click.UsageError("give one of MODEL, --router and --supervisor")
    if router:
        operations.restart_router(place())
    elif supervisor:
        operations.restart_supervisor(place())
    elif model is not None:
        operations.restart_model(place(), model)


@_on_model
def reset(model: str) -> None:
    """Forget MODEL's failures: out of quarantine, backoff or a drain.

    The next request loads it.
    """
    from lmx.supervisor.cli.machines import at_machine
    from lmx.supervisor.cli.operations import reset_model

    reset_model(*at_machine(model))


@_on_model
def pin(model: str) -> None:
    """Never evict MODEL, nor unload it because it is idle."""
    from lmx.supervisor.cli.operations import pin_model

    pin_model(place(), model, pinned=True)


@_on_model
def unpin(model: str) -> None:
    """Allow MODEL to be unloaded again."""
    from lmx.supervisor.cli.operations import pin_model

    pin_model(place(), model, pinned=False)


@click.command()
@click.argument("model", type=MODEL_OR_SHORT_NAME)
@click.option("--file", "filename", metavar="NAME", help="This .gguf file of the repository.")
@config_option
@json_option
@command
def estimate(model: str, filename: str | None, config: Path | None, as_json: bool) -> None:
    """Show what a model would take of the memory, also before a download.

    MODEL is one of the lmx that runs, else of the configuration; a short name (see `lmx pull -h`),
    org/name of the hub, a folder in MLX form or a .gguf file. Shows each part of the memory, the
    longest context that fits, and which models would be evicted if lmx runs. Nothing is loaded, and
    of what is not on this machine only the heads of its files are downloaded.

    \b
    Examples:
      lmx estimate qwen3-8b
      lmx estimate mlx-community/Qwen3-30B-A3B-4bit
      lmx estimate unsloth/Qwen3-8B-GGUF --file Qwen3-8B-Q4_K_M.gguf
    """
    remote = remote_place()
    if remote is not None:
        from lmx.supervisor.cli.views.plan import print_plan

        if config is not None or filename is not None:
            raise click.UsageError("--config and --file are for this machine's lmx, without --url")
        print_plan(remote, model, as_json)
        return
    from lmx.supervisor.cli.views.estimate import print_estimate

    print_estimate(served_config(config), home(), model, as_json, filename)


@click.command("fit")
@click.argument("models", metavar="MODEL...", nargs=-1, required=True, type=MODEL_OR_SHORT_NAME)
@config_option
@json_option
@command
def fit(models: tuple[str, ...], config: Path | None, as_json: bool) -> None:
    """Find settings with which several models stay loaded at a time.

    MODEL is as for `lmx estimate`. If they do not fit the budget as they are, each gives up some of
    its context, of the bits of its KV cache (`kv_bits`) and of its room for full-length requests
    (`concurrency`), and the lines for lmx.yaml are printed. Nothing is loaded or changed. Other
    models and settings are not considered. Exit code 1: they do not fit with any settings.

    \b
    Examples:
      lmx fit qwen3-8b qwen3-coder-30b
      lmx fit chat agent --json
    """
    from lmx.supervisor.cli.views.fit import print_fit

    print_fit(served_config(config), home(), models, as_json)

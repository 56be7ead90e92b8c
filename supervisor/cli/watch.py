"""Commands that show what is and what happened: status, top, events, logs."""

import sys
from pathlib import Path

import click

from lmx.supervisor.cli.command import (
    command,
    home,
    json_option,
    place,
    remote_place,
    served_config,
)
from lmx.supervisor.cli.completion import MODEL
from lmx.supervisor.cli.views.json_output import json_text
from lmx.supervisor.state.home import Home


@click.command()
@click.option("--all", "all_machines", is_flag=True, help="Also the machines that are peers.")
@json_option
@command
def status(all_machines: bool, as_json: bool) -> None:
    """Show the processes, the models and their memory."""
    from lmx.supervisor.sockets.client import open_client

    with open_client(place()) as client:
        found = client.status()
    known = None
    if all_machines:
        from lmx.supervisor.cli.machines import machines

        known = machines(place(), found.router.url)
    if as_json:
        from lmx.protocol.wire.codec import to_map

        shown = to_map(found)
        click.echo(json_text(shown if known is None else {**shown, "peers": known["peers"]}))
        return
    from lmx.supervisor.cli.views.progress import make_console
    from lmx.supervisor.cli.views.status import print_status

    print_status(make_console(), found)
    if known is not None:
        from lmx.supervisor.cli.machines import machines_table

        console = make_console()
        console.print()
        console.print(machines_table(known))


@click.command()
@click.argument("model", type=MODEL)
@json_option
@command
def show(model: str, as_json: bool) -> None:
    """Show all that is known of MODEL: state, source, context, memory, use."""
    import time

    from lmx.supervisor.cli.views.model import model_lines
    from lmx.supervisor.cli.views.words import find_model
    from lmx.supervisor.sockets.client import open_client

    with open_client(place()) as client:
        found = find_model(client.status().workers, model)
    if as_json:
        from lmx.protocol.wire.codec import to_map

        click.echo(json_text(to_map(found)))
        return
    for line in model_lines(found, time.time()):
        click.echo(line)


@click.command()
@command
def ps() -> None:
    """Show the models that are loaded, or being loaded, and their memory."""
    from lmx.supervisor.cli.views.progress import make_console
    from lmx.supervisor.cli.views.status import print_loaded
    from lmx.supervisor.sockets.client import open_client

    with open_client(place()) as client:
        print_loaded(make_console(), client.status().workers)


@click.command()
@click.option("--all", "all_machines", is_flag=True, help="Also the machines that are peers.")
@command
def top(all_machines: bool) -> None:
    """Watch models, memory and events live, until q or Ctrl-C.

    Where there is no terminal, it prints what it sees once.
    """
    from lmx.supervisor.cli.views.top import run_top

    run_top(place(), all_machines=all_machines)


@click.command()
@click.argument("model", required=False, type=MODEL)
@click.option("-f", "--follow", is_flag=True, help="Follow what happens, until Ctrl-C.")
@click.option("-n", "--number", default=50, show_default=True, type=click.IntRange(0, 2000))
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")
@command
def events(model: str | None, follow: bool, number: int, as_json: bool) -> None:
    """Show what happened lately: loads, evictions, exits and why.

    Of all models, or of MODEL alone.
    """
    from lmx.supervisor.cli.views.events import show_events

    show_events(place(), model, number, follow=follow, as_json=as_json)


@click.command()
@click.argument("model", required=False, type=MODEL)
@click.option("-f", "--follow", is_flag=True, help="Follow new lines as they are written.")
@click.option("-n", "--lines", default=50, show_default=True, type=click.IntRange(0, 100_000))
@click.option("--router", is_flag=True, help="The router's log.")
@click.option("--fetch", is_flag=True, help="The log of downloads and conversions.")
@click.option("--json", "as_json", is_flag=True, help="As in the file, also on a terminal.")
@command
def logs(
    model: str | None, follow: bool, lines: int, router: bool, fetch: bool, as_json: bool
) -> None:
    """Show a log: the supervisor's, that of MODEL's worker, the router's or that of downloads.

    A terminal gets lines for people, in local time; a pipe gets those of the file, in UTC.
    """
    from lmx.supervisor.cli.views.log import print_lines, show_log

    if (model is not None) + router + fetch > 1:
        raise click.UsageError("give one of MODEL, --router and --fetch")
    as_json = as_json or not sys.stdout.isatty()
    remote = remote_place()
    if remote is not None:
        from lmx.supervisor.sockets.remote import MOST_LINES, log_lines

        if lines > MOST_LINES:
            click.echo(f"another machine's lmx sends the last {MOST_LINES:,} lines", err=True)
        name = model or ("router" if router else "fetch" if fetch else "supervisor")
        print_lines(log_lines(remote, name, lines, follow=follow), as_json=as_json)
        return
    here = home()
    if router:
        path = here.router_log
    elif fetch:
        path = here.fetch_log
    elif model is not None:
        path = _worker_log(here, model)
    else:
        path = here.supervisor_log
    show_log(path, lines, follow=follow, as_json=as_json)


def _worker_log(here: Home, model: str) -> Path:
    """Return a model's log by id or alias; also when lmx is down, for what ran last.

    Raises :class:`OperationError` for a name that is no model's.
    """
    path = here.worker_log(model)
    if path.exists():
        return path
    from lmx.supervisor.cli.views.words import find_configured, find_model
    from lmx.supervisor.sockets.client import ControlClient, supervisor_runs

    if supervisor_runs(here):
        with ControlClient(here) as client:
            return here.worker_log(find_model(client.status().workers, model).model)
    return here.worker_log(find_configured(served_config().models, model).id)

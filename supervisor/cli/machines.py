"""Commands about the machines that are peers of one: `lmx status --all`, and models by
``MODEL@MACHINE``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import click

from lmx.protocol.errors import ErrorCode, LmxError, OperationError
from lmx.supervisor.cli.command import admin_key, given_key, place
from lmx.supervisor.sockets.http_client import UNREADABLE, HttpClient, Remote

if TYPE_CHECKING:
    from rich.console import RenderableType

    from lmx.protocol.messages.peers import Peer
    from lmx.supervisor.sockets.client import ControlClient, Place

_ANSWER_S: Final = 10.0
_POLL_S: Final = 0.5


def machines(here: Place, url: str | None, limit_s: float = _ANSWER_S) -> Any:
    """Return what the router of an lmx knows of its peers. ``url`` is where this machine's router
    answers. Waits for ``limit_s`` at most. Raises :class:`OperationError`."""
    if not isinstance(here, Remote):
        if url is None:
            raise OperationError(ErrorCode.NOT_RUNNING, "no router runs, which asks the peers")
        here = Remote.parse(url, admin_key(here))
    return HttpClient(here, limit_s).call("GET", "/admin/peers")


def machines_table(known: Any) -> RenderableType:
    """Return a table of the peers. Raises :class:`OperationError` if ``known`` is none."""
    from rich.markup import escape
    from rich.table import Table

    from lmx.supervisor.decisions.ledger import format_bytes

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("MACHINE", "STATE", "FREE", "FORWARDED", "LOADED"):
        table.add_column(heading, overflow="fold")
    try:
        if not known["peers"]:
            return "no peers: `lmx pair` makes one"
        for peer in known["peers"]:
            state = "drained" if peer["drained"] else "answers"
            free, budget = peer["free_bytes"], peer.get("budget_bytes")
            room = "-" if free is None else format_bytes(int(free))
            loaded = [
                f"{one['id']} ({one['running']} running)" if one["running"] else str(one["id"])
                for one in peer["models"]
                if one["state"] == "ready"
            ]
            table.add_row(
                escape(str(peer["name"])),
                state if peer["answers"] else escape(str(peer["problem"])),
                room if budget is None else f"{room} of {format_bytes(int(budget))}",
                f"{peer['running']} running, {sum(peer['forwarded'].values())} ended",
                escape(", ".join(loaded)) or "-",
            )
    except UNREADABLE as error:
        raise OperationError(
            ErrorCode.PROTOCOL_ERROR, f"the list of peers can't be read ({error})"
        ) from error
    return table


def at_machine(name: str, answer_s: float = 30.0) -> tuple[Place, str]:
    """Return which lmx a command on ``MODEL@MACHINE`` is about, and the model's name there: the
    peer of that name, else the one that any command is about. The key is that of ``--key`` or
    ``LMX_API_KEY``, else the one that is sent to the peer, which needs the scope admin there.
    ``answer_s`` is how long this machine's supervisor has to name its peers."""
    here = place()
    model, _, machine = name.rpartition("@")
    if not model or isinstance(here, Remote):
        return here, name
    from lmx.supervisor.sockets.client import ControlClient

    try:
        with ControlClient(here, answer_s) as client:
            if any(one.model == name for one in client.status().workers):
                return here, name
            found = named_peer(client, machine)
    except LmxError:
        return here, name  # No supervisor answers: the command says so, or does without.
    return (here, name) if found is None else (Remote.of(found, given_key()), model)


def named_peer(client: ControlClient, name: str) -> Peer | None:
    """Return the peer of a name, None if no peer has it. Raises :class:`OperationError`."""
    from lmx.protocol.messages.peers import GetPeers

    return next((one for one in client.ask(GetPeers()).peers if one.name == name), None)


def drain_machine(name: str, *, drained: bool) -> None:
    """Drain a machine and wait until its requests have ended, or let it take requests again.
    ``name`` is a peer's, with the key as :func:`at_machine` has it, or empty for the machine that
    any command is about. Raises :class:`OperationError`."""
    from lmx.protocol.messages.control import DrainMachine
    from lmx.supervisor.sockets.client import ControlClient, open_client

    there = place()
    if name:
        if isinstance(there, Remote):
            raise click.UsageError("give --url, or the name of a machine")
        with ControlClient(there) as client:
            found = named_peer(client, name)
        if found is None:
            raise OperationError(
                ErrorCode.NOT_FOUND, f"no peer is named {name!r}: see `lmx peers list`"
            )
        there = Remote.of(found, given_key())
    with open_client(there) as client:
        message = client.ask(DrainMachine(drained)).message
    click.echo(message)
    if drained:
        _wait_for_requests(there)


def _wait_for_requests(there: Place) -> None:
    from lmx.protocol.messages.status import GetStatus, Status
    from lmx.supervisor.sockets.client import ReconnectingClient

    said = ""
    with ReconnectingClient(there) as client:
        while True:
            found: Status | None = client.ask(GetStatus())
            if found is not None:
                # A worker says with its next beat what it has just been given; the routers knew it
                # when they said that they take no more.
                router = found.status.router
                left = max(
                    sum(one.requests_active + one.waiting for one in found.status.workers),
                    router.streams + router.waiting,
                )
                if not left:
                    return
                words = f"{left} request{'' if left == 1 else 's'} left"
                if words != said:
                    click.echo(f"{words}; Ctrl-C leaves the machine drained", err=True)
                said = words
            time.sleep(_POLL_S)

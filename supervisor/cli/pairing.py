"""`lmx pair` and `lmx peers`: machines that answer for each other."""

from __future__ import annotations

import contextlib
import json
import re
import time
from typing import TYPE_CHECKING, Any, Final

import click

from lmx.protocol.errors import ErrorCode, LmxError, OperationError
from lmx.supervisor.cli.command import command, home, json_option

if TYPE_CHECKING:
    from lmx.protocol.messages.pairing import Machine, PairingOffer
    from lmx.protocol.messages.peers import Peer
    from lmx.supervisor.sockets.client import ControlClient
    from lmx.supervisor.sockets.http_client import HttpClient

_POLL_S: Final = 0.5
_ANSWER_S: Final = 30.0
_ROUTER_S: Final = 5.0
_FIND_S: Final = 3.0


@click.command()
@click.argument("code_and_host", metavar="[CODE@HOST[:PORT]]", required=False)
@click.option("--found", is_flag=True, help="List the machines in the network that run lmx.")
@command
def pair(code_and_host: str | None, found: bool) -> None:
    """Pair two machines, so that each may answer the other's requests.

    Without an argument this shows a code for five minutes, and waits until another machine takes
    it. With a code and an address it takes the code of the machine there. Each side gets a key of
    its own, which opens nothing but what peers need.

    \b
    Examples:
      lmx pair                              on one machine, which shows K7QZM-4XH2P
      lmx pair K7QZM-4XH2P@studio.local     on the other one
      lmx pair --found                      who announces itself (server.advertise)
      lmx peers list
    """
    if found:
        if code_and_host is not None:
            raise click.UsageError("--found takes no code")
        _list_found()
    elif code_and_host is None:
        _show_code()
    else:
        _take_code(code_and_host)


def _list_found() -> None:
    from lmx.supervisor.config.extras import install_line

    try:
        from lmx.supervisor.mdns.browse import find_machines
    except ImportError as error:
        raise OperationError(
            ErrorCode.UNSUPPORTED_VALUE,
            f"machines are found with zeroconf: {install_line('mdns')}",
        ) from error
    machines = find_machines(_FIND_S)
    for machine in machines:
        key = "needs a key" if machine.needs_key else "needs no key"
        click.echo(f"{machine.name:<20} {machine.url:<32} lmx {machine.version}, {key}")
    if not machines:
        click.echo("no machine announces itself: set server.advertise on the others", err=True)


def _show_code() -> None:
    from lmx.protocol.messages.pairing import GetOffer, OfferPairing, OfferState, WithdrawOffer
    from lmx.supervisor.sockets.client import ControlClient

    with ControlClient(home()) as client:
        offer: PairingOffer = client.ask(OfferPairing())
        _print_offer(offer)
        try:
            while True:
                view = client.ask(GetOffer(offer.offer_id))
                if view.state is not OfferState.OPEN:
                    break
                time.sleep(_POLL_S)
        except KeyboardInterrupt:
            with contextlib.suppress(LmxError):
                client.ask(WithdrawOffer(offer.offer_id))
            raise
    if view.state is not OfferState.PAIRED:
        words = "the code is void" if view.state is OfferState.VOID else "they were not paired"
        raise OperationError(ErrorCode.PERMISSION_DENIED, f"{words}: {view.detail}")
    click.echo(view.detail)


def _print_offer(offer: PairingOffer) -> None:
    from lmx.protocol.web_origins import is_loopback
    from lmx.supervisor.pairing.exchange import shown_code
    from lmx.supervisor.sockets.reachable import ALL_ADDRESSES, host_name, lan_addresses

    machine = offer.machine
    where = machine.host
    if machine.host in ALL_ADDRESSES:
        where = next(iter(lan_addresses()), f"{host_name()}.local")
    named = f"[{where}]" if ":" in where else where
    minutes = offer.expires_in_s / 60
    click.echo(f"Within {minutes:.0f} minutes, run this on the other machine:\n")
    click.echo(f"    lmx pair {shown_code(offer.code)}@{named}:{machine.port}\n")
    if is_loopback(machine.host):
        click.echo(
            f"Other machines can't reach this one: it listens on {machine.host} (server.host). "
            "Unless a proxy leads here, run `lmx pair` on the other one, and take its code here.",
            err=True,
        )
    click.echo("Waiting for it; Ctrl-C lets the code be void.", err=True)


def _take_code(text: str) -> None:
    from lmx.protocol.messages.pairing import GetMachine
    from lmx.supervisor.pairing.exchange import read_code
    from lmx.supervisor.sockets.client import ControlClient
    from lmx.supervisor.sockets.http_client import HttpClient, Remote

    written, separator, address = text.partition("@")
    if not separator:
        raise click.UsageError("write CODE@HOST, as the other machine shows it")
    code, there = read_code(written), Remote.parse(address, None)
    with ControlClient(home()) as client:
        own: Machine = client.ask(GetMachine())
        peer, reached = _exchange(client, HttpClient(there, _ANSWER_S), own, code)
    click.echo(f"paired with {peer.name} ({peer.url})")
    if not reached:
        click.echo(
            f"{peer.name} can't reach this machine, which listens on {own.host}: only this one "
            "uses the other.",
            err=True,
        )


def _exchange(
    client: ControlClient, http: HttpClient, own: Machine, code: str
) -> tuple[Peer, bool]:
    """Take the code. Return the other machine, and whether it can reach this one."""
    from lmx.protocol.messages.pairing import IssuePeerKey
    from lmx.protocol.messages.peers import FINGERPRINT, PutPeer, RemovePeer
    from lmx.supervisor.cli.machines import named_peer
    from lmx.supervisor.keys.keys import new_secret
    from lmx.supervisor.pairing.certificate import pinned
    from lmx.supervisor.pairing.exchange import Said, Secret, WrongCodeError, draw

    part = draw()
    found = http.call(
        "POST", "/pair/hello", {"public": _text(part.public), "nonce": _text(part.nonce)}
    )
    said = Said(
        str(found["exchange_id"]),
        str(found["machine"]),
        part.public,
        part.nonce,
        _bytes(found["public"]),
        _bytes(found["nonce"]),
    )
    if said.machine == own.name:
        raise OperationError(
            ErrorCode.INVALID_VALUE,
            f"both machines are called {own.name}: set server.name on one of them",
        )
    earlier = named_peer(client, said.machine)
    if earlier is not None:
        # What keeps a peer of this name from being stored is found before the other machine has
        # changed anything, so that an earlier pairing stays as it is.
        client.ask(PutPeer(earlier))
    own_key, peer, is_stored = new_secret(), None, False
    try:
        secret = Secret(part, said.shower_public, said, code)
        content = {
            "name": own.name,
            "host": own.host,
            "port": own.port,
            "key": own_key,
            "certificate": own.certificate,
        }
        answer = http.call(
            "POST",
            "/pair/proof",
            {
                "exchange_id": said.exchange_id,
                "proof": _text(secret.proof("taker")),
                "sealed": _text(secret.seal("taker", content)),
            },
        )
        secret.check("shower", _bytes(answer["proof"]))
        sealed = secret.open("shower", _bytes(answer["sealed"]))
        certificate = str(sealed.get("certificate", ""))
        if not re.fullmatch(FINGERPRINT, certificate):
            raise OperationError(
                ErrorCode.PROTOCOL_ERROR, "the other machine has another version of pairing"
            )
        peer = pinned(said.machine, http.remote.url, str(sealed["key"]), certificate)
        client.ask(PutPeer(peer))
        is_stored = True
        # The key is in effect from here on: a wrong code leaves an earlier pairing as it is.
        if sealed["url"] is not None:
            client.ask(IssuePeerKey(said.machine, own_key))
    except BaseException as error:
        if peer is not None:
            _leave(peer)
        if is_stored:
            # The other machine takes this machine's key no more, and neither would an earlier one.
            client.ask(RemovePeer(said.machine))
        if isinstance(error, WrongCodeError):
            raise OperationError(
                ErrorCode.PERMISSION_DENIED,
                f"{http.remote.url} does not know the code: nothing was paired",
            ) from error
        raise
    return peer, sealed["url"] is not None


def _leave(peer: Peer) -> str | None:
    """Tell another machine, by the key that it gave, that the pairing has ended. Return why
    that failed, None if it succeeded."""
    from lmx.supervisor.sockets.http_client import HttpClient, Remote

    try:
        HttpClient(Remote.of(peer), _ANSWER_S).call("DELETE", "/pair")
    except OperationError as error:
        if error.code is ErrorCode.INVALID_AUTHENTICATION:
            return "it refuses the key that it gave to this machine"
        return error.message
    return None


def _text(value: bytes) -> str:
    import base64

    return base64.b64encode(value).decode()


def _bytes(text: Any) -> bytes:
    import base64

    try:
        return base64.b64decode(str(text), validate=True)
    except ValueError as error:
        raise OperationError(
            ErrorCode.PROTOCOL_ERROR, "the other machine has another version of pairing"
        ) from error


@click.group("peers")
def peers_group() -> None:
    """List the machines that answer for this one, and remove them.

    Machines get here by `lmx pair`, or from `peers` in lmx.yaml.
    """


@peers_group.command("list")
@json_option
@command
def list_peers(as_json: bool) -> None:
    """List the peers: name, address, and whether each answers. No keys."""
    from lmx.protocol.messages.peers import GetPeers
    from lmx.supervisor.cli.machines import machines
    from lmx.supervisor.sockets.client import ControlClient

    here = home()
    with ControlClient(here) as client:
        found = client.ask(GetPeers()).peers
        urls = client.status().router.urls
    shown = [{"name": one.name, "url": one.url, "kind": one.kind.value} for one in found]
    # A router that hangs, or is just being replaced, is no reason to list nothing.
    with contextlib.suppress(OperationError, OSError):
        shown = machines(here, urls[-1], _ROUTER_S)["peers"] if found and urls else shown
    if as_json:
        click.echo(json.dumps(shown, indent=2))
        return
    for peer in shown:
        said = peer.get("problem") or ("answers" if peer.get("answers") else "")
        click.echo(f"{peer['name']:<20} {peer['url']:<32} {peer['kind']:<8}{said}".rstrip())
    if not shown:
        click.echo("there are no peers: `lmx pair` makes one", err=True)


@peers_group.command()
@click.argument("name")
@command
def remove(name: str) -> None:
    """Remove the peer NAME: the keys of both sides are revoked.

    If the other machine can't be reached, it keeps this one in its list, with a key that opens
    nothing any more, until it removes it too.
    """
    from lmx.protocol.messages.keys import RevokeKey
    from lmx.protocol.messages.peers import RemovePeer
    from lmx.supervisor.cli.machines import named_peer
    from lmx.supervisor.control.pairing import key_name
    from lmx.supervisor.sockets.client import ControlClient

    with ControlClient(home()) as client:
        peer = named_peer(client, name)
        # This comes first: a peer of the configuration is refused before anything has changed.
        done = client.ask(RemovePeer(name))
        with contextlib.suppress(OperationError):  # There may be none.
            client.ask(RevokeKey(key_name(name)))
    click.echo(done.message)
    if peer is None or not peer.key:
        return
    problem = _leave(peer)
    if problem is not None:
        click.echo(f"{name} does not know yet ({problem}): run `lmx peers remove` there", err=True)

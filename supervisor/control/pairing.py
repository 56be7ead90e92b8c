"""Answers what is asked about pairing, by people on this machine and by other machines."""

import asyncio
import ipaddress
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.messages import pairing as messages
from lmx.protocol.messages.control import Done
from lmx.protocol.messages.peers import FINGERPRINT
from lmx.protocol.web_origins import is_loopback
from lmx.supervisor.control.handlers import Handler
from lmx.supervisor.control.keys import KeyCommands
from lmx.supervisor.pairing.certificate import own_fingerprint, pinned
from lmx.supervisor.pairing.exchange import (
    MOST_SEALED_BYTES,
    NONCE_BYTES,
    PROOF_BYTES,
    PUBLIC_BYTES,
    Said,
    Secret,
    WrongCodeError,
    draw,
    new_code,
)
from lmx.supervisor.pairing.offer import LIFE_S, Offer
from lmx.supervisor.peers.peers import Peers
from lmx.supervisor.sockets.reachable import ALL_ADDRESSES

_KEY: Final = "peer-"
_KEY_CHARACTERS: Final = 60
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,58}[A-Za-z0-9])?")


def key_name(machine: str) -> str:
    """Return the name of the key that another machine sends here, which no other machine's key has:
    that of a long name ends with ``+``, which no machine's name has, and its hash."""
    name = f"{_KEY}{machine}"
    if len(name) <= _KEY_CHARACTERS:
        return name
    end = f"+{blake2b(machine.encode(), digest_size=8).hexdigest()}"
    return f"{name[: _KEY_CHARACTERS - len(end)]}{end}"


def peer_url(host: str, port: int, remote: str) -> str | None:
    """Return the URL of a machine that listens on ``host`` and whose requests come from the address
    ``remote``; None if it can't be reached from here. Pure."""
    try:
        address = ipaddress.ip_address(remote.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if is_loopback(host) and not address.is_loopback:
        return None
    named = str(address) if host in ALL_ADDRESSES else host
    return f"http://[{named}]:{port}" if ":" in named else f"http://{named}:{port}"


@dataclass(frozen=True, slots=True)
class _Other:
    """What the machine that takes the code says of itself."""

    name: str
    host: str
    port: int
    key: str
    certificate: str

    @classmethod
    def of(cls, found: Any) -> "_Other":
        """Read what was sealed. Raises :class:`OperationError` (protocol_error)."""
        try:
            other = cls(
                found["name"],
                found["host"],
                found["port"],
                found["key"],
                found["certificate"],
            )
            fits = (
                _NAME.fullmatch(other.name)
                and isinstance(other.host, str)
                and re.fullmatch(r"[\w.:-]{1,255}", other.host)
                and isinstance(other.port, int)
                and 0 < other.port < 65_536
                and isinstance(other.key, str)
                and re.fullmatch(r"[!-~]{16,200}", other.key)
                and isinstance(other.certificate, str)
                and re.fullmatch(FINGERPRINT, other.certificate)
            )
        except (LookupError, TypeError, AttributeError):
            fits = None
        if not fits:
            raise OperationError(
                ErrorCode.PROTOCOL_ERROR, "the other machine has another version of pairing"
            )
        return other


class PairingCommands:
    """The owner of the code that is shown: there is one at a time, and it is kept nowhere.
    ``certificate`` is the file of what this machine shows to its peers; ``note`` is called with the
    name of what was done and a sentence; ``in_effect`` waits until the routers ask the peers in
    effect."""

    def __init__(
        self,
        keys: KeyCommands,
        peers: Peers,
        machine: Callable[[], messages.Machine],
        certificate: Path,
        note: Callable[[str, str], None],
        in_effect: Callable[[], Awaitable[None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keys = keys
        self._peers = peers
        self._machine = machine
        self._certificate = certificate
        self._note = note
        self._in_effect = in_effect
        self._clock = clock
        self._offer: Offer | None = None
        self.handlers: dict[type, Handler] = {
            messages.GetMachine: lambda _question, _now_s: self._certified(),
            messages.OfferPairing: lambda _question, now_s: self._begin(now_s),
            messages.GetOffer: lambda question, now_s: self._view(question, now_s),
            messages.WithdrawOffer: lambda question, _now_s: self._withdraw(question),
            messages.PairHello: lambda question, _now_s: self._hello(question),
            messages.PairProof: lambda question, _now_s: self._proof(question),
            messages.IssuePeerKey: lambda question, _now_s: keys.put_peer_key(
                key_name(question.machine), question.secret
            ),
            messages.ForgetPeer: lambda question, _now_s: self._forget(question),
        }

    async def _certified(self) -> messages.Machine:
        try:
            found = await asyncio.to_thread(own_fingerprint, self._certificate)
        except OSError as error:
            raise OperationError(
                ErrorCode.INTERNAL, f"this machine has no certificate for its peers ({error})"
            ) from error
        return replace(self._machine(), certificate=found)

    def _begin(self, now_s: float) -> messages.PairingOffer:
        if self._offer is not None:
            self._offer.end(messages.OfferState.VOID, "another code has replaced it")
        code = new_code()
        self._offer = Offer(secrets.token_hex(8), code, now_s + LIFE_S)
        return messages.PairingOffer(self._offer.offer_id, code, self._machine(), LIFE_S)

    def _view(self, question: messages.GetOffer, now_s: float) -> messages.OfferView:
        if self._offer is None or self._offer.offer_id != question.offer_id:
            return messages.OfferView(
                messages.OfferState.VOID, "another code has replaced it, or lmx was restarted"
            )
        return self._offer.view(now_s)

    def _withdraw(self, question: messages.WithdrawOffer) -> Done:
        if self._offer is not None and self._offer.offer_id == question.offer_id:
            self._offer.end(messages.OfferState.VOID, "it was withdrawn")
        return Done("the code is void")

    def _open_offer(self) -> Offer:
        offer = self._offer
        if offer is None or not offer.is_open(self._clock()):
            raise OperationError(
                ErrorCode.NOT_FOUND,
                "no code is shown here, or it is void: run `lmx pair` on the other machine",
            )
        return offer

    async def _hello(self, question: messages.PairHello) -> messages.PairWelcome:
        self._open_offer()
        if (len(question.public), len(question.nonce)) != (PUBLIC_BYTES, NONCE_BYTES):
            raise OperationError(ErrorCode.INVALID_VALUE, "the key or the nonce has another length")
        own = await asyncio.to_thread(draw)
        said = Said(
            secrets.token_hex(16),
            self._machine().name,
            question.public,
            question.nonce,
            own.public,
            own.nonce,
        )
        self._open_offer().begin(own, said, self._clock())
        return messages.PairWelcome(said.exchange_id, said.machine, own.public, own.nonce)

    async def _proof(self, question: messages.PairProof) -> messages.PairAccepted:
        if len(question.proof) != PROOF_BYTES or len(question.sealed) > MOST_SEALED_BYTES:
            raise OperationError(ErrorCode.INVALID_VALUE, "the proof has another length")
        offer = self._open_offer()
        own, said = offer.attempt(question.exchange_id, self._clock())
        try:
            secret = await asyncio.to_thread(Secret, own, said.taker_public, said, offer.code)
            secret.check("taker", question.proof)
            found = secret.open("taker", question.sealed)
        except WrongCodeError as error:
            raise offer.was_wrong() from error
        if self._open_offer() is not offer:
            raise OperationError(ErrorCode.NOT_FOUND, "the code is void")
        offer.take()
        try:
            accepted, detail = await self._pair(_Other.of(found), question.remote, secret)
        except BaseException as error:
            words = error.message if isinstance(error, OperationError) else "an internal error"
            offer.settle(messages.OfferState.FAILED, words)
            raise
        offer.settle(messages.OfferState.PAIRED, detail)
        self._note("peer.paired", detail)
        return accepted

    async def _pair(
        self, other: _Other, remote: str, secret: Secret
    ) -> tuple[messages.PairAccepted, str]:
        if other.name == self._machine().name:
            raise OperationError(
                ErrorCode.INVALID_VALUE,
                f"both machines are called {other.name}: set server.name on one of them",
            )
        url = peer_url(other.host, other.port, remote)
        own = await self._certified()
        peer = pinned(other.name, url or "", other.key, other.certificate)
        # What is refused here leaves an earlier pairing with the machine as it is. The peer comes
        # before the key, because nobody can give back a key's former secret.
        stored = self._peers.stored
        if url is not None:
            self._peers.put(peer)
        try:
            made = await self._keys.put_peer_key(key_name(other.name), None)
        except OperationError:
            # It is refused at once, so that nobody has stored another peer meanwhile.
            self._peers.put_back(stored)
            raise
        if url is not None:
            await self._in_effect()
        content = {"key": made.secret, "url": url, "certificate": own.certificate}
        sealed = secret.seal("shower", content)
        detail = f"paired with {other.name} ({peer.url})"
        if url is None:
            detail = (
                f"{other.name} is paired and uses this machine, which can't reach it: it listens "
                f"on {other.host}"
            )
        return messages.PairAccepted(secret.proof("shower"), sealed), detail

    async def _forget(self, question: messages.ForgetPeer) -> Done:
        name = question.key_name
        if not name.startswith(_KEY):
            raise OperationError(
                ErrorCode.NOT_FOUND, "only a key that pairing has made can be given up here"
            )
        done = await self._keys.revoke(name)
        for peer in self._peers.list.peers:
            if key_name(peer.name) == name:
                try:
                    self._peers.remove(peer.name)
                except OperationError as error:
                    if error.code is ErrorCode.UNSUPPORTED_VALUE:
                        break  # It is of the configuration, where it is changed.
                    # The disk takes no write. The key is revoked, and the peer is no use any more.
                    stored = self._peers.stored
                    self._peers.put_back(tuple(one for one in stored if one.name != peer.name))
                await self._in_effect()
                self._note("peer.removed", f"{peer.name} has ended the pairing")
        return done

"""A machine that shows a code, as others find it: everything but a right code is refused."""

import asyncio
from base64 import b64decode, b64encode
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.messages.control import Done
from lmx.protocol.messages.keys import AddKey, KeyScope
from lmx.protocol.messages.pairing import (
    ForgetPeer,
    GetOffer,
    IssuePeerKey,
    Machine,
    OfferPairing,
    OfferState,
    PairAccepted,
    PairHello,
    PairingOffer,
    PairProof,
    PairWelcome,
    WithdrawOffer,
)
from lmx.protocol.messages.peers import GetPeers, Peer, PeerKind, PutPeer, RemovePeer
from lmx.supervisor.cli import pairing as cli_pairing
from lmx.supervisor.control.keys import KeyCommands
from lmx.supervisor.control.pairing import PairingCommands
from lmx.supervisor.keys.file import KeyFile
from lmx.supervisor.keys.keys import Keys
from lmx.supervisor.pairing.certificate import own_fingerprint
from lmx.supervisor.pairing.exchange import Said, Secret, draw
from lmx.supervisor.pairing.offer import MOST_TRIES
from lmx.supervisor.peers.peers import Peers
from lmx.supervisor.sockets.http_client import Remote

KEY = "sk-lmx-that-the-laptop-has-made"
SHOWN = "ab" * 32
LAPTOP = {"name": "laptop", "host": "0.0.0.0", "port": 8123, "key": KEY, "certificate": SHOWN}


class Studio:
    """The machine, with keys and peers in a folder."""

    def __init__(self, folder: Path, *configured: Peer) -> None:
        self.now_s = 0.0
        self.followed: list[int] = []
        """How many peers there were each time that it waited for the routers."""
        self.follows = asyncio.Event()
        self.follows.set()
        self.noted: list[str] = []
        self.keys = Keys(KeyFile(folder / "keys.json"), tuple, lambda: False, lambda name, _: None)
        self.peers = Peers(folder / "peers.json", lambda: configured, lambda _: None)
        guard: Any = self
        self.commands = PairingCommands(
            KeyCommands(self.keys, guard, lambda _: None), self.peers,
            lambda: Machine("studio", "0.0.0.0", 8000), folder / "certificate.pem",
            lambda name, _: self.noted.append(name), self.in_effect, lambda: self.now_s,
        )  # fmt: skip

    def has_keyring(self, digest: str) -> bool:
        return True

    async def in_effect(self) -> None:
        self.followed.append(len(self.peers.list.peers))
        await self.follows.wait()

    async def ask(self, question: Any) -> Any:
        reply = self.commands.handlers[type(question)](question, self.now_s)
        return await reply if asyncio.iscoroutine(reply) else reply

    async def offer(self) -> PairingOffer:
        found = await self.ask(OfferPairing())
        assert isinstance(found, PairingOffer)
        return found

    async def state(self, offer: PairingOffer) -> OfferState:
        return OfferState((await self.ask(GetOffer(offer.offer_id))).state)

    async def exchange(self, code: str, content: dict[str, Any]) -> tuple[Secret, PairProof]:
        """What the laptop derives and sends, once it has begun."""
        own = draw()
        welcome = await self.ask(PairHello(own.public, own.nonce))
        assert isinstance(welcome, PairWelcome)
        said = Said(
            welcome.exchange_id, welcome.machine, own.public, own.nonce, welcome.public,
            welcome.nonce,
        )  # fmt: skip
        secret = Secret(own, welcome.public, said, code)
        proof = PairProof(
            welcome.exchange_id, secret.proof("taker"), secret.seal("taker", content), "192.168.1.7"
        )
        return secret, proof

    async def refused(self, question: Any) -> OperationError:
        with pytest.raises(OperationError) as caught:
            await self.ask(question)
        return caught.value


@pytest.fixture
def studio(tmp_path: Path) -> Studio:
    return Studio(tmp_path)


async def test_a_right_code_gives_each_side_a_key(studio: Studio, tmp_path: Path) -> None:
    offer = await studio.offer()
    assert (offer.machine.name, await studio.state(offer)) == ("studio", OfferState.OPEN)
    secret, proof = await studio.exchange(offer.code, LAPTOP)
    accepted = await studio.ask(proof)
    assert isinstance(accepted, PairAccepted)
    secret.check("shower", accepted.proof)
    given = secret.open("shower", accepted.sealed)
    assert given["url"] == "http://192.168.1.7:8123"
    (peer,) = studio.peers.list.peers
    assert peer == Peer("laptop", "https://192.168.1.7:8123", PeerKind.LMX, KEY, SHOWN)
    (key,) = studio.keys.ring.keys
    assert (key.name, key.scopes) == ("peer-laptop", (KeyScope.PEER,))
    assert given["key"] not in (tmp_path / "keys.json").read_text(), "it is hashed here"
    assert given["certificate"] == own_fingerprint(tmp_path / "certificate.pem")
    assert await studio.state(offer) is OfferState.PAIRED
    # Neither the code nor the exchange is good for anything more.
    again = await studio.refused(proof)
    assert again.code is ErrorCode.NOT_FOUND
    assert (await studio.refused(PairHello(bytes(32), bytes(16)))).code is ErrorCode.NOT_FOUND
    # The laptop leaves.
    assert isinstance(await studio.ask(ForgetPeer("peer-laptop")), Done)
    assert not studio.peers.list.peers
    assert not studio.keys.ring.keys
    assert studio.noted == ["peer.paired", "peer.removed"]
    assert (await studio.refused(ForgetPeer("laptop"))).code is ErrorCode.NOT_FOUND


async def test_a_peer_that_gives_its_key_up_is_forgotten_though_the_disk_is_full(
    studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OperationError(ErrorCode.INTERNAL, "the disk is full")

    _, proof = await studio.exchange((await studio.offer()).code, LAPTOP)
    await studio.ask(proof)
    monkeypatch.setattr(studio.peers, "_save", refuse)
    assert isinstance(await studio.ask(ForgetPeer("peer-laptop")), Done)
    assert not studio.peers.list.peers
    assert studio.noted[-1] == "peer.removed"


async def test_whoever_asks_in_the_midst_sees_no_end_before_the_end(studio: Studio) -> None:
    offer = await studio.offer()
    _, proof = await studio.exchange(offer.code, LAPTOP)
    pairing = asyncio.create_task(studio.ask(proof))
    seen, voids = [], 0
    while not pairing.done():
        seen.append(await studio.state(offer))
        if "being paired" in (await studio.ask(GetOffer(offer.offer_id))).detail:
            # It belongs to the laptop now: nobody withdraws it, and it does not expire.
            await studio.ask(WithdrawOffer(offer.offer_id))
            studio.now_s = 1_000.0
            hello = PairHello(bytes(32), bytes(16))
            assert (await studio.refused(hello)).code is ErrorCode.NOT_FOUND
            voids += 1
        await asyncio.sleep(0)
    await pairing
    assert voids, "there was a moment in which it was taken"
    assert set(seen) == {OfferState.OPEN}
    assert await studio.state(offer) is OfferState.PAIRED


async def test_it_is_paired_and_left_once_the_routers_have_the_list(studio: Studio) -> None:
    offer = await studio.offer()
    _, proof = await studio.exchange(offer.code, LAPTOP)
    for question, peers in ((proof, 1), (ForgetPeer("peer-laptop"), 0)):
        studio.follows.clear()
        asked = asyncio.create_task(studio.ask(question))
        async with asyncio.timeout(90):
            while not studio.followed or studio.followed[-1] != peers:
                await asyncio.sleep(0)
        assert not asked.done()
        assert await studio.state(offer) is (OfferState.OPEN if peers else OfferState.PAIRED)
        studio.follows.set()
        await asked
        assert await studio.state(offer) is OfferState.PAIRED


async def test_a_pairing_that_fails_here_leaves_an_earlier_one_as_it_is(
    studio: Studio, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OperationError(ErrorCode.INTERNAL, "the disk is full")

    _, proof = await studio.exchange((await studio.offer()).code, LAPTOP)
    await studio.ask(proof)
    before = studio.peers.list, studio.keys.ring
    for owner, name in ((studio.peers, "put"), (studio.keys, "rotate")):
        _, proof = await studio.exchange((await studio.offer()).code, {**LAPTOP, "key": KEY[::-1]})
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, refuse)
            assert (await studio.refused(proof)).message == "the disk is full"
        assert (studio.peers.list, studio.keys.ring) == before
    kept = Peers(tmp_path / "peers.json", tuple, lambda _: None)
    assert kept.list == before[0]


class Laptop:
    """The command line of the machine that takes a code, and what it asks of both machines."""

    def __init__(self, studio: Studio, folder: Path) -> None:
        self.peers = Peers(folder / "laptop.json", tuple, lambda _: None)
        self.full = False
        self.keyless = False
        self.remote = Remote("http://192.168.1.5:8000", "")
        self._studio = studio
        self._loop = asyncio.get_running_loop()

    def ask(self, question: Any) -> Any:
        match question:
            case GetPeers():
                return self.peers.list
            case PutPeer() if self.full:
                raise OperationError(ErrorCode.INTERNAL, "the disk is full")
            case PutPeer(peer):
                return self.peers.put(peer)
            case RemovePeer(name):
                return self.peers.remove(name)
            case IssuePeerKey() if self.keyless:
                raise OperationError(ErrorCode.INTERNAL, "no key")
        return Done("the key is in effect")

    def call(self, _method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path == "/pair/hello":
            question = PairHello(*(b64decode(body[name]) for name in ("public", "nonce")))
            found = self._on_loop(question)
            public, nonce = b64encode(found.public).decode(), b64encode(found.nonce).decode()
            return {
                "exchange_id": found.exchange_id, "machine": found.machine,
                "public": public, "nonce": nonce,
            }  # fmt: skip
        proof, sealed = (b64decode(body[name]) for name in ("proof", "sealed"))
        found = self._on_loop(PairProof(body["exchange_id"], proof, sealed, "192.168.1.7"))
        return {name: b64encode(getattr(found, name)).decode() for name in ("proof", "sealed")}

    def _on_loop(self, question: Any) -> Any:
        asked = self._studio.ask(question)
        return asyncio.run_coroutine_threadsafe(asked, self._loop).result(90)

    async def pair(self, code: str) -> None:
        own: Any = self
        machine = Machine("laptop", "0.0.0.0", 8123, SHOWN)
        await asyncio.to_thread(cli_pairing._exchange, own, own, machine, code)


async def test_a_pairing_that_fails_on_the_other_machine_leaves_an_earlier_one_as_it_is(
    studio: Studio, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[Peer] = []
    monkeypatch.setattr(cli_pairing, "_leave", left.append)
    laptop = Laptop(studio, tmp_path)
    await laptop.pair((await studio.offer()).code)
    before = studio.peers.list, studio.keys.ring, laptop.peers.list
    laptop.full = True
    with pytest.raises(OperationError, match="disk is full"):
        await laptop.pair((await studio.offer()).code)
    assert (studio.peers.list, studio.keys.ring, laptop.peers.list, left) == (*before, [])


async def test_a_peer_whose_key_can_not_be_stored_is_none(
    studio: Studio, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[Peer] = []
    monkeypatch.setattr(cli_pairing, "_leave", left.append)
    laptop = Laptop(studio, tmp_path)
    laptop.keyless = True
    with pytest.raises(OperationError, match="no key"):
        await laptop.pair((await studio.offer()).code)
    assert [peer.name for peer in left] == ["studio"]
    assert not laptop.peers.list.peers


async def test_a_machine_that_is_paired_again_has_another_key(studio: Studio) -> None:
    digests = []
    for _ in range(2):
        offer = await studio.offer()
        _, proof = await studio.exchange(offer.code, LAPTOP)
        await studio.ask(proof)
        (key,) = studio.keys.ring.keys
        digests.append(key.digest)
    assert digests[0] != digests[1]
    assert [one.digest for one in key.former] == digests[:1], "for a moment"
    assert len(studio.peers.list.peers) == 1


async def test_a_key_that_may_do_more_is_given_to_no_peer(studio: Studio) -> None:
    studio.keys.add(AddKey(name="peer-laptop", scopes=(KeyScope.ADMIN,)))
    (before,) = studio.keys.ring.keys
    offer = await studio.offer()
    _, proof = await studio.exchange(offer.code, LAPTOP)
    assert (await studio.refused(proof)).code is ErrorCode.KEY_EXISTS
    assert (studio.keys.ring.keys, studio.peers.list.peers) == ((before,), ())


async def test_without_a_code_nothing_begins(studio: Studio) -> None:
    hello = PairHello(bytes(32), bytes(16))
    assert (await studio.refused(hello)).code is ErrorCode.NOT_FOUND
    offer = await studio.offer()
    assert (await studio.refused(PairHello(b"", b""))).code is ErrorCode.INVALID_VALUE
    newer = await studio.offer()
    assert await studio.state(offer) is OfferState.VOID
    await studio.ask(WithdrawOffer(offer.offer_id))
    assert await studio.state(newer) is OfferState.OPEN
    await studio.ask(WithdrawOffer(newer.offer_id))
    assert (await studio.refused(hello)).code is ErrorCode.NOT_FOUND


async def test_wrong_codes_void_it_also_all_at_the_same_time(studio: Studio) -> None:
    offer = await studio.offer()
    wrong = offer.code[1:] + offer.code[:1]
    proofs = [(await studio.exchange(wrong, LAPTOP))[1] for _ in range(8)]
    right = (await studio.exchange(offer.code, LAPTOP))[1]
    errors = await asyncio.gather(*map(studio.refused, proofs))
    codes = Counter(one.code for one in errors)
    assert set(codes) == {ErrorCode.PERMISSION_DENIED, ErrorCode.NOT_FOUND}
    assert codes[ErrorCode.PERMISSION_DENIED] <= MOST_TRIES, "no more are judged"
    assert await studio.state(offer) is OfferState.VOID
    assert (await studio.refused(right)).code is ErrorCode.NOT_FOUND
    assert not studio.keys.ring.keys


async def test_each_part_of_a_proof_must_be_right(studio: Studio) -> None:
    offer = await studio.offer()
    for is_proof in (True, False):
        _, right = await studio.exchange(offer.code, LAPTOP)
        no_seal = replace(right, sealed=bytes(len(right.sealed)))
        wrong = replace(right, proof=bytes(32)) if is_proof else no_seal
        assert (await studio.refused(wrong)).code is ErrorCode.PERMISSION_DENIED
    assert not studio.keys.ring.keys


async def test_an_expired_code_opens_nothing(studio: Studio) -> None:
    offer = await studio.offer()
    studio.now_s = 290.0
    _, proof = await studio.exchange(offer.code, LAPTOP)
    studio.now_s = 300.0
    assert (await studio.refused(proof)).code is ErrorCode.NOT_FOUND
    assert not studio.keys.ring.keys


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ({**LAPTOP, "name": "studio"}, ErrorCode.INVALID_VALUE),
        ({**LAPTOP, "name": "a b"}, ErrorCode.PROTOCOL_ERROR),
        ({**LAPTOP, "host": "a/b"}, ErrorCode.PROTOCOL_ERROR),
        ({**LAPTOP, "port": 0}, ErrorCode.PROTOCOL_ERROR),
        ({**LAPTOP, "key": ""}, ErrorCode.PROTOCOL_ERROR),
        ({**LAPTOP, "certificate": "of nobody"}, ErrorCode.PROTOCOL_ERROR),
        ({**LAPTOP, "certificate": ""}, ErrorCode.PROTOCOL_ERROR),
        ({}, ErrorCode.PROTOCOL_ERROR),
        ({**LAPTOP, "name": "desk"}, ErrorCode.UNSUPPORTED_VALUE),
    ],
)
async def test_who_has_the_code_and_says_nonsense_is_not_paired(
    tmp_path: Path, content: dict[str, Any], code: ErrorCode
) -> None:
    studio = Studio(tmp_path, Peer("desk", "http://desk:8000"))
    offer = await studio.offer()
    _, proof = await studio.exchange(offer.code, content)
    assert (await studio.refused(proof)).code is code
    assert await studio.state(offer) is OfferState.FAILED
    assert not studio.keys.ring.keys
    assert [peer.name for peer in studio.peers.list.peers] == ["desk"]


async def test_a_machine_that_can_t_be_reached_has_a_key_and_is_no_peer(studio: Studio) -> None:
    offer = await studio.offer()
    secret, proof = await studio.exchange(offer.code, {**LAPTOP, "host": "127.0.0.1"})
    accepted = await studio.ask(proof)
    assert secret.open("shower", accepted.sealed)["url"] is None
    assert not studio.peers.list.peers
    assert len(studio.keys.ring.keys) == 1

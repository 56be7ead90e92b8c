"""Two machines with homes of their own are paired over HTTP, by commands as people type them."""

import asyncio
import base64
import contextlib
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import aiohttp
import pytest

from lmx.protocol.messages.keys import ListKeys
from lmx.protocol.messages.pairing import OfferPairing
from lmx.protocol.messages.peers import GetPeers, Peer
from lmx.supervisor.pairing.exchange import Said, Secret, draw, shown_code
from tests.support.rigs.rig import Rig, http, rig, scripted, wait_until, whole

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def machines() -> Iterator[tuple[Rig, Rig]]:
    with contextlib.ExitStack() as stack:
        made = [
            stack.enter_context(rig({"models": [scripted(f"of-{name}")], "server": {"name": name}}))
            for name in ("studio", "laptop")
        ]
        yield made[0], made[1]


def peers(lmx: Rig) -> dict[str, Peer]:
    return {peer.name: peer for peer in lmx.ask(GetPeers()).peers}


def key_names(lmx: Rig) -> list[str]:
    return [key.name for key in lmx.ask(ListKeys()).keys]


def answers(lmx: Rig) -> bool:
    return "answers" in lmx.cli("peers", "list").stdout


def base(lmx: Rig) -> str:
    return lmx.url.removesuffix("/v1")


def secure(lmx: Rig) -> str:
    """Where a machine answers its peers."""
    return base(lmx).replace("http://", "https://")


async def leaves(session: aiohttp.ClientSession, lmx: Rig, key: str) -> int:
    headers = {"Authorization": f"Bearer {key}"}
    async with session.delete(f"{base(lmx)}/pair", headers=headers) as response:
        await response.read()
        return response.status


async def forwarded(
    session: aiohttp.ClientSession, lmx: Rig, model: str
) -> tuple[int, dict[str, Any]]:
    """What the other machine answers, once it does: where both are busy, it may be too late for a
    moment."""
    async with asyncio.timeout(90):
        while True:
            status, answer = await whole(session, lmx.url, model, {"tokens": 3})
            if answer.get("code") not in ("peer_unavailable", "peer_lost"):
                return status, answer
            await asyncio.sleep(0.2)


async def post(
    session: aiohttp.ClientSession, lmx: Rig, path: str, body: dict[str, Any]
) -> tuple[int, Any]:
    async with session.post(base(lmx) + path, json=body) as response:
        return response.status, await response.json()


def text(value: bytes) -> str:
    return base64.b64encode(value).decode()


async def test_a_code_from_one_machine_pairs_both_and_either_ends_it(
    machines: tuple[Rig, Rig],
) -> None:
    studio, laptop = machines
    shows = subprocess.Popen(
        [sys.executable, "-m", "lmx.supervisor", "pair"], env=studio.environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert shows.stdout is not None
    said = ""
    while not (found := re.search(r"lmx pair (\S+)@(\S+)", said)):
        line = shows.stdout.readline()
        assert line, said
        said += line
    code, address = found.groups()
    assert address == base(studio).removeprefix("http://")
    # A wrong code first: nothing changes on either side.
    wrong = laptop.cli("pair", f"{code[1:5]}{code[:1]}{code[5:]}@{address}")
    assert wrong.returncode == 1
    assert "the code is wrong" in wrong.stderr
    assert (peers(laptop), peers(studio)) == ({}, {})
    assert (key_names(laptop), key_names(studio)) == ([], [])
    paired = laptop.cli("pair", f"{code.lower()}@{address}")
    assert paired.returncode == 0, paired.stderr
    assert paired.stdout == f"paired with studio ({secure(studio)})\n"
    assert paired.stderr == ""
    assert shows.wait(90) == 0
    assert f"paired with laptop ({secure(laptop)})" in shows.stdout.read()
    shows.stdout.close()
    # Used once.
    used = laptop.cli("pair", f"{code}@{address}")
    assert used.returncode == 1
    assert "no code is shown here" in used.stderr
    assert peers(laptop)["studio"].url == secure(studio)
    assert peers(studio)["laptop"].url == secure(laptop)
    for lmx, other in ((studio, "laptop"), (laptop, "studio")):
        assert key_names(lmx) == [f"peer-{other}"]
        stored = lmx.home / "state" / "peers.json"
        assert stat.S_IMODE(stored.stat().st_mode) == 0o600
        shown = lmx.home / "state" / "certificate.pem"
        assert stat.S_IMODE(shown.stat().st_mode) == 0o600
        listed = lmx.cli("peers", "list")
        assert other in listed.stdout
        assert peers(lmx)[other].key not in listed.stdout + listed.stderr
        log = (lmx.home / "logs" / "supervisor.log").read_text()
        log += (lmx.home / "logs" / "router.log").read_text()
        assert peers(lmx)[other].key not in log
        assert code.replace("-", "") not in log
        wait_until(partial(answers, lmx), f"{other} answers")
    # Each has the models of both, and requests to models need no key as before.
    async with http() as session:
        for lmx, name in ((studio, "of-laptop"), (laptop, "of-studio")):
            status, answer = await forwarded(session, lmx, name)
            assert status == 200, answer
    key = peers(laptop)["studio"].key
    done = laptop.cli("peers", "remove", "studio")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for lmx in machines:
        assert (peers(lmx), key_names(lmx)) == ({}, [])
    async with http() as session:
        assert await leaves(session, studio, key) == 401


async def test_what_was_recorded_is_of_no_use_and_a_revoked_key_opens_nothing(
    machines: tuple[Rig, Rig],
) -> None:
    studio, _ = machines
    before = set(peers(studio))
    code = studio.ask(OfferPairing()).code
    own = draw()
    async with http() as session:
        hello = {"public": text(own.public), "nonce": text(own.nonce)}
        status, found = await post(session, studio, "/pair/hello", hello)
        assert status == 200
        public, nonce = (base64.b64decode(found[name]) for name in ("public", "nonce"))
        said = Said(found["exchange_id"], found["machine"], own.public, own.nonce, public, nonce)
        secret = Secret(own, public, said, code)
        content = {
            "name": "desk",
            "host": "127.0.0.1",
            "port": 9,
            "key": "x" * 40,
            "certificate": "0" * 64,
        }
        proof = {
            "exchange_id": said.exchange_id,
            "proof": text(secret.proof("taker")),
            "sealed": text(secret.seal("taker", content)),
        }
        status, accepted = await post(session, studio, "/pair/proof", proof)
        assert status == 200, accepted
        given = secret.open("shower", base64.b64decode(accepted["sealed"]))
        # Another code is shown, and the recorded proof is sent once more, also to a new exchange.
        studio.ask(OfferPairing())
        assert (await post(session, studio, "/pair/proof", proof))[0] == 404
        _, other = await post(session, studio, "/pair/hello", hello)
        replayed = {**proof, "exchange_id": other["exchange_id"]}
        status, refusal = await post(session, studio, "/pair/proof", replayed)
        assert (status, refusal["error"]["code"]) == (403, "permission_denied")
        assert set(peers(studio)) == before | {"desk"}
        # What is too long or no base64 is refused before anybody computes.
        for field in ("proof", "sealed"):
            for wrong in ("é", "A" * 5000):
                assert (await post(session, studio, "/pair/proof", {**proof, field: wrong}))[
                    0
                ] == 400
        assert studio.cli("key", "revoke", "peer-desk").stdout == "revoked peer-desk\n"
        assert await leaves(session, studio, given["key"]) == 401
    # A machine that is gone is removed here, and that is said.
    removed = studio.cli("peers", "remove", "desk")
    assert removed.returncode == 0
    assert "does not know yet" in removed.stderr
    assert set(peers(studio)) == before
    wait_until(lambda: "peer-desk" not in key_names(studio), "its key is gone")


def test_what_a_person_mistypes_is_said(machines: tuple[Rig, Rig]) -> None:
    studio, laptop = machines
    for argument, words in (
        ("K7QZM", "write CODE@HOST"),
        ("K7QZM@studio", "is no code"),
        ("K7QZM-4XH2P@127.0.0.1:1", "127.0.0.1:1"),
    ):
        done = laptop.cli("pair", argument)
        assert done.returncode in (1, 2, 3)
        assert words in done.stderr
    own = f"{shown_code('K7QZM4XH2P')}@{base(studio)}"
    studio.ask(OfferPairing())
    done = studio.cli("pair", own)
    assert "both machines are called studio" in done.stderr

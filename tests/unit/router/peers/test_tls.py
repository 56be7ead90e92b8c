"""Peers that were paired talk TLS on the port where HTTP is answered, and believe one certificate
alone."""

import asyncio
import hashlib
import ssl
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.messages.peers import PeerList
from lmx.supervisor.pairing.certificate import own_fingerprint, pinned
from lmx.supervisor.sockets.http_client import HttpClient, Remote
from tests.support.fakes.fake_peers import until
from tests.support.rigs.federation_rig import federation, peer_key
from tests.support.rigs.router_rig import TEXTS, Rig, joined_text, router_rig


def certificate(rig: Rig) -> Path:
    return Path(rig.spec.jobs_path).with_name("certificate.pem")


def pin(rig: Rig, other: Rig, fingerprint: str) -> None:
    """Have a machine believe another one with this certificate alone."""
    peer = pinned("b", other.url, peer_key("b"), fingerprint)
    assert peer.url == other.url.replace("http://", "https://")
    rig.router.peers.put(PeerList.of((peer,)))


def problem(rig: Rig) -> str | None:
    return rig.router.peers.links[0].problem


async def test_a_peer_is_believed_with_its_certificate_and_no_other_one() -> None:
    async with federation("ab") as (a, b):
        await a.publish()
        shown = own_fingerprint(certificate(b))
        assert stat.S_IMODE(certificate(b).stat().st_mode) == 0o600
        assert own_fingerprint(certificate(b)) == shown, "it is made once"
        pin(a, b, shown)
        await until(lambda: problem(a) is None)
        lines = await a.chat_events()
        assert joined_text(lines) == "".join(TEXTS)
        async with a.chat() as response:
            assert response.headers["X-Lmx-Machine"] == "b"
        # Who does not know the certificate is answered too, on the same port, and so is plain HTTP.
        async with a.http.get(f"{b.url.replace('http', 'https')}/health", ssl=False) as response:
            assert response.status == 200
        async with a.http.get(f"{b.url}/health") as response:
            assert response.status == 200
        # A machine in between has another one: it learns neither the request nor the key.
        pin(a, b, "0" * 64)
        await until(lambda: "certificate" in (problem(a) or ""))
        assert "lmx pair" in (problem(a) or "")
        asked = len(b.worker.streams)
        status, found = await a.chat_json()
        assert (status, found["error"]["code"]) == (503, "peer_unavailable"), "it had the model"
        assert "certificate" in found["error"]["message"]
        assert len(b.worker.streams) == asked
        # Another certificate takes the place of the first one while the router runs.
        certificate(b).unlink()
        other = own_fingerprint(certificate(b))
        assert other != shown
        pin(a, b, shown)
        await until(lambda: "certificate" in (problem(a) or ""))
        pin(a, b, other)
        await until(lambda: problem(a) is None)


async def test_commands_believe_the_pinned_certificate_alone() -> None:
    async with router_rig() as rig:
        shown = own_fingerprint(certificate(rig))
        url = rig.url.replace("http://", "https://")
        there = Remote(url, "test-admin-key", shown)
        found = await asyncio.to_thread(HttpClient(there, 30).call, "GET", "/health")
        assert found["status"] == "healthy"
        wrong = HttpClient(replace(there, certificate="0" * 64), 30)
        with pytest.raises(OperationError, match="another certificate") as caught:
            await asyncio.to_thread(wrong.call, "GET", "/health")
        assert caught.value.code is ErrorCode.PEER_UNAVAILABLE


async def test_a_machine_without_a_certificate_says_that_tls_is_no_http() -> None:
    async with router_rig() as rig:
        port = rig.spec.port
        for broken in (b"", b"no certificate"):
            if broken:
                certificate(rig).write_bytes(broken)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"\x16\x03\x01 hello\r\n\r\n")
            assert b" 400 " in await reader.readline()
            writer.close()


async def test_handshakes_that_do_not_end_are_counted_as_connections_and_closed() -> None:
    async with router_rig() as rig:
        shown = own_fingerprint(certificate(rig))
        server = rig.router._runner.server
        assert server is not None
        before = len(server.connections)
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.spec.port)
        writer.write(b"\x16")
        await until(lambda: len(server.connections) == before + 1)
        # A nonsensical handshake ends, and counts no more.
        writer.write(b"\x00" * 20)
        await reader.read()
        writer.close()
        await until(lambda: len(server.connections) == before)
        # One that comes byte by byte is one that works.
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = context.wrap_bio(incoming, outgoing)
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.spec.port)
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                for byte in outgoing.read():
                    writer.write(bytes([byte]))
                    await writer.drain()
                incoming.write(await reader.read(65536))
        found = hashlib.sha256(client.getpeercert(binary_form=True) or b"").hexdigest()
        assert found == shown
        client.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        writer.write(outgoing.read())
        text = b""
        while b'"healthy"' not in text:
            incoming.write(await reader.read(65536))
            try:
                text += client.read(65536)
            except ssl.SSLWantReadError:
                continue
        writer.close()
        await until(lambda: len(server.connections) == before)

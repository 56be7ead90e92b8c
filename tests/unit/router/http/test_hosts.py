"""Names that lmx answers under: a page that found it under a name of its own gets nothing."""

import asyncio
import json
import socket
import sys
from typing import Any

import pytest

from lmx.router.http import allowed_hosts
from lmx.router.http.allowed_hosts import all_names, machine_names
from lmx.router.http.api_family import OLLAMA
from lmx.router.server.routes import ROUTES
from tests.support.rigs.router_rig import Rig, chat_body, router_rig

EVIL = "evil.example"


async def raw(rig: Rig, request: str) -> tuple[int, Any]:
    """Send a request as it stands; return the status, and the error or None."""
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.spec.port)
    try:
        async with asyncio.timeout(90):
            writer.write(f"{request}Connection: close\r\n\r\n".encode())
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    status = int(head.split()[1])
    return status, json.loads(body).get("error") if status >= 400 else None


async def get(rig: Rig, host: str, path: str = "/v1/models") -> tuple[int, Any]:
    return await raw(rig, f"GET {path} HTTP/1.1\r\nHost: {host}\r\n")


async def test_no_route_answers_under_a_strange_name(rig: Rig) -> None:
    for endpoint in ROUTES:
        path = endpoint.path.replace("{id:.+}", "x").replace("{model:.+}", "x")
        path = path.replace("{id}", "x")
        headers = {"Host": f"{EVIL}:{rig.spec.port}", "X-Admin-Key": rig.spec.admin_key}
        body = chat_body() if endpoint.method == "POST" else None
        url = f"{rig.url}{path}"
        async with rig.http.request(endpoint.method, url, headers=headers, json=body) as response:
            assert response.status == 403, endpoint
            body = await response.json()
        if endpoint.family is OLLAMA:
            error = {**body, "message": body["error"]}
        else:
            error = body["error"]
            assert error["type"] == "permission_error"
        assert error["code"] == "host_not_allowed"
        assert EVIL in error["message"]
        assert "server.allowed_hosts" in error["message"]
    status, error = await get(rig, EVIL, "/no/such/path")
    assert (status, error["code"]) == (403, "host_not_allowed")
    assert not rig.worker.streams


async def test_names_and_addresses_of_this_machine() -> None:
    name = socket.gethostname().partition(".")[0]
    async with router_rig(allowed_hosts=("lmx.example", "*.lan.example")) as rig:
        for host in (
            "localhost", "LOCALHOST:1", "localhost.", "app.localhost:8000", "127.0.0.1",
            "127.9.9.9", "[::1]:8000", "192.168.1.5:8000", "203.0.113.9", "[fe80::1%25en0]",
            f"{name}.local", f"{name}.local.:8000", f"{name}.home.arpa", "lmx.example:443",
            "a.lan.example", name.upper(),
        ):  # fmt: skip
            assert (await get(rig, host))[0] == 200, host
        for host in (
            EVIL, f"localhost.{EVIL}", f"127.0.0.1.{EVIL}", f"{name}.{EVIL}", "x.lmx.example",
            "lan.example", "localhost@evil.example", "localhost:a", "localhost/x", "a b", "",
            "\u00e4.example", "127.0.0.1,evil.example", "local", "evil.local", "*",
        ):  # fmt: skip
            status, error = await get(rig, host)
            assert (status, error["code"]) == (403, "host_not_allowed"), host


async def test_a_target_with_a_host_of_its_own_counts_too(rig: Rig) -> None:
    for target, host, expected in (
        (f"http://{EVIL}/v1/models", "localhost", 403),
        (f"http://localhost@{EVIL}/v1/models", "localhost", 403),
        ("http://localhost:8000/v1/models", EVIL, 403),
        ("http://localhost:8000/v1/models", "localhost", 200),
    ):
        status, _ = await raw(rig, f"GET {target} HTTP/1.1\r\nHost: {host}\r\n")
        assert status == expected, (target, host)


async def test_no_host_and_two_of_them(rig: Rig) -> None:
    # Of no browser: a load balancer that looks whether lmx is there.
    assert (await raw(rig, "GET /health HTTP/1.0\r\n"))[0] == 200
    for hosts in ("", f"Host: localhost\r\nHost: {EVIL}\r\n"):
        status, error = await raw(rig, f"GET /health HTTP/1.1\r\n{hosts}")
        assert (status, error["code"]) == (400, "malformed_request")


async def test_any_name_may_be_allowed() -> None:
    async with router_rig(allowed_hosts=("*",)) as rig:
        assert (await get(rig, EVIL))[0] == 200


async def test_the_name_that_lmx_listens_on_is_its_own() -> None:
    async with router_rig(host="Lmx.Example") as rig:
        assert (await get(rig, "lmx.example:8000"))[0] == 200


async def test_a_new_name_of_the_machine_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allowed_hosts, "_READ_AGAIN_S", 0.0)
    async with router_rig() as rig:
        assert (await get(rig, "renamed.local"))[0] == 403
        monkeypatch.setattr(socket, "gethostname", lambda: "renamed")
        assert (await get(rig, "renamed.local"))[0] == 200


def test_names_that_follow_from_the_machine_s_own() -> None:
    hosts = """
127.0.0.1 localhost
127.0.1.1 studio.corp.example studio  # its own
0.0.0.0   tracker.example studio-x.example studio.tracker.example
::        studio.advert.example

"""
    names = all_names({"Studio.fritz.box", "Anna's Mac", "10.0.0.1"}, hosts)
    assert {"studio.fritz.box", "studio", "studio.local", "studio.corp.example"} <= names
    assert not names & {"tracker.example", "studio-x.example", "localhost", "10.0.0.1", "10"}
    assert not names & {"studio.tracker.example", "studio.advert.example"}, "blocked"
    assert machine_names()


def test_on_a_mac_the_network_does_not_name_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "macbook.evil.example")
    assert "macbook.evil.example" in machine_names()
    monkeypatch.setattr(sys, "platform", "darwin")
    names = machine_names()
    assert {"macbook", "macbook.local"} <= names
    assert "macbook.evil.example" not in names

"""lmx behind Caddy and nginx, with the very text of docs/start/reverse-proxy.md."""

import asyncio
import contextlib
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from tests.support.rigs.rig import ROOT, Rig, rig, scripted, unused_port, wait_until

pytestmark = pytest.mark.long

PAGE = ROOT / "docs" / "start" / "reverse-proxy.md"
NAME = "lmx.example.com"
KEY = "proxied-0123456789abcdef"
BEARER = {"Authorization": f"Bearer {KEY}"}
PROGRAMS = {
    "caddy": shutil.which("caddy"),
    "nginx": shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin"),
}
MIB = 1024**2


@dataclass(frozen=True)
class Proxied:
    """An lmx, and the address of the proxy before it."""

    lmx: Rig
    url: str


@pytest.fixture(scope="module")
def lmx() -> Iterator[Rig]:
    config = {
        "models": [scripted("alpha")],
        "server": {"allowed_hosts": [NAME]},
        "security": {"api_keys": [KEY]},
    }
    with rig(config) as made:
        made.wait_state("alpha", "ready")
        yield made


def written(language: str) -> str:
    """The block of the page in a language."""
    (text,) = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.S)
    return str(text)


def caddy_arguments(folder: Path, port: int, site: str) -> list[str]:
    """Caddy with the page's site. A certificate of its own takes the place of a public one."""
    options = f"""{{
        admin off
        auto_https disable_redirects
        default_bind 127.0.0.1
        https_port {port}
        local_certs
        skip_install_trust
        storage file_system {folder / "caddy"}
    }}
    """
    version = subprocess.run(["caddy", "version"], capture_output=True, text=True, timeout=180)
    if version.stdout.removeprefix("v").startswith("2.6.2"):
        # Debian 12's. With a limit (max_buffer_size) it looks for more of the request all the same.
        site = re.sub("request_buffers .*", "buffer_requests", site)
    (folder / "Caddyfile").write_text(options + site)
    return ["run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]


def nginx_arguments(folder: Path, port: int, site: str) -> list[str]:
    """nginx with the page's server, as it is included from /etc/nginx/conf.d."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "2", "-subj", f"/CN={NAME}", "-keyout", folder / "lmx.key",
         "-out", folder / "lmx.pem"],
        check=True, capture_output=True, timeout=180,
    )  # fmt: skip
    site = site.replace("listen 443", f"listen 127.0.0.1:{port}").replace("/etc/ssl", str(folder))
    (folder / "lmx.conf").write_text(site)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    main = (
        ("user root;\n" if os.getuid() == 0 else "")
        + f"daemon off; pid {folder / 'pid'}; error_log {folder / 'error.log'};\n"
        + "worker_processes 1; events { worker_connections 64; }\n"
        + "http { access_log off;\n"
        + "".join(f"{kind}_temp_path {folder / kind};\n" for kind in kinds)
        + f"include {folder / 'lmx.conf'}; }}\n"
    )
    (folder / "nginx.conf").write_text(main)
    return ["-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]


@pytest.fixture(scope="module", params=sorted(PROGRAMS))
def proxied(
    request: pytest.FixtureRequest, lmx: Rig, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Proxied]:
    program = PROGRAMS[request.param]
    if program is None or shutil.which("openssl") is None:
        pytest.skip(f"no {request.param} (Debian's package), or no openssl, on the PATH")
    folder, port = tmp_path_factory.mktemp(request.param), unused_port()
    inner = lmx.url.removeprefix("http://").removesuffix("/v1")
    language, arguments_of = {
        "caddy": ("caddyfile", caddy_arguments),
        "nginx": ("nginx", nginx_arguments),
    }[request.param]
    site = written(language)
    assert "127.0.0.1:8000" in site
    arguments = arguments_of(folder, port, site.replace("127.0.0.1:8000", inner))
    log = folder / "output"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [program, *arguments], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            cwd=folder, env={**os.environ, "HOME": str(folder)},
        )  # fmt: skip

    def serves() -> bool:
        assert process.poll() is None, log.read_text()
        # Caddy listens before it has made its certificate, and refuses each handshake until then.
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", port), 90) as one,
            any_certificate().wrap_socket(one, server_hostname=NAME),
        ):
            return True
        return False

    try:
        wait_until(serves, f"{request.param} serves")
        yield Proxied(lmx, f"https://{NAME}:{port}")
    finally:
        process.terminate()
        process.wait(180)


class _Loopback(AbstractResolver):
    """Every name is this machine's."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = ResolveResult(
            hostname=host, host="127.0.0.1", port=port, family=socket.AF_INET, proto=0, flags=0
        )
        return [found]

    async def close(self) -> None:
        pass


def any_certificate() -> ssl.SSLContext:
    """Take any certificate, as a client does that was told of a private one."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


@asynccontextmanager
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(ssl=any_certificate(), resolver=_Loopback())
    timeout = aiohttp.ClientTimeout(total=None, sock_read=90)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        yield session


def asked(content: Any, **settings: Any) -> dict[str, Any]:
    text = content if isinstance(content, str) else json.dumps(content)
    return {"model": "alpha", "messages": [{"role": "user", "content": text}], **settings}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/chat", "/v1/messages"])
async def test_tokens_arrive_while_the_answer_is_written(
    proxied: Proxied, tmp_path: Path, path: str
) -> None:
    enough = tmp_path / "enough"
    endless = {"tokens": 100_000, "step_s": 0.05, "until": str(enough)}
    body = asked(endless, stream=True, max_tokens=3000)
    pieces, text = 0, b""
    async with (
        client() as session,
        session.post(f"{proxied.url}{path}", json=body, headers=BEARER) as response,
    ):
        assert response.status == 200
        async for line in response.content:
            pieces += b"word" in line
            text += line if len(text) < 10_000 else b""
            if pieces == 5:
                # The answer ends only now: a proxy that keeps what it gets would wait for ever.
                enough.touch()
    assert pieces >= 5, text


async def test_a_client_that_hangs_up_ends_its_answer(proxied: Proxied) -> None:
    name = f"left-{proxied.url.rpartition(':')[2]}"
    body = asked({"tokens": 3000, "step_s": 0.05}, stream=True, max_tokens=3000)
    headers = {**BEARER, "X-Request-Id": name}
    async with client() as session:
        url = f"{proxied.url}/v1/chat/completions"
        async with session.post(url, json=body, headers=headers) as response:
            assert response.headers["X-Request-Id"] == name
            async for line in response.content:
                if b"word" in line:
                    break

    def ended() -> list[dict[str, Any]]:
        lines = proxied.lmx.log_events("router", "http.request")
        return [line for line in lines if line["request_id"] == name]

    (line,) = await asyncio.to_thread(wait_until, ended, "the end of the answer")
    assert (line["status"], line["error"]) == (499, "client_disconnected")


async def test_keys_and_the_name_pass(proxied: Proxied) -> None:
    admin = (proxied.lmx.home / "admin.key").read_text().strip()
    async with client() as session:
        for path, headers, status in (
            ("/v1/models", {}, 401),
            ("/v1/models", BEARER, 200),
            ("/v1/models", {"X-Api-Key": KEY}, 200),
            ("/admin/workers", BEARER, 403),
            ("/admin/workers", {"X-Admin-Key": admin}, 200),
            ("/healthz", {}, 200),
        ):
            async with session.get(f"{proxied.url}{path}", headers=headers) as response:
                assert response.status == status, (path, headers, await response.text())
        # Its own pages may ask, and those of others may not. On port 443 no port is sent.
        for origin, status in ((f"https://{NAME}", 200), ("https://evil.example", 403)):
            headers = {**BEARER, "Host": NAME, "Origin": origin}
            url = f"{proxied.url}/v1/chat/completions"
            async with session.post(url, json=asked("hello"), headers=headers) as response:
                assert response.status == status, (origin, await response.text())


async def test_large_bodies_pass_and_larger_ones_are_refused_in_lmx_s_words(
    proxied: Proxied,
) -> None:
    url = f"{proxied.url}/v1/chat/completions"
    async with client() as session:
        # Longer than nginx's own limit; the model's context is not that long.
        body = asked("x" * (5 * MIB))
        async with session.post(url, json=body, headers=BEARER) as response:
            error = (await response.json())["error"]
            assert (response.status, error["code"]) == (400, "context_length_exceeded")
        large = json.dumps(asked("x" * (33 * MIB))).encode()
        headers = {**BEARER, "Content-Type": "application/json"}
        async with session.post(url, data=large, headers=headers) as response:
            assert (response.status, response.content_type) == (413, "application/json")

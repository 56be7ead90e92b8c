"""Who may use which route: every one of the table, every way to get a key wrong."""

import asyncio
import hmac
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from multidict import CIMultiDict
from structlog.testing import capture_logs

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.control import ReloadConfig, Reloaded
from lmx.protocol.messages.data import Generate, Sampling
from lmx.protocol.messages.keys import ApiKey, KeyFamily, Keyring, secret_digest
from lmx.protocol.messages.specs import RouterSpec
from lmx.protocol.web_origins import is_loopback
from lmx.protocol.wire.endpoints import RunDirectory
from lmx.router.http.access import check_access, own_request
from lmx.router.http.endpoint import Access
from lmx.router.http.keys import Ring
from lmx.router.http.outcome import RequestContext
from lmx.router.server.routes import ROUTES
from tests.support.fakes.fake_peers import until
from tests.support.rigs.router_rig import MODEL, chat_body, router_rig, router_spec

ADMIN = "the-admin-key-of-this-test"
KEYS = ("first-inference-key", "second-inference-key-ключ")
SECRET = "sk-lmx-0123456789abcdef"
METRICS_KEY = "a-key-for-metrics-alone"
OPEN_PATHS = {
    "/", "/api/version", "/health", "/healthz", "/v1/health", "/status", "/admin/health", "/ping",
    "/version", "/pair/hello", "/pair/proof", "/ui",
}  # fmt: skip


@pytest.fixture
def spec(tmp_path: Any) -> RouterSpec:
    return router_spec(
        RunDirectory(tmp_path),
        1,
        host="192.168.1.2",
        admin_key=ADMIN,
        api_keys=KEYS,
        metrics_key=METRICS_KEY,
    )


def verdict(spec: RouterSpec, who: Access, *headers: tuple[str, str]) -> ErrorCode | str | None:
    """What a request with these headers gets: an error's code, else who asks."""
    request = Mock(headers=CIMultiDict(headers))
    ring = Ring.of(spec.keyring, spec.admin_key, spec.metrics_key)
    try:
        found = check_access(request, who, KeyFamily.OPENAI, ring, local=is_loopback(spec.host))
        return None if found is None else found.owner
    except RequestError as error:
        for key in (ADMIN, *KEYS):
            assert key not in error.message
        return error.code


def owner_of(key: str) -> str:
    return ApiKey.of_secret(key).owner


def bearer(key: str) -> tuple[str, str]:
    return ("Authorization", f"Bearer {key}")


def admin(key: str) -> tuple[str, str]:
    return ("X-Admin-Key", key)


UNKNOWN, FORBIDDEN = ErrorCode.INVALID_AUTHENTICATION, ErrorCode.PERMISSION_DENIED


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("Authorization", "")],
        [("Authorization", "Bearer")],
        [("Authorization", "Bearer  ")],
        [("Authorization", KEYS[0])],
        [("Authorization", f"Basic {KEYS[0]}")],
        [("Authorization", f"Bearer{KEYS[0]}")],
        [bearer(KEYS[0] + "x")],
        [bearer(KEYS[0][:-1])],
        [bearer(KEYS[0].upper())],
        [bearer(f"{KEYS[0]} {KEYS[1]}")],
        [bearer("\udcff\udc80")],
        [bearer("k" * 8000)],
        [admin(ADMIN)],
        # One may be what a proxy looked at: several are none.
        [bearer(KEYS[0]), bearer(KEYS[0])],
        [bearer("wrong"), bearer(KEYS[0])],
        [("X-Api-Key", KEYS[0]), ("X-Api-Key", KEYS[0])],
        [("Api-Key", f"{KEYS[0]}x")],
        # Only what the contract names.
        [("Key", KEYS[0])],
    ],
)
def test_no_inference_without_one_of_the_keys(
    spec: RouterSpec, headers: list[tuple[str, str]]
) -> None:
    assert verdict(spec, Access.INFERENCE, *headers) is UNKNOWN


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_each_key_opens_inference_and_says_who_asks(
    spec: RouterSpec, key: str, scheme: str
) -> None:
    who = verdict(spec, Access.INFERENCE, ("Authorization", f"{scheme} {key}"))
    assert who == owner_of(key)
    assert key not in str(who)
    assert owner_of(KEYS[0]) != owner_of(KEYS[1])


def test_without_api_keys_everybody_may_infer(spec: RouterSpec) -> None:
    free = replace(spec, keyring=Keyring())
    assert verdict(free, Access.INFERENCE) is None
    assert verdict(free, Access.INFERENCE, bearer("anything")) is None


@pytest.mark.parametrize("who", [Access.ADMIN, Access.OPERATOR, Access.LOCAL])
@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ([], UNKNOWN),
        ([admin("")], UNKNOWN),
        ([admin("wrong")], UNKNOWN),
        ([admin(ADMIN + "x")], UNKNOWN),
        ([admin("\udcffключ")], UNKNOWN),
        ([admin(KEYS[0])], FORBIDDEN),
        ([admin(ADMIN), admin(ADMIN)], UNKNOWN),
        # As Prometheus, and whoever knows one header alone, sends a key.
        ([bearer(ADMIN)], None),
        ([bearer(ADMIN), admin("wrong")], UNKNOWN),
        ([bearer(METRICS_KEY), admin(ADMIN)], None),
        ([bearer("wrong")], UNKNOWN),
        ([bearer(KEYS[0])], FORBIDDEN),
        ([bearer(KEYS[0]), admin("wrong")], UNKNOWN),
        ([admin(ADMIN)], None),
        ([admin(ADMIN), bearer(KEYS[1])], None),
    ],
)
def test_the_admin_key_and_nothing_else(
    spec: RouterSpec, who: Access, headers: list[tuple[str, str]], code: ErrorCode | None
) -> None:
    assert verdict(spec, who, *headers) is code


@pytest.mark.parametrize(
    ("headers", "fault"),
    [
        ([], "is missing"),
        ([bearer("wrong")], "is not right"),
        ([admin("wrong")], "is not right"),
        ([admin(ADMIN), admin(ADMIN)], "is there more than once"),
    ],
)
def test_what_is_wrong_with_an_admin_key(
    spec: RouterSpec, headers: list[tuple[str, str]], fault: str
) -> None:
    request = Mock(headers=CIMultiDict(headers))
    ring = Ring.of(spec.keyring, spec.admin_key, spec.metrics_key)
    with pytest.raises(RequestError, match=f"The admin key {fault}: send it"):
        check_access(request, Access.ADMIN, KeyFamily.OPENAI, ring, local=True)
    with pytest.raises(RequestError, match=f"The admin key {fault}: .*--scope metrics"):
        check_access(request, Access.METRICS, KeyFamily.OPENAI, ring, local=True)


def test_the_metrics_key_opens_the_metrics_and_nothing_else(spec: RouterSpec) -> None:
    for who in (Access.METRICS, Access.LOCAL):
        assert verdict(spec, who, bearer(METRICS_KEY)) is None
        assert verdict(spec, who, admin(ADMIN)) is None
        assert verdict(spec, who, bearer(ADMIN)) is None
        assert verdict(spec, who, bearer(KEYS[0])) is FORBIDDEN
        assert verdict(spec, who, bearer(METRICS_KEY + "x")) is UNKNOWN
        assert verdict(replace(spec, metrics_key=""), who, bearer(METRICS_KEY)) is UNKNOWN
        assert verdict(replace(spec, metrics_key=""), who) is UNKNOWN
    assert verdict(spec, Access.ADMIN, bearer(METRICS_KEY)) is FORBIDDEN
    assert verdict(spec, Access.ADMIN, admin(METRICS_KEY)) is FORBIDDEN
    assert verdict(spec, Access.INFERENCE, bearer(METRICS_KEY)) is FORBIDDEN
    metrics = {endpoint.path for endpoint in ROUTES if endpoint.access is Access.METRICS}
    assert metrics == {"/admin/metrics", "/admin/metrics/json"}


def test_an_empty_admin_key_opens_nothing(spec: RouterSpec) -> None:
    none = replace(spec, admin_key="")
    for headers in ([], [admin("")], [admin(" ")]):
        assert verdict(none, Access.ADMIN, *headers) is UNKNOWN


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True),
        ("0.0.0.0", False), ("::", False), ("192.168.1.2", False), ("", False),
        ("localhost.example.org", False), ("studio.local", False),
    ],
)  # fmt: skip
def test_local_routes_are_open_on_loopback_without_keys(
    spec: RouterSpec, host: str, local: bool
) -> None:
    assert is_loopback(host) is local
    spec = replace(spec, host=host)
    assert verdict(spec, Access.LOCAL) is UNKNOWN
    open_spec = replace(spec, keyring=Keyring())
    assert verdict(open_spec, Access.LOCAL) is (None if local else UNKNOWN)


def test_keys_are_compared_in_constant_time_and_all_of_them(
    spec: RouterSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[bytes] = []
    really = hmac.compare_digest

    def compare(given: bytes, expected: bytes) -> bool:
        compared.append(expected)
        return really(given, expected)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    ring = Ring.of(spec.keyring, spec.admin_key, spec.metrics_key)
    ring.find("wrong", 0.0)
    before = list(map(id, compared))
    compared.clear()
    ring.find("wrong", 0.0)
    assert list(map(id, compared)) == before, "what is compared was encoded once"
    for key in (*KEYS, "wrong"):
        compared.clear()
        verdict(spec, Access.INFERENCE, bearer(key))
        every = (*KEYS, ADMIN, METRICS_KEY)
        assert compared == [secret_digest(each).encode() for each in every]


def test_cache_salts_are_each_key_s_own() -> None:
    def salt(given: str, owner: str | None, apart: bool = False) -> str:
        asker = owner or "127.0.0.1"
        context = RequestContext("req_1", 0.0, owner=owner, requester=asker, apart=apart)
        request = own_request(Generate(0, "", Sampling(), 1, cache_salt=given), context)
        assert (request.request_id, request.owner) == ("req_1", context.requester)
        return request.cache_salt

    assert salt("s", "key_a") != salt("s", "key_b")
    assert salt("s", "key_a") == salt("s", "key_a")
    assert salt("s", None) == "s"
    assert salt("", "key_a") == "", "the only key shares with itself"
    assert salt("", "key_a", True) != salt("", "key_b", True) != ""
    assert salt("", "key_a", True) != salt("s", "key_a", True) == salt("s", "key_a")
    assert salt("", None, True) == ""


def test_what_is_open_is_health_and_its_description() -> None:
    found = {endpoint.path for endpoint in ROUTES if endpoint.access is Access.OPEN}
    assert found >= OPEN_PATHS - {"/admin/health"}
    described = {"/openapi.json", "/docs", "/admin/health", "/favicon.ico"}
    described |= {"/ui/{file}"}
    assert all(path in OPEN_PATHS | described or path.startswith("/docs") for path in found)


def test_operators_see_what_is_read_and_admins_alone_change_it() -> None:
    for endpoint in ROUTES:
        if endpoint.path.startswith(("/admin/", "/engines")) and endpoint.path != "/admin/health":
            metrics = endpoint.path.startswith("/admin/metrics")
            shows_prompts = endpoint.path.endswith("/capture")
            sees = endpoint.method == "GET" and not shows_prompts
            wanted = Access.OPERATOR if sees else Access.ADMIN
            if endpoint.path in (
                "/admin/peer",
                "/admin/ranks",
                "/admin/ranks/{group}",
                "/admin/ranks/probe",
            ):
                wanted = Access.PEER
            assert endpoint.access is (Access.METRICS if metrics else wanted), endpoint.path


async def test_keys_are_never_logged_or_answered(capfd: pytest.CaptureFixture[str]) -> None:
    answers: list[str] = []
    with capture_logs() as logs:
        async with router_rig(admin_key=ADMIN, api_keys=(KEYS[0],)) as rig:
            rig.supervisor.replies[ReloadConfig] = Reloaded((), ())
            for path in ("/v1/chat/completions", "/admin/config/reload", "/nope"):
                for headers in (
                    [bearer(KEYS[0])],
                    [bearer(KEYS[0]), bearer(KEYS[0])],
                    [bearer(KEYS[0]), admin(KEYS[0])],
                    [bearer(ADMIN), ("X-Api-Key", KEYS[0])],
                ):
                    async with rig.http.post(
                        f"{rig.url}{path}", json=chat_body(), headers=headers
                    ) as response:
                        answers += [await response.text(), str(response.headers)]
            for path in (f"/v1/{SECRET}/models", "/v1/models/desk-assistant-4bit"):
                async with rig.http.get(f"{rig.url}{path}") as response:
                    answers.append(await response.text())
            for line in (
                f"Authorization: Bearer {KEYS[0]}\x01",
                f"Authorization: Bearer \x7f{KEYS[0]}\x00",
                f"Authorization : Bearer {KEYS[0]}",
                f"X-Admin-Key: {ADMIN}\r\n {ADMIN}",
                f"{ADMIN}",
                "Host: twice",
            ):
                reader, writer = await asyncio.open_connection("127.0.0.1", rig.spec.port)
                writer.write(
                    f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n{line}\r\n\r\n".encode()
                )
                answers.append((await asyncio.wait_for(reader.read(2000), 90)).decode())
                writer.close()
    printed = capfd.readouterr()
    reported = "\n".join([*answers, *map(str, logs), printed.out, printed.err])
    assert "http.request" in reported
    assert "not valid HTTP: Duplicate Host header" in reported
    assert "/v1/models/desk-assistant-4bit" in [log.get("path") for log in logs], "it is no key"
    for key in (ADMIN, KEYS[0], SECRET):
        assert key not in reported


PRIORITIES: tuple[dict[str, Any], ...] = ({}, {"priority": -3}, {"priority": 9})
HI = [{"role": "user", "content": "hi"}]
GENERATIONS: dict[str, tuple[dict[str, Any], bool]] = {
    "/v1/chat/completions": ({"messages": HI}, True),
    "/v3/chat/completions": ({"messages": HI}, True),
    "/v1/completions": ({"prompt": "a"}, True),
    "/v3/completions": ({"prompt": "a"}, True),
    "/v1/messages": ({"messages": HI, "max_tokens": 9}, False),
    "/v1/responses": ({"input": "hi"}, True),
    "/api/chat": ({"messages": HI}, False),
    "/api/generate": ({"prompt": "hi"}, False),
    "/infill": ({"input_prefix": "a", "input_suffix": "b"}, True),
}
"""The routes of generations: a body, and whether it may have a `priority`. Anthropic's and Ollama's
requests know none, and theirs is ignored."""


def test_every_route_of_generations_is_listed() -> None:
    answering = {
        route.path
        for route in ROUTES
        if route.is_inference and route.streams and route.method == "POST"
    }
    # These have streams of other things: of sounds, and of how far a download is.
    audio = {f"/v1/audio/{name}" for name in ("transcriptions", "translations", "speech")}
    others = {*audio, "/api/pull"}
    assert answering - others == set(GENERATIONS)


@pytest.mark.parametrize("path", GENERATIONS)
async def test_no_request_has_a_lower_priority_than_its_key_allows(path: str) -> None:
    fields, takes_priority = GENERATIONS[path]
    other = "another-inference-key"
    keys = (ApiKey.of_secret(KEYS[0], priority=5), ApiKey.of_secret(other))
    ways: list[dict[str, Any]] = [{}, {"stream": True}]
    if path == "/v1/responses":
        ways.append({"background": True})
    expected = [5, 5, 9, 0, -3, 9] if takes_priority else [5, 5, 5, 0, 0, 0]
    async with router_rig(api_keys=keys) as rig:
        for way in ways:
            for key in (KEYS[0], other):
                for asked in PRIORITIES:
                    body = {"model": MODEL, **fields, **way, **asked}
                    headers = dict([bearer(key)])
                    url = f"{rig.url}{path}"
                    async with rig.http.post(url, json=body, headers=headers) as answer:
                        assert answer.status == 200, await answer.text()
                        await answer.read()
                        ignored = answer.headers.get("X-Lmx-Ignored", "")
                    assert ("priority" in ignored) is (bool(asked) and not takes_priority)
            await until(lambda: len(rig.worker.streams) == len(expected))
            # Those in the background may come in any order.
            found = [stream.request.priority for stream in rig.worker.streams]
            assert sorted(found) == sorted(expected)
            if "background" not in way:
                assert found == expected
            # What was computed for one key is not used for the other.
            asked_by = {
                (stream.request.owner, stream.request.cache_salt) for stream in rig.worker.streams
            }
            assert asked_by == {(owner_of(key), f"{owner_of(key)}:") for key in (KEYS[0], other)}
            rig.worker.streams.clear()


@pytest.mark.parametrize("share", [False, True])
async def test_a_worker_is_sent_salts_that_are_each_key_s_own(share: bool) -> None:
    # With one key there is nobody to be kept apart from.
    async with router_rig(api_keys=KEYS[: 2 if share else 1], share_prefix_cache=share) as rig:
        headers = dict([bearer(KEYS[0])])
        for path, body in (
            ("/v1/chat/completions", chat_body(cache_salt="s")),
            ("/v1/chat/completions", chat_body()),
            ("/v1/completions", {"prompt": "a", "cache_salt": "s"}),
        ):
            async with rig.http.post(f"{rig.url}{path}", json=body, headers=headers) as response:
                assert response.status == 200, await response.text()
        own = f"{owner_of(KEYS[0])}:s"
        assert [stream.request.cache_salt for stream in rig.worker.streams] == [own, "", own]

"""Host names, origins and the patterns that allow them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmx.protocol.web_origins import (
    Authority,
    Origin,
    host_allowed,
    parse_authority,
    parse_host_pattern,
    parse_origin,
    parse_origin_pattern,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost", Authority("localhost", None)),
        ("LocalHost:8000", Authority("localhost", 8000)),
        ("Mac.Local.", Authority("mac.local", None)),
        ("mac.local.:80", Authority("mac.local", 80)),
        ("127.0.0.1:1", Authority("127.0.0.1", 1)),
        ("[::1]:8000", Authority("::1", 8000)),
        ("[fe80::1%25en0]", Authority("fe80::1", None)),
        ("a_b.example", Authority("a_b.example", None)),
        *((bad, None) for bad in (
            "", ":80", "a:b", "a:123456", "a:65536", "a@b", "a b", "[::1", "[x]", "::1", "a..b",
            "-a", "ä.example", "a/b", "a,b", "*", "*.a", "a" * 64, "a\x00b", "[127.0.0.1]:x",
        )),
    ],
)  # fmt: skip
def test_what_a_host_header_says(text: str, expected: Authority | None) -> None:
    assert parse_authority(text) == expected


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("::1", True), ("10.1.2.3", True), ("localhost", False),
     ("127.1", False), ("1.2.3.4.example", False)],
)  # fmt: skip
def test_addresses_are_distinguished_from_names(host: str, expected: bool) -> None:
    assert Authority(host, None).is_address is expected


@pytest.mark.parametrize(
    ("host", "pattern", "expected"),
    [
        ("lmx.example.com", "lmx.example.com", True),
        ("lmx.example.com", "LMX.example.com.", True),
        ("lmx.example.com", "*.example.com", True),
        ("a.b.example.com", "*.example.com", True),
        ("example.com", "*.example.com", False),
        ("evilexample.com", "*.example.com", False),
        ("lmx.example.com.evil", "*.example.com", False),
        ("anything", "*", True),
    ],
)
def test_patterns_of_hosts(host: str, pattern: str, expected: bool) -> None:
    assert host_allowed(host, (parse_host_pattern(pattern),)) is expected


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("http://a.example", "without http://"),
        ("a.example:8000", "without a port"),
        ("a.*.example", "is not a host name"),
        ("", "is not a host name"),
        ("münchen.example", "xn--"),
    ],
)
def test_patterns_that_are_no_hosts_say_why(pattern: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_host_pattern(pattern)


@pytest.mark.parametrize(
    ("origin", "pattern", "expected"),
    [
        ("https://app.example", "https://app.example", True),
        ("https://APP.example:443", "https://app.example", True),
        ("https://app.example", "https://app.example:443", True),
        ("http://app.example", "https://app.example", False),
        ("https://app.example:8443", "https://app.example", False),
        ("https://app.example.evil", "https://app.example", False),
        ("http://localhost:5173", "http://localhost:*", True),
        ("http://localhost", "http://localhost:*", True),
        ("http://localhost.evil:1", "http://localhost:*", False),
        ("https://localhost:5173", "http://localhost:*", False),
        ("https://a.app.example", "https://*.app.example", True),
        ("https://app.example", "https://*.app.example", False),
        ("app://obsidian.md", "app://*", True),
        ("tauri://localhost", "tauri://*", True),
        ("vscode-webview://1a2b", "vscode-webview://*", True),
        ("chrome-extension://abc", "chrome-extension://abc", True),
        ("chrome-extension://abd", "chrome-extension://abc", False),
        ("file://", "file://", True),
        ("null", "null", True),
        ("null", "https://app.example", False),
        ("https://app.example", "null", False),
        ("null", "*", True),
        ("https://whoever.example:1", "*", True),
        ("https://app.example/path", "https://app.example", False),
        ("https://user@app.example", "https://app.example", False),
    ],
)
def test_patterns_of_origins(origin: str, pattern: str, expected: bool) -> None:
    assert parse_origin_pattern(pattern).allows(parse_origin(origin)) is expected


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("app.example", "is not an origin"),
        ("https://app.example/", "slash at its end"),
        ("https://app.example/path", "without a path"),
        ("https://", "has no host"),
        ("https://a.*.example", "has no host"),
        ("http://localhost:x", "has no host"),
        ("localhost:*", "is not an origin"),
    ],
)
def test_patterns_that_are_no_origins_say_why(pattern: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_origin_pattern(pattern)


@pytest.mark.parametrize(
    ("origin", "host", "expected"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1:8000", True),
        ("http://localhost:8000", "127.0.0.1:8000", False),
        ("http://127.0.0.1:8001", "127.0.0.1:8000", False),
        ("http://127.0.0.1", "127.0.0.1:8000", False),
        ("http://[::1]:8000", "[::1]:8000", True),
        ("https://lmx.example", "lmx.example", True),
        ("https://lmx.example", "lmx.example:443", True),
        ("app://127.0.0.1:8000", "127.0.0.1:8000", False),
    ],
)
def test_a_page_of_the_server_itself(origin: str, host: str, expected: bool) -> None:
    page, there = parse_origin(origin), parse_authority(host)
    assert page is not None
    assert there is not None
    assert page.is_at(there) is expected


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    authority, origin = parse_authority(text), parse_origin(text)
    assert authority is None or isinstance(authority, Authority)
    assert origin is None or isinstance(origin, Origin)
    for parse in (parse_host_pattern, parse_origin_pattern):
        try:
            parse(text)
        except ValueError as error:
            assert str(error)

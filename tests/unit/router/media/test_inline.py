"""Data URLs and base64 in all the ways that people write them."""

import base64
import urllib.parse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.states import MediaKind
from lmx.router.media import inline
from lmx.router.media.inline import decoded
from lmx.router.media.source import MediaSource, is_url


def read(text: str, most_bytes: int = 10_000_000) -> bytes:
    return b"".join(decoded(text, "p", most_bytes))


def written(content: bytes) -> list[str]:
    text = base64.b64encode(content).decode()
    return [
        text,
        text.rstrip("="),
        base64.urlsafe_b64encode(content).decode(),
        base64.encodebytes(content).decode(),
        " \r\n".join(text),
        f"data:image/png;base64,{text}",
        f"DATA:image/png;charset=utf-8;BASE64,{text}",
        f"data:;base64,{urllib.parse.quote(text, safe='')}",
        f"data:;base64,{urllib.parse.quote(text, safe='').replace('%2F', '%2f')}",
    ]


@given(st.binary(max_size=300))
def test_however_it_is_written_the_bytes_are_the_same(content: bytes) -> None:
    for text in written(content):
        assert read(text) == content


@given(st.binary(max_size=100), st.integers(1, 60))
def test_where_it_is_cut_does_not_matter(content: bytes, piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inline, "_PIECE_CHARACTERS", piece)
        for text in written(content):
            assert read(text) == content


@pytest.mark.parametrize(
    "text",
    ["A", "AB=C", "AA==AA==", "@@@", "é", "/tmp/cat.png", "cat.png", "../../etc/passwd", "data:",
     "data:image/png;base64", "data:,hello", "data:image/svg+xml,%3Csvg/%3E",
     f"data:{'x' * 300};base64,AAAA", "data:image/png;base64,@@@"],
)  # fmt: skip
def test_what_is_no_base64_is_refused(text: str) -> None:
    with pytest.raises(RequestError) as caught:
        read(text)
    assert (caught.value.code, caught.value.param) == (ErrorCode.INVALID_MEDIA, "p")
    assert len(caught.value.message) < 300


def test_it_is_refused_as_soon_as_it_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline, "_PIECE_CHARACTERS", 8)
    assert read("AAAA" * 4, 12) == bytes(12)
    pieces = decoded("AAAA" * 1000, "p", 11)
    assert next(pieces) == bytes(6)
    with pytest.raises(RequestError, match=r"media\.max_item_bytes") as caught:
        next(pieces)
    assert (caught.value.code, caught.value.param) == (ErrorCode.MEDIA_TOO_LARGE, "p")


@pytest.mark.parametrize(
    ("text", "fetched"),
    [("http://a", True), ("HTTPS://a", True), ("data:x", False), ("DATA:,", False),
     ("/9j/4AAQ", False), ("", False)],
)  # fmt: skip
def test_what_is_fetched(text: str, fetched: bool) -> None:
    assert is_url(MediaSource(MediaKind.IMAGE, "p", text)) is fetched


@pytest.mark.parametrize(
    "text", ["file:///etc/passwd", "FILE:/x", "ftp://a", "gopher://a", "javascript:1", "blob:x"]
)
def test_other_schemes_are_refused(text: str) -> None:
    with pytest.raises(RequestError, match="only http, https and data") as caught:
        is_url(MediaSource(MediaKind.IMAGE, "p", text))
    assert (caught.value.code, caught.value.param) == (ErrorCode.INVALID_VALUE, "p")

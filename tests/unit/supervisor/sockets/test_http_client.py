"""Addresses of another machine's lmx, and what is said when no lmx answers there."""

import errno
import http.client
import io
from pathlib import Path
from typing import Any

import pytest

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.messages import control
from lmx.supervisor.sockets.http_client import HttpClient, Remote, _Form
from lmx.supervisor.sockets.remote import RemoteClient, log_lines
from tests.support.fakes.one_answer import one_answer


@pytest.mark.parametrize(
    ("typed", "url"),
    [
        ("studio", "http://studio:8000"),
        (" studio:9000/ ", "http://studio:9000"),
        ("http://studio:8000/v1/", "http://studio:8000"),
        ("http://studio", "http://studio"),
        ("https://host.example/lmx/v1", "https://host.example/lmx"),
        ("192.168.1.7", "http://192.168.1.7:8000"),
        ("[::1]:9000", "http://[::1]:9000"),
        ("localhost:8000", "http://localhost:8000"),
    ],
)
def test_an_address_is_taken_as_people_write_it(typed: str, url: str) -> None:
    assert Remote.parse(typed, None) == Remote(url)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("ftp://studio", "begins with http"),
        ("http://", "a host follows"),
        ("studio:x", "is not the address"),
        ("http://me:secret@studio", "--key takes the key"),
        ("http://studio?key=1", "no user, query"),
    ],
)
def test_what_is_no_address_is_said(typed: str, said: str) -> None:
    with pytest.raises(OperationError, match=said):
        Remote.parse(typed, None)


def test_a_key_that_no_header_can_carry_is_said() -> None:
    for key in ("sk-“quoted”", "sk-\r\nX: y"):
        with pytest.raises(OperationError, match="no key of lmx has"):
            Remote.parse("studio", key)
    assert "sk-1" not in repr(Remote.parse("studio", "sk-1"))


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, b"<html>", "is it lmx"),
        (200, b"{}", "is it lmx"),
        (404, b"not here", "the status 404: is it lmx"),
        (503, b'{"error": {"code": "supervisor_unavailable", "message": "no"}}', "no"),
        (401, b'{"error": {"code": "invalid_authentication", "message": "no"}}', "--key KEY"),
        (404, b'{"error": {"code": "not_found", "message": "a\\u001b[2J"}}', r"^a\?\[2J$"),
    ],
)
def test_whoever_else_answers_there_is_no_traceback(status: int, body: bytes, said: str) -> None:
    with (
        one_answer(status, body) as (url, _),
        RemoteClient(Remote(url), 1.0) as client,
        pytest.raises(OperationError, match=said),
    ):
        client.status()


def test_an_answer_counts_that_comes_before_all_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is too large is refused, and the connection closed, while it is sent."""
    send = http.client.HTTPConnection.request

    def request(self: http.client.HTTPConnection, *arguments: Any) -> None:
        send(self, *arguments)
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(http.client.HTTPConnection, "request", request)
    body = b'{"error": {"code": "request_too_large", "message": "too much"}}'
    with one_answer(413, body) as (url, _), pytest.raises(OperationError, match=r"^too much$"):
        HttpClient(Remote(url), 90.0).call("GET", "/v1/models")
    body = b'{"error": {"code": "invalid_authentication", "message": "no"}}'
    with (
        one_answer(401, body) as (url, _),
        pytest.raises(OperationError, match=r"^no It is old\.$"),
    ):
        HttpClient(Remote(url, "sk-1", key_words="It is old."), 90.0).call("GET", "/v1/models")


def test_a_redirect_is_said_and_not_followed_with_the_key() -> None:
    with (
        one_answer(302, b"", Location="https://elsewhere.example/") as (url, _),
        pytest.raises(OperationError, match=r"https://elsewhere\.example/"),
    ):
        HttpClient(Remote(url, "key"), 5.0).call("GET", "/v1/models")


def test_nobody_there_and_no_route() -> None:
    with RemoteClient(Remote("http://127.0.0.1:1"), 1.0) as client:
        with pytest.raises(OperationError) as caught:
            client.status()
        assert caught.value.code is ErrorCode.NOT_RUNNING
        with pytest.raises(OperationError, match="no route"):
            client.ask(control.StopAll())


@pytest.mark.parametrize("path", ["", "/v1/files/file-1/content"])
def test_an_answer_that_is_cut_off_is_not_taken_for_a_whole_one(path: str) -> None:
    with one_answer(200, b'{"a": 1}', **{"Content-Length": "10"}) as (url, _):
        http = HttpClient(Remote(url), 5.0)
        with pytest.raises(OperationError, match="2 bytes of the answer are missing") as caught:
            if path:
                http.download(path, io.BytesIO())
            else:
                http.call("GET", "/v1/models")
        assert caught.value.code is ErrorCode.SUPERVISOR_UNAVAILABLE


class Full(io.BytesIO):
    def write(self, _: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_disk_that_is_full_is_not_a_lost_connection() -> None:
    with (
        one_answer(200, b"text", **{"Content-Length": "4"}) as (url, _),
        pytest.raises(OSError, match="No space left"),
    ):
        HttpClient(Remote(url), 5.0).download("/v1/files/file-1/content", Full())


def test_a_file_that_becomes_shorter_is_not_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes(b"0123456789")
    with file.open("rb") as content:
        form = _Form({}, file.name, content)
        file.write_bytes(b"0123")
        with pytest.raises(OperationError, match=r"can't read in\.jsonl: it became shorter"):
            list(form.pieces())


class Broken(io.FileIO):
    def read(self, _: object = None) -> bytes:
        raise OSError(errno.EIO, "Input/output error")


def test_a_file_that_can_not_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"0123456789")
    with Broken(tmp_path / "in.jsonl") as content:
        form = _Form({}, "in.jsonl", content)
        with pytest.raises(OperationError, match=r"can't read in\.jsonl: Input/output error"):
            list(form.pieces())


def test_a_log_that_is_followed_does_not_end_without_a_word() -> None:
    with one_answer(200, b'data: {"line": "a"}\n\n') as (url, _):
        assert list(log_lines(Remote(url), "router", 1, follow=False)) == ["a"]
        lines = log_lines(Remote(url), "router", 1, follow=True)
        assert next(lines) == "a"
        with pytest.raises(OperationError, match="has ended or was replaced"):
            next(lines)

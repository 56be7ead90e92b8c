"""A conversation: lines become messages, commands do what they say, answers come as they are."""

import base64
import errno
import io
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.supervisor.cli.chat import session
from lmx.supervisor.cli.chat.client import ChatClient, Piece, PieceKind
from lmx.supervisor.cli.chat.conversation import Conversation, Lines, command_of, shown
from lmx.supervisor.cli.chat.session import (
    _all_of,
    _history,
    _print_answer,
    audio_part,
    choose,
    image_part,
)
from lmx.supervisor.cli.chat.start import refuse_unknown
from lmx.supervisor.cli.main import main
from lmx.supervisor.config.known_models import KNOWN_MODELS
from lmx.supervisor.config.schema import Config
from lmx.supervisor.sockets.http_client import Remote
from tests.support.fakes.one_answer import Asked, one_answer


def messages(*lines: str) -> list[str]:
    taken = Lines()
    found = [taken.add(line) for line in lines]
    assert not taken.begun
    return [message for message in found if message is not None]


def test_lines_become_messages() -> None:
    assert messages("hi", "", "you") == ["hi", "", "you"]
    assert messages("one \\", "two") == ["one \ntwo"]
    assert messages('"""', "a", "", "b", '"""', "c") == ["a\n\nb\n", "c"]
    assert messages('"""a', 'b"""') == ["a\nb"]
    assert messages('"""a"""') == ["a"]


def test_a_message_that_was_begun_can_be_dropped() -> None:
    lines = Lines()
    assert lines.add('"""') is None
    assert lines.begun
    lines.drop()
    assert not lines.begun
    assert lines.add("hi") == "hi"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("/system Be short.", ("/system", "Be short.")),
        ("  /clear ", ("/clear", "")),
        ("/image /tmp/a b.png", ("/image", "/tmp/a b.png")),
        ("/etc/passwd: what is it?", None),
        ("what is /etc?", None),
    ],
)
def test_commands_are_distinguished_from_messages(line: str, found: tuple[str, str] | None) -> None:
    assert command_of(line) == found


def test_a_conversation_is_sent_whole() -> None:
    said = Conversation("m", system="Be short.")
    assert [one["content"] for one in said.ask("hi")] == ["Be short.", "hi"]
    said.answered("hello")
    said.attached.append({"type": "image_url"})
    sent = said.ask("what is it?")
    assert [one["role"] for one in sent] == ["system", "user", "assistant", "user"]
    assert sent[-1]["content"] == [{"type": "image_url"}, {"type": "text", "text": "what is it?"}]
    said.answered("")  # nothing came: it is asked anew
    said.attached.clear()
    assert [one["content"] for one in said.ask("again")][1:] == ["hi", "hello", "again"]
    said.clear()
    assert [one["content"] for one in said.ask("new")] == ["Be short.", "new"]


def test_what_was_attached_to_a_message_without_an_answer_goes_with_the_next() -> None:
    said, picture = Conversation("m"), {"type": "image_url"}
    said.attached.append(picture)
    said.ask("what is it?")
    said.answered("")
    said.attached.append({"type": "input_audio"})
    (turn,) = said.ask("and now?")
    assert turn["content"] == [
        picture,
        {"type": "input_audio"},
        {"type": "text", "text": "and now?"},
    ]
    said.answered("a cat")
    assert said.attached == []


@pytest.mark.parametrize(
    "event",
    [
        *("{", "[]", '"text"', "[" * 100_000, "{}"),
        *('{"choices": [1]}', '{"choices": [{"delta": "x"}]}', '{"error": "broken"}'),
    ],
)
def test_an_event_that_is_none_is_an_error_in_words(event: str) -> None:
    with server(200, f"data: {event}") as (client, _), pytest.raises(OperationError) as caught:
        list(client.answer("m", [{"role": "user", "content": "hi"}]))
    assert caught.value.code is ErrorCode.PROTOCOL_ERROR and len(caught.value.message) < 200


def test_the_history_is_never_readable_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readline = pytest.importorskip("readline")
    write, modes = readline.write_history_file, []

    def writing(path: Path) -> None:
        modes.append(path.stat().st_mode & 0o777)
        write(path)
        modes.append(path.stat().st_mode & 0o777)

    monkeypatch.setattr(readline, "write_history_file", writing)
    before = os.umask(0)
    try:
        for _ in range(2):
            with _history(tmp_path / "chat_history"):
                pass
            assert os.umask(0) == 0
    finally:
        os.umask(before)
    assert modes == [0o600] * 4


def test_what_a_terminal_would_obey_is_not_written() -> None:
    assert shown("a\x1b[2Jb\x07\n\tü👩‍💻\x9b") == "a\ufffd[2Jb\ufffd\n\tü👩‍💻\ufffd"


def test_files_become_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.jpg"
    file.write_bytes(b"abc")
    data = base64.b64encode(b"abc").decode()
    assert image_part(str(file))["image_url"]["url"] == f"data:image/jpeg;base64,{data}"
    # Python takes paths like these for URLs.
    (tmp_path / "data:text").mkdir()
    monkeypatch.chdir(tmp_path)
    for odd in ("data:text/plain,a.gif", "data:text,a.gif"):
        Path(odd).write_bytes(b"abc")
        assert image_part(odd)["image_url"]["url"].startswith("data:image/gif;")
    assert audio_part(str(file.rename(tmp_path / "a.mp3")))["input_audio"] == {
        "data": data, "format": "mp3",
    }  # fmt: skip
    for name in ("", str(tmp_path / "none.png"), str(tmp_path), "~nobody-here/x"):
        with pytest.raises(OperationError):
            image_part(name)


@contextmanager
def server(status: int, *lines: str) -> Iterator[tuple[ChatClient, list[Asked]]]:
    """Serve one answer to every request; yields a client and the requests."""
    with one_answer(status, "".join(f"{line}\n\n" for line in lines).encode()) as (url, asked):
        yield ChatClient(Remote(url, "the-key")), asked


def delta(**values: str) -> str:
    return "data: " + json.dumps({"choices": [{"delta": values}]})


def test_an_answer_comes_in_pieces() -> None:
    lines = (": m is loading", ": ping", delta(reasoning_content="hm"), delta(content="hi"),
             'data: {"choices": []}', "data: [DONE]", delta(content="late"))  # fmt: skip
    with server(200, *lines) as (client, asked):
        found = list(client.answer("m", [{"role": "user", "content": "q"}]))
    assert found == [
        Piece(PieceKind.WAITING, "m is loading"),
        Piece(PieceKind.REASONING, "hm"),
        Piece(PieceKind.TEXT, "hi"),
    ]
    sent = json.loads(asked[0].body)
    assert (sent["model"], sent["stream"]) == ("m", True)
    assert asked[0].headers["Authorization"] == "Bearer the-key"


@pytest.mark.parametrize(
    ("text", "parameters", "fails"),
    [
        ("half", {}, False),
        ("", {}, True),
        ('{"half": ', {"response_format": {"type": "json_object"}}, True),
    ],
)
def test_an_answer_that_is_cut_off_is_said(
    text: str, parameters: dict[str, Any], fails: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script must not take it for a whole one."""
    facts = {"choices": [], "usage": {"completion_tokens": 3}, "timings": {}}
    cut = 'data: {"choices": [{"delta": {}, "finish_reason": "length"}]}'
    lines = (delta(content=text), cut, f"data: {json.dumps(facts)}", "data: [DONE]")
    with server(200, *lines) as (client, _):
        status = 0
        try:
            _print_answer(client, Conversation("m", parameters=parameters, stats=True), "q")
        except SystemExit as end:
            status = int(end.code or 0)
    assert status == int(fails)
    said = capsys.readouterr()
    assert said.out.strip() == text.strip()
    assert "cut off" in said.err and "3 answered" in said.err


@pytest.mark.parametrize(
    ("status", "line", "said"),
    [
        (404, json.dumps({"error": {"code": "model_not_found", "message": "no m"}}), "no m"),
        (502, "<html>", "the status 502"),
        (200, 'data: {"error": {"code": "worker_crashed", "message": "it fell"}}', "it fell"),
        (200, delta(content="half of it"), "was lost"),
    ],
)
def test_a_failed_answer_is_an_error_in_words(status: int, line: str, said: str) -> None:
    with server(status, line) as (client, _), pytest.raises(OperationError, match=said):
        list(client.answer("m", []))


def test_an_lmx_without_tls_is_not_asked_by_it() -> None:
    with server(200) as (plain, _), pytest.raises(OperationError, match="try http://"):
        tls = Remote(plain.remote.url.replace("http://", "https://"))
        list(ChatClient(tls).answer("m", []))


def test_an_lmx_that_was_restarted_is_found_again() -> None:
    refused = json.dumps({"error": {"code": "invalid_authentication", "message": "no such key"}})
    with (
        server(401, refused) as (old, before),
        server(200, delta(content="hi"), "data: [DONE]") as (new, asked),
    ):
        client = ChatClient(old.remote, lambda: new.remote)
        for _ in range(2):
            assert list(client.answer("m", [])) == [Piece(PieceKind.TEXT, "hi")]
        assert (len(before), len(asked)) == (1, 2)
        # A second refusal is reported.
        client = ChatClient(old.remote, lambda: old.remote)
        with pytest.raises(OperationError, match="no such key"):
            list(client.answer("m", []))
        assert len(before) == 3


def test_nobody_there() -> None:
    for url in ("http://127.0.0.1:1", "http://studio..local:8000", f"http://{'x' * 64}.local"):
        with pytest.raises(OperationError, match="no lmx can be reached") as caught:
            list(ChatClient(Remote(url)).answer("m", []))
        assert caught.value.code is ErrorCode.NOT_RUNNING


def test_what_is_piped_in_is_utf_8_in_every_locale() -> None:
    def piped(content: bytes) -> str:
        return _all_of(io.TextIOWrapper(io.BytesIO(content), "ascii", "strict"))

    assert piped("grün\r\nund\rrot\n".encode()) == "grün\nund\nrot\n"
    with pytest.raises(OperationError, match="the text is not UTF-8") as caught:
        piped("grün".encode("latin-1"))
    assert caught.value.code is ErrorCode.INVALID_VALUE


def test_a_conversation_outlives_what_is_no_text_and_a_command_that_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, sent = iter(["gr\udcfcn", "/model slow", "hello"]), list[str]()

    def read(_prompt: str) -> str:
        line = next(lines, None)
        if line is None:
            raise EOFError
        return line

    def stopped(*_args: Any) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.input", read)
    monkeypatch.setattr(session, "choose", stopped)
    monkeypatch.setattr(session, "_exchange", lambda _client, _told, message: sent.append(message))
    session._talk(tmp_path / "history", ChatClient(Remote("http://x")), Conversation("m"))
    assert sent == ["hello"]
    captured = capsys.readouterr()
    assert "the text is not UTF-8" in captured.err
    assert "(stopped)" in captured.out


def test_a_full_disk_costs_no_conversation_that_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, conversation = tmp_path / "talk.txt", Conversation("m", system="be brief")

    def full(*arguments: Any, **options: Any) -> Any:
        open(*arguments, **options).close()  # noqa: PTH123  a descriptor
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for before in ([], [path.name]):
        with monkeypatch.context() as patch:
            patch.setattr(session, "open", full, raising=False)
            with pytest.raises(OperationError, match="can't write"):
                session._save(conversation, str(path))
        assert [each.name for each in tmp_path.iterdir()] == before
        session._save(conversation, str(path))
        assert path.read_text() != ""


def test_a_conversation_that_is_saved_again_keeps_its_file_s_mode_and_place(tmp_path: Path) -> None:
    link, elsewhere = tmp_path / "talk.txt", tmp_path / "elsewhere.txt"
    session._save(Conversation("m", system="first"), str(link))
    assert stat.S_IMODE(link.stat().st_mode) == 0o600
    link.rename(elsewhere)
    elsewhere.chmod(0o644)
    link.symlink_to(elsewhere)
    session._save(Conversation("m", system="second"), str(link))
    assert link.is_symlink()
    assert "second" in elsewhere.read_text()
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o644
    elsewhere.unlink()
    session._save(Conversation("m", system="third"), str(link))
    assert "third" in elsewhere.read_text()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["elsewhere.txt", "talk.txt"]


def test_a_short_name_is_that_of_a_repository_unless_a_model_has_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Listed(ChatClient):
        def __init__(self, *names: str) -> None:
            super().__init__(Remote("http://127.0.0.1:1"))
            self.names = names

        def models(self) -> list[dict[str, Any]]:
            facts = {
                "kind": "chat", "state": "cold", "context_length": 131_072,
                "capabilities": ["tools"], "modalities": ["text"],
            }  # fmt: skip
            return [{"id": name, "aliases": [f"{name}-alias"], **facts} for name in self.names]

        def model(self, name: str) -> Any:
            for each in self.models():
                if name in (each["id"], *each["aliases"]):
                    return each
            raise OperationError(ErrorCode.MODEL_NOT_FOUND, "no such model")

    repository = KNOWN_MODELS["qwen3-8b"]
    assert choose(Listed("a", repository), "Qwen3-8B") == repository
    assert choose(Listed(repository, "qwen3-8b"), "qwen3-8b") == "qwen3-8b"
    assert choose(Listed("a"), "a-alias") == "a-alias"
    with pytest.raises(OperationError, match="no model is named 'qwen3-8b'; known: a"):
        choose(Listed("a"), "qwen3-8b")
    # Programs are started with that name.
    monkeypatch.setenv("LMX_HOME", str(tmp_path))
    monkeypatch.setattr(session, "connect", lambda _place: Listed(repository))
    done = CliRunner().invoke(main, ["launch", "codex", "--model", "qwen3-8b", "--print"])
    assert (done.exit_code, repository in done.output) == (0, True), done.output
    # An lmx that is yet to be started is asked for the same names.
    config = Config.model_validate({"models": [{"id": "qwen3-8b", "source": "/mine"}]})
    refuse_unknown(config, "qwen3-8b", fetch=False)
    with pytest.raises(OperationError, match="no model is named 'qwen3-4b'"):
        refuse_unknown(config, "qwen3-4b", fetch=False)

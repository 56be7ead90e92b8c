"""Text that strangers wrote is bounded in every message, error, event and log line."""

import dataclasses
import importlib
import io
import json
import pkgutil
import sys
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgpack
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

import lmx.protocol.messages
from lmx.protocol.errors import ErrorCode, LmxError
from lmx.protocol.free_text import (
    LONGEST,
    MOST_VALUES,
    Clamped,
    clamp,
    clamp_values,
    terminal_text,
    text_of,
)
from lmx.protocol.host.logs import configure_logs
from lmx.protocol.messages.control import Event
from lmx.protocol.wire import codec
from lmx.supervisor.events import EventLog

NAMES = """
    adapter adapter_id aliases allowed asker base batch_id call_id capabilities counters
    default_model download_id efforts exchange_id fitted refused ignored engine epoch family
    function group id instance key_id key_name language level machine model offer_id model_id
    model_ids models name owner request_id router_id sections tool_parser version versions voice
    voices exits forgotten
    """
CONFIGURATION = """
    admin_key allowed_hosts allowed_networks chat_template command cors_origins disk_path
    draft_path tokenizer_config
    engine_options environment filename folder home host jobs_path key local_path logs_dir
    metrics_key
    digest keyring secret
    model_path parameters path repo_id revision run_dir source template_kwargs url urls
    tracing_endpoint tracing_headers
    """
REQUESTS = """
    bad_words begun cache_salt documents effort messages prompt queries query stop suffix text
    texts tools whitespace
    """
"""What the router has checked, within the limits of a body."""

ANSWERS = "pieces"
"""What the model wrote or its tokenizer has, of which each message holds a step or a request."""

OTHERS = frozenset(" ".join((NAMES, CONFIGURATION, REQUESTS, ANSWERS)).split())
FIELDS_OF_THEIR_OWN = {
    "Structure.param": "a path in the request's own body",
    "Infill.param": "a path in the request's own body",
    "Thinking.param": "a path in the request's own body",
    "MediaItem.param": "a path in the request's own body",
    "MediaItem.detail": "one of three words, which the router has checked",
    "LoadPlan.evicts": "the ids of models",
    "NamePattern.pattern": "of the configuration, which bounds it",
    "PlanLoad.folder": "a path on this machine",
    "BeatSeen.peers": "a digest",
    "RouterBeat.peers": "a digest",
    "PairingOffer.code": "made by lmx",
    "PairProof.remote": "an address, from the kernel",
    "RouterStatus.announced_url": "made by lmx",
    "Event.data": "bounded with the event, by EventLog",
    "ModelStatus.exits": "by the names of causes",
    "RankSettled.what": "a word of the engine's code",
    "BatchChanged.status": "one of OpenAI's words",
    "Machine.certificate": "a digest",
    "Peer.certificate": "a digest",
    "FollowerLink.address": "an address, which its supervisor has checked",
    "FollowerLink.endpoint": "an address, which its supervisor has checked",
    "FollowerLink.server_key": "a key of 40 letters, which the router has checked",
    "Meeting.address": "an address, of 64 letters at most",
    "Meeting.endpoint": "an address, of 64 letters at most",
    "Meeting.server_key": "a key of 40 letters",
    "RankBeat.ring_address": "an address, from the kernel",
    "RankRing.addresses": "addresses, from the kernel",
    "RankRing.rdma_devices": "names of devices, of a pattern",
    "RanksSpec.rdma_devices": "names of devices, of a pattern",
    "RankStarted.public_key": "a key of 40 letters",
    "RemoteFollower.public_key": "a key of 40 letters",
}


def _classes() -> Iterator[type]:
    for module in pkgutil.iter_modules(lmx.protocol.messages.__path__, "lmx.protocol.messages."):
        importlib.import_module(module.name)
    left, seen = list(codec.registered().values()), set()
    while left:
        cls = left.pop()
        if cls in seen:
            continue
        seen.add(cls)
        yield cls
        left += [each for hint in _hints(cls).values() for each in _inside(hint)]


def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


def _inside(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        yield hint
    for part in typing.get_args(hint):
        yield from _inside(part)


def _holds(hint: Any, wanted: Any) -> bool:
    if typing.get_origin(hint) is typing.Annotated:
        return bool(wanted is Clamped and Clamped() in hint.__metadata__)
    return hint is wanted or any(_holds(part, wanted) for part in typing.get_args(hint))


CLASSES = sorted(_classes(), key=lambda cls: cls.__name__)
FREE = {
    (cls, name) for cls in CLASSES for name, hint in _hints(cls).items() if _holds(hint, Clamped)
}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: str(cls.__name__))
def test_each_text_of_a_message_is_free_text_or_known_to_be_something_else(cls: type) -> None:
    texts = [name for name, hint in _hints(cls).items() if _holds(hint, str)]
    unknown = [
        name
        for name in texts
        if name not in OTHERS and f"{cls.__name__}.{name}" not in FIELDS_OF_THEIR_OWN
    ]
    assert not unknown, "make it a FreeText, or say here what it is"


def _with_text(hint: Any, text: str) -> Any:
    return [text, text] if typing.get_origin(hint) is tuple else text


@pytest.mark.parametrize(("cls", "name"), sorted(FREE, key=str))
@given(st.text(min_size=LONGEST // 64).map(lambda text: text * 200))
def test_whatever_comes_in_what_is_taken_is_bounded(cls: type, name: str, text: str) -> None:
    hint = _hints(cls)[name]
    # As from a peer that does not cut anything.
    schema = codec._build_schema(
        dataclasses.make_dataclass("Alone", [(name, hint)], namespace={}, frozen=True)
    )
    taken = getattr(schema.from_map({name: _with_text(hint, text)}, "path"), name)
    for each in taken if isinstance(taken, tuple) else (taken,):
        assert len(each) <= LONGEST
        assert each == text or len(text) > LONGEST


def test_a_long_load_error_is_short_on_the_wire_and_in_the_supervisor() -> None:
    from lmx.protocol.messages.control import LoadFailed

    failed = LoadFailed("0a", ErrorCode.MODEL_LOAD_FAILED, "why " + "x" * 10_000_000)
    payload = codec.encode(failed)
    assert len(payload) < 2 * LONGEST
    parts = msgpack.unpackb(payload)
    parts[4]["message"] = failed.message
    taken = codec.decode(msgpack.packb(parts)).message.message
    assert taken.startswith("why xxx")
    assert len(taken) == LONGEST


def test_an_error_is_short() -> None:
    error = LmxError(ErrorCode.INTERNAL, "a" * 10**6, param="b" * 10**6)
    assert len(str(error)) == len(error.message) == len(error.param or "") == LONGEST


@given(st.text(), st.integers(0, 300))
def test_a_text_is_cut_once(text: str, longest: int) -> None:
    cut = clamp(text * 20, longest)
    assert len(cut) <= longest or cut == text * 20
    assert clamp(cut, longest) == cut


def test_an_error_keeps_its_beginning_and_its_end() -> None:
    cut = clamp("begin" + "x" * 100_000 + "end")
    assert cut.startswith("begin")
    assert cut.endswith("end")


class _Broken:
    def __str__(self) -> str:
        raise RuntimeError("no text")


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.binary()
    | st.text()
    | st.text().map(lambda text: text * 3000)
    | st.builds(_Broken)
    | st.integers(5000, 6000).map(lambda digits: 10**digits),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.dictionaries(st.text(), VALUES))
def test_what_an_event_says_can_be_written_and_is_bounded(data: dict[str, Any]) -> None:
    kept: list[Event] = []
    log = EventLog("e1", lambda _epoch, event: kept.append(event))
    with structlog.testing.capture_logs():
        log.note("worker.ready", "a", "x" * 10**6, inner=data)
    (event,) = kept
    assert len(event.detail) == LONGEST
    assert len(json.dumps(event.data, ensure_ascii=False)) < 10 * MOST_VALUES


def test_many_small_values_are_bounded_too() -> None:
    assert len(json.dumps(clamp_values([[0] * 1000] * 1000))) < 10 * MOST_VALUES
    assert text_of(_Broken()) == "_Broken without a text (RuntimeError)"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@contextmanager
def _logs_to(out: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """Log as a process does whose stderr is ``out``."""
    before = structlog.get_config()
    monkeypatch.setattr(sys, "stderr", out)
    configure_logs("test")
    try:
        yield out
    finally:
        structlog.configure(**before)


@pytest.mark.parametrize("out", [io.StringIO(), _Terminal()], ids=["file", "terminal"])
def test_a_traceback_has_no_local_variables(
    out: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They hold what people wrote, and keys."""
    with _logs_to(out, monkeypatch):
        secret = "".join(["sk-", "a-key"])
        try:
            raise ValueError("it broke")
        except ValueError:
            structlog.get_logger().exception("it.failed", length=len(secret))
    assert "it broke" in out.getvalue()
    assert "sk-a-key" not in out.getvalue()


def test_a_log_line_is_bounded_and_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    with _logs_to(io.StringIO(), monkeypatch) as out:
        try:
            raise ValueError("long " + "y" * 10**6)
        except ValueError:
            fields = {"name": "n" * 10**6, "broken": _Broken(), "large": 10**6000}
            structlog.get_logger().exception("it.failed", **fields)
    (line,) = out.getvalue().splitlines()
    assert len(line) < 2 * MOST_VALUES
    said = json.loads(line)
    assert said["event"] == "it.failed"
    assert said["exception"][0]["exc_value"].startswith("long y")


def test_a_terminal_obeys_nothing_and_shows_every_letter() -> None:
    assert terminal_text("a\x1b[2J\r\x07\x7f\x9bb\ud800") == "a?[2J????b?"
    assert terminal_text("x\u202egnp.exe\u2066\u2069") == "x?gnp.exe??"
    spelled = "9.41\u202fPM\xa0a\u3000b\u200c\u200d\xad👩\u200d💻\n\tc"
    assert terminal_text(spelled) == spelled, "a path could not be copied"

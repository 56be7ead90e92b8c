"""What people read: the status in words, the table at any width, frames of `top`."""

import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from lmx.protocol.host.ordinal import ordinal
from lmx.protocol.messages.control import Event
from lmx.protocol.messages.status import ModelStatus, SystemStatus
from lmx.protocol.token_rates import TokenRates
from lmx.supervisor.cli.views.events import event_line
from lmx.supervisor.cli.views.progress import (
    LoadProgress,
    PlainConsole,
    print_started,
    print_welcome,
)
from lmx.supervisor.cli.views.status import print_status
from lmx.supervisor.cli.views.top import top_frame
from lmx.supervisor.cli.views.words import doing, memory_words, remarks, router_words, trouble
from tests.support.fakes.fake_supervisor import model_line, status

NOW_S = 10_000.0
LONG = "the folder has no config.json, " * 8


ADAPTER = {"id": "sql", "source": "/lora/sql"}


def crash(**values: Any) -> dict[str, Any]:
    return {"cause": "crash", "detail": "exit status 1", "at_s": NOW_S - 200, **values}


@pytest.mark.parametrize(
    ("number", "text"),
    [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (12, "12th"), (21, "21st"),
     (111, "111th")],
)  # fmt: skip
def test_ordinals(number: int, text: str) -> None:
    assert ordinal(number) == text


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (model_line("a", "queued"), "waits for memory"),
        (model_line("a", "queued", needed_bytes=None), "reading its files"),
        (model_line("a", "queued", position=3), "waits for memory, 3rd in line"),
        (model_line("a", "draining"), "draining"),
        (model_line("a", "draining", requests_active=1), "draining, 1 request left"),
        (model_line("a", "fetching", phase="download", fraction=0.5), "downloading"),
        (model_line("a", "starting"), "starting"),
    ],
)
def test_what_a_model_is_busy_with(line: ModelStatus, words: str) -> None:
    assert doing(line) == words


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (model_line("a"), ""),
        (model_line("a", pinned=True), "pinned"),
        (model_line("a", "fetching", phase="download", fraction=0.5, pinned=True),
         "downloading 50%, pinned"),
        (model_line("a", "starting", phase="start"), ""),
        (model_line("a", "backoff", retry_in_s=2.6), "again in 3 s"),
        (model_line("a", "cold", last_exit=crash(cause="expired")), "expired"),
        (model_line("a", "ready", last_exit=crash(cause="expired")), ""),
        (model_line("a", pinned=True, media=["image", "audio"]), "pinned, takes images, sound"),
        (model_line("a", media=[]), ""),
        (model_line("a", allow_checkpoint_code=True), "may run its own code"),
        (model_line("a", adapters=[ADAPTER, {**ADAPTER, "id": "prose"}]), "with sql, prose"),
    ],
)  # fmt: skip
def test_remarks(line: ModelStatus, words: str) -> None:
    assert remarks(line) == words


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (model_line("a"), None),
        (model_line("a", "cold", last_exit=crash(cause="unloaded")), None),
        (model_line("a", "cold", problem="no folder"), "no folder"),
        (model_line("a", problem="it is over", last_exit=crash()),
         "last exit: crash 3 min ago: exit status 1"),
        (model_line("a", "backoff", problem="why", last_exit=crash(cause="out_of_memory")),
         "why (last exit: out of memory 3 min ago)"),
    ],
)  # fmt: skip
def test_trouble(line: ModelStatus, words: str | None) -> None:
    assert trouble(line, NOW_S) == words


def test_who_waits_for_a_model_shows() -> None:
    router = replace(status().router, streams=2, waiting=20, requests_total=22)
    assert router_words(router) == "2 open, 20 waiting, 22 served"
    assert router_words(replace(router, waiting=0)) == "2 open, 22 served"


def test_memory_is_reported_when_there_is_something_to_report() -> None:
    assert memory_words(status().supervisor) == ""
    words = memory_words(status(memory_pressure="hard", missing_bytes=2**30).supervisor)
    assert "pressure is hard" in words
    assert "1.0 GiB did not come back" in words


def rendered(what: Any, width: int) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False, soft_wrap=True)
    if isinstance(what, SystemStatus):
        print_status(console, what)
    else:
        console.print(what)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_an_ipv6_address_is_no_markup() -> None:
    url = "http://[fd12:3456::1]:8000/v1"
    found = status(model_line("a"))
    found = replace(found, router=replace(found.router, url=url, urls=(url,), announced_url=url))
    lines = rendered(found, 120)
    assert f"announced   {url}" in lines
    assert sum(url in line for line in lines) == 2
    out = io.StringIO()
    print_started(Console(file=out, width=80, highlight=False, soft_wrap=True), found)
    assert f"in a browser: {url.removesuffix('v1')}" in out.getvalue()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"remarks": ["config.json sets x."]}, "a  config.json sets x."),
        ({"adapters": [{**ADAPTER, "problem": "it is of another [model]"}]},
         "sql  it is of another [model]"),
    ],
    ids=["what was remarked at the load", "an adapter that can't be used"],
)  # fmt: skip
def test_what_has_a_line_of_its_own(line: dict[str, Any], words: str) -> None:
    assert rendered(status(model_line("a", **line)), 80)[-1] == words


def busy() -> SystemStatus:
    return status(
        model_line("org/a-model-of-some-length", requests_active=31, pinned=True),
        model_line("b", "quarantined", problem=LONG),
        model_line("c", "queued", position=2),
    )


@pytest.mark.parametrize("width", [70, 80, 100, 120, 200])
def test_a_model_is_one_line_of_the_table_at_any_width(width: int) -> None:
    lines = rendered(busy(), width)
    (heading,) = [line for line in lines if line.startswith("MODEL")]
    rows = lines[lines.index(heading) :][:4]
    assert all(len(row) <= width for row in rows)
    names = ("MODEL", "org/a-model-of-some-length", "b ", "c ")
    assert all(row.startswith(name) for row, name in zip(rows, names, strict=True))
    assert rows[1].split()[1] == "ready"
    assert "31" in rows[1]
    text = "\n".join(lines)
    for words in ("pinned", "waits for memory, 2nd in line", LONG.strip()):
        assert words in text


def test_columns_are_left_out_the_least_useful_first() -> None:
    def heading(width: int) -> list[str]:
        return next(line for line in rendered(busy(), width) if line.startswith("MODEL")).split()

    assert "NOTE" in heading(200)
    assert heading(120)[-3:] == ["SERVED", "IDLE", "EXPIRES"]
    assert heading(80) == ["MODEL", "STATE", "KIND", "PID", "MEMORY", "ACTIVE", "QUEUED"]
    assert heading(75) == ["MODEL", "STATE", "PID", "MEMORY", "ACTIVE", "QUEUED"]
    assert heading(70) == ["MODEL", "STATE", "MEMORY", "ACTIVE", "QUEUED"]


@pytest.mark.parametrize(("width", "height"), [(80, 10), (100, 24), (160, 50)])
def test_a_frame_fits_the_terminal_and_has_the_latest_event(width: int, height: int) -> None:
    events = [
        Event(n, NOW_S, "worker.exited", "b", f"one\ntwo {n}{LONG}", {}) for n in range(1, 101)
    ]
    frame = top_frame(busy(), TokenRates(), events, (width, height), NOW_S)
    lines = rendered(frame, width)
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)
    if height > 10:
        assert "one two 100" in lines[-1]
    assert any("4.0 GiB of 8.0 GiB reserved" in line for line in lines)


def test_an_event_is_one_line() -> None:
    event = Event(1, NOW_S, "worker.exited", "a", "signal\n11", {"cause": "out_of_memory"})
    assert event_line(event).endswith("worker.exited       a  out of memory: signal 11")
    hostile = replace(event, detail="\x1b]0;title\x07 gone", data={})
    assert event_line(hostile).endswith("a  ?]0;title? gone"), "a terminal would obey it"


@pytest.mark.parametrize(
    ("workers", "path", "model"),
    [
        ([model_line("e", kind="embedding"), model_line("c")], "v1/chat/completions -N", "c"),
        ([model_line("e", kind="embedding"), model_line("c", "cold")], "v1/embeddings", "e"),
        ([model_line("r", kind="rerank")], "v1/rerank", "r"),
        ([model_line("n", "cold", kind=None)], "v1/chat/completions -N", "n"),
    ],
)
def test_the_request_to_paste_suits_the_model(
    workers: list[ModelStatus], path: str, model: str
) -> None:
    out = io.StringIO()
    print_welcome(Console(file=out, width=200, soft_wrap=True), status(*workers))
    text = out.getvalue()
    assert f"/{path} -H" in text
    assert re.search(r"page:   http://[^/ ]+:\d+/ \(chat", text)
    assert re.search(r"docs:   http://\S+:\d+/docs\n", text)
    body = json.loads(text[text.index("-d '") + 4 : text.rindex("'")])
    assert body["model"] == model


def test_a_model_that_can_t_be_loaded_is_not_one_to_try() -> None:
    out = io.StringIO()
    broken = model_line("m", "failed", problem="/nope does not exist")
    print_welcome(Console(file=out, width=200, soft_wrap=True), status(broken))
    assert "models: none can be loaded\n" in out.getvalue()
    assert "curl" not in out.getvalue()
    assert "lmx chat" not in out.getvalue()


def test_a_model_is_reported_ready_once_however_long_others_load() -> None:
    out = io.StringIO()
    with LoadProgress(Console(file=out, width=160)) as progress:
        for memory_bytes in (100, 200, 300):
            progress.show(model_line("a", "ready", pid=7, memory_bytes=memory_bytes << 20))
        progress.show(model_line("a", "ready", pid=8))
    assert [line.split(",")[1].strip() for line in out.getvalue().splitlines()] == [
        "pid 7", "pid 8",
    ]  # fmt: skip


def narrated(console: Console | PlainConsole) -> None:
    failed = model_line("b[1]", "failed", problem="/nope[x] does not exist")
    with LoadProgress(console) as progress:
        progress.show(model_line("a", "loading"))
        progress.show(model_line("c", "backoff", problem="no [room]"))
        progress.show(failed)
    print_welcome(console, status(model_line("c", "cold"), failed))


def test_without_a_terminal_the_same_lines_come_without_rich(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = io.StringIO()
    narrated(Console(file=out, width=160, soft_wrap=True, highlight=False))
    narrated(PlainConsole())
    shown = capsys.readouterr().out
    assert shown == out.getvalue()
    assert "failed  b[1]: /nope[x] does not exist\n" in shown
    assert "failed  c: no [room]\n" in shown


_NARRATION = """
import sys
from lmx.supervisor.cli.views.progress import LoadProgress, make_line_console
with LoadProgress(make_line_console()):
    make_line_console().print("stopped")
sys.exit("rich" in sys.modules)
"""


@pytest.mark.parametrize(("variables", "imported"), [({}, 0), ({"FORCE_COLOR": "1"}, 1)])
def test_a_service_imports_no_rich_for_its_lines(variables: dict[str, str], imported: int) -> None:
    names = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
    inherited = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-c", _NARRATION], env=inherited | variables,
        stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == imported
    assert "stopped\n" in done.stdout


def test_lines_that_nobody_reads_are_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Closed())
    console = PlainConsole()
    console.print("one")
    monkeypatch.setattr(sys, "stdout", out := io.StringIO())
    console.print("two")
    assert out.getvalue() == ""

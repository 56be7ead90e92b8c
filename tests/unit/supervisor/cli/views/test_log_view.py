"""A log for people: what happened, when, to what and why; nothing that the terminal would obey."""

import json
import time
from collections.abc import Iterator

import click
import pytest

from lmx.supervisor.cli.views.log import pretty


def line(**values: object) -> str:
    reported = {"event": "worker.ready", "level": "info", "timestamp": "2026-08-01T10:00:00.5Z"}
    return json.dumps(reported | values)


@pytest.fixture(autouse=True)
def new_york() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


def test_an_event_is_a_short_line_in_local_time() -> None:
    reported = line(model="qwen", detail="it is ready", pid=1, process="supervisor", home="/h", n=3)
    assert click.unstyle(pretty(reported)) == (
        "2026-08-01 06:00:00  worker.ready  qwen  it is ready  n=3"
    )


def test_warnings_errors_and_exceptions_stand_out() -> None:
    reported = line(level="error", exception=[{"exc_type": "OSError", "exc_value": "no"}])
    assert (
        click.unstyle(pretty(reported)) == "2026-08-01 06:00:00  error  worker.ready  OSError: no"
    )
    assert "x" * 200 + "..." in pretty(line(text="x" * 900))


@pytest.mark.parametrize("reported", ["a library says", "{", "[]", "null", '{"event": 3}'])
def test_what_is_no_event_stays(reported: str) -> None:
    assert pretty(reported) == reported


def test_nothing_is_obeyed() -> None:
    assert "\x1b[2J" not in pretty(line(detail="\x1b[2J", model="\x1b]0;x"))
    assert pretty("\x1b[2Jx") == " [2Jx"

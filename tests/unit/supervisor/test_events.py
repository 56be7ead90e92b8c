"""The events of this supervisor and of those before it: how many come, and in which order."""

from structlog.testing import capture_logs

from lmx.protocol.messages.control import EarlierEvents, Event
from lmx.supervisor.events import EventLog


def event(seq: int) -> Event:
    return Event(seq, 1.0, "worker.ready", None, "", {})


def test_what_people_should_look_at_is_logged_as_a_warning() -> None:
    log = EventLog("e1")
    with capture_logs() as logged:
        for name in ("router.ready", "router.unresponsive", "model.quarantined"):
            log.note(name, None, "detail")
    assert [(line["event"], line["log_level"]) for line in logged] == [
        ("router.ready", "info"), ("router.unresponsive", "warning"),
        ("model.quarantined", "warning"),
    ]  # fmt: skip


def test_those_of_supervisors_before_fill_what_is_left_of_the_limit() -> None:
    first, second, third = event(1), event(2), event(1)
    log = EventLog("c", earlier=[("a", first), ("a", second), ("b", third)])
    log.note("router.ready", None, "")
    (own,) = log.after(0, 10).events
    assert log.after(0, 10).earlier == ()
    everything = log.after(0, 10, earlier=True)
    assert everything.events == (own,)
    assert everything.earlier == (EarlierEvents("a", (first, second)), EarlierEvents("b", (third,)))
    some = log.after(0, 3, earlier=True)
    assert (some.events, some.earlier) == (
        (own,),
        (EarlierEvents("a", (second,)), EarlierEvents("b", (third,))),
    )
    assert log.after(0, 1, earlier=True).earlier == ()
    assert log.after(0, 0, earlier=True).events == ()

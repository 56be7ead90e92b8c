"""One router serves, others may retire: the guard over fake processes, without a clock."""

import asyncio
import errno
import signal
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from lmx.protocol.errors import OperationError
from lmx.protocol.messages import control
from lmx.supervisor.config.schema import Config, ServerConfig, TimingConfig
from lmx.supervisor.config.settings import Settings
from lmx.supervisor.config.shutdown_timeout import ROUTER_EXIT_S
from lmx.supervisor.control.handlers import Handlers
from lmx.supervisor.control.service import ServiceCommands
from lmx.supervisor.decisions import routers as deciding
from lmx.supervisor.decisions.lifecycle import LifecycleError
from lmx.supervisor.decisions.slots.demand import Requester
from lmx.supervisor.router.guard import RouterGuard
from lmx.supervisor.sockets import listening
from lmx.supervisor.state.process_records import RouterRecord

TIMING = TimingConfig(
    drain_timeout_s=60, shutdown_grace_s=10, beat_timeout_s=15, abort_grace_s=3, start_timeout_s=20
)
LOCAL = {"host": "127.0.0.1", "port": 0}
USR1, TERM, KILL, QUIT = signal.SIGUSR1, signal.SIGTERM, signal.SIGKILL, signal.SIGQUIT
USR2, CONT = signal.SIGUSR2, signal.SIGCONT


class FakeRouters:
    """``RouterActions`` that only take note."""

    def __init__(self) -> None:
        self.pid = 100
        self.signals: list[tuple[int, int]] = []
        self.saved: list[RouterRecord] = []
        self.notes: list[str] = []
        self.details: list[str] = []
        self.broken = False
        self.waits = 0.0

    def spawn_router(self, listener: socket.socket) -> RouterRecord:
        if self.broken:
            raise OSError("no process")
        self.pid += 1
        return RouterRecord(self.pid, f"r{self.pid}", "127.0.0.1", listener.getsockname()[1])

    def signal_router(self, pid: int, number: int) -> None:
        self.signals.append((pid, number))

    def waited_s(self, pid: int, now_s: float) -> float:
        return self.waits  # of each second

    def save_routers(self, records: list[RouterRecord]) -> None:
        self.saved = records

    def note(self, name: str, model_id: str | None, detail: str, **data: Any) -> None:
        self.notes.append(name)
        self.details.append(detail)


def bind(port: int) -> socket.socket:
    listener = socket.socket()
    listener.bind(("127.0.0.1", port))
    listener.listen()
    return listener


class Guard(RouterGuard):
    """A guard with all that it acts on and is configured by."""

    def __init__(self) -> None:
        self.actions = FakeRouters()
        self.settings = Settings(Config.model_validate({"server": LOCAL, "timing": TIMING}))
        super().__init__(self.actions, self.settings)
        self.settings.on_change(self.reconfigured)


@pytest.fixture
def guard() -> Iterator[Guard]:
    made = Guard()
    yield made
    made.close()


def serving_pid(guard: Guard) -> int | None:
    return guard.process.pid if guard.process else None


def test_what_can_not_happen_is_logged_and_changes_nothing(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> Any:
        raise LifecycleError("the routers got Hello while DOWN")

    before = guard.status()
    monkeypatch.setattr(deciding, "step", never)
    with capture_logs() as logged:
        guard.hello(1, 8000, 0.0)
        guard.tick(0.0, 0.0)
    assert [(line["event"], line["log_level"]) for line in logged] == [
        ("router.unexpected_event", "error")
    ] * 2
    assert guard.status() == before


def test_the_old_router_serves_until_the_new_one_has_said_hello(guard: Guard) -> None:
    guard.start(0.0)
    assert guard.replace(1.0) == 102
    assert (serving_pid(guard), guard.actions.signals) == (101, [])
    guard.hello(102, guard.status().port or 0, 2.0)
    assert (serving_pid(guard), guard.actions.signals) == (102, [(101, USR1)])
    assert [(r.pid, r.retiring) for r in guard.actions.saved] == [(102, False), (101, True)]
    assert guard.status().retiring == 1
    assert guard.actions.notes == ["router.restarted"]
    guard.exited(101, 3.0)
    assert [r.pid for r in guard.actions.saved] == [102]
    assert guard.status().restarts == 0


def test_what_a_retiring_router_does_not_end_is_ended_at_the_drain_timeout(guard: Guard) -> None:
    guard.start(0.0)
    guard.replace(0.0)
    guard.hello(102, 1, 0.0)
    alive = control.RouterBeat(102, 0, 0, 1)
    seen: list[tuple[int, int]] = []
    for now_s in range(80):
        guard.beat(alive, float(now_s))
        before = len(guard.actions.signals)
        guard.tick(float(now_s), 0.0)
        seen += [(now_s, number) for pid, number in guard.actions.signals[before:] if pid == 101]
    # SIGTERM gives its streams the grace that it was started with.
    assert seen[:2] == [(50, TERM), (60 + int(ROUTER_EXIT_S), KILL)]


def test_a_new_router_that_ends_at_its_start_changes_nothing(guard: Guard) -> None:
    guard.start(0.0)
    guard.replace(1.0)
    guard.exited(102, 1.5)
    assert (serving_pid(guard), guard.actions.signals) == (101, [])
    assert guard.actions.notes == ["router.not_replaced"]
    assert not guard.has_router(102)


def test_a_new_router_that_never_says_hello_is_ended(guard: Guard) -> None:
    guard.start(0.0)
    guard.replace(0.0)
    for now_s in range(25):
        guard.beat(control.RouterBeat(101, 0, 0, 1), float(now_s))
        guard.tick(float(now_s), 0.0)
    assert (102, QUIT) in guard.actions.signals
    assert (102, KILL) in guard.actions.signals
    assert {pid for pid, _ in guard.actions.signals} == {102}


def test_a_snapshot_is_known_once_every_router_that_takes_requests_has_said_so(
    guard: Guard,
) -> None:
    def known(epoch: str = "e") -> bool:
        return guard.has_snapshot(epoch, 7)

    assert known(), "there is no router"
    guard.start(0.0)
    assert not known()
    for revision, expected in ((6, False), (7, True), (8, True)):
        guard.beat(control.RouterBeat(101, 0, 0, 1, epoch="e", revision=revision), 0.0)
        assert known() is expected
    assert not known("another")
    # A successor that has not begun to serve starts with a later one.
    guard.replace(0.0)
    assert known()
    guard.hello(102, 1, 0.0)
    assert not known()
    guard.beat(control.RouterBeat(102, 0, 0, 1, epoch="e", revision=7), 0.0)
    assert known()
    # The one before it takes requests until it has retired.
    guard.beat(control.RouterBeat(101, 0, 0, 1, epoch="e", revision=6), 0.0)
    assert not known()
    guard.beat(control.RouterBeat(101, 0, 0, 1, retired=True, epoch="e", revision=6), 0.0)
    assert known()


def test_a_list_of_peers_is_known_once_every_router_that_takes_requests_has_said_so(
    guard: Guard,
) -> None:
    assert guard.has_peers("d"), "there is no router"
    guard.start(0.0)
    for digest in ("", "c", "d"):
        guard.beat(control.RouterBeat(101, 0, 0, 1, peers=digest), 0.0)
        assert guard.has_peers("d") is (digest == "d")
    guard.replace(0.0)
    guard.hello(102, 1, 0.0)
    assert not guard.has_peers("d")
    guard.beat(control.RouterBeat(102, 0, 0, 1, peers="d"), 0.0)
    assert guard.has_peers("d")
    # The one before it takes requests until it has retired.
    for retired in (False, True):
        guard.beat(control.RouterBeat(101, 0, 0, 1, retired=retired, peers="c"), 0.0)
        assert guard.has_peers("d") is retired


def test_its_status_counts_who_waits_in_all_routers(guard: Guard) -> None:
    guard.start(0.0)
    guard.replace(0.0)
    guard.beat(control.RouterBeat(101, 1, 7, 1, 20), 0.0)
    guard.beat(control.RouterBeat(102, 1, 0, 1, 3), 0.0)
    assert (guard.status().waiting, guard.status().requests_total) == (23, 7)


def test_an_old_router_that_crashes_meanwhile_leaves_it_to_the_new_one(guard: Guard) -> None:
    guard.start(0.0)
    guard.replace(1.0)
    guard.exited(101, 1.1)
    assert serving_pid(guard) == 102
    assert guard.status().restarts == 1


def test_a_new_address_is_taken_when_the_new_router_serves(guard: Guard) -> None:
    guard.start(0.0)
    old, new = guard.listener, bind(0)
    assert old is not None
    guard.replace(1.0, new)
    assert guard.listener is old
    guard.hello(102, new.getsockname()[1], 2.0)
    assert guard.listener is new
    assert old.fileno() == -1
    assert guard.status().port == new.getsockname()[1]


def test_nothing_changes_when_no_process_starts(guard: Guard) -> None:
    guard.start(0.0)
    listener = guard.listener
    guard.actions.broken = True
    with bind(0) as new, pytest.raises(OSError, match="no process"):
        guard.replace(1.0, new)
    assert (serving_pid(guard), guard.successor, guard.listener) == (101, None, listener)


def test_an_adopted_router_gives_its_address_free_first(guard: Guard) -> None:
    theirs = bind(0)
    port = theirs.getsockname()[1]
    guard.adopt(RouterRecord(7, "r7", "127.0.0.1", port), 0.0)
    assert guard.replace(1.0) is None
    assert guard.actions.signals == [(7, USR1)]
    guard.tick(1.1, 0.0)
    assert serving_pid(guard) is None
    theirs.close()
    for tenth in range(12, 20):
        guard.tick(tenth / 10, 0.0)
    assert (serving_pid(guard), guard.status().port) == (101, port)


def test_one_that_retired_under_an_earlier_supervisor_is_no_second_router(guard: Guard) -> None:
    guard.adopt(RouterRecord(7, "r7", "127.0.0.1", 1), 0.0)
    guard.adopt(RouterRecord(8, "r8", "127.0.0.1", 1, retiring=True), 0.0)
    assert guard.has_router(8)
    guard.hello(8, 1, 0.1)
    assert serving_pid(guard) == 7


def test_a_stop_ends_all_of_them(guard: Guard) -> None:
    guard.start(0.0)
    guard.replace(0.0)
    guard.hello(102, 1, 0.0)
    guard.replace(0.0)
    guard.actions.signals.clear()
    guard.stop(1.0, 10.0)
    assert sorted(guard.actions.signals) == [(101, TERM), (102, TERM), (103, TERM)]
    guard.actions.signals.clear()
    guard.tick(11.0, 0.0)
    assert sorted(guard.actions.signals) == [(101, KILL), (102, KILL), (103, KILL)]
    for pid in (101, 102, 103):
        guard.exited(pid, 11.1)
    assert not guard.running
    guard.tick(20.0, 0.0)
    assert not guard.running


def test_one_that_hangs_when_lmx_is_stopped_still_writes_its_stacks(guard: Guard) -> None:
    guard.start(0.0)
    guard.hello(101, 1, 0.0)
    guard.tick(16.0, 0.0)
    guard.stop(17.0, 12.0)
    for now_s in range(17, 30):
        guard.tick(float(now_s), 0.0)
    assert guard.actions.signals == [(101, number) for number in (USR2, CONT, TERM, QUIT, KILL)]


def test_a_second_replacement_retires_the_first_one(guard: Guard) -> None:
    guard.start(0.0)
    guard.replace(0.0)
    guard.replace(0.1)
    assert guard.actions.signals == [(102, USR1)]
    guard.hello(102, 1, 0.2)
    assert serving_pid(guard) == 101
    guard.hello(103, 1, 0.3)
    assert serving_pid(guard) == 103


async def test_two_restarts_that_cross_are_both_answered_by_the_router_that_serves(
    guard: Guard,
) -> None:
    guard.start(0.0)
    replies: asyncio.Queue[Any] = asyncio.Queue()
    handlers = Handlers(lambda _requester, message: replies.put_nowait(message))
    core: Any = SimpleNamespace(refuse_while_stopping=lambda: None, replacing=False)
    handlers.add(ServiceCommands(core, core, guard, core, core, core).handlers)
    for number in (1, 2):
        handlers.answer(Requester(b"cli", number), control.RestartRouter(), float(number))
        await asyncio.sleep(0)
        assert guard.newest == number + 1
    guard.exited(102, 3.0, 0)  # the first one was replaced before it served
    guard.beat(control.RouterBeat(101, 0, 0, 1, retired=True), 3.1)
    guard.hello(103, 8000, 3.2)
    served = [await asyncio.wait_for(replies.get(), 90) for _ in range(2)]
    assert served == [control.Done("a new router serves", 103)] * 2


def test_a_router_has_longer_for_its_start_than_for_a_beat(guard: Guard) -> None:
    guard.start(0.0)
    guard.tick(19.0, 0.0)
    assert guard.actions.signals == []
    guard.beat(control.RouterBeat(101, 0, 0, 1), 19.0)
    guard.tick(33.0, 0.0)
    assert guard.actions.signals == []
    guard.tick(34.1, 0.0)
    assert guard.actions.signals == [(101, USR2), (101, CONT)]


def test_a_router_that_hangs_ends_its_streams_writes_its_stacks_and_is_killed(guard: Guard) -> None:
    guard.start(0.0)
    guard.beat(control.RouterBeat(101, 0, 0, 1), 1.0)
    seen: list[tuple[int, int]] = []
    for now_s in range(30):
        before = len(guard.actions.signals)
        guard.tick(float(now_s), 0.0)
        seen += [(now_s, number) for _, number in guard.actions.signals[before:]]
    assert seen[:4] == [(17, USR2), (17, CONT), (20, QUIT), (23, KILL)]
    # It has none as long as it has said nothing.
    guard.exited(101, 30.0, -signal.SIGKILL)
    guard.tick(60.0, 0.0)
    guard.actions.signals.clear()
    guard.tick(90.0, 0.0)
    assert guard.actions.signals == [(102, QUIT)]


@pytest.mark.parametrize(("waits", "hangs_at_s"), [(1.0, None), (0.9, 124), (0.0, 16)])
def test_a_router_that_waits_for_a_processor_does_not_hang(
    guard: Guard, waits: float, hangs_at_s: int | None
) -> None:
    guard.actions.waits = waits
    guard.start(0.0)
    guard.beat(control.RouterBeat(101, 0, 0, 1), 0.0)
    hung_at_s = None
    for now_s in range(200):
        guard.tick(float(now_s), 0.0)
        if guard.actions.signals:
            hung_at_s = now_s
            break
    assert hung_at_s == hangs_at_s


def test_events_show_how_a_router_ended_and_that_the_next_one_serves(guard: Guard) -> None:
    guard.start(0.0)
    guard.hello(101, 4000, 1.0)
    guard.hello(101, 4000, 2.0)  # a supervisor asked it to identify itself
    guard.exited(101, 7.5, -signal.SIGSEGV)
    guard.tick(20.0, 0.0)
    guard.hello(102, 4000, 21.0)
    assert guard.actions.notes == ["router.started", "router.exited", "router.started"]
    assert guard.actions.details[0] == "it serves on port 4000"
    assert guard.actions.details[1] == "it was ended by SIGSEGV, 7.5 s since its start"


def test_the_age_of_an_adopted_router_is_not_known(guard: Guard) -> None:
    guard.adopt(RouterRecord(77, "r77", "127.0.0.1", 4000), 10.0)
    guard.hello(77, 4000, 10.5)
    guard.exited(77, 12.0)
    assert guard.actions.notes == ["router.exited"]
    assert guard.actions.details == [
        "its exit status is unknown, 2.0 s since this supervisor took it over"
    ]


def test_a_router_whose_start_took_long_is_not_hung_when_it_has_come(guard: Guard) -> None:
    guard.start(0.0)
    guard.tick(18.0, 0.0)
    pid = serving_pid(guard)
    assert pid is not None
    guard.hello(pid, 8000, 18.0)
    guard.tick(18.1, 0.0)
    assert guard.actions.signals == []
    guard.tick(18.0 + TIMING.beat_timeout_s + 0.1, 0.0)
    assert guard.actions.signals[0][0] == pid


# The configuration.


def change(guard: Guard, now_s: float, **sections: Any) -> None:
    written = {"server": LOCAL, "timing": TIMING.model_dump(), **sections}
    guard.settings.apply(Config.model_validate(written), now_s)


def test_only_a_change_that_needs_it_replaces_the_router(guard: Guard) -> None:
    guard.start(0.0)
    change(guard, 1.0, memory={"soft_line": 0.5})
    assert guard.successor is None
    change(guard, 2.0, server={**LOCAL, "max_requests": 7})
    assert guard.successor is not None
    assert guard.successor.port == guard.status().port, "on the socket that there is"


def test_another_address_is_bound_for_the_new_router(guard: Guard) -> None:
    guard.start(0.0)
    with bind(0) as unused:
        port = unused.getsockname()[1]
    change(guard, 1.0, server={**LOCAL, "port": port})
    assert guard.successor is not None
    assert guard.successor.port == port


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ports that were to be bound. Each gets a free one: another program may take any."""
    ports: list[int] = []

    def free(server: ServerConfig, last_port: int) -> socket.socket:
        ports.append(server.port or last_port)
        return bind(0)

    monkeypatch.setattr(listening, "bind", free)
    return ports


ELSEWHERE = 4321


@pytest.mark.parametrize("ended", [False, True])
def test_a_change_of_the_address_that_is_taken_back_leaves_the_router_where_it_is(
    guard: Guard, bound: list[int], ended: bool
) -> None:
    """Before the router on the other address serves, or after it has ended at its start."""
    guard.start(0.0)
    home = guard.status().port
    change(guard, 1.0, server={**LOCAL, "port": ELSEWHERE})
    assert guard.successor is not None
    assert (guard.successor.port == home, bound) == (False, [0, ELSEWHERE])
    if ended:
        guard.exited(guard.successor.pid, 1.5)
    change(guard, 2.0, server={**LOCAL, "port": home})
    assert guard.successor is not None
    assert guard.successor.port == home
    guard.hello(102, 1, 2.5)  # the first successor may still send its own
    guard.hello(103, guard.successor.port, 3.0)
    assert (serving_pid(guard), guard.status().port) == (103, home)
    assert guard.listener is not None
    assert guard.listener.getsockname()[1] == home


def test_a_change_that_is_taken_back_frees_the_address_of_an_adopted_router(
    guard: Guard, bound: list[int]
) -> None:
    home = 1234
    guard.adopt(RouterRecord(7, "r7", "127.0.0.1", home), 0.0)
    change(guard, 1.0, server={**LOCAL, "port": ELSEWHERE})
    change(guard, 2.0, server={**LOCAL, "port": home})
    assert guard.actions.signals == [(101, USR1), (7, USR1)]
    guard.tick(2.1, 0.0)
    assert (serving_pid(guard), bound) == (102, [ELSEWHERE, home])


@pytest.mark.parametrize("host", ["0.0.0.0", "localhost"])
def test_the_host_alone_can_not_be_changed_to_one_that_may_include_the_old_one(
    guard: Guard, host: str
) -> None:
    guard.start(0.0)
    server = {"host": host, "port": guard.status().port, "allow_lan_without_key": True}
    with pytest.raises(OperationError, match="lmx itself has the port, on 127"):
        change(guard, 1.0, server=server)
    assert guard.successor is None


def test_what_has_the_port_on_another_single_address_is_another_program(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: Any) -> socket.socket:
        raise OSError(errno.EADDRINUSE, "in use")

    guard.start(0.0)
    monkeypatch.setattr(listening, "bind", refuse)
    server = {**LOCAL, "host": "127.0.0.2", "port": guard.status().port}
    with pytest.raises(OperationError, match="another program listens there"):
        change(guard, 1.0, server=server)


def test_a_change_that_the_router_cannot_follow_is_not_in_effect(guard: Guard) -> None:
    guard.start(0.0)
    before = guard.settings.current
    with bind(0) as taken, pytest.raises(OperationError, match="can't listen"):
        change(guard, 1.0, server={**LOCAL, "port": taken.getsockname()[1]})
    guard.actions.broken = True
    with pytest.raises(OperationError, match="can't start a new router: no process"):
        change(guard, 1.0, server={**LOCAL, "max_requests": 7})
    assert guard.settings.current is before
    assert (guard.successor, serving_pid(guard)) == (None, 101)


def test_a_router_has_the_grace_that_it_was_started_with(guard: Guard) -> None:
    guard.start(0.0)
    change(guard, 1.0, timing={**TIMING.model_dump(), "shutdown_grace_s": 25})
    assert guard.process is not None
    assert guard.successor is not None
    assert guard.process.shutdown_grace_s == 10
    assert guard.successor.shutdown_grace_s == 25

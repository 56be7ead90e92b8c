"""The routers as one pure function: ``step(routers, event, timing, now_s) -> (routers, effects)``.

One router serves. Its successor was started to replace it, and has not sent its RouterHello yet.
Routers that were replaced finish their requests. Effects are values that the caller carries out, in
their order. The table has a row for each event and in it a column for each state: nothing is left
out. What can't happen is ``never``: it raises :class:`LifecycleError`.
"""

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any, Final

from lmx.protocol.host.stacks import STACKS
from lmx.protocol.messages.control import RouterBeat
from lmx.protocol.states import ExitCause
from lmx.supervisor.config.schema import TimingConfig
from lmx.supervisor.config.shutdown_timeout import ROUTER_EXIT_S
from lmx.supervisor.decisions import restart
from lmx.supervisor.decisions.exit_cause import router_end
from lmx.supervisor.decisions.lifecycle import LifecycleError
from lmx.supervisor.state.process_records import RouterRecord

_POLICY: Final = restart.RestartPolicy(
    base_s=0.1, max_s=5.0, stable_after_s=10.0, max_failures=1_000_000, window_s=60.0
)
"""The supervisor never gives a router up: without it nobody is served, and a try costs little."""

_BIND_AGAIN_S: Final = 0.1
_START_AGAIN_S: Final = 1.0
_KILL_AGAIN_S: Final = 1.0

_HANG_NOTICE_S: Final = 3.0
"""How long a router that hangs has to notify its clients. One of its threads may still be alive."""

_LATE_SHARE: Final = 0.25
_NO_BEAT: Final = RouterBeat(0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Router:
    """One router process. Times are monotonic seconds."""

    record: RouterRecord
    started_s: float
    beat_at_s: float
    """When its last heartbeat came. Before the first, when it was started or adopted."""
    port: int
    """0 until the router has said its port."""
    shutdown_grace_s: float
    """For how long its requests may continue after SIGTERM, as its spec says."""
    has_reported: bool
    """Whether it has sent anything. From then on the supervisor waits for its heartbeats, and
    before that for its start."""
    number: int = 0
    """Its number among the routers that this supervisor started, from 1; 0 for an adopted one."""
    beat: RouterBeat = _NO_BEAT
    """The figures of its last heartbeat."""
    signals: tuple[tuple[float, signal.Signals], ...] = ()
    """The signals that are still to be sent, each with its time. The last one is SIGKILL."""

    @property
    def pid(self) -> int:
        return self.record.pid

    @property
    def adopted(self) -> bool:
        """Whether an earlier supervisor started it."""
        return self.number == 0


class State(Enum):
    """What the routers are together."""

    DOWN = auto()
    """None serves, and one is started when it is time."""
    SERVING = auto()
    REPLACING = auto()
    """One serves, and its successor starts."""
    STOPPING = auto()
    """lmx is being stopped, and all of them end."""


@dataclass(frozen=True, slots=True)
class Routers:
    """All routers whose end was not observed yet, and what is planned."""

    serving: Router | None = None
    successor: Router | None = None
    retiring: tuple[Router, ...] = ()
    stopping: bool = False
    retry_at_s: float | None = None
    """When the next router is started; None if that is not planned."""
    failures: restart.FailureRecord = field(default_factory=restart.FailureRecord)
    started: int = 0
    """How many were started."""
    restarts: int = 0
    """How often one that served has ended by itself."""
    ended_requests_total: int = 0
    """The requests that routers which have ended had answered."""

    @property
    def state(self) -> State:
        if self.stopping:
            return State.STOPPING
        if self.serving is None:
            return State.DOWN
        return State.SERVING if self.successor is None else State.REPLACING

    @property
    def chief(self) -> tuple[Router, ...]:
        """The one that serves and its successor, as far as they exist."""
        return tuple(each for each in (self.serving, self.successor) if each is not None)

    @property
    def all(self) -> tuple[Router, ...]:
        """All of them."""
        return (*self.chief, *self.retiring)


# Events.


@dataclass(frozen=True, slots=True)
class Started:
    """A router was started, to serve or to replace the one that serves."""

    record: RouterRecord


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The router whose time had come could not be started."""


@dataclass(frozen=True, slots=True)
class AddressNeeded:
    """Only the router that serves has the listening socket: it must free the address before another
    one can be started."""


@dataclass(frozen=True, slots=True)
class Adopted:
    """A router that an earlier supervisor started is taken over. Its record says whether it was
    being replaced, or was to replace another one."""

    record: RouterRecord


@dataclass(frozen=True, slots=True)
class Hello:
    """A router has sent its RouterHello."""

    pid: int
    port: int


@dataclass(frozen=True, slots=True)
class Exited:
    """The end of a router was observed."""

    pid: int
    status: int | None = None
    """As in ``Popen.returncode``; None if it can't be known."""
    jitter: float = 0.0
    """A uniform random number in [0, 1), for the wait before the next start."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""

    paused_s: float = 0.0
    """How long the supervisor's process itself was not running."""
    waited_s: Mapping[int, float] = field(default_factory=dict)
    """How much of the time the routers that are late waited for a processor, by their pids."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """lmx is being stopped. SIGTERM lets streams finish, SIGKILL follows after ``grace_s``."""

    grace_s: float


# Effects.


@dataclass(frozen=True, slots=True)
class Signal:
    """Send a signal to a router."""

    pid: int
    number: signal.Signals


@dataclass(frozen=True, slots=True)
class Note:
    """Keep an event for people."""

    name: str
    detail: str
    pid: int


@dataclass(frozen=True, slots=True)
class TakeAddress:
    """The router that serves has a listening socket of its own, if the address has changed."""


@dataclass(frozen=True, slots=True)
class StartRouter:
    """Start a router. The event ``Started`` or ``StartFailed`` follows."""


Effects = tuple[Signal | Note | TakeAddress | StartRouter, ...]
Result = tuple[Routers, Effects]
Handler = Callable[[Routers, Any, TimingConfig, float], Result]


def step(routers: Routers, event: Any, timing: TimingConfig, now_s: float) -> Result:
    """Return the routers after ``event``, and what must be done about it. Raises
    :class:`LifecycleError` for what can't happen in their state."""
    return TABLE[type(event)][COLUMNS.index(routers.state)](routers, event, timing, now_s)


def is_late(router: Router, timing: TimingConfig, now_s: float) -> bool:
    """Return whether a quarter of the time is over after which a router hangs. From then on it
    counts for how long it waits for a processor: one that waits is slow, and does not hang."""
    return now_s - router.beat_at_s > _LATE_SHARE * _limit_s(router, timing)


def quiet_until_s(routers: Routers, timing: TimingConfig, now_s: float) -> float | None:
    """Return until when time alone changes nothing about the routers: until the silence of the one
    that serves counts as late. Returns None if that may be at any moment."""
    router = routers.serving
    alone = router is not None and routers.all == (router,) and not routers.stopping
    if router is None or not alone or not router.has_reported or router.signals:
        return None
    late_at_s = router.beat_at_s + _LATE_SHARE * timing.beat_timeout_s
    return None if late_at_s <= now_s else late_at_s


def _limit_s(router: Router, timing: TimingConfig) -> float:
    return timing.beat_timeout_s if router.has_reported else timing.start_timeout_s


def _made(record: RouterRecord, timing: TimingConfig, now_s: float, number: int = 0) -> Router:
    grace_s = timing.shutdown_grace_s
    return Router(record, now_s, now_s, record.port, grace_s, number == 0, number)


def _each(routers: Routers, change: Callable[[Router], tuple[Router, Effects]]) -> Result:
    """Return the routers, each changed, and the effects of all changes."""
    made = {router.pid: change(router) for router in routers.all}
    after = replace(
        routers,
        serving=routers.serving and made[routers.serving.pid][0],
        successor=routers.successor and made[routers.successor.pid][0],
        retiring=tuple(made[router.pid][0] for router in routers.retiring),
    )
    return after, tuple(effect for _, effects in made.values() for effect in effects)


def _send_due(router: Router, now_s: float) -> tuple[Router, Effects]:
    """Send the signals that are due. SIGKILL is sent again each second."""
    due = [number for at_s, number in router.signals if now_s >= at_s]
    left = router.signals[len(due) :]
    if due and not left:
        left = ((now_s + _KILL_AGAIN_S, signal.SIGKILL),)
    return replace(router, signals=left), tuple(Signal(router.pid, number) for number in due)


def _retire(routers: Routers, router: Router, timing: TimingConfig, now_s: float) -> Result:
    """Let a router finish its requests. One that is being ended already gets no new plan.

    After SIGUSR1 it accepts no more connections and ends with its last request. After SIGTERM the
    requests that are left get ``shutdown_grace_s`` and then an error event. SIGTERM is sent so
    early that this error comes when ``drain_timeout_s`` is over. SIGKILL is for a router that did
    not end by itself.
    """
    if not router.signals:
        term_at_s = now_s + max(0.0, timing.drain_timeout_s - router.shutdown_grace_s)
        kill_at_s = term_at_s + router.shutdown_grace_s + ROUTER_EXIT_S
        plan = (now_s, signal.SIGUSR1), (term_at_s, signal.SIGTERM), (kill_at_s, signal.SIGKILL)
        router = replace(router, signals=plan)
    router, effects = _send_due(router, now_s)
    return replace(routers, retiring=(*routers.retiring, router)), effects


# The handlers.


def never(routers: Routers, event: Any, _timing: TimingConfig, _now_s: float) -> Result:
    """The event can't happen in this state. That is a bug."""
    raise LifecycleError(f"the routers got {event} while {routers.state.name}: {routers}")


def late(routers: Routers, _event: Any, _timing: TimingConfig, _now_s: float) -> Result:
    """The event comes too late to matter."""
    return routers, ()


def serve(routers: Routers, event: Started, timing: TimingConfig, now_s: float) -> Result:
    """The router serves from its start, because there is no other."""
    number = routers.started + 1
    router = _made(event.record, timing, now_s, number)
    return replace(routers, serving=router, started=number, retry_at_s=None), (TakeAddress(),)


def replace_serving(routers: Routers, event: Started, timing: TimingConfig, now_s: float) -> Result:
    """The router takes over when it sends its RouterHello. A successor that has not done so yet
    retires."""
    number = routers.started + 1
    router = _made(event.record, timing, now_s, number)
    before, routers = routers.successor, replace(routers, successor=router, started=number)
    return (routers, ()) if before is None else _retire(routers, before, timing, now_s)


def try_later(routers: Routers, _event: Any, _timing: TimingConfig, now_s: float) -> Result:
    """A router that retires frees the address in a moment."""
    pause_s = _BIND_AGAIN_S if routers.retiring else _START_AGAIN_S
    return replace(routers, retry_at_s=now_s + pause_s), ()


def start_now(routers: Routers, _event: Any, _timing: TimingConfig, now_s: float) -> Result:
    """The address is free already."""
    return replace(routers, retry_at_s=now_s), ()


def free_address(routers: Routers, _event: Any, timing: TimingConfig, now_s: float) -> Result:
    """The router that serves retires, and the next tick starts another one."""
    assert routers.serving is not None
    after = replace(routers, serving=None, retry_at_s=now_s)
    return _retire(after, routers.serving, timing, now_s)


def free_address_instead(
    routers: Routers, event: Any, timing: TimingConfig, now_s: float
) -> Result:
    """The successor retires, which was to serve elsewhere, and the router that serves too."""
    assert routers.successor is not None
    after = replace(routers, successor=None)
    after, effects = _retire(after, routers.successor, timing, now_s)
    after, freed = free_address(after, event, timing, now_s)
    return after, (*effects, *freed)


def adopt(routers: Routers, event: Adopted, timing: TimingConfig, now_s: float) -> Result:
    """The router serves, unless it was being replaced."""
    if event.record.retiring:
        return adopt_another(routers, event, timing, now_s)
    router = _made(event.record, timing, now_s)
    return replace(routers, serving=router, retry_at_s=None), (TakeAddress(),)


def adopt_another(routers: Routers, event: Adopted, timing: TimingConfig, now_s: float) -> Result:
    """The router finishes its requests."""
    return _retire(routers, _made(event.record, timing, now_s), timing, now_s)


def beat(routers: Routers, event: RouterBeat, _timing: TimingConfig, now_s: float) -> Result:
    """The router runs."""

    def beaten(router: Router) -> tuple[Router, Effects]:
        if router.pid != event.pid:
            return router, ()
        return replace(router, beat_at_s=now_s, has_reported=True, beat=event), ()

    return _each(routers, beaten)


def greet(routers: Routers, event: Hello, _timing: TimingConfig, now_s: float) -> Result:
    """Its heartbeats are expected from now on, however long its start took."""
    router = routers.serving
    if router is None or router.pid != event.pid:
        return routers, ()
    started = Note("router.started", f"it serves on port {event.port}", event.pid)
    effects = () if router.has_reported else (started,)
    router = replace(router, beat_at_s=now_s, port=event.port, has_reported=True)
    return replace(routers, serving=router), effects


def take_over(routers: Routers, event: Hello, timing: TimingConfig, now_s: float) -> Result:
    """The successor serves from now on."""
    if routers.successor is None or routers.successor.pid != event.pid:
        return greet(routers, event, timing, now_s)
    router = replace(routers.successor, beat_at_s=now_s, port=event.port, has_reported=True)
    return _promote(replace(routers, successor=router), timing, now_s)


def _promote(routers: Routers, timing: TimingConfig, now_s: float) -> Result:
    """Let the successor serve, and the router before it finish its requests."""
    old, new = routers.serving, routers.successor
    assert new is not None
    routers = replace(routers, serving=new, successor=None)
    if old is None:
        return routers, (TakeAddress(),)
    routers, effects = _retire(routers, old, timing, now_s)
    note = Note("router.restarted", f"it took over from {old.pid}", new.pid)
    return routers, (TakeAddress(), *effects, note)


def forget(routers: Routers, event: Exited, _timing: TimingConfig, _now_s: float) -> Result:
    """The router has ended, as it was meant to."""

    def left(router: Router | None) -> Router | None:
        return None if router is not None and router.pid == event.pid else router

    served = sum(one.beat.requests_total for one in routers.all if one.pid == event.pid)
    after = replace(
        routers,
        serving=left(routers.serving),
        successor=left(routers.successor),
        retiring=tuple(one for one in routers.retiring if one.pid != event.pid),
        ended_requests_total=routers.ended_requests_total + served,
    )
    return after, ()


def exited(routers: Routers, event: Exited, timing: TimingConfig, now_s: float) -> Result:
    """If it was the one that served, its successor serves, or another one is started. If it was the
    successor, nothing changes."""
    router = next((one for one in routers.chief if one.pid == event.pid), None)
    after, _ = forget(routers, event, timing, now_s)
    if router is None:
        return after, ()
    if router is routers.successor:
        detail = "the new router ended at its start"
        return after, (Note("router.not_replaced", detail, event.pid),)
    lived_s = now_s - router.started_s
    failures, decision = restart.after_exit(
        after.failures, ExitCause.CRASH, wanted=True, was_ready_for_s=lived_s, now_s=now_s,
        jitter=event.jitter, policy=_POLICY,
    )  # fmt: skip
    after = replace(after, failures=failures, restarts=after.restarts + 1)
    # Nobody knows when an earlier supervisor started an adopted router.
    since = "since this supervisor took it over" if router.adopted else "since its start"
    detail = f"{router_end(event.status)}, {lived_s:.1f} s {since}"
    note = Note("router.exited", detail, event.pid)
    if after.successor is not None:
        after, effects = _promote(after, timing, now_s)
        return after, (note, *effects)
    wait_s = decision.wait_s if isinstance(decision, restart.StartAgain) else _POLICY.max_s
    return replace(after, retry_at_s=now_s + wait_s), (note,)


def tick(routers: Routers, event: Tick, timing: TimingConfig, now_s: float) -> Result:
    """Send the signals that are due. A router that sends nothing for too long hangs: it gets
    SIGUSR2, by which it notifies its clients if it can, then SIGQUIT, by which it writes its
    stacks, and at last SIGKILL."""

    def checked(router: Router) -> tuple[Router, Effects]:
        moved_s = max(event.paused_s, event.waited_s.get(router.pid, 0.0))
        # After a pause each signal has its distance from the one before it as ever.
        signals = tuple((at_s + event.paused_s, number) for at_s, number in router.signals)
        router = replace(router, beat_at_s=router.beat_at_s + moved_s, signals=signals)
        silent_s = now_s - router.beat_at_s
        effects: Effects = ()
        if not router.signals and silent_s > _limit_s(router, timing):
            router, effects = _hung(router, silent_s, timing, now_s)
        router, due = _send_due(router, now_s)
        return router, (*effects, *due)

    return _each(routers, checked)


def _hung(
    router: Router, silent_s: float, timing: TimingConfig, now_s: float
) -> tuple[Router, Effects]:
    effects: Effects = (
        Note("router.unresponsive", f"it has sent nothing for {silent_s:.1f} s", router.pid),
    )
    stacks_at_s = now_s
    if router.has_reported:
        # A router that was stopped (SIGSTOP) reacts to no other signal. One that has sent nothing
        # yet has no clients either.
        numbers = (signal.SIGUSR2, signal.SIGCONT)
        effects = (*effects, *(Signal(router.pid, number) for number in numbers))
        stacks_at_s += _HANG_NOTICE_S
    kill_at_s = stacks_at_s + timing.abort_grace_s
    plan = ((stacks_at_s, STACKS), (kill_at_s, signal.SIGKILL))
    return replace(router, signals=plan), effects


def tick_down(routers: Routers, event: Tick, timing: TimingConfig, now_s: float) -> Result:
    """Start the router that is planned."""
    after, effects = tick(routers, event, timing, now_s)
    if after.retry_at_s is None or now_s < after.retry_at_s:
        return after, effects
    return replace(after, retry_at_s=None), (*effects, StartRouter())


def stop(routers: Routers, event: Stopped, _timing: TimingConfig, now_s: float) -> Result:
    """All of them end. One that hangs still writes its stacks."""
    number = signal.SIGTERM if event.grace_s > 0 else signal.SIGKILL
    kill_at_s = now_s + event.grace_s

    def ended(router: Router) -> tuple[Router, Effects]:
        stacks = tuple(one for one in router.signals if one[1] == STACKS and one[0] < kill_at_s)
        plan = (*stacks, (kill_at_s, signal.SIGKILL))
        return replace(router, signals=plan), (Signal(router.pid, number),)

    return _each(replace(routers, stopping=True, retry_at_s=None), ended)


# fmt: off
COLUMNS: Final = (State.DOWN, State.SERVING, State.REPLACING, State.STOPPING)

TABLE: Final[dict[type, tuple[Handler, Handler, Handler, Handler]]] = {
    Started: (serve, replace_serving, replace_serving, never),
    StartFailed: (try_later, never, never, never),
    AddressNeeded: (start_now, free_address, free_address_instead, never),
    Adopted: (adopt, adopt_another, adopt_another, never),
    Hello: (late, greet, take_over, late),
    RouterBeat: (beat, beat, beat, beat),
    Exited: (forget, exited, exited, forget),
    Tick: (tick_down, tick, tick, tick),
    Stopped: (stop, stop, stop, stop),
}
# fmt: on

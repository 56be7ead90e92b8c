"""What passes from one program of the supervisor to the next: options, records, lock, children."""

import asyncio
import fcntl
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.host.processor_wait import ProcessorWait
from lmx.protocol.messages import control
from lmx.protocol.messages.control import Drain
from lmx.supervisor.cli.main import main, up
from lmx.supervisor.config.schema import Config, ServerConfig, TimingConfig
from lmx.supervisor.config.shutdown_timeout import stop_bound_s
from lmx.supervisor.control.handlers import Handlers
from lmx.supervisor.control.service import ServiceCommands
from lmx.supervisor.processes.exit_watch import ExitWatch
from lmx.supervisor.processes.handover import Handover, Invocation, leave, resume, unload_leaving
from lmx.supervisor.sockets import listening
from lmx.supervisor.state.process_records import Records, RouterRecord, SupervisorLock
from tests.support.rigs.core_rig import REQUESTER, CoreRig

HANDOVER = Handover(7, 8, ("a", "b/c"), ("d",), (("e+=f", 8192), ("g", None)), ("h",))


def invocation(tmp_path: Path, text: str) -> Invocation:
    path = tmp_path / "lmx.yaml"
    path.write_text(text)
    return Invocation(path, True, Config, HANDOVER)


def test_the_next_program_understands_what_it_receives(tmp_path: Path) -> None:
    arguments = invocation(tmp_path, "").arguments(HANDOVER)
    assert arguments[:5] == [sys.executable, "-P", "-m", "lmx.supervisor", "up"]
    # Without its parent click would keep for good that the command has no -h.
    parent = main.make_context("lmx", arguments[4:])
    reported = up.make_context("up", arguments[5:], parent=parent).params
    assert reported == {
        "config": tmp_path / "lmx.yaml",
        "take_over": None,
        "detached": True,
        "background": False,
        "requester_id": None,
        "because": "",
        "lock_fd": 7,
        "listen_fd": 8,
        "down": ("a", "b/c", "+e+=f=8192", "+g=", "~h"),
        "held": ("d",),
    }
    assert Handover.of(7, 8, reported["down"], reported["held"]) == HANDOVER


async def test_a_program_that_refuses_the_configuration_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmx.supervisor.processes.handover._CHECK_S", 300.0)
    monkeypatch.setattr("lmx.supervisor.processes.handover._LONGEST_CHECK_S", 300.0)
    await invocation(tmp_path, "server: {port: 8123}").check_successor()
    with pytest.raises(OperationError, match=r"server\.port"):
        await invocation(tmp_path, "server: {port: nine}").check_successor()
    # On a busy machine it takes as long as it waits for a processor.
    monkeypatch.setattr("lmx.supervisor.processes.handover._CHECK_S", 0.01)
    with pytest.raises(OperationError, match="did not read the configuration"):
        await invocation(tmp_path, "server: {port: 8123}").check_successor()
    monkeypatch.setattr(ProcessorWait, "more_s", lambda _: 1.0)
    await invocation(tmp_path, "server: {port: 8123}").check_successor()


def test_what_was_on_its_way_continues_pinned_models_first() -> None:
    rig = CoreRig({"a": 700, "b": 700, "c": 100, "d": 100}, models={"b": {"pinned": True}})
    resume(Handover(7, down=("c",), held=("d", "gone", "*")), rig.core, 1.0)
    assert rig.core.drained
    assert [rig.state(name) for name in "abcd"] == ["cold", "starting", "cold", "held"]


@pytest.mark.parametrize("unloaded", [True, False])
def test_a_model_that_was_unloaded_in_the_midst_of_a_handover_stays_down(unloaded: bool) -> None:
    """The handover waits for the ends of fetches, and commands come meanwhile."""
    before = CoreRig({"a": 100}, up="a")
    if unloaded:
        before.operate(control.UnloadModel("a"))
    worker = before.worker("a")
    handover = leave(before.core, 7, None)
    after = CoreRig({"a": 100}, models={"a": {"preload": True}})
    assert after.core.adopt(worker.instance, "a", worker.pid, 100, 0.0)
    unload_leaving(handover, after.core, 0.0)
    resume(handover, after.core, 0.0)
    assert (Drain(if_idle=False) in after.sent("a")) is unloaded
    after.exits("a")
    # One that nobody has unloaded is started again.
    assert after.state("a") == ("cold" if unloaded else "backoff")


def test_a_load_that_was_ordered_survives_a_handover() -> None:
    """Whether it waits for memory, is being fetched, or is tried again after a failure."""
    needs = {"big": 700, "waits": 400, "hub": 50, "fails": 50, "asked": 400, "none": 50, "set": 50}
    quiet: dict[str, dict[str, Any]] = {name: {"preload": False} for name in needs}
    configured = {"context_length": 8192}  # it holds as it is when the next program reads it
    before = CoreRig(needs, models=quiet | {"hub": quiet["hub"] | configured}, up=("big",))
    before.beat("big", rows=1)
    before.actions.remote.add("hub")
    before.operate(control.LoadModel("waits", 4096))
    before.at(1.0)
    before.operate(control.LoadModel("hub"))
    before.ask("asked")
    before.actions.spawn_error = OSError(11, "no more processes")
    before.operate(control.LoadModel("fails"))
    before.operate(control.LoadModel("set", 2048))
    states = ["queued", "fetching", "backoff", "queued"]
    assert [before.state(name) for name in ("waits", "hub", "fails", "asked")] == states
    handover = leave(before.core, 7, None)
    assert handover.ordered == (("waits", 4096), ("hub", None), ("set", 2048))
    assert handover.retried == ("fails",)
    after = CoreRig(needs, models=quiet)
    after.actions.remote.add("hub")
    big = before.worker("big")
    assert after.core.adopt(big.instance, "big", big.pid, 700, 0.0)
    resume(handover, after.core, 0.0)
    states = ["queued", "fetching", "starting", "cold", "cold"]
    assert [after.state(name) for name in ("waits", "hub", "fails", "asked", "none")] == states
    assert after.slot("waits").model.context_length == 4096
    assert after.slot("waits").life.demand.ordered_at_s is not None
    assert (after.state("set"), after.slot("set").model.context_length) == ("starting", 2048)


def test_a_model_that_is_tried_again_evicts_no_other_after_a_handover() -> None:
    needs = {"idle": 600, "fails": 600}
    before = CoreRig(needs)
    before.actions.spawn_error = OSError(11, "no more processes")
    before.ask("fails")
    handover = leave(before.core, 7, None)
    assert (handover.ordered, handover.retried) == ((), ("fails",))
    after = CoreRig(needs, models={"fails": {"preload": False}}, up=("idle",))
    after.at(1000.0)
    resume(handover, after.core, 1000.0)
    assert [after.state(name) for name in needs] == ["ready", "cold"]


def test_no_order_is_given_twice() -> None:
    """A worker of an ordered model may be adopted, and a program that knows no orders leaves
    them alone."""
    rig = CoreRig({"x": 100, "held": 100})
    rig.operate(control.DrainModel("held"))
    assert rig.core.adopt("1", "x", 1, 100, 0.0)
    resume(Handover(7, ordered=(("x", 4096), ("held", None), ("gone", None))), rig.core, 0.0)
    assert rig.slot("x").model.context_length is None
    assert rig.sent("x") == []
    assert rig.state("held") == "held"
    rig = CoreRig({"x": 100}, models={"x": {"preload": False}})
    old = Handover(7, down=("+x=",))
    unload_leaving(old, rig.core, 0.0)
    resume(old, rig.core, 0.0)
    assert rig.state("x") == "cold"


class Restarting:
    """All that the questions to restart the supervisor and to reload its configuration need, and
    nothing of it real. A reload replaces the router."""

    def __init__(self) -> None:
        self.rig = CoreRig({"a": 100})
        self.guard = SimpleNamespace(process=None, successor=None, settled=False)
        self.replaced = 0
        self.replacing = False
        self.replies: asyncio.Queue[Any] = asyncio.Queue()
        parts: list[Any] = [self, self.rig.core, self.guard, None, self, self]
        self.commands = Handlers(lambda _requester, message: self.replies.put_nowait(message))
        self.commands.add(ServiceCommands(*parts).handlers)

    def replace(self) -> None:
        self.replaced += 1

    def differs(self) -> tuple[str, ...]:
        return ()

    async def check_successor(self) -> None:
        await asyncio.sleep(0)

    def reload(self, _why: str, _now_s: float) -> control.Reloaded:
        self.guard.successor = SimpleNamespace(pid=7, number=2)
        self.guard.newest = 2
        return control.Reloaded(("security",), ("keys",))

    async def ask(self, question: Any = None) -> Any:
        self.commands.answer(REQUESTER, question or control.RestartSupervisor(), 0.0)
        return await asyncio.wait_for(self.replies.get(), 90)


async def test_the_supervisor_is_not_replaced_in_the_middle_of_a_change() -> None:
    """The next one would not know of it: it takes a new router for an old one, and starts models
    again that are on their way out."""
    restarting = Restarting()
    restarting.guard.successor = object()
    assert "router is starting" in (await restarting.ask()).message
    restarting.guard.successor = None
    restarting.rig.up("a")
    restarting.rig.operate(control.UnloadModel("a"))
    assert "a is being unloaded" in (await restarting.ask()).message
    restarting.rig.drains("a")
    assert restarting.replaced == 0
    assert isinstance(await restarting.ask(), control.Done)
    assert restarting.replaced == 1


@pytest.mark.parametrize("question", [control.ReloadConfig(), control.RestartRouter()])
async def test_no_router_is_started_once_the_supervisor_is_being_replaced(question: Any) -> None:
    """The next one would take it for an old one, and keep the router with the old settings."""
    restarting = Restarting()
    restarting.replacing = True
    answer = await restarting.ask(question)
    assert (answer.code, answer.retry_after_s) == (ErrorCode.SHUTTING_DOWN, 1.0)


def test_a_lock_that_was_handed_over_is_held_all_along(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = SupervisorLock(path)
    first.acquire()
    second = SupervisorLock(path)
    second.acquire(os.dup(first.descriptor))
    os.close(first.descriptor)
    assert not os.get_inheritable(second.descriptor)
    with path.open() as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with pytest.raises(OperationError, match=f"pid {os.getpid()}"):
        SupervisorLock(path).acquire()
    os.close(second.descriptor)


def test_an_inherited_socket_must_listen_where_it_is_configured() -> None:
    bound = listening.bind(ServerConfig(port=0), 0)
    port = bound.getsockname()[1]
    kept = listening.inherited(bound.detach(), ServerConfig(port=port))
    assert kept is not None
    assert kept.getsockname()[1] == port
    assert listening.inherited(kept.detach(), ServerConfig(port=1)) is None
    with socket.socket() as free:
        free.bind(("127.0.0.1", port))


def test_a_mac_shares_no_port_with_another_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would let lmx take 127.0.0.1:8000 from a program that listens on all addresses."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert listening._answers("127.0.0.1", port)
        assert listening._answers("0.0.0.0", port)
    monkeypatch.setattr(sys, "platform", "darwin")
    listening.bind(ServerConfig(port=port), 0).close()
    monkeypatch.setattr(listening, "_answers", lambda host, port: True)
    with pytest.raises(OSError, match="in use"):
        listening.bind(ServerConfig(port=port), 0)
    listening.bind(ServerConfig(port=0), 0).close()


def test_records_of_all_routers_are_one_file(tmp_path: Path) -> None:
    records = Records(tmp_path)
    assert records.routers() == []
    serving = RouterRecord(1, "a", "127.0.0.1", 8000)
    old = RouterRecord(2, "b", "127.0.0.1", 8000).as_retiring()
    records.save_routers([serving, old])
    assert records.routers() == [serving, old]
    (tmp_path / "router.json").write_text('{"pid": 1}')
    assert records.routers() == []
    assert not (tmp_path / "router.json").exists()
    records.save_routers([serving])
    records.save_routers([])
    assert not (tmp_path / "router.json").exists()


def test_a_record_that_can_not_be_removed_is_no_reason_to_fall(tmp_path: Path) -> None:
    """The core forgets a worker in the middle of what follows from its exit."""
    records = Records(tmp_path)
    (tmp_path / "workers" / "i1.json").mkdir(parents=True)
    (tmp_path / "router.json").mkdir()
    records.forget_worker("i1")
    records.save_routers([])


async def test_a_child_of_an_earlier_program_is_reaped_with_its_status() -> None:
    watch = ExitWatch(asyncio.get_running_loop())
    # Without its Popen: this program did not start it.
    pid = os.posix_spawn("/bin/sleep", ["sleep", "60"], os.environ)
    ended: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
    watch.watch(pid, None, ended.set_result)
    os.kill(pid, signal.SIGTERM)
    assert await asyncio.wait_for(ended, 90) == -signal.SIGTERM
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    watch.close()


def test_children_that_ended_unseen_leave_no_zombie() -> None:
    code = (
        "import os, subprocess, time\n"
        "from lmx.supervisor.processes.exit_watch import reap_children\n"
        "ended = os.posix_spawn('/bin/sleep', ['sleep', '0'], os.environ)\n"
        "lives = os.posix_spawn('/bin/sleep', ['sleep', '600'], os.environ)\n"
        "for _ in range(9000):\n"
        "    reap_children()\n"
        "    try:\n"
        "        os.kill(ended, 0)\n"
        "    except ProcessLookupError:\n"
        "        print('reaped', os.waitpid(lives, os.WNOHANG)[0])\n"
        "        break\n"
        "    time.sleep(0.01)\n"
        "os.kill(lives, 9)\n"
        "os.waitpid(lives, 0)\n"
        "reap_children()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["reaped", "0"]


def test_a_stop_is_bounded_by_its_graces() -> None:
    short = TimingConfig(shutdown_grace_s=1, term_grace_s=1, abort_grace_s=1)
    assert stop_bound_s(short, "linux") < stop_bound_s(TimingConfig(), "linux") <= 35
    assert stop_bound_s(TimingConfig(), "darwin") == stop_bound_s(TimingConfig(), "linux") + 10
    for platform in ("linux", "darwin"):
        assert stop_bound_s(TimingConfig(term_grace_s=60), platform) > 60


async def test_a_reload_is_answered_once_the_router_with_its_keys_serves() -> None:
    restarting = Restarting()
    guard = restarting.guard
    guard.process = SimpleNamespace(pid=1, number=1)
    restarting.commands.answer(REQUESTER, control.ReloadConfig(), 0.0)
    await asyncio.sleep(0.1)
    assert restarting.replies.empty()
    guard.process, guard.successor = guard.successor, None
    await asyncio.sleep(0.1)
    assert restarting.replies.empty(), "the router before it still takes requests"
    guard.settled = True
    assert await asyncio.wait_for(restarting.replies.get(), 90) == control.Reloaded(
        ("security",), ("keys",)
    )


async def test_a_reload_whose_router_ends_at_its_start_is_an_error() -> None:
    restarting = Restarting()
    guard = restarting.guard
    guard.process = SimpleNamespace(pid=1, number=1)
    restarting.commands.answer(REQUESTER, control.ReloadConfig(), 0.0)
    guard.successor = None
    reply = await asyncio.wait_for(restarting.replies.get(), 90)
    assert "the old one still serves" in reply.message

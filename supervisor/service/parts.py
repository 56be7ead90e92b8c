"""The parts of a running supervisor, and how they are put together."""

import asyncio
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

import structlog

from lmx.protocol.host.lasting import in_daemon_thread
from lmx.protocol.messages.control import Acquire
from lmx.protocol.messages.counts import ReportCounts
from lmx.protocol.messages.pairing import Machine
from lmx.protocol.messages.peers import GetPeers, PutPeer, RemovePeer
from lmx.protocol.states import WorkerState
from lmx.protocol.wire.endpoints import new_epoch
from lmx.supervisor.config.schema import Config, LogConfig
from lmx.supervisor.config.settings import Change, Settings
from lmx.supervisor.control.following import RouterFollowers
from lmx.supervisor.control.handlers import Handler, Handlers
from lmx.supervisor.control.inventory import added_handlers, disk_handlers
from lmx.supervisor.control.keys import KeyCommands
from lmx.supervisor.control.loading import Loading
from lmx.supervisor.control.models import ModelCommands
from lmx.supervisor.control.pairing import PairingCommands
from lmx.supervisor.control.planning import Planning, Previews
from lmx.supervisor.control.reload import Reloader, report_routing_gaps
from lmx.supervisor.control.remote_ranks import RemoteRanks
from lmx.supervisor.control.service import ServiceActions, ServiceCommands
from lmx.supervisor.core.core import Core
from lmx.supervisor.decisions.ledger import Ledger, budget_bytes
from lmx.supervisor.energy.meter import EnergyMeter
from lmx.supervisor.energy.source import find_source
from lmx.supervisor.events import EventLog
from lmx.supervisor.inventory.added import AddedModels, with_added
from lmx.supervisor.inventory.added_file import AddedFile
from lmx.supervisor.inventory.deletion import Deletion
from lmx.supervisor.inventory.download_records import Download, DownloadFile
from lmx.supervisor.inventory.downloads import Downloads
from lmx.supervisor.keys.file import KeyFile
from lmx.supervisor.keys.keys import Keys
from lmx.supervisor.mdns.announce_main import Announcement
from lmx.supervisor.memory.measured import Measured
from lmx.supervisor.memory.system import read_memory
from lmx.supervisor.memory.watch import MemoryWatch
from lmx.supervisor.memory.working_set import read_working_set
from lmx.supervisor.peers.peers import Peers
from lmx.supervisor.processes.announcer import Announcer
from lmx.supervisor.processes.descendants import Descendants
from lmx.supervisor.processes.exit_watch import ExitWatch
from lmx.supervisor.processes.fetching import FetchProgram, FetchRuns, LoadFetches
from lmx.supervisor.processes.handover import Invocation
from lmx.supervisor.processes.inspector import Inspections, Inspector
from lmx.supervisor.processes.launcher import Launcher
from lmx.supervisor.processes.lent import LentRanks
from lmx.supervisor.processes.preview import preview_now
from lmx.supervisor.processes.routers import RouterProcesses
from lmx.supervisor.processes.sleep import SleepPrevention
from lmx.supervisor.processes.spare import SpareWorker
from lmx.supervisor.processes.workers import WorkerProcesses
from lmx.supervisor.router.counts import RouterCounts
from lmx.supervisor.router.guard import RouterGuard
from lmx.supervisor.service.adoption import Adoption
from lmx.supervisor.service.clock import Tick
from lmx.supervisor.service.inbox import Inbox
from lmx.supervisor.service.launch import Launch, LaunchFile
from lmx.supervisor.service.reports import Reports
from lmx.supervisor.service.shutdown import Shutdown
from lmx.supervisor.service.spare import SpareKeeper
from lmx.supervisor.sockets import listening
from lmx.supervisor.sockets.reachable import ALL_ADDRESSES, host_name, mdns_labels
from lmx.supervisor.sockets.server import ControlServer
from lmx.supervisor.state.event_file import EventFile
from lmx.supervisor.state.files import StateFiles, read_admin_key
from lmx.supervisor.state.home import Home

log = structlog.get_logger()

_LOADS: Final = (WorkerState.STARTING, WorkerState.LOADING)


@dataclass(frozen=True, slots=True)
class Processes:
    """What starts processes, asks them and watches them."""

    exits: ExitWatch
    launcher: Launcher
    server: ControlServer
    descendants: Descendants
    inspector: Inspector
    inspections: Inspections
    runs: FetchRuns
    spare: SpareWorker
    workers: WorkerProcesses
    routers: RouterProcesses


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that a running supervisor uses. Parts that only other parts use are not here."""

    settings: Settings
    core: Core
    guard: RouterGuard
    memory: MemoryWatch
    energy: EnergyMeter
    events: EventLog
    files: StateFiles
    launches: LaunchFile
    processes: Processes
    downloads: Downloads
    adoption: Adoption
    reloader: Reloader
    handlers: Handlers
    inbox: Inbox
    shutdown: Shutdown
    sleep: SleepPrevention
    announcer: Announcer
    lent: LentRanks
    spare: SpareKeeper

    @property
    def ticks(self) -> dict[str, Tick]:
        """The parts that wait for time to pass, in the order in which they are called."""
        return {
            "memory": lambda now_s, _paused_s: self.memory.tick(now_s),
            "spare": lambda now_s, _paused_s: self.spare.tick(now_s),
            "core": self.core.tick,
            "energy": self.energy.tick,
            "router": self.guard.tick,
            "disk": self.files.disk.tick,
            "sleep": lambda now_s, _paused_s: self.sleep.tick(now_s),
            "announcer": lambda now_s, _paused_s: self.announcer.tick(now_s),
            "snapshot": lambda now_s, _paused_s: self.core.flush(now_s),
        }

    def quiet_until_s(self, now_s: float) -> float | None:
        """Return until when time alone changes nothing but what can wait for a second; None if it
        may do so at any moment."""
        until = (
            self.core.quiet_until_s(now_s),
            self.guard.quiet_until_s(now_s),
            self.memory.quiet_until_s(),
        )
        known = [each for each in until if each is not None]
        return min(known) if len(known) == len(until) else None

    async def close(self) -> None:
        """Close what this process holds. The processes that run continue."""
        self.sleep.close()
        self.energy.close()
        self.announcer.close()
        self.handlers.close()
        self.processes.inspections.close()
        self.guard.close()
        await self.lent.close()
        await self.processes.spare.close()
        self.processes.exits.close()
        await self.processes.inspector.wait_closed()
        await self.processes.server.close()


@dataclass(frozen=True, slots=True)
class _Base:
    """What most parts need: what is configured, what is kept in files, and who is notified."""

    home: Home
    invocation: Invocation
    settings: Settings
    ledger: Ledger
    events: EventLog
    files: StateFiles
    keys: Keys
    peers: Peers
    notify: Callable[[str], None]


def wire(
    config: Config,
    home: Home,
    version: str,
    invocation: Invocation,
    started_s: float,
    service: ServiceActions,
    logs_changed: Callable[[LogConfig], None],
    notify: Callable[[str], None],
) -> Parts:
    """Put a supervisor together, on the running event loop. Nothing begins yet, except the reading
    of models' files. The home's lock must be held, because its files are read and repaired."""
    epoch = new_epoch()
    kept = EventFile(home.events)
    events = EventLog(epoch, kept.keep, kept.read())
    added_file = AddedFile(home.added_models, notify)
    added_models = added_file.load()
    settings = Settings(with_added(config, added_models))
    ledger = Ledger(_budget_bytes(config))
    files = StateFiles.of(home, events, notify)
    keys = Keys(
        KeyFile(home.keys, notify),
        lambda: settings.current.security.api_key_specs,
        lambda: settings.current.closed_without_key,
        lambda name, detail: events.note(name, None, detail),
    )
    # The processes report from the event loop, so that `reports` and `processes` exist by then.
    peers = Peers(
        home.peers,
        lambda: tuple(peer.peer for peer in settings.current.peers),
        lambda found: processes.workers.publish(found),
        notify,
    )
    base = _Base(home, invocation, settings, ledger, events, files, keys, peers, notify)
    processes = _processes(base, version, lambda: reports)
    workers, routers = processes.workers, processes.routers

    core = Core(settings, ledger, workers, epoch, files.pins.load(), files.holds.load())
    guard = RouterGuard(routers, settings)
    if invocation.handover is not None:
        guard.listener = listening.inherited(invocation.handover.listen_fd, config.server)
    memory = MemoryWatch(core, settings, workers.send, events)
    source, described = find_source(sys.platform, os.environ)
    # That there is none says nothing to somebody who has just typed `lmx serve`: doctor says it.
    (log.debug if source is None else log.info)("energy.source", source=described)
    energy = EnergyMeter(source, lambda: core.workers, core.slots.__contains__)
    counts = RouterCounts(started_s, guard.pids)
    launches = LaunchFile(home, files.disk.change)
    launches.save(Launch.of(invocation.find_config(), os.environ, config))
    _follow_changes(base, core, guard, launches, logs_changed, workers.publish)

    inspect = processes.inspector.inspect_soon
    added = AddedModels(added_file, added_models, core, settings, inspect, time.monotonic)
    added.report_shadowed(config, events)
    report_routing_gaps(settings.current, events)
    keys.report(config)
    downloads = _downloads(base, processes, core, added)
    remote = RemoteRanks(core, settings, lambda: peers.list, processes.server.send)
    lent = LentRanks(
        core, settings, home, processes.launcher, processes.descendants, events,
        lambda name: any(key.name == name for key in keys.ring.keys),
    )  # fmt: skip

    shutdown = Shutdown(core, guard, (lambda: downloads.close(resume=False), lent.close))
    reports = Reports(core, guard, memory, counts, downloads, shutdown, remote)

    reloader = Reloader(invocation.read_config, added, core, settings, events)
    handlers = Handlers(workers.reply)
    planning = Planning(
        core,
        inspect,
        Previews(lambda question: in_daemon_thread(preview_now, home, question)),
        workers.estimate,
        time.monotonic,
    )
    loading = Loading(core, added, inspect, time.monotonic, lambda: service.replacing)
    models = ModelCommands(core, loading, planning)
    handlers.add(models.handlers)
    handlers.add_waiter(Acquire, models.acquire)
    followers = RouterFollowers(core, guard, lambda: peers.list, workers.publish)
    handlers.add(followers.awaited(added_handlers(added, lambda: service.replacing)))
    deletion = Deletion(core, added, downloads, home, events, lambda: lent.status)
    handlers.add(followers.awaited(disk_handlers(downloads, deletion)))
    handlers.add({ReportCounts: counts.take_report})
    handlers.add(lent.handlers)
    key_commands = KeyCommands(keys, guard, workers.publish)
    handlers.add(key_commands.handlers)
    pairing = PairingCommands(
        key_commands,
        peers,
        lambda: _machine(settings.current, guard),
        home.certificate,
        lambda name, detail: events.note(name, None, detail),
        followers.in_effect,
    )
    handlers.add(pairing.handlers)
    peer_handlers: dict[type, Handler] = {
        GetPeers: lambda _question, _now_s: peers.list,
        PutPeer: lambda question, _now_s: peers.put(question.peer),
        RemovePeer: lambda question, _now_s: peers.remove(question.name),
    }
    handlers.add(followers.awaited(peer_handlers))
    commands = ServiceCommands(service, core, guard, events, reloader, invocation)
    handlers.add(followers.awaited(commands.handlers))
    adoption = Adoption(
        core,
        guard,
        files.records,
        home.run,
        workers.watch,
        routers.watch,
        files.disk.change,
        processes.descendants.end,
    )
    return Parts(
        settings=settings,
        core=core,
        guard=guard,
        memory=memory,
        energy=energy,
        events=events,
        files=files,
        launches=launches,
        processes=processes,
        downloads=downloads,
        adoption=adoption,
        reloader=reloader,
        handlers=handlers,
        inbox=Inbox(
            core,
            guard,
            handlers,
            adoption,
            processes.server.send,
            settings,
            lambda: keys.ring.digest,
            lambda: peers.list.digest,
            events,
            energy.computing_watts,
            remote.want,
        ),
        shutdown=shutdown,
        sleep=SleepPrevention(settings, lambda: _is_working(core, processes.runs)),
        announcer=Announcer(
            lambda: _announcement(
                settings.current, guard, version, keyed=keys.ring.protects_models
            ),
            notify,
        ),
        lent=lent,
        spare=SpareKeeper(processes.spare, core, memory, settings),
    )


def _processes(base: _Base, version: str, reports: Callable[[], Reports]) -> Processes:
    home, notify = base.home, base.notify
    exits = ExitWatch(asyncio.get_running_loop())
    launcher = Launcher(home, exits, notify)
    server = ControlServer(home.run)
    descendants = Descendants(home)
    inspector = Inspector(home)
    inspections = Inspections(inspector, lambda *report: reports().inspected(*report))
    program = FetchProgram.of(home)
    runs = FetchRuns(program)
    fetches = LoadFetches(
        program,
        runs,
        lambda *report: reports().fetch_advanced(*report),
        lambda *report: reports().fetch_ended(*report),
    )
    spare = SpareWorker(launcher, home, lambda: base.settings.current.memory.wire)
    workers = WorkerProcesses(
        base.settings,
        home,
        launcher,
        spare,
        server,
        fetches,
        inspections,
        descendants,
        base.files,
        Measured.load(home.measured, notify),
        base.ledger,
        base.events,
        lambda *report: reports().worker_exited(*report),
        lambda *report: reports().worker_left(*report),
        lambda: base.peers.list,
    )
    routers = RouterProcesses(
        base.settings,
        home,
        launcher,
        base.files.records,
        base.events,
        version,
        read_admin_key(home.admin_key, notify),
        lambda: base.keys.ring,
        lambda: base.peers.list,
        base.invocation,
        lambda *report: reports().router_exited(*report),
    )
    return Processes(
        exits, launcher, server, descendants, inspector, inspections, runs, spare, workers, routers
    )


def _follow_changes(
    base: _Base,
    core: Core,
    guard: RouterGuard,
    launches: LaunchFile,
    logs_changed: Callable[[LogConfig], None],
    publish: Callable[[Any], None],
) -> None:
    """Have the parts follow a changed configuration."""

    def set_budget_and_router(change: Change, now_s: float) -> None:
        new_bytes = base.ledger.budget_bytes
        if change.new.memory != change.old.memory:
            new_bytes = _budget_bytes(change.new)
        guard.reconfigured(change, now_s)
        base.ledger.budget_bytes = new_bytes

    def follow_logs(change: Change, _now_s: float) -> None:
        if change.new.logs != change.old.logs:
            logs_changed(change.new.logs)

    def record_launch(change: Change, _now_s: float) -> None:
        launches.save(Launch.of(base.invocation.find_config(), os.environ, change.new))

    def publish_keys(change: Change, _now_s: float) -> None:
        if (change.new.security, change.new.server) != (change.old.security, change.old.server):
            publish(base.keys.ring)
            base.keys.report(change.new)

    def publish_peers(change: Change, _now_s: float) -> None:
        if change.new.peers != change.old.peers:
            publish(base.peers.list)

    # The first refuses a change if the memory can't be read or the router can't follow. The core
    # comes after the budget because it places models by it.
    base.settings.on_change(
        set_budget_and_router,
        core.reconfigured,
        follow_logs,
        record_launch,
        publish_keys,
        publish_peers,
    )


def _downloads(base: _Base, processes: Processes, core: Core, added: AddedModels) -> Downloads:
    async def serve(download: Download, path: Path) -> str | None:
        question = download.to_serve(path)
        model_id = (
            None if question is None else await added.serve(question, processes.inspector.inspect)
        )
        if model_id is not None:
            core.files_changed(model_id)
        core.flush(time.monotonic())
        return model_id

    file = DownloadFile(base.home.downloads, base.notify)
    return Downloads(file, processes.runs, serve, processes.inspector.is_whole, base.events)


def _is_working(core: Core, runs: FetchRuns) -> bool:
    return runs.running or any(one.busy or one.state in _LOADS for one in core.workers)


def _machine(config: Config, guard: RouterGuard) -> Machine:
    return Machine(config.server.name or host_name(), config.server.host, guard.port or 0)


def _announcement(
    config: Config, guard: RouterGuard, version: str, *, keyed: bool
) -> Announcement | None:
    server = config.server
    if not server.advertise or not (port := guard.port):
        return None
    labels = mdns_labels(server.name or host_name(), host_name())
    key = "yes" if keyed else "no"
    facts = (("version", version), ("path", "/v1"), ("key", key), ("tls", "no"))
    try:
        own = () if server.host in ALL_ADDRESSES else (str(ip_address(server.host)),)
    except ValueError:
        own = ()  # A name, of whatever address of this machine.
    return Announcement(labels, port, own, facts)


def _budget_bytes(config: Config) -> int:
    return budget_bytes(config.memory, read_memory().total_bytes, read_working_set())

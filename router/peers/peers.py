"""The owner of the list of peers in effect, and of what follows from it."""

import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from lmx.protocol.messages.keys import ApiKey
from lmx.protocol.messages.peers import PeerKind, PeerList
from lmx.protocol.messages.snapshot import ROUTE_NAMES, ModelView, Route
from lmx.protocol.messages.specs import RouterSpec
from lmx.router.jobs.live import LiveRequests
from lmx.router.metrics.requests import RequestMetrics
from lmx.router.supervisor.directory import Directory
from lmx.router.supervisor.link import SupervisorLink
from lmx.router.supervisor.routing import route_models

if TYPE_CHECKING:
    from lmx.router.peers.federation import Federation
    from lmx.router.peers.forms import GiveContents
    from lmx.router.peers.link import PeerLink
    from lmx.router.peers.machine import MachineState
    from lmx.router.peers.own import OwnMachine

_WATCHED_S: Final = 60.0
"""For this long after a peer has asked how this machine is, the prefixes that it computes are
noted."""

_log = structlog.get_logger()


class Peers:
    """Follows the list of peers. While it is empty, and no peer asks this machine how it is,
    nothing runs, nothing is imported, and no request pays anything. Used from one event loop
    only."""

    def __init__(
        self,
        spec: RouterSpec,
        supervisor: SupervisorLink,
        live: LiveRequests,
        metrics: RequestMetrics,
        give_contents: "GiveContents",
    ) -> None:
        self._spec = spec
        self._supervisor = supervisor
        self._live = live
        self._metrics = metrics
        self._give_contents = give_contents
        self._own: OwnMachine | None = None
        self._federation: Federation | None = None
        self._asked_at_s = float("-inf")
        self._list = PeerList.of(())

    @property
    def digest(self) -> str:
        """That of the list in effect."""
        return self._list.digest

    def put(self, found: PeerList) -> None:
        """Put another list into effect."""
        changed = found.peers != self._list.peers
        self._list = found
        if not changed:
            return
        _log.info("peers.changed", peers=[peer.name for peer in found.peers])
        if found.peers or self._federation is not None:
            self._open().put(found.peers)

    @property
    def federation(self) -> "Federation | None":
        """What serves requests on the best machine; None while this one is alone."""
        if self._list.peers:
            return self._federation
        if self._federation is None:
            return None
        return self._federation if self._is_watched else None

    @property
    def directory(self) -> Directory | None:
        """The models of this machine."""
        return self._supervisor.latest

    @property
    def links(self) -> "tuple[PeerLink, ...]":
        """The links to all peers."""
        return () if self._federation is None else tuple(self._federation.links.values())

    @property
    def model_ids(self) -> tuple[str, ...]:
        """The ids of all models of peers, also of those that don't answer."""
        states = (link.state for link in self.links)
        return tuple(one.model_id for state in states if state is not None for one in state.models)

    async def listed(self, directory: Directory, key: ApiKey | None, *, openai: bool) -> Directory:
        """Return the models of this machine, and those of the peers that answer and that it has
        not. A model of several peers is the first one's. ``openai`` is whether those of servers
        that have OpenAI's API alone are among them. ``key`` decides where routes lead, and not yet
        which models are listed."""
        if not self.links:
            return directory
        from lmx.router.peers.link import first_answers
        from lmx.router.peers.own import shown

        await first_answers(self.links)
        links = [
            link
            for link in self.links
            if link.answers and (openai or link.peer.kind is PeerKind.LMX)
        ]
        if not links:
            return directory
        views = {view.model_id: view for view in directory.models}
        for link in links:
            for model in () if link.state is None else link.state.models:
                if model.available:
                    views.setdefault(model.model_id, shown(model, link.name))
        # Peers' models are only for the names that always route, and only where this machine has
        # none for one of these and the key.
        own, snapshot = directory.limited_to(key), directory.snapshot
        routes = [
            Route(name, tuple(one.model_id for one in found))
            for name in (*ROUTE_NAMES, *(route.name for route in snapshot.routes))
            if (found := route_models(own, name) or ()) or name not in ROUTE_NAMES
        ]
        return Directory.of(
            replace(snapshot, models=tuple(views.values()), routes=(*routes, *snapshot.routes))
        )

    def of_machine(self, name: str, key: ApiKey | None) -> ModelView | None:
        """Return the model that ``MODEL@MACHINE`` names; None if there is none. Raises
        :class:`RequestError` for one of this machine that the key is not for."""
        from lmx.router.peers.own import shown

        wanted, _, machine = name.rpartition("@")
        own = self.directory
        if machine == self._spec.machine and self.links and own is not None and own.knows(wanted):
            return own.limited_to(key).resolve(wanted)
        for link in self.links:
            model = None if link.state is None else link.state.model(wanted)
            if link.name == machine and model is not None and link.answers:
                return shown(model, machine) if key is None or key.allows(model.model_id) else None
        return None

    def own_state(self, key: ApiKey | None) -> "MachineState":
        """Return how this machine is, for a peer that asks with this key."""
        self._asked_at_s = time.monotonic()
        self._open()
        assert self._own is not None
        return self._own.state(key)

    async def close(self) -> None:
        """End all that runs."""
        if self._federation is not None:
            await self._federation.close()

    @property
    def _is_watched(self) -> bool:
        return time.monotonic() - self._asked_at_s < _WATCHED_S

    def _open(self) -> "Federation":
        if self._federation is None:
            from lmx.router.peers.federation import Federation
            from lmx.router.peers.own import OwnMachine

            self._own = OwnMachine(
                self._spec.machine,
                self._spec.version,
                lambda: self._supervisor.latest,
                lambda: self._supervisor.alive,
                lambda: Counter(live.model_id for live in self._live.all if live.machine is None),
                self._metrics.last_tokens_per_s,
            )
            self._federation = Federation(
                self._spec, self._own, self._live, self._give_contents, self._metrics.forwarded
            )
        return self._federation

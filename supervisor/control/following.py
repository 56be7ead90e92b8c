"""Waits until the routers follow a change, so that who was answered can rely on it: what routers
are sent travels on another socket than the answer."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lmx.protocol.messages.control import DrainMachine, ReloadConfig
from lmx.protocol.messages.inventory import AddModel, DeleteModel, RemoveModel
from lmx.protocol.messages.peers import PeerList, PutPeer, RemovePeer
from lmx.supervisor.control.handlers import Handler
from lmx.supervisor.core.core import Core
from lmx.supervisor.router.guard import RouterGuard

_FOLLOW_S: Final = 5.0
"""How long routers have to put a change into effect. They need some thousandths of a second."""

_POLL_S: Final = 0.01

_CHANGES: Final = frozenset(
    {AddModel, RemoveModel, DeleteModel, ReloadConfig, DrainMachine, PutPeer, RemovePeer}
)
"""The questions after which other names of models are known, other peers are asked, or the machine
takes requests or refuses them."""


async def followed(publish: Callable[[], None], in_effect: Callable[[], bool]) -> bool:
    """Publish a change, and wait until it is in effect. Return whether that came in time: a router
    that hangs does not follow."""
    publish()
    deadline_s = time.monotonic() + _FOLLOW_S
    while not in_effect():
        if time.monotonic() > deadline_s:
            return False
        await asyncio.sleep(_POLL_S)
    return True


@dataclass(eq=False, repr=False)
class RouterFollowers:
    """Has changes of what is served be answered once the routers know them. ``peers`` returns the
    list of peers in effect, ``publish`` sends a message to all routers."""

    _core: Core
    _guard: RouterGuard
    _peers: Callable[[], PeerList]
    _publish: Callable[[Any], None]

    def awaited(self, handlers: Mapping[type, Handler]) -> dict[type, Handler]:
        """Return the handlers, with those of such changes replaced."""
        return {
            kind: self._awaited(handler) if kind in _CHANGES else handler
            for kind, handler in handlers.items()
        }

    def _awaited(self, handler: Handler) -> Handler:
        def answer(question: Any, now_s: float) -> Coroutine[Any, Any, Any]:
            # The change itself is made at once, unless its handler takes a while.
            return self._after(handler(question, now_s))

        return answer

    async def _after(self, found: Any) -> Any:
        reply = await found if isinstance(found, Coroutine) else found
        await self.in_effect()
        return reply

    async def in_effect(self) -> None:
        """Wait until the routers have what is served and the list of peers in effect, or for as
        long as they may take."""
        self._core.flush(time.monotonic())
        epoch, revision = self._core.epoch, self._core.revision

        def known() -> bool:
            # The list may change again meanwhile, and routers then have the later one.
            return self._guard.has_snapshot(epoch, revision) and self._guard.has_peers(
                self._peers().digest
            )

        def publish() -> None:
            # A router that has them already answers with a beat.
            self._publish(self._core.snapshot(time.monotonic()))
            self._publish(self._peers())

        if not known():
            await followed(publish, known)

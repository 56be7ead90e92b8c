"""Several real routers on loopback that are peers, each with a fake supervisor and fake workers."""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any
from unittest import mock

from lmx.protocol.messages.keys import ApiKey, KeyScope
from lmx.protocol.messages.peers import Peer, PeerKind, PeerList
from tests.support.fakes.fake_peers import FakeStream, until
from tests.support.rigs.router_rig import Rig, answer, router_rig

CLIENT_KEY = "sk-lmx-of-a-client-of-this-test"


def peer_key(machine: str) -> str:
    """The key that peers send to a machine."""
    return f"sk-lmx-for-the-peers-of-{machine}"


def peer(machine: str, rig: Rig, **fields: Any) -> Peer:
    """A machine as its peers have it."""
    return Peer(machine, rig.url, fields.pop("kind", PeerKind.LMX), peer_key(machine))


@contextlib.asynccontextmanager
async def federation(
    machines: Sequence[str],
    scripts: Mapping[str, Callable[[FakeStream], Any]] | None = None,
    answer_s: float = 60.0,
    quiet_s: float = 90.0,
    **spec: Any,
) -> AsyncIterator[tuple[Rig, ...]]:
    """The routers of machines with these names, each with ``MODEL`` in one worker. All of them are
    peers of each other, know so, and ask each other ten times a second. A peer that takes longer
    than ``answer_s`` counts as lost, and a stream is opened, with a ping, when no peer has answered
    for ``quiet_s``: both so long that neither happens by chance on a busy machine."""
    async with contextlib.AsyncExitStack() as opened:
        opened.enter_context(mock.patch("lmx.router.peers.link.POLL_S", 0.1))
        opened.enter_context(mock.patch("lmx.router.peers.link._ANSWER_S", answer_s))
        opened.enter_context(mock.patch("lmx.router.peers.federation._QUIET_S", quiet_s))
        rigs: dict[str, Rig] = {}
        for name in machines:
            keys = (
                ApiKey.of_secret(CLIENT_KEY, "client"),
                ApiKey.of_secret(peer_key(name), "peers", scopes=(KeyScope.PEER,)),
            )
            script = (scripts or {}).get(name, answer)
            rigs[name] = await opened.enter_async_context(
                router_rig(script, machine=name, api_keys=keys, **spec)
            )
            rigs[name].http.headers["Authorization"] = f"Bearer {CLIENT_KEY}"
        for name, rig in rigs.items():
            others = tuple(peer(other, rigs[other]) for other in machines if other != name)
            rig.router.peers.put(PeerList.of(others))
        for rig in rigs.values():
            await know_each_other(rig, len(machines) - 1)
        yield tuple(rigs.values())


async def know_each_other(rig: Rig, count: int) -> None:
    """Wait until so many peers of a machine answer."""
    await until(lambda: sum(link.answers for link in rig.router.peers.links) == count)


async def asked(rig: Rig) -> None:
    """Wait until every peer of a machine that answers has been asked, and has answered, since this
    was called: twice, because the first answer may be to a question of before."""
    for _ in range(2):
        before = {link.name: link.seen_at_s for link in rig.router.peers.links if link.answers}
        await until(
            lambda before=before: all(  # type: ignore[misc]
                link.seen_at_s != before[link.name]
                for link in rig.router.peers.links
                if link.name in before
            )
        )

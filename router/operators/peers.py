"""GET /admin/peer, how this machine is for its peers, GET /admin/peers, how they are, and POST
/admin/drain, which leaves all requests to them."""

from dataclasses import replace

from aiohttp import web

from lmx.protocol.messages.control import Done, DrainMachine
from lmx.protocol.messages.peers import PeerKind
from lmx.router.http.bodies.json_body import read_object
from lmx.router.http.responses import Answer, json_value, succeeded
from lmx.router.operators.pairing import key_of_peer_route
from lmx.router.peers.machine import written
from lmx.router.schema.requests.operators import DrainRequest, PeerQuery
from lmx.router.schema.validation import validated
from lmx.router.services import SERVICES
from lmx.router.supervisor.queries import command, seen_in_snapshot


class PeerModel(Answer):
    """A model of a peer."""

    id: str
    state: str
    running: int
    """Requests for it that are under way there, those that wait among them."""
    rows: int
    """How many it computes at a time."""


class PeerShown(Answer):
    """A peer as this machine knows it."""

    name: str
    """Its name here."""
    url: str
    kind: PeerKind
    pinned: bool
    """Whether it is believed with the certificate of the pairing alone."""
    answers: bool
    """Whether it gets requests."""
    problem: str | None
    """Why it gets none; null while it does."""
    version: str | None
    """Its version of lmx. Null before its first answer, and for other servers."""
    drained: bool
    """Whether it is to get no more requests."""
    free_bytes: int | None
    """How much of its memory budget is not reserved. Null where that is not known."""
    budget_bytes: int | None
    """Its memory budget. Null where that is not known."""
    seen_at_s: float | None
    """When it answered last, in Unix time."""
    running: int
    """Requests that were forwarded there, and that are under way."""
    forwarded: dict[str, int]
    """Requests that were forwarded there and have ended: by why it was chosen (`prefix`, `idle`,
    `busy`, `fits`, `full`, `evicts`); `refused` for what is wrong with them, `left` by their client
    or after too long, or `failed`, all three before anything came; or `lost` after that."""
    models: list[PeerModel]


class PeersAnswer(Answer):
    """This machine's name, and its peers."""

    machine: str
    peers: list[PeerShown]


async def own_state(request: web.Request) -> web.Response:
    """Return how this machine is. A peer asks every second."""
    query = validated(PeerQuery, dict(request.query))
    services = request.app[SERVICES]
    state = services.peers.own_state(key_of_peer_route(request))
    if services.traffic.closed:
        state = replace(state, drained=True)
    return json_value(written(state, query.known))


async def drain_machine(request: web.Request) -> web.Response:
    """Let no model of this machine take requests, or let them again. What is under way continues,
    and nothing is unloaded. Requests are answered by peers where one has the model."""
    services = request.app[SERVICES]
    body = await read_object(request, services.spec.body_limit_bytes)
    wanted = validated(DrainRequest, body)
    done: Done = await command(services.supervisor, DrainMachine(wanted.drained))
    await seen_in_snapshot(services.supervisor, lambda now: now.snapshot.drained == wanted.drained)
    return succeeded(done.message)


async def list_peers(request: web.Request) -> web.Response:
    """Return all peers, also those that don't answer."""
    services = request.app[SERVICES]
    shown: list[PeerShown] = []
    for link in services.peers.links:
        state = link.state
        of_lmx = state is not None and link.peer.kind is PeerKind.LMX
        shown.append(
            {
                "name": link.name,
                "url": link.peer.url,
                "kind": link.peer.kind,
                "pinned": bool(link.peer.certificate),
                "answers": link.answers,
                "problem": link.problem,
                "version": state.version if state is not None and of_lmx else None,
                "drained": state is not None and state.drained,
                "free_bytes": state.free_bytes if state is not None and of_lmx else None,
                "budget_bytes": (state.budget_bytes or None) if state is not None else None,
                "seen_at_s": link.seen_at_s,
                "running": link.running,
                "forwarded": services.metrics.forwarded_to(link.name),
                "models": [
                    {
                        "id": one.model_id,
                        "state": one.state,
                        "running": link.running_of(one),
                        "rows": one.rows,
                    }
                    for one in (() if state is None else state.models)
                ],
            }
        )
    return json_value(PeersAnswer(machine=services.spec.machine, peers=shown))

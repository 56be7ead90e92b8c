"""Serves requests on the machine that is best for each: this one or a peer."""

import asyncio
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import Any, Final

import aiohttp
import orjson
import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from lmx.protocol.errors import ErrorCode, LmxError, UnavailableError
from lmx.protocol.host.lasting import keep_up
from lmx.protocol.messages.keys import KeyScope
from lmx.protocol.messages.peers import Peer, PeerKind
from lmx.protocol.messages.snapshot import ROUTE_NAMES
from lmx.protocol.messages.specs import RouterSpec
from lmx.router.authorities import Authorities
from lmx.router.byte_budget import ByteBudget
from lmx.router.http.api_family import OLLAMA, RESPONSES
from lmx.router.http.bodies.form import READ_FORM, read_form
from lmx.router.http.bodies.json_body import READ, next_step, read_object
from lmx.router.http.endpoint import Endpoint, api_of
from lmx.router.http.outcome import (
    CONTEXT,
    MACHINE,
    Outcome,
    RequestContext,
    note_ignored,
    outcome_of,
    set_outcome,
)
from lmx.router.http.sse import OPENED, EventStream
from lmx.router.jobs.live import LiveRequest, LiveRequests, LiveState, RequestKind
from lmx.router.media.resolver import Resolver, SystemLookup
from lmx.router.peers.answer_form import (
    AUDIO,
    AnswerForm,
    answer_form,
    fills_gap,
    media_types,
    request_kind,
)
from lmx.router.peers.choice import Candidate, Rank, ranked
from lmx.router.peers.forms import Form, GiveContents
from lmx.router.peers.forwarded import FORWARDED_HEADER, client_tag, headers_of
from lmx.router.peers.link import PeerLink, first_answers
from lmx.router.peers.machine import OfferedModel
from lmx.router.peers.named_files import media_of, named_parts
from lmx.router.peers.own import OwnMachine, offered
from lmx.router.peers.prefixes import beginning, chain, longest
from lmx.router.peers.relay import (
    MOST_ANSWERS_BYTES,
    SMALL_ANSWER_BYTES,
    Letter,
    NothingCameError,
    may_go_elsewhere,
    not_begun,
    note_kept,
    opened,
    passed_on,
    too_late,
)
from lmx.router.peers.staying import movable
from lmx.router.peers.targets import Target, Targets, fitting, is_known, none_takes, targets
from lmx.router.supervisor.directory import Directory
from lmx.router.workers.fallback import NOT_LOADED

_CONNECT_S: Final = 2.0
_KEPT_S: Final = 30.0
"""How long a connection is kept that nothing uses: less than a peer keeps it, so that it is closed
here."""

_RETURN_S: Final = 5.0
"""How long after its last answer a request still waits for a peer that alone has the model. One
that was sent to it already waits as long for its answer from when the peer was lost. A machine that
is busy or asleep may stand still for some seconds."""

_LOOK_S: Final = 0.05

_QUIET_S: Final = 2.0
"""For this long nothing is sent to a client that waits for a stream: a request that fails so soon
fails with its own status."""

_WITH_OLDER_NAME: Final = frozenset({"/api/show", "/api/pull"})
"""The routes where `name` is the older name of the field `model`."""

_BYTES_A_TOKEN: Final = 4
_MOST_HEADER_BYTES: Final = 16 * 1024
_LONGEST_SOUND_S: Final = 3700.0
"""How long a client waits for a transcript, or the beginning of a sound: longer than the peer takes
for either."""

_NOT_WAITED_FOR: Final = frozenset(
    {ErrorCode.CLIENT_STALLED, ErrorCode.DEADLINE_EXCEEDED, ErrorCode.REQUEST_CANCELLED}
)
"""The errors with which a request ends though its machine computes it."""

_log = structlog.get_logger()


class Federation:
    """Owns the links to all peers. Used from one event loop only; it begins when it is made.

    ``count`` is called with the name of a peer for each request that was forwarded there and has
    ended, and with what became of it."""

    def __init__(
        self,
        spec: RouterSpec,
        own: OwnMachine,
        live: LiveRequests,
        give_contents: GiveContents,
        count: Callable[[str, str], None],
    ) -> None:
        self.links: dict[str, PeerLink] = {}
        self._spec = spec
        self._own = own
        self._live = live
        self._give_contents = give_contents
        self._count = count
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._answers = ByteBudget(MOST_ANSWERS_BYTES, "answers of other machines")
        """The memory of those that are no streams: they are sent when all of them is there."""
        self._contents = ByteBudget(
            spec.media.max_held_bytes, "sounds and files for other machines", "media.max_held_bytes"
        )
        self._authorities = Authorities()
        self._session = aiohttp.ClientSession(
            # A peer that is switched off may have no address: each look-up takes many seconds then.
            connector=aiohttp.TCPConnector(
                ssl=self._authorities.context,
                limit=0,
                keepalive_timeout=_KEPT_S,
                resolver=Resolver(SystemLookup()),
            ),
            trace_configs=[note_kept()],
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            headers={"User-Agent": f"lmx/{spec.version}"},
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            max_line_size=_MOST_HEADER_BYTES,
            max_field_size=_MOST_HEADER_BYTES,
        )

    def put(self, peers: tuple[Peer, ...]) -> None:
        """Ask these peers from now on. Streams that come from others continue, and all that a
        machine computes whose address or key has changed."""
        wanted = {peer.name: peer for peer in peers}
        before: dict[str, PeerLink] = {}
        for name, link in list(self.links.items()):
            if wanted.get(name) != link.peer:
                self._tasks.pop(name).cancel()
                before[name] = self.links.pop(name)
                if name not in wanted:
                    # Nobody asks it any more whether it still answers.
                    before[name].lose("it is no peer any more")
        for name, peer in wanted.items():
            if name not in self.links:
                link = self.links[name] = PeerLink(peer, self._own.name, self._session)
                if name in before:
                    # Until it answers, its models stay known, and so what is counted of them.
                    link.state = before[name].state
                self._tasks[name] = keep_up(
                    partial(self._ask, link), f"the questions to the peer {name}"
                )

    async def _ask(self, link: PeerLink) -> None:
        if link.ssl is True and link.peer.url.lower().startswith("https:"):
            try:
                await self._authorities.load()
            except OSError:
                link.lose("this machine can't read whom it trusts over TLS")
                raise
        await link.run()

    async def close(self) -> None:
        """End all of it."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._session.close()

    async def serve(
        self, request: web.Request, endpoint: Endpoint, handler: Handler, directory: Directory
    ) -> web.StreamResponse:
        """Answer a request on the best machine, and on the next one if that fails before anything
        of an answer was sent. A request that a machine has forwarded is answered here."""
        if endpoint.form is not None:
            return await self._serve_form(request, endpoint, handler, directory)
        body = await read_object(request, self._spec.body_limit_bytes)
        request[READ] = body
        await next_step(request)
        found = await self._targets(request, endpoint, body, directory)
        await next_step(request)
        text = cache(partial(_hashed_text, endpoint, body))
        hashes = cache(partial(self._hashes, request[CONTEXT], body.get("cache_salt"), text))
        if found.own_name is not None:
            request[READ] = {**body, "model": found.own_name}
        if not found.remote:
            own = hashes(found.own[0].model_id) if found.own else ()
            # Media may be megabytes of text, which nobody needs for as long as the answer takes.
            del body, hashes, text
            return await self._here(request, handler, found, own)
        with self._contents.share() as held:
            if parts := list(named_parts(body)):
                await self._give_contents(request, parts, found.remote[0].link.name, held)
            await next_step(request)
            tokens = len(text()) // _BYTES_A_TOKEN
            await next_step(request)
            return await self._on_the_best(
                request, endpoint, handler, directory, found, hashes, body, tokens
            )

    async def _serve_form(
        self, request: web.Request, endpoint: Endpoint, handler: Handler, directory: Directory
    ) -> web.StreamResponse:
        read = request[READ_FORM] = await read_form(request, self._spec.media.max_item_bytes)
        form = Form(read)
        found = await self._targets(request, endpoint, form.values, directory)
        if found.own_name is not None:
            read["model"] = [found.own_name]
        if not found.remote:
            del read, form
            return await self._here(request, handler, found, ())
        with self._contents.share() as held:
            held.grow(form.size_bytes)
            return await self._on_the_best(
                request, endpoint, handler, directory, found, lambda _: (), form, 0
            )

    async def _on_the_best(
        self,
        request: web.Request,
        endpoint: Endpoint,
        handler: Handler,
        directory: Directory,
        found: Targets,
        hashes: "Hashes",
        asked: dict[str, Any] | Form,
        tokens: int,
    ) -> web.StreamResponse:
        body = asked.values if isinstance(asked, Form) else asked
        form = answer_form(endpoint, body)
        events = EventStream(request, self._spec.stall_timeout_s)
        first: LmxError | None = None
        tried: set[object] = set()
        while choice := self._best(found, hashes, directory, tried):
            target, rank = choice
            machine = self._own.name if target is None else target.link.name
            where = self._own if target is None else target.link
            tried.add(where)
            try:
                if target is None:
                    own = hashes(found.own[0].model_id)
                    return await self._here(request, handler, found, own)
                return_s = partial(
                    self._return_s, request, endpoint, body, directory, hashes, tried, target.link
                )
                return await self._there(
                    request, endpoint, target, rank, asked, hashes, tokens, events, form, return_s
                )
            except NothingCameError as nothing:
                error = nothing.error
            except LmxError as refused:
                if refused.code is ErrorCode.CLIENT_STALLED:
                    raise
                if target is not None or not may_go_elsewhere(refused):
                    return await self._failed(request, events, refused)
                error = refused
            first = first or error
            if target is not None and error.code in NOT_LOADED:
                # Its other models may be loaded, or fit.
                tried.remove(where)
                tried.add((where, target.model.model_id))
            _log.info("peer.next", machine=machine, reason=error.message)
            # Others may answer by now.
            directory = self._own.directory(directory, request[CONTEXT].grant)
            try:
                found = self._targets_now(request, endpoint, body, directory)
            except LmxError:  # No other machine can answer.
                return await self._failed(request, events, first)
        if first is None:
            if found.own or not found.remote:
                return await self._here(request, handler, found, ())
            self._own.refuse_drained()
            first = none_takes(found)
        return await self._failed(request, events, first)

    async def _failed(
        self, request: web.Request, events: EventStream, error: LmxError
    ) -> web.StreamResponse:
        """Raise an error, or send it where the client's stream is open already."""
        if not events.is_open:
            raise error
        set_outcome(request, Outcome(stream=True, error=error.code.value))
        await events.send(events.family.error_event(error, request[CONTEXT].request_id))
        await events.end()
        return events.response

    async def _here(
        self, request: web.Request, handler: Handler, found: Targets, hashes: tuple[int, ...]
    ) -> web.StreamResponse:
        self._own.refuse_drained()
        request[MACHINE] = self._own.name
        response = await handler(request)
        if found.own and outcome_of(request).model == found.own[0].model_id:
            self._own.note(found.own[0].model_id, hashes)
        return response

    async def _there(
        self,
        request: web.Request,
        endpoint: Endpoint,
        target: Target,
        rank: Rank,
        asked: dict[str, Any] | Form,
        hashes: "Hashes",
        tokens: int,
        events: EventStream,
        form: AnswerForm,
        return_s: Callable[[], float],
    ) -> web.StreamResponse:
        link, model_id = target.link, target.model.model_id
        streams = form is AnswerForm.EVENTS
        set_outcome(request, Outcome(model=model_id, stream=streams if endpoint.streams else None))
        request[MACHINE] = link.name
        context = request[CONTEXT]
        headers = {"X-Request-Id": context.request_id}
        body: bytes | Form
        if isinstance(asked, Form):
            body = asked.of_model(model_id)
        else:
            sent = {**asked, "model": model_id}
            if endpoint.family is RESPONSES:
                sent["store"] = False
            body = _dumped(sent)
            headers["Content-Type"] = "application/json"
        path = endpoint.openai_path
        if link.peer.kind is PeerKind.LMX:
            path = endpoint.path
            headers |= headers_of(context)
        if (version := request.headers.get("Anthropic-Version")) is not None:
            headers["Anthropic-Version"] = version
        known = hashes(model_id)
        letter = Letter(path, body, headers, form, media_types(endpoint, form), tokens)
        ended = "failed"
        with (
            self._listed(request, endpoint, link.name, model_id, streams=streams) as live,
            link.carrying(model_id, known),
            self._answers.share(SMALL_ANSWER_BYTES) as held,
        ):
            try:
                opening = opened(link, letter, held, return_s)
                answer = await live.interruptible(
                    self._within_time(request, endpoint, opening, events, form)
                )
                live.first_output_s = time.monotonic()
                if form is AnswerForm.FILE:
                    media_type = answer.response.content_type
                    events = EventStream(request, self._spec.stall_timeout_s, media_type)
                ended = rank.name.lower()
                try:
                    response = await passed_on(
                        request, live, answer, letter, events, self._spec.worker_silence_s
                    )
                except LmxError as error:
                    if form is not AnswerForm.FILE or not events.is_open:
                        raise
                    live.failed_with(error)
                    set_outcome(request, replace(outcome_of(request), error=error.code.value))
                    if request.transport is not None:
                        request.transport.abort()
                    response = events.response
                if outcome_of(request).error == ErrorCode.PEER_LOST:
                    ended = "lost"
                return response
            except (asyncio.CancelledError, LmxError) as error:
                if ended == "failed":
                    left = not isinstance(error, LmxError) or error.code in _NOT_WAITED_FOR
                    ended = "left" if left else "refused"
                    if left:
                        # The peer has read the prompt.
                        outcome = replace(outcome_of(request), prompt_tokens=tokens)
                        set_outcome(request, outcome)
                raise
            finally:
                self._count(link.name, ended)

    @contextmanager
    def _listed(
        self,
        request: web.Request,
        endpoint: Endpoint,
        machine: str,
        model_id: str,
        *,
        streams: bool,
    ) -> Iterator[LiveRequest]:
        """List a request that a peer computes for the duration of the block."""
        live = LiveRequest(
            f"fwd-{secrets.token_hex(12)}",
            request[CONTEXT],
            request_kind(endpoint),
            api_of(request),
            request.remote,
            model_id,
            streams,
            LiveState.RUNNING,
            machine=machine,
        )
        live.outcome = partial(outcome_of, request)
        if not endpoint.streams and request_kind(endpoint) is RequestKind.CHAT:
            yield live  # Tokens are counted so fast that nobody sees it.
            return
        with self._live.under_way(live):
            try:
                yield live
            except NothingCameError:
                live.goes_elsewhere = True
                raise
            except BaseException as error:
                live.failed_with(error)
                raise
            code = outcome_of(request).error
            if live.failure is None and code is not None:
                reason = "was lost" if code == ErrorCode.PEER_LOST else f"reported {code}"
                live.failure = LmxError(ErrorCode(code), f"The machine {machine} {reason}.")

    async def _within_time(
        self,
        request: web.Request,
        endpoint: Endpoint,
        work: Any,
        events: EventStream,
        form: AnswerForm,
    ) -> Any:
        """Return what ``work`` returns. Meanwhile a client that waits for a stream gets pings.
        Raises :class:`GenerationError` when an answer without a stream is too late, and
        :class:`NothingCameError` when a machine has begun no stream for as long."""
        task = asyncio.ensure_future(work)
        most_s = _LONGEST_SOUND_S if endpoint.tag == AUDIO else self._spec.sync_timeout_s
        streams = form is AnswerForm.EVENTS
        limit_s = (time.monotonic() if streams else request[CONTEXT].started_at_s) + most_s
        wait_s = _QUIET_S
        try:
            while True:
                left_s = max(0.0, limit_s - time.monotonic())
                wait_s = min(wait_s, left_s) if streams else left_s
                if (await asyncio.wait({task}, timeout=wait_s))[0]:
                    return task.result()
                if not streams:
                    raise too_late(most_s)
                if not left_s:
                    raise NothingCameError(not_begun(most_s))
                wait_s = self._spec.ping_interval_s
                if not events.is_open:
                    await events.open()
                    request[OPENED] = events.response
                await events.send(events.family.ping)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
            if not task.cancelled():
                task.exception()

    async def _know_who_has(self, name: Any, directory: Directory) -> None:
        """Wait for the first answers of the peers, unless a name means a model of this machine."""
        if not (isinstance(name, str | None) and is_known(directory, name)):
            await first_answers(self.links.values())

    async def _targets(
        self,
        request: web.Request,
        endpoint: Endpoint,
        body: Mapping[str, Any],
        directory: Directory,
    ) -> Targets:
        """Return who may answer, once a peer that alone could has had the time to answer again.
        Raises as :func:`targets` does."""
        await self._know_who_has(_name_in(endpoint, body), directory)
        while True:
            try:
                return self._targets_now(request, endpoint, body, directory)
            except UnavailableError as error:
                if error.code is not ErrorCode.PEER_UNAVAILABLE or not self._one_may_return():
                    raise
            await asyncio.sleep(_LOOK_S)

    def _one_may_return(self) -> bool:
        now_s = time.time()
        return any(
            not link.answers
            and link.seen_at_s is not None
            and 0 <= now_s - link.seen_at_s < _RETURN_S
            for link in self.links.values()
        )

    def _return_s(
        self,
        request: web.Request,
        endpoint: Endpoint,
        body: Mapping[str, Any],
        directory: Directory,
        hashes: "Hashes",
        tried: set[object],
        link: PeerLink,
    ) -> float:
        """Return for how long a request that a peer has not begun to answer waits for it while it
        is lost: not if it is no peer any more, or if another machine may answer."""
        if self.links.get(link.name) is not link:
            return 0.0
        directory = self._own.directory(directory, request[CONTEXT].grant)
        try:
            found = self._targets_now(request, endpoint, body, directory)
        except LmxError:
            return _RETURN_S
        return 0.0 if self._best(found, hashes, directory, tried) else _RETURN_S

    def _targets_now(
        self,
        request: web.Request,
        endpoint: Endpoint,
        body: Mapping[str, Any],
        directory: Directory,
    ) -> Targets:
        name, key = _name_in(endpoint, body), request[CONTEXT].grant
        if not isinstance(name, str | None) or (endpoint.family is OLLAMA and not name):
            return Targets((), ())  # The handler says what is wrong with it.
        if endpoint.tag == AUDIO and name in (None, *ROUTE_NAMES):
            return Targets((), ())  # These mean models that chat, or this machine's own.
        # A peer may have this machine's answers, and not those of this machine's own peers.
        is_peer = key is not None and set(key.scopes) == {KeyScope.PEER}
        links = {} if is_peer or FORWARDED_HEADER in request.headers else self.links
        found = targets(directory, links, self._own.name, name, key, endpoint.models)
        if found.remote and found.has_several:
            found = fitting(found, media_of(body), infill=fills_gap(endpoint, body))
        drained = directory.snapshot.drained
        remote = movable(endpoint, body, found.remote, has_own=bool(found.own), is_drained=drained)
        if remote and endpoint.family is RESPONSES and body.get("store") is not False:
            note_ignored(request, ["store"])
        return Targets(() if remote and drained else found.own, remote, found.own_name)

    def _best(
        self, found: Targets, hashes: "Hashes", directory: Directory, tried: set[object]
    ) -> tuple[Target | None, Rank] | None:
        """Return where a request is to go; the target is None for this machine. None: there is
        none. ``tried`` has the machines that are left out, and the links with a model's id."""
        there: dict[Candidate, Target | None] = {}
        running = self._own.running(directory)
        state = directory.snapshot
        loads = self._own.loads(state)
        for place, view in enumerate(() if self._own in tried else found.own):
            model = replace(offered(view), tokens_per_s=self._own.speed(view.model_id))
            count = running[view.base or view.model_id]
            held = longest(hashes(view.model_id), self._own.book(view).held)
            can_load = model.available and loads and not state.stopping
            candidate = _candidate(
                self._own.name, model, place, count, held, state.free_bytes, can_load, own=True
            )
            there[candidate] = None
        for target in found.remote:
            link, model, machine = target.link, target.model, target.link.state
            assert machine is not None, "a link that answers has a state"
            if machine.drained or not model.available:
                continue
            if not tried.isdisjoint((link, (link, model.model_id))):
                continue
            held = longest(hashes(model.model_id), link.held_by(model))
            candidate = _candidate(
                link.name, model, target.place, link.running_of(model), held, machine.free_bytes,
                machine.loads, own=False,
            )  # fmt: skip
            there[candidate] = target
        blocks = max((len(hashes(one.model_id)) for one in there), default=0)
        for one, rank in ranked(there, blocks):
            return there[one], rank
        return None

    def _hashes(
        self,
        context: RequestContext,
        cache_salt: Any,
        text: Callable[[], bytes],
        model_id: str,
    ) -> tuple[int, ...]:
        """Return the hashes of a request's text for a model, and for those who share prefixes."""
        forwarded = context.forwarded
        if forwarded is not None:
            tag = forwarded.client if forwarded.apart else ""
        else:
            tag = client_tag(context) if context.apart else ""
        return chain(f"{model_id}\0{tag}\0{cache_salt or ''}", text())


Hashes = Callable[[str], tuple[int, ...]]
"""Returns the hashes of a request's text for a model."""


def _name_in(endpoint: Endpoint, body: Mapping[str, Any]) -> Any:
    """Return the name of the model in a body, which was not checked."""
    name = body.get("model")
    return body.get("name") if endpoint.path in _WITH_OLDER_NAME and not name else name


def _hashed_text(endpoint: Endpoint, body: Mapping[str, Any]) -> bytes:
    # Nothing of sounds is kept for another request.
    return b"" if endpoint.tag == AUDIO else beginning(body)


def _candidate(
    machine: str,
    model: OfferedModel,
    place: int,
    running: int,
    held: int,
    free_bytes: int,
    can_load: bool,
    *,
    own: bool,
) -> Candidate:
    return Candidate(
        machine=machine,
        own=own,
        model_id=model.model_id,
        place=place,
        loaded=model.loaded,
        loads=model.loads,
        rows=model.rows,
        running=running,
        free_bytes=free_bytes,
        needed_bytes=model.needed_bytes,
        can_load=can_load,
        held_blocks=held,
        tokens_per_s=model.tokens_per_s,
    )


def _dumped(body: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError:  # A number of more than 64 bits.
        return json.dumps(body).encode()

"""Which machines have what a request names. Pure but for the clock of what was sent to peers."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from lmx.protocol.errors import ErrorCode, RequestError, UnavailableError
from lmx.protocol.messages.keys import ApiKey
from lmx.protocol.messages.snapshot import ROUTE_NAMES, ModelView
from lmx.protocol.states import MediaKind, ModelKind
from lmx.router.http.access import key_refusal
from lmx.router.http.endpoint import Access
from lmx.router.http.keys import Verdict
from lmx.router.peers.link import PeerLink
from lmx.router.peers.machine import OfferedModel
from lmx.router.supervisor.directory import Directory
from lmx.router.supervisor.routing import INFILL, candidates, fills, route_models, untagged


@dataclass(frozen=True, slots=True)
class Target:
    """A model of a peer that may answer a request."""

    link: PeerLink
    model: OfferedModel
    place: int


@dataclass(frozen=True, slots=True)
class Targets:
    """What may answer a request."""

    own: tuple[ModelView, ...]
    """The models of this machine, the first one first. Empty: it has none that may."""
    remote: tuple[Target, ...]
    own_name: str | None = None
    """The name that this machine's handler is to see instead of that of the request."""

    @property
    def has_several(self) -> bool:
        """Whether different models may answer."""
        ids = {one.model.model_id for one in self.remote} | {one.model_id for one in self.own}
        return len(ids) > 1


def targets(
    directory: Directory,
    links: Mapping[str, PeerLink],
    own_machine: str,
    name: str | None,
    key: ApiKey | None,
    kind: ModelKind | None = None,
) -> Targets:
    """Return what may answer a request that names ``name``, with the key ``key``. Models of
    another kind than ``kind`` are left out as :func:`candidates` does.

    ``MODEL@MACHINE`` is that machine's model alone, unless a model of this machine has all of it
    for its name. A name that this machine knows means its models, and those of the same id
    elsewhere; any other one the peers' models of that id or alias. A request without a name is for
    the peers' models of its kind where this machine has none, and one for one of the names that
    always route for their chat models.

    Raises :class:`UnavailableError` (peer_unavailable) for a machine, or for a model of machines
    that are all known and don't answer; :class:`RequestError` for a model that the key is not for,
    and for a route without a model of the kind.
    """
    if name is not None:
        plain = untagged(directory, name)
        if is_known(directory, plain) or not _has_tagged(links.values(), name, plain):
            name = plain
        model, _, machine = name.rpartition("@")
        if model and not is_known(directory, name):
            if machine == own_machine:
                return Targets(candidates(directory, model, None), (), model)
            if machine in links:
                return Targets((), (_of_machine(links[machine], model, key),))
    own: tuple[ModelView, ...] = ()
    if is_known(directory, name):
        own = candidates(directory, name, kind)
        if name is None and kind is not None and (own[0].kind or ModelKind.CHAT) is not kind:
            own = ()  # The default model, which could never answer.
    wanted = [model.model_id for model in own] or ([] if name is None else [name])
    answering = [link for link in links.values() if link.answers]
    if own or name not in (None, *ROUTE_NAMES):
        remote = tuple(_named(answering, wanted, key, by_alias=not own))
    elif kind in (ModelKind.CHAT, None):
        remote = _of_kinds(answering, key, (ModelKind.CHAT, None))
    elif name is None:
        # Those whose kind is not known are taken for chat models while there are others.
        remote = _of_kinds(answering, key, (kind,)) or _of_kinds(answering, key, (None,))
    else:
        remote = ()
    if not own and not remote and name is not None:
        _refuse_lost(links.values(), name, key)
    return Targets(own, remote)


def fitting(found: Targets, media: Collection[MediaKind], *, infill: bool) -> Targets:
    """Return those of some targets that take the media of a request, and fill a gap in a text if it
    asks for that: all of them if none does, so that one of them says so. A model of which that is
    not known yet stays."""
    own = tuple(
        one
        for one in found.own
        if (one.media is None or set(media) <= set(one.media))
        and not (infill and fills(one) is False)
    )
    remote = tuple(one for one in found.remote if _fits(one.model, media, infill=infill))
    return replace(found, own=own, remote=remote) if own or remote else found


def _fits(model: OfferedModel, media: Collection[MediaKind], *, infill: bool) -> bool:
    if model.kind is None:  # Its files are not known yet, or it is on a server that says little.
        return True
    fills_gap = not model.capabilities or INFILL in model.capabilities
    return {one.value for one in media} <= set(model.media) and (fills_gap or not infill)


def is_known(directory: Directory, name: str | None) -> bool:
    """Return whether a name, or none, means a model of this machine."""
    if name is None:
        return directory.snapshot.default_model is not None
    if directory.knows(name) or route_models(directory, name):
        return True
    try:
        return bool(candidates(directory, name, None))
    except RequestError as error:
        return error.code is not ErrorCode.MODEL_NOT_FOUND


def _of_machine(link: PeerLink, name: str, key: ApiKey | None) -> Target:
    if not link.answers or link.state is None:
        raise unavailable(link)
    model = link.state.model(name)
    if model is None:
        known = ", ".join(one.model_id for one in link.state.models[:20]) or "none"
        raise RequestError(
            ErrorCode.MODEL_NOT_FOUND,
            f"The machine {link.name} has no model {name[:200]!r}. Its models: {known}.",
            param="model",
        )
    if key is not None and not key.allows(model.model_id):
        raise key_refusal(Verdict.MODEL, key, Access.INFERENCE, model_id=model.model_id)
    return Target(link, model, 0)


def _named(
    links: Iterable[PeerLink], names: Sequence[str], key: ApiKey | None, *, by_alias: bool
) -> Iterable[Target]:
    refused: str | None = None
    found = False
    for link in links:
        for place, name in enumerate(names):
            model = None if link.state is None else link.state.model(name)
            if model is None or (model.model_id != name and not by_alias):
                continue
            if key is not None and not key.allows(model.model_id):
                refused = model.model_id
                continue
            found = True
            yield Target(link, model, place)
    if refused is not None and not found and by_alias:
        assert key is not None
        raise key_refusal(Verdict.MODEL, key, Access.INFERENCE, model_id=refused)


def _has_tagged(links: Collection[PeerLink], name: str, plain: str) -> bool:
    """Return whether the tag of a name is a part of a model's own name, as it may be on another
    server. What a lost peer had decides only where no other one has the model without the tag."""
    answering = [link for link in links if link.answers]
    return _has_any(answering, name) or (not _has_any(answering, plain) and _has_any(links, name))


def _has_any(links: Iterable[PeerLink], name: str) -> bool:
    return any(link.state is not None and link.state.model(name) is not None for link in links)


def _of_kinds(
    links: Iterable[PeerLink], key: ApiKey | None, kinds: Collection[ModelKind | None]
) -> tuple[Target, ...]:
    return tuple(
        Target(link, model, place)
        for link in links
        for place, model in enumerate(() if link.state is None else link.state.models)
        if model.kind in kinds and (key is None or key.allows(model.model_id))
    )


def _refuse_lost(links: Iterable[PeerLink], name: str, key: ApiKey | None) -> None:
    for link in links:
        model = None if link.state is None or link.answers else link.state.model(name)
        if model is not None and (key is None or key.allows(model.model_id)):
            raise unavailable(link)


def unavailable(link: PeerLink) -> UnavailableError:
    """Return the error for a request that needs a peer which does not answer."""
    return UnavailableError(
        ErrorCode.PEER_UNAVAILABLE,
        f"The machine {link.name} can't be asked: {link.problem or 'it does not answer'}.",
        retry_after_s=2.0,
    )


def none_takes(found: Targets) -> UnavailableError:
    """Return the error for a request for models of which none takes requests: their machines are
    drained, or can't load them."""
    machines = {
        one.link.name: " is drained"
        if one.link.state and one.link.state.drained
        else " can't load it"
        for one in found.remote
    }
    return UnavailableError(
        ErrorCode.PEER_UNAVAILABLE,
        "No machine that has the model takes requests for it now: "
        f"{', '.join(f'{name}{why}' for name, why in list(machines.items())[:20])}.",
        retry_after_s=5.0,
    )

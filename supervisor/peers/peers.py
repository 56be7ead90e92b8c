"""The owner of the stored peers, and of the list that routers get: the configured ones, then the
stored ones."""

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from lmx.protocol.errors import ErrorCode, OperationError, ProtocolError
from lmx.protocol.messages.control import Done
from lmx.protocol.messages.peers import FINGERPRINT, Peer, PeerList
from lmx.protocol.wire.codec import from_map, to_map
from lmx.supervisor.state.state_file import StateFile, discard_notice

MOST_PEERS: Final = 64


class Peers:
    """Keeps ``state/peers.json``, ``{"peers": [...]}``, with the keys that are sent to the peers:
    only the file's owner can read it.

    ``configured`` returns the peers of the configuration in effect. ``changed`` is called with each
    new list. A file that can't be read is set aside, and no peer is stored then.
    """

    def __init__(
        self,
        path: Path,
        configured: Callable[[], tuple[Peer, ...]],
        changed: Callable[[PeerList], None],
        notify: Callable[[str], None] = discard_notice,
    ) -> None:
        self._file = StateFile(path, _parse, notify)
        self._configured = configured
        self._changed = changed
        self._stored: tuple[Peer, ...] = self._file.load() or ()

    @property
    def list(self) -> PeerList:
        """All peers. One of the configuration wins over a stored one of its name."""
        configured = self._configured()
        names = {peer.name for peer in configured}
        return PeerList.of(
            (*configured, *(peer for peer in self._stored if peer.name not in names))
        )

    def put(self, peer: Peer) -> Done:
        """Store a peer, in the place of a stored one of its name. Raises :class:`OperationError`,
        as the next one does."""
        self._refuse_configured(peer.name)
        others = [one for one in self._stored if one.name != peer.name]
        if len(others) >= MOST_PEERS:
            raise OperationError(
                ErrorCode.INVALID_VALUE,
                f"there are {MOST_PEERS} stored peers, as many as can be: remove some",
                param="name",
            )
        self._save((*others, peer))
        return Done(f"{peer.name} ({peer.url}) is a peer")

    def remove(self, name: str) -> Done:
        """Forget a stored peer."""
        self._refuse_configured(name)
        left = tuple(one for one in self._stored if one.name != name)
        if len(left) == len(self._stored):
            known = ", ".join(peer.name for peer in self.list.peers) or "none"
            raise OperationError(
                ErrorCode.NOT_FOUND, f"no peer is named {name!r} (known: {known})", param="name"
            )
        self._save(left)
        return Done(f"{name} is no peer any more")

    @property
    def stored(self) -> tuple[Peer, ...]:
        """The stored peers, for :meth:`put_back`."""
        return self._stored

    def put_back(self, stored: tuple[Peer, ...]) -> None:
        """Undo a change: these are the stored peers. It is undone also if the file can't be
        written."""
        if stored == self._stored:
            return
        with contextlib.suppress(OperationError):
            self._save(stored)
            return
        self._stored = stored
        self._changed(self.list)

    def _refuse_configured(self, name: str) -> None:
        if any(peer.name == name for peer in self._configured()):
            raise OperationError(
                ErrorCode.UNSUPPORTED_VALUE,
                f"the peer {name!r} is of the configuration: change it there, and run `lmx reload`",
                param="name",
            )

    def _save(self, stored: tuple[Peer, ...]) -> None:
        self._file.save_or_refuse({"peers": [to_map(peer) for peer in stored]})
        self._stored = stored
        self._changed(self.list)


def _parse(found: Any) -> tuple[Peer, ...]:
    try:
        peers = tuple(from_map(Peer, entry, "peer") for entry in found["peers"])
    except ProtocolError as error:
        raise ValueError(error.message) from error
    if any(peer.certificate and not re.fullmatch(FINGERPRINT, peer.certificate) for peer in peers):
        raise ValueError("a peer's certificate is no SHA-256")
    return peers

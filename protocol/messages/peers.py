"""Peers, as routers know them: other servers that may answer the requests of this machine's
clients. Also the questions about those that are stored."""

import hashlib
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from lmx.protocol.wire.codec import encode, message


class PeerKind(StrEnum):
    """What answers at a peer's address."""

    LMX = "lmx"
    """Another lmx: it says what it has loaded, what it has room for and what its prefix caches
    hold."""
    OPENAI = "openai"
    """Any other server with OpenAI's API: its models are offered, and nothing is known of its
    load."""


FINGERPRINT: Final = "[0-9a-f]{64}"
"""What a peer's certificate is known by."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Another server, of the configuration or stored."""

    name: str
    """The machine's name: ``studio`` in ``qwen@studio``."""
    url: str
    """Its address without a path of the API, and without a slash at the end."""
    kind: PeerKind = PeerKind.LMX
    key: str = field(default="", repr=False)
    """The key that this machine sends there. Empty: none. No client's key is ever sent."""
    certificate: str = ""
    """The SHA-256 of the only certificate with which it is believed, in hex. Empty: that of an
    ``https`` address must be of an authority."""


@message
@dataclass(frozen=True, slots=True)
class PeerList:
    """All peers, of the configuration and stored. It is published when it has changed, and the
    reply to GetPeers."""

    peers: tuple[Peer, ...] = ()
    digest: str = ""
    """It differs if anything else does."""

    @classmethod
    def of(cls, peers: tuple[Peer, ...]) -> "PeerList":
        """Return a list with its digest."""
        found = cls(peers)
        return replace(found, digest=hashlib.sha256(encode(found)).hexdigest()[:16])


@message
@dataclass(frozen=True, slots=True)
class GetPeers:
    """Question: which peers are there? The reply is a PeerList."""


@message
@dataclass(frozen=True, slots=True)
class PutPeer:
    """Question: store a peer, in the place of a stored one of its name. Reply: Done, or Denied for
    a name of the configuration."""

    peer: Peer


@message
@dataclass(frozen=True, slots=True)
class RemovePeer:
    """Question: forget a stored peer. Reply: Done, or Denied."""

    name: str

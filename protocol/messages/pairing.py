"""Pairing: how two machines that a person has joined by a code come to have keys of each other. See
PROTOCOL.md, "Pairing"."""

from dataclasses import dataclass, field
from enum import StrEnum

from lmx.protocol.free_text import FreeText
from lmx.protocol.wire.codec import message


@message
@dataclass(frozen=True, slots=True)
class GetMachine:
    """Question: what is this machine called, and where does it listen? Reply: Machine."""


@message
@dataclass(frozen=True, slots=True)
class Machine:
    """Reply to GetMachine."""

    name: str
    host: str
    port: int
    certificate: str = ""
    """The SHA-256 of the certificate that it shows to its peers, in hex."""


@message
@dataclass(frozen=True, slots=True)
class OfferPairing:
    """Question: show a code, with which one other machine may pair. It replaces an earlier one.
    Reply: PairingOffer."""


@message
@dataclass(frozen=True, slots=True)
class PairingOffer:
    """Reply to OfferPairing."""

    offer_id: str
    code: str = field(repr=False)
    machine: Machine
    expires_in_s: float


class OfferState(StrEnum):
    """What became of a code."""

    OPEN = "open"
    PAIRED = "paired"
    FAILED = "failed"
    """Another machine had the right code, and could not be paired."""
    VOID = "void"
    """It expired, was tried too often or was replaced."""


@message
@dataclass(frozen=True, slots=True)
class GetOffer:
    """Question: what has become of a code? Reply: OfferView."""

    offer_id: str


@message
@dataclass(frozen=True, slots=True)
class OfferView:
    """Reply to GetOffer."""

    state: OfferState
    detail: FreeText


@message
@dataclass(frozen=True, slots=True)
class WithdrawOffer:
    """Question: let a code be void. Reply: Done."""

    offer_id: str


@message
@dataclass(frozen=True, slots=True)
class PairHello:
    """Question of another machine: begin. Reply: PairWelcome, or Denied."""

    public: bytes
    """Of a key for this exchange alone (X25519)."""
    nonce: bytes


@message
@dataclass(frozen=True, slots=True)
class PairWelcome:
    """Reply to PairHello."""

    exchange_id: str
    machine: str
    """What this machine is called."""
    public: bytes
    nonce: bytes


@message
@dataclass(frozen=True, slots=True)
class PairProof:
    """Question of another machine: it knows the code. Reply: PairAccepted, or Denied. An exchange
    has one."""

    exchange_id: str
    proof: bytes
    sealed: bytes
    """What only somebody with the code can have written, and can read."""
    remote: str
    """The address from which it came."""


@message
@dataclass(frozen=True, slots=True)
class PairAccepted:
    """Reply to PairProof."""

    proof: bytes
    sealed: bytes


@message
@dataclass(frozen=True, slots=True)
class IssuePeerKey:
    """Question: let another machine send this secret as its key. A key that it has already gets it
    as another secret. Reply: KeyMade."""

    machine: str
    secret: str = field(repr=False)


@message
@dataclass(frozen=True, slots=True)
class ForgetPeer:
    """Question of a peer, by its key: forget that the two machines are paired. Reply: Done."""

    key_name: str

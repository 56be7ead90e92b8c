"""The messages between the ranks of a model: rank 0, which is the worker, and its followers.

Rank 0 sends each follower what its engine does next, and everything that its engine decides by a
clock, by chance or by a constraint. They go over a socket pair, each with its length before it
(:mod:`lmx.worker.ranks.wire`); to another machine the same bytes go over TCP, sealed with CURVE
(:mod:`lmx.worker.ranks.link`). Also how a worker has followers started on other machines: it asks
its supervisor, and that one asks theirs. See PROTOCOL.md, "Ranks".
"""

from dataclasses import dataclass

from lmx.protocol.errors import ErrorCode
from lmx.protocol.free_text import FreeText
from lmx.protocol.messages.specs import WorkerSpec
from lmx.protocol.models.ranks import Parallel
from lmx.protocol.states import RankCall
from lmx.protocol.wire.codec import message


@dataclass(frozen=True, slots=True)
class FollowerLink:
    """How a follower reaches rank 0 on another machine."""

    endpoint: str
    """``tcp://ADDRESS:PORT`` of rank 0."""
    server_key: str
    """Rank 0's public key (CURVE, in Z85). The follower draws its own."""
    address: str
    """The IPv4 address by which the other machines reach this one."""
    lease_fd: int
    """An inherited socket, on which the follower sends its supervisor its public key, and then a
    byte with each beat: without one it is ended."""


@message
@dataclass(frozen=True, slots=True)
class FollowerSpec:
    """The configuration of a follower: the first message that it receives, from rank 0; from its
    supervisor, if rank 0 is on another machine."""

    worker: WorkerSpec
    """That of rank 0. It has :attr:`WorkerSpec.ranks`."""
    rank: int
    link: FollowerLink | None = None
    """None: rank 0 is at the other end of stdin."""


@message
@dataclass(frozen=True, slots=True)
class RankAdmit:
    """A row begins. Of how its tokens are drawn a follower needs nothing."""

    sequence_id: int
    prompt: tuple[int, ...]
    max_tokens: int
    constrained: bool = False
    """Whether rank 0 has a constraint for it, and the row may fail by that."""
    prompt_logprobs: int | None = None
    cache_salt: str = ""
    generated_tokens: int = 0
    priority: int = 0


@message
@dataclass(frozen=True, slots=True)
class RankOrder:
    """What the engine of each rank does next, in the order in which it is sent."""

    call: RankCall
    sequence_id: int = 0
    """The row, of a call that is about one."""


@message
@dataclass(frozen=True, slots=True)
class RankSettled:
    """A decision of rank 0's engine, which the engines of the others come to at the same point of
    the same call."""

    what: str
    numbers: tuple[int, ...] = ()


@message
@dataclass(frozen=True, slots=True)
class RankRing:
    """All ranks have a ``ring_address``: these are they, rank 0's first."""

    addresses: tuple[str, ...]
    rdma_devices: tuple[tuple[str, ...], ...] = ()
    """For each rank the name of its RDMA device to each rank, with an empty one to itself: they
    compute over mlx's backend ``jaccl``. Empty: over ``ring``."""


@message
@dataclass(frozen=True, slots=True)
class RankBeat:
    """A follower lives. It is sent each ``beat_interval_s``, and when it is ready to meet."""

    ring_address: str
    """``ADDRESS:PORT`` at which it waits for the others, to make the group with them; empty until
    it does."""
    calls: int
    """How many calls its engine has done."""
    memory_bytes: int
    peak_memory_bytes: int


@message
@dataclass(frozen=True, slots=True)
class RankFailed:
    """A follower ends because it could not load its part, or its engine broke."""

    code: ErrorCode
    message: FreeText


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where a follower on another machine finds rank 0, and is found."""

    endpoint: str
    server_key: str
    address: str
    """As in :class:`FollowerLink`, all of them."""


@message
@dataclass(frozen=True, slots=True)
class WantFollowers:
    """A worker needs its followers (``RanksSpec.hosts``). The supervisor sends FollowersStarted or
    FollowersRefused."""

    instance: str
    digest: str
    """That of the model's files (:mod:`lmx.protocol.host.same_model`)."""
    versions: dict[str, str]
    """What computes the model, by package."""
    meetings: tuple[Meeting, ...]
    """One for each of the hosts."""


@dataclass(frozen=True, slots=True)
class RemoteFollower:
    """A follower on another machine that was started."""

    public_key: str
    pid: int


@message
@dataclass(frozen=True, slots=True)
class FollowersStarted:
    """All machines have started their follower."""

    followers: tuple[RemoteFollower, ...]


@message
@dataclass(frozen=True, slots=True)
class FollowersRefused:
    """A machine has not started its follower. Those that others have started were ended."""

    code: ErrorCode
    message: FreeText


@message
@dataclass(frozen=True, slots=True)
class StartRank:
    """Question of a paired machine: reserve memory for one rank of a model, and start it. Reply:
    RankStarted, or Denied with a sentence."""

    owner: str
    """The name of the key that the machine sent."""
    group: str
    """Its name for all ranks of this worker."""
    model_id: str
    rank: int
    count: int
    parallel: Parallel
    meeting: Meeting
    digest: str
    versions: dict[str, str]
    reserve_bytes: int
    memory_limit_bytes: int
    prefix_cache_bytes: int
    context_length: int | None
    kv_bits: int | None
    max_decode_stall_s: float
    beat_interval_s: float
    silence_s: float

    @property
    def name(self) -> tuple[str, str, int]:
        """What no other rank has on the same machine."""
        return self.owner, self.group, self.rank


@message
@dataclass(frozen=True, slots=True)
class RankStarted:
    """Reply to StartRank: the rank was started."""

    public_key: str
    """The rank's own public key (CURVE, in Z85), by which rank 0 knows it."""
    pid: int
    """The id of its process there."""


@message
@dataclass(frozen=True, slots=True)
class EndRanks:
    """Question of a paired machine: end the ranks of a group that it had started. Reply: Done, also
    if there are none any more."""

    owner: str
    group: str

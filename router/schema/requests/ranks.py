"""What another machine sends to have one rank of its model run here."""

from typing import Annotated, Literal

from pydantic import Field

from lmx.protocol.models.ranks import MOST_RANKS
from lmx.router.schema.validation import Strict

_MOST_BYTES = 2**50
_Bytes = Annotated[int, Field(ge=0, le=_MOST_BYTES)]
_Seconds = Annotated[float, Field(gt=0, le=3600)]


class RankMeeting(Strict):
    """Where the rank finds rank 0, and is found by the others."""

    endpoint: Annotated[str, Field(max_length=64)]
    """`tcp://ADDRESS:PORT` of rank 0, at the address that the request comes from."""
    server_key: Annotated[str, Field(min_length=40, max_length=40)]
    """Rank 0's public key (CURVE, in Z85)."""
    address: Annotated[str, Field(max_length=64)]
    """The IPv4 address by which the other machines reach this one."""


class RankRequest(Strict):
    """The body of POST /admin/ranks."""

    group: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    """The name of all ranks of this load of the model."""
    model: Annotated[str, Field(min_length=1, max_length=256)]
    """The model's id, under which this machine must know it too."""
    rank: Annotated[int, Field(ge=1, lt=MOST_RANKS)]
    """Which rank is to run here; 0 is the worker of the machine that asks."""
    count: Annotated[int, Field(ge=2, le=MOST_RANKS)]
    """How many ranks there are."""
    parallel: Literal["auto", "tensor", "pipeline"]
    """How the model is divided."""
    meeting: RankMeeting
    """How the ranks find each other."""
    digest: Annotated[str, Field(min_length=64, max_length=64)]
    """A hash of config.json and of samples of the weights: the same on all machines."""
    versions: Annotated[dict[str, Annotated[str, Field(max_length=64)]], Field(max_length=16)]
    """The versions of lmx, mlx and mlx-lm: the same on all machines."""
    reserve_bytes: Annotated[int, Field(gt=0, le=_MOST_BYTES)]
    """The memory to reserve."""
    memory_limit_bytes: _Bytes
    """How much of it is the process's."""
    prefix_cache_bytes: _Bytes
    """How much of it prompts may take that are kept."""
    context_length: Annotated[int | None, Field(gt=0, lt=2**31)] = None
    """How many tokens a request may have."""
    kv_bits: Annotated[int | None, Field(ge=4, le=8)] = None
    """The bits of each number in the KV caches."""
    max_decode_stall_s: _Seconds
    """As in the model's configuration."""
    beat_interval_s: _Seconds
    """How often the rank says that it lives."""
    silence_s: Annotated[float, Field(ge=1, le=3600)]
    """It is ended when nothing is heard for so long, from it or by it."""

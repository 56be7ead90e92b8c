"""Keys: what the supervisor keeps of each, what routers need to know, and the questions about them.

A key's secret is never kept: only its SHA-256 is, which is enough for a random text of 256 bits
(docs/decisions/keys-are-hashed.md). The secret is in one reply alone, to whoever has it made.
"""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

from lmx.protocol.free_text import FreeText
from lmx.protocol.wire.codec import encode, message


class KeyScope(StrEnum):
    """What a key opens."""

    INFERENCE = "inference"
    """Requests to models."""
    METRICS = "metrics"
    """The metrics."""
    OPERATOR = "operator"
    """What operators see, the metrics too. It changes nothing."""
    ADMIN = "admin"
    """What operators see and do."""
    PEER = "peer"
    """What another lmx asks, which forwards requests of its own clients."""


class KeyFamily(StrEnum):
    """The clients' APIs that a key may be limited to."""

    OPENAI = "openai"
    """Whatever is of neither of the others."""
    ANTHROPIC = "anthropic"
    OLLAMA = "ollama"


@dataclass(frozen=True, slots=True)
class RateLimits:
    """How much a client may ask for. Where a field is None, there is no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_requests: int | None = None


@dataclass(frozen=True, slots=True)
class DayBudget:
    """How much a key may use on one day of this machine's clock. None: any number."""

    requests: int | None = None
    tokens: int | None = None
    """Of prompts and answers together."""


LOCAL_OWNER: Final = "key_local"
"""The owner of the key of this machine's own commands, which exists once one of them has asked for
it since lmx was started."""


@dataclass(frozen=True, slots=True)
class FormerSecret:
    """A secret that was replaced, and is valid for a while longer."""

    digest: str = field(repr=False)
    until_s: float
    """In Unix time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySettings:
    """What a key opens, and how much. Nothing of it is secret."""

    scopes: tuple[KeyScope, ...] = (KeyScope.INFERENCE,)
    models: tuple[str, ...] = ()
    """Patterns of the ids of the models that it opens, as a shell's. Empty: all models."""
    families: tuple[KeyFamily, ...] = ()
    """The APIs that it opens. Empty: all of them."""
    limits: RateLimits | None = None
    """The key's own limits. None: the limits that hold for every key."""
    budget: DayBudget | None = None
    priority: int | None = None
    """The lowest priority value that requests with this key may have, and the one of those that
    name none. None: requests say it freely, and it is 0 for those that name none."""
    expires_at_s: float | None = None
    """From when on it opens nothing, in Unix time. None: never."""

    def has_expired(self, now_s: float) -> bool:
        """Return whether it opens nothing any more, by the Unix time."""
        return self.expires_at_s is not None and self.expires_at_s <= now_s

    def allows(self, model_id: str) -> bool:
        """Return whether a model may be used with it."""
        return not self.models or any(fnmatchcase(model_id, one) for one in self.models)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey(KeySettings):
    """A key, of the configuration or stored."""

    digest: str = field(repr=False)
    """The SHA-256 of its secret, in hexadecimal digits."""
    owner: str
    """What identifies it and reveals nothing: it stays when the secret is replaced."""
    name: str = ""
    """The name for people; empty if the key has none."""
    created_at_s: float | None = None
    """When it was made, in Unix time; None for a key of the configuration."""
    former: tuple[FormerSecret, ...] = ()

    @classmethod
    def of_secret(
        cls,
        secret: str,
        name: str = "",
        *,
        scopes: tuple[KeyScope, ...] = (KeyScope.INFERENCE,),
        limits: RateLimits | None = None,
        priority: int | None = None,
    ) -> "ApiKey":
        """Return a key of the configuration, which its secret identifies."""
        digest = secret_digest(secret)
        return cls(
            digest=digest,
            owner=f"key_{digest[:12]}",
            name=name,
            scopes=scopes,
            limits=limits,
            priority=priority,
        )

    @property
    def shown_name(self) -> str:
        """What operators call it: its name, or else its owner."""
        return self.name or self.owner

    @property
    def usage_id(self) -> str:
        """What its usage and its budget go by. A key that is made after one of its name was revoked
        has another; one of the configuration that has a name keeps its own with another secret."""
        configured = self.created_at_s is None and self.name
        return f"config:{self.name}" if configured else self.owner

    def digests(self) -> Iterator[tuple[str, float]]:
        """Yield the digest of each secret and until when it is valid, in Unix time, as far as the
        key is."""
        yield self.digest, math.inf
        yield from ((one.digest, one.until_s) for one in self.former)


def secret_digest(secret: str) -> str:
    """Return what is kept of a secret. Any text will do, also one that is not Unicode."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


@message
@dataclass(frozen=True, slots=True)
class Keyring:
    """All keys that routers know, of the configuration and stored. It is published when it has
    changed, and the reply to GetKeyring."""

    keys: tuple[ApiKey, ...] = ()
    required: bool = False
    """Whether requests to models need a key also while none is for them. Otherwise they need
    none then."""
    digest: str = ""
    """It differs if anything else does."""

    @classmethod
    def of(cls, keys: tuple[ApiKey, ...], *, required: bool = False) -> "Keyring":
        """Return a keyring with its digest."""
        ring = cls(keys, required)
        return replace(ring, digest=hashlib.sha256(encode(ring)).hexdigest()[:16])

    @property
    def protects_models(self) -> bool:
        """Whether requests to models need a key."""
        return self.required or any(KeyScope.INFERENCE in key.scopes for key in self.keys)


@message
@dataclass(frozen=True, slots=True)
class GetKeyring:
    """Question of a router that lacks the newest keyring."""


@message
@dataclass(frozen=True, slots=True)
class GetLocalKey:
    """Question of a command of this machine's: with which key does it ask models? The reply is a
    LocalKey. Whoever may ask it may make keys too (docs/decisions/the-local-key.md)."""


@message
@dataclass(frozen=True, slots=True)
class LocalKey:
    """Reply to GetLocalKey, in effect on all routers."""

    secret: str = field(repr=False)
    """Empty: requests need no key."""


@dataclass(frozen=True, slots=True)
class DayUse:
    """What a key has used on a day, as its budget counts it: without requests that ended with an
    error."""

    requests: int
    tokens: int
    """Of prompts and answers together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyView(KeySettings):
    """A key as people see it."""

    name: str
    """Its name, or else what identifies it."""
    configured: bool = False
    """Whether it is of the configuration, and is changed there alone."""
    created_at_s: float | None = None
    """In Unix time."""
    former_until_s: float | None = None
    """Until when its former secret is valid, too, in Unix time; None if none is."""
    key_id: str = ""
    """What its usage goes by."""
    used_today: DayUse | None = None
    """None where only the supervisor was asked (routers know it), and where it can't be read."""


@message
@dataclass(frozen=True, slots=True, kw_only=True)
class AddKey(KeySettings):
    """Question: make a key. Reply: KeyMade, or Denied with the fault of a value."""

    name: str


@message
@dataclass(frozen=True, slots=True)
class RotateKey:
    """Question: give a stored key another secret. Reply: KeyMade."""

    name: str
    grace_s: float = 0.0
    """For how long the secret that it has now stays valid."""


@message
@dataclass(frozen=True, slots=True)
class KeyMade:
    """Reply to AddKey and RotateKey, in effect on all routers unless ``note`` says otherwise."""

    key: KeyView
    secret: str = field(repr=False)
    """The only time that anybody sees it."""
    note: FreeText = ""


@message
@dataclass(frozen=True, slots=True)
class RevokeKey:
    """Question: remove a stored key. ``Done`` means that it opens nothing any more."""

    name: str


@message
@dataclass(frozen=True, slots=True)
class ListKeys:
    """Question: which keys are there? The reply is a KeyList."""


@message
@dataclass(frozen=True, slots=True)
class KeyList:
    """Reply to ListKeys: the keys of the configuration, then the stored ones by name."""

    keys: tuple[KeyView, ...]

"""Decides what a key opens. Pure: who asks is read from the request by
:mod:`lmx.router.http.access`."""

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from lmx.protocol.messages.keys import ApiKey, KeyFamily, Keyring, KeyScope, secret_digest
from lmx.protocol.messages.specs import RouterSpec
from lmx.router.http.endpoint import Access

_OPENED_BY: Final = {
    Access.INFERENCE: frozenset({KeyScope.INFERENCE}),
    Access.PEER: frozenset({KeyScope.PEER, KeyScope.ADMIN}),
    Access.METRICS: frozenset({KeyScope.METRICS, KeyScope.OPERATOR, KeyScope.ADMIN}),
    Access.LOCAL: frozenset({KeyScope.METRICS, KeyScope.OPERATOR, KeyScope.ADMIN}),
    Access.OPERATOR: frozenset({KeyScope.OPERATOR, KeyScope.ADMIN}),
    Access.ADMIN: frozenset({KeyScope.ADMIN}),
}


class Verdict(StrEnum):
    """Whether a request may pass, and why not if it may not."""

    ALLOWED = "allowed"
    ABSENT = "absent"
    """A key is needed and there is none."""
    WRONG = "wrong"
    """It is no key of lmx's."""
    EXPIRED = "expired"
    SCOPE = "scope"
    """It is not for this kind of route."""
    FAMILY = "family"
    """It is not for the route's API."""
    MODEL = "model"
    """It is not for the model."""


@dataclass(frozen=True, slots=True)
class Ring:
    """The keys that a router knows. It is replaced as a whole and never changed."""

    keys: tuple[ApiKey, ...]
    keyless: bool
    """Whether requests to models need no key."""
    several: bool
    """Whether requests to models come with more than one key."""
    digest: str
    """That of the keyring that it is made of."""
    secrets: tuple[tuple[bytes, float, ApiKey], ...] = field(repr=False)
    """The digest of each secret as it is compared, until when it is valid, and its key."""

    @classmethod
    def of(cls, ring: Keyring, admin_key: str = "", metrics_key: str = "") -> "Ring":
        """Return the ring of a keyring and the two keys that have no name. An empty one of these
        opens nothing."""
        for_models = sum(KeyScope.INFERENCE in key.scopes for key in ring.keys)
        # A peer's key does not close what is open to everybody else.
        of_peers = sum(KeyScope.PEER in key.scopes for key in ring.keys)
        unnamed = ((admin_key, KeyScope.ADMIN), (metrics_key, KeyScope.METRICS))
        keys = (
            *ring.keys,
            *(ApiKey.of_secret(text, scopes=(scope,)) for text, scope in unnamed if text),
        )
        return cls(
            keys,
            not ring.protects_models,
            for_models + of_peers > 1,
            ring.digest,
            tuple(
                (digest.encode(), until_s, key) for key in keys for digest, until_s in key.digests()
            ),
        )

    def find(self, secret: str, now_s: float) -> ApiKey | None:
        """Return the key of which this secret is valid at a Unix time. It looks at every key in the
        same time, however much of one is right."""
        sent = secret_digest(secret).encode()
        found = [
            key
            for digest, until_s, key in self.secrets
            if hmac.compare_digest(sent, digest) and now_s < until_s
        ]
        return found[0] if found else None


class Keys:
    """The owner of the ring in effect. ``changed`` is called with each new keyring."""

    def __init__(self, spec: RouterSpec, changed: Callable[[Keyring], None]) -> None:
        self._spec = spec
        self._changed = changed
        self.ring = Ring.of(spec.keyring, spec.admin_key, spec.metrics_key)

    def put(self, ring: Keyring) -> None:
        """Put another keyring into effect."""
        self.ring = Ring.of(ring, self._spec.admin_key, self._spec.metrics_key)
        self._changed(ring)


def judge(
    access: Access,
    family: KeyFamily | None,
    key: ApiKey | None,
    *,
    given: bool,
    keyless: bool,
    local: bool,
    now_s: float,
    forwarded: bool = False,
) -> Verdict:
    """Return whether a request may pass.

    ``family`` is the API of the route, None for a route that clients of all of them use.
    ``key`` is the one that was sent, None if none of lmx's was; ``given`` is whether any text was
    sent as a key. ``keyless`` means that requests to models need no key, ``local`` that only this
    machine can send requests, ``forwarded`` that peers forward requests to the route.
    """
    if access is Access.OPEN:
        return Verdict.ALLOWED
    # A local address may be a reverse proxy's, for which there are keys.
    if keyless and (access is Access.INFERENCE or (access is Access.LOCAL and local)):
        return Verdict.ALLOWED
    if key is None:
        return Verdict.WRONG if given else Verdict.ABSENT
    if key.has_expired(now_s):
        return Verdict.EXPIRED
    if _OPENED_BY[access].isdisjoint(key.scopes) and not (
        forwarded and KeyScope.PEER in key.scopes
    ):
        return Verdict.SCOPE
    if access is not Access.INFERENCE:
        return Verdict.ALLOWED
    if family is not None and key.families and family not in key.families:
        return Verdict.FAMILY
    return Verdict.ALLOWED


def opened_by(access: Access) -> tuple[KeyScope, ...]:
    """Return the scopes that open a kind of route, the least first; none for one that is open. The
    scope of peers opens those routes for requests to models too that they forward."""
    scopes = _OPENED_BY.get(access, frozenset())
    return tuple(scope for scope in KeyScope if scope in scopes)

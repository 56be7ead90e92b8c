"""What adding, rotating and revoking a key make of the stored keys. Pure: secrets are drawn by the
caller."""

import re
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, Final

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.messages.keys import (
    AddKey,
    ApiKey,
    FormerSecret,
    KeyScope,
    KeySettings,
    KeyView,
    secret_digest,
)
from lmx.supervisor.keys.file import StoredKeys

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,59}")
_OWNER: Final = "key_"
"""Keys without a name are shown by their owner, which begins so."""
_OTHER: Final = "other"
"""What the metrics call the keys beyond those that they name."""

_PATTERN: Final = re.compile(r"[!-~]{1,200}")
_MOST_KEYS: Final = 1000
_MOST_PATTERNS: Final = 50
_MOST_GRACE_S: Final = 30 * 86_400.0
_MOST: Final = 10**15
_PRIORITY: Final = 1_000_000


def added(
    stored: StoredKeys,
    configured: Sequence[ApiKey],
    wanted: AddKey,
    secret: str,
    owner: str,
    now_s: float,
) -> tuple[StoredKeys, ApiKey]:
    """Return the keys with another one, and that one. Raises :class:`OperationError`: INVALID_VALUE
    for a value that can't be, KEY_EXISTS for a name that there is."""
    _check(wanted, now_s)
    if any(key.name == wanted.name for key in (*configured, *stored.keys)):
        raise OperationError(
            ErrorCode.KEY_EXISTS,
            f"there is a key {wanted.name!r} already: choose another name, or run `lmx key rotate "
            f"{wanted.name}` for another secret",
            param="name",
        )
    if len(stored.keys) >= _MOST_KEYS:
        raise _invalid("name", f"there are {_MOST_KEYS} keys, as many as can be: revoke some")
    key = ApiKey(
        digest=secret_digest(secret),
        owner=owner,
        name=wanted.name,
        created_at_s=now_s,
        **_settings(wanted),
    )
    for_models = KeyScope.INFERENCE in key.scopes
    keys = tuple(sorted((*stored.keys, key), key=lambda each: each.name))
    return StoredKeys(keys, stored.lost and not for_models), key


def rotated(
    stored: StoredKeys,
    configured: Sequence[ApiKey],
    name: str,
    secret: str,
    grace_s: float,
    now_s: float,
) -> tuple[StoredKeys, ApiKey]:
    """Return the keys with another secret for one of them, and that one. Raises
    :class:`OperationError`: NOT_FOUND, KEY_CONFIGURED, INVALID_VALUE for a key that has expired."""
    key = _find(stored, configured, name)
    if not 0.0 <= grace_s <= _MOST_GRACE_S:
        raise _invalid("grace", "the grace time is between 0 and 30 days")
    if key.has_expired(now_s):
        raise _invalid(
            "name",
            f"the key {name!r} has expired, and another secret would not change that: revoke it, "
            "and add it again",
        )
    # No former secret is valid for longer than the one that is replaced now: without a grace time
    # all of them end.
    ends_s = now_s + grace_s
    former = (*key.former, FormerSecret(key.digest, ends_s))
    former = tuple(FormerSecret(one.digest, min(one.until_s, ends_s)) for one in former)
    kept = tuple(one for one in former if one.until_s > now_s)
    new = replace(key, digest=secret_digest(secret), former=kept)
    return replace(stored, keys=tuple(new if one is key else one for one in stored.keys)), new


def revoked(stored: StoredKeys, configured: Sequence[ApiKey], name: str) -> StoredKeys:
    """Return the keys without one of them. Raises :class:`OperationError`: NOT_FOUND,
    KEY_CONFIGURED."""
    key = _find(stored, configured, name)
    return replace(stored, keys=tuple(one for one in stored.keys if one is not key))


def view(key: ApiKey, now_s: float) -> KeyView:
    """Return a key as people see it."""
    until = [one.until_s for one in key.former if one.until_s > now_s]
    return KeyView(
        name=key.shown_name,
        configured=key.created_at_s is None,
        created_at_s=key.created_at_s,
        former_until_s=max(until, default=None),
        key_id=key.usage_id,
        **_settings(key),
    )


def _settings(of: KeySettings) -> dict[str, Any]:
    return {each.name: getattr(of, each.name) for each in fields(KeySettings)}


def _find(stored: StoredKeys, configured: Sequence[ApiKey], name: str) -> ApiKey:
    for key in stored.keys:
        if key.name == name:
            return key
    if any(key.shown_name == name for key in configured):
        raise OperationError(
            ErrorCode.KEY_CONFIGURED,
            f"the key {name!r} is of the configuration: change it there, and run `lmx reload`",
            param="name",
        )
    known = ", ".join(key.name for key in stored.keys) or "none"
    raise OperationError(
        ErrorCode.NOT_FOUND, f"no key is named {name!r} (known: {known})", param="name"
    )


def _check(wanted: AddKey, now_s: float) -> None:
    if not _NAME.fullmatch(wanted.name):
        raise _invalid(
            "name",
            "a name has at most 60 letters, digits, and of . _ @ + -, and begins with a letter or "
            "a digit",
        )
    if wanted.name.startswith(_OWNER) or wanted.name == _OTHER:
        raise _invalid(
            "name", f"{wanted.name!r} is what lmx itself calls keys: choose another name"
        )
    if not wanted.scopes or len(set(wanted.scopes)) < len(wanted.scopes):
        raise _invalid("scopes", "name each scope once, and at least one")
    limited = (wanted.models, wanted.families, wanted.limits, wanted.budget)
    asks_models = {KeyScope.INFERENCE, KeyScope.PEER}.intersection(wanted.scopes)
    if not asks_models and (any(limited) or wanted.priority is not None):
        raise _invalid(
            "scopes",
            "models, APIs, limits and a priority are of keys with the scope inference or peer: add "
            "one of them, or leave them out",
        )
    if len(wanted.models) > _MOST_PATTERNS or not all(map(_PATTERN.fullmatch, wanted.models)):
        raise _invalid("models", f"at most {_MOST_PATTERNS} patterns of ids, such as 'qwen3-*'")
    if len(set(wanted.families)) < len(wanted.families):
        raise _invalid("families", "name each API once")
    for part in (wanted.limits, wanted.budget):
        for each in () if part is None else fields(part):
            value = getattr(part, each.name)
            if value is not None and not 1 <= value <= _MOST:
                raise _invalid(each.name, f"{each.name} is 1 at least: leave it out for no limit")
    if wanted.priority is not None and abs(wanted.priority) > _PRIORITY:
        raise _invalid("priority", f"a priority is from -{_PRIORITY} to {_PRIORITY}")
    if wanted.expires_at_s is not None and not now_s < wanted.expires_at_s < now_s + 1e10:
        raise _invalid("expires", "the key would have expired already: name a later time")


def _invalid(param: str, message: str) -> OperationError:
    return OperationError(ErrorCode.INVALID_VALUE, message, param=param)

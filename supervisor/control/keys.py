"""Answers the questions of routers and the CLI about keys. A change is answered when every router
checks keys by it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.messages.control import Done
from lmx.protocol.messages.keys import (
    AddKey,
    GetKeyring,
    GetLocalKey,
    KeyMade,
    KeyScope,
    ListKeys,
    LocalKey,
    RevokeKey,
    RotateKey,
)
from lmx.supervisor.control.following import followed
from lmx.supervisor.control.handlers import Handler
from lmx.supervisor.keys.keys import Keys
from lmx.supervisor.router.guard import RouterGuard

_AGAIN_S: Final = 5.0
_PEER_GRACE_S: Final = 300.0
_LATE: Final = (
    "not every router has answered: one that hangs goes by the former keys until it is replaced"
)


class KeyCommands:
    """Answers questions about keys. ``publish`` sends a message to all routers."""

    def __init__(self, keys: Keys, guard: RouterGuard, publish: Callable[[Any], None]) -> None:
        self._keys = keys
        self._guard = guard
        self._publish = publish
        self.handlers: dict[type, Handler] = {
            GetKeyring: lambda _question, _now_s: keys.ring,
            GetLocalKey: lambda _question, _now_s: self._local(),
            ListKeys: lambda _question, _now_s: keys.list(),
            AddKey: lambda question, _now_s: self._made(keys.add(question)),
            RotateKey: lambda question, _now_s: self._made(keys.rotate(question)),
            RevokeKey: lambda question, _now_s: self._revoked(keys.revoke(question)),
        }

    async def _local(self) -> LocalKey:
        local = self._keys.local()
        if self._guard.has_keyring(self._keys.ring.digest) or await self._followed():
            return local
        raise OperationError(ErrorCode.SUPERVISOR_UNAVAILABLE, _LATE, retry_after_s=_AGAIN_S)

    async def put_peer_key(self, name: str, secret: str | None) -> KeyMade:
        """Make the key of a peer, or give it another secret: its former one is valid for a moment
        longer, in case that the other machine does not get this one. Raises
        :class:`OperationError`."""
        try:
            made = self._keys.add(AddKey(name=name, scopes=(KeyScope.PEER,)), secret)
        except OperationError as error:
            if error.code is not ErrorCode.KEY_EXISTS:
                raise
            stored = next(key for key in self._keys.list().keys if key.name == name)
            if stored.scopes != (KeyScope.PEER,) and not stored.configured:
                raise OperationError(
                    ErrorCode.KEY_EXISTS,
                    f"there is a key {name!r} that was made for something else: revoke it with "
                    f"`lmx key revoke {name}`, and pair the machines again",
                ) from error
            made = self._keys.rotate(RotateKey(name, _PEER_GRACE_S), secret)
        return await self._made(made)

    async def revoke(self, name: str) -> Done:
        """Remove a key. Raises :class:`OperationError`."""
        return await self._revoked(self._keys.revoke(RevokeKey(name)))

    async def _made(self, made: KeyMade) -> KeyMade:
        return made if await self._followed() else replace(made, note=_LATE)

    async def _revoked(self, done: Done) -> Done:
        return done if await self._followed() else replace(done, message=f"{done.message}; {_LATE}")

    async def _followed(self) -> bool:
        return await followed(
            lambda: self._publish(self._keys.ring),
            lambda: self._guard.has_keyring(self._keys.ring.digest),
        )

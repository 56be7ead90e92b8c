"""The owner of the stored keys while a supervisor runs, or of their file while none does."""

import secrets
import time
from collections.abc import Callable
from typing import Final

import structlog

from lmx.protocol.errors import OperationError
from lmx.protocol.messages.control import Done
from lmx.protocol.messages.keys import (
    AddKey,
    ApiKey,
    KeyList,
    KeyMade,
    Keyring,
    KeyScope,
    RevokeKey,
    RotateKey,
)
from lmx.supervisor.keys.changes import added, revoked, rotated, view
from lmx.supervisor.keys.file import KeyFile, StoredKeys

_PREFIX: Final = "sk-lmx-"
"""Some programs want a key that begins with ``sk-``, and searches for lost secrets find it."""

log = structlog.get_logger()


class Keys:
    """Changes the keys, and has their file written first: a secret that somebody was given is
    valid after a restart too.

    ``configured`` returns the keys of the configuration in force, ``closed`` whether requests to
    models need a key in any case. ``note`` is called with the name of what was done and a sentence.
    """

    def __init__(
        self,
        file: KeyFile,
        configured: Callable[[], tuple[ApiKey, ...]],
        closed: Callable[[], bool],
        note: Callable[[str, str], None],
    ) -> None:
        self._file = file
        self._configured = configured
        self._closed = closed
        self._note = note
        self._stored = file.load()

    @property
    def ring(self) -> Keyring:
        """What routers must know."""
        return Keyring.of(
            (*self._configured(), *self._stored.keys),
            required=self._closed() or self._stored.lost,
        )

    def list(self) -> KeyList:
        """Return all keys."""
        now_s = time.time()
        keys = (*self._configured(), *self._stored.keys)
        return KeyList(tuple(view(key, now_s) for key in keys))

    def add(self, wanted: AddKey) -> KeyMade:
        """Make a key. Raises :class:`OperationError`, as the next two do."""
        secret, now_s = _PREFIX + secrets.token_urlsafe(32), time.time()
        owner = f"key_{secrets.token_hex(6)}"
        stored, key = added(self._stored, self._configured(), wanted, secret, owner, now_s)
        self._put(stored)
        self._note("key.added", f"the key {key.name} was made ({', '.join(key.scopes)})")
        return KeyMade(view(key, now_s), secret)

    def rotate(self, wanted: RotateKey) -> KeyMade:
        """Give a key another secret."""
        secret, now_s = _PREFIX + secrets.token_urlsafe(32), time.time()
        stored, key = rotated(
            self._stored, self._configured(), wanted.name, secret, wanted.grace_s, now_s
        )
        self._put(stored)
        self._note("key.rotated", f"the key {key.name} has another secret")
        return KeyMade(view(key, now_s), secret)

    def revoke(self, wanted: RevokeKey) -> Done:
        """Remove a key. It is removed also if the file can't be written."""
        stored = revoked(self._stored, self._configured(), wanted.name)
        said = f"revoked {wanted.name}"
        try:
            self._put(stored)
        except OperationError as error:
            self._stored = stored
            said += f", but {error.message}: it is valid again after a restart of the supervisor"
        self._note("key.revoked", f"the key {wanted.name} was revoked")
        return Done(f"{said}{self._open_words()}")

    def _put(self, stored: StoredKeys) -> None:
        self._file.save(stored)
        self._stored = stored

    def _open_words(self) -> str:
        ring = self.ring
        if any(KeyScope.INFERENCE in key.scopes for key in ring.keys):
            return ""
        if ring.required:
            return "; no key for requests to models is left, so that there can be none"
        return "; no key for requests to models is left, so that they need none now"

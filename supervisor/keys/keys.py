"""The owner of the stored keys while a supervisor runs, or of their file while none does."""

import secrets
import time
from collections.abc import Callable
from typing import Final

from lmx.protocol.errors import OperationError
from lmx.protocol.messages import keys as messages
from lmx.protocol.messages.control import Done
from lmx.supervisor.config.schema import Config
from lmx.supervisor.keys.changes import added, revoked, rotated, view
from lmx.supervisor.keys.file import KeyFile, StoredKeys
from lmx.supervisor.keys.notices import key_notices

_LOCAL_NAME: Final = "this machine"
"""No key can be made with this name: it has a space."""

_PREFIX: Final = "sk-lmx-"
"""Some programs want a key that begins with ``sk-``, and searches for lost secrets find it."""


def new_secret() -> str:
    """Return what nobody can guess, for a key."""
    return _PREFIX + secrets.token_urlsafe(32)


class Keys:
    """Changes the keys, and has their file written first: a secret that somebody was given is
    valid after a restart too.

    ``configured`` returns the keys of the configuration in effect, ``closed`` whether requests to
    models need a key in any case. ``note`` is called with the name of what was done and a sentence.
    """

    def __init__(
        self,
        file: KeyFile,
        configured: Callable[[], tuple[messages.ApiKey, ...]],
        closed: Callable[[], bool],
        note: Callable[[str, str], None],
    ) -> None:
        self._file = file
        self._configured = configured
        self._closed = closed
        self._note = note
        self._stored = file.load()
        self._local: tuple[messages.ApiKey, str] | None = None
        """The key of this machine's own commands and its secret, once one was requested. It is in
        no file and no list, and ends with this process."""

    @property
    def ring(self) -> messages.Keyring:
        """What routers must know."""
        keys = (*self._configured(), *self._stored.keys)
        required = self._closed() or self._stored.lost
        if self._local is not None and messages.Keyring(keys, required).protects_models:
            keys = (*keys, self._local[0])
        return messages.Keyring.of(keys, required=required)

    def local(self) -> messages.LocalKey:
        """Return the secret with which this machine's own commands ask models."""
        if not self.ring.protects_models:
            return messages.LocalKey("")
        if self._local is None:
            secret = new_secret()
            key = messages.ApiKey(
                digest=messages.secret_digest(secret),
                owner=messages.LOCAL_OWNER,
                name=_LOCAL_NAME,
                created_at_s=time.time(),
            )
            self._local = key, secret
        return messages.LocalKey(self._local[1])

    def list(self) -> messages.KeyList:
        """Return all keys."""
        now_s = time.time()
        keys = (*self._configured(), *self._stored.keys)
        return messages.KeyList(tuple(view(key, now_s) for key in keys))

    def add(self, wanted: messages.AddKey, secret: str | None = None) -> messages.KeyMade:
        """Make a key, of a secret that is given or drawn. Raises :class:`OperationError`, as the
        next two do."""
        secret, now_s = secret or new_secret(), time.time()
        owner = f"key_{secrets.token_hex(6)}"
        stored, key = added(self._stored, self._configured(), wanted, secret, owner, now_s)
        self._put(stored)
        self._note("key.added", f"the key {key.name} was made ({', '.join(key.scopes)})")
        return messages.KeyMade(view(key, now_s), secret)

    def rotate(self, wanted: messages.RotateKey, secret: str | None = None) -> messages.KeyMade:
        """Give a key another secret, which is given or drawn."""
        secret, now_s = secret or new_secret(), time.time()
        stored, key = rotated(
            self._stored, self._configured(), wanted.name, secret, wanted.grace_s, now_s
        )
        self._put(stored)
        self._note("key.rotated", f"the key {key.name} has another secret")
        return messages.KeyMade(view(key, now_s), secret)

    def revoke(self, wanted: messages.RevokeKey) -> Done:
        """Remove a key. It is removed also if the file can't be written."""
        stored = revoked(self._stored, self._configured(), wanted.name)
        gone = tuple(set(self._stored.keys) - set(stored.keys))
        for_models = messages.Keyring(gone).protects_models
        said = f"revoked {wanted.name}"
        try:
            self._put(stored)
        except OperationError as error:
            self._stored = stored
            said += f", but {error.message}: it is valid again after a restart of the supervisor"
        self._note("key.revoked", f"the key {wanted.name} was revoked")
        return Done(f"{said}{self._open_words() if for_models else ''}")

    def report(self, config: Config) -> None:
        """Note what people should know about the keys with a configuration that is in effect."""
        for notice in key_notices(config, self._stored.keys):
            self._note("key.odd", notice)

    def _put(self, stored: StoredKeys) -> None:
        self._file.save(stored)
        self._stored = stored

    def _open_words(self) -> str:
        if messages.Keyring((*self._configured(), *self._stored.keys)).protects_models:
            return ""
        if self.ring.required:
            return (
                "; no key for requests to models is left, and others can reach lmx or keys were "
                "lost: none is answered until there is another key"
            )
        return "; no key for requests to models is left, so that they need none now"

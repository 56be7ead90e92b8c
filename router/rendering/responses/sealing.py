"""Thoughts, and summaries of conversations, as tokens that a client keeps and sends back. Pure.

A token is signed with a key of this lmx, so that nothing else is taken for what its models wrote.
It is not encrypted: what it says is the client's own.
"""

import base64
import binascii
import hashlib
import hmac
import zlib
from typing import Final

_BEGINNING: Final = "lmx1."
_SIGNATURE_BYTES: Final = 16
_MOST_BYTES: Final = 16 * 1024 * 1024
"""The most that the text of one token may have."""


def sealing_key(secret: str) -> bytes:
    """Return the key for tokens, made of a secret that lasts."""
    return hmac.digest(secret.encode(), b"lmx sealed reasoning", "sha256")


def compaction_key(key: bytes, owner: str | None) -> bytes:
    """Return the key for the summaries of one owner, made of that for thoughts: nobody else's are
    taken for them, nor thoughts for a summary."""
    return hmac.digest(key, b"compaction of " + (owner or "").encode(), "sha256")


def sealed(text: str, key: bytes) -> str:
    """Return a text as a token."""
    packed = zlib.compress(text.encode("utf-8", "surrogatepass"))
    return _BEGINNING + base64.urlsafe_b64encode(_signature(packed, key) + packed).decode()


def is_sealed(token: str, key: bytes) -> bool:
    """Return whether a token was made with this key. Its text is not looked at."""
    return _packed(token, key) is not None


def unsealed(token: str, key: bytes) -> str | None:
    """Return the text of a token; None if it was not made with this key."""
    packed = _packed(token, key)
    if packed is None:
        return None
    return zlib.decompressobj().decompress(packed, _MOST_BYTES).decode("utf-8", "surrogatepass")


def _packed(token: str, key: bytes) -> bytes | None:
    if not token.startswith(_BEGINNING):
        return None
    try:
        raw = base64.b64decode(token[len(_BEGINNING) :], altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    signature, packed = raw[:_SIGNATURE_BYTES], raw[_SIGNATURE_BYTES:]
    return packed if hmac.compare_digest(signature, _signature(packed, key)) else None


def _signature(packed: bytes, key: bytes) -> bytes:
    return hmac.digest(key, packed, hashlib.sha256)[:_SIGNATURE_BYTES]

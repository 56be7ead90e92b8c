"""What a code proves, and how the keys are sealed with it.

Both machines draw a key for this exchange alone (X25519), and derive one secret from both keys,
from all that they have sent, and from the code, which is stretched by scrypt. Each proves by an
HMAC that it has the same secret, and seals its part with ChaCha20-Poly1305. So whoever reads along
learns nothing, even if the code is guessed later, and whoever stands in between would have to guess
it within its life: a code has 49 bits, and each guess costs some hundredths of a second of
computing.
"""

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lmx.protocol.errors import ErrorCode, OperationError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

LETTERS: Final = "23456789ABCDEFGHJKMNPQRSTVWXYZ"
"""Without those that look like others."""

CODE_LETTERS: Final = 10
PUBLIC_BYTES: Final = 32
NONCE_BYTES: Final = 16
PROOF_BYTES: Final = 32
MOST_SEALED_BYTES: Final = 2048

_VERSION: Final = b"lmx pairing 1"
_SCRYPT: Final = {"n": 2**14, "r": 8, "p": 1, "dklen": 32}
"""16 MiB, and some hundredths of a second."""

_NO_NONCE: Final = bytes(12)
"""Each sealing key is used once."""


class WrongCodeError(Exception):
    """The other side has another code, or what it sent was changed on the way."""


def new_code() -> str:
    """Return a code."""
    return "".join(secrets.choice(LETTERS) for _ in range(CODE_LETTERS))


def shown_code(code: str) -> str:
    """Return a code as people read it: ``K7QZM-4XH2P``."""
    half = CODE_LETTERS // 2
    return f"{code[:half]}-{code[half:]}"


def read_code(text: str) -> str:
    """Return the code that a person has typed. Raises :class:`OperationError` (invalid_value)."""
    code = text.upper().replace("-", "").replace(" ", "")
    if len(code) != CODE_LETTERS or not set(code) <= set(LETTERS):
        raise OperationError(
            ErrorCode.INVALID_VALUE,
            f"{text!r} is no code of `lmx pair`: one is like {shown_code('K7QZM4XH2P')}",
        )
    return code


@dataclass(frozen=True, slots=True)
class OwnPart:
    """What one machine draws for an exchange."""

    private: "X25519PrivateKey"
    public: bytes
    nonce: bytes


def draw() -> OwnPart:
    """Return a machine's part of an exchange. The first call imports the library, which takes some
    hundredths of a second."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    private = X25519PrivateKey.generate()
    public = private.public_key().public_bytes_raw()
    return OwnPart(private, public, secrets.token_bytes(NONCE_BYTES))


@dataclass(frozen=True, slots=True)
class Said:
    """All that both machines have sent before the first proof."""

    exchange_id: str
    machine: str
    """The name of the machine that shows the code."""
    taker_public: bytes
    taker_nonce: bytes
    shower_public: bytes
    shower_nonce: bytes

    def digest(self) -> bytes:
        """Return a digest that differs if any part does."""
        parts = (
            _VERSION,
            self.exchange_id.encode(),
            self.machine.encode(),
            self.taker_public,
            self.taker_nonce,
            self.shower_public,
            self.shower_nonce,
        )
        hashed = hashlib.sha256()
        for part in parts:
            hashed.update(len(part).to_bytes(4, "big") + part)
        return hashed.digest()


class Secret:
    """What both machines derive if they have the same code."""

    def __init__(self, own: OwnPart, other_public: bytes, said: Said, code: str) -> None:
        """This computes for some hundredths of a second. Raises :class:`WrongCodeError` for what
        can't be a key of the other side."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        digest = said.digest()
        try:
            shared = own.private.exchange(X25519PublicKey.from_public_bytes(other_public))
        except ValueError as error:
            raise WrongCodeError from error
        stretched = hashlib.scrypt(code.encode(), salt=digest, **_SCRYPT)
        self._digest = digest
        self._key = hmac.digest(stretched, shared + digest, "sha256")

    def proof(self, side: str) -> bytes:
        """Return what proves that a side has the secret: ``taker`` or ``shower`` of the code."""
        return self._derived(f"{side} proves")

    def check(self, side: str, proof: bytes) -> None:
        """Raise :class:`WrongCodeError` unless a side's proof is right."""
        if not hmac.compare_digest(self.proof(side), proof):
            raise WrongCodeError

    def seal(self, side: str, content: Mapping[str, Any]) -> bytes:
        """Return what a side says, so that only the other one can read it. Once for each side."""
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

        cipher = ChaCha20Poly1305(self._derived(f"{side} seals"))
        return cipher.encrypt(_NO_NONCE, json.dumps(content).encode(), self._digest)

    def open(self, side: str, sealed: bytes) -> Any:
        """Return what a side has sealed. Raises :class:`WrongCodeError`. The proof was checked
        before."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

        cipher = ChaCha20Poly1305(self._derived(f"{side} seals"))
        try:
            return json.loads(cipher.decrypt(_NO_NONCE, sealed, self._digest))
        except (InvalidTag, ValueError) as error:
            raise WrongCodeError from error

    def _derived(self, use: str) -> bytes:
        return hmac.digest(self._key, use.encode(), "sha256")

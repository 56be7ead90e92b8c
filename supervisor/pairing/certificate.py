"""The certificate that this machine shows to its peers. They know it by its fingerprint alone: no
authority signs it, its names and dates mean nothing, and it is another one only if its file is
removed."""

import hashlib
import ssl
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from lmx.protocol.host.regular_file import read_regular
from lmx.protocol.messages.peers import Peer
from lmx.supervisor.state.atomic_write import atomic_write

_MOST_BYTES: Final = 64 * 1024
_NO_END: Final = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
"""What RFC 5280 has for certificates without an end."""

_making = threading.Lock()
"""Two machines may be paired with this one at the same time, and are to see one certificate."""


def own_fingerprint(path: Path) -> str:
    """Return the SHA-256 of the certificate in a file, and make the file if there is none: only its
    owner can read it. This reads the disk, and the first call computes for some hundredths of a
    second. Raises ``OSError``, also for a file that holds no certificate."""
    with _making:
        try:
            text = read_regular(path, _MOST_BYTES).decode("ascii", "replace")
        except FileNotFoundError:
            text = _made()
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            atomic_write(path, text, lasting=True)
    end = "-----END CERTIFICATE-----"
    try:
        found = ssl.PEM_cert_to_DER_cert(text.partition(end)[0] + end)
    except ValueError as error:
        raise OSError(f"{path} holds no certificate: remove it, and pair again") from error
    return hashlib.sha256(found).hexdigest()


def _made() -> str:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "lmx")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC))
        .not_valid_after(_NO_END)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return (certificate.public_bytes(serialization.Encoding.PEM) + private).decode()


def pinned(name: str, url: str, key: str, certificate: str) -> Peer:
    """Return the peer at an address by which the machines were paired. From now on it is asked over
    TLS, and believed with this certificate alone. The certificate of an address that was ``https``
    already is that of the proxy which answers there, and an authority's. Pure."""
    if not url.startswith("http://"):
        return Peer(name, url, key=key)
    return Peer(name, f"https://{url.removeprefix('http://')}", key=key, certificate=certificate)

"""What another machine sends to be paired with this one. Bytes are in base64."""

from typing import Annotated

from pydantic import Field

from lmx.router.schema.validation import Strict

_Short = Annotated[str, Field(min_length=1, max_length=100)]


class PairHelloRequest(Strict):
    """The body of POST /pair/hello."""

    public: _Short
    """The public part of a key for this exchange alone (X25519)."""
    nonce: _Short
    """16 random bytes."""


class PairProofRequest(Strict):
    """The body of POST /pair/proof."""

    exchange_id: _Short
    """That of the answer to POST /pair/hello."""
    proof: _Short
    """What shows that the other machine knows the code: protocol/PROTOCOL.md."""
    sealed: Annotated[str, Field(min_length=1, max_length=4096)]
    """What the other machine says of itself, with its key for this one."""

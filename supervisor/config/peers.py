"""Other servers that may answer this machine's requests, as the configuration has them."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from lmx.protocol.messages.peers import Peer, PeerKind
from lmx.supervisor.config.values import Key, Section, server_address

MachineName = Annotated[
    str, Field(min_length=1, max_length=60, pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")
]
"""What stands behind the ``@`` of ``model@machine``."""


def _address(text: str) -> str:
    has_user = "has a user or a password in it: the peer's key goes into `key`"
    address = server_address(text, "a server: http://studio:8000", has_user)
    return address.rstrip("/").removesuffix("/v1")


class PeerConfig(Section):
    """Another server, which answers requests of this machine's clients where it can do so better:
    docs/scaling.md."""

    name: MachineName = Field(examples=["studio"])
    """The name of that machine here. A request for `MODEL@NAME` is for it alone."""
    url: Annotated[str, AfterValidator(_address)] = Field(examples=["http://studio:8000"])
    """Its address."""
    key: Key | None = Field(None, examples=["KEY"])
    """The key that is sent there: of another lmx one with the scope `peer`, which `lmx key add NAME
    --scope peer` makes there. No client's key is ever sent."""
    kind: Literal["lmx", "openai"] = "lmx"
    """`lmx`, or `openai` for any other server with OpenAI's API: its models are offered as they
    are, and nothing is loaded, killed or known of its load."""

    @property
    def peer(self) -> Peer:
        """The same for the router."""
        key = "" if self.key is None else self.key.get_secret_value()
        return Peer(self.name, self.url, PeerKind(self.kind), key)

"""What requests may bring along beside text, and from where."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field

from lmx.protocol.messages.specs import MediaLimits
from lmx.protocol.wire.codec import MAX_MESSAGE_BYTES
from lmx.supervisor.config.needs import Needs
from lmx.supervisor.config.values import Seconds, Section, Size

_MOST_ITEM_BYTES: Final = MAX_MESSAGE_BYTES


def _network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text.strip()))
    except ValueError as error:
        raise ValueError(f"is no address and no network, as 192.168.1.0/24: {error}") from error


Networks = Annotated[
    tuple[Annotated[str, AfterValidator(_network)], ...],
    BeforeValidator(
        lambda value: (value,) if isinstance(value, str) else value,
        json_schema_input_type=str | tuple[str, ...],
    ),
]
"""Addresses and networks. One may stand without a list."""


class MediaConfig(Section):
    """Images, sounds and videos in requests, and how the router fetches those that come as a
    URL."""

    allowed_networks: Annotated[Networks, Needs.ROUTER] = ()
    """Networks and addresses from which media are fetched though they are not public:
    `192.168.1.0/24`, `127.0.0.1`, `fd00::/8`. Whoever may send requests can then reach every HTTP
    server there. Without any, only public addresses are asked."""
    max_items: Annotated[int, Needs.ROUTER] = Field(32, ge=1, le=1000)
    """How many images, sounds and videos a request may have, those of earlier turns included."""
    max_item_bytes: Annotated[Size, Needs.ROUTER] = Field(
        ByteSize(32 * 1024**2), ge=1024, le=_MOST_ITEM_BYTES
    )
    """A larger image, sound or video is refused with a 413."""
    max_held_bytes: Annotated[Size, Needs.ROUTER] = Field(ByteSize(512 * 1024**2), ge=1024**2)
    """The media of all requests that the router holds at a time, until their workers have them.
    A request for which there is no room gets a 429."""
    max_fetches: Annotated[int, Needs.ROUTER] = Field(16, ge=1, le=256)
    """How many media are fetched at a time, for all requests; half as many for one client. Others
    wait."""
    connect_timeout_s: Annotated[Seconds, Needs.ROUTER] = 5.0
    """The longest time for finding a server's address and connecting to it."""
    read_timeout_s: Annotated[Seconds, Needs.ROUTER] = 10.0
    """The longest time in which a server sends nothing."""
    total_timeout_s: Annotated[Seconds, Needs.ROUTER] = 30.0
    """The longest time for one URL, with its redirects, and with its turn among others."""

    @property
    def spec(self) -> MediaLimits:
        """The same for the router."""
        return MediaLimits(
            self.allowed_networks,
            self.max_items,
            int(self.max_item_bytes),
            int(self.max_held_bytes),
            self.max_fetches,
            self.connect_timeout_s,
            self.read_timeout_s,
            self.total_timeout_s,
        )

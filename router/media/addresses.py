"""Which addresses a URL of a request may lead to. Pure.

A router stands in a network that its clients may not see from where they are, and it would fetch
from there what they can't: another program's pages on this machine, a neighbour's web interface,
the keys that a cloud gives to its machines. So only addresses of the public Internet are asked,
and those that the configuration lists.

Source: IANA's special-purpose address registries for IPv4 and IPv6 (RFC 6890). The networks are
written out here, because what Python's ``is_global`` says of some of them differs between Python's
releases.
"""

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_NOT_PUBLIC_V4: Final = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this host
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # shared by a provider's clients; Alibaba's metadata; Tailscale
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # Azure's metadata
        "169.254.0.0/16",  # link-local; the metadata of most clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments; Oracle's metadata
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)

_UNICAST_V6: Final = IPv6Network("2000::/3")
"""The only part of IPv6 that is given out. Outside of it are loopback, private (``fc00::/7``),
link-local and multicast addresses, those that stand for IPv4 addresses (mapped ``::ffff:0:0/96``,
NAT64 ``64:ff9b::/96`` and ``64:ff9b:1::/48``), and what nobody has yet."""

_NAT64: Final = IPv6Network("64:ff9b::/96")
"""In a network that has IPv6 alone, a name service makes these of IPv4 addresses (DNS64, RFC 6147),
and a gateway leads to those. So they are public if those are. The prefixes of a network's own
(RFC 8215) are not known here."""

_NOT_PUBLIC_V6: Final = tuple(
    IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments: Teredo, which holds IPv4 addresses, benchmarks, ORCHID
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4, which holds IPv4 addresses
        "3fff::/20",  # documentation
    )
)

_WIDEST_OWN: Final = {4: 8, 6: 32}
"""An interface with a wider network than this many bits (a tunnel to everywhere, say) says nothing
about which addresses are near."""


class AddressRule:
    """Decides which addresses may be asked, by the configuration's ``allowed_networks``."""

    def __init__(self, allowed_networks: Iterable[str] = ()) -> None:
        self._allowed = tuple(ip_network(text) for text in allowed_networks)

    def admits(self, address: Address, own_networks: Sequence[Network] = ()) -> bool:
        """Return whether an address may be asked. ``own_networks`` are those of this machine's
        interfaces: an address there may look public, and be this machine or its neighbour."""
        if isinstance(address, IPv6Address) and address.scope_id is not None:
            # A zone is of this machine alone.
            return False
        if any(address in network for network in self._allowed):
            return True
        if isinstance(address, IPv6Address) and address in _NAT64:
            address = IPv4Address(int(address) & 0xFFFF_FFFF)
        return is_public(address) and not any(address in network for network in own_networks)


def is_public(address: Address) -> bool:
    """Return whether an address is one of the public Internet, and stands for no other."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_V4)
    return address in _UNICAST_V6 and not any(address in network for network in _NOT_PUBLIC_V6)


def own_network(address: str, netmask: str | None) -> Network | None:
    """Return the network of an interface's address; None for text that is no IP address.

    ``netmask`` is an IPv4 netmask or an IPv6 one, as the system writes it.
    """
    try:
        own = ip_address(address.partition("%")[0])
        bits = own.max_prefixlen if not netmask else int(ip_address(netmask)).bit_count()
    except ValueError:
        return None
    if bits < _WIDEST_OWN[own.version]:
        bits = own.max_prefixlen
    return ip_network((own, bits), strict=False)


def literal_address(host: str) -> Address | None:
    """Return the address that a URL's host is, None for a name, which has a letter and no colon.

    Raises ``ValueError`` for anything else, as ``127.1`` or ``2130706433``: the HTTP library takes
    it for an address too, does not resolve it, and lets the system read it.
    """
    try:
        return ip_address(host)
    except ValueError:
        if ":" in host or not any(map(str.isalpha, host)):
            raise
        return None

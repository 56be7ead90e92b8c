"""Only addresses of the public Internet are asked, and those that the configuration lists."""

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from aiohttp.helpers import is_ip_address
from hypothesis import example, given
from hypothesis import strategies as st

from lmx.router.media.addresses import AddressRule, is_public, literal_address, own_network

RULE = AddressRule()

REFUSED = [
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.100.100.200",
    "100.127.255.255", "127.0.0.1", "127.255.255.254", "168.63.129.16", "169.254.169.254",
    "169.254.170.2", "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.0.2.1", "192.88.99.1",
    "192.168.0.1", "192.168.255.255", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1",
    "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255", "::", "::1", "::127.0.0.1",
    "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::ffff:0:7f00:1", "64:ff9b::7f00:1", "64:ff9b:1::1",
    "100::1", "2001::1", "2001:0:53aa:64c:0:7b8:80ff:fffe", "2001:2::1", "2001:10::1", "2001:20::1",
    "2001:db8::1", "2002:7f00:1::1", "3fff::1", "4000::1", "5f00::1", "fc00::1", "fd00:ec2::254",
    "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "ff0e::1",
]  # fmt: skip

PUBLIC = [
    "1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0",
    "126.255.255.255", "128.0.0.0", "168.63.129.15", "169.253.255.255", "172.15.255.255",
    "172.32.0.0", "192.0.1.0", "192.167.255.255", "192.169.0.0", "198.17.255.255", "198.20.0.0",
    "223.255.255.255", "2001:200::1", "2606:4700:4700::1111", "2a00:1450:4001:81b::200e", "3ffe::1",
]  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_an_address_that_is_not_public_is_refused(text: str) -> None:
    assert not RULE.admits(ip_address(text))


@pytest.mark.parametrize("text", PUBLIC)
def test_a_public_address_is_asked(text: str) -> None:
    assert RULE.admits(ip_address(text))
    assert not RULE.admits(ip_address(text), (ip_network(text),)), "a network of this machine"


@given(st.ip_addresses(v=4))
def test_ipv4_is_public_only_where_python_says_so_too(address: IPv4Address) -> None:
    if is_public(address):
        assert address.is_global
        assert not (address.is_private or address.is_loopback or address.is_link_local)
        assert not (address.is_multicast or address.is_reserved or address.is_unspecified)


@given(
    st.ip_addresses(v=6) | st.ip_addresses(network="2000::/3") | st.ip_addresses(network="::/64")
)
def test_ipv6_is_public_only_where_python_says_so_too(address: IPv6Address) -> None:
    if is_public(address):
        assert address.is_global
        assert address.ipv4_mapped is None
        assert address.teredo is None
        assert address.sixtofour is None
        assert not (address.is_private or address.is_loopback or address.is_link_local)
        assert not (address.is_multicast or address.is_site_local or address.is_unspecified)


@given(st.ip_addresses(v=4))
def test_no_ipv6_address_that_stands_for_an_ipv4_one_is_asked_unless_that_may_be(
    inner: IPv4Address,
) -> None:
    for text in (f"::ffff:{inner}", f"::{inner}", f"64:ff9b:1::{inner}", f"::ffff:0:{inner}"):
        assert not RULE.admits(ip_address(text))
    assert RULE.admits(ip_address(f"64:ff9b::{inner}")) is RULE.admits(inner)


@given(st.ip_addresses())
def test_what_is_listed_is_asked(address: IPv4Address | IPv6Address) -> None:
    rule = AddressRule((str(address),))
    assert rule.admits(address, (ip_network(address),))


def test_a_listed_network_opens_itself_alone() -> None:
    rule = AddressRule(("192.168.1.0/24", "fd00::/8"))
    assert rule.admits(ip_address("192.168.1.7"))
    assert rule.admits(ip_address("fd12::1"))
    assert not rule.admits(ip_address("192.168.2.7"))
    assert not rule.admits(ip_address("127.0.0.1"))
    assert not rule.admits(ip_address("::ffff:192.168.1.7"))


def test_the_networks_of_interfaces() -> None:
    own = own_network("192.0.1.17", "255.255.255.0")
    assert own == ip_network("192.0.1.0/24")
    assert not RULE.admits(ip_address("192.0.1.200"), (own,))
    assert own_network("2606:4700::1", "ffff:ffff:ffff:ffff::") == ip_network("2606:4700::/64")
    assert own_network("fe80::1%lo0", None) == ip_network("fe80::1")
    # A tunnel to everywhere is only its own end.
    assert own_network("9.9.9.9", "128.0.0.0") == ip_network("9.9.9.9")
    assert own_network("aa:bb:cc:dd:ee:ff", None) is None


@pytest.mark.parametrize("host", ["localhost", "0x7f.0.0.1", "a.example", "1.2.3.4.example"])
def test_names_are_no_addresses(host: str) -> None:
    assert literal_address(host) is None


@given(st.text("0123456789.:", min_size=1) | st.text("09.:x①-_% ", min_size=1) | st.text())
@example("127.1")
@example("2130706433")
@example("0177.0.0.1")
@example("①②⑦.①")
@example("127.0.0.1.")
@example("1:2")
def test_what_aiohttp_takes_for_an_address_is_read_or_refused(host: str) -> None:
    """aiohttp gives such a host to the system without asking the resolver."""
    try:
        found = literal_address(host)
    except ValueError:
        return
    assert found is not None or not is_ip_address(host)


def test_an_ipv4_address_behind_nat64_is_judged_as_itself() -> None:
    for inner, admitted in (("8.8.8.8", True), ("127.0.0.1", False), ("169.254.169.254", False)):
        assert RULE.admits(ip_address(f"64:ff9b::{inner}")) is admitted
    own = (ip_network("8.8.8.0/24"),)
    assert not RULE.admits(ip_address("64:ff9b::8.8.8.8"), own)
    # The gateway's own network is not the one that is listed.
    assert not AddressRule(("10.0.0.0/8",)).admits(ip_address("64:ff9b::10.1.2.3"))
    assert AddressRule(("64:ff9b::a00:0/104",)).admits(ip_address("64:ff9b::10.1.2.3"))
    assert not RULE.admits(ip_address("64:ff9b:1::8.8.8.8"))
    assert not RULE.admits(ip_address("64:ff9b::1:8.8.8.8"))


def test_a_literal_is_an_address() -> None:
    assert literal_address("127.0.0.1") == IPv4Address("127.0.0.1")
    assert literal_address("::1") == IPv6Address("::1")

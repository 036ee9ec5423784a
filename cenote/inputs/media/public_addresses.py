"""Tell public IP addresses from loopback, private, reserved and cloud-internal ones."""

from __future__ import annotations

import ipaddress

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

# not public, but is_global in the ipaddress module of some Python versions
_RESERVED_NETWORKS = [
    ipaddress.ip_network(network)
    for network in (
        "192.0.0.0/24",  # protocol assignments; a cloud metadata service
        "192.88.99.0/24",  # 6to4 relays
        "168.63.129.16/32",  # a cloud-internal service at an ordinary address
        "2001::/23",  # protocol assignments, Teredo
        "2001:db8::/32",
        "3fff::/20",
    )
]
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def is_public(address: IPAddress) -> bool:
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped)
        if address in _NAT64:
            return is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        if address not in _GLOBAL_UNICAST:
            return False
        if address.sixtofour is not None and not is_public(address.sixtofour):
            return False
    is_special = address.is_multicast or address.is_reserved or address.is_unspecified or address.is_loopback
    return address.is_global and not is_special and not any(address in network for network in _RESERVED_NETWORKS)

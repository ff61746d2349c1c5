"""Which addresses may be dialled for an account (case 105).

Invariants: the check is made on what the name resolves to, and the checked address itself is dialled, so that a second
look-up cannot give another one; every refusal reads the same, so that nobody can map an inside network by trying.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from dataclasses import dataclass, field
from typing import Final

from streams.errors import AddressRefused, ConnectionLost

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

_REFUSED: Final = "the host cannot be used: its name does not lead to an address that may be dialled"
_MAX_HOST_CHARS: Final = 253
_MAX_ADDRESSES: Final = 8  # tried for one connection
# Not private by the registry's letter, but inside all the same.
_INSIDE: Final[tuple[IpNetwork, ...]] = tuple(
    ipaddress.ip_network(text) for text in ("100.64.0.0/10", "192.0.0.0/24", "198.18.0.0/15", "fec0::/10")
)
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
# All that is global unicast in version 6 (RFC 4291, 2.4, IANA's registry); besides it there are other ways to lead to a
# version 4 address, such as 64:ff9b:1::/48 (RFC 8215), ::ffff:0:0:0/96 and ::/96.
_GLOBAL: Final = ipaddress.ip_network("2000::/3")


@dataclass(frozen=True, slots=True)
class AddressPolicy:
    """`allow_private` lifts the ban on loopback and private networks; `allowed` lifts it for the networks it names.

    Unspecified, multicast and reserved addresses, and link-local ones with the metadata services among them, are never
    dialled unless `allowed` names them.
    """

    allow_private: bool = False
    allowed: tuple[IpNetwork, ...] = field(default=())

    def permits(self, address: IpAddress) -> bool:
        """Whether this address may be dialled."""
        if any(address.version == network.version and address in network for network in self.allowed):
            return True
        inner = _inner(address)
        if inner is not None:
            return self.permits(inner)
        if address.is_unspecified or address.is_multicast or address.is_link_local:
            return False
        if address.version == 4 and address.is_reserved:  # in version 6 "reserved" takes in the loopback address
            return False
        inside = (
            address.is_private
            or address.is_loopback
            or any(address.version == network.version and address in network for network in _INSIDE)
        )
        if inside:
            return self.allow_private
        return address.is_global and (address.version == 4 or address in _GLOBAL)


def _inner(address: IpAddress) -> ipaddress.IPv4Address | None:
    """The IPv4 address that an IPv6 address leads to."""
    if not isinstance(address, ipaddress.IPv6Address):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return None


async def resolve(host: str, port: int, policy: AddressPolicy) -> list[tuple[socket.AddressFamily, str]]:
    """Addresses of the host that may be dialled, in the resolver's order.

    Raises:
        AddressRefused: there is none, because the name is unknown or because policy forbids all of them.
        ConnectionLost: the resolver itself failed; trying later may help.
    """
    if not host or len(host) > _MAX_HOST_CHARS or any(char.isspace() or not char.isprintable() for char in host):
        raise AddressRefused(_REFUSED)
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    except socket.gaierror as error:
        if error.errno in (socket.EAI_AGAIN, socket.EAI_MEMORY, socket.EAI_SYSTEM):
            raise ConnectionLost("the host's name could not be looked up", code="name_lookup_failed") from None
        raise AddressRefused(_REFUSED) from None
    except (UnicodeError, ValueError):
        raise AddressRefused(_REFUSED) from None
    usable: list[tuple[socket.AddressFamily, str]] = []
    for family, _, _, _, sockaddr in found:
        text = str(sockaddr[0])
        try:
            address = ipaddress.ip_address(text.split("%", 1)[0])
        except ValueError:
            continue
        if policy.permits(address) and (family, text) not in usable:
            usable.append((family, text))
    if not usable:
        raise AddressRefused(_REFUSED)
    return usable[:_MAX_ADDRESSES]

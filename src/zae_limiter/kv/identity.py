"""The identity of a client: an address, normalised and hashed into a key."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from ..core import addresses

UNKNOWN = "unknown"
"""The address of all clients whose address cannot be read: they share a bucket and are never exempt."""


@dataclass(frozen=True, slots=True)
class ClientIdentity:
    """A client by its normalised address; the key shows a hash of it only."""

    normalized_ip: str
    key_hash: str = field(init=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha256(self.normalized_ip.encode()).hexdigest()
        object.__setattr__(self, "key_hash", digest[:16])

    @classmethod
    def from_ip(cls, raw: str | None, ipv6_prefix: int = 64) -> ClientIdentity:
        """Return the client at an address as a server or a header writes it.

        Port, brackets and zone are dropped, IPv4 inside IPv6 is IPv4, and IPv6 is cut to the network of ``ipv6_prefix``
        bits that one client has at its disposal.
        """
        address = addresses.parse(raw) if isinstance(raw, str) else None
        return cls(UNKNOWN if address is None else addresses.network(address, ipv6_prefix))

    @property
    def kv_key(self) -> str:
        """The key of the client's bucket."""
        return f"rate_limit:ip:{self.key_hash}"

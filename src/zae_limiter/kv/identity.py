"""Who a client is: an address, normalised and hashed into a key."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from ..core import addresses

UNKNOWN = "unknown"
"""What all clients share whose address cannot be read: a bucket, never an exemption."""


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
        """The client at an address as a server or a header writes it: port, brackets and zone are dropped, IPv4 inside
        IPv6 is IPv4, and IPv6 is cut to the network that one client has at its disposal.
        """
        address = addresses.parse(raw) if isinstance(raw, str) else None
        return cls(UNKNOWN if address is None else addresses.network(address, ipv6_prefix))

    @property
    def kv_key(self) -> str:
        """The key of the client's bucket."""
        return f"rate_limit:ip:{self.key_hash}"

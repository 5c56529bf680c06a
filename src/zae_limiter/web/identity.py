"""The identity of a client, as an entity id.

An id says of which kind it is, and different identities have different ids, whatever texts they are made of: no user
can be named so that it shares the bucket of an address. What cannot stand in an id is percent-encoded, what is too
long is hashed; ``~`` marks a hash and is therefore encoded elsewhere.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from urllib.parse import quote

from ..core import names
from ..core.addresses import LONGEST, Address, network, parse
from ..core.errors import InvalidIdentifierError, ValidationError

_KINDS = ("ip", "key", "header", "user")
_ENTITY = "entity"
_OTHER = "other"
_TAGS = tuple(f"{tag}:" for tag in (*_KINDS, _OTHER))
assert names.ADDRESS_TAG in _TAGS
_LONGEST = 200
_KEY_DIGITS = 32
_CACHE_SIZE = 4096
_PART = "/@+=,;!*()[]|"
"""The characters that stay as they are, beside letters, digits and ``_.-``, in a part that a colon ends."""
_LAST = f":{_PART}"


@dataclass(frozen=True, slots=True)
class Identity:
    """The owner of the tokens that a request takes.

    ``kind``: ``ip``, ``key``, ``header``, ``user``, ``entity``, or one of yours. ``value``: who it is of that kind.
    ``entity_id``: the entity id made from both.

    >>> Identity.ip("[2001:db8:0:1::5]:443").entity_id
    'ip:2001:db8:0:1::/64'
    >>> Identity.user("a#b").entity_id, Identity.entity("org-7").entity_id
    ('user:a%23b', 'org-7')
    """

    kind: str
    value: str
    entity_id: str = field(init=False, repr=False, compare=False)
    """Valid for every ``kind`` and ``value``, and a different one for each."""

    def __post_init__(self) -> None:
        made = _make_entity_id(_check_text("kind", self.kind), _check_text("value", self.value))
        object.__setattr__(self, "entity_id", made)

    @classmethod
    def ip(cls, address: Address | str | None, ipv6_prefix: int = 64) -> Identity:
        """Return a client by its address, IPv6 by network of ``ipv6_prefix`` bits; all without one are the same."""
        return _identify_address(None if isinstance(address, str) and len(address) > LONGEST else address, ipv6_prefix)

    @classmethod
    def api_key(cls, key: str) -> Identity:
        """Return the holder of an API key; only a hash of ``key`` is kept."""
        return cls("key", _hash(_check_text("key", key))[:_KEY_DIGITS])

    @classmethod
    def header(cls, name: str, value: str) -> Identity:
        """Return whoever sends ``value`` in the header ``name``, in any case."""
        return cls("header", f"{_escape(_check_text('name', name).lower(), _PART)}:{_check_text('value', value)}")

    @classmethod
    def user(cls, user_id: str | int) -> Identity:
        """Return an authenticated user."""
        return cls("user", str(user_id) if isinstance(user_id, int) else user_id)

    @classmethod
    def entity(cls, entity_id: str) -> Identity:
        """Return an entity by its id, which stays as it is unless it is invalid or looks like one of another kind."""
        return cls(_ENTITY, entity_id)


@lru_cache(_CACHE_SIZE)
def _identify_address(address: Address | str | None, ipv6_prefix: int) -> Identity:
    known = parse(address) if isinstance(address, str) else address
    return Identity("ip", "unknown" if known is None else network(known, ipv6_prefix))


def _make_entity_id(kind: str, value: str) -> str:
    if kind == _ENTITY:
        with contextlib.suppress(InvalidIdentifierError):
            if not names.entity_id(value).startswith(_TAGS):
                return value
    tag = kind if kind in _KINDS else _OTHER
    if len(kind) + len(value) <= _LONGEST:
        # without a colon for an entity, after kind and colon for a kind that has no tag
        start = "" if kind in (*_KINDS, _ENTITY) else f"{_escape(kind, _PART)}:"
        made = f"{tag}:{start}{_escape(value, _PART if kind == _ENTITY else _LAST)}"
        if len(made) <= _LONGEST:
            return made
    return f"{tag}:~{_hash(f'{len(kind)}:{kind}{value}')}"


def _escape(text: str, plain: str) -> str:
    return quote(text, plain, errors="surrogatepass").replace("~", "%7E")


def _hash(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _check_text(name: str, value: object) -> str:
    if not isinstance(value, str):  # the error shows the type only: the value may be a secret
        raise ValidationError(name, type(value), "must be a string; decode bytes, or use str()")
    return value

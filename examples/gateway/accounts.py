"""Who may call: an organisation, its projects and their keys, kept in the limiter's own store.

A key is an entity whose id is made of a hash of it. So the store is also where keys are looked up, a key is
revoked by deleting its entity, and nobody who reads the store can call the gateway.
"""

from __future__ import annotations

from zae_limiter import Limit, RateLimiter
from zae_limiter.web import Identity

ORGANISATION = "acme"
KEYS = {"sk-search-1": "search", "sk-search-2": "search", "sk-support-1": "support"}
"""The demo keys and their projects. Yours are random and shown to their owner once."""


async def entity_of(limiter: RateLimiter, key: str) -> str | None:
    """The entity of a key; None for a key that nobody has been given."""
    entity_id = Identity.api_key(key).entity_id
    return None if await limiter.get_entity(entity_id) is None else entity_id


async def seed(limiter: RateLimiter) -> None:
    """Create the demo accounts and their limits, which count per model, unless they are there already."""
    if await limiter.get_entity(ORGANISATION) is not None:
        return
    await limiter.set_system_defaults([Limit.per_minute("rpm", 3), Limit.per_minute("tpm", 1_000)])
    await limiter.create_entity(ORGANISATION)
    await limiter.set_limits(ORGANISATION, [Limit.per_minute("rpm", 6), Limit.per_minute("tpm", 4_000)])
    for project in dict.fromkeys(KEYS.values()):
        await limiter.create_entity(project, parent_id=ORGANISATION, cascade=True)
        await limiter.set_limits(project, [Limit.per_minute("rpm", 5), Limit.per_minute("tpm", 2_000)])
    for key, project in KEYS.items():
        await limiter.create_entity(Identity.api_key(key).entity_id, parent_id=project, cascade=True)

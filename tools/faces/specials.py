"""Exceptions to the rules of the faces: which classes have one, where it is, and members that need another body."""

from __future__ import annotations

from typing import NamedTuple

from zae_limiter import Lease, RateLimiter, Repository, RepositoryBuilder

WRAPPED = (Repository, RateLimiter)
"""Classes whose face holds one of them. What they inherit has a face of its own that does the same."""
REPHRASED = (RepositoryBuilder, Lease)
"""Classes whose face is the same code without ``await``."""

MODULES = {
    "limiter.lease": "limiter.sync_lease",  # leases use what is private in their package
    "limiter.limiter": "sync.facade",
    "limiter.queries": "sync.facade",
    "repository.buckets": "sync.operations",
    "repository.configs": "sync.policies",
    "repository.credits": "sync.operations",
    "repository.entities": "sync.operations",
    "repository.history": "sync.operations",
    "repository.manifest": "sync.repository",
    "repository.namespaces": "sync.repository",
}
"""The modules of faces by those of the async classes. Any other face is in the module of ``sync`` of the same name."""


class Special(NamedTuple):
    """Another body for a member, with OTHERS for all arguments but the first, passed on."""

    body: str
    reason: str


COPIED = "the code of the async one, except that it passes on `self._inner` and not itself"

SPECIALS = {
    "RateLimiter.__init__": Special(
        """
self._inner = BlockingRateLimiter(repository._inner if isinstance(repository, SyncRepository) else repository, OTHERS)
self.repository = SyncRepository._of(self._inner.repository, repository)
self._options, self._port = self._inner.leasing
""",
        "its repository has a face too",
    ),
    "RateLimiter.acquire": Special(COPIED, "every request begins here, and one call less counts"),
    "Repository.is_blocking": Special("is_blocking: ClassVar[bool] = True", "in this it has to differ"),
    "Repository.builder": Special(COPIED, "it makes a builder of the face"),
    "Repository.namespace": Special(
        """
opens = self._inner.namespace.opens
return NamespaceName(self._inner.namespace_name, lambda *given: self._of(run(opens(*given))))
""",
        "it opens a repository when it is called, which needs a face",
    ),
    "RepositoryBuilder.build": Special(
        "return SyncRepository._of(run(self._open(BlockingRepository)))", "the repository needs a face"
    ),
}
"""Members of async classes whose rule does not fit, and why."""

ADDED = {
    "RateLimiter": "_inner: BlockingRateLimiter",
    "Repository": """
_inner: BlockingRepository

@classmethod
def _of(cls, inner: BlockingRepository, given: object = None) -> Self:
    'Return the face of a repository, which is the ``given`` one if that is a face.'
    if isinstance(given, cls):
        return given
    repository = cls.__new__(cls)
    repository._inner = inner
    return repository
""",
}
"""The beginnings of faces that hold something else than an instance of the async class."""

ENTRY = '''"""The blocking facade: the same objects and the same logic, driven without an event loop.

A blocking store finishes inside the await without suspending, so each coroutine is run to its end by one ``send``.
Signatures are those of the async form without ``await``.

{note}
"""

from ..limiter.blocking import BlockingRateLimiter as BlockingRateLimiter, BlockingRepository as BlockingRepository
from ..limiter.sync_lease import SyncLease as SyncLease
from .facade import SyncRateLimiter as SyncRateLimiter
from .repository import SyncRepository as SyncRepository, SyncRepositoryBuilder as SyncRepositoryBuilder
'''
"""``sync/__init__.py``."""

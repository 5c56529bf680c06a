"""The name of a repository's namespace: a string that can be called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..core.values import OnUnavailable

T = TypeVar("T")


class NamespaceName(str, Generic[T]):
    """The name of the namespace. Called with another name, it opens that namespace of the same store.

    Copies and pickles of it are plain strings.
    """

    opens: Callable[[str, OnUnavailable | str | None, int | None], T]

    def __new__(cls, name: str, opens: Callable[[str, OnUnavailable | str | None, int | None], T]) -> NamespaceName[T]:
        """Return ``name``, which calls ``opens`` when it is called."""
        made = super().__new__(cls, name)
        made.opens = opens
        return made

    def __call__(
        self, name: str, *, on_unavailable: OnUnavailable | str | None = None, bucket_ttl_multiplier: int | None = None
    ) -> T:
        """Return a repository of the namespace ``name`` over the same store; closing it closes nothing.

        Raise `NamespaceNotFoundError` if it is not registered. ``on_unavailable`` is stored as what acquires of the
        namespace do when the store is unavailable. ``bucket_ttl_multiplier`` is for how many times the time that it
        takes to fill a bucket is kept after its last use; None for that of this repository.
        """
        return self.opens(name, on_unavailable, bucket_ttl_multiplier)

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)

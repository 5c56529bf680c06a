"""The repository: entities, limits, namespaces, audit and usage, written once over the store port."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .repository import Repository as Repository
else:

    def __getattr__(name: str) -> object:
        """Return a name that 0.17 had at this path (`zae_limiter.v017`)."""
        if name != "Repository":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from .repository import Repository

        return Repository

"""The limiter: acquire, lease, looking. Written once as coroutines over the store and runtime ports."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..core.values import OnUnavailable as OnUnavailable
    from .limiter import RateLimiter as RateLimiter
else:

    def __getattr__(name: str) -> object:
        """Return a name that 0.17 had at this path (`zae_limiter.v017`)."""
        if name in ("OnUnavailable", "RateLimiter"):
            from importlib import import_module

            return getattr(import_module("zae_limiter"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

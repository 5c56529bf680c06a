"""A rate limiter for calls whose cost is known only afterwards.

Names are loaded on first use: ``import zae_limiter`` alone costs next to nothing.
"""

from typing import TYPE_CHECKING

from ._version import __version__

if TYPE_CHECKING:
    from ._public import *  # noqa: F403  # the list of names is kept there
else:
    from importlib import import_module

    def __getattr__(name: str) -> object:
        if name == "__all__" or not name.startswith("_"):
            public = import_module("._public", __name__)
            if hasattr(public, name):
                return getattr(public, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *import_module("._public", __name__).__all__})

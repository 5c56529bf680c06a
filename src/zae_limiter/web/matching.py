"""Which rules are for a request: for each way to read its path, the first one that matches.

A plain request is read in one way, so one rule is for it. Where an app could route a request by several texts, or where
a rule matches a text loosely only, nobody knows which handler serves it: every rule that may be the one is charged, so
that no spelling trades one limit for another. A request that is astray is charged by every rule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .paths import Paths
    from .templates import Template


class Matcher:
    """Matches the texts of one request with rules; each text belongs to the first rule that matches it."""

    __slots__ = ("_astray", "_open", "_paths")

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._astray = paths.astray
        self._open = dict.fromkeys((paths.main, *paths.others), True)
        """The texts without a rule: True where none matches at all, False where one matches, but only loosely."""

    @property
    def is_done(self) -> bool:
        """Whether there is no text left."""
        return not (self._open or self._astray)

    def limit(self, templates: Sequence[Template]) -> bool:
        """Take the texts that match; return whether there are any, or whether the request is astray."""
        found = self._astray
        for text, untouched in tuple(self._open.items()):
            loosely = False
            for template in templates:
                if template.matches_loosely(text):
                    loosely = True
                    if template.matches_exactly(text):
                        del self._open[text]
                        found = True
                        break
            else:
                if loosely and untouched:
                    self._open[text] = False
                    found = True
        return found

    def exempt(self, templates: Sequence[Template]) -> bool:
        """Take the main text of a plain request if it matches exactly, and return whether it does.

        Whoever spells it otherwise is limited.
        """
        main = self._paths.main
        if self._paths.plain and main in self._open and any(template.matches_exactly(main) for template in templates):
            del self._open[main]
            return True
        return False

    def take_rest(self) -> bool:
        """Take all texts; return whether an app could route by one of them."""
        found = self._paths.main in self._open if self._paths.plain else not self.is_done
        self._open.clear()
        self._astray = False
        return found

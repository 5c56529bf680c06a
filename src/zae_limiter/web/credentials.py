"""API keys as header lines carry them.

An app may read a header in several ways: the first line, the last, all lines joined with commas, the word after the
scheme. A client must not choose a bucket by sending a header that the app and the limiter read differently, so every
key that an app could find is looked at.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ..core.errors import ZAELimiterError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MOST_KEYS = 8
"""A request with more keys than this is refused: each may be a query to a database."""
_BEARER = "bearer"
_SEPARATORS = re.compile(r"[,\s]+")


class SeveralKeysError(ZAELimiterError):
    """A request carries several API keys, so nobody can say whose tokens it takes; the middleware answers 400.

    The client's address is charged for it, once for each of the ``looked_up`` keys that ``accept`` was asked about.
    """

    def __init__(self, looked_up: int = 0) -> None:
        super().__init__("The request carries several API keys.")
        self.looked_up = looked_up


class FoundKeys(NamedTuple):
    """The keys in some header lines: ``texts`` are whole values, ``words`` what stands in them between separators.

    ``foreign`` are words of other schemes, which are keys only if somebody knows them: some apps do not look at the
    scheme.
    """

    texts: Sequence[str]
    words: Sequence[str]
    foreign: Sequence[str] = ()

    @property
    def distinct(self) -> list[str]:
        """Every key once, whole values first."""
        return list(dict.fromkeys((*self.texts, *self.words)))

    @property
    def only(self) -> str | None:
        """The key, where all words are the same one: a key holds no comma and no space."""
        return self.words[0] if len(set(self.words)) == 1 else None


def find_keys(lines: Iterable[str]) -> FoundKeys:
    """Return what may be a key in the lines of a header such as ``x-api-key``.

    >>> find_keys(["k1", " k1 "]).distinct, find_keys(["k1,k2"]).distinct, find_keys(["Bearer k1"]).only
    (['k1'], ['k1,k2', 'k1', 'k2'], 'k1')
    """
    texts = [text for text in map(str.strip, lines) if text]
    return FoundKeys(texts, [word for text in texts for word in _split_words(text)])


def find_bearer_tokens(lines: Iterable[str]) -> FoundKeys:
    """Return what may be a token in the lines of ``authorization``.

    A token belongs to the scheme Bearer or to none. Credentials of other schemes are no keys: they may differ from
    request to request.

    >>> find_bearer_tokens(["bearer  k1"] * 2).distinct, find_bearer_tokens(["Basic YTpi, Bearer k1"]).distinct
    (['k1'], ['k1'])
    """
    texts: list[str] = []
    words: list[str] = []
    foreign: list[str] = []
    different = list(dict.fromkeys(map(str.strip, lines)))
    for line in (*different, ",".join(different)) if len(different) > 1 else different:  # some frameworks join them
        scheme, *rest = line.split(None, 1) or [_BEARER]
        if scheme.lower() == _BEARER or not rest:
            texts += [text.strip() for text in rest] if scheme.lower() == _BEARER else [scheme]
            words += _split_words(line)
        else:
            words += _find_bearer_words(line)
            foreign += _find_words_after_schemes(line)
    return FoundKeys(texts, words, foreign)


def _split_words(text: str) -> list[str]:
    """Return the words between separators, without the name of the scheme."""
    return [word for word in _SEPARATORS.split(text) if word and word.lower() != _BEARER]


def _find_bearer_words(line: str) -> list[str]:
    """Return the words of a line of another scheme that stand after Bearer or, at its beginning, after no scheme."""
    found: list[str] = []
    ours = True
    for part in line.split(","):
        words = part.split()
        if len(words) > 1 or (words and words[0].lower() == _BEARER):
            ours = words[0].lower() == _BEARER
            words = words[1:]
        if ours:
            found += words
    return found


def _find_words_after_schemes(line: str) -> list[str]:
    """Return the words of a line that an app would take for the token if it ignores the scheme."""
    parts = [words for words in map(str.split, line.split(",")) if len(words) > 1]
    return list(dict.fromkeys(word for words in (*parts, line.split()) for word in (words[1], words[-1])))

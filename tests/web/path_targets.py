"""Request targets that try to reach a handler without being taken for it: a seed makes the same ones every time."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

PLAIN = (
    "/",
    "/v1/chat",
    "/v1/models",
    "/items/7",
    "/numbers/42",
    "/files/a/b/raw",
    "/files/raw",
    "/files/a",
    "/reports/2026-11.json",
    "/dir/",
    "/dir",
    "/health",
    "/sub",
    "/sub/x",
    "/elsewhere",
    "/elsewhere/at/all",
)
ODD = (
    *("//v1//chat", "/v1/ch%ffat", "/v1%c3/chat", "/%80/v1/chat", "/v1/chat#x", "/v1/ch%61t#x", "/filesX", "/FILESx/y"),
    *("/v1/chat/", "/V1/Chat", "/v1/%63hat", "/h%65alth", "/health#x", "/items/a%2fb", "/subX", "/dir", "/health/.."),
)
"""Spellings that frameworks are known to read in ways of their own."""
PREFIXES = (
    *("", "", "", "/api", "/api", "/api", "/api/", "//api", "/API", "/api/api", "/x/api", "/apiapi", "/api/x/api"),
    *(
        "/t",
        "/t",
        "/t/api",
        "/api/t",
        "/t//",
        "/.",
        "/..",
        "/api/..",
        "/api/.",
        "http://testserver",
        "http://h/api",
        "x",
    ),
    *("/", "//", "/api//", "/api\n", "/%61pi", "/v1", "/health", "/health/api", "/files", "/items"),
)
PIECES = (
    *("/", "//", "///", "/.", "/..", "/./", "/../", ".", "..", "%2f", "%2F", "%252f", "%2e", "%2e%2e", "%5c", "\\"),
    *("%0a", "%0a", "%0a", "%0d", "%0d%0a", "%09", "%0b", "%00", "%20", "+", "%85", "%c2%85", "%e2%80%a8", "%1c"),
    *(";", ";a=b", "%3b", "%3f", "?", "%23", "%25", "%250a", "%2525", "%", "%zz", ":", "@", "*", "{id}", "~", "-"),
    *("%c3%a9", "%ff", "%c0%af", "%e9", "%ed%a0%80", "%f0%9f%8d%95", "%c5%bf", "%e2%84%aa", "%d9%a3", "%cc%81"),
    *("#", "#x", "#/v1/chat", "x", "X", "%ff%ff", "%fe", "%80"),
    *("a", "A", "0", "_", "/v1/chat", "/health", "/files/", "/raw", "/items/", ".json", "/api", "/sub", "/t"),
)


def target_of(random: Random) -> str:
    """One target: a path of a route, mostly below some prefix and mostly with something odd in it."""
    target = random.choice(PREFIXES) + random.choice(PLAIN)
    if random.random() < 0.05:
        target = "".join(random.choices(PIECES, k=random.randint(1, 6)))
    for _ in range(random.choice((0, 1, 1, 2, 3))):
        target = random.choice(CHANGES)(target, random)
    return target if target else "/"


def _insert(target: str, random: Random) -> str:
    place = random.randint(0, len(target))
    return target[:place] + random.choice(PIECES) + target[place:]


def _append(target: str, random: Random) -> str:
    return target + random.choice(PIECES)


def _replace_segment(target: str, random: Random) -> str:
    segments = target.split("/")
    segments[random.randrange(len(segments))] = random.choice(PIECES)
    return "/".join(segments)


def _double_slash(target: str, random: Random) -> str:
    places = [place for place, character in enumerate(target) if character == "/"] or [0]
    place = random.choice(places)
    return target[:place] + "/" + target[place:]


def _encode(target: str, random: Random) -> str:
    place = random.randrange(len(target)) if target else 0
    character = target[place : place + 1] or "/"
    encoded = f"%{ord(character):02x}" if character.isascii() else character
    return target[:place] + (encoded if random.random() < 0.7 else encoded.replace("%", "%25")) + target[place + 1 :]


def _change_case(target: str, random: Random) -> str:
    return random.choice((target.upper(), target.swapcase(), target.title(), target.lower()))


def _repeat(target: str, random: Random) -> str:
    times = random.choice((2, 3, 40, 700))
    return target + random.choice(("a", "/a", "/", "/..", "%0a", "-", "/raw")) * times


def _through(target: str, random: Random) -> str:
    return random.choice(("/static/..", "/v1/chat/..", "/health/../", "/files/x/../..", "/api/..")) + target


def _insert_invalid(target: str, random: Random) -> str:
    """The target with bytes inside that are not UTF-8."""
    place = random.randint(0, len(target))
    return target[:place] + random.choice(("%ff", "%c3", "%80", "%fe%ff", "%ed%a0%80")) + target[place:]


def _end(target: str, random: Random) -> str:
    return target + random.choice(("%0a", "%0a", "%0a%0a", "%0d%0a", "/%0a", "%0a/", "//", "///"))


CHANGES: tuple[Callable[[str, Random], str], ...] = (
    *(_insert, _insert, _insert, _append, _append, _replace_segment),
    *(_double_slash, _encode, _change_case, _repeat, _through, _end, _end, _insert_invalid, _insert_invalid),
)

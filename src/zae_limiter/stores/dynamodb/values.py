"""Convert images to DynamoDB's typed JSON and back, exactly.

An attribute that DynamoDB's own types cannot hold exactly (fractions, numbers of more than 38 digits, maps with an
empty key, very deep nesting) is stored as a binary one with its JSON.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from ...core.errors import CorruptRecordError
from ...records.algebra import TTL, Image, Key

Typed: TypeAlias = dict[str, Any]
"""One value with its type: ``{"N": "5"}``."""

Item: TypeAlias = dict[str, Typed]
"""All attributes of a record as DynamoDB sends them, its keys among them."""

PK = "PK"
SK = "SK"

_EXACT = 10**38
_DEEPEST = 30


class _Inexact(Exception):
    """DynamoDB's types would not give this value back as it is."""


def encode(value: Any) -> Typed:
    """Return a value with its type."""
    try:
        return _exact(value, 0)
    except _Inexact:
        text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
        return {"B": base64.b64encode(text.encode()).decode()}


def encode_all(values: Iterable[Any]) -> list[Typed]:
    """Return values with their types; most are whole numbers and texts."""
    return [
        {"N": str(value)}
        if type(value) is int and -_EXACT < value < _EXACT
        else {"S": value}
        if type(value) is str
        else encode(value)
        for value in values
    ]


def encode_key(key: Key) -> Item:
    """Return a record's key as DynamoDB takes it."""
    return {PK: {"S": key[0]}, SK: {"S": key[1]}}


def encode_item(key: Key, image: Image) -> Item:
    """Return a whole record as DynamoDB takes it."""
    return {PK: {"S": key[0]}, SK: {"S": key[1]}, **dict(zip(image, encode_all(image.values()), strict=True))}


def decode(item: Mapping[str, Typed]) -> Image:
    """Return the image of a record: all its attributes but the keys. Raise `CorruptRecordError` if it is unreadable."""
    image: Image = {}
    try:
        for name, typed in item.items():
            for kind, value in typed.items():
                if kind == "N":
                    try:
                        image[name] = int(value)
                    except ValueError:
                        image[name] = _number(value)
                elif kind in ("S", "BOOL"):
                    image[name] = value
                else:
                    image[name] = _DECODERS[kind](value)
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError) as error:
        raise _damage(item, f"{name} cannot be read ({error})") from None
    if type(image.get(TTL, 0)) not in (int, float):  # no condition on it holds
        raise _damage(item, f"its expiry ({TTL}) is no number but {image[TTL]!r:.60}")
    image.pop(PK, None)
    image.pop(SK, None)
    return image


def _damage(item: Mapping[str, Typed], what: str) -> CorruptRecordError:
    where = " ".join(str(item[part].get("S")) for part in (PK, SK) if part in item)
    return CorruptRecordError(f"The record {where} is damaged: {what}. Write or delete it again; a bucket is reset.")


def key_of(item: Mapping[str, Typed]) -> Key:
    """Return the key of a record."""
    return Key(item[PK]["S"], item[SK]["S"])


def _exact(value: Any, depth: int) -> Typed:
    if value is None:
        return {"NULL": True}
    if isinstance(value, bool):
        return {"BOOL": value}
    if isinstance(value, int) and -_EXACT < value < _EXACT:
        return {"N": str(int(value))}
    if isinstance(value, str):
        return {"S": str.__str__(value)}
    if depth > _DEEPEST:
        raise _Inexact
    if isinstance(value, Mapping):
        if not all(isinstance(name, str) and name for name in value):
            raise _Inexact
        return {"M": {name: _exact(each, depth + 1) for name, each in value.items()}}
    if isinstance(value, list | tuple):
        return {"L": [_exact(each, depth + 1) for each in value]}
    raise _Inexact


def _number(text: str) -> int | float:
    from decimal import Decimal

    exact = Decimal(text)
    whole = int(exact)
    return whole if whole == exact else float(exact)


def _decode_value(typed: Typed) -> Any:
    ((kind, value),) = typed.items()
    return _DECODERS[kind](value)


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "N": _number,
    "S": lambda text: text,
    "BOOL": lambda truth: truth,
    "NULL": lambda _: None,
    "M": lambda fields: {name: _decode_value(typed) for name, typed in fields.items()},
    "L": lambda items: [_decode_value(typed) for typed in items],
    "B": lambda text: json.loads(base64.b64decode(text, validate=True)),
    "SS": sorted,
    "NS": lambda texts: sorted(map(_number, texts)),
    "BS": sorted,
}

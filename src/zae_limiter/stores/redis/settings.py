"""The settings in a Redis URL: where the servers are, how to log in, and how long to wait.

``redis://user:password@host:6379/0?prefix=zae&timeout=5``; several hosts, with commas, for a cluster or for sentinels;
``redis+sentinel://host:26379/service/0`` names the service in its path.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple
from urllib.parse import unquote

from ...records.usage import USAGE_RETENTION_DAYS
from ..urls import USAGE, parse_options, quote_part, split_url, url_error

PREFIX = "zae"
_PREFIX = re.compile(r"[A-Za-z0-9_.:/-]{1,64}")
_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^:\[\]]*)(?::(?P<port>\d{1,5}))?")
_DATABASES = 1_000_000

_OPTIONS: dict[str, type] = {
    "prefix": str,
    "timeout": float,
    "connect_timeout": float,
    "max_connections": int,
    "db": str,
    "username": str,
    "password": str,
    "client_name": str,
    "sentinel_username": str,
    "sentinel_password": str,
    "ssl_ca_certs": str,
    "ssl_certfile": str,
    "ssl_keyfile": str,
    "ssl_cert_reqs": str,
    **USAGE,
}


class Address(NamedTuple):
    """Where a server listens; a port of 0 makes the host the path of a Unix socket."""

    host: str
    port: int

    def __str__(self) -> str:
        return self.host if not self.port else f"{self.host}:{self.port}"


class Scheme(NamedTuple):
    """What a scheme stands for."""

    kind: str
    tls: bool = False
    port: int = 6379


SCHEMES = {
    "redis": Scheme("single"),
    "rediss": Scheme("single", tls=True),
    "valkey": Scheme("single"),
    "valkeys": Scheme("single", tls=True),
    "unix": Scheme("single"),
    "redis+cluster": Scheme("cluster"),
    "rediss+cluster": Scheme("cluster", tls=True),
    "redis+sentinel": Scheme("sentinel", port=26379),
    "rediss+sentinel": Scheme("sentinel", tls=True, port=26379),
}


class Settings(NamedTuple):
    """Everything a URL says."""

    kind: str
    addresses: tuple[Address, ...]
    login: dict[str, Any]
    """Arguments of every connection to a data node, as redis-py names them."""
    sentinel_login: dict[str, Any]
    service: str = ""
    prefix: str = PREFIX
    timeout: float = 5.0
    connect_timeout: float = 2.0
    max_connections: int = 50
    usage_retention_days: int = USAGE_RETENTION_DAYS


def parse(url: str) -> Settings:
    """Parse a URL. Connects to nothing. Raise `ValidationError` if it is invalid."""
    parts = split_url(url)
    scheme = SCHEMES[parts.scheme.lower()]
    given = parse_options(url, parts, _OPTIONS)
    if parts.fragment:
        raise url_error(url, "has a fragment; write # in a name or password as %23")
    who, at, hosts = parts.netloc.rpartition("@")
    login = _login(url, who if at else "", given)
    tls = _tls(url, scheme, given)
    addresses: tuple[Address, ...]
    if parts.scheme.lower() == "unix":
        if hosts or not parts.path.strip("/"):
            raise url_error(url, "needs the path of a socket: unix:///run/redis.sock?db=0")
        addresses, service, db = (Address(unquote(parts.path), 0),), "", given.pop("db", "0")
    else:
        addresses = tuple(_address(url, scheme, host) for host in hosts.split(","))
        service, db = _path(url, scheme, parts.path, given)
    sentinel_login = {name: given.pop(f"sentinel_{name}", None) for name in ("username", "password")}
    if scheme.kind == "single" and len(addresses) > 1:
        raise url_error(url, "has several hosts; use redis+cluster:// or redis+sentinel://")
    if scheme.kind != "sentinel" and any(sentinel_login.values()):
        raise url_error(url, "has sentinel options, which only redis+sentinel:// takes")
    login |= {"db": _database(url, scheme, db), "client_name": given.pop("client_name", None)} | tls
    prefix = given.get("prefix", PREFIX)
    if not _PREFIX.fullmatch(prefix):
        raise url_error(
            url, f"has the prefix {quote_part(url, prefix)}; use 1 to 64 letters, digits, '_', '.', ':', '/' and '-'"
        )
    return Settings(scheme.kind, addresses, login, sentinel_login | tls, service, **given)


def _login(url: str, who: str, given: dict[str, Any]) -> dict[str, Any]:
    name, _, secret = who.partition(":")
    login = {"username": unquote(name) or None, "password": unquote(secret) or None}
    for field, value in login.items():
        if value and field in given:
            raise url_error(url, f"gives the {field} twice; write it once, before the @ or as an option")
        login[field] = given.pop(field, value)
    return login


def _tls(url: str, scheme: Scheme, given: dict[str, Any]) -> dict[str, Any]:
    options = {name: given.pop(name) for name in list(given) if name.startswith("ssl_")}
    if options and not scheme.tls:
        raise url_error(url, f"has {', '.join(options)} without TLS; use the scheme with ss")
    if options.get("ssl_cert_reqs", "required") not in ("required", "none"):
        raise url_error(url, "option ssl_cert_reqs must be required or none")
    if "ssl_keyfile" in options and "ssl_certfile" not in options:
        raise url_error(url, "has ssl_keyfile without ssl_certfile, the certificate of that key")
    if scheme.tls:
        options.setdefault("ssl_cert_reqs", "required")
        options["ssl_check_hostname"] = options["ssl_cert_reqs"] == "required"
    return options


def _address(url: str, scheme: Scheme, text: str) -> Address:
    found = _HOST.fullmatch(text) if text or scheme.kind == "single" else None
    port = int(found["port"] or scheme.port) if found else 0
    if found is None or not 0 < port < 65536:
        reason = f"has no valid host and port; write host:{scheme.port}, and / ? # @ in a password as %2F..."
        raise url_error(url, reason)
    return Address(unquote(found["host"].strip("[]")) or "localhost", port)


def _path(url: str, scheme: Scheme, path: str, given: dict[str, Any]) -> tuple[str, str]:
    words = [unquote(word) for word in path.strip("/").split("/") if word]
    service = ""
    if scheme.kind == "sentinel":
        if not words:
            raise url_error(url, "needs the name of the master: redis+sentinel://host:26379/mymaster/0")
        service = words.pop(0)
    if len(words) > 1 or (words and "db" in given):
        raise url_error(url, "names more than one database; write it once, as /0 or ?db=0")
    return service, words[0] if words else given.pop("db", "0")


def _database(url: str, scheme: Scheme, text: str) -> int:
    if not (text.isdecimal() and text.isascii()) or int(text) > _DATABASES:
        raise url_error(url, f"has the database {quote_part(url, text)}, which must be a number such as 0")
    if scheme.kind == "cluster" and int(text):
        raise url_error(url, "names a database, but a Redis Cluster has only database 0")
    return int(text)

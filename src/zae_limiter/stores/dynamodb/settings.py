"""Region and endpoint, from the arguments or from where botocore looks for them."""

from __future__ import annotations

import os
import re
import ssl
from base64 import b64encode
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from ...core.errors import ConfigurationError, ValidationError
from ...core.validation import show_url
from .connections import Endpoint, Proxy

_REGION = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_HOST = re.compile(r"[A-Za-z0-9._:-]+")
_PORTS = {"http": 80, "https": 443}
_LOCAL_REGION = "us-east-1"


class Settings(NamedTuple):
    """Region and endpoint of the table, and how to connect."""

    region: str
    url: str
    endpoint: Endpoint
    host_header: str
    target: str
    """The request target: the whole URL for a proxy without a tunnel."""
    proxy_headers: dict[str, str]
    """Headers for a proxy without a tunnel; they are not signed."""
    is_local: bool
    """A plain connection to this host: an engine for tests, which takes any credentials."""


def resolve(region: str | None, endpoint_url: str | None, session: Callable[[], Any]) -> Settings:
    """Return the settings. ``session`` makes a botocore session. May read files, never the network."""
    region = region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or None
    found: Any = session() if region is None or endpoint_url is None else None
    region = region or found.get_config_variable("region")
    if endpoint_url is None:
        endpoint_url = _find_endpoint(found, region or _LOCAL_REGION)
        if not region and endpoint_url == _find_endpoint(found, _LOCAL_REGION, ignore_configured_endpoint_urls=True):
            reason = "no region is known; pass one, set AWS_REGION, or set region in the profile"
            raise ValidationError("region", None, reason)
    region, parts = check_region(region or _LOCAL_REGION), check_endpoint(endpoint_url)
    host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
    shown = f"[{host}]" if ":" in host else host
    tls = _tls_context(session()) if parts.scheme == "https" else None
    proxy = _find_proxy(parts.scheme, host, port)
    target, proxy_headers = "/", {}
    if proxy is not None and tls is None:
        target = f"http://{shown}:{port}/"
        proxy_headers = {"proxy-authorization": proxy.authorization} if proxy.authorization else {}
    return Settings(
        region=region,
        url=endpoint_url,
        endpoint=Endpoint(host, port, tls, proxy),
        host_header=shown if port == _PORTS[parts.scheme] else f"{shown}:{port}",
        target=target,
        proxy_headers=proxy_headers,
        is_local=tls is None and _is_loopback(host),
    )


def check_region(region: object) -> str:
    """Return the name of a region. Raise `ValidationError` if it is malformed."""
    if not isinstance(region, str) or not _REGION.fullmatch(region):
        raise ValidationError("region", show_url(region), "is not the name of a region, such as eu-west-1")
    return region


def check_endpoint(url: object) -> SplitResult:
    """Return the parts of an endpoint URL. Raise `ValidationError` if it is invalid."""
    try:
        parts = urlsplit(url) if isinstance(url, str) else SplitResult("", "", "", "", "")
        usable = parts.scheme in _PORTS and _HOST.fullmatch(parts.hostname or "") and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.path not in ("", "/") or parts.query or parts.fragment or parts.username is not None:
        raise ValidationError("endpoint_url", show_url(url), "must look like http://localhost:8000 or https://host")
    return parts


def _find_endpoint(session: Any, region: str, **options: Any) -> str:
    """Return the endpoint as botocore resolves it: from environment, profile, FIPS, dual stack, partition."""
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    unused = {"aws_access_key_id": "unused", "aws_secret_access_key": "unused"}
    try:
        client = session.create_client("dynamodb", region_name=region, config=Config(**options), **unused)
    except (BotoCoreError, ValueError) as error:
        raise ValidationError("region", region, f"has no endpoint: {error}") from error
    url = str(client.meta.endpoint_url)
    client.close()
    return url


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _find_proxy(scheme: str, host: str, port: int) -> Proxy | None:
    from urllib.request import getproxies, proxy_bypass

    proxies = getproxies()
    url = proxies.get(scheme) or proxies.get("all")
    if not url or proxy_bypass(f"{host}:{port}"):
        return None
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        proxy_port = parts.port or 80
    except ValueError:
        raise ValidationError("proxy", scheme, "has an invalid URL in the environment") from None
    if parts.scheme != "http" or not parts.hostname:
        raise ValidationError("proxy", parts.scheme, "is not supported; name an http:// proxy, or set NO_PROXY")
    authorization = None
    if parts.username is not None:
        secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = f"Basic {b64encode(secret.encode()).decode()}"
    return Proxy(parts.hostname, proxy_port, authorization)


def _tls_context(session: Any) -> ssl.SSLContext:
    """Return a context that trusts the configured bundle, or botocore's own and the system's."""
    from botocore.httpsession import get_cert_path

    bundle = session.get_config_variable("ca_bundle")
    try:
        context = ssl.create_default_context(cafile=bundle)
        if bundle is None:
            context.load_verify_locations(get_cert_path(True))
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"ca_bundle = {bundle!r} cannot be read: {error}", option="ca_bundle") from error
    return context

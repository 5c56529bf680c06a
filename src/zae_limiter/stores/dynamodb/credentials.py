"""Credentials of every kind that botocore resolves, cached so that requests do not wait; how requests are signed.

botocore is asked in a thread of its own, by one thread at a time: a provider may hang, and no caller hangs with it
longer than its deadline. It is asked once a minute, and renews expiring credentials in good time, while callers use the
cached ones, which are valid for minutes more. Only the first call waits, and one whose credentials were refused.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache, lru_cache
from hashlib import sha256
from hmac import digest
from typing import Any, NamedTuple

from ...core.errors import (
    AccessDeniedError,
    InfrastructureError,
    RateLimiterUnavailable,
    ValidationError,
    ZAELimiterError,
    quote,
)
from ...forks import after_fork, protect
from ...logs import CREDENTIALS_NOT_RENEWED, log_event

_SERVICE = "dynamodb"
_FRESH_SECONDS = 60.0
_FAILURE_SECONDS = 2.0
FIND_SECONDS = 20.0
"""How long the first call waits for credentials. It has all of its own time-out after that."""
_STUCK_SECONDS = 60.0
"""After that a run that has not ended no longer keeps those who need credentials from another one."""

_LOADING = threading.Lock()
"""Held while botocore is loaded: a process forked in the middle of that could never load it."""
protect(_LOADING)

_ADVICE = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile, log in with `aws sso login`, or attach a role"
)


class Credentials(NamedTuple):
    """Credentials to sign with. They never appear in a message or a log line."""

    access_key: str
    secret_key: str
    token: str | None = None

    def __repr__(self) -> str:
        return "Credentials(...)"


class Origin(NamedTuple):
    """The credentials and the destination of a client's requests."""

    credentials: Credentials
    region: str
    host: str


def signed_headers(origin: Origin, epoch_seconds: int, target: str, body: bytes) -> dict[str, str]:
    """Return the headers of a POST to ``/``, with a signature that covers the body."""
    credentials, region, host = origin
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(epoch_seconds))
    headers = {"content-type": "application/x-amz-json-1.0", "host": host, "x-amz-date": stamp}
    if credentials.token:
        headers["x-amz-security-token"] = credentials.token
    headers["x-amz-target"] = target
    names = ";".join(headers)
    lines = "".join([f"{name}:{value}\n" for name, value in headers.items()])
    canonical = f"POST\n/\n\n{lines}\n{names}\n{sha256(body).hexdigest()}"
    scope = f"{stamp[:8]}/{region}/{_SERVICE}/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{sha256(canonical.encode()).hexdigest()}"
    signature = digest(_signing_key(credentials.secret_key, stamp[:8], region), text.encode(), "sha256").hex()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return headers


@lru_cache(maxsize=16)
def _signing_key(secret: str, day: str, region: str) -> bytes:
    """Return the signing key of a day, cached because it takes four hashes."""
    key = f"AWS4{secret}".encode()
    for part in (day, region, _SERVICE, "aws4_request"):
        key = digest(key, part.encode(), "sha256")
    return key


def open_session(profile: str | None) -> Any:
    """Return a botocore session. Raise `ValidationError` for an unknown profile or an invalid config file."""
    with _LOADING:
        from botocore.exceptions import ConfigParseError, ProfileNotFound
        from botocore.session import Session

    session = Session(profile=profile)
    try:
        session.get_scoped_config()
    except ProfileNotFound as error:
        raise ValidationError("profile", session.get_config_variable("profile"), "does not exist") from error
    except ConfigParseError as error:
        raise ValidationError("AWS config file", error.kwargs["path"], "cannot be understood; correct it") from error
    session.register_component("data_loader", _load_service_models(session.get_config_variable("data_path")))
    return session


@cache
def _load_service_models(data_path: str | None) -> Any:
    """Return botocore's loader. Its service models are megabytes of JSON, which a process reads once."""
    from botocore.loaders import create_loader

    return create_loader(data_path)


class CredentialSource:
    """The current credentials, and how to renew them."""

    def __init__(
        self, session: Callable[[], Any], *, local: Callable[[], bool], timer: Callable[[], float] = time.monotonic
    ) -> None:
        self._session = session
        self._local = local
        self._timer = timer
        self._found: Any = None
        self.cached: Credentials | None = None
        self.due_at = 0.0
        """When it is time to ask botocore again."""
        self._asked_at = 0.0
        self._failure: InfrastructureError | None = None
        self._run: Future[Credentials] | None = None
        """The run that is under way; None after its end, so that it keeps nobody who has waited."""
        self.run_began = 0.0
        """When the last run began."""
        self._lock = threading.Lock()
        protect(self._lock)
        after_fork(self._forget_run)

    def renew(self, refused: Credentials | None = None) -> Future[Credentials]:
        """Return the run that is under way, else begin one: `ask` in a daemon thread.

        A run that is under way may not have heard that credentials were ``refused``, and return the same again.
        """
        with self._lock:
            run, now = self._run, self._timer()
            if run is not None:
                if self.cached is not None and refused is None:
                    return run  # nobody waits for it
                if now - self.run_began < _STUCK_SECONDS:
                    return run
                self._found = None  # the lock of these credentials is held by the thread that is stuck
            run = self._run = Future()
            run.set_running_or_notify_cancel()  # whoever gives up waiting cannot cancel it for the others
            self.run_began = now
        thread = threading.Thread(target=self._work, args=(run, refused), name="zae-limiter-credentials", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no thread can be started any more when the interpreter ends
            self._work(run, refused)
        return run

    def _work(self, run: Future[Credentials], refused: Credentials | None) -> None:
        """Ask, and end the run with the answer. What is used meanwhile stays valid: a failure is logged."""
        try:
            found = self.ask(refused)
        except BaseException as error:
            self._end(run)
            if self.cached is not None and refused is None:
                message, kind = (
                    "The AWS credentials were not renewed; the old ones are still used: %s",
                    type(error).__name__,
                )
                log_event(CREDENTIALS_NOT_RENEWED, message, error, zae_backend="dynamodb", zae_error_type=kind)
            run.set_exception(error)
        else:
            self._end(run)
            run.set_result(found)

    def _end(self, run: Future[Credentials]) -> None:
        """Let the next caller begin another run."""
        with self._lock:
            if self._run is run:
                self._run = None

    def _forget_run(self) -> None:
        """In a fork: the thread of a run is not there, and what it has locked stays locked."""
        if self._run is not None:
            self._run = self._found = None

    def ask(self, refused: Credentials | None = None) -> Credentials:
        """Ask botocore in this thread; may block. ``refused`` ones are resolved anew, once for all who met that."""
        if self.cached is not None and (self.cached != refused if refused else self._timer() < self.due_at):
            return self.cached
        if refused is not None:
            self._found = None
        now = self._timer()
        if self._failure is not None and now - self._asked_at < _FAILURE_SECONDS:
            raise type(self._failure)(str(self._failure)) from self._failure
        self._asked_at, self.due_at, self._failure = now, now + _FRESH_SECONDS, None
        try:
            self.cached = self._resolve()
        except InfrastructureError as error:
            self._failure = error
            raise
        return self.cached

    def _resolve(self) -> Credentials:
        """Return credentials that fit into a header. Raise `AccessDeniedError` for others, e.g. a number."""
        try:
            local = self._local()
            if self._found is None:
                session = self._session()
                if local:  # no instance role is meant for an engine on this host, and asking for one takes seconds
                    session.get_component("credential_provider").remove("iam-role")
                self._found = session.get_credentials()
            frozen = None if self._found is None else self._found.get_frozen_credentials()
        except ZAELimiterError:
            raise
        except Exception as error:
            raise _translate(error) from error
        if frozen is None:
            if local:
                return Credentials("local", "local")
            raise AccessDeniedError(f"No AWS credentials were found: {_ADVICE}.")
        found = Credentials(frozen.access_key, frozen.secret_key, frozen.token or None)
        for part in found[:2] if found.token is None else found:
            if not isinstance(part, str):
                raise AccessDeniedError(f"The AWS credentials are not all texts; correct their provider, or {_ADVICE}.")
            if not (part.isascii() and part.isprintable() and part and " " not in part):
                raise AccessDeniedError(f"The AWS credentials hold a space, a line break or nothing at all: {_ADVICE}.")
        return found


_TRANSIENT = (
    *("ConnectionError", "HTTPClientError", "EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError"),
    "MetadataRetrievalError",
)
"""botocore's errors that say that nobody answered; each other one says that something is wrong with the setup."""


def _translate(error: Exception) -> InfrastructureError:
    names = {kind.__name__ for kind in type(error).__mro__}
    status = getattr(error, "response", {}).get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if names.intersection(_TRANSIENT) or status >= 500:
        return RateLimiterUnavailable(f"The AWS credentials could not be renewed: {error}", error)
    return AccessDeniedError(f"The AWS credentials could not be obtained: {quote(error)}. To fix it, {_ADVICE}.")

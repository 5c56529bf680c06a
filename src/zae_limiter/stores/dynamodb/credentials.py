"""Credentials of every kind that botocore resolves, how requests are signed, and whose the credentials are.

botocore is asked in a thread of its own, by one thread at a time: a provider may hang, and no caller hangs with it
longer than its deadline. It is asked once a minute, and renews expiring credentials in good time, while callers use the
cached ones, which are valid for minutes more. Only the first call waits, and one whose credentials were refused.

Whose they are is for the audit log only: STS is asked once, in a thread of its own. Nobody waits long for it, no
failure is an error, and one is remembered for minutes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache, lru_cache, partial
from hashlib import sha256
from hmac import digest
from typing import Any, NamedTuple, TypeVar

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
from .sockets import Sockets

T = TypeVar("T")

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


def _start(run: Future[T], work: Callable[[], None], name: str) -> Future[T]:
    try:
        threading.Thread(target=work, name=name, daemon=True).start()
    except RuntimeError:  # no thread can be started any more when the interpreter ends
        work()
    return run


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
        return _start(run, partial(self._work, run, refused), "zae-limiter-credentials")

    def _work(self, run: Future[Credentials], refused: Credentials | None) -> None:
        """Ask, and end the run with the answer. What is used meanwhile stays valid: a failure is logged."""
        try:
            found = self.ask(refused)
        except BaseException as error:
            self._end(run)
            if self.cached is not None and refused is None:
                message = "The AWS credentials were not renewed; the old ones are still used: %s"
                fields = {"zae_backend": "dynamodb", "zae_error_type": type(error).__name__}
                log_event(CREDENTIALS_NOT_RENEWED, message, error, **fields)
            run.set_exception(error)
        else:
            self._end(run)
            run.set_result(found)

    def _end(self, run: Future[Credentials]) -> None:
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


_ANSWER_SECONDS = 1.0
"""How long STS may take to accept a connection, and to answer."""
_WAIT_SECONDS = 2.0
"""How long a caller waits at most: also looking up a name, and loading botocore's client, take their time."""
_UNKNOWN_SECONDS = 300.0
"""How long STS is not asked again after it did not answer."""


class CallerIdentity:
    """The ARN of the caller, once it is known. ``ask`` blocks until it is there, or raises."""

    def __init__(self, ask: Callable[[], str], sockets: Sockets, timer: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._sockets = sockets
        self._timer = timer
        self._arn: str | None = None
        self._ask_again_at = 0.0
        self._run: Future[None] | None = None
        """The run that is under way: those who want to know at once wait for the same one."""
        self._lock = threading.Lock()
        protect(self._lock)
        after_fork(self._forget_run)

    async def find(self, timeout: float) -> str | None:
        """Return the ARN. Return None if nobody tells it within ``timeout`` seconds, or did not minutes ago."""
        if self._arn is None and self._timer() >= self._ask_again_at:
            try:
                await self._sockets.outcome(self._begin(), min(timeout, _WAIT_SECONDS))
            except TimeoutError:  # the run goes on; later changes have what it finds
                self._ask_again_at = self._timer() + _UNKNOWN_SECONDS
        return self._arn

    def _begin(self) -> Future[None]:
        with self._lock:
            if self._run is not None:
                return self._run
            run = self._run = Future()
            run.set_running_or_notify_cancel()  # whoever gives up waiting cannot cancel it for the others
        return _start(run, partial(self._work, run), "zae-limiter-identity")

    def _work(self, run: Future[None]) -> None:
        try:
            self._arn = self._ask()
        except Exception:
            self._ask_again_at = self._timer() + _UNKNOWN_SECONDS
        finally:
            self._run = None
            run.set_result(None)

    def _forget_run(self) -> None:
        """In a fork: the thread of a run is not there."""
        self._run = None


def ask_sts(session: Any, credentials: Credentials, region: str, endpoint_url: str | None) -> str:
    """Return the ARN of the caller; everybody may ask for that. Raise an error of botocore."""
    from botocore.config import Config

    config = Config(
        connect_timeout=_ANSWER_SECONDS,
        read_timeout=_ANSWER_SECONDS,
        retries={"mode": "standard", "total_max_attempts": 1},
    )
    keys = dict(zip(("aws_access_key_id", "aws_secret_access_key", "aws_session_token"), credentials, strict=True))
    client = session.create_client("sts", region_name=region, endpoint_url=endpoint_url, config=config, **keys)
    try:
        return str(client.get_caller_identity()["Arn"])
    finally:
        client.close()

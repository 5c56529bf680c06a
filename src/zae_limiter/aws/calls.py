"""Call AWS's control plane through botocore and translate its errors.

One region, one endpoint and one set of credentials, resolved as the DynamoDB store resolves its own. Clients are
created on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, wraps
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeAlias, TypeVar

from .._version import __version__
from ..core.errors import (
    AccessDeniedError,
    InfrastructureError,
    InfrastructureNotFoundError,
    RateLimiterUnavailable,
    StackAlreadyExistsError,
    StackOperationError,
    ValidationError,
)
from ..stores.dynamodb.credentials import CredentialSource, open_session
from ..stores.dynamodb.settings import Settings, check_endpoint, check_region, resolve

if TYPE_CHECKING:
    from ..stores.dynamodb.client import Options

T = TypeVar("T")
P = ParamSpec("P")


class Aws:
    """One AWS account in one region, as these credentials see it.

    A ``hasty`` one gives up on a service that does not answer within a second or two, and never tries again.
    """

    def __init__(
        self,
        region: str | None = None,
        endpoint_url: str | None = None,
        profile: str | None = None,
        *,
        hasty: bool = False,
    ) -> None:
        if region is not None:
            check_region(region)
        if endpoint_url is not None:
            check_endpoint(endpoint_url)
        if find_spec("botocore") is None:
            raise ValidationError("aws", None, 'needs packages that are not installed: pip install "zae-limiter[aws]"')
        self.endpoint_url = endpoint_url
        self.profile = profile
        self._given_region = region
        self._hasty = hasty
        self._clients: dict[str, Any] = {}

    @classmethod
    def of(cls, options: Options, *, hasty: bool = False) -> Self:
        """Return the account and region of a store that was opened with these options."""
        return cls(options.region, options.endpoint_url, options.profile, hasty=hasty)

    @property
    def region(self) -> str:
        """The region of all calls."""
        return self.settings.region

    @cached_property
    def settings(self) -> Settings:
        """Region and endpoint of DynamoDB, resolved on first use."""
        return resolve(self._given_region, self.endpoint_url, lambda: self._session)

    @cached_property
    def _session(self) -> Any:
        return open_session(self.profile)

    def client(self, service: str) -> Any:
        """Return the botocore client of ``service``, created on first use."""
        if service in self._clients:
            return self._clients[service]
        from botocore.config import Config

        session = self._session
        if not self._clients:  # before the first one; the session renews credentials itself
            found = CredentialSource(lambda: session, local=lambda: self.settings.is_local).ask()
            if session.get_credentials() is None:  # an engine on this host takes any
                session.set_credentials(*found)
        config = Config(
            connect_timeout=1 if self._hasty else 5,
            read_timeout=2 if self._hasty else 30,
            retries={"mode": "standard", "total_max_attempts": 1 if self._hasty else 4},
            user_agent_extra=f"zae-limiter/{__version__}",
            s3={"addressing_style": "path" if self.settings.is_local else "auto"},
        )
        client = session.create_client(service, region_name=self.region, endpoint_url=self.endpoint_url, config=config)
        self._clients[service] = client
        return client

    def call(self, service: str, operation: str, **request: Any) -> dict[str, Any]:
        """Call ``operation`` (botocore's method name) and return its answer. Raise our errors, not botocore's."""
        client = self.client(service)
        with _translate_errors(f"{service}:{operation}"):
            answer: dict[str, Any] = getattr(client, operation)(**request)
        return answer

    def call_if_allowed(self, service: str, operation: str, **request: Any) -> dict[str, Any] | None:
        """Call ``operation``. Return None if what it is about does not exist or these credentials may not do it."""
        try:
            return self.call(service, operation, **request)
        except (InfrastructureNotFoundError, AccessDeniedError):
            return None

    def pages(self, service: str, operation: str, **request: Any) -> Iterator[dict[str, Any]]:
        """Iterate over the pages of a listing, one call each."""
        client = self.client(service)
        with _translate_errors(f"{service}:{operation}"):
            yield from client.get_paginator(operation).paginate(**request)

    def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        while self._clients:
            self._clients.popitem()[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def poll(
    look: Callable[[], T | None],
    pause: Callable[[float], object],
    busy: Exception,
    first: float = 0.05,
    looks: int = 100,
) -> T:
    """Call ``look`` until it returns something other than None, and return that.

    Pauses grow from ``first`` to 2 seconds. After ``looks`` calls raise ``busy``.
    """
    for number in range(looks):
        found = look()
        if found is not None:
            return found
        pause(min(2.0, first * 1.5**number))
    raise busy


def name_stack(work: Callable[Concatenate[Aws, str, P], T]) -> Callable[Concatenate[Aws, str, P], T]:
    """Return ``work``, which is about the stack that its second argument names, so that its errors name it too."""

    @wraps(work)
    def wrapped(aws: Aws, name: str, /, *args: P.args, **named: P.kwargs) -> T:
        try:
            return work(aws, name, *args, **named)
        except InfrastructureError as error:
            error.stack_name = error.stack_name or name
            raise

    return wrapped


_Meaning: TypeAlias = tuple[type[InfrastructureError], str]
"""Our error class and wording for an error code of AWS."""

_DENIED: _Meaning = (AccessDeniedError, "access is denied")
_INVALID: _Meaning = (AccessDeniedError, "the credentials are invalid or expired; check them, or log in again")
_MISSING: _Meaning = (InfrastructureNotFoundError, "it does not exist")
_BUSY: _Meaning = (RateLimiterUnavailable, "AWS is throttling requests; try again later")
_FAILED: _Meaning = (RateLimiterUnavailable, "AWS failed")
_SILENT: _Meaning = (RateLimiterUnavailable, "AWS cannot be reached")
_TAKEN: _Meaning = (StackAlreadyExistsError, "it exists already")
_REFUSED: _Meaning = (StackOperationError, "the request was refused")

_CODES = {
    _DENIED: "AccessDenied AccessDeniedException UnauthorizedOperation Forbidden 403",
    _INVALID: "ExpiredToken ExpiredTokenException InvalidClientTokenId InvalidAccessKeyId UnrecognizedClientException "
    "SignatureDoesNotMatch IncompleteSignature MissingAuthenticationToken NoCredentialsError PartialCredentialsError "
    "CredentialRetrievalError SSOError TokenRetrievalError",
    _MISSING: "ResourceNotFoundException StackNotFoundException NoSuchBucket NoSuchEntity "
    "AWS.SimpleQueueService.NonExistentQueue QueueDoesNotExist 404",
    _BUSY: "Throttling ThrottlingException RequestLimitExceeded TooManyRequestsException SlowDown",
    _FAILED: "ServiceUnavailable InternalFailure InternalError InternalServerError ServiceException",
    _SILENT: "HTTPClientError ConnectionError ResponseParserError",
    _TAKEN: "AlreadyExistsException",
}
_MEANINGS = {code: meaning for meaning, codes in _CODES.items() for code in codes.split()}
"""The one table from AWS's error codes, and the names of botocore's own errors, to ours."""


@contextmanager
def _translate_errors(action: str) -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError

    try:
        yield
    except (ClientError, BotoCoreError, ResponseParserError) as error:
        raise translate(error, action) from error


def translate(error: Exception, action: str) -> InfrastructureError:
    """Return our error for an error of botocore, in one line. ``action`` is ``service:operation``."""
    service, _, operation = action.partition(":")
    code, message = code_of(error), _message(error)
    response = getattr(error, "response", None) or {}
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    known = [name for name in (code, *(kind.__name__ for kind in type(error).__mro__)) if name in _MEANINGS]
    kind, reason = _MEANINGS[known[0]] if known else _FAILED if status >= 500 else _REFUSED
    if code == "ValidationError" and message.endswith("does not exist"):  # how CloudFormation says it of a stack
        kind, reason = _MISSING
    about = {"reason": message} if issubclass(kind, StackOperationError) else {}
    return kind(f"{service}:{operation.title().replace('_', '')}: {reason}: {message}", **about)


def code_of(error: BaseException | None) -> str:
    """Return the AWS error code behind an error of ours or of botocore; empty if there is none."""
    response = getattr(error, "response", None) or getattr(getattr(error, "__cause__", None), "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))


def aws_message(error: BaseException) -> str:
    """Return AWS's own message behind an error of ours, in one line."""
    return _message(error.__cause__ or error)


def _message(error: BaseException) -> str:
    response = getattr(error, "response", None) or {}
    return join_lines(str(response.get("Error", {}).get("Message") or error))


def join_lines(text: str) -> str:
    """Return ``text`` without line breaks."""
    return " ".join(text.split())

"""The builder of a repository: its arguments and the options of its stack, one method call each."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ..core.errors import ValidationError
from ..core.validation import flag
from .configs import check_policy
from .opening import OpeningOperations, find_namespace, find_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..aws.stack_options import StackOptions
    from ..clock import Clock
    from ..core.values import OnUnavailable
    from ..stores.port import Store
    from ..v017.builder import OldBuilder
else:
    OldBuilder = object

R = TypeVar("R", bound=OpeningOperations)


class RepositoryOptions(OldBuilder):
    """Collects the arguments of a repository and the options of its stack, which are those of `StackOptions`."""

    def __init__(self) -> None:
        self._stack_options: StackOptions | None = None
        self._settings: dict[str, Any] = {}
        self._url: str | Store | None = None
        self._stack: str | None = None
        self._options: dict[str, Any] = {}
        self._auto_update = True
        self._on_unavailable: OnUnavailable | None = None

    def stack_options(self, stack_options: StackOptions | None = None, **options: Any) -> Self:
        """Deploy the stack with these options; those that are set one by one replace single ones of them.

        ``options`` are single ones by their names in `StackOptions`, e.g. ``lambda_architecture="arm64"``.
        """
        from ..aws.stack_options import StackOptions, check_stack_options

        if stack_options is not None:
            self._stack_options = check_stack_options(stack_options)
        for unknown in options.keys() - set(StackOptions.__match_args__):
            raise ValidationError(unknown, options[unknown], "is no option of a stack; see StackOptions")
        self._settings |= options
        return self

    def stack(self, name: str | None) -> Self:
        """Use the DynamoDB stack of this name. `build` deploys it if it does not exist, as `Repository.open` does.

        None is for the stack that `Repository.open` finds by itself, as it is where no place is named.
        """
        self._stack = name
        return self

    def url(self, url_or_name: str | Store) -> Self:
        """Use a store URL, a store object or a stack name."""
        self._url = url_or_name
        return self

    def name(self, name: str) -> Self:
        """Use the DynamoDB stack of this name. It is deployed only if options of a stack are set."""
        return self._with(name=name)

    def region(self, name: str) -> Self:
        """Set the AWS region."""
        return self._with(region=name)

    def endpoint_url(self, url: str) -> Self:
        """Set the URL of the AWS endpoint."""
        return self._with(endpoint_url=url)

    def namespace(self, name: str) -> Self:
        """Set the namespace to work in; by default ``$ZAEL_NAMESPACE``, else ``default``."""
        return self._with(namespace=name)

    def config_cache_ttl(self, seconds: float) -> Self:
        """Cache stored limits for so many seconds."""
        return self._with(config_cache_ttl=seconds)

    def max_cached_keys(self, count: int) -> Self:
        """Keep limits and last seen buckets of so many keys in memory."""
        return self._with(max_cached_keys=count)

    def bucket_ttl_multiplier(self, value: int) -> Self:
        """Keep an unused bucket for so many times the time that it takes to fill."""
        return self._with(bucket_ttl_multiplier=value)

    def clock(self, clock: Clock) -> Self:
        """Set this process's clock."""
        return self._with(clock=clock)

    def auto_update(self, enabled: bool) -> Self:
        """Upload this version's code to an older aggregator of a `stack`, or not."""
        self._auto_update = flag("auto_update", enabled)
        return self

    def on_unavailable(self, value: OnUnavailable | str) -> Self:
        """Store what acquires of the namespace do when the store is unavailable: ``allow`` or ``block``."""
        self._on_unavailable = check_policy(value)
        return self

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return a method that a builder had in 0.17."""
            from ..v017.builder import find_method

            return find_method(self, name)

    def _with(self, **option: Any) -> Self:
        self._options |= option
        return self

    async def _open(self, kind: Callable[..., R]) -> R:
        options = self._stack_options
        if self._settings:
            from ..aws.stack_options import StackOptions

            options = replace(options or StackOptions(), **self._settings)
        elsewhere = self._url if self._url is not None else self._options.get("name")
        chosen = self._options | {"namespace": find_namespace(self._options.get("namespace"))}
        if elsewhere is None:
            repository = kind(find_store(self._stack, None), **chosen)
            await repository._enter(options, auto_update=self._auto_update)
        elif self._stack is not None:
            raise ValidationError("stack", self._stack, f"cannot be combined with {elsewhere!r}; use one of them")
        else:
            repository = kind(self._url, **chosen, stack_options=options)
            await repository._prepare()
        if self._on_unavailable is not None:
            await repository._set({}, None, on_unavailable=self._on_unavailable)
        return repository

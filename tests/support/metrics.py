"""What an application's OpenTelemetry SDK has seen of a limiter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, Metric

PREFIX = "zae_limiter."
Attributes: TypeAlias = dict[str, Any]


class Metrics:
    """A meter provider of its own, and what was measured with it."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider([self._reader], shutdown_on_exit=False)

    def collected(self) -> dict[str, Metric]:
        """All metrics by name, without the prefix that all names have."""
        data = self._reader.get_metrics_data()
        scopes = [scope for each in data.resource_metrics for scope in each.scope_metrics] if data else []
        assert [scope.scope.name for scope in scopes] in ([], ["zae_limiter"])
        return {metric.name.removeprefix(PREFIX): metric for scope in scopes for metric in scope.metrics}

    def lines(self, name: str) -> Iterator[tuple[Attributes, Any]]:
        """The data points of a metric with their attributes, these without the prefix too."""
        metric = self.collected().get(name)
        for point in metric.data.data_points if metric is not None else ():
            given = dict(point.attributes or {})
            assert all(key.startswith(PREFIX) for key in given)
            yield {key.removeprefix(PREFIX): value for key, value in given.items()}, point

    def counts(self, name: str, *by: str) -> dict[Any, float]:
        """How many there were, by some attributes: the value of a counter, the count of a histogram."""
        found: dict[Any, float] = {}
        for attributes, point in self.lines(name):
            key = attributes[by[0]] if len(by) == 1 else tuple(attributes[each] for each in by)
            found[key] = found.get(key, 0) + (point.count if isinstance(point, HistogramDataPoint) else point.value)
        return found

    def sums(self, name: str, *by: str) -> dict[Any, float]:
        """The sums of a histogram, by some attributes."""
        return {
            attributes[by[0]] if len(by) == 1 else tuple(attributes[each] for each in by): point.sum
            for attributes, point in self.lines(name)
        }

"""Metrics of a limiter, by the OpenTelemetry API: ``pip install "zae-limiter[otel]"``.

>>> from zae_limiter import SyncRateLimiter
>>> from zae_limiter.telemetry import instrument
>>> limiter = instrument(SyncRateLimiter("memory://"))

It is an `Observer` of the limiter, beside those of your own. Nothing is measured before `instrument` and after
`uninstrument`. Where the metrics go is up to the OpenTelemetry SDK that the application sets up, before or after.

| metric | kind, unit | what | attributes besides *where* |
|---|---|---|---|
| ``zae_limiter.decisions`` | counter, ``{decision}`` | acquires and ``lease.consume`` that were decided | outcome |
| ``zae_limiter.decision.duration`` | histogram, ``s`` | how long that took, without the time in line | outcome |
| ``zae_limiter.wait.duration`` | histogram, ``s`` | time in line of acquires with ``max_wait`` | outcome |
| ``zae_limiter.overdrawn`` | counter, ``{decision}`` | decisions that exceeded a soft or bypassed limit | limit |
| ``zae_limiter.slots.held`` | up-down counter, ``{slot}`` | slots of concurrency limits held by this process | limit |
| ``zae_limiter.slots.lost`` | counter, ``{slot}`` | slots that a lease has lost while its call went on | limit |
| ``zae_limiter.alerts`` | counter, ``{alert}`` | thresholds crossed by writes of this process | limit, threshold |
| ``zae_limiter.estimate.error`` | histogram, ``{token}`` | tokens that an estimate was off | limit, direction |
| ``zae_limiter.estimate.ratio`` | histogram, ``1`` | tokens used for each one estimated | limit |
| ``zae_limiter.config.cache`` | counter, ``{lookup}`` | look-ups of stored limits in the cache | result |
| ``zae_limiter.prefetch.grants`` | counter, ``{grant}`` | grants of a level from tokens drawn in advance | |
| ``zae_limiter.prefetch.spared`` | counter, ``{write}`` | writes that these would have cost more | |
| ``zae_limiter.prefetch.returned`` | counter, ``{token}`` | tokens drawn in advance, given back unused | |
| ``zae_limiter.prefetch.held`` | up-down counter, ``{token}`` | tokens drawn in advance, held by this process | |
| ``zae_limiter.prefetch.lost`` | counter, ``{correction}`` | corrections that could not be written | |
| ``zae_limiter.backend.calls`` | counter, ``{call}`` | requests sent to the store | operation |
| ``zae_limiter.backend.conflicts`` | counter, ``{write}`` | writes that lost a race or met a bucket too empty | |
| ``zae_limiter.backend.retries`` | counter, ``{call}`` | requests sent again | |
| ``zae_limiter.backend.throttled`` | counter, ``{call}`` | requests that the store refused for being too many | |
| ``zae_limiter.backend.bytes`` | counter, ``By`` | bodies of requests and answers | direction |
| ``zae_limiter.backend.units`` | counter, ``{unit}`` | capacity units that the store says it charged | operation |

Every attribute is called ``zae_limiter.`` and its name here. *Where* is ``backend`` (``memory``, ``sqlite``,
``redis``, ``redis-cluster``, ``dynamodb``) and ``namespace``; the metrics under ``backend.`` have no namespace, as a
store may serve several. They are what the store counts itself: DynamoDB all of them, Redis calls and conflicts, memory
and SQLite, which are asked inside the process, none. These and ``config.cache`` count from `instrument` on.

- ``outcome``: ``granted``; ``refused`` (not yet); ``never`` (above the capacity); ``disabled``; ``unavailable_allowed``
  and ``unavailable_blocked`` (the store did not answer, and what the policy made of it); ``failed`` (it answered, but
  not with a decision: access denied, a record that cannot be read, a namespace that is not there). Bad input and a
  cancelled caller are no decision.
- ``direction`` of an estimate: ``under`` (more was used than estimated), ``over``, ``exact``; of bytes: ``sent``,
  ``received``. An estimate is measured when its lease was settled or adjusted, whether or not that was written.
- ``result``: ``hit``, ``miss``. ``operation`` of units: ``read``, ``write``.
"""

from .meter import instrument, uninstrument

__all__ = ["instrument", "uninstrument"]

"""What the library logs: one record per event, with fields of stable names.

Every record has ``zae_event``, the name of the event; the other fields are attributes of the record as well, so any
formatter that writes attributes (JSON formatters do) has them. The message is for people and may change; the names of
events and fields do not. The logger is ``zae_limiter``, for the key-value limiter its child ``zae_limiter.kv``.

| ``zae_event`` | level | when | fields besides ``zae_event`` |
|---|---|---|---|
| ``store.unavailable`` | WARNING | the store has stopped answering | namespace, backend, error_type |
| ``store.available`` | INFO | it answers again | namespace, backend |
| ``store.replaced`` | WARNING | the file of the store was deleted or replaced while it was open | backend |
| ``store.evicts`` | WARNING | a Redis server deletes records when its memory is full; once | backend, policy |
| ``breaker.opened`` | WARNING | it hangs: calls that may go on without it no longer wait | namespace, backend |
| ``breaker.closed`` | INFO | everybody asks it again | namespace, backend |
| ``lease.settlement_lost`` | WARNING | a settlement was not written: the estimate stays charged | *lease*, tokens |
| ``lease.return_lost`` | WARNING | tokens of a failed call were not given back | *lease*, tokens |
| ``lease.return_cut`` | WARNING | a body gave back more than was taken: the excess is ignored | *whose*, tokens |
| ``lease.slot_lost`` | WARNING | a slot was not renewed in time, or taken away | *whose*, limit |
| ``limit.alert`` | WARNING | a threshold of a limit was crossed | *whose*, limit, threshold, used |
| ``limit.alert_unrecorded`` | WARNING | such an alert is not in the audit log | *lease*, limit |
| ``limit.overdrawn`` | INFO | a soft limit was exceeded; once a minute | namespace, backend, resource, limit |
| ``limit.not_charged`` | WARNING | limits of a level are in no cost; once per chain | *whose*, charged_by |
| ``config.ineffective`` | WARNING | a setting that was stored has no effect as things stand | namespace, backend |
| ``web.settlement_failed`` | WARNING | the answer is out and a lease of it was not settled | *lease* |
| ``web.header_ignored`` | WARNING | a forwarding header of an untrusted peer; once | header, peer |
| ``observer.failed`` | WARNING | an observer raised; once for each | namespace, backend, observer, error_type |
| ``chore.failed`` | WARNING | background work raised, and is tried again | error_type |
| ``clock.skewed`` | WARNING | this host's clock is a second or more off the store's; once | backend, skew_ms |
| ``credentials.not_renewed`` | WARNING | AWS credentials were not renewed; the old ones serve | backend, error_type |
| ``aggregator.outdated`` | WARNING | the aggregator has another version; once | aggregator_version, client_version |
| ``aggregator.renewed`` | INFO | opening a repository has uploaded its code | aggregator_version, client_version |
| ``aggregator.not_renewed`` | WARNING | that was not possible | aggregator_version, client_version |
| ``stack.deploying`` | WARNING | opening a repository deploys a stack that does not exist | stack, region |
| ``kv.refused`` | DEBUG | a client of the key-value limiter was refused | *kv*, ``retry_after_ms`` |
| ``kv.reset`` | INFO | a bucket could not be read and was replaced by a full one | *kv*, ``reason``, ``state`` |
| ``kv.unavailable`` | WARNING | its store failed, the request was let through | *kv*, ``operation``, ``error_type`` |

Each field is called ``zae_`` and its name here, unless it stands in code quotes. *whose* is namespace, backend,
entity_id and resource, *lease* is these and error_type; *kv* is ``kv_key``, which holds a digest of the address and
not the address.
``zae_tokens`` maps limits to the whole tokens that should still be charged (below zero: be given back).

Entity ids are in ``lease.*`` and ``web.settlement_failed``, as somebody has to be able to repair what was lost, and in
``limit.alert*``, ``limit.not_charged`` and the message of ``config.ineffective``.
The limiter logs nothing per decision; decisions are counted by `zae_limiter.telemetry`.
"""

from __future__ import annotations

from typing import NamedTuple

DEBUG, INFO, WARNING = 10, 20, 30
"""The levels of `logging`, which is loaded when something is logged: most programs that start never do."""

_MAIN, _KV = "zae_limiter", "zae_limiter.kv"


class Event(NamedTuple):
    """Something that is told: its stable name, how much it matters, and to which logger it goes."""

    name: str
    level: int
    logger: str = _MAIN


STORE_UNAVAILABLE = Event("store.unavailable", WARNING)
STORE_AVAILABLE = Event("store.available", INFO)
STORE_REPLACED = Event("store.replaced", WARNING)
EVICTION = Event("store.evicts", WARNING)
BREAKER_OPENED = Event("breaker.opened", WARNING)
BREAKER_CLOSED = Event("breaker.closed", INFO)
SETTLEMENT_LOST = Event("lease.settlement_lost", WARNING)
RETURN_LOST = Event("lease.return_lost", WARNING)
RETURN_CUT = Event("lease.return_cut", WARNING)
SLOT_LOST = Event("lease.slot_lost", WARNING)
ALERT = Event("limit.alert", WARNING)
ALERT_UNRECORDED = Event("limit.alert_unrecorded", WARNING)
OVERDRAWN = Event("limit.overdrawn", INFO)
NOT_CHARGED = Event("limit.not_charged", WARNING)
CONFIG_INEFFECTIVE = Event("config.ineffective", WARNING)
WEB_SETTLEMENT_FAILED = Event("web.settlement_failed", WARNING)
WEB_HEADER_IGNORED = Event("web.header_ignored", WARNING)
OBSERVER_FAILED = Event("observer.failed", WARNING)
CHORE_FAILED = Event("chore.failed", WARNING)
CLOCK_SKEWED = Event("clock.skewed", WARNING)
CREDENTIALS_NOT_RENEWED = Event("credentials.not_renewed", WARNING)
AGGREGATOR_OUTDATED = Event("aggregator.outdated", WARNING)
AGGREGATOR_RENEWED = Event("aggregator.renewed", INFO)
AGGREGATOR_NOT_RENEWED = Event("aggregator.not_renewed", WARNING)
STACK_DEPLOYING = Event("stack.deploying", WARNING)
KV_REFUSED = Event("kv.refused", DEBUG, _KV)
KV_RESET = Event("kv.reset", INFO, _KV)
KV_UNAVAILABLE = Event("kv.unavailable", WARNING, _KV)


def log_event(event: Event, message: str, *args: object, **fields: object) -> None:
    """Log an event; ``fields`` become attributes of the record under the very names they are given by."""
    import logging

    name, level, logger = event
    logging.getLogger(logger).log(level, message, *args, extra={"zae_event": name, **fields}, stacklevel=2)

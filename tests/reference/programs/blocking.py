"""The blocking form: the same names without ``await``; a stack that is found again; the builder."""

from zae_limiter import (
    Limit,
    RateLimitExceeded,
    SyncRateLimiter,
    SyncRepository,
)


def main() -> None:
    repo = SyncRepository.open()
    limiter = SyncRateLimiter(repository=repo)
    repo.set_resource_defaults("gpt-4", [Limit.per_day("rpd", 3)])
    repo.create_entity("user-1", name="Ann")
    for number in range(4):
        try:
            with limiter.acquire("user-1", "gpt-4", {"rpd": 1}) as lease:
                print(number, lease.consumed)
        except RateLimitExceeded as error:
            print(number, "refused", error.violations[0].limit_name)
    with limiter.acquire("user-2", "gpt-4", {"rpd": 1}) as lease:
        lease.adjust(rpd=4)
    print(limiter.available("user-2", "gpt-4"))
    bucket = repo.get_bucket("user-2", "gpt-4", "rpd")
    assert bucket is not None
    print(bucket.limit_name, bucket.capacity, bucket.tokens, bucket.entity_id, bucket.resource)
    print([(each.limit_name, each.capacity) for each in repo.get_buckets("user-1")])
    print(sorted((each.entity_id, each.limit_name) for each in repo.get_resource_buckets("gpt-4", "rpd")))
    stats = repo.get_cache_stats()
    print({"hits", "misses", "size", "ttl"} <= stats.as_dict().keys(), stats.ttl_seconds)
    print(repo.ping(), limiter.is_available(), repo.capabilities.supports_audit_logging)
    repo.register_namespace("tenant-a")
    tenant = repo.namespace("tenant-a")
    print(tenant.namespace_name, tenant.get_entity("user-1"))
    tenant.close()
    print(repo.get_entity("user-1") is not None)

    result = repo.top_up("user-1", "gpt-4", {"rpd": 2})
    print(result.entity_id, result.resource, result.amounts)
    with limiter.acquire("user-1", "gpt-4", {"rpd": 2}):
        print("granted")
    print(repo.reset_bucket("user-1", "gpt-4").resource, limiter.available("user-1", "gpt-4"))
    checked = limiter.check_availability("user-1", "gpt-4", needed={"rpd": 9})
    print(checked.allowed, checked.exceeded, checked.available, checked.deficit)
    limiter.close()


main()

"""Upgrades: from the layouts of older tables to the present one, in the same table, a step at a time.

    items.py        old records and how they are moved: the one guarded commit in which the new appears and the old goes
    per_limit.py    one item per limit, `ENTITY#{id}` `#BUCKET#{resource}#{limit}` and `#LIMIT#...`
    composite.py    all limits of a bucket or a config in one item, under the entity's key
    sharded.py      a partition per bucket, as other clients write it
    buckets.py, configs.py, entities.py, history.py, registry.py    what becomes of each kind of record
    partition.py    which of these reads what, by its key
    merging.py      an old bucket beside a new one that clients already use
    runner.py       finds old partitions and moves them
    upgrade.py      the whole of it: plan, table, data, stack, version

All but the last two are pure: old records in, guarded writes out.
"""

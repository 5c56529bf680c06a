"""Upgrades: from the layouts of older tables to the present one, in the same table, a step at a time.

    moves.py                                 old records, the guarded commits that replace them, and batches of these
    buckets.py, configs.py, conversions.py   what becomes of each kind of record, in every old layout
    partition.py                             which of these reads what, by its key
    pages.py, runner.py                      find old partitions and move them
    upgrade.py                               the whole of it: plan, table, data, stack, version

All but the last three are pure: old records in, guarded writes out.
"""

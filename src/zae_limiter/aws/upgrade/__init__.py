"""Upgrades: from the layouts of older tables to the present one, in the same table, a step at a time.

    moves.py                     old records, the guarded commits that replace them, and batches of these
    buckets.py, conversions.py   what becomes of each kind of record, in every old layout
    policies.py                  what version 0.17 stores beside plain rates
    partition.py                 which of these reads what, by its key
    runner.py                    finds old partitions and moves them
    upgrade.py                   the whole of it: plan, table, data, stack, version

All but the last two are pure: old records in, guarded writes out.
"""

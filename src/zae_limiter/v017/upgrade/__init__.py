"""Upgrades: from the layouts of older tables to the present one, in the same table, a step at a time.

    moves.py                     old records, the guarded commits that replace them, and batches of these
    buckets.py, conversions.py   what becomes of each kind of record, in every old layout
    policies.py                  what version 0.17 stores beside plain rates
    partition.py                 which of these reads what, by its key
    changes.py                   which records mean something else afterwards
    runner.py                    finds old partitions and moves them
    stragglers.py                finds what older clients have written since
    upgrade.py                   the whole of it: plan, table, data, stack, version

All but the last three are pure: old records in, guarded writes out.
"""

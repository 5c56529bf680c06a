"""Write the faces, the blocking classes, from the async ones: ``python -m tools.faces``; ``--check`` only compares.

`SyncRepository` and `SyncRateLimiter` hold the async object on a blocking runtime, and run each of its coroutines.
`SyncLease` is the code of `Lease` with ``run(...)`` for every ``await``. Signatures and docstrings are those of the
async classes. What a rule cannot say is in `specials`, each with its reason.
"""

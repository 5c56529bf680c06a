"""Prefetching: drawing tokens before callers ask for them, and granting from them without asking the store.

`PrefetchingEngine` serves acquires from held tokens and leaves the rest to the engine that it extends. The architecture
and the proof of the bound: ``docs/adr/0020-prefetch.md``.
"""

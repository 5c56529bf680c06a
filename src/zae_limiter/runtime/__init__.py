"""Runtimes: how the use cases wait, in an event loop or in a thread. The only place that knows which."""

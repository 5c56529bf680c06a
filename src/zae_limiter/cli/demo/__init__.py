"""The demo: a live run of the real limiter on an embedded store, and an independent check of the result."""

"""The demo: a live, honest run of the real limiter on an embedded store, and an independent check of the result."""

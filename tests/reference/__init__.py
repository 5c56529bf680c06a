"""Beside the reference, version 0.17: run by ``make test-reference``."""

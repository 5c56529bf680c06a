"""Stores: thin interpreters of guarded writes. They know records, never rates."""

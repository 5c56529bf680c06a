"""Checks of a release and generators of sources."""

"""Apps to start from."""

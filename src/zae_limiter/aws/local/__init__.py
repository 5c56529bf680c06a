"""A local AWS without Docker: ministack in an environment of its own, one per user, found again by every command."""

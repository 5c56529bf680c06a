"""A local AWS without Docker: ministack in its own virtual environment, one per user."""

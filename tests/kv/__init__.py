"""The key-value limiter."""

"""HTTP: what a limiter adds to a request, ours beside rivals, the same app behind each."""

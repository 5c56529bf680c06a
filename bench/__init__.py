"""Benchmarks: ours beside rivals, measured in the same run. Counts and ratios are what counts; times are noise."""

"""Plots that show the laws, drawn from runs of the real thing."""

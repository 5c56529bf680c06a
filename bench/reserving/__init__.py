"""Limiters that reserve an estimate and settle it, as ours does. They need Python 3.12, so all of it runs there."""

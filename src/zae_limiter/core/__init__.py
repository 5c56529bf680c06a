"""The rules of the limiter: pure values and functions.

Integers and frozen values in, values out. Nothing here reads a clock, waits, performs I/O or logs:
``now_ms`` is always an argument.
"""

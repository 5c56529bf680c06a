"""Limits files."""

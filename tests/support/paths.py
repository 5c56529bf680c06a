"""Folders and files of the repository that tests read."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The repository."""

CERTIFICATE = Path(__file__).with_name("localhost.pem")
"""Self-signed for localhost and 127.0.0.1, with its key: for nothing but these tests."""

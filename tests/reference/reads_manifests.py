"""Prints what zae-limiter 0.17 reads from manifests, as JSON: a list of texts in, a list of manifests out."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any


def main() -> None:
    """Read the texts from standard input."""
    manifest: Any = import_module("zae_limiter_provisioner.manifest")
    print(json.dumps([manifest.LimitsManifest.from_yaml(text).to_dict() for text in json.load(sys.stdin)]))


if __name__ == "__main__":
    main()

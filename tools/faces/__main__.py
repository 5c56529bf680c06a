"""Write the faces, or with ``--check`` only say which files differ."""

from __future__ import annotations

import sys
from pathlib import Path

from .writing import ROOT, find_changes


def main(arguments: list[str], source: Path = ROOT / "src") -> int:
    """Write the files that differ, and say which. With ``--check`` only say it, and return 1 if there are any."""
    checks = arguments == ["--check"]
    changes = list(find_changes(source))
    for path, text in changes:
        if text is None and not checks:
            path.unlink()
        elif text is not None and not checks:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        print(f"{'differs' if checks else 'written' if text else 'deleted'}: {path.relative_to(source)}")
    return 1 if checks and changes else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

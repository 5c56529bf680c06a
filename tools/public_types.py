"""``make types-public``: every documented name has a complete type, as ``pyright --verifytypes`` sees it.

The public API is what ``docs/reference/api`` shows and what ``zae_limiter`` exports. Pyright looks at every module
of the package; only what belongs to the public API counts here.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PACKAGE = "zae_limiter"
_DIRECTIVE = re.compile(r"^::: ([\w.]+)", re.MULTILINE)


def documented() -> set[str]:
    """Return the modules, classes and functions that the API reference shows."""
    pages = (ROOT / "docs" / "reference" / "api").glob("*.md")
    return {name for page in pages for name in _DIRECTIVE.findall(page.read_text(encoding="utf-8"))}


def is_public(name: str, shown: set[str], modules: set[str]) -> bool:
    """Return whether a symbol is exported by the package itself, or is shown or a part of what is shown.

    A module that is shown stands for the names in it, not for the modules below it.
    """
    parts = name.split(".")
    prefixes = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
    home = max((prefix for prefix in prefixes if prefix in modules), key=len)
    return home in (PACKAGE, *shown) or any(prefix in shown - modules for prefix in prefixes)


def incomplete(report: dict[str, Any], shown: set[str]) -> Iterator[str]:
    """Yield a line for each thing that is missing in the type of a public symbol."""
    modules = {module["name"] for module in report["typeCompleteness"]["modules"]}
    for symbol in report["typeCompleteness"]["symbols"]:
        names = (symbol["name"], *symbol.get("alternateNames", ()))
        if symbol["isTypeKnown"] or not any(is_public(name, shown, modules) for name in names):
            continue
        for each in symbol["diagnostics"] or [{"message": "its type is not known"}]:
            place = f"{each['file']}:{each['range']['start']['line'] + 1}: " if each.get("range") else ""
            yield f"{place}{symbol['name']}: {' '.join(each['message'].split())}"


def verify(command: list[str]) -> dict[str, Any]:
    """Run pyright over the package and return what it reports. Raise ``SystemExit`` where it cannot run."""
    arguments = ["--verifytypes", PACKAGE, "--ignoreexternal", "--outputjson", "--pythonpath", sys.executable]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, env=environment, check=False)
    try:
        report: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise SystemExit(f"pyright did not report: {done.stdout}{done.stderr}") from None
    if not report["typeCompleteness"]["symbols"]:
        raise SystemExit(f"pyright found no symbols of {PACKAGE}: {report}")
    return report


def main(command: list[str]) -> int:
    """Print what is missing, and how complete the whole package is. Return 0 if nothing public is missing."""
    report = verify(command or [sys.executable, "-m", "pyright"])
    missing = sorted(set(incomplete(report, documented())))
    print("\n".join(missing))
    whole = report["typeCompleteness"]["completenessScore"]
    print(f"public API: {'complete' if not missing else f'{len(missing)} missing'}; all modules: {whole:.1%}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

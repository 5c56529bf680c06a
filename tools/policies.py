"""Keep the attributes that the acquire policies allow those that clients write: ``python -m tools.policies``.

The template lists them under each ``dynamodb:Attributes``. This rewrites the lists from the codec of the records.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

from zae_limiter.records.attributes import CLIENT_ATTRIBUTES

TEMPLATE = Path(__file__).parents[1] / "src" / "zae_limiter" / "aws" / "template.yaml"
_LIST = re.compile(r"(dynamodb:Attributes:\n)( +)\[[^\]]*\]")


def rewrite(template: str) -> str:
    """Return the template with the attributes of the codec in its policies."""
    return _LIST.sub(_fill, template)


def _fill(found: re.Match[str]) -> str:
    head, indent = found.groups()
    listed = f"[{', '.join(CLIENT_ATTRIBUTES)}]"
    return head + textwrap.fill(listed, 118, initial_indent=indent, subsequent_indent=indent)


def main() -> int:
    """Write the template, and say whether it has changed."""
    before = TEMPLATE.read_text(encoding="utf-8")
    after = rewrite(before)
    if before != after:
        TEMPLATE.write_text(after, encoding="utf-8")
        print(f"{TEMPLATE.name} was rewritten")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""``python -m bench.laws``: draws docs/plots/bucket-over-time.svg, contention.svg and prefetch.svg from real runs.

With names behind it only those: ``python -m bench.laws prefetch``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from bench.figures import save
from bench.laws import bucket, crowd, prefetch

PLOTS = Path(__file__).parents[2] / "docs" / "plots"


def kept(name: str, data: Any) -> None:
    """Return the samples as JSON."""
    PLOTS.mkdir(parents=True, exist_ok=True)
    (PLOTS / f"{name}.json").write_text(json.dumps(data, separators=(",", ":")) + "\n", encoding="utf-8")


def main(names: list[str]) -> None:
    """Draw those that are named, or all."""
    if not names or "bucket-over-time" in names:
        story = bucket.run()
        kept("bucket-over-time", story._asdict())
        save(bucket.draw(story), PLOTS / "bucket-over-time.svg")
    if not names or "contention" in names:
        curves = crowd.run()
        kept("contention", curves)
        save(crowd.draw(curves), PLOTS / "contention.svg")
    if not names or "prefetch" in names:
        points = prefetch.run()
        kept("prefetch", points)
        save(prefetch.draw(points), PLOTS / "prefetch.svg")


if __name__ == "__main__":
    main(sys.argv[1:])

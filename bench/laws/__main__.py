"""``python -m bench.laws``: draws docs/plots/bucket-over-time.svg and contention.svg from real runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.figures import save
from bench.laws import bucket, crowd

PLOTS = Path(__file__).parents[2] / "docs" / "plots"


def kept(name: str, data: Any) -> None:
    """What was drawn, as JSON."""
    PLOTS.mkdir(parents=True, exist_ok=True)
    (PLOTS / f"{name}.json").write_text(json.dumps(data, separators=(",", ":")) + "\n", encoding="utf-8")


def main() -> None:
    """Both."""
    story = bucket.run()
    kept("bucket-over-time", story._asdict())
    save(bucket.draw(story), PLOTS / "bucket-over-time.svg")
    curves = crowd.run()
    kept("contention", curves)
    save(crowd.draw(curves), PLOTS / "contention.svg")


if __name__ == "__main__":
    main()

"""Compare all cases with the goldens, show one of them, or freeze what comes out now."""

from __future__ import annotations

import argparse
import collections
import json
import sys
from typing import Any

from . import archive, recorder


def main() -> int:
    """Run what the arguments ask for. Return 1 if something differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.core_goldens", description=__doc__)
    parser.add_argument("--show", type=int, metavar="CASE", help="print all steps of a case, and how they differ")
    parser.add_argument("--step", type=int, metavar="STEP", help="with --show: this step alone")
    parser.add_argument(
        "--write", action="store_true", help="freeze what comes out now: behaviour was changed on purpose"
    )
    given = parser.parse_args()
    if given.show is not None:
        return _show(given.show, given.step)
    if given.write:
        archive.freeze()
        print(f"{recorder.CASES * recorder.STEPS:,} steps, {archive.PATH.stat().st_size:,} bytes")
        return 0
    return _compare()


def _compare() -> int:
    """Print which cases differ, and at which kinds of steps first."""
    found = {number: text for number in range(recorder.CASES) if (text := archive.find_difference(number))}
    kinds = collections.Counter(text.partition(":")[0].rpartition(" ")[2] for text in found.values())
    print(f"{len(found)} of {recorder.CASES} cases differ: {sorted(found)[:20]}")
    for kind, count in kinds.most_common():
        print(f"{count:6} first at {kind}")
    print(*list(found.values())[:1])
    return bool(found)


def _show(number: int, only: int | None) -> int:
    """Print the steps of a case: what each was given, and what came out then and now."""
    differs = False
    for place, (step, golden) in enumerate(zip(recorder.run(number), archive.read(number), strict=True)):
        same = step.line == golden
        differs = differs or not same
        if only not in (None, place):
            continue
        print(f"\n=== case {number} step {place}: {step.name} at {step.now_ms}{'' if same else '   DIFFERENT'}")
        for name, value in step.given.items():
            print(f"    {name} = {value!r}")
        then, now = json.loads(golden)[1], json.loads(step.line)[1]
        print(*(["  -> ", _format(now)] if same else ["  was", _format(then), "\n  is ", _format(now)]))
    return int(differs)


def _format(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True).replace("\n", "\n      ")


if __name__ == "__main__":
    sys.exit(main())

"""docs/benchmarks.md, as a function of the results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.report import beside_limits, growth, http, llm, prefetch, prose, reserving, sections, summary
from bench.report.comparing import behind


def page(results: Mapping[str, Any]) -> str:
    """The whole page."""
    names = [each["name"] for each in results["rivals"]]
    memory, redis = results["memory"], results["redis"]
    parts = [
        "# Benchmarks",
        prose.OPENING,
        summary.figures(results),
        f"{summary.standing(results)}: [the list](#where-a-rival-is-ahead).",
        "## Method",
        prose.METHOD,
        sections.versions(results),
        "## Where a rival is ahead",
        _listed(behind(results)),
        "## The LLM call",
        f"{prose.LLM}\n\n{llm.section(results['llm'])}",
        "## Limiters that reserve",
        f"{prose.RESERVING}\n\n{reserving.section(results['reserving'])}",
        "## Beside a fixed window",
        f"{prose.BESIDE_LIMITS}\n\n{beside_limits.section(results)}",
        "## Growth",
        f"{prose.GROWTH}\n\n{growth.section(results['growth'])}",
        "## In memory",
        _ratios(memory, names, ("wall_us", "cpu_us")),
        f"{prose.PLOT}\n\n![Time per decision in memory](plots/bench-memory.svg)",
        *sections.works(memory),
        "### Eight threads on one key",
        f"{prose.CROWDS}\n\n{sections.crowds(memory['contention'])}",
        "## On Redis",
        _ratios(redis, names, ("wall_us", "cpu_us", "server_us", "bytes")),
        f"{prose.PLOT}\n\n![Time per decision on Redis](plots/bench-redis.svg)",
        *sections.works(redis),
        "### Four processes on one key",
        sections.crowds(redis["contention"]),
        "![Admitted beside the bound](plots/bench-crowds.svg)",
        "## All or nothing",
        f"{prose.LOSSES}\n\n{sections.losses(results)}",
        "## On DynamoDB, beside the reference",
        f"{prose.DYNAMODB}\n\n{sections.dynamodb(results['dynamodb'])}",
        "## A hot key, with prefetch",
        f"{prose.PREFETCH}\n\n{prefetch.section(results['prefetch'])}",
        "## Behind HTTP",
        f"{prose.HTTP}\n\n{http.section(results['http'])}",
        "## Store calls per decision",
        sections.counted(results["calls_per_decision"]),
        "## Import",
        sections.imports(results["import_ms"]),
        *(["## A flood of new keys", sections.floods(results["flood"])] if "flood" in results else []),
    ]
    return "\n\n".join(parts) + "\n"


def _ratios(found: Mapping[str, Any], names: list[str], measures: tuple[str, ...]) -> str:
    return "\n\n".join([prose.RATIOS, *(sections.ratios(found, names, measure) for measure in measures)])


def _listed(sentences: list[str]) -> str:
    return "\n".join(f"- {each}" for each in sentences) or "In none of these figures."

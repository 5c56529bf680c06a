"""Find deployed limiters: all stacks that carry our tag."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.reports import LimiterInfo
from .stack import parse_stack
from .tags import SCHEMA, VERSION

if TYPE_CHECKING:
    from .calls import Aws


def find(aws: Aws) -> list[LimiterInfo]:
    """Return the limiters of this account and region, sorted by name."""
    stacks = [parse_stack(entry) for page in aws.pages("cloudformation", "describe_stacks") for entry in page["Stacks"]]
    found = [
        LimiterInfo(each.name, aws.region, each.status, each.tags.get(VERSION), each.tags.get(SCHEMA))
        for each in stacks
        if each.is_managed
    ]
    return sorted(found, key=lambda each: each.stack_name)

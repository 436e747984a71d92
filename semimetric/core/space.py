"""Search spaces: the values of a setting that tuning may try."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Range:
    """Values from ``low`` to ``high``: integers if both are, log-uniform if ``log``."""

    low: float
    high: float
    log: bool = False

    def __contains__(self, value: Any) -> bool:
        return bool(self.low <= value <= self.high)

    def with_value(self, value: float) -> Range:
        """The range, extended to include ``value``."""
        return Range(min(self.low, value), max(self.high, value), self.log)

    def up_to(self, most: int) -> Range:
        """The range, limited to at most ``most``."""
        high = min(self.high, most)
        return Range(min(self.low, high), high, self.log)


Space = dict[str, Range | tuple[Any, ...]]
"""A range or a tuple of choices for each setting."""

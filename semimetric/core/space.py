"""Search spaces: which values of a setting tuning may try."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Range:
    """Values from ``low`` to ``high``, whole numbers where both are, evenly in their logarithm where ``log``."""

    low: float
    high: float
    log: bool = False

    def __contains__(self, value: Any) -> bool:
        return bool(self.low <= value <= self.high)

    def with_value(self, value: float) -> Range:
        """It, stretched as far as ``value``."""
        return Range(min(self.low, value), max(self.high, value), self.log)

    def up_to(self, most: int) -> Range:
        """The part of it that is not above ``most``."""
        high = min(self.high, most)
        return Range(min(self.low, high), high, self.log)


Space = dict[str, Range | tuple[Any, ...]]
"""For each setting a range or a choice."""

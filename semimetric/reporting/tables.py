"""Tables of scores for a terminal, in percent."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table
from rich.text import Text

from semimetric.reporting.terminal import visible

COLUMNS = {"nmi": "NMI", "recall@1": "R@1", "recall@2": "R@2", "recall@4": "R@4", "recall@8": "R@8"}


def score_table(rows: Mapping[str, Mapping[str, float]], title: str | None = None) -> Table:
    """One row per name; scores (fractions) are shown as percentages with one decimal."""
    table = Table(title=None if title is None else Text(visible(title)), title_justify="left")
    table.add_column("")
    for heading in COLUMNS.values():
        table.add_column(heading, justify="right")
    for name, scores in rows.items():
        table.add_row(Text(visible(name)), *(f"{100 * scores[key]:.1f}" for key in COLUMNS))
    return table

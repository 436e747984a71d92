"""A table of wines, of which some have their grape."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from sklearn.datasets import load_wine

NAMES = ["barolo", "grignolino", "barbera"]


def write_wine(path: Path, lacking: str = "", extra: dict[str, Any] | None = None) -> Path:
    """A table of 178 wines, every fourth with its grape; ``lacking`` is a column to leave out."""
    features, classes = load_wine(return_X_y=True)
    columns: dict[str, Any] = {f"f{number}": features[:, number] for number in range(13)}
    columns["grape"] = [NAMES[name] if row % 4 == 0 else "" for row, name in enumerate(classes)]
    columns["bottle"] = [f"wine {row}" for row in range(len(classes))]
    columns |= extra or {}
    columns.pop(lacking, None)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path

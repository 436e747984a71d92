"""What is to be reproduced: which tables and figures, and of them which datasets, methods and seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from semimetric.core.checks import check_choice
from semimetric.core.errors import InputError
from semimetric.data.benchmarks.registry import check_dataset
from semimetric.methods.registry import METHODS
from semimetric.paper.cells import Cell
from semimetric.paper.experiments import TABLES, Table

COMPLEXITY = "complexity"
TARGETS = (*TABLES, COMPLEXITY)
QUICK_DATASETS, QUICK_SEEDS = ("digits",), (0,)
IN_SMALL = " (quick: digits, one epoch; no comparison of methods)"


@dataclass(frozen=True)
class Request:
    """What is to be reproduced.

    Parameters
    ----------
    targets : names of tables and figures, or "all" for each that has one of the datasets and methods
    datasets, methods, seeds : of each table, unless empty; each counts once
    quick : on digits, one seed and one epoch, to see that everything runs
    """

    targets: tuple[str, ...]
    datasets: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    quick: bool = False

    def __post_init__(self) -> None:
        for name in ("datasets", "methods", "seeds"):
            object.__setattr__(self, name, tuple(dict.fromkeys(getattr(self, name))))
        for name in self.targets:
            check_choice(name, (*TARGETS, "all"), "target")
        for name in self.datasets:
            check_dataset(name)
        for name in self.methods:
            METHODS.check(name)

    def names(self) -> tuple[str, ...]:
        """The targets, in the order of the paper, each once."""
        return tuple(name for name in TARGETS if name in self.targets or "all" in self.targets)

    def tables(self) -> list[Table]:
        """The tables that consist of fits, with the datasets and rows that are asked for."""
        found, refused = [], []
        for name in self.names():
            if name not in TABLES:
                continue
            try:
                found.append(self._cut(TABLES[name]))
            except InputError as error:
                if name in self.targets:
                    raise
                refused.append(error)
        if refused and not found:
            raise InputError("no table has a row of these --datasets and --methods. Leave one of them out.")
        if self.seeds or self.quick:
            found = [dataclasses.replace(table, seeds=self.seeds or QUICK_SEEDS) for table in found]
        if self.quick:
            found = [dataclasses.replace(table, title=f"{table.title}{IN_SMALL}") for table in found]
        return found

    def _cut(self, table: Table) -> Table:
        datasets: Sequence[str] = QUICK_DATASETS if self.quick else table.datasets
        if self.datasets:
            datasets = [name for name in self.datasets if self.quick or name in table.datasets]
        if not datasets:
            raise InputError(
                f"{table.name} is of {', '.join(table.datasets)}, and --datasets names none of them. Name one, or "
                "leave --datasets out."
            )
        rows = [row for row in table.rows if not self.methods or row.method in self.methods]
        rows = rows[: table.quick_rows] if self.quick else rows
        if not rows:
            known = dict.fromkeys(row.method for row in table.rows)
            raise InputError(f"{table.name} has rows of {', '.join(known)}, and --methods names none of them.")
        return dataclasses.replace(table, datasets=tuple(datasets), rows=tuple(rows))

    def cells(self) -> list[Cell]:
        """All fits behind the tables."""
        return [
            cell
            for table in self.tables()
            for dataset in table.datasets
            for row in table.rows
            for cell in table.cells(row, dataset, (), self.quick)
        ]

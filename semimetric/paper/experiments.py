"""The experiments of the paper: which rows each table has, and which fits each row consists of."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from semimetric.data.benchmarks.photographs import PhotoSpec
from semimetric.data.benchmarks.registry import DATASETS
from semimetric.paper.cells import Cell

Protocol = Literal["paper", "ours"]
Values = Mapping[str, Any]

SMALL = ("mnist", "fashion-mnist", "cifar10")
PHOTOGRAPHS = ("cub200", "cars196")

PAPER_METHOD = "affinity-triplets"
CLASSICAL = ("lrml", "seraph", "isdml", "apllr", "apit")
UNSUPERVISED = ("exemplar", "rotation", "instance", "deepcluster", "synthetic")

EARLY = {"patience": 15}
"""Training stops after fifteen epochs without a better score on the withheld examples."""

LONG = {"epochs": 200, "patience": 20}
"""The paper's 200 epochs on photographs, stopped early."""

ONCE = {"epochs": 1, "lr": 0.0, "patience": 0}
"""A closed form on frozen features is the same in every epoch; training a matrix before it did not help (sweep)."""

QUICK = {"epochs": 1, "patience": 0}
"""What --quick changes in every row that trains."""

END_TO_END: Values = {
    "backbone": "",
    "encoder": "googlenet-rmac",
    "preprocess": "imagenet",
    "precision": "bfloat16",
}
"""GoogLeNet itself is trained, on photographs; R-MAC sees one scale in training and three in evaluation."""

ANGLES = (35.0, 40.0, 45.0, 50.0, 55.0)


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Parameters
    ----------
    title, method : the name in the table, and the method
    protocol : whose protocol; it decides the preset
    settings : changes to the preset
    on_photographs : more of them on datasets of photographs
    published : the paper's row that answers to it
    trains : what is trained: "network", or on photographs "features" for a matrix on frozen features
    """

    title: str
    method: str
    protocol: Protocol = "paper"
    settings: Values = field(default_factory=dict)
    on_photographs: Values = field(default_factory=dict)
    published: str = ""
    trains: str = ""

    def cell(self, dataset: str, seed: int, quick: bool, keeps: tuple[str, ...], scored: bool) -> Cell:
        """One fit of this row."""
        changes = {**self.settings, **(self.on_photographs if is_photographs(dataset) else {})}
        if quick and changes.get("epochs") != 0:
            changes |= QUICK if self.protocol == "paper" else {"epochs": QUICK["epochs"]}
        preset = "paper" if self.protocol == "paper" else "default"
        return Cell(dataset, self.method, seed, preset, changes, keeps, scored)


@dataclass(frozen=True)
class Table:
    """Rows on datasets.

    Parameters
    ----------
    keeps : what each fit keeps besides its scores
    seeds : unless given, three on photographs and five elsewhere
    scored : whether test sets are scored
    quick_rows : rows of --quick, all unless given
    """

    name: str
    title: str
    datasets: Sequence[str]
    rows: Sequence[Row]
    keeps: tuple[str, ...] = ()
    seeds: Sequence[int] = ()
    scored: bool = True
    quick_rows: int | None = None

    def cells(self, row: Row, dataset: str, seeds: Sequence[int] = (), quick: bool = False) -> list[Cell]:
        """The fits of a row."""
        wanted = seeds or self.seeds or default_seeds(dataset)
        return [row.cell(dataset, seed, quick, self.keeps, self.scored) for seed in wanted]


def is_photographs(dataset: str) -> bool:
    """Whether a dataset is one of photographs, whose test classes are new."""
    return isinstance(DATASETS.find(dataset), PhotoSpec)


def default_seeds(dataset: str) -> list[int]:
    """Three seeds on photographs, five elsewhere."""
    return list(range(3 if is_photographs(dataset) else 5))


INITIAL = Row("Initial", PAPER_METHOD, settings={"epochs": 0}, published="initial")
OURS = Row("affinity-triplets (the paper's method)", PAPER_METHOD, settings=EARLY, published=PAPER_METHOD)
LONGER = Row(OURS.title, PAPER_METHOD, settings=LONG, published=PAPER_METHOD)
CONSENSUS = Row("consensus", "consensus", "ours", on_photographs={"backbone": "googlenet-rmac"})

STAGES = (
    Row("1. L uniform on [0, 1)", PAPER_METHOD, settings={"epochs": 0}, published="initial"),
    Row("2. the same L orthonormalised", PAPER_METHOD, settings={"epochs": 0, "start": "uniform-orthonormal"}),
    Row("3. metric only (frozen network)", PAPER_METHOD, settings={"lr": 0.0} | EARLY, on_photographs=LONG),
    Row("4. metric and network", PAPER_METHOD, settings=EARLY, on_photographs=LONG, published=PAPER_METHOD),
)

WITHOUT = Row("w/o orth", PAPER_METHOD, settings={"orthogonal": False} | EARLY, published="w/o orth")
WITH = Row("w/ orth", PAPER_METHOD, settings=EARLY, published=PAPER_METHOD)


def deep(method: str) -> Row:
    """A classical method by the paper's protocol; on photographs M is learned once, on frozen features."""
    return Row(f"Deep-{method.upper()}", method, settings=EARLY, on_photographs=ONCE, published=method)


def _end_to_end(row: Row) -> Row:
    """A row through GoogLeNet itself, within a budget of a few epochs."""
    return Row(
        f"{row.title}, end to end",
        row.method,
        settings={"epochs": 6, "patience": 3},
        on_photographs={**BUDGETS[row.method], **END_TO_END},
        published=row.published,
        trains="network",
    )


BUDGETS: dict[str, Values] = {
    PAPER_METHOD: {"anchors": "modes", "lr": 1e-6, "batch_size": 100},
    "isdml": {"lr": 1e-6, "batch_size": 100},
}
"""Settings that keep a run through GoogLeNet within its budget."""

DESCRIBED = "frozen features"

SEMI_SUPERVISED_ROWS = (
    INITIAL,
    *map(deep, CLASSICAL),
    LONGER,
    _end_to_end(deep("isdml")),
    _end_to_end(OURS),
    Row("Initial", PAPER_METHOD, "ours", {"epochs": 0}),
    *(Row(f"Deep-{method.upper()}", method, "ours", {}, {"components": 128}) for method in CLASSICAL),
    Row(OURS.title, PAPER_METHOD, "ours", {"patience": 20}),
    CONSENSUS,
)

UNSUPERVISED_ROWS = (
    *(Row(name, name, settings=LONG, published=name) for name in UNSUPERVISED if name != "rotation"),
    Row("rotation", "rotation", settings={"epochs": 2}, published="rotation", trains="network"),
    LONGER,
    *(Row(name, name, "ours") for name in UNSUPERVISED if name != "rotation"),
    Row("rotation", "rotation", "ours", {"epochs": 2}, trains="network"),
    CONSENSUS,
)

SUPERVISED_ROWS = (
    *(Row(name, name, settings=LONG, published=name) for name in ("triplet", "angular")),
    LONGER,
    *(Row(name, name, "ours", {"start": "principal"}) for name in ("triplet", "angular")),
    Row(OURS.title, PAPER_METHOD, "ours", {"patience": 20, "start": "principal"}),
)


def _tried(method: str, **settings: Any) -> Row:
    """A row of the sweep."""
    title = ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in settings.items()
    )
    return Row(f"{method}: {title}", method, settings={"epochs": 20, "patience": 8} | settings)


def _tried_through(method: str, **settings: Any) -> Row:
    """A row of the sweep that trains GoogLeNet itself."""
    row = _tried(method, **settings)
    few = {"epochs": 2, "patience": 0}
    return dataclasses.replace(
        row, title=f"{row.title}, end to end", on_photographs={**END_TO_END, **few}, trains="network"
    )


SWEEP = (
    *(_tried(PAPER_METHOD, lr=lr) for lr in (0.0, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5)),
    *(_tried(PAPER_METHOD, lr=lr, lr_schedule="cosine") for lr in (1e-7, 1e-6)),
    *(_tried(PAPER_METHOD, lr=lr, reduction="mean") for lr in (1e-5, 1e-4, 1e-3)),
    _tried(PAPER_METHOD, lr=1e-7, metric_every="batch"),
    *(_tried(PAPER_METHOD, lr=lr, renew="partition", epochs_per_partition=10) for lr in (0.0, 1e-7)),
    *(_tried(method, lr=lr, epochs=6) for method in CLASSICAL if method != "seraph" for lr in (0.0, 1e-9, 1e-8, 1e-7)),
    *(_tried_through(PAPER_METHOD, lr=lr, anchors="modes") for lr in (1e-8, 1e-7, 1e-6)),
    *(_tried_through("isdml", lr=lr) for lr in (1e-9, 1e-8, 1e-7)),
)
"""Learning rate, schedule, sum or mean, and when metric and triplets are renewed."""

TABLES = {
    table.name: table
    for table in (
        Table(
            "stages",
            "Four stages of the paper's method",
            (*SMALL, *PHOTOGRAPHS),
            STAGES,
        ),
        Table(
            "table1",
            "Table 1: semi-supervised methods",
            SMALL,
            (INITIAL, *map(deep, CLASSICAL), OURS, CONSENSUS),
        ),
        Table("table2", "Table 2: semi-supervised methods on photographs", PHOTOGRAPHS, SEMI_SUPERVISED_ROWS),
        Table("table3", "Table 3: unsupervised methods on photographs", PHOTOGRAPHS, UNSUPERVISED_ROWS),
        Table("table4", "Table 4: orthogonality", SMALL, (WITHOUT, WITH)),
        Table("table5", "Table 5: supervised methods on CUB-200", ("cub200",), SUPERVISED_ROWS),
        Table(
            "alpha",
            "The angle of the loss, on Cars-196",
            ("cars196",),
            tuple(
                Row(f"{angle:g}°", PAPER_METHOD, settings=LONG | {"alpha": angle}, published=f"{angle:g}")
                for angle in ANGLES
            ),
        ),
        Table(
            "convergence",
            "Convergence over 50 epochs",
            ("mnist", "cub200", "cars196"),
            (Row(OURS.title, PAPER_METHOD, settings={"epochs": 50}),),
        ),
        Table(
            "tsne",
            "Maps of the test set",
            ("mnist", "cifar10"),
            (
                Row("random start", PAPER_METHOD, settings={"epochs": 0}),
                Row("w/o orth", PAPER_METHOD, settings=WITHOUT.settings),
                Row("w/ orth", PAPER_METHOD, settings=WITH.settings),
            ),
            keeps=("map",),
            seeds=(0,),
        ),
        Table(
            "retrieval",
            "Nearest test photographs of a query",
            ("cars196",),
            (*map(deep, CLASSICAL), LONGER, CONSENSUS),
            keeps=("neighbors",),
            seeds=(0,),
        ),
        Table(
            "sweep",
            "Settings on CUB-200, by withheld examples alone",
            ("cub200",),
            SWEEP,
            seeds=(100,),
            scored=False,
            quick_rows=2,
        ),
    )
}
"""Every experiment that consists of fits, by name; "complexity" times functions instead."""

"""The experiments of the paper: which rows each table has, and which fits each row consists of."""

from __future__ import annotations

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
PROPAGATED = ("apllr", "apit")
UNSUPERVISED = ("exemplar", "rotation", "instance", "deepcluster", "synthetic")

EARLY = {"patience": 6}
"""Training stops after six epochs without a better score on the withheld examples."""

LONG = {"epochs": 200, "patience": 8}
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
DESCRIBED: Values = {"backbone": "googlenet-rmac"}
"""Only a matrix is trained, on frozen features, where the preset trains the network."""

CONSENSUS = Row("consensus", "consensus", "ours", on_photographs=DESCRIBED)
STML = Row("stml, with labels", "stml", "ours", on_photographs=DESCRIBED)
STML_SHORT = Row("stml, with labels, shortened", "stml", "ours", {"epochs": 6, "passes": 1})
"""Six passes over the examples: the preset's 150, or 300, take hours on a CPU."""

STML_ALONE = Row("stml", "stml", "ours", {"labels_per_class": 0}, on_photographs=DESCRIBED)

STAGES = (
    Row("1. L uniform on [0, 1)", PAPER_METHOD, settings={"epochs": 0}, published="initial"),
    Row("2. the same L orthonormalised", PAPER_METHOD, settings={"epochs": 0, "start": "uniform-orthonormal"}),
    Row("3. metric only (frozen encoder)", PAPER_METHOD, settings={"lr": 0.0} | EARLY, on_photographs=LONG),
    Row("4. metric and encoder", PAPER_METHOD, settings=EARLY, on_photographs=LONG, published=PAPER_METHOD),
)

WITHOUT = Row("w/o orth", PAPER_METHOD, settings={"orthogonal": False} | EARLY, published="w/o orth")
WITH = Row("w/ orth", PAPER_METHOD, settings=EARLY, published=PAPER_METHOD)


def deep(method: str) -> Row:
    """A classical method by the paper's protocol; on photographs M is learned once, on frozen features."""
    return Row(f"Deep-{method.upper()}", method, on_photographs=ONCE, published=method)


def clipped(method: str) -> Row:
    """APLLR or APIT with the affinities of the original, of whose graph term clipping leaves little."""
    original = {"repulsion": 1.0, "graph_weight": 1.0} | ({"sweeps": 50} if method == "apit" else {})
    return Row(f"Deep-{method.upper()}, graph term clipped", method, settings=original, published=method)


def _end_to_end(row: Row) -> Row:
    """A row through GoogLeNet itself, within a budget of a few epochs."""
    return Row(
        f"{row.title}, end to end",
        row.method,
        settings={"epochs": 3},
        on_photographs={**BUDGETS[row.method], **END_TO_END},
        published=row.published,
        trains="network",
    )


BUDGETS: dict[str, Values] = {
    PAPER_METHOD: {"anchors": "modes", "lr": 1e-7},
    "isdml": {"lr": 1e-8},
}
"""Settings that keep a run through GoogLeNet within its budget."""

SEMI_SUPERVISED_ROWS = (
    INITIAL,
    *map(deep, CLASSICAL),
    LONGER,
    _end_to_end(deep("isdml")),
    _end_to_end(OURS),
    Row("Initial", PAPER_METHOD, "ours", {"epochs": 0}),
    *(Row(f"Deep-{method.upper()}", method, "ours", {}, {"components": 128}) for method in CLASSICAL),
    Row(OURS.title, PAPER_METHOD, "ours", {"patience": 8}),
    STML,
    CONSENSUS,
)

UNSUPERVISED_ROWS = (
    *(Row(name, name, settings=LONG, published=name) for name in UNSUPERVISED if name != "rotation"),
    Row("rotation", "rotation", settings={"epochs": 1}, published="rotation", trains="network"),
    LONGER,
    *(Row(name, name, "ours") for name in UNSUPERVISED if name != "rotation"),
    Row("rotation", "rotation", "ours", {"epochs": 1}, trains="network"),
    STML_ALONE,
    CONSENSUS,
)

SUPERVISED_ROWS = (
    *(Row(name, name, settings=LONG, published=name) for name in ("triplet", "angular")),
    LONGER,
    *(Row(name, name, "ours", {"start": "principal"}) for name in ("triplet", "angular")),
    Row(OURS.title, PAPER_METHOD, "ours", {"patience": 8, "start": "principal"}),
)


def _tried(method: str, **settings: Any) -> Row:
    """A row of the sweep."""
    title = ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in settings.items()
    )
    return Row(f"{method}: {title}", method, settings={"epochs": 8, "patience": 3} | settings)


SWEEP = (
    *(_tried(PAPER_METHOD, lr=lr) for lr in (0.0, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5)),
    *(_tried(PAPER_METHOD, lr=lr, lr_schedule="cosine") for lr in (1e-7, 1e-6)),
    *(_tried(PAPER_METHOD, lr=lr, reduction="mean") for lr in (1e-5, 1e-4, 1e-3)),
    _tried(PAPER_METHOD, lr=1e-7, metric_every="batch"),
    *(_tried(PAPER_METHOD, lr=lr, renew="partition", epochs_per_partition=10) for lr in (0.0, 1e-7)),
    *(_tried(method, lr=lr, epochs=3) for method in CLASSICAL if method != "seraph" for lr in (0.0, 1e-8, 1e-7)),
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
            (INITIAL, *map(deep, CLASSICAL), *map(clipped, PROPAGATED), OURS, STML_SHORT, CONSENSUS),
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
                Row(f"{angle:g}°", PAPER_METHOD, settings=LONG | {"alpha": angle, "lr": 0.0}, published=f"{angle:g}")
                for angle in ANGLES
            ),
        ),
        Table(
            "convergence",
            "Convergence over 50 epochs",
            ("mnist", "cars196"),
            (
                Row("metric and network", PAPER_METHOD, settings={"epochs": 50}),
                Row("metric only", PAPER_METHOD, settings={"epochs": 50, "lr": 0.0}),
            ),
            seeds=(0,),
        ),
        Table(
            "tsne",
            "Maps of the test set",
            ("mnist", "cifar10"),
            (
                Row("random start", PAPER_METHOD, settings={"epochs": 0}),
                WITHOUT,
                WITH,
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

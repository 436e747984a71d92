"""Published figures of Dutta, Harandi and Sekhar (AAAI 2021), in per cent: NMI, then Recall@1, 2, 4 and 8."""

from __future__ import annotations

COLUMNS = ("nmi", "recall@1", "recall@2", "recall@4", "recall@8")

Row = tuple[float, float, float, float, float]

SEMI_SUPERVISED: dict[str, dict[str, Row]] = {
    "mnist": {
        "initial": (17.4, 86.5, 92.4, 95.9, 97.6),
        "lrml": (48.3, 88.7, 93.2, 95.9, 97.6),
        "seraph": (45.3, 92.5, 95.7, 97.6, 98.7),
        "isdml": (44.1, 92.1, 95.7, 97.5, 98.6),
        "apllr": (30.5, 57.6, 71.1, 82.1, 90.1),
        "apit": (31.7, 87.6, 92.9, 96.0, 97.9),
        "affinity-triplets": (47.5, 93.9, 96.6, 98.2, 98.9),
    },
    "fashion-mnist": {
        "initial": (32.6, 71.9, 82.0, 89.5, 94.8),
        "lrml": (53.2, 75.3, 83.9, 90.2, 95.0),
        "seraph": (53.0, 75.9, 85.1, 91.5, 95.4),
        "isdml": (51.3, 74.4, 84.2, 90.7, 95.1),
        "apllr": (38.9, 59.5, 73.3, 84.1, 91.4),
        "apit": (37.3, 69.4, 80.1, 88.5, 94.1),
        "affinity-triplets": (52.1, 77.6, 86.0, 91.8, 95.6),
    },
    "cifar10": {
        "initial": (20.4, 38.2, 54.9, 71.0, 83.6),
        "lrml": (16.0, 40.2, 56.3, 71.5, 83.7),
        "seraph": (21.3, 39.5, 56.2, 71.1, 83.7),
        "isdml": (20.0, 36.4, 52.4, 68.5, 82.1),
        "apllr": (13.3, 24.4, 40.0, 58.8, 76.4),
        "apit": (11.4, 26.0, 41.4, 59.6, 76.4),
        "affinity-triplets": (25.3, 41.4, 57.3, 72.6, 84.9),
    },
}
"""Table 1: 10 labels per class on MNIST and Fashion-MNIST, 100 on CIFAR-10."""

WITHOUT_ORTHOGONALITY: dict[str, Row] = {
    "mnist": (42.9, 91.5, 95.3, 97.3, 98.6),
    "fashion-mnist": (50.3, 73.3, 82.4, 89.7, 94.4),
    "cifar10": (19.0, 37.4, 54.2, 69.7, 83.4),
}
"""Table 4, rows 'w/o orth'; its rows 'w/ orth' are those of Table 1."""

FINE_GRAINED: dict[str, dict[str, Row]] = {
    "cub200": {
        "initial": (34.3, 31.7, 42.2, 55.4, 67.9),
        "lrml": (49.9, 34.9, 45.0, 55.4, 65.7),
        "seraph": (50.5, 39.7, 52.2, 64.4, 76.5),
        "isdml": (50.6, 43.7, 55.7, 67.6, 78.4),
        "apllr": (38.9, 25.7, 36.6, 48.7, 61.9),
        "apit": (52.1, 42.2, 54.5, 66.7, 78.2),
        "exemplar": (45.0, 38.2, 50.3, 62.8, 75.0),
        "rotation": (49.1, 42.5, 55.8, 68.6, 79.4),
        "instance": (45.1, 39.2, 51.4, 63.7, 75.8),
        "deepcluster": (53.0, 42.9, 54.1, 65.6, 76.2),
        "synthetic": (53.4, 43.5, 56.2, 68.3, 79.1),
        "affinity-triplets": (54.0, 44.8, 56.9, 69.1, 79.9),
    },
    "cars196": {
        "initial": (23.7, 24.2, 32.8, 43.4, 54.9),
        "lrml": (40.5, 33.2, 41.2, 49.4, 58.3),
        "seraph": (37.2, 34.8, 46.7, 59.4, 71.7),
        "isdml": (25.8, 30.6, 40.8, 52.2, 63.2),
        "apllr": (33.2, 33.0, 43.6, 55.6, 67.9),
        "apit": (37.3, 38.5, 50.7, 62.7, 74.9),
        "exemplar": (35.4, 36.5, 48.1, 59.2, 71.0),
        "rotation": (32.7, 33.3, 44.6, 56.4, 68.5),
        "instance": (35.6, 37.5, 48.7, 59.8, 71.5),
        "deepcluster": (38.5, 32.6, 43.8, 57.0, 69.5),
        "synthetic": (37.6, 42.0, 54.3, 66.0, 77.2),
        "affinity-triplets": (40.7, 45.7, 58.1, 69.5, 80.4),
    },
}
"""Tables 2 and 3: 5 labels per class, classes at test time that are new."""

SUPERVISED_ON_CUB: dict[str, tuple[float, float, float, float]] = {
    "triplet": (42.6, 55.2, 66.9, 77.6),
    "angular": (41.4, 54.5, 67.1, 78.4),
}
"""Table 5: Recall@1, 2, 4 and 8; its row 'Ours' is that of Table 2."""

ANGLES_ON_CARS: dict[float, Row] = {
    35.0: (40.5, 45.0, 57.2, 69.0, 79.8),
    40.0: (40.3, 45.5, 57.8, 69.1, 80.0),
    45.0: (40.7, 45.7, 58.1, 69.5, 80.4),
    55.0: (40.4, 45.7, 57.9, 69.4, 80.1),
}
"""The angle of the loss, on Cars-196: a table within Figure 2."""


def published_row(dataset: str, row: str) -> tuple[float | None, ...] | None:
    """The paper's figures of a row on a dataset, None where it has none.

    Parameters
    ----------
    dataset : str
        Name of the dataset.
    row : str
        "initial", "w/o orth", the name of a method, or an angle such as "45".
    """
    if row == "w/o orth":
        return WITHOUT_ORTHOGONALITY.get(dataset)
    if dataset == "cub200" and row in SUPERVISED_ON_CUB:
        return (None, *SUPERVISED_ON_CUB[row])
    if row.isdecimal():
        return ANGLES_ON_CARS.get(float(row)) if dataset == "cars196" else None
    return (SEMI_SUPERVISED | FINE_GRAINED).get(dataset, {}).get(row)

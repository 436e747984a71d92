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
"""Table 5, rows 'w/o orth'."""

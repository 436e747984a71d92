"""Search among new classes: CUB-200 or Cars-196, five labels per class, 128 dimensions, beside the paper.

    python benchmarks/fine_grained.py --data-dir DATA --weights googlenet.npz --descriptors cub.safetensors --workers 4
    python benchmarks/fine_grained.py --rows 'affinity-triplets,affinity-triplets by examples' --seeds 0 ...
    python benchmarks/fine_grained.py --rows '' --frozen ...
    python benchmarks/fine_grained.py --validate --rows 'consensus,consensus with strong views' --seeds 0 ...

The rows *frozen* score the features of the frozen network: all dimensions, and 128 principal components of the training
photographs. A row *by examples* lets 15 % of each training class choose the epoch, as the paper does; all others let
withheld training classes choose it. Test classes are new to every row; the test set is scored once before training and
once after. ``--validate``, for choosing settings, scores the last model (with ``--set selection=validation`` the best)
on 30 % of the training classes, withheld, and does not touch the test set. Unless named, all rows are run but those
that compare validations (``CHOSEN``) or take a part away (``CHANGED``). What ``--out`` holds already is kept.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from consensus import spread
from jobs import Job, changes, names, run_and_report, with_run_options

from semimetric.encoders import weights_name
from semimetric.evaluation import evaluate
from semimetric.metric import Metric
from semimetric.paper.published import COLUMNS, FINE_GRAINED, SUPERVISED_ON_CUB
from semimetric.pipeline.data import load_examples
from semimetric.pipeline.presets import preset_values
from semimetric.pipeline.resolve import resolve_benchmark
from semimetric.training import choose_device

CLASSICAL = ("lrml", "seraph", "isdml", "apllr", "apit")
BASELINES = ("triplet", "angular", "exemplar", "rotation", "instance", "deepcluster", "synthetic")
WIDTH, LITE_SIDE = 128, 260


@dataclass(frozen=True)
class Row:
    """A method with changed settings."""

    method: str
    settings: dict[str, Any] = field(default_factory=dict)


FORMER = {"side": 0, "mirror": False}
"""Squares of 256 pixels, the size of the datasets, and no mirror images: the preset when these rows were measured."""

ROWS = {
    "affinity-triplets": Row("affinity-triplets"),
    "affinity-triplets from principal components": Row("affinity-triplets", {"start": "principal"}),
    "affinity-triplets from random L": Row("affinity-triplets", {"start": "random"}),
    "affinity-triplets by examples": Row("affinity-triplets", {"withheld": "examples"}),
    "consensus as shipped": Row("consensus"),
    "consensus": Row("consensus", FORMER),
    "consensus by examples": Row("consensus", FORMER | {"withheld": "examples"}),
    "consensus on descriptors": Row("consensus", {"backbone": "googlenet-rmac"}),
    "consensus on descriptors by examples": Row("consensus", {"backbone": "googlenet-rmac", "withheld": "examples"}),
    **{name: Row(name, {"components": WIDTH}) for name in CLASSICAL},
    **{name: Row(name) for name in BASELINES},
}

LARGE_STEPS = {
    "backbone": "",
    "encoder": "googlenet",
    "side": 224,
    "preprocess": "imagenet",
    "precision": "bfloat16",
    "lr": 1e-4,
    "epochs": 15,
    "passes": 10,
}
"""The network itself, on the labelled examples alone: it matters which of its epochs is chosen."""

AVGMAX = {"encoder": "googlenet-avgmax", "side": 224, "mirror": False}
CONTEXT = {"neighbours": 5, "context": 1.0}

CHOSEN = {
    "triplet by examples": Row("triplet", {"withheld": "examples"}),
    "angular by examples": Row("angular", {"withheld": "examples"}),
    "triplet through the network": Row("triplet", LARGE_STEPS),
    "triplet through the network by examples": Row("triplet", LARGE_STEPS | {"withheld": "examples"}),
}
"""More rows that differ in what chooses their epoch."""

CHANGED = {
    "consensus with strong views": Row("consensus", FORMER | {"augmentation": "objects"}),
    "consensus by plain confidence": Row("consensus", FORMER | {"relative": False}),
    "consensus with principal components": Row("consensus", FORMER | {"metric": "principal"}),
    "consensus with average pooling": Row("consensus", {"encoder": "googlenet", "side": 224, "mirror": False}),
    "consensus at a third of the rate": Row("consensus", FORMER | {"lr": 1e-5}),
    "consensus at three times the rate": Row("consensus", FORMER | {"lr": 1e-4}),
    "consensus with neighbours": Row("consensus", FORMER | {"neighbours": 5}),
    "consensus with context": Row("consensus", FORMER | CONTEXT),
    "consensus with average plus maximum": Row("consensus", AVGMAX),
    "consensus with average plus maximum and context": Row("consensus", AVGMAX | CONTEXT),
    "consensus with average plus maximum and context in crops": Row(
        "consensus", AVGMAX | CONTEXT | {"augmentation": "crops"}
    ),
    "consensus on descriptors of EfficientNet-Lite2": Row(
        "consensus", {"backbone": "efficientnet-lite2", "side": LITE_SIDE}
    ),
    "consensus with EfficientNet-Lite2": Row(
        "consensus", {"encoder": "efficientnet-lite2", "side": LITE_SIDE, "mirror": False}
    ),
    "consensus with EfficientNet-Lite2 and a generalised mean": Row("consensus", {"encoder": "efficientnet-lite2-gem"}),
    "stml without labels": Row("stml", {"labels_per_class": 0}),
    "stml without labels by its head": Row("stml", {"labels_per_class": 0, "metric": "head"}),
    "stml with labels": Row("stml"),
}
"""What each part of it brings, by ``--validate``."""

ALL = ROWS | CHOSEN | CHANGED


def frozen(args: argparse.Namespace) -> list[list[str]]:
    """Lines of the frozen network; of GoogLeNet by average and by regional maxima, whose descriptors may be kept."""
    name, lines = weights_name(args.weights), []
    known = (("googlenet", 224, None), ("googlenet-rmac", 256, args.descriptors))
    other = ((name.removesuffix("-gem"), changes(args.set, "frozen").get("side", LITE_SIDE), None),)
    for backbone, side, keep in known if name == "googlenet" else other:
        settings = {"backbone": backbone, "side": side, "weights": str(args.weights), "descriptors": str(keep or "")}
        experiment = resolve_benchmark(args.dataset, "affinity-triplets", **settings)
        found = load_examples(experiment, args.data_dir, choose_device(args.device))
        principal = Metric.principal(found.train.inputs, WIDTH)
        for points in (found.test.inputs, principal.transform(found.test.inputs)):
            scores = evaluate(points, found.test.labels)
            title = f"frozen {backbone}, {side} px, {points.shape[1]} dimensions"
            lines.append([title, "", *(f"{100 * scores[column]:.1f}" for column in COLUMNS), ""])
    return lines


def describes(dataset: str, name: str) -> bool:
    """Whether a row learns from descriptors, which can be kept, and not from images."""
    row = ALL[name]
    return bool((preset_values("default", dataset, row.method) | row.settings)["backbone"])


def table(dataset: str, outcomes: list[dict[str, Any]], first: list[list[str]]) -> list[list[str]]:
    """The frozen network, then for each row its start, its end, and the paper's figures where it has them."""
    lines = [["row", "seeds", "NMI", "R@1", "R@2", "R@4", "R@8", "seconds"], *first]
    started: list[str] = []
    for name in ALL:
        mine = [outcome for outcome in outcomes if outcome["label"] == f"{dataset} {name}"]
        if not mine:
            continue
        start, end = (scores(mine, when) for when in ("initial", "final"))
        if start != started:
            lines.append(["Initial", str(len(mine)), *start, ""])
            started = start
        lines.append([name, str(len(mine)), *end, spread([outcome["wall"] for outcome in mine], 0)])
        if not mine[0]["validate"]:
            lines += published(dataset, name)
    return lines


def published(dataset: str, name: str) -> list[list[str]]:
    """The line of the paper's figures of a row, where it has them; of the supervised losses it has no NMI."""
    if name in FINE_GRAINED[dataset]:
        figures = [f"{value:.1f}" for value in FINE_GRAINED[dataset][name]]
    elif dataset == "cub200" and name in SUPERVISED_ON_CUB:
        figures = ["", *(f"{value:.1f}" for value in SUPERVISED_ON_CUB[name])]
    else:
        return []
    return [[f"{name}, paper", "", *figures, ""]]


def scores(outcomes: list[dict[str, Any]], when: str) -> list[str]:
    """Mean and deviation of each column, in per cent."""
    return [spread([100 * outcome[when][column] for outcome in outcomes]) for column in COLUMNS]


def job(name: str, seed: int, args: argparse.Namespace) -> Job:
    """One run of a row, with the settings of ``--set`` that concern it."""
    row = ALL[name]
    settings: dict[str, Any] = {"weights": str(args.weights)}
    settings |= {"descriptors": str(args.descriptors)} if args.descriptors and describes(args.dataset, name) else {}
    settings |= {"validation_share": 0.3} if args.validate else {}
    settings |= row.settings | changes(args.set, name)
    return Job(args.dataset, row.method, seed, "default", settings, f"{args.dataset} {name}", validate=args.validate)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--dataset", default="cub200", choices=sorted(FINE_GRAINED))
    options.add_argument("--rows", type=names(ALL), default=",".join(ROWS))
    options.add_argument("--seeds", default="0,1,2")
    options.add_argument("--set", action="append", default=[], help="[ROW:]NAME=VALUE, other than the preset's")
    options.add_argument("--weights", type=Path, required=True)
    options.add_argument("--descriptors", type=Path, help="keep the descriptors of the backbone there")
    options.add_argument("--frozen", action="store_true", help="score the frozen network too")
    options.add_argument("--validate", action="store_true", help="score withheld training classes instead")
    return with_run_options(options)


def jobs_of(args: argparse.Namespace) -> list[Job]:
    """What is asked for."""
    return [job(name, int(seed), args) for name in args.rows for seed in args.seeds.split(",")]


def main() -> None:
    """Run all rows, print the table, write the JSON."""
    args = parser().parse_args()
    if args.frozen and args.validate:
        raise SystemExit("--frozen scores the test set, which --validate leaves alone. Leave one of them out.")
    first = frozen(args) if args.frozen else []
    run_and_report(jobs_of(args), args, lambda outcomes: table(args.dataset, outcomes, first))


if __name__ == "__main__":
    main()

"""A folder of photographs with five labels a class: ``consensus`` beside logistic regression on the same features.

    python benchmarks/own_photographs.py --data-dir DATA --out benchmarks/results/own_photographs.json
    python benchmarks/own_photographs.py --data-dir DATA --sets choice --set lr=3e-4
    python benchmarks/own_photographs.py --data-dir DATA --set encoder=efficientnet-lite2 --set side=224

Each set is fifteen classes. Half of the photographs of a class are new; five of the others are labelled. A draw says
which. The default network for photographs describes all of them. ``consensus`` is fitted as ``SemiMetric`` would on
the paths, and predicts the new ones; so do the regressions. Fifteen more classes of the same dataset are not seen in
the fit: they tell how well search does among them, beside the frozen features, and how well the score of unknown
classes separates them from new photographs of the known ones. Settings were chosen on ``choice`` alone.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jobs import changes, machine, names, write_result
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from semimetric.core.checks import check_choice
from semimetric.encoders import encoder_names
from semimetric.evaluation import map_at_r, nmi, recall_at_k
from semimetric.model.fitted import FittedModel, scaled_vectors
from semimetric.pipeline.data import FitData
from semimetric.pipeline.descriptors import photo_transform
from semimetric.pipeline.fit import fit
from semimetric.pipeline.plan import Plan
from semimetric.pipeline.resolve import resolve_own

CLASSES, LABELS = 15, 5
SETS = {
    "choice": ("cub200", range(1, 101, 7)),
    "species": ("cub200", range(101, 201, 7)),
    "models": ("cars196", range(99, 197, 7)),
}
"""The dataset and its class numbers. The first set is for choosing settings."""

OF_NETWORK = ("encoder", "side")
"""Settings that decide the features."""

UNSEEN = 3
"""The unseen classes of a set have these numbers more."""

REGRESSIONS = {
    "logistic regression": lambda: LogisticRegression(max_iter=2000),
    "logistic regression, standardised": lambda: make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)),
    "logistic regression, C 100": lambda: LogisticRegression(C=100.0, max_iter=2000),
}

Scores = dict[str, list[float]]


class Described(NamedTuple):
    """Features (N, d) of photographs, their class numbers, and the seconds that this took."""

    features: Tensor
    classes: Tensor
    seconds: float


class Draw(NamedTuple):
    """Rows of the photographs to learn from, with their labels, and rows of the new ones."""

    rows: Tensor
    labels: Tensor
    new: Tensor


class Measured(NamedTuple):
    """Accuracy on new photographs, scores on unseen classes, and the seconds of each fit."""

    scores: Scores
    unseen: Scores
    seconds: list[float]


def photographs_of(data_dir: Path, name: str, shift: int) -> tuple[list[Path], Tensor]:
    """Paths and class numbers of a set, or of the classes with numbers ``shift`` more."""
    dataset, wanted = SETS[name]
    folders = sorted((data_dir / dataset).glob("t*/*"))  # they begin with the number of their class
    order = {number + shift: place for place, number in enumerate(list(wanted)[:CLASSES])}
    found = [
        (path, order[int(f.name[:3])]) for f in folders if int(f.name[:3]) in order for path in sorted(f.iterdir())
    ]
    return [path for path, _ in found], torch.tensor([number for _, number in found])


def described(
    data_dir: Path, name: str, cache: Path | None, shift: int = 0, network: dict[str, Any] | None = None
) -> Described:
    """Features by the default network for photographs, or one that is asked for; from the cache if they are there."""
    network = network or {}
    asked = "".join(f"-{value}" for value in network.values())
    kept = None if cache is None else cache / f"own-{name}{shift or ''}{asked}.pt"
    if kept is not None and kept.exists():
        return Described(*torch.load(kept, weights_only=True))
    paths, classes = photographs_of(data_dir, name, shift)
    began = time.perf_counter()
    plan = plan_of(classes, 0, network)
    _, features, _ = photo_transform(plan.network, 0).read(paths, "cpu")
    found = Described(features, classes, time.perf_counter() - began)
    if kept is not None:
        torch.save(tuple(found), kept)
    return found


def draw_of(classes: Tensor, seed: int) -> Draw:
    """Half of each class to learn from, of which five are labelled."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(classes), generator=generator)
    mine = [order[classes[order] == number] for number in range(CLASSES)]
    halves = [rows.split([len(rows) // 2, len(rows) - len(rows) // 2]) for rows in mine]
    rows, new = (torch.cat([half[place] for half in halves]) for place in (0, 1))
    labels = torch.full((len(rows),), -1)
    known = torch.cat([torch.arange(len(half[0])) < LABELS for half in halves])
    labels[known] = classes[rows[known]]
    return Draw(rows, labels, new)


def fitted(data: Described, draw: Draw, seed: int, settings: dict[str, Any]) -> FittedModel:
    """The default method on the photographs of a draw."""
    plan = plan_of(draw.labels, seed, settings)
    return fit(plan, FitData("photographs", (), data.features[draw.rows], draw.labels), torch.device("cpu"))


def plan_of(labels: Tensor, seed: int, settings: dict[str, Any]) -> Plan:
    """All settings in force for photographs with these labels."""
    return resolve_own("photographs", (), labels, torch.device("cpu"), seed=seed, **settings)


def naming_accuracy(found: FittedModel, features: Tensor, classes: Tensor) -> float:
    """Accuracy of the predicted classes, in per cent."""
    named = found.posteriors.classes[found.probabilities(found.model.embed(features)).argmax(1)]
    return 100 * float((named == classes).double().mean())


def search_scores(embedded: Tensor, classes: Tensor) -> Scores:
    """R@1, MAP@R and NMI, in per cent."""
    nearest, clusters = recall_at_k(embedded, classes, (1,)), nmi(embedded, classes, CLASSES)
    return {"R@1": [100 * nearest[1]], "MAP@R": [100 * map_at_r(embedded, classes)], "NMI": [100 * clusters]}


def unseen_scores(found: FittedModel, new: Tensor, unseen: Described) -> Scores:
    """Search among the unseen classes by the run and by frozen features, and the area under the curve of unknown."""
    learned = search_scores(found.model.embed(unseen.features), unseen.classes)
    frozen = search_scores(unseen.features, unseen.classes)
    score = found.check_unknown().scores
    rows = torch.cat([new, unseen.features])
    truth = torch.arange(len(rows)) >= len(new)
    area = 100 * float(roc_auc_score(truth.numpy(), score(scaled_vectors(found.model.preprocess, rows)).numpy()))
    return (
        {f"unseen {name}": values for name, values in learned.items()}
        | {f"unseen {name}, frozen": values for name, values in frozen.items()}
        | {"known against unseen, AUROC": [area]}
    )


def regression_accuracy(data: Described, draw: Draw, model: Any) -> float:
    """Accuracy of a regression on the labelled features, in per cent."""
    known = draw.labels >= 0
    model.fit(data.features[draw.rows[known]].numpy(), draw.labels[known].numpy())
    return 100 * float(model.score(data.features[draw.new].numpy(), data.classes[draw.new].numpy()))


def measure(data: Described, unseen: Described, seeds: list[int], settings: dict[str, Any]) -> Measured:
    """Accuracy of everything in each draw, scores on unseen classes, and the seconds of each fit of ``consensus``."""
    scores: Scores = {"consensus": []} | {name: [] for name in REGRESSIONS}
    others: Scores = {}
    seconds = []
    for seed in seeds:
        draw = draw_of(data.classes, seed)
        began = time.perf_counter()
        found = fitted(data, draw, seed, settings)
        seconds.append(time.perf_counter() - began)
        scores["consensus"].append(naming_accuracy(found, data.features[draw.new], data.classes[draw.new]))
        for name, build in REGRESSIONS.items():
            scores[name].append(regression_accuracy(data, draw, build()))
        for name, values in unseen_scores(found, data.features[draw.new], unseen).items():
            others.setdefault(name, []).extend(values)
    return Measured(scores, others, seconds)


def ahead(scores: Scores) -> list[float]:
    """``consensus`` less the regression that is best on average, draw by draw."""
    best = max(REGRESSIONS, key=lambda name: statistics.mean(scores[name]))
    return [one - other for one, other in zip(scores["consensus"], scores[best], strict=True)]


def shown(values: list[float]) -> str:
    """Mean ± deviation."""
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values) if len(values) > 1 else 0:.1f}"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data-dir", type=Path, required=True)
    options.add_argument("--sets", type=names(SETS), default="choice,species,models", help=f"of {', '.join(SETS)}")
    options.add_argument("--seeds", default="0,1,2,3,4")
    options.add_argument("--set", action="append", default=[], help="NAME=VALUE, other than the default")
    options.add_argument("--cache", type=Path, help="folder for the features, to measure again without the network")
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--out", type=Path)
    return options


class Job(NamedTuple):
    """The fits of a set of photographs, with settings other than the default."""

    name: str
    settings: dict[str, Any]

    def plan(self) -> Plan:
        """All settings but those of the network, for five labels a class; one that is unknown is refused."""
        others = {key: value for key, value in self.settings.items() if key not in OF_NETWORK}
        check_choice(self.settings.get("encoder", "auto"), ("auto", *encoder_names()), "encoder")
        return plan_of(torch.arange(CLASSES).repeat(LABELS), 0, others)


def jobs_of(args: argparse.Namespace) -> list[Job]:
    """What is asked for."""
    return [Job(name, changes(args.set, name)) for name in args.sets]


def main() -> None:
    """Measure, print a line for each set, write the JSON."""
    args = parser().parse_args()
    torch.set_num_threads(args.threads)
    warnings.simplefilter("ignore")
    seeds = [int(seed) for seed in args.seeds.split(",")]
    results: dict[str, Any] = {}
    for name, settings in jobs_of(args):
        network = {key: settings[key] for key in OF_NETWORK if key in settings}
        data = described(args.data_dir, name, args.cache, network=network)
        unseen = described(args.data_dir, name, args.cache, UNSEEN, network)
        found = measure(data, unseen, seeds, settings)
        results[name] = {
            "photographs": len(data.classes),
            "describing": data.seconds,
            "fits": found.seconds,
            "scores": found.scores,
            "unseen": found.unseen,
        }
        line = [f"{row} {shown(values)}" for row, values in (found.scores | found.unseen).items()]
        line.append(f"ahead {shown(ahead(found.scores))}")
        print(f"{name}: " + ", ".join(line) + f", fit {statistics.mean(found.seconds):.0f} s", flush=True)
    write_result(args.out, machine() | {"seeds": seeds, "threads": args.threads, "results": results})


if __name__ == "__main__":
    main()

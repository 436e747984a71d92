"""Do suggested labels help more than random ones on frozen features? At 16, 32 and 64 further labels.

    python benchmarks/suggestions.py --features digits --out suggestions_digits.json
    python benchmarks/suggestions.py --features mnist --data-dir DATA --out suggestions_mnist.json
    python benchmarks/suggestions.py --features choice --data-dir DATA --out suggestions_choice.json
    python benchmarks/suggestions.py --features birds.npz --out suggestions_birds.json

The examples are divided at random: a third is new and only scores. Of the others one of each class, drawn at random,
has a label. Then rounds of 16 labels follow: *suggested* by ``suggest`` from the graph posteriors of the features, or
drawn at *random* from all unlabelled ones alike. The score is the accuracy on the new examples, each named by its
nearest examples as ``predict`` does. Nothing is trained. The .npz has the arrays X (N, d) and y (N,). ``choice``,
``species`` and ``models`` are the photographs of ``own_photographs.py``, described by the default network; --cache
keeps their features.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from own_photographs import SETS, described
from torch import Tensor

from semimetric.data.preprocess import Identity
from semimetric.metric import Metric
from semimetric.model.fitted import FittedModel, Model, posteriors_of
from semimetric.model.spec import ModelSpec
from semimetric.serve.suggest import suggest

BUDGETS = (16, 32, 64)
ROUND = 16
MOST = 2000
"""Examples of MNIST."""


def read(name: str, data_dir: Path | None, cache: Path | None = None) -> tuple[Tensor, Tensor]:
    """Features (N, d) in float64 and classes (N,)."""
    if name in SETS:
        found = described(data_dir or Path("data"), name, cache)
        return found.features.double(), found.classes
    if name.endswith(".npz"):
        import numpy as np

        arrays = np.load(name, allow_pickle=False)
        classes = torch.from_numpy(np.unique(arrays["y"], return_inverse=True)[1])
        return torch.from_numpy(arrays["X"]).double(), classes
    from semimetric.data import load_dataset

    train = load_dataset(name, data_dir).train
    return train.inputs[:MOST].flatten(1).double(), train.labels[:MOST]


def accuracies(features: Tensor, classes: Tensor, way: str, seed: int) -> dict[int, float]:
    """Accuracy on new examples after each number of further labels."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(classes), generator=generator)
    new, pool = order[: len(order) // 3], order[len(order) // 3 :]
    points, truth = features[pool], classes[pool]
    labels = torch.full_like(truth, -1)
    for name in truth.unique():
        row = (truth == name).nonzero().flatten()[0]  # the pool is in random order
        labels[row] = name
    found = {0: score(points, labels, features[new], classes[new])}
    for spent in range(ROUND, max(BUDGETS) + 1, ROUND):
        if way == "random":
            rows = (labels < 0).nonzero().flatten()
            rows = rows[torch.randperm(len(rows), generator=generator)[:ROUND]]
        else:
            known = posteriors_of(points, labels)
            rows = suggest(points, labels, known.shares, known.confidence, ROUND, seed).rows
        labels[rows] = truth[rows]
        if spent in BUDGETS:
            found[spent] = score(points, labels, features[new], classes[new])
    return found


def score(points: Tensor, labels: Tensor, new: Tensor, classes: Tensor) -> float:
    """Accuracy of ``predict`` on new examples."""
    known = posteriors_of(points, labels)
    model = Model(Identity(), None, Metric.identity(points.shape[1]))
    shape = (points.shape[1],)
    fitted = FittedModel(model, ModelSpec("vectors", shape, shape, "none", "none"), points, labels, known)
    named = known.classes[fitted.probabilities(new).argmax(1)]
    return float((named == classes).double().mean())


def summary(outcomes: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean accuracy of both ways, and the mean difference of pairs with its standard error, by further labels."""
    lines = {}
    for count in (0, *BUDGETS):
        ways = {
            way: torch.tensor([entry["accuracy"][count] for entry in outcomes if entry["way"] == way])
            for way in ("suggested", "random")
        }
        gain = ways["suggested"] - ways["random"]
        lines[count] = {way: float(values.mean()) for way, values in ways.items()} | {
            "gain": float(gain.mean()),
            "standard_error": float(gain.std() / len(gain) ** 0.5),
            "seeds_better": int((gain > 0).sum()),
        }
    return lines


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--features", default="digits")
    options.add_argument("--data-dir", type=Path)
    options.add_argument("--cache", type=Path)
    options.add_argument("--per-class", type=int, help="the first so many examples of each class alone")
    options.add_argument("--seeds", type=int, default=10)
    options.add_argument("--out", type=Path, required=True)
    return options


def main() -> None:
    """Measure, print a table and write the result."""
    given = parser().parse_args()
    torch.set_num_threads(1)
    features, classes = read(given.features, given.data_dir, given.cache)
    if given.per_class is not None:
        rows = torch.cat([(classes == name).nonzero().flatten()[: given.per_class] for name in classes.unique()])
        features, classes = features[rows], classes[rows]
    outcomes = [
        {"way": way, "seed": seed, "accuracy": accuracies(features, classes, way, seed)}
        for seed in range(given.seeds)
        for way in ("suggested", "random")
    ]
    found = summary(outcomes)
    for count, line in found.items():
        print(count, {name: round(value, 4) for name, value in line.items()})
    command = f"python benchmarks/suggestions.py --features {Path(given.features).name} --seeds {given.seeds}"
    command += " --data-dir DATA" if given.features in SETS or given.data_dir is not None else ""
    command += "" if given.per_class is None else f" --per-class {given.per_class}"
    command += f" --out {given.out.name}"
    facts = {"command": command, "examples": len(classes), "classes": len(classes.unique())}
    given.out.write_text(json.dumps(facts | {"summary": found, "outcomes": outcomes}, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Parts that ``consensus`` has, taken away, and parts that it does not have, added; on withheld training examples.

    python benchmarks/tried.py --datasets digits --labels 1 --seeds 10 --device cpu --out tried_digits_1.json
    python benchmarks/tried.py --datasets mnist --labels 1 --seeds 2 --set epochs=3 --set passes=1 --data-dir DATA

15 % of each class (with ``--set validation_share`` on photographs: of the classes) are withheld and scored, with the
last model. No label is held back, and the test set is not touched. It runs on the CPU alone: a recorded step would not
see what a variant changes in every epoch.
Variants *by step* make pseudo-labels in every step. *Gain*: mean difference to the variant that they change ± its
standard error, over seeds. What ``--out`` holds already is kept and not run again.

- warm-up: the network first learns by ``instance`` without labels, with the preset of that method (``--warm-up``:
  other settings, such as ``--warm-up epochs=5``);
- Poisson learning (Calder et al., ICML 2020) instead of label propagation, on the features of every epoch;
- fairness: the mean answer to the strong views of a batch shall have much entropy, as in FreeMatch (Wang et al., ICLR
  2023) and SoftMatch, here compared with equal shares;
- neighbours, context: five neighbours to a batch, and STML's loss as one more term (``--context 1 --neighbours 5``);
- context of pseudo-labels: its targets are (P + C + <q_i, q_j>) / 3, with the posteriors q of the consensus;
- clusters: k-means clusters of the features of every epoch, one or three for each class, are positives of one more
  contrastive loss of half the weight. That is SLADE's idea (Duan et al., CVPR 2021) without its second network, which
  learns anew from the first, and without its basis vectors, which weight pairs;
- no alignment: answers are not divided by their running mean; no soft weights: every pseudo-label weighs 1.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from consensus import spread
from few_labels import Propagation
from jobs import Job, changes, machine, names, run_on_validation, what_is_left, write_result
from torch import Tensor

from semimetric.graph import Posteriors
from semimetric.graph.clustering import kmeans
from semimetric.graph.posteriors import PRIOR
from semimetric.losses import contextual_targets, contrastive_loss, relaxed_contrastive_loss
from semimetric.methods.agreement import Agreement, certainty
from semimetric.methods.baseline import head_logits
from semimetric.methods.consensus import Consensus
from semimetric.methods.naming import RunningNames
from semimetric.metric import Metric
from semimetric.pipeline import fit
from semimetric.pipeline.resolve import resolve_benchmark
from semimetric.training import Silent, Trainer

FAIRNESS = 0.1
CLUSTERED = 0.5
STEP = {"naming": "step"}
CONTEXT = {"neighbours": 5, "context": 1.0}

Patch = AbstractContextManager[Any]


def warmed_up(warm_up: dict[str, Any]) -> Patch:
    """Before its first epoch, the network of ``consensus`` takes over the weights that ``instance`` learned."""

    def learn(plan: Any, trainer: Trainer) -> None:
        first = resolve_benchmark(plan.dataset, "instance", plan.seed, selection="last", **warm_up)
        alone = fit.build_trainer(first, trainer.data, trainer.device, Silent())
        trainer.encoder.load_state_dict(alone.fit().encoder.state_dict())

    return mock.patch.object(fit, "pretrain_encoder", learn)


def by_poisson() -> Patch:
    """Posteriors of the graph by Poisson learning."""

    def posteriors(method: Consensus, points: Tensor, labels: Tensor) -> Posteriors:
        count = len(method.classes)
        places = torch.where(labels >= 0, torch.searchsorted(method.classes, labels.clamp_min(0)), -1)
        values = Propagation(points.double()).poisson_values(places, count)
        shares = torch.from_numpy(np.maximum(values, 0.0))
        shares = shares + PRIOR * float(shares.sum(1).quantile(0.75)) / count
        shares = shares / shares.sum(1, keepdim=True)
        return Posteriors(method.classes, shares, certainty(shares))

    return mock.patch.object(Consensus, "_graph_posteriors", posteriors)


def with_fairness() -> Patch:
    """One more term: the entropy that the mean answer to strong views lacks."""
    plain = Consensus.loss

    def loss(method: Consensus, metric: Metric, features: Tensor, constraints: Agreement) -> Tensor:
        strong = head_logits(method.head, method._points(features))[len(constraints) :]
        mean = strong.softmax(1).mean(0).clamp_min(1e-6)
        return plain(method, metric, features, constraints) + FAIRNESS * (mean * mean.log()).sum()

    return mock.patch.object(Consensus, "loss", loss)


def without_alignment() -> Patch:
    """Answers as the head gives them."""
    return mock.patch.object(RunningNames, "aligned", lambda _, shares: shares)


def without_soft_weights() -> Patch:
    """Every pseudo-label counts as much, but for the veto."""
    return mock.patch.object(RunningNames, "weights", lambda _, confidence: torch.ones_like(confidence))


def context_of_names() -> Patch:
    """STML's targets averaged with how alike the posteriors of two examples are; two labels still decide."""

    def context(method: Consensus, points: Tensor, batch: Agreement) -> Tensor:
        views = len(points) // len(batch)
        outputs = batch.outputs.repeat(len(points) // len(batch.outputs), 1)
        targets = contextual_targets(outputs, batch.nodes.repeat(views))
        shares, known = batch.shares.repeat(views, 1).to(targets), batch.known.repeat(views)
        alike = shares @ shares.T
        both = known[:, None] & known
        return relaxed_contrastive_loss(points, torch.where(both, alike.round(), (2 * targets + alike) / 3))

    return mock.patch.object(Consensus, "_context", context)


def by_clusters(of_each_class: int) -> Patch:
    """One more contrast, of k-means clusters of the features of the epoch."""
    name, learn = Consensus.constraints, Consensus.loss
    clusters = torch.zeros(0, dtype=torch.int64)

    def constraints(method: Consensus, features: Tensor, labels: Tensor) -> Agreement:
        nonlocal clusters
        found = name(method, features, labels)
        count = of_each_class * len(found.classes)
        clusters = kmeans(method._points(features), count, restarts=1, iterations=20).assignment
        return found

    def loss(method: Consensus, metric: Metric, features: Tensor, constraints: Agreement) -> Tensor:
        s, points = method.settings, method._points(features)
        alike = contrastive_loss(points, clusters[constraints.nodes].repeat(2), None, s.contrast_temperature)
        return learn(method, metric, features, constraints) + CLUSTERED * alike

    stack = ExitStack()
    stack.enter_context(mock.patch.object(Consensus, "constraints", constraints))
    stack.enter_context(mock.patch.object(Consensus, "loss", loss))
    return stack


PLAIN, STEPWISE = "as shipped", "by step"
VARIANTS: dict[str, tuple[str, dict[str, Any], Callable[[], Patch] | None]] = {
    PLAIN: (PLAIN, {}, nullcontext),
    "warm-up": (PLAIN, {}, None),
    "Poisson learning": (PLAIN, {}, by_poisson),
    "neighbours": (PLAIN, {"neighbours": 5}, nullcontext),
    "context": (PLAIN, CONTEXT, nullcontext),
    "context of pseudo-labels": (PLAIN, CONTEXT, context_of_names),
    "clusters": (PLAIN, {}, partial(by_clusters, 1)),
    "three clusters a class": (PLAIN, {}, partial(by_clusters, 3)),
    STEPWISE: (PLAIN, STEP, nullcontext),
    "by step + fairness": (STEPWISE, STEP, with_fairness),
    "by step without alignment": (STEPWISE, STEP, without_alignment),
    "by step without soft weights": (STEPWISE, STEP, without_soft_weights),
}
"""What each is compared with, its settings, and what it changes in the code; None: the warm-up."""


def table(outcomes: list[dict[str, Any]]) -> list[list[str]]:
    """A line for each dataset and variant: scores in per cent, and the gain."""
    lines = [["dataset", "variant", "seeds", "NMI", "R@1", "right pseudo-labels", "gain NMI", "gain R@1"]]
    for dataset in dict.fromkeys(outcome["label"].partition(" ")[0] for outcome in outcomes):
        for name, (reference, _, _) in VARIANTS.items():
            mine, other = (values(outcomes, f"{dataset} {label}") for label in (name, reference))
            if mine:
                shown = [spread([row[place] for row in mine.values()]) for place in range(3)]
                gains = [gain(mine, other, place) if name != reference else "" for place in range(2)]
                lines.append([dataset, name, str(len(mine)), *shown, *gains])
    return lines


def values(outcomes: list[dict[str, Any]], label: str) -> dict[int, tuple[float, float, float]]:
    """NMI, Recall@1 and right pseudo-labels of each seed, in per cent."""
    return {
        outcome["seed"]: (
            100 * outcome["final"]["nmi"],
            100 * outcome["final"]["recall@1"],
            100 * outcome["history"][-1]["right_pseudo_labels"],
        )
        for outcome in outcomes
        if outcome["label"] == label
    }


def gain(mine: dict[int, Any], other: dict[int, Any], place: int) -> str:
    """Mean difference over the seeds of both, and its standard error."""
    found = [mine[seed][place] - other[seed][place] for seed in mine if seed in other]
    if len(found) < 2:
        return ""
    return f"{statistics.mean(found):+.1f} ± {statistics.stdev(found) / len(found) ** 0.5:.1f}"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--datasets", default="digits")
    options.add_argument("--variants", type=names(VARIANTS), default=",".join(VARIANTS), help=", ".join(VARIANTS))
    options.add_argument("--labels", type=int, default=1, help="labels of each class")
    options.add_argument("--seeds", type=int, default=10, help="how many, from 100")
    options.add_argument("--warm-up", action="append", default=[], help="[DATASET:]NAME=VALUE, other than the preset's")
    options.add_argument("--set", action="append", default=[], help="[DATASET:]NAME=VALUE, other than the preset's")
    options.add_argument("--data-dir", type=Path)
    options.add_argument("--device", choices=("cpu",), default="cpu")
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--out", type=Path)
    return options


def jobs_of(args: argparse.Namespace) -> list[Job]:
    """What is asked for, seed by seed."""
    common = {"hold_back": 0.0, "labels_per_class": args.labels}
    return [
        Job(
            dataset,
            "consensus",
            seed,
            "default",
            common | VARIANTS[name][1] | changes(args.set, dataset),
            f"{dataset} {name}",
            validate=True,
        )
        for dataset in args.datasets.split(",")
        for seed in range(100, 100 + args.seeds)
        for name in args.variants
    ]


def warm_up_of(job: Job, entries: list[str]) -> dict[str, Any] | None:
    """Settings of the warm-up, other than the preset's, if the variant of a job has one."""
    return changes(entries, job.dataset) if VARIANTS[job.label.partition(" ")[2]][2] is None else None


def patched(job: Job, warm_up: dict[str, Any] | None) -> Patch:
    """What the variant of a job changes in the code."""
    patch = VARIANTS[job.label.partition(" ")[2]][2]
    return warmed_up(warm_up or {}) if patch is None else patch()


def check_warm_ups(outcomes: list[dict[str, Any]], warm_ups: dict[str, dict[str, Any] | None]) -> None:
    """Refuse outcomes of another warm-up than is asked for."""
    if any(outcome["warm_up"] != warm_ups.get(outcome["label"], outcome["warm_up"]) for outcome in outcomes):
        raise SystemExit("--out holds runs with another --warm-up; choose another file.")


def main() -> None:
    """Run what is missing in this process, write the JSON after every run, and print the table."""
    args = parser().parse_args()
    torch.set_num_threads(args.threads)
    jobs = jobs_of(args)
    warm_ups = {job.label: warm_up_of(job, args.warm_up) for job in jobs}
    outcomes, left = what_is_left(jobs, args.out)
    check_warm_ups(outcomes, warm_ups)
    for job in left:
        warm_up = warm_ups[job.label]
        with patched(job, warm_up):
            outcome = run_on_validation(job, args.data_dir, args.device)
        last = outcome["history"][-1:]  # of the log, the last epoch says enough
        outcomes.append(outcome | {"history": last, "warm_up": warm_up})
        write_result(args.out, machine() | {"threads": args.threads, "table": table(outcomes), "jobs": outcomes})
    print("\n".join("| " + " | ".join(line) + " |" for line in table(outcomes)))


if __name__ == "__main__":
    main()

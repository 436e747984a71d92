"""Do suggested labels help more than random ones? ``consensus`` on labels that were chosen in three ways.

    python benchmarks/suggest.py --dataset digits --device cpu --workers 2 --out suggest_digits.json
    python benchmarks/suggest.py --dataset mnist --data-dir DATA --workers 5 --out suggest_mnist.json

- *suggested*: ``--start`` labels, as many of each class, drawn at random; then ``--rounds`` times: train from scratch,
  ask ``suggest`` for ``--per-round`` of the other training examples, and label those.
- *random*: as many labels in the end, drawn from all training examples alike, however many of each class that gives.
- *random per class*: as many labels in the end, the same number of each class, which takes knowing the classes first.

Each way ends in one training on all of its labels, from the same start weights. Settings are those of the preset, but
no label is held back. The test set is scored once, after that training. What ``--out`` holds already is kept.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from consensus import spread
from jobs import Job, machine, names, what_is_left, write_result
from torch import Tensor

from semimetric.serve.suggest import suggest

WAYS = ("suggested", "random", "random per class")


def run_way(job: Job, data_dir: Path | None, device: str) -> dict[str, Any]:
    """One way of choosing labels for one seed, to the scores of the last training."""
    from semimetric.data import load_dataset
    from semimetric.pipeline.data import benchmark_data
    from semimetric.pipeline.fit import prepare, score
    from semimetric.pipeline.resolve import resolve_benchmark
    from semimetric.training import choose_device

    torch.set_num_threads(1)
    began = time.perf_counter()
    where = choose_device(device)
    dataset = load_dataset(job.dataset, data_dir)
    way, budget = job.label.removeprefix(f"{job.dataset} "), job.settings
    classes = len(dataset.train.labels.unique())
    per_class = final_labels(budget) if way == "random per class" else budget["start"]
    changes = {"epochs": budget["epochs"]} if "epochs" in budget else {}
    changes |= {"hold_back": 0.0, "labels_per_class": per_class // classes}
    experiment = resolve_benchmark(job.dataset, job.method, job.seed, **changes)
    prepared = prepare(experiment, benchmark_data(experiment, dataset), where)
    labels, truth = prepared.training.labels, prepared.training.classes
    rounds = []
    if way == "random":
        labels = drawn_alike(truth, final_labels(budget), job.seed)
    for number in range(budget["rounds"] if way == "suggested" else 0):
        result, found, facts = train(experiment, prepared.training, labels, where)
        points = result.embed(prepared.training.inputs)
        chosen = suggest(points, labels, found.shares, found.confidence, budget["per_round"], job.seed + number)
        labels = labels.clone()
        labels[chosen.rows] = truth[chosen.rows]
        rounds.append(facts | {"suggested": chosen.rows.tolist(), "gains": chosen.gains.tolist()})
    result, _, facts = train(experiment, prepared.training, labels, where)
    return {
        "label": job.label,
        "seed": job.seed,
        "settings": job.settings,
        "final": score(result.encoder, result.metric, prepared.test_inputs, prepared.test_labels),
        "rounds": [*rounds, facts],
        "wall": time.perf_counter() - began,
    }


def train(experiment: Any, data: Any, labels: Tensor, where: torch.device) -> tuple[Any, Any, dict[str, Any]]:
    """Train from scratch: the result, what every example is taken for, and how often that is right."""
    from semimetric.pipeline.fit import build_trainer

    known = dataclasses.replace(data, labels=labels)
    trainer = build_trainer(experiment, known, where)
    result = trainer.fit()
    found = trainer.posteriors()
    right = found.classes[found.shares.argmax(1)] == data.classes
    facts = {
        "labels": int((labels >= 0).sum()),
        "labels_of_classes": [int((labels == number).sum()) for number in data.classes.unique()],
        "right_pseudo_labels": float(right[labels < 0].double().mean()),
        "confidence": float(found.confidence[labels < 0].mean()),
    }
    return result, found, facts


def drawn_alike(truth: Tensor, count: int, seed: int) -> Tensor:
    """The true classes of ``count`` examples drawn from all alike, -1 for the others."""
    rows = torch.randperm(len(truth), generator=torch.Generator().manual_seed(seed))[:count].to(truth.device)
    labels = torch.full_like(truth, -1)
    labels[rows] = truth[rows]
    return labels


def final_labels(budget: dict[str, int]) -> int:
    """Labels that every way has in the end."""
    return budget["start"] + budget["rounds"] * budget["per_round"]


def table(outcomes: list[dict[str, Any]], dataset: str) -> list[list[str]]:
    """A line per way: test scores and the share of right pseudo-labels, in per cent; worst of the seeds in brackets."""
    lines = [["way", "seeds", "NMI", "R@1", "right pseudo-labels", "seconds"]]
    for way in WAYS:
        mine = [outcome for outcome in outcomes if outcome["label"] == f"{dataset} {way}"]
        if not mine:
            continue
        columns = [[100 * outcome["final"][score] for outcome in mine] for score in ("nmi", "recall@1")]
        columns.append([100 * outcome["rounds"][-1]["right_pseudo_labels"] for outcome in mine])
        cells = [f"{spread(values)} ({min(values):.1f})" for values in columns]
        lines.append([way, str(len(mine)), *cells, spread([outcome["wall"] for outcome in mine], 0)])
    return lines


def rounds_table(outcomes: list[dict[str, Any]], dataset: str) -> list[list[str]]:
    """A line per round of the suggestions: the number of labels and the share of right pseudo-labels then."""
    lines = [["labels", "right pseudo-labels"]]
    mine = [outcome["rounds"] for outcome in outcomes if outcome["label"] == f"{dataset} suggested"]
    for facts in zip(*mine, strict=True):
        right = spread([100 * entry["right_pseudo_labels"] for entry in facts])
        lines.append([str(facts[0]["labels"]), right])
    return lines


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--dataset", default="digits", choices=("digits", "mnist"))
    options.add_argument("--ways", type=names(WAYS), default=",".join(WAYS))
    options.add_argument("--start", type=int, default=10)
    options.add_argument("--rounds", type=int, default=4)
    options.add_argument("--per-round", type=int, default=10)
    options.add_argument("--epochs", type=int, help="of each training, other than the preset's")
    options.add_argument("--seeds", default="0,1,2,3,4")
    options.add_argument("--data-dir", type=Path)
    options.add_argument("--device", default="auto")
    options.add_argument("--workers", type=int, default=1)
    options.add_argument("--out", type=Path)
    return options


def parse() -> argparse.Namespace:
    """The command line; numbers of labels that cannot be shared equally among ten classes are refused."""
    options = parser()
    args = options.parse_args()
    if args.start < 10 or args.start % 10 or args.rounds * args.per_round % 10:
        options.error("--start, and --rounds times --per-round, must be multiples of the ten classes.")
    return args


def main() -> None:
    """Run what is left, print the tables, write the JSON after every job."""
    args = parse()
    budget = {"start": args.start, "rounds": args.rounds, "per_round": args.per_round}
    budget |= {"epochs": args.epochs} if args.epochs else {}
    jobs = [
        Job(args.dataset, "consensus", int(seed), "default", budget, f"{args.dataset} {way}")
        for seed in args.seeds.split(",")
        for way in args.ways
    ]
    outcomes, left = what_is_left(jobs, args.out)
    with ProcessPoolExecutor(args.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = {pool.submit(run_way, job, args.data_dir, args.device): job for job in left}
        for done in as_completed(waiting):
            job = waiting[done]
            if done.exception() is not None:
                print(f"{job.label} seed {job.seed}: {done.exception()!r}", file=sys.stderr, flush=True)
                continue
            outcomes.append(done.result())
            print(f"{job.label} seed {job.seed}: {outcomes[-1]['wall']:.0f} s", file=sys.stderr, flush=True)
            tables = {"table": table(outcomes, args.dataset), "rounds": rounds_table(outcomes, args.dataset)}
            write_result(args.out, machine() | {"workers": args.workers} | tables | {"jobs": outcomes})
    for lines in (table(outcomes, args.dataset), rounds_table(outcomes, args.dataset)):
        print("\n".join("| " + " | ".join(line) + " |" for line in lines), end="\n\n")


if __name__ == "__main__":
    main()

"""``consensus`` beside what one would do today with other libraries, in one run: same split, encoder and views.

    python benchmarks/today.py --datasets mnist,fashion-mnist --seeds 0,1 --data-dir DATA --workers 4

- *labelled only*: supervised contrastive loss (pytorch-metric-learning) on the labelled examples.
- *LabelSpreading*: pseudo-labels of all examples from scikit-learn's LabelSpreading on the scaled inputs (k nearest
  neighbours), then the same loss on all of them.

Both train the encoder with AdamW and the views, batch size and number of steps of ``consensus``. Test set, scored once.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from consensus import spread
from jobs import Job, changes, machine, names, run_job, write_result
from torch import Tensor

NEIGHBORS = 10
ROWS = ("consensus", "labelled only", "LabelSpreading")


def pseudo_labels(inputs: Tensor, labels: Tensor) -> Tensor:
    """Labels of all examples by LabelSpreading on a k-nearest-neighbour graph of the inputs."""
    from sklearn.semi_supervised import LabelSpreading

    model = LabelSpreading(kernel="knn", n_neighbors=NEIGHBORS, max_iter=100, n_jobs=-1)
    model.fit(inputs.flatten(1).cpu().numpy(), labels.cpu().numpy())
    return torch.from_numpy(model.transduction_).to(labels.device)


def train_with_pml(encoder: torch.nn.Module, inputs: Tensor, targets: Tensor, settings: Any, views: Any) -> None:
    """Minimise SupConLoss of two views of each example of a batch; the learning rate falls along a half cosine."""
    from pytorch_metric_learning.losses import SupConLoss

    loss = SupConLoss(temperature=0.1)
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=settings["lr"], weight_decay=settings["weight_decay"])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings["steps"])
    encoder.train()
    for _ in range(settings["steps"]):
        rows = torch.randint(len(inputs), (settings["batch_size"],), device=inputs.device)
        value = loss(encoder(views(inputs[rows])), targets[rows].repeat(2))
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        optimizer.step()
        schedule.step()
    encoder.eval()


def run_today(job: Job, data_dir: Path | None, device: str) -> dict[str, Any]:
    """One row for one dataset and seed."""
    row = job.label.removeprefix(f"{job.dataset} ")
    if row == "consensus":
        return run_job(job, data_dir, device, 1)
    from semimetric.data import load_dataset
    from semimetric.methods import METHODS
    from semimetric.metric import Metric
    from semimetric.pipeline.data import benchmark_data
    from semimetric.pipeline.fit import build_network, prepare, score
    from semimetric.training import choose_device

    torch.set_num_threads(1)
    began = time.perf_counter()
    experiment = job.plan()
    where = choose_device(device)
    prepared = prepare(experiment, benchmark_data(experiment, load_dataset(job.dataset, data_dir)), where)
    data = prepared.training
    encoder = build_network(experiment, tuple(data.inputs.shape[1:])).to(where)
    width = encoder(data.inputs[:2]).shape[1]
    method = METHODS["consensus"](experiment.method_settings)
    method.on_fit_begin(data.inputs, data.labels, width, torch.Generator().manual_seed(job.seed))
    targets = pseudo_labels(data.inputs, data.labels) if row == "LabelSpreading" else data.labels
    rows = (targets >= 0).nonzero().flatten()
    training = experiment.training
    steps = training.epochs * training.passes * (len(data.inputs) // training.batch_size)
    settings = {"lr": training.lr, "weight_decay": training.weight_decay, "batch_size": training.batch_size}
    torch.manual_seed(job.seed)
    train_with_pml(encoder, data.inputs[rows], targets[rows], settings | {"steps": steps}, method.views)
    final = score(encoder, Metric.identity(width).to(where), prepared.test_inputs, prepared.test_labels)
    right = float((targets[rows] == data.classes[rows]).double().mean()) if data.classes is not None else None
    wall = time.perf_counter() - began
    return {"label": job.label, "seed": job.seed, "final": final, "right_labels": right, "steps": steps, "wall": wall}


def table(outcomes: list[dict[str, Any]], datasets: list[str]) -> list[list[str]]:
    """A line per row: NMI and Recall@1 of each dataset, in per cent."""
    lines = [["row", *(f"{dataset} {score}" for dataset in datasets for score in ("NMI", "R@1"))]]
    for row in ROWS:
        cells = [row]
        for dataset in datasets:
            mine = [outcome["final"] for outcome in outcomes if outcome["label"] == f"{dataset} {row}"]
            cells += [spread([100 * final[score] for final in mine]) if mine else "" for score in ("nmi", "recall@1")]
        lines.append(cells)
    return lines


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--datasets", default="digits")
    options.add_argument("--rows", type=names(ROWS), default=",".join(ROWS))
    options.add_argument("--seeds", default="0,1,2,3,4")
    options.add_argument("--set", action="append", default=[], help="[DATASET:]NAME=VALUE, other than the preset's")
    options.add_argument("--data-dir", type=Path)
    options.add_argument("--device", default="auto")
    options.add_argument("--workers", type=int, default=1)
    options.add_argument("--out", type=Path)
    return options


def jobs_of(args: argparse.Namespace) -> list[Job]:
    """What is asked for: the data and the settings are those of ``consensus`` in every row."""
    return [
        Job(dataset, "consensus", int(seed), "default", changes(args.set, dataset), f"{dataset} {row}")
        for row in args.rows
        for dataset in args.datasets.split(",")
        for seed in args.seeds.split(",")
    ]


def main() -> None:
    """Run all rows on all datasets, print the table, write the JSON."""
    args = parser().parse_args()
    datasets = args.datasets.split(",")
    outcomes: list[dict[str, Any]] = []
    with ProcessPoolExecutor(args.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = [pool.submit(run_today, job, args.data_dir, args.device) for job in jobs_of(args)]
        for done in as_completed(waiting):
            outcomes.append(done.result())
            write_result(args.out, machine() | {"table": table(outcomes, datasets), "jobs": outcomes})
    print("\n".join("| " + " | ".join(line) + " |" for line in table(outcomes, datasets)))


if __name__ == "__main__":
    main()

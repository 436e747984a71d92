"""Run one cell: fit it, score it, and keep what tables and figures need."""

from __future__ import annotations

import platform
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from semimetric.core.threads import bound_threads
from semimetric.data import Dataset
from semimetric.graph import nearest_neighbors
from semimetric.paper.cells import Cell, code_version, data_version, key_of, settings_of, weights_version
from semimetric.paper.records import Record, rounded
from semimetric.pipeline.benchmark import embed_test, fit_benchmark
from semimetric.pipeline.data import load_examples
from semimetric.pipeline.plan import Plan
from semimetric.training import Progress, Run, choose_device

MAP_SIZE = 2000
"""Most test examples on a map."""

QUERIES, RETRIEVED = 6, 8

LOGGED = (
    "epoch",
    "best",
    "seconds",
    "selection_nmi",
    "selection_recall@1",
    "triplets",
    "triplet_loss",
    "active_share",
    "right_positive",
    "right_negative",
    "right_both",
    "graph_term_kept",
    "effective_rank",
)
"""What is kept of each epoch."""

OUTCOME = ("initial", "final", "components", "best_epoch", "epochs", "planned_epochs", "guards", "seconds")
"""What is kept of the outcome of a fit."""

SCORES = ("initial", "final")


@dataclass(frozen=True)
class Place:
    """Where cells find their data and do their work.

    Parameters
    ----------
    folder : results are kept under it, with the unfinished runs and the cached features
    data_dir, weights : benchmark data, and the weights of the pretrained network
    device, threads : of each fit
    photographs : whether the figure of retrieved examples shows them; otherwise it names their classes
    """

    folder: Path
    data_dir: Path | None = None
    weights: Path | None = None
    device: str = "auto"
    threads: int = 1
    photographs: bool = True

    def plan(self, cell: Cell) -> Plan:
        """The plan of a cell, with the places of its files."""
        plan = cell.plan(self.weights)
        if not plan.network.backbone:
            return plan
        source = (data_version(cell.dataset, self.data_dir), weights_version(self.weights) or "")
        name = "-".join([cell.dataset, plan.network.backbone, *(part[:8] for part in source)])
        return cell.plan(self.weights, self.folder / "features" / f"{name}.safetensors")

    def key(self, cell: Cell) -> str:
        """What identifies the result of a cell here."""
        plan = self.plan(cell)
        weights = weights_version(self.weights) if plan.network.weights else None
        return key_of(cell, plan, data_version(cell.dataset, self.data_dir), weights)


class Listener(Progress):
    """Keeps the warnings of a fit."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, message: str) -> None:
        """Keep a warning."""
        self.warnings.append(message)


def run_cell(cell: Cell, place: Place) -> Record:
    """Fit a cell, or continue where it was interrupted, and return its record."""
    bound_threads(place.threads)
    began = time.perf_counter()
    plan, device = place.plan(cell), choose_device(place.device)
    if plan.network.descriptors:
        Path(plan.network.descriptors).parent.mkdir(parents=True, exist_ok=True)
    dataset = _examples(plan, place.data_dir, device)
    key, listener = place.key(cell), Listener()
    folder = place.folder / "unfinished" / key
    outcome = fit_benchmark(plan, folder, place.data_dir, place.device, True, listener, dataset)
    if outcome["interrupted"]:
        raise KeyboardInterrupt
    run = Run.open(folder)
    kept = {name: KEEPERS[name](embed_test(run, plan, dataset, device), dataset) for name in cell.keeps}
    record = _about(cell, plan, place, key) | {
        **{name: outcome[name] for name in OUTCOME if cell.scored or name not in SCORES},
        "wall": time.perf_counter() - began,
        "warnings": listener.warnings,
        "history": [{name: line[name] for name in LOGGED if name in line} for line in run.history()],
        "kept": kept,
    }
    shutil.rmtree(folder)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # other cells share this GPU
    found: Record = rounded(record)
    return found


def _about(cell: Cell, plan: Plan, place: Place, key: str) -> Record:
    """What a record says of how it came about."""
    return {
        "key": key,
        "dataset": cell.dataset,
        "method": cell.method,
        "seed": cell.seed,
        "preset": cell.preset,
        "settings": dict(cell.settings),
        "command": cell.command(),
        "plan": settings_of(plan),
        "code": code_version(),
        "data": data_version(cell.dataset, place.data_dir),
        "weights": weights_version(place.weights) if plan.network.weights else None,
        "hardware": hardware(place),
    }


def hardware(place: Place) -> dict[str, Any]:
    """What the times of a record were measured on."""
    cuda = choose_device(place.device).type == "cuda"
    return {
        "device": torch.cuda.get_device_name() if cuda else f"CPU ({platform.machine()})",
        "threads": place.threads,
        "torch": torch.__version__.partition("+")[0],
        "python": platform.python_version(),
    }


def describe(cell: Cell, place: Place) -> None:
    """Compute and cache the features that a cell and others of its dataset learn from."""
    plan = place.plan(cell)
    Path(plan.network.descriptors).parent.mkdir(parents=True, exist_ok=True)
    load_examples(plan, place.data_dir, choose_device(place.device))


@lru_cache(maxsize=2)
def _kept_examples(found: _Source) -> Dataset:
    return load_examples(found.plan, found.data_dir, found.device)


def _examples(plan: Plan, data_dir: Path | None, device: torch.device) -> Dataset:
    """The examples of a plan; a process keeps those of its last two datasets for its next cells."""
    return _kept_examples(_Source(plan, data_dir, device))


class _Source:
    """A plan as the key of its examples: plans with the same inputs are equal."""

    def __init__(self, plan: Plan, data_dir: Path | None, device: torch.device) -> None:
        self.plan, self.data_dir, self.device = plan, data_dir, device
        network = plan.network
        self._inputs = (plan.dataset, network.backbone, network.weights, network.side, network.fit)

    def __hash__(self) -> int:
        return hash(self._inputs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Source) and self._inputs == other._inputs


def stratified(labels: Tensor, most: int) -> Tensor:
    """Sorted rows of about ``most`` examples, the same share of each class and at least one, with a fixed seed."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    if len(labels) <= most:
        return order.sort().values
    chosen = []
    for label in torch.unique(labels):
        mine = order[labels[order] == label]
        chosen.append(mine[: max(1, len(mine) * most // len(labels))])
    return torch.cat(chosen).sort().values


def map_of(embeddings: Tensor, dataset: Dataset) -> dict[str, Any]:
    """The t-SNE map of a stratified sample of the test examples."""
    from sklearn.manifold import TSNE

    labels = dataset.test.labels.cpu()
    rows = stratified(labels, MAP_SIZE)
    points = embeddings.cpu()[rows].numpy().astype(np.float32)
    places = TSNE(init="pca", perplexity=min(30.0, (len(rows) - 1) / 3), random_state=0).fit_transform(points)
    return {"rows": rows.tolist(), "labels": labels[rows].tolist(), "points": np.round(places, 2).tolist()}


def neighbors_of(embeddings: Tensor, dataset: Dataset) -> dict[str, Any]:
    """The test examples nearest to a few queries, which are the same for all methods."""
    labels = dataset.test.labels.cpu()
    queries = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))[:QUERIES]
    hits = nearest_neighbors(embeddings, min(RETRIEVED, len(labels) - 1)).cpu()[queries]
    names = dataset.class_names
    return {
        "queries": [_shown_example(int(row), labels, names) for row in queries],
        "hits": [[_shown_example(int(row), labels, names) for row in found] for found in hits],
    }


def _shown_example(row: int, labels: Tensor, names: tuple[str, ...]) -> dict[str, Any]:
    label = int(labels[row])
    return {"row": row, "label": label, "name": names[label] if label < len(names) else str(label)}


KEEPERS: dict[str, Callable[[Tensor, Dataset], dict[str, Any]]] = {"map": map_of, "neighbors": neighbors_of}

"""Choose how APLLR and APIT use their affinities: on validation data and frozen random features, never on test data.

    python benchmarks/propagated_choices.py --data-dir DATA --out propagated_choices.json

Every variant learns one metric from the first partition. Reported are NMI and Recall@1 of the withheld examples, the
share of the graph's term that is kept, and how far the metric moves from its prior: the Frobenius norm of their
difference relative to the prior's, both at trace 1.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jobs import machine, write_result
from torch import Tensor

from semimetric.encoders import encode
from semimetric.evaluation import evaluate
from semimetric.methods import build_method
from semimetric.metric import Metric
from semimetric.pipeline.data import benchmark_data, load_examples
from semimetric.pipeline.fit import build_trainer, prepare
from semimetric.pipeline.resolve import resolve_benchmark
from semimetric.training import Silent

VARIANTS: dict[str, dict[str, Any]] = {
    "prior alone": {"repulsion": 1.0, "graph_weight": 0.0},
    "clip, g_L 1": {"repulsion": 1.0, "graph_weight": 1.0},
    "clip, g_L 0.3": {"repulsion": 1.0, "graph_weight": 0.3},
    "cap, g_L 1": {"repulsion": 1.0, "graph_weight": 1.0, "indefinite": "cap"},
    "cap, g_L 0.1": {"repulsion": 1.0, "graph_weight": 0.1, "indefinite": "cap"},
    "cap, g_L 0.03": {"repulsion": 1.0, "graph_weight": 0.03, "indefinite": "cap"},
    "repulsion 0.1, g_L 1": {"repulsion": 0.1, "graph_weight": 1.0},
    "repulsion 0.1, g_L 0.3": {"repulsion": 0.1, "graph_weight": 0.3},
    "repulsion 0, g_L 1": {"repulsion": 0.0, "graph_weight": 1.0},
    "repulsion 0, g_L 0.3": {"repulsion": 0.0, "graph_weight": 0.3},
    "repulsion 0, g_L 0.1": {"repulsion": 0.0, "graph_weight": 0.1},
    "positive edges, g_L 10": {"repulsion": 1.0, "affinities": "positive-edges", "graph_weight": 10.0},
    "positive edges, g_L 1": {"repulsion": 1.0, "affinities": "positive-edges", "graph_weight": 1.0},
}
SWEEPS = {"clip, g_L 1, 50 sweeps": {"repulsion": 1.0, "graph_weight": 1.0, "sweeps": 50}}
"""Of APIT alone: a prior that is stopped before it converges."""

COLUMNS = ("nmi", "recall@1", "kept", "moved")


class Frozen(NamedTuple):
    """A working set with its labels, and the withheld examples with theirs."""

    features: Tensor
    labels: Tensor
    withheld: Tensor
    classes: Tensor


def frozen(dataset: str, seed: int, data_dir: Path | None) -> Frozen:
    """Features of the paper's network before any training; 15 % of each class are withheld."""
    changes: dict[str, Any] = {"lr": 0.0, "epochs": 1, "validation_share": 0.15, "selection": "last"}
    experiment = resolve_benchmark(dataset, "apllr", seed, "paper", **changes)
    device = torch.device("cpu")
    examples = benchmark_data(experiment, load_examples(experiment, data_dir, device))
    data = prepare(experiment, dataclasses.replace(examples, test=None), device).training
    trainer = build_trainer(experiment, data, device, Silent())
    rows = torch.cat([data.labelled, trainer.schedule.for_epoch(1)])
    assert data.validation_inputs is not None
    assert data.validation_labels is not None
    features, withheld = (encode(trainer.encoder, inputs) for inputs in (data.inputs[rows], data.validation_inputs))
    return Frozen(features, data.labels[rows], withheld, data.validation_labels)


def measure(name: str, settings: dict[str, Any], data: Frozen, graphs: dict[tuple[Any, ...], Any]) -> dict[str, Any]:
    """Learn a metric and score it; ``graphs`` are shared by variants with the same affinities."""
    method = build_method(name, **settings)
    key = (settings["repulsion"], settings.get("affinities"))
    if key not in graphs:
        graphs[key] = method.constraints(data.features, data.labels)
    began = time.perf_counter()
    metric = method.update_metric(Metric.identity(data.features.shape[1]), data.features, graphs[key])
    seconds = time.perf_counter() - began
    alone = build_method(name, **(settings | {"graph_weight": 0.0}))
    known = data.features[graphs[key].labelled].double()
    prior = alone.prior(known, graphs[key].classes, alone._scatters(data.features, graphs[key]))
    gap = metric.matrix / metric.matrix.trace() - prior / prior.trace()
    scores = evaluate(metric.transform(data.withheld), data.classes)
    return {
        "nmi": scores["nmi"],
        "recall@1": scores["recall@1"],
        "kept": method.on_epoch_end()["graph_term_kept"] if method.settings.graph_weight else None,
        "moved": float(gap.norm() / (prior / prior.trace()).norm()),
        "seconds": seconds,
        "guards": sorted(method.take_guards()),
    }


def table(rows: list[dict[str, Any]]) -> list[list[str]]:
    """A line for each method and variant: NMI / R@1 and what is kept, moved, for each dataset; means over the seeds."""
    datasets = list(dict.fromkeys(row["dataset"] for row in rows))
    lines = [["method", "variant", *(f"{dataset}: {name}" for dataset in datasets for name in COLUMNS)]]
    for method, variant in dict.fromkeys((row["method"], row["variant"]) for row in rows):
        line = [method, variant]
        for dataset in datasets:
            found = [
                row for row in rows if (row["dataset"], row["method"], row["variant"]) == (dataset, method, variant)
            ]
            for name in COLUMNS:
                values = [100 * row[name] for row in found if row[name] is not None]
                line.append(f"{statistics.mean(values):.1f}" if values else "")
        lines.append(line)
    return lines


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--dataset", action="append", help="default: mnist and fashion-mnist")
    options.add_argument("--seeds", default="100,101")
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--data-dir", type=Path)
    options.add_argument("--out", type=Path)
    return options


def main() -> None:
    """Measure all variants, write the JSON and print the table, in per cent."""
    args = parser().parse_args()

    torch.set_num_threads(args.threads)
    warnings.simplefilter("ignore")
    rows: list[dict[str, Any]] = []
    for dataset in args.dataset or ["mnist", "fashion-mnist"]:
        for seed in map(int, args.seeds.split(",")):
            data, graphs = frozen(dataset, seed, args.data_dir), {}
            for method, variants in {"apllr": VARIANTS, "apit": VARIANTS | SWEEPS}.items():
                for variant, settings in variants.items():
                    facts = {"dataset": dataset, "seed": seed, "method": method, "variant": variant}
                    rows.append(facts | {"settings": settings} | measure(method, settings, data, graphs))
                    print(*facts.values(), {name: rows[-1][name] for name in COLUMNS}, flush=True)
                    write_result(args.out, machine() | {"table": table(rows), "rows": rows})
    print("\n".join("| " + " | ".join(line) + " |" for line in table(rows)))


if __name__ == "__main__":
    main()

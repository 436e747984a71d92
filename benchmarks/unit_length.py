"""Do the scores of the paper's stages depend on the length of embeddings? Each is scored as it is and at unit length.

    python benchmarks/unit_length.py --data-dir DATA --out benchmarks/results/unit_length.json

The paper does not say whether it scored unit embeddings. L uniform on [0, 1), the same orthonormalised, and one metric
step from it with and without orthogonality, on a frozen network.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from jobs import machine, write_result

from semimetric.encoders import encode, unit_features
from semimetric.evaluation import evaluate
from semimetric.pipeline.data import benchmark_data, load_examples
from semimetric.pipeline.fit import build_trainer, prepare
from semimetric.pipeline.resolve import resolve_benchmark

STAGES: dict[str, dict[str, Any]] = {
    "uniform": {"epochs": 0},
    "orthonormalised": {"epochs": 0, "start": "uniform-orthonormal"},
    "one metric step": {"epochs": 1, "lr": 0.0, "selection": "last"},
    "one metric step without orthogonality": {"epochs": 1, "lr": 0.0, "selection": "last", "orthogonal": False},
}


def scored(dataset: str, seed: int, stage: str, data_dir: Path | None) -> dict[str, Any]:
    """Test scores of one stage, in both ways."""
    plan = resolve_benchmark(dataset, "affinity-triplets", seed, "paper", **STAGES[stage])
    cpu = torch.device("cpu")
    ready = prepare(plan, benchmark_data(plan, load_examples(plan, data_dir, cpu)))
    trainer = build_trainer(plan, ready.training, cpu)
    result = trainer.fit()
    points = result.metric.transform(encode(result.encoder, ready.test_inputs))
    ways = {"as it is": points, "unit length": unit_features(points)}
    scores = {way: evaluate(embedded, ready.test_labels) for way, embedded in ways.items()}
    return {"dataset": dataset, "seed": seed, "stage": stage, "scores": scores}


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--datasets", default="mnist,fashion-mnist")
    found.add_argument("--seeds", default="0,1,2")
    found.add_argument("--data-dir", type=Path)
    found.add_argument("--out", type=Path)
    return found


def main() -> None:
    """Score all stages and write the JSON."""
    args = parser().parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for dataset in args.datasets.split(","):
        for stage in STAGES:
            for seed in args.seeds.split(","):
                rows.append(scored(dataset, int(seed), stage, args.data_dir))
                shown = [f"{100 * s['nmi']:.1f} / {100 * s['recall@1']:.1f}" for s in rows[-1]["scores"].values()]
                print(dataset, stage, seed, *shown, flush=True)
                write_result(args.out, machine() | {"rows": rows})


if __name__ == "__main__":
    main()

"""Benchmarks: fit a plan on its dataset, and score a run on its test set."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from semimetric.core.errors import InputError, RunError
from semimetric.data import Dataset, apply_in_chunks, photograph_side
from semimetric.encoders import encode
from semimetric.encoders.packages import package_of
from semimetric.evaluation import evaluate
from semimetric.metric import Metric
from semimetric.model.folder import read_config, read_model
from semimetric.model.spec import ModelSpec
from semimetric.pipeline.config import check_place, run_config, run_opener
from semimetric.pipeline.data import benchmark_data, load_examples
from semimetric.pipeline.descriptors import photo_transform
from semimetric.pipeline.fit import fit
from semimetric.pipeline.plan import Plan
from semimetric.training import Progress, Run, Silent, choose_device


def fit_benchmark(
    plan: Plan,
    out: Path | None = None,
    data_dir: Path | None = None,
    device: str = "auto",
    resume: bool = False,
    progress: Progress | None = None,
    dataset: Dataset | None = None,
    labels: Tensor | None = None,
) -> dict[str, Any]:
    """Fit a plan on its dataset, and score the test set before and after.

    Parameters
    ----------
    out : run folder; without one nothing is written
    data_dir : folder that holds benchmark data
    resume : continue the run in ``out``
    dataset : the dataset, if it is loaded already; with a backbone, its features
    labels : (N,) class numbers of the examples to learn from, -1 = unlabelled, in place of those that the split draws

    Returns
    -------
    dict
        The outcome, as in ``result.json``.
    """
    where = choose_device(device)
    progress = progress or Silent()
    digest = plan.network.weights_digest() if dataset is None or not plan.network.backbone else None
    config = run_config("benchmark", plan, {"source": plan.dataset}, digest)
    if out is not None:
        check_place(out, resume, lambda: config)
    progress.stage(f"loading {plan.dataset}")
    data = benchmark_data(plan, dataset or load_examples(plan, data_dir, where, progress))
    if labels is not None:
        if labels.shape != data.labels.shape:
            raise InputError(
                f"labels must be one class number for each of the {len(data.labels)} training examples of "
                f"{plan.dataset}, got {len(labels)}. Examples that were added to a run of a benchmark have no place."
            )
        data = dataclasses.replace(data, labels=labels)
    side = photograph_side(plan.dataset, plan.network.side)
    if side and out is not None:
        network = dataclasses.replace(plan.network, side=side)
        data = dataclasses.replace(data, transform=photo_transform(network, plan.seed))
    return fit(plan, data, where, None if out is None else run_opener(out, config, resume), progress).facts


def _check_weights(run: Run, plan: Plan) -> None:
    """Refuse other weights than the run was made with, before anything is computed with them."""
    known, digest = run.config().get("weights_sha256"), plan.network.weights_digest()
    if known is not None and digest is not None and digest != known:
        raise RunError(
            f"{run.path} was made with weights of SHA-256 {known}, and those in {plan.network.weights} have {digest}. "
            "Use the weights that it was made with, or start again with another --out."
        )


def benchmark_plan(run: Run) -> Plan:
    """The plan of a run on a benchmark; a run on other data is refused."""
    config = read_config(run)
    if config["kind"] != "benchmark":
        raise InputError(
            f"{run.path} is of data of your own, which has no test set. Name labelled examples to score it on, a "
            "folder with a sub-folder for each class or a table with a column of labels: semimetric evaluate "
            f"{run.path} DATA"
        )
    return Plan.from_dict(config["plan"], config["version"])


def evaluate_run(
    path: Path,
    data_dir: Path | None = None,
    device: str = "auto",
    components: int | None = None,
    progress: Progress | None = None,
    weights: Path | None = None,
    descriptors: Path | None = None,
) -> dict[str, Any]:
    """Score the best model of a run on the test set of its dataset; ``components`` keeps its largest dimensions.

    Pretrained weights are needed only for a backbone: the run holds all others. A run may come from elsewhere, so the
    files that it names are not opened: ``weights`` and ``descriptors``, the cache of features, are those of the caller.
    """
    if components is not None and components < 1:
        raise InputError(f"components must be at least 1, got {components}.")
    run = Run.open(path)
    plan = _with_files(benchmark_plan(run), weights, descriptors)
    where = choose_device(device)
    if plan.network.backbone:
        _check_weights(run, plan)
    dataset = load_examples(plan, data_dir, where, progress)
    embeddings = embed_test(run, plan, dataset, where, components)
    return {
        "method": plan.method,
        "dataset": plan.dataset,
        "seed": plan.seed,
        "epoch": run.read_tensors("model.safetensors")[1]["epoch"],
        "components": embeddings.shape[1],
        "scores": evaluate(embeddings, dataset.test.labels),
        "run": str(path),
    }


def _with_files(plan: Plan, weights: Path | None, descriptors: Path | None) -> Plan:
    """The plan of a backbone with the user's own files in place of those that a run names."""
    network = plan.network
    if not network.backbone:
        return plan
    if weights is None and network.weights not in ("", "random") and package_of(network.backbone) is None:
        raise InputError(
            f"the run names {network.weights!r} as the weights of its backbone, and a file that a run names is not "
            "opened. Name it yourself with --weights."
        )
    own = str(weights) if weights is not None else "random" if network.weights == "random" else ""
    return dataclasses.replace(
        plan, network=dataclasses.replace(network, weights=own, descriptors=str(descriptors or ""))
    )


def embed_test(run: Run, plan: Plan, dataset: Dataset, device: torch.device, components: int | None = None) -> Tensor:
    """The embeddings of the test examples by the best model of a run; ``components`` keeps its largest dimensions."""
    network, shape = plan.network, tuple(dataset.test.inputs.shape[1:])
    spec = ModelSpec("images", shape, shape, network.preprocess, network.encoder, mirror=network.mirror)
    model = read_model(run, spec, device)
    assert model.encoder is not None
    metric = model.metric if components is None else _narrowed(model.metric, components)
    inputs = apply_in_chunks(model.preprocess, dataset.test.inputs.to(device))
    return metric.transform(encode(model.encoder, inputs))


def _narrowed(metric: Metric, components: int) -> Metric:
    """The largest dimensions of a metric."""
    width = metric.factor.shape[1]
    if components > width:
        raise InputError(f"components must be at most {width}, the width of the run, got {components}.")
    if metric.is_orthonormal():
        raise InputError(
            "components keeps the largest dimensions of a metric, and this run's metric weighs all of them alike. "
            "Train with components instead."
        )
    return Metric.from_matrix(metric.matrix, components)

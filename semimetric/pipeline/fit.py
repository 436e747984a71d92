"""The one way to a fitted model: for benchmarks, own data, estimators and tuning alike."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from semimetric.core import ranks
from semimetric.core.allocator import keep_freed_memory
from semimetric.data import Preprocess, build_preprocess
from semimetric.data.preprocess import Identity, scaled
from semimetric.data.stored import Inputs, placed, some_of
from semimetric.encoders import build_encoder, mirrored
from semimetric.evaluation import evaluate
from semimetric.graph import Posteriors
from semimetric.methods import METHODS
from semimetric.metric import Metric
from semimetric.model.fitted import (
    FittedModel,
    Model,
    fits_in_a_row,
    input_rows,
    on_cpu,
    posteriors_of,
    scaled_vectors,
    with_labels,
)
from semimetric.model.folder import write_fitted, write_start
from semimetric.model.origin import write_origin
from semimetric.model.spec import ExampleNames, ModelSpec
from semimetric.model.unknown import Unknown, fit_unknown, judged_rows
from semimetric.pipeline.data import FitData
from semimetric.pipeline.linear import GuardWarning, announce, fit_metric
from semimetric.pipeline.plan import Plan
from semimetric.pipeline.warm import Start
from semimetric.training import Progress, Run, Silent, Trainer, TrainingData, TrainingResult, pretrain
from semimetric.training.checkpoint import start_from
from semimetric.training.together import agree
from semimetric.training.whole_batch import encode_together

OpenRun = Callable[[], Run]
"""Makes the run folder, or finds the one to continue. It is called when everything about a fit has been accepted."""


@dataclass(frozen=True)
class Prepared:
    """The scaled inputs of a fit on its device, and their preprocessing, which was fitted on the training inputs."""

    preprocess: Preprocess
    training: TrainingData
    test_inputs: Inputs | None = None
    test_labels: Tensor | None = None


def prepare(
    plan: Plan, data: FitData, device: torch.device | str = "cpu", preprocess: Preprocess | None = None
) -> Prepared:
    """Fit the preprocessing on the training inputs, unless there is one, and scale everything."""
    as_bytes = plan.network.preprocess != "whiten"  # the other kinds scale by pixel
    inputs = placed(data.inputs, device, as_bytes)
    preprocess = build_preprocess(plan.network.preprocess, inputs) if preprocess is None else preprocess.to(device)

    def scored(examples: Any) -> tuple[Inputs | None, Tensor | None]:
        if examples is None:
            return None, None
        return scaled(preprocess, placed(examples.inputs, device, as_bytes)), examples.labels.to(device)

    classes = None if data.classes is None else data.classes.to(device)
    suggested = torch.zeros(len(inputs), dtype=torch.bool, device=device)
    suggested[list(data.names.suggested)] = True
    training = TrainingData(
        scaled(preprocess, inputs), data.labels.to(device), *scored(data.withheld), classes, suggested
    )
    del inputs  # a copy on a GPU goes before the test set comes
    return Prepared(preprocess, training, *scored(data.test))


def build_network(plan: Plan, shape: tuple[int, ...]) -> nn.Module:
    """The encoder that a plan trains, for inputs of a shape."""
    network = plan.network
    if plan.module is not None:
        return mirrored(copy.deepcopy(plan.module), network.mirror, shape)
    weights = None if network.backbone else network.weights_file()
    encoder = build_encoder(network.encoder, shape, plan.seed, network.init, weights)
    return mirrored(encoder, network.mirror, shape)


def build_trainer(
    plan: Plan,
    data: TrainingData,
    device: torch.device,
    progress: Progress | None = None,
    encoder: nn.Module | None = None,
    open_run: OpenRun | None = None,
) -> Trainer:
    """The trainer of a plan; ``open_run`` is called when everything about plan and data has been accepted."""
    encoder = encoder or build_network(plan, tuple(data.inputs.shape[1:]))
    method = METHODS[plan.method](plan.method_settings)
    return Trainer(encoder, method, data, plan.training, plan.seed, device, open_run, progress)


def pretrain_encoder(plan: Plan, trainer: Trainer) -> None:
    """Softmax training on the labels that the method may always learn from, if the plan asks for it."""
    if plan.pretraining.pretrain_epochs:
        rows = trainer.learned_rows()
        inputs, labels = some_of(trainer.data.inputs, rows), trainer.data.labels[rows]
        freeze_norm = plan.training.freeze_norm
        pretrain(trainer.encoder, inputs, labels, plan.pretraining, plan.seed, trainer.progress, freeze_norm)
        agree(trainer)


def score(encoder: nn.Module, metric: Metric, inputs: Inputs, labels: Tensor) -> dict[str, float]:
    """NMI and Recall@K of the embedding of scaled ``inputs``."""
    features = encode_together(encoder, inputs)
    return evaluate(metric.transform(features), labels)


def fit(
    plan: Plan,
    data: FitData,
    device: torch.device,
    open_run: OpenRun | None = None,
    progress: Progress | None = None,
    encoder: nn.Module | None = None,
    start: Start | None = None,
) -> FittedModel:
    """Learn from the data as planned; nothing is written before all input is accepted. The data is released.

    The test set of a benchmark is scored before and after, and chooses nothing. "initial" is the state in which
    Algorithm 1 starts: after the softmax training, if there is one. With several ranks the first alone writes.

    Parameters
    ----------
    open_run : makes or finds the run folder, to which training writes and from which it continues
    progress : is told what happens; without one, warnings are Python's
    encoder : the network, if it has been built already
    start : the run whose network, metric and head training starts with
    """
    if start is not None:
        start.check(plan, model_spec(plan, data))
    with ExitStack() as after:
        opened = None if open_run is None else _released(open_run, after)
        if plan.is_linear:
            fitted = _fit_metric(plan, data, progress)
            run = None if opened is None else ranks.on_first(opened)
        else:
            fitted, run = _fit_network(plan, data, device, opened, progress or Silent(), encoder, start)
        fitted = dataclasses.replace(fitted, schema=data.schema)
        fitted.facts.update(data.facts, run=None if run is None else str(run.path))
        ranks.on_first(lambda: None if run is None else _write(run, fitted))
    return fitted


def _write(run: Run, fitted: FittedModel) -> None:
    write_fitted(run, fitted)
    write_origin(run, fitted.examples)
    run.write("result.json", fitted.facts)
    run.seal()


POSTERIORS, UNKNOWN = "class probabilities of the examples", "comparing examples with the known classes"
"""Names of steps after training, which take long where there are many classes or wide tables."""


def _released(open_run: OpenRun, after: ExitStack) -> OpenRun:
    """As ``open_run``; the lock of the run is given back ``after`` the fit."""

    def opened() -> Run:
        run = open_run()
        after.callback(run.lock.release)
        return run

    return opened


def _fit_metric(plan: Plan, data: FitData, progress: Progress | None) -> FittedModel:
    """A metric on vectors, without a network."""
    preprocess = build_preprocess(plan.network.preprocess, data.inputs)
    assert isinstance(data.inputs, Tensor)
    vectors = scaled_vectors(preprocess, data.inputs)
    method = METHODS[plan.method](plan.method_settings)
    shown = progress or Silent()
    announce(shown, vectors.shape[1])
    found = fit_metric(method, vectors.double(), data.labels, plan.seed)
    for sentence in found.guards.values():
        if progress is None or isinstance(progress, Silent):
            warnings.warn(sentence, GuardWarning, stacklevel=4)
        else:
            progress.warn(sentence)
    model = Model(preprocess, None, found.metric)
    embeddings = model.embed_scaled(vectors)
    facts = _common_facts(plan, found.metric, "cpu") | {"guards": list(found.guards)}
    shown.stage(POSTERIORS)
    posteriors = posteriors_of(embeddings, data.labels)
    names = _names(data, posteriors)
    shown.stage(UNKNOWN)
    kept = _kept_inputs(plan, vectors, data.labels, posteriors)
    facts |= _new_groups(kept.get("unknown"), vectors, data)
    learned = (embeddings, data.labels, posteriors, names, facts)
    return FittedModel(model, model_spec(plan, data), *learned, **kept)


def _fit_network(
    plan: Plan,
    data: FitData,
    device: torch.device,
    open_run: OpenRun | None,
    progress: Progress,
    encoder: nn.Module | None,
    start: Start | None,
) -> tuple[FittedModel, Run | None]:
    if device.type == "cpu":
        keep_freed_memory()
    ready = prepare(plan, data, device, None if start is None else start.preprocess)
    spec = model_spec(plan, data)
    exact = data.inputs if data.inputs.ndim == 2 and isinstance(ready.preprocess, Identity) else None
    data.release()
    trainer = build_trainer(plan, ready.training, device, progress, encoder, open_run)
    facts: dict[str, Any] = {}
    if start is not None:
        numbers = torch.unique(data.labels[data.labels >= 0]).tolist()
        start_from(trainer, start.tensors, start.known([data.names.classes[number] for number in numbers]))
        facts = {"from": str(start.path)}
    initial = _begin(plan, ready, trainer, spec)
    result = trainer.fit()
    facts |= _common_facts(plan, result.metric, device.type) | _training_facts(plan, result)
    if ready.test_inputs is not None and ready.test_labels is not None:
        progress.stage("scoring the test set")
        final = score(result.encoder, result.metric, ready.test_inputs, ready.test_labels)
        facts |= {"dataset": plan.dataset, "initial": initial, "final": final}
    share = plan.network.frozen_share
    model = Model(ready.preprocess.to(device), result.encoder.eval(), result.metric, data.transform, share)
    whole = ready.training.inputs if exact is None else exact
    embeddings = ranks.in_parts(lambda part: model.embed_scaled(some_of(whole, part)), len(whole))
    facts |= {"components": model.width} | ({"frozen_share": share} if share else {})
    progress.stage(POSTERIORS)
    posteriors = _posteriors(trainer, embeddings, data.labels)
    names = _names(data, posteriors)
    progress.stage(UNKNOWN)
    kept = _kept_inputs(plan, ready.training.inputs, data.labels, posteriors)
    facts |= _new_groups(kept.get("unknown"), ready.training.inputs, data)
    found = (embeddings, data.labels, posteriors, names, facts)
    return FittedModel(model, spec, *found, **kept), trainer.run


def _kept_inputs(plan: Plan, inputs: Inputs, labels: Tensor, found: Posteriors) -> dict[str, Any]:
    """What a model of own data keeps of its inputs: those of labelled examples, and the score of no known class."""
    if plan.dataset or not fits_in_a_row(inputs):
        return {}
    judged = judged_rows(labels, prod(inputs.shape[1:]))
    rows = input_rows(inputs if len(judged) == len(labels) else some_of(inputs, judged))
    known = Posteriors(found.classes, found.shares[judged], found.confidence[judged])
    labelled = input_rows(some_of(inputs, (labels >= 0).nonzero().flatten().to(inputs.device)))
    assert rows is not None
    return {"labelled_inputs": labelled, "unknown": fit_unknown(rows, known, labels[judged], plan.seed)}


def _new_groups(unknown: Unknown | None, inputs: Inputs, data: FitData) -> dict[str, Any]:
    """Names of unlabelled examples that look like one more class, group by group; nothing where there is no score."""
    names = data.names.names
    if unknown is None or not names:
        return {}
    places = (data.labels < 0).nonzero().flatten()
    beyond = places[unknown.looks_new(some_of(inputs, places.to(inputs.device)))] if len(places) else places
    rows = input_rows(some_of(inputs, beyond.to(inputs.device))) if len(beyond) else None
    found = [] if rows is None else unknown.groups(rows)
    return {"new_groups": [[names[place] for place in beyond[group].tolist()] for group in found]}


def _posteriors(trainer: Trainer, embeddings: Tensor, labels: Tensor) -> Posteriors:
    """The method's own posteriors, or labels propagated over the embedding where it has none."""
    found = trainer.posteriors()
    if found is None:
        return posteriors_of(embeddings, labels, trainer.metric.factor.device)
    return with_labels(on_cpu(found), labels)


def _names(data: FitData, found: Posteriors) -> ExampleNames:
    """The names of the data, with those classes that have labels."""
    known, numbers = data.names.classes, found.classes.tolist()
    classes = tuple(known[number] for number in numbers) if known else tuple(numbers)
    return dataclasses.replace(data.names, classes=classes)


def _begin(plan: Plan, ready: Prepared, trainer: Trainer, spec: ModelSpec) -> dict[str, float]:
    """Write the model as it starts, train with softmax if planned, and score the test set if there is one.

    A run that has a checkpoint has all of this behind it.
    """
    run = trainer.run
    if run is not None:
        write_start(run, Model(ready.preprocess, trainer.encoder, trainer.metric), spec)
    if ranks.of_first(run is not None and run.has("checkpoint.safetensors")):
        return {} if run is None else dict(run.read("initial.json") or {})
    pretrain_encoder(plan, trainer)
    if ready.test_inputs is None or ready.test_labels is None:
        return {}
    trainer.progress.stage("scoring the test set")
    initial = score(trainer.encoder, trainer.metric, ready.test_inputs, ready.test_labels)
    if run is not None:
        run.write("initial.json", initial)
    return initial


def model_spec(plan: Plan, data: FitData) -> ModelSpec:
    """What the model of a plan on this data is built of."""
    network, inputs = plan.network, tuple(data.inputs.shape[1:])
    encoder, module = (network.encoder, "") if plan.module is None else ("", network.encoder)
    side = 0 if data.transform is None else data.transform.side
    backbone = network.backbone if side else ""
    return ModelSpec(
        data.kind,
        data.shape,
        inputs,
        network.preprocess,
        encoder,
        module,
        backbone,
        side,
        network.fit,
        network.frozen_share,
        network.mirror,
    )


def _common_facts(plan: Plan, metric: Metric, device: str) -> dict[str, Any]:
    width = metric.factor.shape[1]
    return {"method": plan.method, "seed": plan.seed, "components": width, "device": device}


def _training_facts(plan: Plan, result: TrainingResult) -> dict[str, Any]:
    return {
        "best_epoch": result.best_epoch,
        "planned_epochs": plan.training.epochs,
        "selection": plan.training.selection,
        "epochs": result.epochs,
        "interrupted": result.interrupted,
        "guards": list(result.guards),
        "trust": result.trust,
        "seconds": round(result.seconds, 3),
    }

"""From examples and a few labels to a learned model: what the estimator and ``semimetric fit DATA`` do."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from semimetric.core.errors import InputError
from semimetric.data import apply_in_chunks, build_preprocess
from semimetric.data.samples import Kind
from semimetric.encoders import build_encoder
from semimetric.encoders.photographs import Sight
from semimetric.graph import Posteriors
from semimetric.methods import METHODS, build_method
from semimetric.model.fitted import Built, Learned, Model, posteriors_of, scaled_vectors, with_labels
from semimetric.pipeline.choice import Choice, settings_for
from semimetric.pipeline.linear import GuardWarning, learn_metric
from semimetric.pipeline.presets import Material
from semimetric.training import Progress, Run, Trainer, TrainingData


@dataclass(frozen=True)
class Task:
    """What to learn, from what: inputs (N, ...) not scaled yet, labels (N,; -1 unknown), and how."""

    kind: Kind
    inputs: Tensor
    labels: Tensor
    method: str
    choice: Choice
    changes: dict[str, Any]
    n_components: int | None = None
    seed: int = 0
    sight: Sight | None = None
    shape: tuple[int, ...] = ()
    """Of one example as it was given; photographs are of all shapes."""

    def material(self) -> Material:
        """What the encoder sees."""
        return self.choice.material(self.kind)

    def built(self) -> Built:
        """What the model will be built of."""
        encoder, choice = self.choice.encoder, self.choice
        named = isinstance(encoder, str)
        return Built(
            self.kind,
            self.shape,
            tuple(self.inputs.shape[1:]),
            choice.preprocess,
            str(encoder) if named else "",
            "" if named else f"{type(encoder).__module__}.{type(encoder).__qualname__}",
            choice.backbone,
            choice.side,
        )


def learn(
    task: Task,
    device: torch.device,
    open_run: Callable[[], Run] | None = None,
    progress: Progress | None = None,
) -> Learned:
    """Train, embed all examples and name them.

    ``open_run`` makes the folder to which training writes and from which it continues; it is called once everything
    about the task has been accepted.
    """
    if task.choice.encoder == "none":
        return _learn_metric(task, open_run, progress)
    return _train(task, device, open_run, progress)


def _learn_metric(task: Task, open_run: Callable[[], Run] | None, progress: Progress | None) -> Learned:
    """A metric on vectors, without a network."""
    settings, _ = settings_for(task.method, task.material(), task.labels, task.changes, linear=True)
    preprocess = build_preprocess(task.choice.preprocess, task.inputs)
    scaled = scaled_vectors(preprocess, task.inputs).double()
    values = dataclasses.asdict(settings)
    values.pop("components", None)
    with _telling(progress):
        fit = learn_metric(scaled, task.labels, task.method, task.n_components, task.seed, **values)
    model = Model(preprocess, None, fit.metric)
    embeddings = model.embed(task.inputs)
    if open_run is not None:
        open_run()
    found = posteriors_of(embeddings, task.labels)
    return Learned(model, task.built(), embeddings, task.labels, found, {"guards": list(fit.guards)})


@contextmanager
def _telling(progress: Progress | None) -> Iterator[None]:
    """Let what a method had to change be told by ``progress``, where there is one, as in training."""
    if progress is None:
        yield
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", GuardWarning)
        yield
    for warning in caught:
        progress.warn(str(warning.message))


def _train(task: Task, device: torch.device, open_run: Callable[[], Run] | None, progress: Progress | None) -> Learned:
    preprocess = build_preprocess(task.choice.preprocess, task.inputs)
    settings, training = settings_for(task.method, task.material(), task.labels, task.changes | _width(task))
    method = build_method(task.method, **dataclasses.asdict(settings))
    data = TrainingData(apply_in_chunks(preprocess, task.inputs), task.labels)
    encoder = encoder_for(task.choice, tuple(task.inputs.shape[1:]), task.seed)
    trainer = Trainer(encoder, method, data, training, task.seed, device, progress=progress)
    if open_run is not None:
        trainer.run = open_run()
        trainer.run.write_tensors("preprocess.safetensors", dict(preprocess.state_dict()))
    result = trainer.fit()
    model = Model(preprocess.to(device), result.encoder.eval(), result.metric, task.sight)
    embeddings = model.embed(task.inputs)
    facts = {
        "epochs": result.epochs,
        "best_epoch": result.best_epoch,
        "interrupted": result.interrupted,
        "seconds": round(result.seconds, 3),
        "guards": list(result.guards),
        "trust": result.trust,
    }
    found = named_by(trainer, embeddings, task.labels)
    return Learned(model, task.built(), embeddings, task.labels, found, facts)


def _width(task: Task) -> dict[str, int]:
    """``n_components`` under the name that methods know."""
    if task.n_components is None:
        return {}
    if task.n_components < 1 or isinstance(task.n_components, bool):
        raise InputError(f"n_components must be a whole number of at least 1, or None, got {task.n_components!r}.")
    if "components" not in {field.name for field in dataclasses.fields(METHODS[task.method].Settings)}:
        raise InputError(f"method {task.method!r} keeps all dimensions with a network; leave n_components out.")
    return {"components": int(task.n_components)}


def encoder_for(choice: Choice, shape: tuple[int, ...], seed: int) -> nn.Module:
    """The network that is trained, for inputs of a shape."""
    if isinstance(choice.encoder, nn.Module):
        return copy.deepcopy(choice.encoder)
    weights = None if choice.backbone else choice.weights
    return build_encoder(choice.encoder, shape, seed, init="he", weights=weights)


def named_by(trainer: Trainer, embeddings: Tensor, labels: Tensor) -> Posteriors:
    """What the method takes the examples for or, where it names none, what their neighbours are."""
    found = trainer.posteriors()
    if found is None:
        return posteriors_of(embeddings, labels)
    return with_labels(Posteriors(*(tensor.cpu() for tensor in found)), labels)

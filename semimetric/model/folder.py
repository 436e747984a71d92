"""The run folder of a fitted model: the one place that writes and reads it.

Beside what training writes (``semimetric.training.run``):

model.json            what the model is built of: kind of inputs, preprocessing, encoder, backbone
backbone.safetensors  the frozen network that turns photographs into features, where there is one
examples.safetensors  embeddings, labels and class posteriors of the training examples
examples.json         names of examples and classes, and the folder or table they came from
added.safetensors     the same of examples that were added after training, where there are any
inputs.safetensors    inputs of labelled examples, and the score of being of no known class
schema.json           the columns of a table (``semimetric.model.schema``)
origin.json           seals under the paths that the run names (``semimetric.model.origin``)
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor, nn

import semimetric
from semimetric.core.checks import check_choice
from semimetric.core.errors import InputError, RunError
from semimetric.data import restore_preprocess
from semimetric.data.photographs.images import check_photo_options
from semimetric.data.samples import Kind
from semimetric.encoders import mirrored, rebuild_encoder
from semimetric.encoders.photographs import PhotoTransform
from semimetric.graph import Posteriors
from semimetric.metric import Metric
from semimetric.model.added import ADDED, with_added
from semimetric.model.fields import check_fields, read_fields
from semimetric.model.fitted import FittedModel, Model
from semimetric.model.kept import read_kept, write_kept
from semimetric.model.origin import ORIGIN
from semimetric.model.schema import read_schema, write_schema
from semimetric.model.spec import ExampleNames, ModelSpec
from semimetric.model.versions import version_differences
from semimetric.training import Run, choose_device, model_tensors
from semimetric.training.optimizer import under
from semimetric.training.run import REQUIRED

FORMAT = 4
"""Version of the run folder, the only one that is read."""

NOT_READ = ("initial.json", "metrics.jsonl", "checkpoint.safetensors", "result.json", ORIGIN)
"""Files that a run may lose and still answer."""


@dataclass(frozen=True)
class LoadedRun:
    """A run as it was found: the fitted model, its config, and how the versions that wrote it differ from ours."""

    path: Path
    fitted: FittedModel
    config: dict[str, Any]
    differences: str


def load_run(path: Path, device: str = "auto", encoder: nn.Module | None = None) -> LoadedRun:
    """Read a run folder of any kind. Nothing in it is executed or unpickled.

    ``encoder`` is the user's own module, for a run that was trained with one.
    """
    run = Run.open(path)
    config = read_config(run)
    read = {*REQUIRED, *run.manifest.contents().files} - {*NOT_READ}
    lost = sorted(name for name in read if not run.has(name))
    if lost:
        raise RunError(
            f"{run.path} holds no {', '.join(lost)}: training has not ended, or files were lost. Continue it with the "
            "same 'semimetric fit' and --resume."
        )
    run.manifest.check_ahead(read)
    spec = read_spec(run)
    _check_module(run, spec, encoder)
    model = read_model(run, spec, choose_device(device), encoder)
    model = dataclasses.replace(model, transform=_transform(run, spec))
    with explaining(run):
        fitted = _with_examples(run, model, spec)
    return LoadedRun(path, fitted, config, version_differences(config["versions"]))


def read_config(run: Run) -> dict[str, Any]:
    """The config of a run of this format; any other is refused."""
    config = run.config()
    if config.get("format") != FORMAT:
        raise RunError(
            f"{run.path} has the run format {config.get('format')!r}, and semimetric {semimetric.__version__} reads "
            f"format {FORMAT}. Fit it again, or load it with the version that wrote it ({config.get('version')})."
        )
    return check_fields(config, "config.json", run.path / "config.json")


def write_start(run: Run, model: Model, spec: ModelSpec) -> None:
    """Write those files of the model that are missing or damaged; before training, so that it can be scored early."""
    if not run.is_whole("model.json"):
        run.write("model.json", dataclasses.asdict(spec))
    if not run.is_whole("preprocess.safetensors"):
        run.write_tensors("preprocess.safetensors", dict(model.preprocess.state_dict()))
    if not run.is_whole("model.safetensors"):
        tensors = model_tensors(model.encoder or nn.Identity(), model.metric)
        run.write_tensors("model.safetensors", tensors, {"epoch": 0})


def write_fitted(run: Run, fitted: FittedModel) -> None:
    """Write everything that is needed to load the model; ``run.seal`` comes after it."""
    model, found = fitted.model, fitted.posteriors
    write_start(run, model, fitted.spec)
    if model.transform is not None and model.transform.network is not None:
        run.write_tensors("backbone.safetensors", dict(model.transform.network.state_dict()))
    tensors = {
        "embeddings": fitted.embeddings,
        "labels": fitted.labels,
        "classes": found.classes,
        "shares": found.shares,
        "confidence": found.confidence,
    }
    run.write_tensors("examples.safetensors", tensors, {"model": run.digest("model.safetensors")})
    classes = [value.item() if isinstance(value, np.generic) else value for value in fitted.examples.classes]
    write_kept(run, fitted.labelled_inputs, fitted.unknown)
    if fitted.schema is not None:
        write_schema(run, fitted.schema)
    run.write("examples.json", dataclasses.asdict(fitted.examples) | {"classes": classes})


def read_model(run: Run, spec: ModelSpec, device: torch.device, encoder: nn.Module | None = None) -> Model:
    """The model of a run without its examples and its backbone; a run that is still being trained has one."""
    tensors, _ = run.read_tensors("model.safetensors")
    scaling, _ = run.read_tensors("preprocess.safetensors")
    with explaining(run):
        model = Model(
            restore_preprocess(spec.preprocess, scaling).to(device),
            _encoder(run, spec, tensors, encoder, device),
            Metric(tensors["metric.factor"]).to(device),
            frozen_share=spec.frozen_share,
        )
        with _fitting(run, "model.safetensors"):
            model.embed(torch.zeros(1, *spec.inputs))
    return model


@contextmanager
def explaining(run: Run) -> Iterator[None]:
    """Turn what damaged files cause into a sentence about the run."""
    try:
        yield
    except (InputError, LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RuntimeError) as error:
        told = error if isinstance(error, InputError) else repr(error)
        raise RunError(
            f"{run.path} is damaged, or of another version of semimetric than this ({semimetric.__version__}): {told}"
        ) from error


def read_spec(run: Run) -> ModelSpec:
    """What the model of a run is built of."""
    fields = read_fields(run, "model.json")
    with explaining(run):
        spec = ModelSpec(**fields | {name: tuple(fields[name]) for name in ("shape", "inputs")})
        check_choice(spec.kind, get_args(Kind), "kind")
        if spec.kind == "photographs":
            check_photo_options(spec.side, spec.fit, workers=None)
    return spec


def _check_module(run: Run, spec: ModelSpec, own: nn.Module | None) -> None:
    if spec.module and own is None:
        raise InputError(
            f"{run.path} was trained with a module of your own ({spec.module}), which a run does not hold. Build it "
            "again and pass it as semimetric.load(..., encoder=module)."
        )
    if own is not None and not spec.module:
        raise InputError(f"{run.path} was trained with the encoder {spec.encoder!r}, which it holds. Pass no other.")


def _encoder(
    run: Run, spec: ModelSpec, tensors: dict[str, Tensor], own: nn.Module | None, device: torch.device
) -> nn.Module | None:
    if spec.encoder == "none":
        return None
    weights = under("encoder.", tensors)
    with _fitting(run, "model.safetensors"):
        if own is None:
            network = rebuild_encoder(spec.encoder, spec.inputs, weights, init="he")
        else:
            network = copy.deepcopy(own)
            network.load_state_dict(weights)
    return mirrored(network, spec.mirror, spec.inputs).to(device).eval()


def _transform(run: Run, spec: ModelSpec) -> PhotoTransform | None:
    if not spec.side:
        return None
    if not spec.backbone:
        return PhotoTransform(spec.side, spec.fit)
    tensors, _ = run.read_tensors("backbone.safetensors")
    with _fitting(run, "backbone.safetensors"):
        network = rebuild_encoder(spec.backbone, (3, spec.side, spec.side), tensors)
    return PhotoTransform(spec.side, spec.fit, network.eval(), spec.backbone)


@contextmanager
def _fitting(run: Run, name: str) -> Iterator[None]:
    """Name the file whose weights do not fit the network."""
    try:
        yield
    except RuntimeError as error:
        mismatch = " ".join(str(error).split())
        raise RunError(f"{run.path / name} does not fit its network: {mismatch}") from error


def _with_examples(run: Run, model: Model, spec: ModelSpec) -> FittedModel:
    tensors, state = run.read_tensors("examples.safetensors")
    if state["model"] != run.digest("model.safetensors"):
        raise RunError(
            f"the embeddings in {run.path} are not those of its model: training went on after an interruption and has "
            "not ended. Continue it with the same 'semimetric fit' and --resume."
        )
    listed = read_fields(run, "examples.json")
    lists = {name: tuple(listed[name]) for name in ("names", "classes", "columns", "suggested", "digests")}
    examples = ExampleNames(**listed | lists)
    posteriors = Posteriors(tensors["classes"], tensors["shares"], tensors["confidence"])
    facts = read_fields(run, "result.json") if run.has("result.json") else {}
    schema = read_schema(run, prod(spec.shape))
    found = (tensors["embeddings"], tensors["labels"], posteriors)
    kept = read_kept(run, int((found[1] >= 0).sum()), len(posteriors.classes), prod(spec.inputs))
    fitted = FittedModel(model, spec, *found, examples, facts, schema, **kept)
    _check_examples(run, fitted)
    if run.has(ADDED):
        fitted = with_added(run, fitted)
        _check_examples(run, fitted)
    return fitted


def _check_examples(run: Run, fitted: FittedModel) -> None:
    """Refuse files that do not belong to the same examples and classes."""
    count, classes = len(fitted.examples.names), len(fitted.examples.classes)
    found = fitted.posteriors
    if len(fitted.examples.digests) not in (0, count):
        raise RunError(f"{run.path} is damaged: examples.json has not one digest for each example. Fit it again.")
    shapes = {
        "embeddings": (fitted.embeddings, (count, fitted.model.width)),
        "labels": (fitted.labels, (count,)),
        "classes": (found.classes, (classes,)),
        "shares": (found.shares, (count, classes)),
        "confidence": (found.confidence, (count,)),
    }
    if not bool(torch.isfinite(fitted.embeddings).all()):
        raise RunError(f"{run.path} is damaged: examples.safetensors has numbers that are not finite. Fit it again.")
    for name, (tensor, shape) in shapes.items():
        if tuple(tensor.shape) != shape:
            raise RunError(
                f"{run.path} is damaged: {name} in examples.safetensors have the shape {tuple(tensor.shape)}, and "
                f"examples.json and the model want {shape}. Start again with another --out."
            )
    if not bool(torch.isin(fitted.labels[fitted.labels >= 0], found.classes).all()):
        raise RunError(f"{run.path} is damaged: examples.safetensors has a label of no class. Fit it again.")

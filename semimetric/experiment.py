"""A method on a benchmark dataset, from its files to its scores: what ``semimetric fit`` and the benchmarks run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

import semimetric
from semimetric.checks import check_choice
from semimetric.data import (
    Dataset,
    Fit,
    Preprocess,
    PreprocessName,
    Withheld,
    apply_in_chunks,
    build_preprocess,
    check_dataset,
    load_dataset,
    restore_preprocess,
    split_examples,
)
from semimetric.descriptors import described
from semimetric.encoders import build_encoder, encode, encoder_names, takes_photographs
from semimetric.errors import InputError, RunError
from semimetric.evaluation import evaluate
from semimetric.methods import METHODS, build_method, method_names
from semimetric.metric import Metric
from semimetric.presets import preset_values
from semimetric.settings import build_settings, setting
from semimetric.training import (
    PretrainSettings,
    Progress,
    Run,
    Silent,
    Trainer,
    TrainingData,
    TrainingSettings,
    choose_device,
    load_model,
    model_tensors,
    pretrain,
)


@dataclass(frozen=True)
class ProtocolSettings:
    """Which labels are known, and what the network sees."""

    labels_per_class: int = setting(10, "Labelled examples of each class; all other training examples are unlabelled.")
    validation_share: float = setting(
        0.0, "Share of the training data that is withheld; the best model is then chosen on it."
    )
    withheld: Withheld = setting(
        "examples", "What the validation share is of: examples of each class, or whole classes, where new ones come."
    )
    encoder: str = setting("small-cnn", f"Network: {', '.join(encoder_names())}.")
    backbone: str = setting(
        "", "Pretrained network, kept as it is, whose descriptors of the images are learned from; none: the images."
    )
    weights: str = setting(
        "", "File with the weights of the pretrained network, backbone or encoder; 'random' for one without any."
    )
    descriptors: str = setting("", "File that keeps the descriptors of the backbone for the next run.")
    side: int = setting(0, "Side in pixels to which photographs are brought; 0 takes the dataset's own, 256.")
    fit: Fit = setting("crop", "How photographs are brought to a square.")
    init: Literal["gaussian", "he"] = setting("gaussian", "Start weights of the paper's networks.")
    preprocess: PreprocessName = setting("standardize", "Scaling of the inputs.")

    def __post_init__(self) -> None:
        check_choice(self.withheld, ("examples", "classes"), "withheld")
        check_choice(self.fit, ("crop", "squash"), "fit")
        if self.backbone and not takes_photographs(self.backbone):
            raise InputError(
                f"backbone {self.backbone!r} is no pretrained network. Use googlenet, googlenet-rmac, timm:NAME or "
                "torchvision:NAME, or train it as the encoder."
            )
        if self.descriptors and not self.backbone:
            raise InputError("descriptors are those of a backbone, and there is none. Name one, or leave it out.")
        if takes_photographs(self.encoder) and self.preprocess != "imagenet":
            raise InputError(
                f"encoder {self.encoder!r} expects preprocess 'imagenet', got {self.preprocess!r}. Set preprocess to "
                "imagenet."
            )

    def weights_file(self) -> Path | None:
        """The weights of the pretrained network, where there is one: a file, or none for a random network."""
        network = self.backbone or self.encoder
        if self.weights == "random" or not takes_photographs(network):
            return None
        if not self.weights:
            raise InputError(
                f"weights are missing: name the file with those of {network!r}, or say 'random' for a network that "
                "has seen nothing."
            )
        return Path(self.weights)


@dataclass(frozen=True)
class Experiment:
    """All settings of one run."""

    dataset: str
    method: str
    seed: int
    protocol: ProtocolSettings
    training: TrainingSettings
    pretraining: PretrainSettings
    method_settings: Any

    def __post_init__(self) -> None:
        if self.pretraining.pretrain_epochs and not METHODS[self.method].needs.labels:
            raise InputError(
                f"pretrain_epochs trains with labels and method {self.method!r} never sees one. "
                "Set pretrain_epochs to 0."
            )

    def config(self) -> dict[str, Any]:
        """The settings as JSON values, with the version that ran them."""
        return {"version": semimetric.__version__} | dataclasses.asdict(self)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Experiment:
        """The settings of a run."""
        try:
            kind = METHODS[config["method"]].Settings
            return cls(
                config["dataset"],
                config["method"],
                config["seed"],
                build_settings(ProtocolSettings, config["protocol"], "protocol"),
                build_settings(TrainingSettings, config["training"], "training"),
                build_settings(PretrainSettings, config["pretraining"], "pretraining"),
                build_settings(kind, config["method_settings"], f"method {config['method']!r}"),
            )
        except (KeyError, TypeError, AttributeError, InputError) as error:
            written = config.get("version", "unknown") if isinstance(config, dict) else "unknown"
            raise RunError(
                f"the run's config does not fit this version ({semimetric.__version__}): {error}. "
                f"It was written by version {written}."
            ) from error


def plan(dataset: str, method: str, seed: int = 0, preset: str = "default", **values: Any) -> Experiment:
    """Settings from a preset, overridden by ``values``; a setting that nothing has is refused by name.

    Data that is withheld by ``validation_share`` chooses the best model, unless ``selection`` says otherwise.
    """
    check_dataset(dataset)
    if not 0 <= seed < 2**63:
        raise InputError(f"seed must be between 0 and 2^63 - 1, got {seed}.")
    check_choice(method, method_names(), "method")
    groups: dict[str, type[Any]] = {
        "protocol": ProtocolSettings,
        "training": TrainingSettings,
        "pretraining": PretrainSettings,
        "method_settings": METHODS[method].Settings,
    }
    known = {field.name: group for group, kind in groups.items() for field in dataclasses.fields(kind)}
    for name in values:
        if name not in known:
            others = [
                other for other, kind in METHODS.items() if name in {f.name for f in dataclasses.fields(kind.Settings)}
            ]
            owners = f" (it is one of {', '.join(others)})" if others else ""
            raise InputError(f"method {method!r} has no setting {name!r}{owners}; it has: {', '.join(sorted(known))}.")
    chosen = preset_values(preset, dataset, method) | values
    if values.get("validation_share") and "selection" not in values:
        chosen["selection"] = "validation"
    if values.get("validation_share") == 0 and "selection" not in values and chosen.get("selection") == "validation":
        chosen["selection"] = "last"
    built = {
        group: build_settings(kind, {n: v for n, v in chosen.items() if known[n] == group}, group)
        for group, kind in groups.items()
    }
    return Experiment(dataset, method, seed, **built)


@dataclass(frozen=True)
class Prepared:
    """A dataset under a protocol: what is trained on, and what is only scored."""

    data: TrainingData
    test_inputs: Tensor
    test_labels: Tensor
    preprocess: Preprocess


def prepare(experiment: Experiment, dataset: Dataset, device: torch.device | str = "cpu") -> Prepared:
    """Split, fit the scaling on the training examples that are not withheld, and scale all inputs on ``device``.

    Examples keep the order of the dataset, which says nothing about labels.
    """
    protocol = experiment.protocol
    split = split_examples(
        dataset.train.labels,
        protocol.labels_per_class,
        protocol.validation_share,
        experiment.seed,
        protocol.withheld,
    )
    rows = torch.cat([split.labelled, split.unlabelled]).sort().values
    labels = torch.where(torch.isin(rows, split.labelled), dataset.train.labels[rows], -1)
    inputs = dataset.train.inputs[rows].to(device)
    preprocess = build_preprocess(protocol.preprocess, inputs)
    withheld = dataset.train.subset(split.validation) if len(split.validation) else None
    data = TrainingData(
        apply_in_chunks(preprocess, inputs),
        labels.to(device),
        None if withheld is None else apply_in_chunks(preprocess, withheld.inputs.to(device)),
        None if withheld is None else withheld.labels.to(device),
        dataset.train.labels[rows].to(device),
    )
    test_inputs = apply_in_chunks(preprocess, dataset.test.inputs.to(device))
    return Prepared(data, test_inputs, dataset.test.labels, preprocess)


def load_examples(
    experiment: Experiment, data_dir: Path | None, device: torch.device, progress: Progress | None = None
) -> Dataset:
    """The dataset of an experiment, or its descriptors by a frozen network."""
    protocol = experiment.protocol
    weights = protocol.weights_file()
    dataset = load_dataset(experiment.dataset, data_dir, protocol.side or None, protocol.fit)
    if not protocol.backbone:
        return dataset
    if progress is not None:
        progress.stage(f"describing {len(dataset.train) + len(dataset.test):,} images by {protocol.backbone}")
    return described(
        dataset,
        protocol.backbone,
        weights,
        experiment.seed,
        device,
        Path(protocol.descriptors) if protocol.descriptors else None,
    )


def encoder_of(experiment: Experiment, shape: tuple[int, ...]) -> nn.Module:
    """The encoder that an experiment trains, for inputs of a shape."""
    protocol = experiment.protocol
    weights = None if protocol.backbone else protocol.weights_file()
    return build_encoder(protocol.encoder, shape, experiment.seed, protocol.init, weights)


def run_experiment(
    experiment: Experiment,
    out: Path | None = None,
    data_dir: Path | None = None,
    device: str = "auto",
    resume: bool = False,
    progress: Progress | None = None,
    dataset: Dataset | None = None,
) -> dict[str, Any]:
    """Train, and score the test set before and after. Nothing is written before all input is accepted.

    The test set is scored twice, for the Initial row and for the final one, and chooses nothing. Initial is the
    state in which Algorithm 1 starts: after the softmax training, where there is one.
    """
    where = choose_device(device)
    progress = progress or Silent()
    progress.stage(f"loading {experiment.dataset}")
    prepared = prepare(experiment, dataset or load_examples(experiment, data_dir, where, progress), where)
    method = build_method(experiment.method, **dataclasses.asdict(experiment.method_settings))
    encoder = encoder_of(experiment, tuple(prepared.data.inputs.shape[1:]))
    trainer = Trainer(
        encoder, method, prepared.data, experiment.training, experiment.seed, where, run=None, progress=progress
    )
    if out is not None:
        trainer.run = (Run.resume if resume else Run.create)(out, experiment.config())
    initial = _start(experiment, prepared, trainer)
    result = trainer.fit()
    progress.stage("scoring the test set")
    final = score(result.encoder, result.metric, prepared.test_inputs, prepared.test_labels)
    outcome = {
        "method": experiment.method,
        "dataset": experiment.dataset,
        "seed": experiment.seed,
        "initial": initial,
        "final": final,
        "components": result.metric.factor.shape[1],
        "best_epoch": result.best_epoch,
        "planned_epochs": experiment.training.epochs,
        "selection": experiment.training.selection,
        "epochs": result.epochs,
        "interrupted": result.interrupted,
        "guards": list(result.guards),
        "trust": result.trust,
        "seconds": round(result.seconds, 3),
        "device": where.type,
        "run": None if out is None else str(out),
    }
    if trainer.run is not None:
        trainer.run.write("result.json", outcome)
    return outcome


def _start(experiment: Experiment, prepared: Prepared, trainer: Trainer) -> dict[str, float]:
    """Softmax training, where asked for, and the Initial scores; a run that has them already is not asked again."""
    run = trainer.run
    if run is not None and run.has("checkpoint.safetensors"):
        stored: dict[str, float] = run.read("initial.json") or {}
        return stored
    if run is not None:
        run.write_tensors("preprocess.safetensors", dict(prepared.preprocess.state_dict()))
        run.write_tensors("model.safetensors", model_tensors(trainer.encoder, trainer.metric), {"epoch": 0})
    pretrain_encoder(experiment, trainer)
    trainer.progress.stage("scoring the test set")
    initial = score(trainer.encoder, trainer.metric, prepared.test_inputs, prepared.test_labels)
    if run is not None:
        run.write("initial.json", initial)
    return initial


def pretrain_encoder(experiment: Experiment, trainer: Trainer) -> None:
    """Softmax training on the labels that the method may learn from at all times, where asked for."""
    if experiment.pretraining.pretrain_epochs:
        rows = trainer.learned_rows()
        inputs, labels = trainer.data.inputs[rows], trainer.data.labels[rows]
        pretrain(trainer.encoder, inputs, labels, experiment.pretraining, experiment.seed, trainer.progress)


def score(encoder: nn.Module, metric: Metric, inputs: Tensor, labels: Tensor) -> dict[str, float]:
    """NMI and Recall@K of the embedding of preprocessed ``inputs``."""
    return evaluate(metric.transform(encode(encoder, inputs)), labels)


def evaluate_run(
    path: Path, data_dir: Path | None = None, device: str = "auto", components: int | None = None
) -> dict[str, Any]:
    """Score the best model of a run on the test set of its dataset; ``components`` keeps its largest dimensions."""
    if components is not None and components < 1:
        raise InputError(f"components must be at least 1, got {components}.")
    run = Run.open(path)
    experiment = Experiment.from_config(run.config())
    where = choose_device(device)
    dataset = load_examples(experiment, data_dir, where)
    scaling, _ = run.read_tensors("preprocess.safetensors")
    inputs = apply_in_chunks(restore_preprocess(experiment.protocol.preprocess, scaling), dataset.test.inputs)
    tensors, state = run.read_tensors("model.safetensors")
    encoder = encoder_of(experiment, tuple(inputs.shape[1:]))
    try:
        load_model(encoder, tensors)
    except RuntimeError as error:
        raise RunError(f"the model in {path} does not fit its config: {error}") from error
    metric = Metric(tensors["metric.factor"])
    if components is not None:
        if components > metric.factor.shape[1]:
            width = metric.factor.shape[1]
            raise InputError(f"components must be at most {width}, the width of the run, got {components}.")
        if metric.is_orthonormal():
            raise InputError(
                "components keeps the largest dimensions of a metric, and the metric of this run weighs all dimensions "
                "alike. Train with components instead."
            )
        metric = Metric.from_matrix(metric.matrix, components)
    return {
        "method": experiment.method,
        "dataset": experiment.dataset,
        "seed": experiment.seed,
        "epoch": state["epoch"],
        "components": metric.factor.shape[1],
        "scores": score(encoder.to(where), metric.to(where), inputs.to(where), dataset.test.labels),
        "run": str(path),
    }

"""A method on a benchmark dataset, from its files to its scores: what ``semimetric fit`` and the benchmarks run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import semimetric
from semimetric.core.checks import check_choice
from semimetric.core.errors import InputError, RunError
from semimetric.core.settings import build_settings
from semimetric.data import (
    Dataset,
    Preprocess,
    Split,
    apply_in_chunks,
    build_preprocess,
    check_dataset,
    find_photographs,
    load_dataset,
    photograph_side,
    restore_preprocess,
    split_examples,
)
from semimetric.data.samples import Kind
from semimetric.encoders import build_encoder, encode, rebuild_encoder
from semimetric.encoders.photographs import Sight
from semimetric.evaluation import evaluate
from semimetric.methods import METHODS, build_method, method_names
from semimetric.metric import Metric
from semimetric.model.fitted import Built, Learned, Model
from semimetric.model.folder import Examples, versions, write_learned
from semimetric.pipeline.descriptors import described, described_photographs
from semimetric.pipeline.learn import named_by
from semimetric.pipeline.presets import preset_values
from semimetric.pipeline.protocol import ProtocolSettings
from semimetric.training import (
    PretrainSettings,
    Progress,
    Run,
    Silent,
    Trainer,
    TrainingData,
    TrainingResult,
    TrainingSettings,
    choose_device,
    model_tensors,
    pretrain,
)
from semimetric.training.optimizer import under

WEIGHTS_DIGEST = "weights_sha256"
"""What the config of a run calls the SHA-256 of the pretrained weights that it was made with."""

SKIPPED_NAMED = 5
"""So many of the files that gave no example are named in the outcome of a run."""


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
    chosen = preset_values(preset, dataset, method, values.get("backbone", "")) | values
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
    """A dataset under a protocol: what is trained on, what is only scored, and which files gave no example, and why.

    ``names`` are those of what is trained on: files, or numbers among the training examples of the dataset.
    """

    data: TrainingData
    test_inputs: Tensor
    test_labels: Tensor
    preprocess: Preprocess
    names: tuple[str, ...]
    class_names: tuple[str, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)


def prepare(experiment: Experiment, dataset: Dataset, device: torch.device | str = "cpu") -> Prepared:
    """Split, fit the scaling on the training examples that are not withheld, and scale all inputs on ``device``.

    Examples keep the order of the dataset, which says nothing about labels.
    """
    protocol = experiment.protocol
    split = _split(experiment, dataset.train.labels)
    rows = torch.cat([split.labelled, split.unlabelled]).sort().values
    labels = torch.where(torch.isin(rows, split.labelled), dataset.train.labels[rows], -1)
    inputs = dataset.train.inputs[rows].to(device)
    preprocess = build_preprocess(protocol.preprocess, inputs)
    scaled = apply_in_chunks(preprocess, inputs)
    del inputs  # the bytes go before others are made into numbers of four times their size
    withheld = dataset.train.subset(split.validation) if len(split.validation) else None
    data = TrainingData(
        scaled,
        labels.to(device),
        None if withheld is None else apply_in_chunks(preprocess, withheld.inputs.to(device)),
        None if withheld is None else withheld.labels.to(device),
        dataset.train.labels[rows].to(device),
    )
    test_inputs = apply_in_chunks(preprocess, dataset.test.inputs.to(device))
    names = tuple(dataset.train_names[row] if dataset.train_names else f"train {row}" for row in rows.tolist())
    return Prepared(data, test_inputs, dataset.test.labels, preprocess, names, dataset.class_names, dataset.skipped)


def _split(experiment: Experiment, labels: Tensor) -> Split:
    protocol = experiment.protocol
    shares = (protocol.labels_per_class, protocol.validation_share)
    return split_examples(labels, *shares, experiment.seed, protocol.withheld)


def load_examples(
    experiment: Experiment, data_dir: Path | None, device: torch.device, progress: Progress | None = None
) -> Dataset:
    """The dataset of an experiment, or its descriptors by a frozen network; of photographs, as they are decoded."""
    protocol, progress = experiment.protocol, progress or Silent()
    weights = protocol.weights_file()
    keep = Path(protocol.descriptors) if protocol.descriptors else None
    photographs = find_photographs(experiment.dataset, data_dir) if protocol.backbone else None
    if photographs is not None:
        progress.stage(f"looking at {len(photographs.album):,} photographs")
        _split(experiment, torch.tensor(photographs.parts()["training"].labels))  # too few are told before the work
        side, count = protocol.side or photographs.benchmark.side, _counting(progress, "photographs described")
        network = (protocol.backbone, weights, experiment.seed, device, keep)
        return described_photographs(photographs, side, protocol.fit, *network, count)
    count = _counting(progress, "photographs decoded")
    dataset = load_dataset(experiment.dataset, data_dir, protocol.side or None, protocol.fit, progress=count)
    if not protocol.backbone:
        return dataset
    progress.stage(f"describing {len(dataset.train) + len(dataset.test):,} images by {protocol.backbone}")
    return described(dataset, protocol.backbone, weights, experiment.seed, device, keep)


def _counting(progress: Progress, what: str) -> Callable[[int, int], None]:
    return lambda done, total: progress.stage(what, done, total)


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
    config = experiment.config() | {"versions": versions(), WEIGHTS_DIGEST: None}
    if dataset is None or not experiment.protocol.backbone:
        config[WEIGHTS_DIGEST] = experiment.protocol.weights_digest()
    if resume and out is not None and (out / "config.json").is_file():
        _check_weights(Run.open(out), experiment.protocol.weights, config[WEIGHTS_DIGEST])
    progress.stage(f"loading {experiment.dataset}")
    prepared = prepare(experiment, dataset or load_examples(experiment, data_dir, where, progress), where)
    method = build_method(experiment.method, **dataclasses.asdict(experiment.method_settings))
    encoder = encoder_of(experiment, tuple(prepared.data.inputs.shape[1:]))
    trainer = Trainer(
        encoder, method, prepared.data, experiment.training, experiment.seed, where, run=None, progress=progress
    )
    if out is not None:
        trainer.run = (Run.resume if resume else Run.create)(out, config)
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
        "skipped": len(prepared.skipped),
        "skipped_files": dict(islice(prepared.skipped.items(), SKIPPED_NAMED)),
        "guards": list(result.guards),
        "trust": result.trust,
        "seconds": round(result.seconds, 3),
        "device": where.type,
        "run": None if out is None else str(out),
    }
    if trainer.run is not None:
        keep_learned(trainer.run, experiment, prepared, trainer, result)
        trainer.run.write("result.json", outcome)
    return outcome


def keep_learned(
    run: Run, experiment: Experiment, prepared: Prepared, trainer: Trainer, result: TrainingResult
) -> None:
    """Write what ``semimetric.load`` needs: what the model is built of, and the examples with their embeddings."""
    protocol, inputs = experiment.protocol, prepared.data.inputs
    shape = tuple(inputs.shape[1:])  # of descriptors, where images have been described
    side = photograph_side(experiment.dataset, protocol.side)
    sight = Sight(side, protocol.fit, backbone_of(experiment, side)) if side else None
    kind: Kind = "photographs" if side else "images" if len(shape) == 3 else "vectors"
    network = (protocol.preprocess, protocol.encoder, "", protocol.backbone if side else "", side, protocol.fit)
    built = Built(kind, () if side else shape, shape, *network)
    model = Model(prepared.preprocess, result.encoder, result.metric, sight)
    embeddings = model.embed_scaled(inputs)
    labels = prepared.data.labels.cpu()
    learned = Learned(model, built, embeddings, labels, named_by(trainer, embeddings, labels))
    classes = tuple(prepared.class_names[number] for number in learned.posteriors.classes.tolist())
    write_learned(run, learned, Examples(prepared.names, experiment.dataset, classes))


def backbone_of(experiment: Experiment, side: int) -> nn.Module | None:
    """The frozen network that describes photographs, where there is one."""
    protocol = experiment.protocol
    if not protocol.backbone:
        return None
    return build_encoder(protocol.backbone, (3, side, side), experiment.seed, weights=protocol.weights_file())


def _check_weights(run: Run, weights: str, digest: str | None) -> None:
    """Refuse weights that are not those that the run was made with, before anything is computed with them."""
    known = run.config().get(WEIGHTS_DIGEST)
    if known is not None and digest is not None and digest != known:
        raise RunError(
            f"{run.path} was made with weights of SHA-256 {known}, and those in {weights} have {digest}. "
            "Use the weights that it was made with, or start again with another --out."
        )


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
    path: Path,
    data_dir: Path | None = None,
    device: str = "auto",
    components: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Score the best model of a run on the test set of its dataset; ``components`` keeps its largest dimensions.

    Pretrained weights are needed only where a frozen network describes the images: the run has all others.
    """
    if components is not None and components < 1:
        raise InputError(f"components must be at least 1, got {components}.")
    run = Run.open(path)
    experiment = Experiment.from_config(run.config())
    where = choose_device(device)
    if experiment.protocol.backbone:
        _check_weights(run, experiment.protocol.weights, experiment.protocol.weights_digest())
    dataset = load_examples(experiment, data_dir, where, progress)
    scaling, _ = run.read_tensors("preprocess.safetensors")
    inputs = apply_in_chunks(restore_preprocess(experiment.protocol.preprocess, scaling), dataset.test.inputs)
    tensors, state = run.read_tensors("model.safetensors")
    protocol, shape = experiment.protocol, tuple(inputs.shape[1:])
    try:
        encoder = rebuild_encoder(protocol.encoder, shape, under("encoder.", tensors), protocol.init)
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

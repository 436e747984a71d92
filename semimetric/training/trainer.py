"""Algorithm 1 for any method: partitions, metric step, encoder step, and the best model kept.

for every epoch:  embed the partition, ask the method for constraints
    metric_every = epoch:  encoder fixed, update the metric on the whole partition
    for every mini-batch:  embed it
        metric_every = batch:  encoder fixed, update the metric on the batch
        metric fixed, one optimiser step on the encoder
    score the model, keep it if it is the best so far, write a checkpoint
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from semimetric.encoders import encode, output_width
from semimetric.errors import InputError
from semimetric.evaluation import Spread, activity_warning, collapse_warning, decline_warning, measure_spread
from semimetric.methods import Method
from semimetric.metric import Metric
from semimetric.training.data import TrainingData, check_needs
from semimetric.training.progress import Progress, Silent
from semimetric.training.run import Run
from semimetric.training.schedule import PartitionSchedule
from semimetric.training.selection import Score, check_selectable, labels_score, validation_score
from semimetric.training.settings import TrainingSettings
from semimetric.training.step import TrainingStep, check_not_diverged

PROBE_SIZE = 2000
"""Examples on which the spread of the embedding is watched."""

SINGLE_POINT = 1e-12
"""A mean squared distance of unit vectors that is nothing but rounding: no graph can be built on it."""


@dataclass(frozen=True)
class Best:
    """The best model so far."""

    epoch: int
    score: Score
    tensors: dict[str, Tensor]


@dataclass(frozen=True)
class TrainingResult:
    """What training gives back; the encoder passed in carries the best weights."""

    encoder: nn.Module
    metric: Metric
    best_epoch: int
    epochs: int
    interrupted: bool
    seconds: float
    guards: tuple[str, ...]


class Trainer:
    """One training run. ``fit`` does it all; with a ``run`` it writes there and continues from what it finds."""

    def __init__(
        self,
        encoder: nn.Module,
        method: Method[Any],
        data: TrainingData,
        settings: TrainingSettings,
        seed: int = 0,
        device: torch.device | str = "cpu",
        run: Run | None = None,
        progress: Progress | None = None,
    ) -> None:
        if not isinstance(encoder, nn.Module):
            raise InputError(f"encoder must be a torch.nn.Module that returns (N, d), got {type(encoder).__name__}.")
        check_needs(method, data)
        check_selectable(settings.selection, data.labels, data.validation_inputs is not None)
        self.device = torch.device(device)
        self.data = data.to(self.device)
        self.encoder = encoder.to(self.device)
        self.method = method.to(self.device)
        self.settings = settings
        self.seed = seed
        self.run = run
        self.progress: Progress = progress or Silent()
        self.generator = torch.Generator().manual_seed(seed)
        width = output_width(self.encoder, self.data.inputs)
        self.metric = method.initial_metric(width, self.generator).to(self.device)
        self.optimizer = _build_optimizer(settings, [*self.encoder.parameters(), *self.method.parameters()])
        self.step = TrainingStep(
            self.encoder,
            self.method,
            self.optimizer,
            self.data.inputs,
            settings.metric_every == "batch",
            settings.lr > 0,
        )
        self.schedule = PartitionSchedule(
            data.unlabelled, settings.partition_size, settings.epochs_per_partition, self.generator
        )
        method.check_working_set(len(data.labelled), self.schedule.smallest())
        if self._spread().mean_distance < SINGLE_POINT:
            raise InputError(
                "the encoder gives all examples the same embedding before any training. Check its initialisation, and "
                "that the inputs are scaled."
            )
        self.epoch = 0
        self.seconds = 0.0
        self.best: Best | None = None
        self.start: Spread | None = None
        self.start_active: float | None = None
        self.declining = False
        self.warned = False
        self.collapsed = False
        self.guards: list[str] = []

    def fit(self) -> TrainingResult:
        """Train to the last epoch, or until interrupted, and load the best model into the encoder."""
        interrupted = False
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(self.seed)
            try:
                self._begin()
                while self.epoch < self.settings.epochs and not self.collapsed:
                    self._train_epoch()
            except KeyboardInterrupt:
                interrupted = True
            finally:
                self.progress.end()
                self._load_best()
        best_epoch = self.best.epoch if self.best else 0
        return TrainingResult(
            self.encoder, self.metric, best_epoch, self.epoch, interrupted, self.seconds, tuple(self.guards)
        )

    def _load_best(self) -> None:
        """Put the best model into the encoder; before the first score that is the model as it stands."""
        if self.best is not None:
            load_model(self.encoder, self.best.tensors)
            self.metric = Metric(self.best.tensors["metric.factor"]).to(self.device)

    def _begin(self) -> None:
        if self.run is not None and self.run.has("checkpoint.safetensors"):
            self._restore(self.run)
            self.progress.begin(self.settings.epochs, self.epoch)
            return
        self.progress.begin(self.settings.epochs, 0)
        self._finish_epoch({"epoch": 0}, time.perf_counter())

    def _train_epoch(self) -> None:
        began = time.perf_counter()
        epoch = self.epoch + 1
        self.progress.stage("graph")
        rows = torch.cat([self.data.labelled, self.schedule.for_epoch(epoch).to(self.device)])
        features = self._features(self.data.inputs[rows])
        constraints = self.method.constraints(features, self.data.labels[rows])
        record: dict[str, Any] = {"epoch": epoch} | self.method.statistics(self.metric, features, constraints)
        if self.data.classes is not None:
            record |= constraints.quality(self.data.classes[rows])
        if self.settings.metric_every == "epoch":
            self.metric = self.method.update_metric(self.metric, features, constraints)
        if self.settings.lr > 0 or self.settings.metric_every == "batch":
            self._train_batches(epoch, rows, constraints)
        record |= self.method.in_use()
        self.epoch = epoch
        self._finish_epoch(record, began)

    def _train_batches(self, epoch: int, rows: Tensor, constraints: Any) -> None:
        size = min(self.settings.batch_size, len(constraints))
        total = len(constraints) // size
        self.encoder.train()
        self.method.train()
        for done, batch in enumerate(constraints.minibatches(size, self.generator), start=1):
            self.metric = self.step(self.metric, rows[batch.nodes], batch)
            self.progress.batch(epoch, done, total)
        self.encoder.eval()
        self.method.eval()

    def _finish_epoch(self, record: dict[str, Any], began: float) -> None:
        """Watch for collapse, score, keep the best model, log and write a checkpoint."""
        spread = self._spread()
        score, scores = self._score()
        self._watch(spread, score, record.get("active_share"))
        record |= {"mean_distance": spread.mean_distance, "effective_rank": spread.effective_rank}
        record |= {f"selection_{name}": value for name, value in scores.items()}
        record |= self._report_guards()
        record["best"] = self.best is None or score > self.best.score
        if record["best"]:
            self._keep(Best(self.epoch, score, self._model_tensors()))
        record["seconds"] = time.perf_counter() - began
        self.seconds += record["seconds"]
        if self.run is not None:
            self.run.log(record)
            self._checkpoint(self.run)
        self.progress.epoch(record)

    def _spread(self) -> Spread:
        """Spread of the embedding of some examples, at the scale of an orthonormal metric."""
        rows = torch.cat([self.data.labelled, self.data.unlabelled])[:PROBE_SIZE]
        scale = self.metric.factor.square().sum() / self.metric.factor.shape[1]
        return measure_spread(self._embed(rows) / scale.sqrt())

    def _watch(self, spread: Spread, score: Score, active: float | None) -> None:
        """Say once that training is going wrong, and stop when there is nothing left to train on."""
        if self.start is None:
            self.start = spread
        if self.start_active is None:
            self.start_active = active
        declined = decline_warning(self.best.score[0], score[0]) if self.best and self.best.score else None
        messages = [
            collapse_warning(self.start, spread),
            declined if self.declining else None,
            None if active is None or self.start_active is None else activity_warning(self.start_active, active),
        ]
        self.declining = declined is not None
        message = next((message for message in messages if message), None)
        if message and not self.warned:
            self.warned = True
            self.progress.warn(f"epoch {self.epoch}: {message} The best model so far is kept; a smaller --lr helps.")
        self.collapsed = spread.mean_distance < SINGLE_POINT
        if self.collapsed:
            self.progress.warn(f"epoch {self.epoch}: all examples have the same embedding, so training stops here.")

    def _report_guards(self) -> dict[str, list[str]]:
        """The guards that bound in this epoch, for its record; each is said once in a run."""
        bound = self.method.take_guards()
        for name, sentence in bound.items():
            if name not in self.guards:
                self.guards.append(name)
                self.progress.warn(sentence)
        return {"guards": sorted(bound)} if bound else {}

    def _score(self) -> tuple[Score, dict[str, float]]:
        if self.settings.selection == "last":
            return (float(self.epoch),), {}
        if self.settings.selection == "validation":
            assert self.data.validation_inputs is not None
            assert self.data.validation_labels is not None
            embeddings = self.metric.transform(self._features(self.data.validation_inputs))
            judge, labels = validation_score, self.data.validation_labels
        else:
            rows = self.data.labelled
            embeddings = self._embed(rows)
            judge, labels = labels_score, self.data.labels[rows]
        if bool((embeddings == embeddings[0]).all()):
            return (0.0,), {}
        return judge(embeddings, labels)

    def _embed(self, rows: Tensor) -> Tensor:
        return self.metric.transform(self._features(self.data.inputs[rows]))

    def _features(self, inputs: Tensor) -> Tensor:
        features = encode(self.encoder, inputs)
        check_not_diverged(features)
        return features

    def _keep(self, best: Best) -> None:
        self.best = best
        if self.run is not None:
            state = {"epoch": best.epoch, "score": list(best.score)}
            self.run.write_tensors("model.safetensors", best.tensors, state)

    def _model_tensors(self) -> dict[str, Tensor]:
        return model_tensors(self.encoder, self.metric) | {
            f"method.{name}": tensor.detach().cpu().clone() for name, tensor in self.method.state_dict().items()
        }

    def _checkpoint(self, run: Run) -> None:
        assert self.start is not None
        tensors = self._model_tensors() | self.schedule.state()
        tensors |= {"generator": self.generator.get_state(), "torch_rng": torch.get_rng_state()}
        if self.device.type == "cuda":
            tensors["cuda_rng"] = torch.cuda.get_rng_state(self.device)
        tensors |= _optimizer_tensors(self.optimizer)
        state = {
            "epoch": self.epoch,
            "seconds": self.seconds,
            "start": [self.start.mean_distance, self.start.effective_rank],
            "start_active": self.start_active,
            "declining": self.declining,
            "warned": self.warned,
            "collapsed": self.collapsed,
            "guards": self.guards,
        }
        run.write_tensors("checkpoint.safetensors", tensors, state)

    def _restore(self, run: Run) -> None:
        tensors, state = run.read_tensors("checkpoint.safetensors")
        load_model(self.encoder, tensors)
        self.method.load_state_dict(_under("method.", tensors))
        self.metric = Metric(tensors["metric.factor"]).to(self.device)
        self.schedule.restore(tensors)
        self.generator.set_state(tensors["generator"])
        torch.set_rng_state(tensors["torch_rng"])
        if self.device.type == "cuda" and "cuda_rng" in tensors:
            torch.cuda.set_rng_state(tensors["cuda_rng"], self.device)
        _restore_optimizer(self.optimizer, tensors)
        self.start = Spread(*state.pop("start"))
        for name, value in state.items():
            setattr(self, name, value)
        best_tensors, best = run.read_tensors("model.safetensors")
        self.best = Best(best["epoch"], tuple(best["score"]), best_tensors)
        run.forget_after(self.epoch)


def model_tensors(encoder: nn.Module, metric: Metric) -> dict[str, Tensor]:
    """Encoder and metric as named tensors on the CPU."""
    tensors = {f"encoder.{name}": tensor.detach().cpu().clone() for name, tensor in encoder.state_dict().items()}
    return tensors | {"metric.factor": metric.factor.detach().cpu().clone()}


def load_model(encoder: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Load the encoder's part of ``model_tensors`` into ``encoder``."""
    encoder.load_state_dict(_under("encoder.", tensors))


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _build_optimizer(settings: TrainingSettings, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    if not parameters:
        if settings.lr > 0:
            raise InputError("the encoder has no parameters to train. Set lr to 0 to learn the metric alone.")
        parameters = [nn.Parameter(torch.zeros(()))]
    if settings.optimizer == "adam":
        on_gpu = any(parameter.is_cuda for parameter in parameters)
        return torch.optim.Adam(parameters, lr=settings.lr, weight_decay=settings.weight_decay, capturable=on_gpu)
    return torch.optim.SGD(parameters, lr=settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay)


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's per-parameter tensors under flat names; its numbers come from the settings."""
    state = optimizer.state_dict()["state"]
    return {
        f"optimizer.{parameter}.{name}": value
        for parameter, values in state.items()
        for name, value in values.items()
        if isinstance(value, Tensor)
    }


def _restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in _under("optimizer.", tensors).items():
        parameter, key = name.split(".", 1)
        state.setdefault(int(parameter), {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})

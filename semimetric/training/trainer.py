"""Algorithm 1 for any method: partitions, metric step, encoder step, selection of the best model.

for every epoch:  embed the partition and get constraints from the method
    metric_every = epoch:  encoder fixed, update the metric on the whole partition (if no loss uses it: at the end)
    for every mini-batch:  embed it
        metric_every = batch:  encoder fixed, update the metric on the batch
        metric fixed, one optimiser step on the encoder
    score the model, keep it if it is the best so far, write a checkpoint
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from semimetric.core import ranks
from semimetric.core.draws import drawing
from semimetric.core.errors import InputError
from semimetric.data.stored import Inputs, some_of
from semimetric.encoders import output_width
from semimetric.encoders.features import arranged, as_loaded, training_mode
from semimetric.evaluation import Spread
from semimetric.graph import Posteriors
from semimetric.methods import Method, PredictsClasses
from semimetric.training.average import average_of
from semimetric.training.checkpoint import load_trained, restore_checkpoint, trained_tensors, write_checkpoint
from semimetric.training.data import TrainingData, check_trainable, data_for
from semimetric.training.device import compiles
from semimetric.training.held_back import hold_back, why_none_is_held_back
from semimetric.training.metric_step import spread_of, updated_after_steps, updated_before_steps
from semimetric.training.optimizer import build_optimizer, learning_rate, set_learning_rate
from semimetric.training.progress import Progress, Silent
from semimetric.training.result import Best, TrainingResult
from semimetric.training.run import Run
from semimetric.training.schedule import PartitionSchedule
from semimetric.training.selection import Score, check_selectable, labels_score, validation_score
from semimetric.training.settings import TrainingSettings
from semimetric.training.step import TrainingStep, batched, check_not_diverged
from semimetric.training.together import agree, agreed_constraints, agreed_scores, finish_alone
from semimetric.training.watch import SINGLE_POINT, Watch
from semimetric.training.whole_batch import encode_together

PROBE_SIZE = 2000  # examples on which the spread of the embedding is measured


class Trainer:
    """One training run.

    Parameters
    ----------
    encoder : torch.nn.Module
        Network that returns (N, d). It is trained in place.
    method : Method
        Learning method, from ``build_method``.
    data : TrainingData
        Examples and labels.
    settings : TrainingSettings
        Settings of the training loop.
    seed : int
        Seed of all random numbers.
    device : torch.device or str
        Device to train on.
    run : Run or callable, optional
        Run folder, or a function that opens it, which is called when all arguments have been accepted. Checkpoints are
        written there, and training resumes from an existing one.
    progress : Progress, optional
        Receiver of progress events; by default only warnings are issued.
    """

    def __init__(
        self,
        encoder: nn.Module,
        method: Method[Any],
        data: TrainingData,
        settings: TrainingSettings,
        seed: int = 0,
        device: torch.device | str = "cpu",
        run: Run | Callable[[], Run] | None = None,
        progress: Progress | None = None,
    ) -> None:
        if not isinstance(encoder, nn.Module):
            raise InputError(f"encoder must be a torch.nn.Module that returns (N, d), got {type(encoder).__name__}.")
        data = data_for(method, data)
        check_trainable(method, settings)
        self.device = torch.device(device)
        self.data = data.to(self.device)
        self.encoder = arranged(encoder.to(self.device), settings.precision)
        self.method = method.to(self.device)
        self.settings = settings
        self.seed = seed
        self.progress: Progress = progress or Silent()
        self.generator = torch.Generator().manual_seed(seed)
        width = output_width(self.encoder, self.data.inputs)
        with drawing(seed, self.device, method):
            self.metric = method.initial_metric(width, self.generator, self._examples).to(self.device)
            method.on_fit_begin(self.data.inputs, self.data.labels, width, self.generator)
        self.method.to(self.device)
        self.optimizer = build_optimizer(settings, list(self.encoder.parameters()), list(self.method.parameters()))
        self.average = average_of(settings, self.encoder, self.method)
        self.step = self._build_step()
        self._probed = torch.cat([self.data.labelled, self.data.unlabelled])[:PROBE_SIZE]
        self.held_back = hold_back(method, settings, self.data, self.generator)
        check_selectable(settings.selection, data.labels[self.learned_rows().cpu()], data.validation_inputs is not None)
        sizes = (settings.partition_size, settings.epochs_per_partition)
        self.schedule = PartitionSchedule(data.unlabelled, *sizes, self.generator)
        method.check_working_set(len(data.labelled), self.schedule.smallest())
        if self._spread().mean_distance < SINGLE_POINT:
            raise InputError(
                "the encoder gives all examples the same embedding before any training. Check its initialisation, and "
                "that the inputs are scaled."
            )
        self.epoch, self.seconds = 0, 0.0
        self.best: Best | None = None
        self.watch = Watch(len(torch.unique(data.labels[data.labels >= 0])))
        self.guards: list[str] = []
        self.trust: dict[str, Any] | None = None
        self.mined_from: Tensor | None = None
        self._known: Tensor | None = None
        self._mined: Any = None
        self.run = ranks.on_first(run) if callable(run) else run

    def _build_step(self) -> TrainingStep:
        parts = (self.encoder, self.method, self.optimizer, self.data.inputs)
        update_metric, train_encoder = self.settings.metric_every == "batch", self.settings.lr > 0
        compiled = compiles(self.settings.compile, self.device, self.progress.warn)
        return TrainingStep(*parts, update_metric, train_encoder, self.average, self.settings.precision, compiled)

    def learned_rows(self) -> Tensor:
        """Rows whose labels training uses from the first epoch."""
        rows = self.data.labelled
        return rows if self.held_back is None else rows[~torch.isin(rows, self.held_back.rows)]

    def fit(self) -> TrainingResult:
        """Train to the last epoch, or until interrupted, and load the best model into the encoder.

        Returns
        -------
        TrainingResult
            The best encoder and metric, and how training went.
        """
        interrupted = False
        with drawing(self.seed, self.device, self.encoder, self.method) as self.method.draws:
            try:
                self._begin()
                while self.epoch < self.settings.epochs and not self.watch.collapsed and not self._out_of_patience():
                    self._train_epoch()
            except KeyboardInterrupt:
                interrupted = finish_alone()
            finally:
                self.progress.end()
                if self.best is not None:  # before the first score, the current model is kept
                    load_trained(self, self.best.tensors)
        model = (as_loaded(self.encoder), self.metric, self.best.epoch if self.best else 0)
        return TrainingResult(*model, self.epoch, interrupted, self.seconds, tuple(self.guards), self.trust)

    def _out_of_patience(self) -> bool:
        """Whether the best model is too many epochs ago."""
        patience, best = self.settings.patience, self.best
        return 0 < patience <= (self.epoch - best.epoch if best else 0)

    def _begin(self) -> None:
        if ranks.of_first(self.run is not None and self.run.has("checkpoint.safetensors")):
            restore_checkpoint(self, self.run)
            self._known = None
            self.progress.begin(self.settings.epochs, self.epoch)
            return
        if self.run is not None and self.run.has("metrics.jsonl"):
            self.run.forget_after(-1)
        if self.average:
            self.average.begin()
        if self.settings.hold_back and self.held_back is None and self.settings.epochs:
            self.progress.warn(why_none_is_held_back(self.settings.hold_back, self.data.suggested))
        self.progress.begin(self.settings.epochs, 0)
        self._finish_epoch({"epoch": 0}, time.perf_counter())

    def _train_epoch(self) -> None:
        began = time.perf_counter()
        epoch = self.epoch + 1
        self.progress.stage("graph")
        rows = self._working_set(epoch)
        self.method.on_epoch_begin(epoch)
        labels = self.held_back.labels(epoch) if self.held_back else self.data.labels
        features = self._features_now(rows)
        constraints = agreed_constraints(self._constraints(epoch, features, labels[rows]))
        record: dict[str, Any] = {"epoch": epoch} | self.method.statistics(self.metric, features, constraints)
        record |= self._judge(epoch, rows, features, constraints)
        if self.data.classes is not None:
            record |= constraints.quality(self.data.classes[rows])
        self.metric = updated_before_steps(self, features, constraints)
        if self.settings.lr > 0 or self.settings.metric_every == "batch":
            self._train_batches(epoch, rows, constraints)
            record |= self.step.take_loss()
        self.metric = updated_after_steps(self, rows, constraints)
        record |= self.method.on_epoch_end()
        self.epoch = epoch
        self._finish_epoch(record, began)

    def _constraints(self, epoch: int, features: Tensor, labels: Tensor) -> Any:
        """The constraints of an epoch: new ones, or those of the first epoch on this partition."""
        if self.settings.renew == "epoch":
            return self.method.constraints(features, labels)
        if self.mined_from is None or self.schedule.is_first(epoch):
            self.mined_from, self._mined = features, None
        if self._mined is None:  # new, or lost with the process that mined them
            self._mined = self.method.constraints(self.mined_from, labels)
        return self._mined

    def _working_set(self, epoch: int) -> Tensor:
        """Rows of the examples of an epoch."""
        if self.method.follows_examples:
            return torch.arange(len(self.data.inputs), device=self.device)
        return torch.cat([self.data.labelled, self.schedule.for_epoch(epoch).to(self.device)])

    def _judge(self, epoch: int, rows: Tensor, features: Tensor, constraints: Any) -> dict[str, float]:
        """The accuracy on held-out labels until training sees them; the last one is the estimate for pseudo-labels."""
        if self.held_back is None or epoch > self.held_back.until + 1:
            return {}
        assert isinstance(self.method, PredictsClasses)
        if epoch <= self.held_back.until:
            return {"held_back_accuracy": self.held_back.accuracy(self.method.posteriors(constraints), rows)}
        found = self.method.posteriors(self.method.constraints(features, self.held_back.hidden()[rows]))
        self.trust = {"epoch": epoch - 1} | self.held_back.judge(found, rows)
        return {"held_back_accuracy": self.trust["accuracy"]}

    def posteriors(self) -> Posteriors | None:
        """Class posteriors of every example with the current model; None if the method predicts no classes."""
        if not isinstance(self.method, PredictsClasses):
            return None
        features = self._features(self.data.inputs)
        return self.method.posteriors(self.method.constraints(features, self.data.labels))

    def _train_batches(self, epoch: int, rows: Tensor, constraints: Any) -> None:
        size = min(self.settings.batch_size, len(constraints))
        total = self.settings.passes * (len(constraints) // size)
        with self._weights_of_steps():
            passes = (constraints.minibatches(size, self.generator) for _ in range(self.settings.passes))
            done = 0
            groups = batched(chain.from_iterable(passes), self.step.at_once(size))
            for batches, examples in self.step.examples(groups, rows):
                for views, batch in zip(self.step.views(examples, len(batches)), batches, strict=True):
                    if not done or epoch <= self.settings.warmup:  # after it once an epoch
                        set_learning_rate(self.optimizer, learning_rate(self.settings, epoch, (done + 1) / total))
                    self.metric = self.step(self.metric, views, batch)
                    done += 1
                    self.progress.batch(epoch, done, total)

    @contextmanager
    def _weights_of_steps(self) -> Iterator[None]:
        """Training mode, with the trained weights instead of their average."""
        swap = self.average.swap if self.average else lambda: None
        training_mode(self.encoder, self.settings.freeze_norm)
        self.method.train()
        swap()
        try:
            yield
        finally:
            swap()
            self.encoder.eval()
            self.method.eval()

    def _finish_epoch(self, record: dict[str, Any], began: float) -> None:
        """Check for collapse, score, keep the best model, log and write a checkpoint."""
        self.metric = self.method.trained_metric(self.metric)
        agree(self)
        spread, score, scores = agreed_scores(self._spread(), self._score())
        self._watch(spread, score, record.get("active_share"))
        record |= {"mean_distance": spread.mean_distance, "effective_rank": spread.effective_rank}
        record |= {f"selection_{name}": value for name, value in scores.items()}
        record |= {"signs": list(self.watch.signs)} if self.watch.signs else {}
        record |= self._report_guards()
        record["best"] = self.best is None or score > self.best.score or self.best.epoch == self.epoch
        if record["best"]:  # also if a process was killed after writing this model and before its checkpoint
            self._keep(Best(self.epoch, score, trained_tensors(self)))
        record["seconds"] = time.perf_counter() - began
        self.seconds += record["seconds"]
        if self.run is not None:
            self.run.log(record)
            write_checkpoint(self, self.run)
        self.progress.epoch(record)

    def _spread(self) -> Spread:
        """Spread of some examples."""
        self._known = self._features(some_of(self.data.inputs, self._probed))
        return spread_of(self.method, self.metric, self._known)

    def _features_now(self, rows: Tensor) -> Tensor:
        """Features of a working set; if the spread was measured on all examples, those that it was measured on."""
        if len(self._probed) < len(self.data.inputs):
            return self._features(some_of(self.data.inputs, rows))
        known = self._features(some_of(self.data.inputs, self._probed)) if self._known is None else self._known
        self._known = None  # the encoder is about to change
        return known[self._probed.argsort()[rows]]

    def _watch(self, spread: Spread, score: Score, active: float | None) -> None:
        """Warn once if training goes wrong; training stops if all embeddings are the same."""
        best = self.best.score[0] if self.best and self.best.score else None
        for message in self.watch.look(spread, best, score[0] if score else None, active):
            kept = "" if self.settings.selection == "last" else " The best model so far is kept."
            advice = " A smaller --lr helps." if self.settings.lr > 0 else ""
            self.progress.warn(f"epoch {self.epoch}: {message}{kept}{advice}")
        if self.watch.collapsed:
            self.progress.warn(f"epoch {self.epoch}: all examples have the same embedding, so training stops here.")

    def _report_guards(self) -> dict[str, list[str]]:
        """The safeguards that were active in this epoch; each one is reported once in a run."""
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
            rows = self.learned_rows()
            embeddings = self._embed(rows)
            judge, labels = labels_score, self.data.labels[rows]
        if bool((embeddings == embeddings[0]).all()):
            return (0.0,), {}
        return judge(embeddings, labels)

    def _embed(self, rows: Tensor) -> Tensor:
        return self.metric.transform(self._features(some_of(self.data.inputs, rows)))

    def _features(self, inputs: Inputs) -> Tensor:
        features = encode_together(self.encoder, inputs, self.settings.precision)
        check_not_diverged(features)
        return features

    def _examples(self) -> tuple[Tensor, Tensor]:
        return self._features(self.data.inputs), self.data.labels

    def _keep(self, best: Best) -> None:
        self.best = best
        if self.run is not None:
            state = {"epoch": best.epoch, "score": list(best.score)}
            self.run.write_tensors("model.safetensors", best.tensors, state)

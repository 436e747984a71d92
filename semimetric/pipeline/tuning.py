"""What is tuned: the settings that are tried for each method, and how they score on validation data alone."""

from __future__ import annotations

import dataclasses
import hashlib
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from semimetric.core.errors import InputError
from semimetric.core.space import Range, Space
from semimetric.data import apply_in_chunks, build_preprocess
from semimetric.encoders import encode
from semimetric.methods import METHODS, build_method
from semimetric.metric import Metric
from semimetric.pipeline.choice import settings_for
from semimetric.pipeline.experiment import encoder_of, load_examples, plan, prepare, pretrain_encoder
from semimetric.pipeline.learn import Task, encoder_for, learn
from semimetric.pipeline.linear import GuardWarning
from semimetric.pipeline.study import Problem, Report, Trial
from semimetric.training import Progress, Silent, Trainer, TrainingData
from semimetric.training.data import data_for
from semimetric.training.selection import validation_score

WITHHELD_SHARE = 0.15
"""Of a benchmark's training data so much judges, where its settings withhold nothing themselves."""

HIDDEN_SHARE = 1 / 3
FEWEST_HIDDEN = 2
"""Of the labels of each class so many are hidden to judge by, at least two: one has no other to be near to."""


def space_for(method: str, given: Iterable[str], examples: int, network: bool = True) -> Space:
    """What is tried of a method on so many examples; settings that are given stay as they are."""
    fixed = {*given} if network else {*given, "lr"}
    whole = METHODS[method].space
    space = {name: values for name, values in whole.items() if name not in fixed}
    if not space:
        raise InputError(
            f"nothing is left to choose: of method {method!r} the settings {', '.join(whole)} are tried, and "
            "all of them are given. Leave one out."
        )
    neighbors = space.get("k")
    return space | {"k": neighbors.up_to(examples - 1)} if isinstance(neighbors, Range) else space


@dataclass(frozen=True)
class Judge:
    """Examples whose labels training never sees: inputs (N, ...) as the encoder takes them, labels (N,)."""

    inputs: Tensor
    labels: Tensor

    def score(self, encoder: nn.Module, metric: Metric) -> float:
        """The mean of NMI and Recall@1; nothing for an embedding that is a single point."""
        return score_of(metric.transform(encode(encoder, self.inputs)), self.labels)


def score_of(embeddings: Tensor, labels: Tensor) -> float:
    """The mean of NMI and Recall@1 of embeddings (N, l); nothing where they are a single point."""
    if bool((embeddings == embeddings[0]).all()):
        return 0.0
    return validation_score(embeddings, labels)[0][0]


def benchmark_problem(
    dataset: str,
    method: str,
    seed: int,
    given: dict[str, Any],
    device: torch.device,
    data_dir: Path | None = None,
    progress: Progress | None = None,
) -> Problem:
    """A method on a benchmark dataset, judged by training data that is withheld: the settings' share, else 15 %.

    The test set is left out before anything is prepared.
    """
    first = plan(dataset, method, seed, **given)
    share = first.protocol.validation_share or WITHHELD_SHARE
    withholding = dataclasses.replace(first, protocol=dataclasses.replace(first.protocol, validation_share=share))
    examples = load_examples(withholding, data_dir, device, progress)
    whole = prepare(withholding, dataclasses.replace(examples, test=examples.test.subset([])), device).data
    assert whole.validation_inputs is not None
    assert whole.validation_labels is not None
    judge = Judge(whole.validation_inputs, whole.validation_labels)
    data = whole if first.training.selection == "validation" else TrainingData(whole.inputs, whole.labels)
    space, start = _around(space_for(method, given, len(data.inputs)), first.method_settings, first.training)

    def run(settings: dict[str, Any], report: Report) -> float:
        experiment = plan(dataset, method, seed, **given | settings)

        def trainer(progress: Progress) -> Trainer:
            learner = build_method(method, **dataclasses.asdict(experiment.method_settings))
            encoder = encoder_of(experiment, tuple(data.inputs.shape[1:]))
            built = Trainer(encoder, learner, data, experiment.training, seed, device, progress=progress)
            pretrain_encoder(experiment, built)
            return built

        return judged(trainer, judge, report)

    about = {"dataset": dataset, "method": method, "given": given}
    return Problem(space, start, about, run)


def own_problem(task: Task, given: dict[str, Any], device: torch.device) -> Problem:
    """A method on a user's own data, judged by a third of the labels of each class, which are hidden.

    Their examples stay, unlabelled, as others are that ``fit`` learns from.
    """
    rows = hidden_rows(task.labels, torch.Generator().manual_seed(task.seed))
    linear = task.choice.encoder == "none"
    seen = dataclasses.replace(task, labels=task.labels.index_fill(0, rows, -1), changes=_with_width(task))
    in_force = settings_for(task.method, task.material(), seen.labels, seen.changes, linear)
    space, start = _around(space_for(task.method, given, len(task.labels), network=not linear), *in_force)
    run = _linear_trial(seen, task.labels, rows, device) if linear else _network_trial(seen, task.labels, rows, device)
    return Problem(space, start, {"data": _digest(task), "method": task.method, "given": given}, run)


def _with_width(task: Task) -> dict[str, Any]:
    """The changes with the width of the embedding under the name that methods with a network know."""
    if task.n_components is None or task.choice.encoder == "none":
        return task.changes
    return task.changes | {"components": task.n_components}


def _linear_trial(seen: Task, labels: Tensor, rows: Tensor, device: torch.device) -> Trial:
    """A metric on the vectors themselves, learned once and scored once."""

    def run(settings: dict[str, Any], report: Report) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GuardWarning)
            learned = learn(dataclasses.replace(seen, changes=seen.changes | settings), device)
        return score_of(learned.embeddings[rows], labels[rows])

    return run


def _network_trial(seen: Task, labels: Tensor, rows: Tensor, device: torch.device) -> Trial:
    scaled = apply_in_chunks(build_preprocess(seen.choice.preprocess, seen.inputs), seen.inputs)
    data_for(build_method(seen.method), TrainingData(scaled, labels))  # what fit would refuse is refused here
    data, judge = TrainingData(scaled, seen.labels), Judge(scaled[rows].to(device), labels[rows].to(device))

    def run(settings: dict[str, Any], report: Report) -> float:
        built, training = settings_for(seen.method, seen.material(), seen.labels, seen.changes | settings)

        def trainer(progress: Progress) -> Trainer:
            learner = build_method(seen.method, **dataclasses.asdict(built))
            encoder = encoder_for(seen.choice, tuple(seen.inputs.shape[1:]), seen.seed)
            return Trainer(encoder, learner, data, training, seen.seed, device, progress=progress)

        return judged(trainer, judge, report)

    return run


def judged(build: Callable[[Progress], Trainer], judge: Judge, report: Report) -> float:
    """Train, report the score of every epoch, and return that of the model that is kept."""
    listener = _Reporting(judge, report)
    listener.trainer = build(listener)
    result = listener.trainer.fit()
    if result.interrupted:
        raise KeyboardInterrupt
    return judge.score(result.encoder, result.metric)


class _Reporting(Silent):
    """Scores the model after every epoch."""

    trainer: Trainer

    def __init__(self, judge: Judge, report: Report) -> None:
        self._judge = judge
        self._report = report

    def epoch(self, record: dict[str, Any]) -> None:
        """Report the score of an epoch; before the first there is nothing to compare."""
        if record["epoch"]:
            self._report(record["epoch"], self._judge.score(self.trainer.encoder, self.trainer.metric))

    def warn(self, message: str) -> None:
        """A trial may go wrong; its score says so."""


def hidden_rows(labels: Tensor, generator: torch.Generator) -> Tensor:
    """Rows of a third of the labels of each class, at least two, which leaves as many; other classes hide none."""
    drawn = []
    for name in torch.unique(labels[labels >= 0]):
        rows = (labels == name).nonzero().flatten()
        count = max(FEWEST_HIDDEN, round(HIDDEN_SHARE * len(rows)))
        if len(rows) >= count + FEWEST_HIDDEN:
            drawn.append(rows[torch.randperm(len(rows), generator=generator)[:count]])
    if len(drawn) < 2:
        raise InputError(
            f"tuning judges by hidden labels and needs {2 * FEWEST_HIDDEN} labels in each of two classes at least. "
            "Label more examples, or keep the default settings."
        )
    return torch.cat(drawn).sort().values


def _around(space: Space, *settings: Any) -> tuple[Space, dict[str, Any]]:
    """The space, stretched to hold the values that settings have, and those values.

    A learning rate of 0 freezes the network, and no other is tried then.
    """
    values = {name: value for kind in settings for name, value in dataclasses.asdict(kind).items()}
    start = {name: values[name] for name in space if (name, values[name]) != ("lr", 0.0)}
    tried = {name: space[name] for name in start}
    return {n: v.with_value(start[n]) if isinstance(v, Range) else v for n, v in tried.items()}, start


def _digest(task: Task) -> str:
    """Of the examples and labels: a study is continued on the same data alone."""
    digest = hashlib.sha256(str(tuple(task.inputs.shape)).encode())
    for tensor in (task.inputs, task.labels):
        digest.update(tensor.cpu().contiguous().numpy().data)
    return digest.hexdigest()

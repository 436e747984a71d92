"""Tuning problems: which settings are tried, and how they score on held-out training data."""

from __future__ import annotations

import dataclasses
import hashlib
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from semimetric.core.errors import InputError
from semimetric.core.space import Range, Space
from semimetric.data.stored import Inputs, pieces_of, some_of
from semimetric.encoders import encode
from semimetric.methods import METHODS
from semimetric.metric import Metric
from semimetric.pipeline.data import FitData, benchmark_data, load_examples
from semimetric.pipeline.fit import build_trainer, fit, prepare, pretrain_encoder
from semimetric.pipeline.linear import GuardWarning
from semimetric.pipeline.own import OwnData, OwnRequest
from semimetric.pipeline.plan import Plan
from semimetric.pipeline.resolve import resolve_benchmark, resolve_own
from semimetric.pipeline.study import Problem, Report, Scored, Trial
from semimetric.training import Progress, Silent, Trainer, TrainingData
from semimetric.training.data import data_for
from semimetric.training.selection import validation_score

WITHHELD_SHARE = 0.15
"""Share of a benchmark's training data that is held out, where its settings hold out nothing."""

HIDDEN_SHARE = 1 / 3
FEWEST_HIDDEN = 2
"""Share of the labels of each class that is hidden on own data, and the fewest: one alone has no neighbour."""

GROUPS = 10
"""Groups of the held-out labels; the score without each of them tells how uncertain it is."""

Replan = Callable[..., Plan]
"""Settings to the plan that they make."""


def space_for(method: str, given: Iterable[str], examples: int, network: bool = True) -> Space:
    """The search space of a method on so many examples, without the settings that are given."""
    known = METHODS[method].space
    fixed = {*given} if network else {*given, "lr"}
    space = {name: values for name, values in known.items() if name not in fixed}
    if not space:
        raise InputError(
            f"nothing is left to choose: of method {method!r} the settings {', '.join(known)} are tried, and all of "
            "them are given. Leave one out."
        )
    neighbors = space.get("k")
    return space | {"k": neighbors.up_to(examples - 1)} if isinstance(neighbors, Range) else space


@dataclass(frozen=True)
class Judge:
    """Held-out examples: scaled inputs (N, ...) and labels (N,)."""

    inputs: Inputs
    labels: Tensor

    def embeddings(self, encoder: nn.Module, metric: Metric) -> Tensor:
        """Embeddings (N, l)."""
        return metric.transform(encode(encoder, self.inputs))


def score_of(embeddings: Tensor, labels: Tensor) -> float:
    """The mean of NMI and Recall@1 of embeddings (N, l); 0 for an embedding that is a single point."""
    if bool((embeddings == embeddings[0]).all()):
        return 0.0
    return validation_score(embeddings, labels)[0][0]


def scored(embeddings: Tensor, labels: Tensor) -> Scored:
    """The score of embeddings (N, l), and the scores without each of ten groups with a share of every class."""
    groups = torch.empty_like(labels)
    groups[labels.argsort(stable=True)] = torch.arange(len(labels), device=labels.device) % min(GROUPS, len(labels))
    kept = [(groups != group).nonzero().flatten() for group in groups.unique()]
    return Scored(
        score_of(embeddings, labels), tuple(score_of(embeddings[rows], labels[rows]) for rows in kept if len(rows) > 1)
    )


def benchmark_problem(
    dataset: str,
    method: str,
    seed: int,
    given: dict[str, Any],
    device: torch.device,
    data_dir: Path | None = None,
    progress: Progress | None = None,
) -> Problem:
    """A method on a benchmark, scored on held-out training data: the settings' share, else 15 %.

    The test set is left out before anything is prepared.
    """

    def replan(**settings: Any) -> Plan:
        return resolve_benchmark(dataset, method, seed, **given | settings)

    first = replan()
    assert first.split is not None
    share = first.split.validation_share or WITHHELD_SHARE
    withholding = dataclasses.replace(first, split=dataclasses.replace(first.split, validation_share=share))
    data = benchmark_data(withholding, load_examples(withholding, data_dir, device, progress))
    whole = prepare(withholding, dataclasses.replace(data, test=None), device).training
    assert whole.validation_inputs is not None
    assert whole.validation_labels is not None
    judge = Judge(whole.validation_inputs, whole.validation_labels)
    seen = whole if first.training.selection == "validation" else TrainingData(whole.inputs, whole.labels)
    space, start = _around(space_for(method, given, len(seen.inputs)), first)
    about = {"dataset": dataset, "method": method, "given": given}
    return Problem(space, start, about, _network_trial(replan, seen, judge, device))


def own_problem(request: OwnRequest, own: OwnData, device: torch.device) -> Problem:
    """A method on a user's own data, scored on a third of the labels of each class, which are hidden.

    Their examples stay in the training data as unlabelled ones.
    """
    data, given = own.data, request.settings
    rows = hidden_rows(data.labels, torch.Generator().manual_seed(request.seed))
    seen = dataclasses.replace(data, labels=data.labels.index_fill(0, rows, -1))

    def replan(**settings: Any) -> Plan:
        asked = (request.method, request.seed, request.fine_tune)
        return resolve_own(data.kind, data.shape, seen.labels, device, *asked, **given | settings)

    first = replan()
    space = space_for(request.method, given, len(data.labels), network=not first.is_linear)
    space, start = _around(space, first)
    if first.is_linear:
        run = _linear_trial(replan, seen, data.labels, rows, device)
    else:
        training = prepare(first, seen, device).training
        labels = data.labels.to(device)
        data_for(METHODS[first.method](), dataclasses.replace(training, labels=labels))  # refuses what fit would refuse
        run = _network_trial(replan, training, Judge(some_of(training.inputs, rows), labels[rows]), device)
    about = {"data": _digest(data), "method": request.method, "given": given}
    return Problem(space, start, about, run)


def _linear_trial(replan: Replan, seen: FitData, labels: Tensor, rows: Tensor, device: torch.device) -> Trial:
    """A metric on the vectors themselves, learned once and scored once."""

    def run(settings: dict[str, Any], report: Report) -> Scored:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GuardWarning)
            fitted = fit(replan(**settings), seen, device)
        return scored(fitted.embeddings[rows], labels[rows])

    return run


def _network_trial(replan: Replan, data: TrainingData, judge: Judge, device: torch.device) -> Trial:
    """Train, report the score of every epoch, and return that of the model that is kept."""

    def run(settings: dict[str, Any], report: Report) -> Scored:
        plan, listener = replan(**settings), _Reporting(judge, report)
        trainer = listener.trainer = build_trainer(plan, data, device, listener)
        pretrain_encoder(plan, trainer)
        result = trainer.fit()
        if result.interrupted:
            raise KeyboardInterrupt
        return scored(judge.embeddings(result.encoder, result.metric), judge.labels)

    return run


class _Reporting(Silent):
    """Reports the score of the model after every epoch."""

    trainer: Trainer

    def __init__(self, judge: Judge, report: Report) -> None:
        self._judge = judge
        self._report = report

    def epoch(self, record: dict[str, Any]) -> None:
        """Score an epoch from the first on."""
        if record["epoch"]:
            embeddings = self._judge.embeddings(self.trainer.encoder, self.trainer.metric)
            self._report(record["epoch"], score_of(embeddings, self._judge.labels))

    def warn(self, message: str) -> None:
        """Say nothing: the score of a trial shows what went wrong."""


def hidden_rows(labels: Tensor, generator: torch.Generator) -> Tensor:
    """Rows of a third of the labels of each class, at least two. A class with fewer than four labels hides none."""
    drawn = []
    for name in torch.unique(labels[labels >= 0]):
        rows = (labels == name).nonzero().flatten()
        count = max(FEWEST_HIDDEN, round(HIDDEN_SHARE * len(rows)))
        if len(rows) >= count + FEWEST_HIDDEN:
            drawn.append(rows[torch.randperm(len(rows), generator=generator)[:count]])
    if len(drawn) < 2:
        raise InputError(
            f"tuning scores hidden labels, and needs at least {2 * FEWEST_HIDDEN} labels in each of two classes. "
            "Label more examples, or keep the default settings."
        )
    return torch.cat(drawn).sort().values


def _around(space: Space, plan: Plan) -> tuple[Space, dict[str, Any]]:
    """The space, stretched to the values in force, and those values.

    A learning rate of 0 freezes the network; then no other is tried.
    """
    values = dataclasses.asdict(plan.training) | dataclasses.asdict(plan.method_settings)
    start = {name: values[name] for name in space if (name, values[name]) != ("lr", 0.0)}
    tried = {name: space[name] for name in start}
    return {n: v.with_value(start[n]) if isinstance(v, Range) else v for n, v in tried.items()}, start


def _digest(data: FitData) -> str:
    """SHA-256 of inputs and labels: a study continues on the same data only."""
    digest = hashlib.sha256(str(tuple(data.inputs.shape)).encode())
    for tensor in chain(pieces_of(data.inputs), [data.labels]):
        digest.update(tensor.cpu().contiguous().numpy().data)
    return digest.hexdigest()

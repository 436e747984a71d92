"""What a report says of a run: its examples, predictions beside true classes, queries with their hits, and lists."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from semimetric.core.errors import InputError
from semimetric.evaluation.audit import (
    HeldOut,
    Pairs,
    Ranked,
    held_out_predictions,
    likely_errors,
    near_duplicates,
    outliers,
)
from semimetric.graph import nearest_neighbors
from semimetric.model.fitted import GRAPH_NEIGHBORS, posteriors_of
from semimetric.model.folder import LoadedRun, load_run
from semimetric.serve.embed import new_examples
from semimetric.serve.evaluate import Evaluation, evaluate_collection
from semimetric.serve.pictures import Pictures, open_pictures
from semimetric.training import Progress, Run

HITS = 8
"""Hits that are shown for a query."""

QUERIES = 4
"""Queries of each kind: drawn at random, best, worst."""

LISTED = 24
"""Entries of the lists of likely errors, near-duplicates and outliers."""


class Judgement(NamedTuple):
    """Predictions beside true classes.

    Attributes
    ----------
    truth, predicted : (n,) numbers of ``classes``
    probability : (n,) of the predicted class
    classes : names; those that the run does not know come last
    about : in a sentence, which examples these are and how far to trust the numbers
    known : classes that the run knows, if not all; accuracy and calibration are of their examples alone
    """

    truth: Tensor
    predicted: Tensor
    probability: Tensor
    classes: tuple[str, ...]
    about: str
    known: int | None = None

    def of_known_classes(self) -> tuple[Tensor, Tensor, Tensor]:
        """Truth, prediction and probability of the examples whose class the run knows."""
        kept = self.truth < (len(self.classes) if self.known is None else self.known)
        return self.truth[kept], self.predicted[kept], self.probability[kept]

    @property
    def accuracy(self) -> float | None:
        """Share of right predictions; None without an example of a known class."""
        truth, predicted, _ = self.of_known_classes()
        return float((truth == predicted).double().mean()) if len(truth) else None


class Query(NamedTuple):
    """A query of a report: why it was chosen, its row, and the rows of its hits, the nearest first."""

    kind: str
    row: int
    hits: list[int]


@dataclass(frozen=True)
class RunFacts:
    """A loaded run with everything that its report shows.

    Parameters
    ----------
    name : of the run's folder
    loaded : the run
    result, history : ``result.json`` and the lines of ``metrics.jsonl``
    pictures : what the training examples look like
    evaluation : scores on labelled examples that the run was not trained on; they judge in place of the run's own
    data : the name of these examples
    """

    name: str
    loaded: LoadedRun
    result: dict[str, Any]
    history: list[dict[str, Any]]
    pictures: Pictures
    evaluation: Evaluation | None = None
    data: str = ""

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the examples, or their numbers."""
        count = len(self.loaded.fitted.labels)
        return self.loaded.fitted.examples.names or tuple(map(str, range(count)))

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """Names of all classes; the numbers below are places among them."""
        return tuple(str(name) for name in self.loaded.fitted.examples.classes)

    @cached_property
    def predicted(self) -> Tensor:
        """Predicted class numbers (N,) of the training examples; 0 if no class is known."""
        found = self.loaded.fitted.posteriors
        if len(found.classes) == 0:
            return torch.zeros(len(self.loaded.fitted.labels), dtype=torch.int64)
        return found.shares.argmax(1)

    @cached_property
    def known(self) -> Tensor:
        """Known class numbers (N,): the true ones of a benchmark, else the labels; -1 for none or another class."""
        truth = self.pictures.truth
        return self.labels if truth is None else self.loaded.fitted.columns_of(truth)

    @cached_property
    def labels(self) -> Tensor:
        """Class numbers (N,) of the labels; -1 for none."""
        return self.loaded.fitted.columns_of(self.loaded.fitted.labels)

    def named_only(self, value: Any) -> Any:
        """A value in which files are told by their names, without the folders of this machine."""
        if not isinstance(value, str):
            return value
        source = self.loaded.fitted.examples.source
        told = value.replace(source, Path(source).name) if Path(source).is_absolute() else value
        return Path(told).name if Path(told).is_absolute() else told

    def label(self, row: int) -> str:
        """The known class of an example, else the predicted one with a question mark."""
        known = int(self.known[row])
        if known >= 0:
            return self.classes[known]
        return f"{self.classes[int(self.predicted[row])]}?" if self.classes else ""

    def same_class(self, row: int, other: int) -> bool | None:
        """Whether two examples have the same class; None where that of one is not known."""
        classes = int(self.known[row]), int(self.known[other])
        return None if min(classes) < 0 else classes[0] == classes[1]

    @cached_property
    def neighbors(self) -> Tensor:
        """Nearest other examples (N, k)."""
        count = len(self.loaded.fitted.embeddings)
        return nearest_neighbors(self.loaded.fitted.embeddings, min(GRAPH_NEIGHBORS, count - 1))

    @cached_property
    def held_out(self) -> HeldOut | None:
        """Predictions of the labels, each without itself; None if no class has two labels."""
        fitted = self.loaded.fitted
        try:
            return held_out_predictions(lambda known: posteriors_of(fitted.embeddings, known), self.labels)
        except InputError:
            return None

    @cached_property
    def judgement(self) -> Judgement | None:
        """Predictions beside what is known: of ``data``, of hidden labels of a benchmark, or of the labels."""
        if self.evaluation is not None:
            return _judged(self.evaluation, self.data)
        fitted = self.loaded.fitted
        hidden = ((fitted.labels < 0) & (self.known >= 0)).nonzero().flatten()
        if self.pictures.truth is not None and len(hidden) and self.classes:
            probability = fitted.posteriors.shares[hidden].amax(1)
            about = f"{len(hidden):,} training examples whose label was hidden from the method."
            return Judgement(self.known[hidden], self.predicted[hidden], probability, self.classes, about)
        held_out = self.held_out
        if held_out is None:
            return None
        about = (
            f"{len(held_out.rows):,} labels, each predicted without itself from the final embedding. The embedding was "
            "trained with these labels, so that this is too favourable. Name labelled data that the run has not seen "
            "for a fair judgement: semimetric report RUN DATA."
        )
        truth = self.labels[held_out.rows]
        return Judgement(truth, held_out.predicted, held_out.probability, self.classes, about)

    @cached_property
    def errors(self) -> HeldOut | None:
        """Labels that are likely wrong."""
        if self.held_out is None:
            return None
        return HeldOut(*(column[:LISTED] for column in likely_errors(self.held_out, self.labels)))

    @cached_property
    def duplicates(self) -> Pairs:
        """Pairs that are nearly the same."""
        return Pairs(*(column[:LISTED] for column in near_duplicates(self.loaded.fitted.embeddings, self.neighbors)))

    @cached_property
    def outliers(self) -> Ranked:
        """Examples that are far from all others."""
        return outliers(self.loaded.fitted.embeddings, LISTED, self.neighbors)

    @cached_property
    def queries(self) -> list[Query]:
        """Queries drawn at random, then those whose hits agree most and least with what is known of them."""
        pool = (self.known >= 0).nonzero().flatten()
        pool = torch.arange(len(self.known)) if len(pool) == 0 else pool
        draw = torch.randperm(len(pool), generator=torch.Generator().manual_seed(0))
        chosen = [("random", int(row)) for row in pool[draw[:QUERIES]]]
        if bool((self.known >= 0).any()):
            agreement = self._agreement(pool)
            order = agreement.sort(descending=True, stable=True).indices
            chosen += [("best", int(row)) for row in pool[order[:QUERIES]]]
            chosen += [("worst", int(row)) for row in pool[order.flip(0)[:QUERIES]]]
        return [Query(kind, row, self.neighbors[row, :HITS].tolist()) for kind, row in dict.fromkeys(chosen)]

    def _agreement(self, rows: Tensor) -> Tensor:
        """Mean posterior of each row's known class among its hits; the known classes of hits count where known."""
        fitted, hits = self.loaded.fitted, self.neighbors[rows, :HITS]
        if self.pictures.truth is not None:
            return (self.known[hits] == self.known[rows][:, None]).double().mean(1)
        return fitted.posteriors.shares[hits, self.known[rows][:, None]].mean(1)


class Labelled(NamedTuple):
    """Labelled examples to judge a run by, as ``evaluate`` takes them: where they are, and where their labels are."""

    source: Path
    labels: Path | None = None
    label_column: str | None = None
    id_column: str | None = None


def read_facts(
    path: Path,
    data: Labelled | None = None,
    data_dir: Path | None = None,
    source: Path | None = None,
    progress: Progress | None = None,
) -> RunFacts:
    """The facts of a run folder.

    Parameters
    ----------
    path : the run
    data : labelled examples to judge it by
    data_dir : folder that holds benchmark data
    source : folder or table with the examples, for a run that was not made here
    progress : is told how far the reading is
    """
    loaded = load_run(path, "cpu")
    run = Run(path)
    found, name = None, ""
    if data is not None:
        examples = new_examples(loaded, data.source, data.label_column, data.id_column, progress, data.labels)
        found, name = evaluate_collection(loaded, examples, progress), data.source.name
    pictures = open_pictures(loaded, data_dir, source)
    return RunFacts(path.resolve().name, loaded, loaded.fitted.facts, run.history(), pictures, found, name)


def _judged(found: Evaluation, name: str) -> Judgement:
    """The predictions of an evaluation."""
    about = " ".join([f"{found.examples:,} labelled examples of {name}.", *found.notes])
    return Judgement(*found.answers, (*found.predicted, *found.unknown), about, len(found.predicted))


def settings_of(config: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The settings of a run by group, as texts and numbers."""
    plan = config.get("plan", config)
    groups: dict[str, dict[str, Any]] = {"run": {}}
    for name, value in plan.items():
        if isinstance(value, dict):
            groups[name] = value
        elif value not in (None, ""):
            groups["run"][name] = value
    return {name: group for name, group in groups.items() if group}

"""Scores of a fitted model on examples whose labels are known, beside what its inputs alone can do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semimetric.core.errors import InputError
from semimetric.data import Collection
from semimetric.evaluation import RECALLS, calibration_error, map_at_r, nmi, recall_at_k
from semimetric.model.fitted import WIDEST_INPUT, FittedModel
from semimetric.model.folder import LoadedRun
from semimetric.serve.embed import check_any, embed_chunks, together
from semimetric.training.progress import Progress

SAME_EXAMPLE = 1e-6
"""Distance to a training example, relative to the spread of the embedding, below which an example is the same."""

Scores = dict[str, float | None]

_RETRIEVED = (*(f"recall@{k}" for k in RECALLS), "map@r", "nmi")


@dataclass(frozen=True)
class Mistake:
    """An example with a wrong name: its own class, the predicted one, and the probabilities of both."""

    name: str
    label: str
    predicted: str
    probability: float
    label_probability: float


class Answers(NamedTuple):
    """Class numbers (n,), predicted ones (n,) and their probabilities (n,), of the n examples with a label.

    Numbers are places in the names of the run's classes, followed by those that it does not know.
    """

    truth: Tensor
    predicted: Tensor
    probability: Tensor


@dataclass(frozen=True)
class Evaluation:
    """What a fitted model gets right on labelled examples.

    Attributes
    ----------
    examples : number of examples that have a label
    scores : by judge: "run", "inputs" (what the encoder gets: frozen features, columns or pixels) and "logistic"
        (logistic regression on the inputs, with the labels of the run)

        - ``accuracy`` and ``balanced_accuracy``, on the classes that the run knows. Of "inputs" it is that of the
          nearest labelled example.
        - ``recall@1`` to ``recall@8``, ``map@r`` and ``nmi``, of the examples among each other, on all classes.
        - ``calibration_error``, the mean gap between probability and accuracy.
        - ``unknown_auroc`` of "run", with classes unknown to it: how well its score of being of no known class ranks
          their examples before those of known classes.

        None is a score that is not defined.
    classes : names of the R rows of ``confusion``: the classes of the examples, those unknown to the run last
    predicted : names of the C columns of ``confusion``: the classes of the run
    confusion : (R, C) counts of examples by their class and the predicted one
    unknown : classes of the examples for which the run has no label
    mistakes : examples with a wrong name, the most confident first
    notes : what limits the scores, a sentence each
    answers : the predictions, one by one; not part of ``as_dict``

    A run without labels names no classes: its scores are those of search and clusters, and ``predicted``, the columns
    of ``confusion``, ``mistakes`` and ``answers`` are empty.
    """

    examples: int
    scores: dict[str, Scores]
    classes: tuple[str, ...]
    predicted: tuple[str, ...]
    confusion: NDArray[np.int64]
    unknown: tuple[str, ...]
    mistakes: tuple[Mistake, ...]
    notes: tuple[str, ...]
    answers: Answers

    def as_dict(self) -> dict[str, Any]:
        """All values but the single answers in a JSON-serialisable dictionary."""
        values = {name: value for name, value in vars(self).items() if name not in ("answers", "confusion", "mistakes")}
        return values | {
            "confusion": self.confusion.tolist(),
            "mistakes": [asdict(mistake) for mistake in self.mistakes],
        }

    def confusions(self) -> list[tuple[str, str, int]]:
        """Class, predicted class and count of the wrong names, the most frequent first."""
        found = [
            (true, named, int(self.confusion[row, column]))
            for row, true in enumerate(self.classes)
            for column, named in enumerate(self.predicted)
            if true != named and self.confusion[row, column]
        ]
        return sorted(found, key=lambda line: -line[2])


def evaluate_examples(
    fitted: FittedModel, embeddings: Tensor, inputs: Tensor | None, labels: Sequence[Any], names: Sequence[str]
) -> Evaluation:
    """Score a model on N examples.

    Parameters
    ----------
    embeddings : (N, l)
    inputs : (N, d) scaled inputs as rows; None where they are too wide to compare with
    labels : N, the true classes as they are written; None is unlabelled
    names : N
    """
    kept = [row for row, label in enumerate(labels) if label is not None]
    if not kept:
        raise InputError("no example has a label, so there is nothing to score by. Give labels of some examples.")
    known = tuple(class_text(name) for name in fitted.examples.classes)
    truth = [class_text(labels[row]) for row in kept]
    unknown = tuple(sorted({*truth} - {*known}))
    everyone = {name: number for number, name in enumerate((*known, *unknown))}
    numbers = torch.tensor([everyone[name] for name in truth])
    points, rows = embeddings[kept], None if inputs is None else inputs[kept]
    shares = fitted.probabilities(points) if known else points.new_zeros(len(points), 0)
    scores = {"run": _named(shares, numbers, calibrated=True) | _retrieval(points, numbers)}
    if rows is not None and not known:
        scores["inputs"] = _named(shares, numbers, calibrated=False) | _retrieval(rows, numbers)
    elif rows is not None and fitted.labelled_inputs is not None:
        scores |= _baselines(fitted, rows, numbers)
    if rows is not None and fitted.unknown is not None:
        scores["run"]["unknown_auroc"] = _unknown_auroc(fitted.unknown.scores(rows), numbers >= len(known))
    answers = _answers(shares, numbers)
    confusion = np.zeros((len(everyone), len(known)), dtype=np.int64)
    np.add.at(confusion, (answers.truth.numpy(), answers.predicted.numpy()), 1)
    there = numbers.unique().numpy()
    return Evaluation(
        len(kept),
        scores,
        tuple((*known, *unknown)[row] for row in there),
        known,
        confusion[there],
        unknown,
        _mistakes(answers, shares, [names[row] for row in kept], (*known, *unknown)),
        tuple(_notes(fitted, points, len(labels), numbers, unknown, "inputs" in scores)),
        answers,
    )


def evaluate_collection(loaded: LoadedRun, collection: Collection, progress: Progress | None = None) -> Evaluation:
    """Score a run on a collection; what cannot be read is left out, and a note says how much."""
    labels = dict(zip(collection.names, collection.labels, strict=True))
    if not any(label is not None for label in collection.labels):
        raise InputError(
            "no example has a label, so there is nothing to score by. Put photographs into a sub-folder for each "
            "class, or list them with --labels FILE; give a table a column of labels, and name it with label_column; "
            "put a .cls file beside each photograph of a .tar archive."
        )
    pieces = list(embed_chunks(loaded, collection, progress))
    embedded = together(pieces, collection.skipped)
    check_any(embedded)
    rows = [piece.inputs for piece in pieces if piece.inputs is not None]
    inputs = torch.cat(rows) if rows else None
    truth = [labels[name] for name in embedded.names]
    found = evaluate_examples(loaded.fitted, embedded.embeddings, inputs, truth, embedded.names)
    if not embedded.skipped:
        return found
    return replace(found, notes=(*found.notes, f"{len(embedded.skipped)} examples cannot be read and are not scored."))


def class_text(value: Any) -> str:
    """The text of a class, so that 1, 1.0 and "1" are the same."""
    return str(int(value)) if isinstance(value, float | np.floating) and float(value).is_integer() else str(value)


def _named(shares: Tensor, numbers: Tensor, calibrated: bool) -> Scores:
    """Accuracy of the likeliest class on examples of the C known classes; ``shares`` are (N, C)."""
    known = numbers < shares.shape[1]
    if not bool(known.any()):
        return {"accuracy": None, "balanced_accuracy": None, "calibration_error": None}
    best = shares[known].max(1)
    right = best.indices == numbers[known]
    of_classes = [float(right[numbers[known] == number].double().mean()) for number in numbers[known].unique()]
    return {
        "accuracy": float(right.double().mean()),
        "balanced_accuracy": float(np.mean(of_classes)),
        "calibration_error": calibration_error(right, best.values) if calibrated else None,
    }


def _unknown_auroc(scores: Tensor, unknown: Tensor) -> float | None:
    from sklearn.metrics import roc_auc_score

    if bool(unknown.all()) or not bool(unknown.any()):
        return None
    return float(roc_auc_score(unknown.numpy(), scores.numpy()))


def _retrieval(points: Tensor, numbers: Tensor) -> Scores:
    """Recall@K, MAP@R and NMI of examples among each other; None where they are not defined."""
    classes, counts = numbers.unique(return_counts=True)
    several = len(classes) > 1
    ks = [k for k in RECALLS if k < len(points)] if several else []
    found = recall_at_k(points, numbers, ks) if ks else {}
    recalls: Scores = {f"recall@{k}": found.get(k) for k in RECALLS}
    paired = several and int(counts.max()) > 1
    return recalls | {
        "map@r": map_at_r(points, numbers) if paired else None,
        "nmi": nmi(points, numbers) if several else None,
    }


def _baselines(fitted: FittedModel, rows: Tensor, numbers: Tensor) -> dict[str, Scores]:
    """The scores of the inputs alone, and of logistic regression on them."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    assert fitted.labelled_inputs is not None
    labelled, classes = fitted.labelled_inputs.double(), fitted.posteriors.classes
    columns = torch.searchsorted(classes, fitted.labels[fitted.labels >= 0][: len(labelled)])  # added ones come last
    nearest = torch.cat([torch.cdist(part, labelled).argmin(1) for part in rows.double().split(1024)])
    alike = torch.nn.functional.one_hot(columns[nearest], len(classes)).double()
    found = {"inputs": _named(alike, numbers, calibrated=False) | _retrieval(rows, numbers)}
    if len(classes) > 1:
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)).fit(
            labelled.numpy(), columns.numpy()
        )
        shares = torch.from_numpy(model.predict_proba(rows.double().numpy()))
        found["logistic"] = _named(shares, numbers, calibrated=True) | dict.fromkeys(_RETRIEVED)
    return found


def _answers(shares: Tensor, numbers: Tensor) -> Answers:
    """The likeliest class of each example; nothing if the run knows no class."""
    if shares.shape[1] == 0:
        return Answers(numbers[:0], numbers[:0], shares.new_zeros(0))
    best = shares.max(1)
    return Answers(numbers, best.indices, best.values)


def _mistakes(answers: Answers, shares: Tensor, names: Sequence[str], classes: Sequence[str]) -> tuple[Mistake, ...]:
    truth, predicted, probability = answers
    wrong = (predicted != truth).nonzero().flatten().tolist()
    found = [
        Mistake(
            names[row],
            classes[int(truth[row])],
            classes[int(predicted[row])],
            float(probability[row]),
            float(shares[row, truth[row]]) if truth[row] < shares.shape[1] else 0.0,
        )
        for row in wrong
    ]
    return tuple(sorted(found, key=lambda mistake: -mistake.probability))


def _notes(
    fitted: FittedModel, points: Tensor, given: int, numbers: Tensor, unknown: Sequence[str], compared: bool
) -> Sequence[str]:
    notes = []
    if given > len(numbers):
        notes.append(f"{given - len(numbers)} examples without a label are not scored.")
    if not fitted.examples.classes:
        notes.append(
            "The run was fitted without labels, so it names no classes. The scores are of search and clusters."
        )
        if len(unknown) < 2:
            notes.append("Recall@K, MAP@R and NMI need examples of two classes; these are all of one.")
    elif unknown:
        count = int((numbers >= len(fitted.examples.classes)).sum())
        some = ", ".join(unknown[:3]) + (", ..." if len(unknown) > 3 else "")
        notes.append(
            f"{count} examples are of classes for which the run has no label ({some}). Accuracy and calibration are "
            "of the others."
        )
    nearest = fitted.nearest(points, 1)
    spread = float((fitted.embeddings - fitted.embeddings.mean(0)).square().sum(1).mean().sqrt())
    same = nearest.distances[:, 0] <= SAME_EXAMPLE * spread
    if bool(same.any()):
        labelled = int((fitted.labels[nearest.rows[same, 0]] >= 0).sum())
        notes.append(
            f"{int(same.sum())} examples are among those that the run was trained on, {labelled} of them with a label. "
            "The scores on these say nothing of new examples."
        )
    if not compared:
        notes.append(
            "There is no comparison with the inputs alone, because the run does not hold them. Runs on own data hold "
            f"those of up to {WIDEST_INPUT:,} numbers an example."
        )
    return notes

"""Figures of a run for notebooks and reports. Each function returns a matplotlib figure (extra ``figures``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import torch
from torch import Tensor

from semimetric.core.arrays import as_tensor, check_features
from semimetric.core.checks import LARGEST
from semimetric.core.errors import InputError
from semimetric.evaluation import measure_spread, wilson_interval
from semimetric.reporting.canvas import CLASS_COLORS, CURVE_COLORS, GREY, NOTE, grid, page, styled
from semimetric.reporting.figures import Curve, Panel, curves_figure, maps_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = npt.NDArray[Any]

BINS = 10
_EDGES = [100 * place / (2 * BINS) for place in range(2 * BINS + 1)]  # of histograms, in per cent
MOST_CLASSES = 20
"""Classes of a confusion matrix."""

QUIET = ("epoch", "best", "seconds", "partition")
"""Values of the log that are no curves."""

FIRST = ("training_loss", "selection_nmi", "selection_recall@1", "held_back_accuracy")
"""The first curves."""


TITLES = {
    "selection_nmi": "NMI for model selection",
    "selection_recall@1": "Recall@1 for model selection",
    "held_back_accuracy": "Held-out accuracy",
    "mean_distance": "Mean squared distance",
    "confidence": "Mean confidence",
    "coverage@0.9": "Share with confidence ≥ 0.9",
    "head_agreement": "Head agrees with consensus",
    "active_share": "Share of violated constraints",
    "told_upright": "Share predicted upright",
}
"""Titles of curves, where the name of the logged value does not say it."""


def plot_curves(histories: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """Everything that one or several runs logged per epoch: shares in per cent, losses, spread.

    Parameters
    ----------
    histories : mapping of str to sequence of dict
        The lines of ``metrics.jsonl`` by the name of the run.
    """
    logged = (name for lines in histories.values() for line in lines for name in line if name not in QUIET)
    names = sorted(dict.fromkeys(logged), key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))
    panels = []
    for name in names:
        curves = [_logged(title, lines, name) for title, lines in histories.items()]
        kept = [curve for curve in curves if curve is not None]
        if kept:
            panels.append((TITLES.get(name, name.replace("_", " ").capitalize()), kept))
    if not panels:
        raise InputError("the runs have logged nothing that could be drawn. Train for at least one epoch.")
    figure = curves_figure(panels[:9], "Epoch")
    for axes, (_, drawn) in zip(figure.axes, panels, strict=False):
        values = {value for curve in drawn for value in curve.y}
        if len(values) == 1 and 0 <= min(values) <= 1:  # a share that does not change
            axes.set_ylim(-0.05, 1.05)
    return figure


AFTER = (
    *("training_loss", "mean_distance", "effective_rank", "selection_"),
    *("skipped_batches", "dissimilar_weight", "graph_term_kept"),
)
"""Beginnings of the names of logged values that an epoch leaves; all others are measured before its training."""


def _logged(title: str, lines: Sequence[Mapping[str, Any]], name: str) -> Curve | None:
    """The curve of one logged number over the epochs after which it was measured; None if it is not there."""
    earlier = 0 if name.startswith(AFTER) else 1
    found = [(line["epoch"] - earlier, line[name]) for line in lines if "epoch" in line and _is_number(line.get(name))]
    return Curve(title, [e for e, _ in found], [value for _, value in found]) if found else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST


def plot_map(points: Any, labels: Any, class_names: Sequence[str], title: str = "", note: str = "") -> Figure:
    """A map of embedded examples; of more than ten classes the nine largest have a colour of their own.

    Parameters
    ----------
    points : (N, 2) array
        Places of the examples.
    labels : (N,) int array
        Class numbers; -1 is unlabelled.
    class_names : sequence of str
        The name of each class number.
    title, note : str
        Lines above and below the map.
    """
    numbers = as_tensor(labels, "labels").long()
    sizes = torch.bincount(numbers[numbers >= 0], minlength=len(class_names))
    present = [int(n) for n in sizes.argsort(descending=True, stable=True) if sizes[n] > 0]
    room = len(CLASS_COLORS) - int(bool((numbers < 0).any()))
    own = sorted(present[: room if len(present) <= room else room - 1])
    names = [str(class_names[number]) for number in own]
    shown = torch.full_like(numbers, -1)
    for place, number in enumerate(own):
        shown[numbers == number] = place
    others = (numbers >= 0) & (shown < 0)
    for which, name in ((others, f"{len(present) - len(own)} other classes"), (numbers < 0, "unlabelled")):
        if bool(which.any()):
            shown[which] = len(names)
            names.append(name)
    if not names:
        raise InputError("a map needs at least one example. Give some.")
    places = as_tensor(points, "points").double().numpy()
    return maps_figure([[Panel(title, places, shown.numpy())]], names, note)


@styled()
def plot_calibration(truth: Any, predicted: Any, probability: Any) -> Figure:
    """How often predictions of each probability are right, with 95 % intervals, and how many there are.

    Parameters
    ----------
    truth, predicted : (n,) int arrays
        True and predicted classes.
    probability : (n,) array
        Probability of the predicted class.
    """
    right = as_tensor(truth, "truth") == as_tensor(predicted, "predicted")
    chances = as_tensor(probability, "probability").double()
    bins = (chances * BINS).long().clamp(0, BINS - 1)
    figure, (left, middle) = grid(2, 3.0, 2)
    left.plot([0, 100], [0, 100], color=GREY, linestyle="--", linewidth=1, label="perfect")
    for number in bins.unique().tolist():
        inside = bins == number
        total, count = int(inside.sum()), int(right[inside].sum())
        low, high = wilson_interval(count, total)
        x, y = 100 * float(chances[inside].mean()), 100 * count / total
        bar = [[max(0.0, y - 100 * low)], [max(0.0, 100 * high - y)]]
        left.errorbar([x], [y], yerr=bar, color=CURVE_COLORS[0], marker="o", capsize=2.5, elinewidth=1)
    left.set(xlabel="Probability, per cent", ylabel="Right, per cent", xlim=(0, 101), ylim=(0, 103))
    left.legend(loc="upper left")
    parts = [100 * chances[right].numpy(), 100 * chances[~right].numpy()]
    middle.hist(parts, _EDGES, stacked=True, color=[CURVE_COLORS[0], CURVE_COLORS[1]], label=["right", "wrong"])
    middle.set(xlabel="Probability, per cent", ylabel="Examples")
    middle.legend(loc="upper left")
    return figure


@styled()
def plot_confidence(confidence: Any, labels: Any) -> Figure:
    """How many unlabelled examples have which confidence.

    Parameters
    ----------
    confidence : (N,) array
        From 0 to 1.
    labels : (N,) int array
        -1 is unlabelled.
    """
    values = as_tensor(confidence, "confidence").double()[as_tensor(labels, "labels") < 0]
    figure, (axes,) = grid(1, 2.4)
    axes.hist(100 * values.numpy(), _EDGES, color=CURVE_COLORS[0])
    axes.set(xlabel="Confidence, per cent", ylabel="Unlabelled examples")
    return figure


@styled()
def plot_confusion(truth: Any, predicted: Any, class_names: Sequence[str]) -> Figure:
    """True classes in rows, predicted ones in columns, in per cent of a row; of many classes the most confused.

    Parameters
    ----------
    truth, predicted : (n,) int arrays
        True and predicted classes.
    class_names : sequence of str
        The name of each class number.
    """
    table, shown, counts = confusion_shares(truth, predicted, len(class_names))
    names = [str(class_names[number]) for number in shown]
    figure = page(min(7.0, 1.6 + 0.3 * len(names)))
    axes = figure.add_subplot()
    axes.imshow(table, cmap="Blues", vmin=0, vmax=100)
    axes.grid(False)
    axes.set_xticks(range(len(names)), names, rotation=60, ha="right")
    axes.set_yticks(range(len(names)), [f"{name} ({counts[n]})" for n, name in zip(shown, names, strict=True)])
    axes.set(xlabel="Predicted", ylabel="True (examples)")
    for down, row in enumerate(table):
        for across, value in enumerate(row):
            if value >= 0.5:
                axes.text(across, down, f"{value:.0f}", ha="center", va="center", fontsize=8, color=_on_blue(value))
    return figure


def _on_blue(value: float) -> str:
    return "white" if value > 55 else "black"


def confusion_shares(truth: Any, predicted: Any, classes: int) -> tuple[Array, list[int], list[int]]:
    """Per cent of each true class by predicted class, the class numbers shown, and the examples of every class.

    Of more than 20 classes, those with the most mistakes are shown.
    """
    true, named = as_tensor(truth, "truth").long(), as_tensor(predicted, "predicted").long()
    counts = torch.zeros(classes, classes, dtype=torch.float64)
    counts.index_put_((true, named), torch.ones(len(true), dtype=torch.float64), accumulate=True)
    present = ((counts.sum(1) > 0) | (counts.sum(0) > 0)).nonzero().flatten()
    wrong = (counts.sum(1) + counts.sum(0) - 2 * counts.diagonal())[present]
    most = wrong.sort(descending=True, stable=True).indices[:MOST_CLASSES]
    shown = present[most].sort().values if len(present) > MOST_CLASSES else present
    shares = 100 * counts / counts.sum(1, keepdim=True).clamp_min(1)
    return shares[shown][:, shown].numpy(), shown.tolist(), counts.sum(1).long().tolist()


@styled()
def plot_spectrum(embeddings: Any) -> Figure:
    """Share of the variance in each principal direction, and the effective rank.

    Parameters
    ----------
    embeddings : (N, l) array
        The embedded examples.
    """
    points = check_features(embeddings, "embeddings").double()
    shares = spectrum_of(points)
    rank = measure_spread(points).effective_rank
    figure, (left, right) = grid(2, 2.6, 2)
    numbers = range(1, len(shares) + 1)
    left.bar(numbers, 100 * shares.numpy(), color=CURVE_COLORS[0])
    right.plot(numbers, 100 * shares.cumsum(0).numpy(), color=CURVE_COLORS[0])
    for axes, label in ((left, "Variance, per cent"), (right, "Sum of variance, per cent")):
        axes.axvline(rank, color=CURVE_COLORS[1], linestyle="--", linewidth=1)
        axes.set(xlabel="Principal direction", ylabel=label)
    _rank_note(left, rank)
    return figure


def _rank_note(axes: Axes, rank: float) -> None:
    axes.text(0.97, 0.93, f"effective rank {rank:.1f}", transform=axes.transAxes, ha="right", va="top", **NOTE)


def spectrum_of(points: Tensor) -> Tensor:
    """Shares of the variance of (N, l) points by principal direction, the largest first."""
    squares = torch.linalg.svdvals(points - points.mean(0)).square()
    shares: Tensor = squares / squares.sum().clamp_min(torch.finfo(torch.float64).tiny)
    return shares

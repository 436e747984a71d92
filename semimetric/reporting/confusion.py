"""The confusion of classes as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semimetric.reporting.canvas import WIDTH, page, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_NAMED = 60
"""Classes, at most, whose names and counts stand in the picture."""


@styled()
def confusion_figure(confusion: Any, classes: tuple[str, ...], predicted: tuple[str, ...]) -> Figure:
    """A picture of counts (R, C): a row for each class, a column for each predicted one, darker for a larger share.

    Parameters
    ----------
    confusion : (R, C) counts
    classes, predicted : names of the rows and of the columns
    """
    import numpy as np

    counts = np.asarray(confusion)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    figure = page(min(1.5 * WIDTH, 2.0 + 0.3 * len(classes)))
    axes = figure.add_subplot()
    axes.grid(visible=False)
    axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto")
    axes.set(xlabel="predicted class", ylabel="class")
    if max(counts.shape) > MOST_NAMED:
        return figure
    axes.set_xticks(range(len(predicted)), predicted, rotation=90)
    axes.set_yticks(range(len(classes)), classes)
    for row, column in zip(*np.nonzero(counts), strict=True):
        color = "white" if shares[row, column] > 0.5 else "black"
        axes.text(column, row, str(counts[row, column]), ha="center", va="center", color=color, fontsize=7)
    return figure

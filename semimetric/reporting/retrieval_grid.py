"""Figures of queries and their hits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from semimetric.core.errors import InputError
from semimetric.reporting.canvas import GREY, NOTE, WIDTH, page, styled, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = npt.NDArray[Any]

RIGHT, WRONG = "#009E73", "#D55E00"
"""Bluish green and vermilion of Okabe and Ito."""


@dataclass(frozen=True)
class Shown:
    """A query or a hit.

    Attributes
    ----------
    image : array or None
        (H, W) or (H, W, 3), from 0 to 1 or uint8. None: the name is written instead.
    name : str
        Its class.
    right : bool or None
        Whether a hit has the class of the query. None: it has no frame.
    """

    image: Array | None
    name: str
    right: bool | None = None


@dataclass(frozen=True)
class RetrievalRow:
    """What one method finds for a query, best hit first."""

    method: str
    query: Shown
    hits: Sequence[Shown]


def _name_lines(shown: Shown, width: float) -> list[str]:
    """Lines of a name that fit into ``width`` inches, with spaces for underscores."""
    return wrapped(shown.name.replace("_", " "), width)


def _show(axes: Axes, shown: Shown, width: float) -> None:
    """Draw an image or a name that is ``width`` inches wide; frame, dashes and mark tell right from wrong."""
    axes.set(xticks=[], yticks=[], anchor="N")
    if shown.image is None:
        axes.set_facecolor("#F4F4F4")
        axes.text(0.5, 0.5, "\n".join(_name_lines(shown, width - 0.05)), ha="center", va="center", fontsize=8)
    else:
        axes.imshow(shown.image, cmap="gray", vmin=0, vmax=255 if shown.image.dtype == np.uint8 else 1)
    color = GREY if shown.right is None else RIGHT if shown.right else WRONG
    line, thick = ("--" if shown.right is False else "-"), (0.8 if shown.right is None else 1.8)
    axes.spines[:].set(visible=True, color=color, linestyle=line, linewidth=thick)
    if shown.right is not None:
        box = {"boxstyle": "circle,pad=0.1", "facecolor": "white", "edgecolor": color, "linewidth": 0.8}
        place: dict[str, Any] = {"transform": axes.transAxes, "ha": "center", "va": "center", "fontsize": 8}
        axes.text(1, 1, "✓" if shown.right else "✗", color=color, bbox=box, **place)


def _height(shown: Shown, width: float) -> float:
    """Inches that an image or a name takes, ``width`` inches wide."""
    if shown.image is None:
        return max(width, 0.15 * len(_name_lines(shown, width - 0.05)) + 0.15)
    return width * min(1.0, float(shown.image.shape[0] / shown.image.shape[1]))


@styled()
def retrieval_figure(blocks: Sequence[Sequence[RetrievalRow]], note: str = "") -> Figure:
    """Hits of several methods for a few queries; right ones have a green frame, wrong ones a dashed red one.

    Parameters
    ----------
    blocks : sequence of sequence of RetrievalRow
        The rows of each query, one for each method. The query of the first row is drawn.
    note : str
        A line below the figure.
    """
    from matplotlib.lines import Line2D

    if not blocks or not all(blocks) or not all(row.hits for block in blocks for row in block):
        raise InputError("each query needs a method, and each method a hit. Give them.")
    side = min(0.95, 5.75 / max(len(row.hits) for block in blocks for row in block) - 0.1)
    steps = [max(_height(hit, side) for row in block for hit in row.hits) + 0.35 for block in blocks]
    asked = [_height(b[0].query, 1) + 0.35 + 0.15 * len(_name_lines(b[0].query, 1.1)) for b in blocks]
    heights = [max(step * len(b), query) + 0.1 for step, query, b in zip(steps, asked, blocks, strict=True)]
    lines = wrapped(note, WIDTH - 0.2) if note else []
    total = sum(heights) + 0.15 * len(lines) + 0.1
    figure = page(total, layout=None)

    def cell(left: float, up: float, shown: Shown, width: float, high: float) -> Axes:
        axes = figure.add_axes((left / WIDTH, (up - 0.28 - high) / total, width / WIDTH, high / total))
        _show(axes, shown, width)
        return axes

    top = total
    for block, step, height in zip(blocks, steps, heights, strict=True):
        if top < total:
            figure.add_artist(Line2D([0.01, 0.99], [top / total, top / total], color="#BBBBBB", linewidth=0.8))
        axes = cell(0.1, top, block[0].query, 1, _height(block[0].query, 1))
        figure.text(0.6 / WIDTH, (top - 0.17) / total, "Query", ha="center", fontsize=8)
        if block[0].query.image is not None:
            axes.set_xlabel("\n".join(_name_lines(block[0].query, 1.1)), fontsize=8)
        for number, row in enumerate(block):
            figure.text(1.25 / WIDTH, (top - number * step - 0.17) / total, row.method, fontsize=8)
            for place, hit in enumerate(row.hits):
                cell(1.25 + place * (side + 0.1), top - number * step, hit, side, step - 0.35)
        top -= height
    figure.text(0.1 / WIDTH, 0.08 / total, "\n".join(lines), va="bottom", **NOTE)
    return figure

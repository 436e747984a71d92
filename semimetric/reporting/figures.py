"""Figures of curves, maps and times; curves of the paper are drawn in black."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from semimetric.core.errors import InputError
from semimetric.reporting.canvas import (
    CLASS_COLORS,
    CURVE_COLORS,
    GREY,
    MARKER_AREAS,
    MARKERS,
    WIDTH,
    finish,
    grid,
    page,
    styled,
    wrapped,
    write_figure,
)
from semimetric.reporting.retrieval_grid import RetrievalRow, Shown, retrieval_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "Curve",
    "Panel",
    "RetrievalRow",
    "Scaling",
    "Shown",
    "angle_figure",
    "curves_figure",
    "maps_figure",
    "retrieval_figure",
    "scaling_figure",
    "write_figure",
]

Array = npt.NDArray[Any]

DASHES = ((0, (5, 2)), (0, (6, 2, 1, 2)), (0, (2, 1.5)), (0, (8, 2, 1, 2, 1, 2)))
"""Line styles of published curves."""


@dataclass(frozen=True)
class Curve:
    """A measured or published curve.

    Attributes
    ----------
    label : str
        Its name in the legend.
    x, y : sequence of float
        The points.
    spread : sequence of float
        Standard deviation over seeds at each point. Empty: none is drawn.
    paper : bool
        Whether the paper published it.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float] = ()
    paper: bool = False

    def __post_init__(self) -> None:
        if not len(self.x) == len(self.y) > 0 or len(self.spread) not in (0, len(self.y)):
            raise InputError(
                f"curve {self.label!r} has {len(self.x)} x, {len(self.y)} y and {len(self.spread)} spread values. "
                "Give as many y as x, at least one, and as many spread values or none."
            )

    @property
    def name(self) -> str:
        """The label; curves of the paper say so."""
        return f"{self.label} (paper)" if self.paper else self.label


@dataclass(frozen=True)
class Panel:
    """A map of embedded examples: a title, (N, 2) points and the (N,) class numbers."""

    title: str
    points: Array
    labels: Array

    def __post_init__(self) -> None:
        if self.points.ndim != 2 or self.points.shape[1] != 2 or self.labels.shape != self.points.shape[:1]:
            raise InputError(
                f"map {self.title!r} has points of shape {self.points.shape} and labels of shape {self.labels.shape}. "
                "Give (N, 2) points and (N,) labels."
            )


@dataclass(frozen=True)
class Scaling:
    """Seconds that a step takes at each size, the fitted exponent, and the exponent that the paper states."""

    step: str
    variable: str
    sizes: Sequence[int]
    seconds: Sequence[float]
    exponent: float
    stated: float | None

    def __post_init__(self) -> None:
        if not len(self.sizes) == len(self.seconds) > 0 or min(*self.sizes, *self.seconds) <= 0:
            raise InputError(
                f"step {self.step!r} has {len(self.sizes)} sizes and {len(self.seconds)} times. "
                "Give as many times as sizes, at least one, all above 0."
            )


def _numbers(panels: Sequence[tuple[str, Sequence[Curve]]]) -> dict[str, int]:
    """A number for each curve name, the same in all panels; those of the paper are numbered on their own."""
    own, paper = (
        dict.fromkeys(c.name for _, curves in panels for c in curves if bool(c.paper) is p) for p in (False, True)
    )
    return {name: number for names in (own, paper) for number, name in enumerate(names)}


def _draw_own(axes: Axes, curve: Curve, number: int, bars: bool) -> Any:
    """Draw a measured curve and its spread, as error bars or as a band; the result goes into the legend."""
    color = CURVE_COLORS[number % len(CURVE_COLORS)]
    look: dict[str, Any] = {"color": color, "marker": MARKERS[number % len(MARKERS)], "label": curve.name}
    if bars and len(curve.spread):
        return axes.errorbar(curve.x, curve.y, yerr=curve.spread, capsize=2.5, elinewidth=1, **look)
    if len(curve.spread):
        y, spread = np.asarray(curve.y), np.asarray(curve.spread)
        axes.fill_between(curve.x, y - spread, y + spread, color=color, alpha=0.2, linewidth=0)
    every = max(1, len(curve.x) // 8)
    return axes.plot(curve.x, curve.y, markevery=(number % every, every), **look)[0]


def _draw_paper(axes: Axes, curve: Curve, number: int, squares: bool) -> Any:
    """Draw a published curve, as open marks or as a dashed line; the result goes into the legend."""
    look: dict[str, Any] = {"color": "black", "label": curve.name, "zorder": 3}
    if squares:
        look |= {"marker": "sDo^"[number % 4], "markersize": 7, "markerfacecolor": "none", "linestyle": "none"}
        return axes.plot(curve.x, curve.y, **look)[0]
    look |= {"linestyle": DASHES[number % len(DASHES)], "linewidth": 1.2}
    if len({*curve.y}) == 1:
        return axes.axhline(curve.y[0], **look)
    return axes.plot(curve.x, curve.y, **look)[0]


def _curve_panels(panels: Sequence[tuple[str, Sequence[Curve]]], x_label: str, note: str, marks: bool) -> Figure:
    """Panels side by side; with ``marks``, error bars for all measured curves and open marks for published ones."""
    if not all(curves for _, curves in panels):
        raise InputError("each panel needs at least one curve. Give it one.")
    figure, places = grid(len(panels), 2.9)
    numbers = _numbers(panels)
    handles: dict[str, Any] = {}
    for axes, (y_label, curves) in zip(places, panels, strict=True):
        for curve in curves:
            draw = _draw_paper if curve.paper else _draw_own
            handles[curve.name] = draw(
                axes, curve, numbers[curve.name], marks or (not curve.paper and len(curve.x) < 8)
            )
        ticks = sorted({x for curve in curves for x in curve.x})
        if marks and len(ticks) <= 8:
            axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        if all(float(tick).is_integer() for tick in ticks) and not marks:
            axes.locator_params(axis="x", integer=True)
        axes.set(xlabel=x_label, ylabel=y_label)
    return finish(figure, note, handles)


@styled()
def curves_figure(panels: Sequence[tuple[str, Sequence[Curve]]], x_label: str, note: str = "") -> Figure:
    """Curves side by side, such as scores over epochs; those of the paper are black and dashed.

    Parameters
    ----------
    panels : sequence of (str, sequence of Curve)
        The label of the y axis, with its unit, and the curves of each panel.
    x_label : str
        The label of all x axes.
    note : str
        A line below the figure.
    """
    return _curve_panels(panels, x_label, note, marks=False)


@styled()
def angle_figure(panels: Sequence[tuple[str, Sequence[Curve]]], note: str = "") -> Figure:
    """Scores over the angle α: measured ones with error bars, those of the paper as open black squares.

    Parameters
    ----------
    panels : sequence of (str, sequence of Curve)
        The label of the y axis, with its unit, and the curves of each panel; x is the angle in degrees.
    note : str
        A line below the figure.
    """
    return _curve_panels(panels, "Angle α in degrees", note, marks=True)


@styled()
def maps_figure(rows: Sequence[Sequence[Panel]], class_names: Sequence[str], note: str = "") -> Figure:
    """A grid of maps, such as those of t-SNE, with one legend of the classes.

    Parameters
    ----------
    rows : sequence of sequence of Panel
        The maps of each row.
    class_names : sequence of str
        The name of each class number, at most 10. Examples of other numbers are not drawn.
    note : str
        A line below the figure.
    """
    from matplotlib.lines import Line2D

    across = max((len(row) for row in rows), default=0)
    if not across or not 0 < len(class_names) <= len(CLASS_COLORS):
        raise InputError(f"maps need a panel and 1 to 10 classes, got {len(class_names)} classes. Draw fewer of them.")
    figure = page(len(rows) * (WIDTH / max(across, 2) + 0.2) + (0.6 if note else 0.35))
    looks = list(zip(CLASS_COLORS, MARKERS, MARKER_AREAS, class_names, strict=False))
    for down, row in enumerate(rows):
        for place, panel in enumerate(row):
            axes = figure.add_subplot(len(rows), across, down * across + place + 1)
            size = float(np.clip(4000 / max(1, len(panel.points)), 5, 20))
            for number, (color, marker, area, _) in enumerate(looks):
                x, y = panel.points[panel.labels == number].T
                look: dict[str, Any] = {"color": color, "marker": marker, "s": size * area}
                axes.scatter(x, y, alpha=0.75, linewidths=0, rasterized=True, **look)
            axes.set(title="\n".join(wrapped(panel.title, 0.87 * WIDTH / across)), xticks=[], yticks=[], box_aspect=1)
            axes.spines[:].set(visible=True, color="#BBBBBB")
    handles = {
        name: Line2D([], [], color=color, marker=marker, linestyle="none", markersize=5.5 * area**0.5)
        for color, marker, area, name in looks
    }
    return finish(figure, note, handles)


def _log_ticks(axes: Axes, sizes: set[int], room: float) -> None:
    """Plain numbers on both axes: measured sizes, ``room`` of the axis apart, and powers of ten of seconds."""
    from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

    ticks = [min(sizes)]
    for size in sorted(sizes):
        if np.log(size / ticks[-1]) > room * np.log(max(sizes) / min(sizes)):
            ticks.append(size)
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 15 * low else (1,)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10f}".rstrip("0").rstrip("."))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _draw_scaling(axes: Axes, scaling: Scaling, number: int) -> None:
    """Draw the points, the fitted line through their middle, and a line of the stated slope."""
    sizes, seconds = np.asarray(scaling.sizes, dtype=float), np.asarray(scaling.seconds, dtype=float)
    ends = np.array([sizes.min(), sizes.max()])
    middle, level = np.exp(np.log(sizes).mean()), np.exp(np.log(seconds).mean())
    label = f"{scaling.step}:\nmeasured {scaling.exponent:.2f}"
    label += "" if scaling.stated is None else f", stated {scaling.stated:g}"
    look: dict[str, Any] = {"color": CURVE_COLORS[number % len(CURVE_COLORS)]}
    axes.plot(sizes, seconds, linestyle="none", marker=MARKERS[number % len(MARKERS)], label=label, **look)
    axes.plot(ends, level * (ends / middle) ** scaling.exponent, linewidth=2, alpha=0.6, **look)
    if scaling.stated is not None:
        axes.plot(ends, level * (ends / middle) ** scaling.stated, color="black", linestyle="--", linewidth=1)


@styled()
def scaling_figure(scalings: Sequence[Scaling], note: str = "") -> Figure:
    """Measured times, fitted slopes and the slopes that the paper states; one panel per variable.

    Parameters
    ----------
    scalings : sequence of Scaling
        The measurements.
    note : str
        A line below the figure.
    """
    from matplotlib.lines import Line2D

    variables = {s.variable: [t for t in scalings if t.variable == s.variable] for s in scalings}
    figure, places = grid(len(variables), 2.9 + 0.3 * max(map(len, variables.values()), default=0))
    steps = list(dict.fromkeys(s.step for s in scalings))
    for axes, (variable, measured) in zip(places, variables.items(), strict=True):
        for scaling in measured:
            _draw_scaling(axes, scaling, steps.index(scaling.step))
        axes.set(xscale="log", yscale="log", xlabel=variable, ylabel="Time in seconds")
        _log_ticks(axes, {size for s in measured for size in s.sizes}, 0.09 * min(3, len(variables)))
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), handletextpad=0.2, handlelength=1.4)
    handles = {"fitted slope": Line2D([], [], color=GREY, linewidth=2, alpha=0.6)}
    if any(s.stated is not None for s in scalings):
        handles["slope stated in the paper"] = Line2D([], [], color="black", linestyle="--", linewidth=1)
    return finish(figure, note, handles)

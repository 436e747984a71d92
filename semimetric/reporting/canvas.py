"""The page of all figures: 7 inches wide, letters of at least 8 points, colours that colour-blind people tell apart."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semimetric.core.errors import InputError
from semimetric.core.extras import import_extra
from semimetric.core.files import check_output, write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 7.0
"""Inches; the width of a page."""

CURVE_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Colours of Okabe and Ito. Black is for the paper; yellow is too pale for lines."""

CLASS_COLORS = (*CURVE_COLORS, "#000000", "#A0522D", "#7F00FF", "#AA0044")
"""The colours of Okabe and Ito without yellow, and three more that stay distinct for colour-blind people."""

MARKERS = ("o", "^", "s", "D", "v", "P", "X", "<", ">", "*")

MARKER_AREAS = (1.0, 1.3, 0.9, 0.65, 1.3, 1.2, 1.2, 1.3, 1.3, 2.2)
"""Factors that make the markers look equally large."""

GREY = "#555555"

NOTE: dict[str, Any] = {"fontsize": 8, "color": GREY}

_STYLE = {
    "font.size": 9,
    "axes.labelsize": 9,
    "axes.titlesize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.5,
    "text.parse_math": False,
    "svg.hashsalt": "semimetric",
}


@contextmanager
def styled() -> Iterator[None]:
    """Matplotlib's defaults with the style of this module; the caller's settings come back afterwards."""
    import_extra("matplotlib", "figures", "a figure")
    from matplotlib import style

    with style.context(["default", _STYLE]):
        yield


def page(height: float, layout: Any = "constrained") -> Figure:
    """An empty figure of the width of a page."""
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height), dpi=150, layout=layout)


def grid(count: int, height: float, columns: int = 3) -> tuple[Figure, list[Axes]]:
    """A figure with ``count`` axes, at most ``columns`` in a row; ``height`` inches a row."""
    if count < 1:
        raise InputError("a figure needs at least one panel. Give some.")
    across = min(count, columns)
    down = -(-count // across)
    figure = page(height * down)
    return figure, [figure.add_subplot(down, across, place + 1) for place in range(count)]


def _inches(text: str) -> float:
    """Width of a line of text of 8 points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    return float(text_to_path.get_text_width_height_descent(text, FontProperties(size=8), False)[0]) / 72


def wrapped(text: str, width: float) -> list[str]:
    """Lines of ``text``, in letters of 8 points, that fit into ``width`` inches; longer words are hyphenated."""
    lines = [""]
    for word in text.split():
        rest = word
        joined = f"{lines[-1]} {word}".strip()
        if _inches(joined) <= width:
            rest = joined
            lines.pop()
        while _inches(rest) > width and len(rest) > 2:
            cut = (len(rest) + 1) // 2
            while cut > 1 and _inches(rest[:cut] + "-") > width:
                cut -= 1
            lines.append(rest[:cut] + "-")
            rest = rest[cut:]
        lines.append(rest)
    return lines if len(lines) == 1 else [line for line in lines if line]


def finish(figure: Figure, note: str, handles: dict[str, Any]) -> Figure:
    """Add the legend above and the note below, then lay out once, so that each output has the same positions."""
    most = max(1, int(WIDTH / (max(map(_inches, handles)) + 0.5)))
    columns = -(-len(handles) // -(-len(handles) // most))
    figure.legend(list(handles.values()), list(handles), loc="outside upper center", ncols=columns)
    if note:
        figure.supxlabel("\n".join(wrapped(note, WIDTH - 0.2)), x=0.01, ha="left", **NOTE)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


@styled()
def write_figure(figure: Figure, stem: Path) -> list[Path]:
    """Write ``stem``.png with 150 dots per inch and ``stem``.svg; the same figure gives the same bytes.

    Parameters
    ----------
    figure : Figure
        What to write.
    stem : Path
        The files without their endings. Files that exist are replaced once both pictures are drawn.

    Returns
    -------
    list of Path
        The two files.
    """
    pictures = {}
    for ending, dots, left_out in (("png", 150, "Software"), ("svg", 150, "Date")):
        path = stem.with_name(f"{stem.name}.{ending}")
        check_output(path, replace=True, option="figure")
        buffer = io.BytesIO()
        figure.savefig(buffer, format=ending, dpi=dots, metadata={left_out: None})
        pictures[path] = buffer.getvalue()
    for path, content in pictures.items():
        write_atomically(path, partial(Path.write_bytes, data=content))
    return list(pictures)
